/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Structures and constants that both BPF programs share with user space. Rust declares them once more, in mirror.rs (probe) and
 * intf.rs (scheduler); a test there, and the loader, compare every size, offset and constant with the compiled object's BTF.
 */
#pragma once

enum consts {
	SIBLINGS	= 3,	/* maximum number of SMT siblings of a CPU: up to SMT4 */
	DEPTH		= 16,	/* ancestors of a cgroup that are searched for a class */
	MOST_CPUS	= 1024,	/* of the scheduler, like the constants below */
	MOST_SLOTS	= 256,	/* offline groups with a weight of their own; all others share the last slot */
	MOST_LLCS	= 16,
	MOST_LIMITS	= 64,	/* hard limits; index 0 means no limit */
	MOST_CGROUPS	= 8192,
};

/* Class of what occupies a CPU. The scheduler counts kernel threads and interrupts as OTHER; the probe counts EXPELLING as ONLINE. */
enum class {
	CLASS_OTHER	= 0,	/* a task of a group without a class */
	CLASS_ONLINE	= 1,
	CLASS_OFFLINE	= 2,
	CLASS_KERNEL	= 3,	/* a kernel thread */
	CLASS_IDLE	= 4,
	CLASS_IRQ	= 5,
	CLASS_EXPELLING	= 6,	/* online, and offline work must leave the SMT siblings */
	CLASSES		= 7,
	/* What the probe distinguishes: the classes before this one, and tasks of OTHER that the scheduler prefers to all of these. */
	CLASS_REALTIME	= CLASS_EXPELLING,
	KINDS		= CLASSES,
};

/* ---- the probe ---- */

#define SLOTS		320	/* of a histogram: 8 per power of two, so values are within 6 % */

/* Order to the program `prime`. */
enum order { NOTHING, START, STOP };

/* Written only by user space and `prime`, so it has a section, and thus a map, of its own. */
struct control {
	u32 enabled;		/* set once all programs are attached: some of them would see only a part of a wait */
	u32 generation;		/* of the classes: a class that was cached in another generation is stale */
	u64 alarm_ns, window_ns;	/* wait of ONLINE for OFFLINE within a window that wakes the reader; 0: never */
	u64 from_ns, until_ns;	/* start of this generation, and end of the last one */
	enum order order;
	u32 primed;		/* whether all tasks have been looked at since from_ns */
};

/* Event that wakes the reader, at most once per window. */
struct alarm {
	u64 from_ns, to_ns;	/* the window so far */
	u64 blamed_ns;
};

struct culprit {
	u64 cgroup;
	u32 target;
	enum class kind;
};

/* Key of the wait caused by a process of CLASS_OTHER, which is counted in addition to the sums by cgroup. */
struct command {
	u64 cgroup;
	u32 target, tgid;
};

/* Name and user of a process that has ended. */
struct command_name {
	char comm[16];
	u32 uid;
};

struct cpu_state {
	u64 ns[KINDS];
	u64 since;		/* start of the time that is not in ns yet; 0 while ns is updated, and before the first switch */
	u32 kind;		/* class since then */
	u32 tenant;		/* class of the task on the CPU, also during an interrupt */
	u32 generation;		/* in which the task on the CPU got its class; another one: nothing has happened here since from_ns */
	u32 first_generation, first_class, first_tgid;	/* of the task that `prime` saw here; counts only until something happens */
	u64 first_cgroup;
	u64 base[KINDS];	/* ns at from_ns */
	u64 cgroup;		/* of that task */
	u64 tenure, in_irq;	/* when that task got the CPU, and time in interrupts since */
	u64 head;		/* number of tenures ever put into the ring */
	u64 kept;		/* end of the last tenure that the ring would keep: of a kernel thread or idle, too */
	s32 waiters;		/* online threads that are queued here */
	u32 irq_depth;
	u64 inversion;		/* since when an online thread is queued while OFFLINE has the CPU; 0: none is */
	u32 by_wakeup;		/* whether that began with a wake-up */
	s32 pid;		/* of the task on the CPU, to detect missed switches */
	s32 sibling[SIBLINGS];	/* -1: none; written by user space */
	u32 class;		/* of the task on the CPU */
	u64 sibling_was[SIBLINGS];	/* the sibling's OFFLINE time when ONLINE came here, plus 1; 0: ONLINE is not here */
	u64 online, offline;	/* since when ONLINE, or OFFLINE, has this CPU; 0: it has not. Only with siblings */
	struct culprit last;	/* culprit that was blamed here last, and its wait that is not in the map yet */
	u64 pending;
	u64 wakeup;		/* time of the last wake-up, by the run queue's clock */
	u64 ahead, compared;	/* CLOCK_MONOTONIC minus that clock, and when this was determined (by that clock) */
	u32 tgid, last_tgid;	/* process on the CPU, and process blamed last; 0 unless it is of CLASS_OTHER */
	u64 switches;		/* the kernel's own number of switches here, at the last one that it reported; 0: unknown */
	u64 queued;		/* when an online thread was queued here last */
	u64 waiting_since;	/* since when there have been waiters all the time */
	u64 found_idle;		/* when a wake-up found it idle first, if the kernel has not reported that switch */
};

/* Counters for online threads, per CPU; in ns if the name says so. */
struct totals {
	u64 wait[KINDS];	/* ns */
	u64 unexplained_ns;	/* wait that no class accounts for: 0 unless switches were missed */
	u64 run_ns;
	u64 waits, wakes, preempted;
	u64 migrations, migrations_waiting;
	u64 displaced, displaced_ns;	/* queued behind something else while OFFLINE had another CPU */
	u64 inversions, inversion_ns, inversions_escaped;
	u64 overlap_ns;		/* OFFLINE ran on a sibling at the same time */
	u64 evictions, stayed;	/* times that OFFLINE left a sibling of ONLINE; times that ONLINE left first */
	u64 intrusions;		/* times that OFFLINE started on a sibling of ONLINE */
	u64 switches, wakeups;
	u64 no_start, lost, lost_ns, no_storage, retries;
	u64 missed, relevant, relevant_missed;	/* switches; relevant: while an online thread was queued there */
	u64 hidden_ns;		/* wait during which an unreported task may have had the CPU, or of which the end was missed */
	u64 hidden_offline_ns;	/* the part of it that is counted as a wait for OFFLINE */
	u64 full, full_ns;	/* culprits that did not fit into the map */
	u64 gone, gone_run_ns, gone_wait_ns;	/* threads that have ended */
	u64 checked, checked_ns, kernel_ns, kernel_zero, kernel_zero_ns, apart;
};

struct delays {
	u64 wake[SLOTS];	/* wake-up to running */
	u64 preempt[SLOTS];	/* wake-up on a CPU with OFFLINE until OFFLINE has left it */
	u64 evict[SLOTS];	/* start of ONLINE on a sibling of OFFLINE until OFFLINE has left that */
};

/* Sums of one online target (a cgroup or a process), per CPU. */
struct target {
	u64 run_ns, waits, wait[KINDS];
};

/* A process that is a target with its descendants, by its number in the PID namespace of whoever reads the threads. */
struct process {
	u32 class;
	u32 found;		/* whether it was there when its threads were marked */
};

/* The living threads of a target that is a process. */
struct life {
	s64 threads;
	u64 ended_ns;		/* when the last one ended; 0: none has */
};

/* State of an online thread. From RUNNABLE on it waits: preempted, woken, or woken while OFFLINE had another CPU. */
enum state { UNSEEN, ASLEEP, RUNNING, RUNNABLE, WOKEN, DISPLACED };

/* Measurements of an online thread, for the reader. */
struct thread_reading {
	u32 pid, tgid, target;
	enum state state;
	u64 wait[KINDS];
	u64 waited_ns, waits, run_ns, slept_ns, lost_ns;	/* with the state that it is in now */
	u64 seen_ns, now_ns, began_ns;
	u64 open[KINDS];	/* parts of the wait that it is in now, which are in no other sum yet */
	u64 open_run_ns;	/* what it has run for in the state that it is in now: in no other sum, either */
};

/* Key of the parts of waits that go on, when the threads are read. */
struct open_culprit {
	struct culprit who;
	u32 tgid;
	u32 padding;
};

/* ---- the scheduler ---- */

/* Options, which are fixed when the scheduler is loaded. */
struct settings {
	u64 slice_ns;
	u64 short_slice_ns;	/* for long queues, and for threads that are being killed or frozen */
	u64 housekeeping_ns;
	u64 vacant_ns;		/* how long a vacated CPU stays idle: some ticks, since the balancer needs one on each of the CPUs */
	u64 crowded_ns;		/* shorter waits of online threads do not vacate a CPU */
	u32 nr_cpus;		/* possible CPUs */
	u32 nr_llcs;
	u32 unified;		/* whether groups are those of cgroup v2; otherwise of the v1 cpu hierarchy */
	u32 tick_alone;		/* for tests: no kicks, so that only the tick evicts */
};

/* Written only by user space, so it has a section, and thus a map, of its own. */
struct orders {
	u64 generation;		/* a class that a thread remembers from another generation is stale */
	u64 hold_off_ns;	/* how long a CPU stays free once an expelling thread has left its core */
};

/* Events, for user space to read. */
struct notes {
	u64 killed_at;		/* when a SIGKILL was sent last: killed threads that wait must get a CPU */
	u64 kind, code, at;	/* why the kernel unloaded the scheduler */
	char reason[128];
	char message[1024];
};

/* Argument of the program set_group: the class of a cgroup and of its descendants. */
struct group_args {
	u64 cgroup;		/* inode of its directory */
	u64 class;		/* CLASS_OTHER removes the entry */
	u64 slot;		/* of an offline group */
};

/* Arguments of set_slot and set_limit. */
struct slot_args {
	u64 index, used, weight, limit;
};
struct limit_args {
	u64 index, quota_ns, period_ns;
};

struct group {
	enum class class;
	u32 slot;
};

/* An offline group with a weight of its own. */
struct slot {
	u64 used;		/* written by user space */
	u64 weight;		/* relative to all slots; nested weights are multiplied out */
	u64 limit;		/* index of its hard limit; 0: none */
	u64 vtime;
	u64 thread_vtime;	/* of the thread that ran last */
	u64 run_ns;
	u64 oldest_ns;		/* longest wait at the heads of its queues when last checked; 0: none waits */
	u64 waited_max_ns;	/* longest wait that ended */
	u64 queued;
};

/* A hard limit: a token bucket of CPU time. */
struct limit {
	u64 quota_ns;		/* 0: not in use; written by user space, as is the period */
	u64 period_ns;
	s64 tokens_ns;
	u64 filled_at;
	u64 throttled;		/* times that the tokens ran out */
};

/* A core; its index is that of its first CPU. */
struct core {
	u64 since;
	u64 expelling_ns;	/* an expelling thread ran on it */
	u64 overlap_ns;		/* … while an offline one ran on a sibling */
	u64 overlap_max_ns;	/* longest such stretch */
	u64 overlap_now_ns;
};

struct cpu {
	s32 sibling[SIBLINGS];	/* -1: none; written by user space, as are core and llc */
	u32 core;
	u32 llc;
	u32 state;		/* enum class of what runs; user space initializes it with IDLE */
	u32 claim;		/* dispatch is about to run an offline thread */
	u32 expelled;		/* dispatch refused because of a sibling; needs a kick when that ends */
	u64 since;		/* of state */
	u64 asked_at;		/* since when a sibling wants the offline thread to leave; 0: none does */
	u64 by_tick;		/* 1: the tick has made it leave since then */
	u64 resume_at;		/* end of the hold-off */
	u64 vacant_until;	/* kept idle until then, so that the balancer moves an online thread here */
	u64 crowded_since;	/* since when two online threads or more are queued here */
	u64 helped_until;	/* until then another CPU is vacated for them */
	u64 room_for;		/* the CPU that this one is vacated for, plus one */
	u64 flush;		/* its local queue holds threads that were sent here from a vacated CPU */
	u64 ns[CLASSES];
	u64 room_ns;		/* idle while no sibling ran an expelling thread */
	u64 kicks;		/* siblings asked to leave */
	u64 refusals;		/* dispatches refused because of a sibling */
	u64 resumes;
	u64 evictions;		/* offline threads that left because of a sibling */
	u64 evict_ns;
	u64 evict_max_ns;
	u64 by_ticks;		/* evictions that needed the tick */
	u64 vacated;		/* made idle for an online thread that waited elsewhere */
	u64 let_die;		/* dying or freezing threads let through */
	u64 starved;		/* dispatches refused because online threads wait here */
};
