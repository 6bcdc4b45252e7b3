/* SPDX-License-Identifier: GPL-2.0-only */
/* What the programs and user space agree on. src/intf.rs says the same in Rust; the loader compares the sizes. */
#pragma once

enum consts {
	SIBLINGS	= 3,	/* other threads of a core: up to SMT4 */
	MOST_CPUS	= 1024,
	MOST_SLOTS	= 256,	/* groups that are weighed apart; the last one takes all others */
	MOST_LLCS	= 16,
	MOST_LIMITS	= 64,	/* hard limits; 0 is none */
	MOST_CGROUPS	= 8192,
	DEPTH		= 16,	/* of cgroups */
};

/* What has a CPU. What an order may give a group is GROUP_*. */
enum class {
	CLASS_IDLE	= 0,
	CLASS_OTHER	= 1,	/* neither: kernel threads, groups without an order */
	CLASS_OFFLINE	= 2,
	CLASS_ONLINE	= 3,
	CLASS_EXPELLING	= 4,	/* online, and offline work leaves the other threads of its core */
	CLASSES		= 5,
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
	u32 class, slot;
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
	u32 state;		/* enum class of what runs */
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
