/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the judge keeps: its maps, and what is in them. */
#pragma once
#include "kernel.h"
#include <bpf/bpf_helpers.h>

enum kind { OTHER, ONLINE, OFFLINE, KERNEL, IDLE, IRQ, KINDS };

#define SLOTS		320	/* 8 per power of two: within 6 % */
#define SIBLINGS	3
#define DEPTH		16	/* of cgroups */
#define RING		64	/* tenures of one wait that are told apart; a power of two */
#define NOBODY		(~0ULL)	/* as a cgroup: more tenures than the ring holds */
#define KIND(class)	((class) & 0xff)
#define TARGET(class)	((class) >> 8)

const volatile bool unified = false;	/* class by the v2 cgroup, not by that of v1's cpu controller */
const volatile bool processes = false;	/* some targets are processes */
const volatile bool verify = false;	/* compare with sched_info.run_delay */
u32 generation = 1;			/* of the classes: cached ones of another are stale */
u32 offline_cpus = 0;			/* that run OFFLINE now */
u32 enabled = 0;			/* once all programs are attached: half of them would see half of a wait */

struct cpu_state {
	u64 ns[KINDS];
	u64 since;		/* start of what is not in ns yet; 0 while it is written, and before the first switch */
	u32 kind;		/* since then */
	u32 tenant;		/* kind of the task on the CPU, also during an interrupt */
	u64 cgroup;		/* of that task */
	u64 tenure, in_irq;	/* its start, and interrupts since */
	u64 head;		/* tenures ever put into the ring */
	s32 waiters;		/* threads of interest that are queued here */
	u32 irq_depth;
	u64 inversion;		/* since when one is queued and OFFLINE has the CPU */
	u32 by_wakeup;		/* it began with a wake-up */
	s32 pid;		/* self-check: switches that nobody told us */
	s32 sibling[SIBLINGS];
	u32 class;		/* of the task on the CPU */
	u64 sibling_was[SIBLINGS];	/* its OFFLINE time when ONLINE came here; 0 when it has not */
	u64 online, offline;	/* since when nobody else had this CPU; 0 when others have it. Where there are siblings */
	struct culprit {
		u64 cgroup;
		u32 target, kind;
	} last;			/* blamed here last, and what is not in the map of culprits yet */
	u64 pending;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);	/* the loader sets it to the possible CPUs, as for rings */
	__type(key, u32);
	__type(value, struct cpu_state);
} cpus SEC(".maps");

struct ring {
	struct tenure {
		u64 from, to, net;	/* net: without interrupts */
		u64 cgroup, kind;
	} of[RING];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct ring);
} rings SEC(".maps");

/* Counters of what online threads met; ns where nothing else is said. */
struct totals {
	u64 wait[KINDS];
	u64 unexplained;	/* wait that no kind accounts for: 0 unless switches were missed */
	u64 run;
	u64 waits, wakes, preempted;
	u64 migrations, migrations_waiting;
	u64 displaced, displaced_ns;	/* queued behind something else while OFFLINE had another CPU */
	u64 inversions, inversion_ns, inversions_escaped;
	u64 overlap;		/* OFFLINE on a sibling meanwhile */
	u64 evictions, stayed;	/* siblings that OFFLINE has left while ONLINE was there; that ONLINE has left first */
	u64 intrusions;		/* OFFLINE came beside ONLINE */
	u64 switches, wakeups;
	u64 no_start, lost, lost_ns, no_storage, retries;
	u64 missed, relevant, relevant_missed;	/* switches; relevant: while a thread of interest was queued there */
	u64 full, full_ns;	/* culprits that found no place in the map */
	u64 gone, gone_run, gone_wait;	/* threads that have ended */
	u64 checked, checked_ns, kernel_ns, kernel_zero, kernel_zero_ns, off;
	u64 wake_delay[SLOTS];	/* wake-up to running */
	u64 preempt_delay[SLOTS];	/* wake-up on a CPU with OFFLINE to OFFLINE gone */
	u64 evict_delay[SLOTS];	/* ONLINE beside OFFLINE to OFFLINE gone */
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct totals);
} totals SEC(".maps");

/* One target: a cgroup or process of interest. */
struct target {
	u64 run, waits, wait[KINDS];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, struct target);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct culprit);
	__type(value, u64);
} culprits SEC(".maps");

/* What a thread of interest does. From RUNNABLE on it waits: preempted, woken, or woken behind something else. */
enum state { UNSEEN, ASLEEP, RUNNING, RUNNABLE, WOKEN, DISPLACED };

struct task_state {
	u64 cgroup;
	u32 generation, class;
	u32 state, cpu;		/* cpu: where it is queued */
	u64 began, since;	/* its state; since when it is queued there */
	u64 copy[KINDS];
	u64 wait[KINDS];	/* over all waits */
	u64 waited, parts;	/* all waits that ended; of this one, from CPUs that it has left too */
	u64 waits;
	u64 seen, run, slept, lost;	/* first seen; lost: states whose end nobody told. They add up: */
	u64 kernel_delay, last_wait;	/* seen + run + waited + slept + lost = began */
	u32 check, counted, exiting;
};
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

/* Kind and target by cgroup (the nearest ancestor counts), and by process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, u32);
} classes SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, u32);
} process_classes SEC(".maps");

/* A thread of interest, for the reader. */
struct thread {
	u32 pid, tgid, target, state;
	u64 wait[KINDS], waited, waits, run, slept, lost, seen, now, began;
};

/* The reader knows these places (judge.rs). */
#define at(type, member) __builtin_offsetof(struct type, member)
_Static_assert(at(cpu_state, since) == 8 * KINDS && at(cpu_state, kind) == 8 * (KINDS + 1), "SINCE");
_Static_assert(at(cpu_state, sibling) == 8 * (KINDS + 1) + 8 + 8 * 4 + 8 + 8 + 8, "SIBLINGS_AT");
_Static_assert(at(cpu_state, pending) + 8 == sizeof(struct cpu_state), "pending is last");
_Static_assert(at(cpu_state, last) + 16 == at(cpu_state, pending) && at(culprit, target) == 8, "culprit");
_Static_assert(sizeof(struct thread) == 4 * 4 + 8 * (KINDS + 8), "THREAD");
