/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What both programs and user space agree on. Rust says the same in mirror.rs (probe) and intf.rs (scheduler); a test there, and
 * the loader, compare every size, offset and number with what the compiled object says of itself.
 */
#pragma once

enum consts {
	SIBLINGS	= 3,	/* other threads of a core: up to SMT4 */
	DEPTH		= 16,	/* of cgroups */
	MOST_CPUS	= 1024,	/* of the scheduler, as all below */
	MOST_SLOTS	= 256,	/* groups that are weighed apart; the last one takes all others */
	MOST_LLCS	= 16,
	MOST_LIMITS	= 64,	/* hard limits; 0 is none */
	MOST_CGROUPS	= 8192,
};

/* What has a CPU. The scheduler counts kernel threads and interrupts as OTHER; the probe counts EXPELLING as ONLINE. */
enum class {
	CLASS_OTHER	= 0,	/* a task that is neither: a group without an order */
	CLASS_ONLINE	= 1,
	CLASS_OFFLINE	= 2,
	CLASS_KERNEL	= 3,	/* a kernel thread */
	CLASS_IDLE	= 4,
	CLASS_IRQ	= 5,
	CLASS_EXPELLING	= 6,	/* online, and offline work leaves the other threads of its core */
	CLASSES		= 7,
	KINDS		= CLASS_EXPELLING,	/* that the probe tells apart: a number of every class before this one */
};

/* ---- the probe ---- */

#define SLOTS		320	/* 8 per power of two: within 6 % */

/* Written by user space alone: in a section, and so in a map, of their own. */
struct control {
	u32 enabled;		/* once all programs are attached: half of them would see half of a wait */
	u32 generation;		/* of the classes: cached ones of another are stale */
	u64 alarm_ns, window_ns;	/* wait of ONLINE for OFFLINE within a window that wakes the reader; 0: it is never woken */
};

/* What wakes the reader, at most once in a window. */
struct alarm {
	u64 from_ns, to_ns;	/* the window so far */
	u64 blamed_ns;
};

struct culprit {
	u64 cgroup;
	u32 target;
	enum class kind;
};

/* Time of one process among the tasks that are nobody's here (CLASS_OTHER), apart from the sums by cgroup. */
struct command {
	u64 cgroup;
	u32 target, tgid;
};

/* What a process was when it ended. */
struct command_name {
	char comm[16];
	u32 uid;
};

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
	s32 sibling[SIBLINGS];	/* -1: none; written by user space */
	u32 class;		/* of the task on the CPU */
	u64 sibling_was[SIBLINGS];	/* its OFFLINE time when ONLINE came here; 0 when it has not */
	u64 online, offline;	/* since when nobody else had this CPU; 0 when others have it. Where there are siblings */
	struct culprit last;	/* blamed here last, and what is not in the map of culprits yet */
	u64 pending;
	u64 wakeup;		/* of the last wake-up, by the run queue's clock */
	u64 ahead, compared;	/* CLOCK_MONOTONIC less that clock, and when that was found (by the latter) */
	u32 tgid, last_tgid;	/* of the task on the CPU, of the one blamed last; 0 unless it is nobody's here */
};

/* Counters of what online threads met, by CPU; ns where the name says so. */
struct totals {
	u64 wait[KINDS];	/* ns */
	u64 unexplained_ns;	/* wait that no kind accounts for: 0 unless switches were missed */
	u64 run_ns;
	u64 waits, wakes, preempted;
	u64 migrations, migrations_waiting;
	u64 displaced, displaced_ns;	/* queued behind something else while OFFLINE had another CPU */
	u64 inversions, inversion_ns, inversions_escaped;
	u64 overlap_ns;		/* OFFLINE on a sibling meanwhile */
	u64 evictions, stayed;	/* siblings that OFFLINE has left while ONLINE was there; that ONLINE has left first */
	u64 intrusions;		/* OFFLINE came beside ONLINE */
	u64 switches, wakeups;
	u64 no_start, lost, lost_ns, no_storage, retries;
	u64 missed, relevant, relevant_missed;	/* switches; relevant: while a thread of interest was queued there */
	u64 full, full_ns;	/* culprits that found no place in the map */
	u64 gone, gone_run_ns, gone_wait_ns;	/* threads that have ended */
	u64 checked, checked_ns, kernel_ns, kernel_zero, kernel_zero_ns, apart;
};

struct delays {
	u64 wake[SLOTS];	/* wake-up to running */
	u64 preempt[SLOTS];	/* wake-up on a CPU with OFFLINE to OFFLINE gone */
	u64 evict[SLOTS];	/* ONLINE beside OFFLINE to OFFLINE gone */
};

/* One target: a cgroup or process of interest; by CPU. */
struct target {
	u64 run_ns, waits, wait[KINDS];
};

/* What a thread of interest does. From RUNNABLE on it waits: preempted, woken, or woken behind something else. */
enum state { UNSEEN, ASLEEP, RUNNING, RUNNABLE, WOKEN, DISPLACED };

/* A thread of interest, for the reader. */
struct thread_reading {
	u32 pid, tgid, target;
	enum state state;
	u64 wait[KINDS];
	u64 waited_ns, waits, run_ns, slept_ns, lost_ns;
	u64 seen_ns, now_ns, began_ns;
};

/* ---- the scheduler ---- */

/* Fixed when it is loaded. */
struct settings {
	u64 slice_ns;
	u64 short_slice_ns;	/* for long queues, and for who is let through */
	u64 housekeeping_ns;
	u64 vacant_ns;		/* some ticks: the balancer wants one on either CPU */
	u64 crowded_ns;		/* shorter waits are not worth vacating a CPU */
	u32 nr_cpus;		/* possible ones */
	u32 nr_llcs;
	u32 unified;		/* orders name groups of cgroup v2, else of v1's cpu controller */
	u32 tick_alone;		/* tests: no kick, so that the tick has to do it */
};

/* Written by user space alone: in a section, and so in a map, of their own. */
struct orders {
	u64 generation;		/* what threads remember of another is stale */
	u64 hold_off_ns;	/* how long a CPU stays free once an expelling thread has left its core */
};

/* For user space to read. */
struct notes {
	u64 killed_at;		/* a fatal signal was sent; who waits for a CPU has to get one */
	u64 kind, code, at;	/* why the kernel has taken the scheduler off */
	char reason[128];
	char message[1024];
};

/* Argument of the program set_group: the class of a cgroup and what is below it. */
struct group_args {
	u64 cgroup;		/* inode of its directory */
	u64 class;		/* CLASS_OTHER takes the entry away */
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

/* A group of offline threads that is weighed against the others. */
struct slot {
	u64 used;		/* written by user space */
	u64 weight;		/* share among all slots; flattened */
	u64 limit;		/* index; 0 is none */
	u64 vtime;
	u64 thread_vtime;	/* of the thread that ran last */
	u64 run_ns;
	u64 oldest_ns;		/* longest wait seen at the heads of its queues in the last look; 0 when nothing waits */
	u64 waited_max_ns;	/* longest wait that ended */
	u64 queued;
};

/* A hard limit: a bucket of CPU time. */
struct limit {
	u64 quota_ns;		/* 0: not in use; written by user space, as is the period */
	u64 period_ns;
	s64 tokens_ns;
	u64 filled_at;
	u64 throttled;		/* times that it ran dry */
};

/* The core of a CPU, by its first thread. */
struct core {
	u64 since;
	u64 expelling_ns;	/* an expelling thread ran on it */
	u64 overlap_ns;		/* … and an offline one beside it */
	u64 overlap_max_ns;	/* longest such stretch */
	u64 overlap_now_ns;
};

struct cpu {
	s32 sibling[SIBLINGS];	/* -1: none; written by user space, as are core and llc */
	u32 core;
	u32 llc;
	u32 state;		/* enum class of what runs; user space begins with IDLE */
	u32 claim;		/* dispatch is about to run an offline thread */
	u32 expelled;		/* dispatch has refused; wants to be kicked */
	u64 since;		/* of state */
	u64 asked_at;		/* a sibling wants it to leave */
	u64 by_tick;		/* the tick has made it leave since */
	u64 resume_at;		/* hold-off */
	u64 vacant_until;	/* kept idle, so that it pulls an online thread */
	u64 crowded_since;	/* two online threads or more are queued here */
	u64 helped_until;	/* another CPU is being vacated for them */
	u64 room_for;		/* the CPU that this one is vacated for, plus one */
	u64 flush;		/* its own queue holds threads that were put there to be out of the way */
	u64 ns[CLASSES];
	u64 room_ns;		/* idle while no sibling ran an expelling thread */
	u64 kicks;		/* siblings asked to leave */
	u64 refusals;		/* dispatches refused because of a sibling */
	u64 resumes;
	u64 evictions;		/* offline threads that left because of a sibling */
	u64 evict_ns;
	u64 evict_max_ns;
	u64 by_ticks;		/* of the evictions: those that took the tick */
	u64 vacated;		/* made idle for an online thread that waited elsewhere */
	u64 let_die;		/* dying or freezing threads let through */
	u64 starved;		/* dispatches refused because online threads wait here */
};
