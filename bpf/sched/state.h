/* SPDX-License-Identifier: GPL-2.0-only */
/* The state of the scheduler, and how a thread gets its class. */
#pragma once
#include "scx.h"
#include "../intf.h"

#define READ_ONCE(x)		(*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value)	(*(volatile typeof(x) *)&(x) = (value))
#define MS			1000000ULL

const volatile struct settings settings SEC(".rodata.settings") = {
	.slice_ns = 3 * MS,
	.short_slice_ns = 1 * MS,
	.housekeeping_ns = 10 * MS,
	.vacant_ns = 12 * MS,
	.crowded_ns = 1 * MS,
	.nr_cpus = 1,
	.nr_llcs = 1,
	.unified = 1,
};
struct orders orders SEC(".data.orders") = { .generation = 1 };
struct notes notes SEC(".data.notes") = {};

u32 slots_used = 1;	/* highest slot in use, plus one */
u32 limits_used = 1;
u64 vtime_now = 0;	/* of the slot that ran last */
u64 beats = 0;		/* runs of housekeeping */
u64 looked_at = 0;	/* generation for which the classes of running threads were checked */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_CPUS);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_CPUS);
	__type(key, u32);
	__type(value, struct core);
} cores SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_SLOTS);
	__type(key, u32);
	__type(value, struct slot);
} slots SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_LIMITS);
	__type(key, u32);
	__type(value, struct limit);
} limits SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_CGROUPS);
	__type(key, u64);
	__type(value, struct group);
} groups SEC(".maps");
struct dump {
	char text[32768];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct dump);
} dumps SEC(".maps");
struct housekeeper {
	struct bpf_timer timer;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct housekeeper);
} housekeepers SEC(".maps");

struct thread {
	u64 cgroup, generation;	/* for which class and slot were determined */
	u32 class, slot;
	u64 queued_at;		/* since when it waits; 0: it does not */
	u64 run_at;		/* its CPU time when it was charged last */
	u64 vtime;		/* among the threads of its slot */
};
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

static __always_inline bool is_online(u64 class)
{
	return class == CLASS_ONLINE || class == CLASS_EXPELLING;
}

static __always_inline struct cpu *cpu_at(u32 cpu)
{
	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline struct slot *slot_at(u32 slot)
{
	return bpf_map_lookup_elem(&slots, &slot);
}

static __always_inline struct thread *thread_of(struct task_struct *p)
{
	return bpf_task_storage_get(&threads, p, 0, 0);
}

/* Returns the class of the nearest ancestor that has one, and its slot in the upper half. */
static __noinline u64 look_up(struct cgroup *cgroup)
{
	for (int i = 0; i < DEPTH && cgroup; i++) {
		u64 id = BPF_CORE_READ(cgroup, kn, id);
		struct group *group = bpf_map_lookup_elem(&groups, &id);

		if (group)
			return group->class | (u64)group->slot << 32;
		cgroup = BPF_CORE_READ(cgroup, self.parent, cgroup);
	}
	/* An offline thread whose group has no entry any more shares the last slot. */
	return CLASS_OTHER | (u64)(MOST_SLOTS - 1) << 32;
}

/* On v2 not by its task group, which a cgroup has only if the cpu controller is enabled for it. */
static __always_inline struct cgroup *cgroup_of(struct task_struct *p)
{
	return settings.unified ? p->cgroups->dfl_cgrp : p->sched_task_group->css.cgroup;
}

/* Puts a thread into a slot. Each slot has a clock of its own, so the thread starts at this slot's current vtime. */
static __always_inline void enter(struct thread *t, u32 index)
{
	struct slot *s = slot_at(index);

	if (t->slot == index)
		return;
	t->slot = index;
	if (s)
		t->vtime = s->thread_vtime;
}

static __always_inline u32 class_of(struct task_struct *p, struct thread *t)
{
	struct cgroup *cgroup = cgroup_of(p);
	u64 id = cgroup ? cgroup->kn->id : 0, found;

	if (t && t->cgroup == id && t->generation == orders.generation)
		return p->policy == SCHED_EXT ? CLASS_OFFLINE : t->class;
	found = look_up(cgroup);
	if (t) {
		t->class = (u32)found;
		enter(t, found >> 32 & (MOST_SLOTS - 1));
		t->cgroup = id;
		t->generation = orders.generation;
	}
	return p->policy == SCHED_EXT ? CLASS_OFFLINE : (u32)found;
}

static __always_inline u32 slot_of(struct task_struct *p, struct thread *t)
{
	if (!t)
		return MOST_SLOTS - 1;
	class_of(p, t);
	return t->slot & (MOST_SLOTS - 1);
}

/* Whether the thread is being killed or frozen: it needs a CPU for that, but only briefly. */
static __always_inline bool wants_out(struct task_struct *p)
{
	return p->flags & PF_EXITING || p->jobctl & JOBCTL_TRAP_FREEZE ||
	       p->pending.signal.sig[0] & SIGKILL_BIT || p->signal->flags & SIGNAL_GROUP_EXIT;
}
