/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kernel types and functions that only the scheduler uses, mostly of sched_ext. The kernel does not keep these functions stable:
 * those that changed are declared weak, in every form that kernels since 6.13 have had.
 */
#pragma once

#include "../kernel.h"

enum { CLOCK_MONOTONIC = 1 };
enum { SCHED_EXT = 7 };
enum { SIGNAL_GROUP_EXIT = 4, SIGKILL_BIT = 1 << 8, JOBCTL_TRAP_FREEZE = 1 << 23 };

/* Of sched_ext; the same since 6.13. */
#define SCX_DSQ_LOCAL		(1ULL << 63 | 2)
#define SCX_DSQ_LOCAL_ON	(3ULL << 62)
#define SCX_KICK_IDLE		1ULL
#define SCX_KICK_PREEMPT	2ULL
#define SCX_PICK_IDLE_CORE	1ULL
#define SCX_OPS_ENQ_LAST	2ULL
#define SCX_OPS_SWITCH_PARTIAL	8ULL
enum { SCX_TASK_QUEUED = 1 };

enum scx_exit_kind { SCX_EXIT_NONE, SCX_EXIT_DONE };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct cfs_rq___old {
	unsigned int h_nr_running, idle_h_nr_running;
};
struct scx_exit_info {
	enum scx_exit_kind kind;
	s64 exit_code;
	const char *reason;
	char *msg;
	char *dump;
};
struct scx_init_task_args {
	bool fork;
};
struct scx_bpf_dsq_insert_vtime_args {
	u64 dsq_id, slice, vtime, enq_flags;
};
/* Members by name; the kernel has more. */
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	void (*enable)(struct task_struct *p);
	void (*cpu_online)(s32 cpu);
	void (*cpu_offline)(s32 cpu);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	u32 exit_dump_len;
	char name[128];
};
#pragma clang attribute pop

struct bpf_timer {
	__u64 __opaque[2];
} __attribute__((aligned(8)));
struct bpf_iter_num {
	__u64 __opaque[1];
} __attribute__((aligned(8)));
struct bpf_iter_scx_dsq {
	u64 __opaque[6];
} __attribute__((aligned(8)));

extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym __weak;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym __weak;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym __weak;
extern bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask) __ksym;
extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym;
extern struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;
extern s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
extern s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
extern void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
extern s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, u64 flags) __ksym;
extern bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id, u64 enq_flags) __ksym;
extern void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it__iter, u64 slice) __ksym;
/* 7.1 added flags and renamed it. */
extern bool scx_bpf_dsq_move_to_local___v2___new(u64 dsq_id, u64 enq_flags) __ksym __weak;
extern bool scx_bpf_dsq_move_to_local___old(u64 dsq_id) __ksym __weak;
/* 6.19 put the arguments into a structure. */
extern bool __scx_bpf_dsq_insert_vtime(struct task_struct *p, struct scx_bpf_dsq_insert_vtime_args *args) __ksym __weak;
extern void scx_bpf_dsq_insert_vtime___old(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime, u64 enq_flags) __ksym __weak;
/* Since 6.19 it returns whether it inserted the thread. */
extern bool scx_bpf_dsq_insert___v2___new(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __ksym __weak;
extern void scx_bpf_dsq_insert___old(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __ksym __weak;
/* Since 6.19, which deprecates writing the fields. */
extern bool scx_bpf_task_set_slice___new(struct task_struct *p, u64 slice) __ksym __weak;
extern bool scx_bpf_task_set_dsq_vtime___new(struct task_struct *p, u64 vtime) __ksym __weak;
/* Since 6.19 it can be called anywhere; before, only where a higher class takes the CPU. */
extern void scx_bpf_reenqueue_local___v2___new(void) __ksym __weak;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;
extern const struct rq runqueues __ksym;

static __always_inline bool move_to_local(u64 queue)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___new))
		return scx_bpf_dsq_move_to_local___v2___new(queue, 0);
	return scx_bpf_dsq_move_to_local___old(queue);
}

static __always_inline void insert(struct task_struct *p, u64 queue, u64 slice, u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert___v2___new))
		scx_bpf_dsq_insert___v2___new(p, queue, slice, flags);
	else
		scx_bpf_dsq_insert___old(p, queue, slice, flags);
}

static __always_inline void insert_vtime(struct task_struct *p, u64 queue, u64 slice, u64 vtime, u64 flags)
{
	if (bpf_core_type_exists(struct scx_bpf_dsq_insert_vtime_args)) {
		struct scx_bpf_dsq_insert_vtime_args args = {
			.dsq_id = queue, .slice = slice, .vtime = vtime, .enq_flags = flags,
		};

		__scx_bpf_dsq_insert_vtime(p, &args);
	} else {
		scx_bpf_dsq_insert_vtime___old(p, queue, slice, vtime, flags);
	}
}

static __always_inline void set_slice(struct task_struct *p, u64 slice)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice___new))
		scx_bpf_task_set_slice___new(p, slice);
	else
		p->scx.slice = slice;
}

static __always_inline void set_vtime(struct task_struct *p, u64 vtime)
{
	if (bpf_ksym_exists(scx_bpf_task_set_dsq_vtime___new))
		scx_bpf_task_set_dsq_vtime___new(p, vtime);
	else
		p->scx.dsq_vtime = vtime;
}
