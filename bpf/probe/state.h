/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The state of the probe: its maps, and the structures in them that user space does not read. */
#pragma once
#include "../kernel.h"
#include "../intf.h"

enum { BPF_MAP_TYPE_LRU_HASH = 9, BPF_MAP_TYPE_RINGBUF = 27 };
enum { BPF_RB_FORCE_WAKEUP = 2 };	/* enum bpf_ringbuf flags: 1ULL << 1 */

/* What only the probe reads of a task. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct upid {
	int nr;
};
struct pid {
	unsigned int level;
	struct upid numbers[1];
};
struct task_struct___named {
	struct task_struct___named *group_leader, *real_parent;
	char comm[16];
	struct pid *thread_pid;
};
/* The kernel's own account of a task, and of a run queue. */
struct sched_info___times {
	unsigned long long run_delay, last_arrival, last_queued;
};
struct task_struct___times {
	struct sched_info___times sched_info;
};
struct rq___counted {
	u64 nr_switches;
};
#pragma clang attribute pop

#define RING		512	/* tenures that are kept per CPU; a power of two, like the next */
#define PLACES		256
#define MAX_RT_PRIO	100	/* include/linux/sched/prio.h */
#define NOBODY		(~0ULL)	/* in place of a cgroup: tenures that the ring no longer holds */
#define KIND(class)	((class) & 0xff)
#define TARGET(class)	((class) >> 8)

const volatile u8 unified = 0;		/* classes are by cgroup v2; otherwise by the v1 cpu hierarchy */
const volatile u8 processes = 0;	/* some targets are processes */
const volatile u8 verify = 0;		/* compare with sched_info.run_delay */
const volatile u8 by_command = 0;	/* distinguish the processes of CLASS_OTHER; costs nothing if off */
const volatile u8 by_target = 0;	/* distinguish culprits by target instead of by cgroup */
struct control control SEC(".data.control") = { .generation = 1 };
u32 offline_cpus = 0;			/* number of CPUs that run OFFLINE now */
/* The window of the alarm. If two CPUs begin one at the same time, a little of the wait is lost. */
u64 window_from = 0, window_ns = 0;
u32 window_told = 0;
struct thread_reading *reading = 0;	/* unused; makes the object's BTF describe this type, which otherwise is only on the stack */

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
	u32 place[PLACES];	/* number of the last tenure of a culprit, by its hash */
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct ring);
} rings SEC(".maps");

/*
 * A wait that ended with a switch which the kernel has not reported. Not on the stack: before 6.10, the kernel allows programs 512 bytes
 * with all their calls, of 32 bytes at least.
 */
struct arrival {
	u64 at, over;		/* over: time after it that the task before has got */
	struct tenure ended;	/* of the task before */
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct arrival);
} arrivals SEC(".maps");

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

/* Per CPU, because locked additions took a tenth of the time for a switch. */
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

/* User space removes entries when it reads them. A wait that does not fit is still counted in `culprits`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct command);
	__type(value, u64);
} commands SEC(".maps");

/* Names of processes that ended while a thread waited: /proc no longer has them. */
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
	u64 waited, parts;	/* all waits that ended; the parts of the current one that are accounted */
	u64 waits;
	u64 ran, delayed;	/* at `began`, by the kernel's own account: time on a CPU, and waits */
	u64 seen, run, slept, lost;	/* first seen; lost: what neither the probe nor the kernel's account explains. They add up: */
	u64 kernel_delay, last_wait;	/* seen + run + waited + slept + lost = began */
	u32 check, counted, exiting;	/* counted: CPU of whose waiters it is one, plus one, and HINT; 0: none */
	u32 from_start;		/* while UNSEEN: it has been in this class, and in one state, since control.from_ns */
	u32 process;		/* class of the target of which its process is a part, and ENDED; 0: of none */
	u32 first;		/* while UNSEEN: nothing has happened to it before, for which the kernel had storage */
};
#define SINCE_PRIMED	2		/* of task_state.from_start: `prime` has read the kernel's account of it */
#define ENDED		(1u << 31)	/* of task_state.process: this thread has ended */
#define HINT		(1u << 31)	/* of task_state.counted: `prime` did that, for a task that nothing has happened to yet */
#define KIN		64		/* ancestors of a process that are searched for a target */

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

/* Parts of waits that go on. User space empties it before it reads the threads. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct open_culprit);
	__type(value, u64);
} open_culprits SEC(".maps");

/* Kind and target by cgroup: the nearest ancestor counts. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, u32);
} classes SEC(".maps");

/*
 * Processes that are targets. Only `mark` looks here: from then on the threads themselves know it, and pass it on to their children.
 * So another process that gets the number later is none.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct process);
} process_classes SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, struct life);
} lives SEC(".maps");
