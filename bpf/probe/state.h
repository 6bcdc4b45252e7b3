/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the probe keeps: its maps, and what is in them that user space does not see. */
#pragma once
#include "../kernel.h"
#include "../intf.h"

enum { BPF_MAP_TYPE_LRU_HASH = 9, BPF_MAP_TYPE_RINGBUF = 27 };
enum { BPF_RB_FORCE_WAKEUP = 2 };	/* enum bpf_ringbuf flags: 1ULL << 1 */

/* What else of a task the probe reads. */
struct task_struct___named {
	struct task_struct___named *group_leader;
	char comm[16];
} __attribute__((preserve_access_index));

#define RING		64	/* tenures of one wait that are told apart; a power of two */
#define NOBODY		(~0ULL)	/* as a cgroup: more tenures than the ring holds */
#define KIND(class)	((class) & 0xff)
#define TARGET(class)	((class) >> 8)

const volatile u8 unified = 0;		/* class by the v2 cgroup, not by that of v1's cpu controller */
const volatile u8 processes = 0;	/* some targets are processes */
const volatile u8 verify = 0;		/* compare with sched_info.run_delay */
const volatile u8 by_command = 0;	/* tell the processes of CLASS_OTHER apart; without it nothing here costs anything */
struct control control SEC(".data.control") = { .generation = 1 };
u32 offline_cpus = 0;			/* that run OFFLINE now */
/* The window of the alarm. CPUs may both begin one: then a little of it is forgotten. */
u64 window_from = 0, window_ns = 0;
u32 window_told = 0;
struct thread_reading *reading = 0;	/* of no use but that the object describes this type, which is on the stack alone */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);	/* the loader sets it to the possible CPUs, as for rings */
	__type(key, u32);
	__type(value, struct cpu_state);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} alarms SEC(".maps");

struct ring {
	struct tenure {
		u64 from, to, net;	/* net: without interrupts */
		u64 cgroup;
		u32 kind, tgid;
	} of[RING];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct ring);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct totals);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct delays);
} delays SEC(".maps");

/* By CPU: locked additions were a tenth of what a switch costs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
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

/* User space takes entries out as it reads them. What finds no room is in `culprits` all the same. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct command);
	__type(value, u64);
} commands SEC(".maps");

/* Processes that ended while somebody waited: nobody can be asked for their names any more. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct command_name);
} command_names SEC(".maps");

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
