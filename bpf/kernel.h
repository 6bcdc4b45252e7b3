/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The few kernel types that both programs read. CO-RE relocates their fields to the offsets of the running kernel, from
 * its BTF, so neither vmlinux.h nor a kernel tree is needed. Types and fields have the names that Linux gives them.
 */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef _Bool bool;
#define false 0
#define true 1

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_F_NO_PREALLOC = 1, BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };
enum { PF_IDLE = 0x2, PF_EXITING = 0x4, PF_KTHREAD = 0x00200000 };
enum { EINVAL = 22, ENOMEM = 12, E2BIG = 7 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
};
struct cpumask {
	unsigned long bits[1];
};
struct kernfs_node {
	u64 id;
};
struct cgroup;
struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};
struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};
struct css_set {
	struct cgroup *dfl_cgrp;
};
struct task_group {
	struct cgroup_subsys_state css;
};
struct thread_info {
	u32 cpu;
};
struct task_struct;
struct rq;
struct cfs_rq {
	unsigned int h_nr_queued, h_nr_idle;	/* h_nr_queued since 6.14 */
	struct rq *rq;			/* with CONFIG_FAIR_GROUP_SCHED, as is cfs_rq below */
};
struct rq {
	struct cfs_rq cfs;
	struct task_struct *curr;
	u64 clock;
};
struct sched_entity {
	struct cfs_rq *cfs_rq;
	u64 sum_exec_runtime;
	unsigned char sched_delayed;	/* since 6.12 */
};
struct sched_info {
	unsigned long long run_delay;
};
struct sched_ext_entity {
	u32 flags;
	u32 weight;
	u64 slice;
	u64 dsq_vtime;
};
typedef struct {
	unsigned long sig[1];
} sigset_t;
struct sigpending {
	sigset_t signal;
};
struct signal_struct {
	unsigned int flags;
};
struct task_struct {
	struct sched_info sched_info;
	struct thread_info thread_info;
	unsigned int flags;
	unsigned int on_cpu, on_rq;	/* u8 since 7.2; only unsigned fields may change their size */
	int prio;
	struct sched_entity se;
	struct sched_ext_entity scx;
	struct task_group *sched_task_group;
	struct css_set *cgroups;
	unsigned int policy;
	int nr_cpus_allowed;
	const struct cpumask *cpus_ptr;
	unsigned long jobctl;
	int pid, tgid;
	struct signal_struct *signal;
	struct sigpending pending;
};
struct task_struct___old {
	u32 cpu;			/* before 5.16 */
};
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};
#pragma clang attribute pop

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
