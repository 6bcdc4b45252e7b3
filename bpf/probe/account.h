/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Accounting: the classes of tasks, the waits and their parts, the culprits, and the sums of all these. */
#pragma once
#include "state.h"

#define ordered() asm volatile("" ::: "memory")

static __always_inline struct totals *all(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&totals, &zero);
}

static __always_inline struct delays *delays_here(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&delays, &zero);
}

static __always_inline struct arrival *arrival_here(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&arrivals, &zero);
}

static __always_inline struct cpu_state *cpu_at(u32 cpu)
{
	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline u32 slot(u64 ns)
{
	u32 top = 0;
	u64 rest = ns;

	if (ns < 8)
		return ns;
	if (rest >> 32) { top += 32; rest >>= 32; }
	if (rest >> 16) { top += 16; rest >>= 16; }
	if (rest >> 8) { top += 8; rest >>= 8; }
	if (rest >> 4) { top += 4; rest >>= 4; }
	if (rest >> 2) { top += 2; rest >>= 2; }
	if (rest >> 1) top += 1;
	top = (top - 2) * 8 + ((ns >> (top - 3)) & 7);
	return top < SLOTS ? top : SLOTS - 1;
}

/* Interval between comparisons of the clocks, and the most that one may gain on the other (a shift): NTP slews by 1/2000. */
#define COMPARE		(1ULL << 22)	/* ns */
#define SLEW		11

/* Clock of the run queue that `p` is on, with which the kernel itself accounts; 0 if it cannot be read. */
static __always_inline u64 clock_of(struct task_struct *p)
{
	if (bpf_core_field_exists(p->se.cfs_rq) && bpf_core_field_exists(p->se.cfs_rq->rq))
		return p->se.cfs_rq->rq->clock;
	return 0;
}

/*
 * Converts a time of that clock to CLOCK_MONOTONIC, which user space and interrupts use. The difference is measured some hundred
 * times a second. The clock may be a little old then, so the smallest difference counts, apart from what slewing explains.
 */
static __always_inline u64 time_of(struct cpu_state *c, u64 clock)
{
	u64 passed, ahead, most;

	if (!clock)
		return bpf_ktime_get_ns();
	passed = clock - c->compared;
	if (passed > COMPARE) {
		ahead = bpf_ktime_get_ns() - clock;
		most = c->ahead + (passed >> SLEW);
		if (c->compared && (s64)(ahead - most) > 0)
			ahead = most;
		c->ahead = ahead;
		c->compared = clock;
	}
	return clock + c->ahead;
}

/*
 * The time of a switch. The kernel has just updated its clock for it, and reading the hardware clock again would cost as much as the
 * rest of this program (70 ns in a virtual machine). But after a wake-up that requested the switch, the kernel's clock is still at the
 * wake-up, and a wait would be 0: then the hardware clock is read, unless no online thread is concerned.
 */
static __always_inline u64 time_of_switch(struct cpu_state *c, struct task_struct *prev, u64 clock, u32 class)
{
	u32 was = KIND(c->class), is = KIND(class);
	bool matters = c->waiters > 0 || was == CLASS_ONLINE || is == CLASS_ONLINE ||
		       (c->sibling[0] >= 0 && (was == CLASS_OFFLINE || is == CLASS_OFFLINE));

	if (matters && (prev->on_rq || clock == c->wakeup))
		return bpf_ktime_get_ns();
	return time_of(c, clock);
}

/*
 * Whether the CPU that `p` is queued on idles, under the lock of its run queue. If the kernel has not reported the switch to the idle
 * task, notes that it has been seen.
 */
static __always_inline bool idles(struct cpu_state *c, struct task_struct *p, u64 now)
{
	struct task_struct *curr;

	if (c->tenant == CLASS_IDLE)
		return true;
	if (!bpf_core_field_exists(p->se.cfs_rq) || !bpf_core_field_exists(p->se.cfs_rq->rq))
		return false;
	curr = p->se.cfs_rq->rq->curr;
	/* It always is somebody, but a verifier that knows of __rcu asks. */
	if (!curr || curr->pid)
		return false;
	if (c->found_idle <= c->tenure)
		c->found_idle = now;
	return true;
}

/* Number of switches of the run queue that `p` is on, by the kernel's own account; 0 if it cannot be read. */
static __always_inline u64 switches_of(struct task_struct *p)
{
	if (bpf_core_field_exists(p->se.cfs_rq) && bpf_core_field_exists(p->se.cfs_rq->rq))
		return ((struct rq___counted *)p->se.cfs_rq->rq)->nr_switches;
	return 0;
}

static __always_inline u32 cpu_of(struct task_struct *p)
{
	if (bpf_core_field_exists(p->thread_info.cpu))
		return p->thread_info.cpu;
	return BPF_CORE_READ((struct task_struct___old *)p, cpu);
}

static __always_inline struct cgroup *cgroup_of(struct task_struct *p)
{
	return unified ? p->cgroups->dfl_cgrp : p->sched_task_group->css.cgroup;
}

/* 0 for the task group of an autogroup, which belongs to no cgroup. */
static __always_inline u64 id_of(struct cgroup *cgroup)
{
	return cgroup ? cgroup->kn->id : 0;
}

/* What culprits of this class are told apart by. */
static __always_inline u64 whose(u32 class, u64 cgroup)
{
	return by_target ? TARGET(class) : cgroup;
}

static __noinline u32 look_up(struct cgroup *cgroup)
{
	for (int i = 0; i < DEPTH && cgroup; i++) {
		u64 id = BPF_CORE_READ(cgroup, kn, id);
		u32 *class = bpf_map_lookup_elem(&classes, &id);

		if (class)
			return *class;
		cgroup = BPF_CORE_READ(cgroup, self.parent, cgroup);
	}
	return CLASS_OTHER;
}

/* Adds a task to the waiters of a CPU. */
static __always_inline void count_waiter(struct cpu_state *c, u64 now)
{
	/* Returns the old value. */
	if (__sync_fetch_and_add(&c->waiters, 1) <= 0)
		c->waiting_since = now;
}

/* Removes a task from the waiters of its CPU; returns the CPU if no other thread waits there. */
static __always_inline struct cpu_state *uncount(struct task_state *task)
{
	u32 counted = task->counted;
	struct cpu_state *c;

	if (!counted)
		return 0;
	if (!(counted & HINT))
		task->counted = 0;
	else if (__sync_val_compare_and_swap(&task->counted, counted, 0) != counted)
		return 0;
	c = cpu_at((counted & ~HINT) - 1);
	if (!c)
		return 0;
	/* Returns the old value: 1 means that it was the only one. */
	return __sync_fetch_and_add(&c->waiters, -1) <= 1 ? c : 0;
}

/* Discards the wait of a task, and the delay by offline work that began with it. */
static __always_inline void abandon(struct task_state *task)
{
	struct cpu_state *c = uncount(task);

	if (c)
		c->inversion = 0;
	task->check = 0;
}

/* The class of a task now; `task` may be 0. */
static __always_inline u32 fresh(struct task_state *task, struct cgroup *cgroup)
{
	u32 class = task ? task->process & ~ENDED : 0;

	if (!class)
		class = look_up(cgroup);
	return KIND(class) <= CLASS_OFFLINE ? class : CLASS_OTHER;
}

static __always_inline u32 class_of(struct task_struct *p, struct task_state *task)
{
	struct cgroup *cgroup = cgroup_of(p);
	u64 id = id_of(cgroup);

	if (task->cgroup != id || task->generation != control.generation) {
		bool stays = task->generation ? task->cgroup == id : !control.primed;
		u32 class = fresh(task, cgroup);

		if (class != task->class) {	/* its figures begin anew; a wait that it is in is nobody's */
			abandon(task);
			task->state = UNSEEN;
			task->from_start = stays && task->generation != control.generation;
			task->first = !task->generation;
		}
		task->class = class;
		task->cgroup = id;
		task->generation = control.generation;
	}
	return task->class;
}

/* The class of a task for which the kernel may have no storage now: then it is that of its cgroup. */
static __always_inline u32 class_now(struct task_struct *p, struct task_state *task)
{
	return task ? class_of(p, task) : fresh(0, cgroup_of(p));
}

/* Counts the living threads of a target that is a process. */
static __always_inline void count(u32 class, s64 change)
{
	u32 index = TARGET(class);
	struct life *life;

	if (KIND(class) != CLASS_ONLINE)
		return;
	life = bpf_map_lookup_elem(&lives, &index);
	if (life && !(__sync_fetch_and_add(&life->threads, change) + change))
		life->ended_ns = bpf_ktime_get_ns();
}

/* Makes a thread part of the target, unless it is part of one already or has ended. */
static __always_inline void join(struct task_state *task, u32 class)
{
	if (!__sync_val_compare_and_swap(&task->process, 0, class))
		count(class, 1);
}

/* Whether tasks of this kind are told apart by cgroup. */
static __always_inline bool has_cgroup(u32 kind)
{
	return kind <= CLASS_OFFLINE || kind == CLASS_REALTIME;
}

/* Kind of a task of this class. Real-time, deadline and stop tasks have a priority of their own, below that of all others. */
static __always_inline u32 kind_of(struct task_struct *p, u32 class)
{
	return class == CLASS_OTHER && p->prio < MAX_RT_PRIO ? CLASS_REALTIME : KIND(class);
}

/* Uses no variable index into stack or map values, because not every verifier accepts that. */
static __always_inline void add(u64 *ns, u32 kind, u64 d)
{
	if (kind == CLASS_OTHER) ns[CLASS_OTHER] += d;
	else if (kind == CLASS_ONLINE) ns[CLASS_ONLINE] += d;
	else if (kind == CLASS_OFFLINE) ns[CLASS_OFFLINE] += d;
	else if (kind == CLASS_KERNEL) ns[CLASS_KERNEL] += d;
	else if (kind == CLASS_IDLE) ns[CLASS_IDLE] += d;
	else if (kind == CLASS_REALTIME) ns[CLASS_REALTIME] += d;
	else ns[CLASS_IRQ] += d;
}

/* Whether nothing has happened on a CPU since control.from_ns. */
static __always_inline bool is_new(struct cpu_state *c)
{
	return c->generation != control.generation;
}

/* Class of the task that has had such a CPU since. `prime` does not see idle tasks. */
static __always_inline u32 first_class(struct cpu_state *c)
{
	return c->first_generation == control.generation ? c->first_class : CLASS_IDLE;
}

/* The times by class of a CPU at control.from_ns. */
static __always_inline void copy_base(struct cpu_state *c, u64 *ns)
{
	bool new = is_new(c);
	u64 since = c->since;

	for (int k = 0; k < KINDS; k++)
		ns[k] = new ? c->ns[k] : c->base[k];
	if (new && since && control.from_ns > since)
		add(ns, c->kind, control.from_ns - since);
}

static __noinline int copy_new(struct cpu_state *c, u64 now, u64 *ns)
{
	copy_base(c, ns);
	if (now > control.from_ns)
		add(ns, KIND(first_class(c)), now - control.from_ns);
	return 0;
}

/* Copies the times by class of a CPU up to `now`; tries again if the CPU updates them meanwhile. */
static __always_inline void copy(struct cpu_state *c, u64 now, u64 *ns, struct totals *t)
{
	if (is_new(c)) {
		copy_new(c, now, ns);
		return;
	}
	for (int tries = 0; tries < 4; tries++) {
		u64 since = *(volatile u64 *)&c->since;
		u32 kind;

		ordered();
		kind = c->kind;
		for (int k = 0; k < KINDS; k++)
			ns[k] = *(volatile u64 *)&c->ns[k];
		ordered();
		if (since && since == *(volatile u64 *)&c->since) {
			if (now > since)
				add(ns, kind, now - since);
			return;
		}
		t->retries++;
	}
}

/* Adds the time up to now to the CPU's current class; from now on its class is `kind`. */
static __always_inline void turn(struct cpu_state *c, u64 now, u32 kind)
{
	u64 since = c->since;

	c->since = 0;
	ordered();
	if (since && now > since)
		add(c->ns, c->kind, now - since);
	c->kind = kind;
	ordered();
	c->since = now;
}

/* Adds the same time to the sum of the process. */
static __always_inline void charge(struct culprit *culprit, u32 tgid, u64 ns)
{
	struct command key = { .cgroup = culprit->cgroup, .target = culprit->target, .tgid = tgid };
	u64 *sum = bpf_map_lookup_elem(&commands, &key);

	if (!sum) {
		if (!bpf_map_update_elem(&commands, &key, &ns, BPF_NOEXIST))
			return;
		sum = bpf_map_lookup_elem(&commands, &key);
	}
	if (sum)
		__sync_fetch_and_add(sum, ns);
}

/* Adds the pending wait of a CPU to the map of culprits. */
static __noinline int flush(struct cpu_state *c)
{
	struct totals *t = all();
	struct culprit key;
	u64 *sum, ns;

	if (!c || !t)
		return 0;
	ns = c->pending;
	key = c->last;
	c->pending = 0;
	if (!ns)
		return 0;
	if (by_command && c->last_tgid)
		charge(&key, c->last_tgid, ns);
	sum = bpf_map_lookup_elem(&culprits, &key);
	if (!sum) {
		if (!bpf_map_update_elem(&culprits, &key, &ns, BPF_NOEXIST))
			return 0;
		/* Another CPU has just added the entry, or the map is full. */
		sum = bpf_map_lookup_elem(&culprits, &key);
		if (!sum) {
			t->full++;
			t->full_ns += ns;
			return 0;
		}
	}
	__sync_fetch_and_add(sum, ns);
	return 0;
}

/* Blames a wait on a culprit; `c` is this CPU. Mostly the culprit is the same as before, so the map is rarely needed. */
static __always_inline void blame(struct cpu_state *c, u32 target, u32 kind, u64 cgroup, u32 tgid, u64 ns)
{
	if (c->last.cgroup != cgroup || c->last.target != target || c->last.kind != kind ||
	    (by_command && c->last_tgid != tgid)) {
		flush(c);
		c->last.cgroup = cgroup;
		c->last.target = target;
		c->last.kind = kind;
		if (by_command)
			c->last_tgid = tgid;
	}
	c->pending += ns;
}

static __always_inline u64 take(u64 *left, u32 kind, u64 ns)
{
	u64 have = kind == CLASS_OTHER ? left[CLASS_OTHER] : kind == CLASS_ONLINE ? left[CLASS_ONLINE] :
		   kind == CLASS_OFFLINE ? left[CLASS_OFFLINE] : left[CLASS_REALTIME];
	u64 taken = ns < have ? ns : have;

	if (kind == CLASS_OTHER) left[CLASS_OTHER] -= taken;
	else if (kind == CLASS_ONLINE) left[CLASS_ONLINE] -= taken;
	else if (kind == CLASS_OFFLINE) left[CLASS_OFFLINE] -= taken;
	else left[CLASS_REALTIME] -= taken;
	return taken;
}

struct window {
	u64 from, to, head;
	u32 cpu, target;
	u64 left[KINDS];
	u32 reading;	/* the wait goes on: its parts are only shown */
};

/* Adds a part of a wait that goes on to what is shown. */
static __noinline int show(u32 target, u32 kind, u64 cgroup, u32 tgid, u64 ns)
{
	struct open_culprit key = { .who = { .cgroup = cgroup, .target = target, .kind = kind }, .tgid = tgid };
	u64 *sum = bpf_map_lookup_elem(&open_culprits, &key);

	if (sum)
		*sum += ns;
	else
		bpf_map_update_elem(&open_culprits, &key, &ns, BPF_NOEXIST);
	return 0;
}

static __always_inline void attribute(struct window *w, struct cpu_state *here, u32 kind, u64 cgroup, u32 tgid, u64 ns)
{
	if (w->reading)
		show(w->target, kind, cgroup, tgid, ns);
	else
		blame(here, w->target, kind, cgroup, tgid, ns);
}

/* Blames one tenure's part of a wait. Not static, so that the verifier checks it once, not in each iteration. */
__noinline int divide_one(struct window *w, u32 back)
{
	struct cpu_state *here = cpu_at(bpf_get_smp_processor_id());
	struct tenure *one;
	struct ring *ring;
	u64 from, to, ns;
	u32 cpu, kind, i;

	if (!w || !here)
		return 1;
	cpu = w->cpu;
	i = w->head - back;
	ring = bpf_map_lookup_elem(&rings, &cpu);
	if (!ring)
		return 1;
	one = &ring->of[i & (RING - 1)];
	from = one->from;
	to = one->to;
	kind = one->kind;
	if (to <= w->from)
		return 1;
	if (from < w->from)
		from = w->from;
	if (to > w->to)
		to = w->to;
	if (to <= from || !has_cgroup(kind))
		return 0;
	ns = to - from;
	if (ns > one->net)
		ns = one->net;
	ns = take(w->left, kind, ns);
	if (ns)
		attribute(w, here, kind, one->cgroup, one->tgid, ns);
	return 0;
}

/* Divides the part of a wait that tasks caused among their cgroups; what is no longer in the ring is counted as NOBODY. */
static __noinline int divide(struct window *w)
{
	struct cpu_state *here = cpu_at(bpf_get_smp_processor_id());
	struct cpu_state *c = cpu_at(w->cpu);

	if (!here || !c)
		return 0;
	w->head = c->head;
	if (is_new(c)) {
		u32 first = KIND(first_class(c));
		u64 taken = has_cgroup(first) ? take(w->left, first, w->to - w->from) : 0;

		if (taken)
			attribute(w, here, first, c->first_cgroup, c->first_tgid, taken);
	} else if (has_cgroup(c->tenant) && c->tenure && c->tenure < w->to) {
		u64 from = c->tenure > w->from ? c->tenure : w->from;
		u64 taken = take(w->left, c->tenant, w->to - from);

		if (taken)
			attribute(w, here, c->tenant, c->cgroup, c->tgid, taken);
	}
	for (u32 back = 1; back <= RING; back++)
		if (divide_one(w, back))
			break;
	if (w->left[CLASS_OTHER])
		attribute(w, here, CLASS_OTHER, NOBODY, 0, w->left[CLASS_OTHER]);
	if (w->left[CLASS_ONLINE])
		attribute(w, here, CLASS_ONLINE, NOBODY, 0, w->left[CLASS_ONLINE]);
	if (w->left[CLASS_OFFLINE])
		attribute(w, here, CLASS_OFFLINE, NOBODY, 0, w->left[CLASS_OFFLINE]);
	if (w->left[CLASS_REALTIME])
		attribute(w, here, CLASS_REALTIME, NOBODY, 0, w->left[CLASS_REALTIME]);
	return 0;
}

static __always_inline void invert(struct cpu_state *c, u64 now, u32 by_wakeup)
{
	if (!c->inversion) {
		c->inversion = now;
		c->by_wakeup = by_wakeup;
	}
}

static __always_inline void set_right(struct cpu_state *c, u64 now, struct totals *t, bool escaped)
{
	u64 ns, since = c->inversion;

	if (!since)
		return;
	c->inversion = 0;
	/* OFFLINE had left before it began, which the kernel had not reported. */
	if (now <= since)
		return;
	ns = now - since;
	t->inversion_ns += ns;
	t->inversions++;
	if (escaped)
		t->inversions_escaped++;
	if (c->by_wakeup) {
		struct delays *d = delays_here();
		u32 i = slot(ns);

		if (d && i < SLOTS)
			d->preempt[i]++;
	}
}

/*
 * Counts evictions and intrusions among the CPUs of a core. When ONLINE starts beside OFFLINE, the eviction lasts until OFFLINE
 * has left, unless ONLINE leaves first. Siblings may change while they are read, but at least one side sees each change.
 */
/* Not static, like the other functions below without a task: the verifier checks it once. */
__noinline int beside(struct cpu_state *c, u32 was, u32 is, u64 now)
{
	struct totals *t = all();
	u64 online, offline;

	if (!c || !t)
		return 0;
	online = c->online;
	offline = c->offline;
	c->online = is == CLASS_ONLINE ? now : 0;
	c->offline = is == CLASS_OFFLINE ? now : 0;
	if (was != CLASS_ONLINE && was != CLASS_OFFLINE && is != CLASS_OFFLINE)
		return 0;
	for (int i = 0; i < SIBLINGS; i++) {
		struct cpu_state *sibling;
		u64 theirs;

		if (c->sibling[i] < 0)
			break;
		sibling = cpu_at(c->sibling[i]);
		if (!sibling)
			break;
		theirs = sibling->online;
		if (is == CLASS_OFFLINE && theirs)
			t->intrusions++;
		if (was == CLASS_OFFLINE && offline && theirs > offline && theirs <= now) {
			struct delays *d = delays_here();
			u32 at = slot(now - theirs);

			t->evictions++;
			if (d && at < SLOTS)
				d->evict[at]++;
		}
		theirs = sibling->offline;
		if (was == CLASS_ONLINE && online && theirs && theirs < online)
			t->stayed++;
	}
	return 0;
}

static __always_inline u64 at_most(u64 ns, u64 most)
{
	return ns < most ? ns : most;
}

static __always_inline u64 less(u64 ns, u64 by)
{
	return ns > by ? ns - by : 0;
}

static __always_inline u64 larger(u64 ns, u64 other)
{
	return ns > other ? ns : other;
}

/* Counts the time that OFFLINE has on the CPUs of a core while ONLINE has this one. */
__noinline int overlap(struct cpu_state *c, u32 was, u32 is, u64 now)
{
	struct totals *t = all();

	if (!c || !t)
		return 0;
	for (int i = 0; i < SIBLINGS; i++) {
		struct cpu_state *sibling;
		u64 ns[KINDS] = {};

		if (c->sibling[i] < 0)
			break;
		sibling = cpu_at(c->sibling[i]);
		if (!sibling)
			break;
		copy(sibling, now, ns, t);
		/* Stored plus 1: 0 means that ONLINE was not here. */
		if (was == CLASS_ONLINE && c->sibling_was[i] && ns[CLASS_OFFLINE] + 1 > c->sibling_was[i])
			t->overlap_ns += ns[CLASS_OFFLINE] + 1 - c->sibling_was[i];
		c->sibling_was[i] = is == CLASS_ONLINE ? ns[CLASS_OFFLINE] + 1 : 0;
	}
	return 0;
}

/* Whether the kernel keeps an account of its tasks (CONFIG_SCHED_INFO). */
static __always_inline bool has_account(struct task_struct *p)
{
	return bpf_core_field_exists(((struct task_struct___times *)p)->sched_info.last_queued);
}

/* How long a task has waited so far, by the kernel's own account. `clock` is that of its run queue. */
static __always_inline u64 delay_of(struct task_struct *p, u64 clock)
{
	struct task_struct___times *of = (void *)p;
	u64 ended, queued;

	if (!has_account(p))
		return 0;
	ended = of->sched_info.run_delay;
	ordered();
	queued = of->sched_info.last_queued;
	return ended + (queued && clock > queued ? clock - queued : 0);
}

/* When a task has got its CPU last, by the kernel's own account. */
static __always_inline u64 arrival_of(struct task_struct *p, struct cpu_state *c)
{
	return ((struct task_struct___times *)p)->sched_info.last_arrival + c->ahead;
}

/* Starts a new state of an online task; the caller has accounted the time in the old one. */
static __always_inline void enter(struct task_state *task, u32 state, u64 now)
{
	task->state = state;
	task->began = now;
}

/* Notes what a task has run for, by the kernel's own account, when it leaves a CPU: that does not change until it has one again. */
static __always_inline void note_run(struct task_struct *p, struct task_state *task)
{
	task->ran = p->se.sum_exec_runtime;
}

/* Notes how long it has waited, when it gets a CPU: that does not change until it waits again. */
static __always_inline void note_delay(struct task_struct *p, struct task_state *task, u64 clock)
{
	task->delayed = delay_of(p, clock);
}

/* Resets the sums of a task that is seen for the first time, or again after it had another class. */
static __always_inline void begin(struct task_state *task, u64 now)
{
	task->seen = task->began = now;
	task->check = 0;
	task->run = task->waited = task->waits = task->slept = task->lost = 0;
	for (int k = 0; k < KINDS; k++)
		task->wait[k] = 0;
}

/*
 * Accounts a state of which the end was missed, until `now`: by the kernel's own account, which knows what the task has run and
 * waited for since. `after`: what it has run after `now`. Nobody knows who had the CPU while it waited.
 */
static __noinline int lose(struct task_struct *p, struct task_state *task, u64 now, u64 clock, u64 after)
{
	struct totals *t = all();
	struct cpu_state *here = cpu_at(bpf_get_smp_processor_id());
	struct target *target;
	u32 index;
	u64 ns, run, wait, known;

	if (!task || !t || !here)
		return 0;
	ns = now > task->began ? now - task->began : 0;
	known = task->state >= RUNNABLE ? at_most(task->parts, ns) : 0;
	abandon(task);
	t->lost++;
	t->lost_ns += ns;
	if (!has_account(p)) {
		if (task->state >= RUNNABLE)
			t->hidden_ns += ns;
		task->lost += ns;
		return 0;
	}
	wait = delay_of(p, clock) - task->delayed;
	if ((s64)wait < (s64)known)
		wait = known;
	wait = at_most(wait, ns);
	run = p->se.sum_exec_runtime - task->ran;
	run = at_most(less(run, after), ns - wait);
	index = TARGET(task->class);
	target = bpf_map_lookup_elem(&targets, &index);
	task->run += run;
	t->run_ns += run;
	if (task->exiting) {
		t->gone_run_ns += run;
		t->gone_wait_ns += wait;
	}
	task->slept += ns - wait - run;
	note_run(p, task);
	note_delay(p, task, clock);
	if (target)
		target->run_ns += run;
	if (!wait || !target)
		return 0;
	task->waited += wait;
	task->waits++;
	t->waits++;
	target->waits++;
	wait -= known;
	t->hidden_ns += wait;
	t->wait[CLASS_OTHER] += wait;
	task->wait[CLASS_OTHER] += wait;
	target->wait[CLASS_OTHER] += wait;
	if (wait)
		blame(here, index, CLASS_OTHER, NOBODY, 0, wait);
	return 0;
}

/* Whether a task has run for longer than this since its state began, by the kernel's own account. */
static __always_inline bool has_run(struct task_struct *p, struct task_state *task, u64 ns)
{
	return has_account(p) && p->se.sum_exec_runtime - task->ran > ns;
}

/*
 * Accounts the wait of a task that was woken when the kernel had no storage for it: since when it waits is in the kernel's own account.
 * An older wait began in another class.
 */
static __always_inline void make_up(struct task_struct *p, struct task_state *task, struct cpu_state *c, u64 now, u64 clock)
{
	struct task_struct___times *of = (void *)p;
	u64 from;

	if (!has_account(p) || !of->sched_info.last_queued)
		return;
	time_of(c, clock);
	from = of->sched_info.last_queued + c->ahead;
	if (from <= control.from_ns || from >= now)
		return;
	task->seen = task->began = from;
	task->delayed = of->sched_info.run_delay;
	lose(p, task, now, clock, 0);
}

/*
 * Gives a task its first state: it has been in that since control.from_ns, for this is the first thing that happens to it. A waiting
 * one has been queued on this CPU.
 */
static __noinline int resume(struct task_struct *p, struct task_state *task, u32 state, u32 cpu, struct cpu_state *c)
{
	if (!task || !c)
		return 0;
	begin(task, control.from_ns);
	if (task->from_start != SINCE_PRIMED) {
		task->ran = p->se.sum_exec_runtime;
		task->delayed = delay_of(p, clock_of(p));
	}
	task->from_start = 0;
	task->state = state;
	if (state != RUNNABLE)
		return 0;
	task->cpu = cpu;
	task->since = control.from_ns;
	task->parts = 0;
	copy_base(c, task->copy);
	if (!__sync_val_compare_and_swap(&task->counted, 0, cpu + 1))
		count_waiter(c, control.from_ns);
	return 0;
}

/* Puts a task, whose state the caller has entered, among those that wait for a CPU. */
__noinline int queue(struct task_state *task, u32 cpu, struct cpu_state *c, u64 now)
{
	struct totals *t = all();

	if (!task || !c || !t)
		return 0;
	task->cpu = cpu;
	task->since = c->queued = now;
	task->parts = 0;
	copy(c, now, task->copy, t);
	count_waiter(c, now);
	task->counted = cpu + 1;
	if (c->tenant == CLASS_OFFLINE && task->state >= WOKEN)
		invert(c, now, 1);
	return 0;
}

/* Adds a wait of ONLINE for OFFLINE to the window of the alarm, and wakes the reader if it is too much. */
static __noinline int notice(u64 now, u64 ns)
{
	struct alarm alarm = {};

	if (now - window_from > control.window_ns) {
		window_from = now - (ns < control.window_ns ? ns : control.window_ns);
		window_ns = 0;
		window_told = 0;
	}
	__sync_fetch_and_add(&window_ns, ns);
	if (window_told || window_ns < control.alarm_ns)
		return 0;
	window_told = 1;
	alarm.from_ns = window_from;
	alarm.to_ns = now;
	alarm.blamed_ns = window_ns;
	bpf_ringbuf_output(&alarms, &alarm, sizeof(alarm), BPF_RB_FORCE_WAKEUP);
	return 0;
}

/* Accounts the part of a wait on the CPU where it ends or that the task leaves. `ended`: the tenure that ends there now, if any. */
__noinline int part(struct task_state *task, struct cpu_state *c, u64 now, struct tenure *ended)
{
	struct totals *t = all();
	struct target *target;
	struct window w = { .to = now };
	u64 by_tasks = 0, sum = 0, limit;
	u32 index;

	if (!task || !c || !t)
		return 0;
	index = TARGET(task->class);
	target = bpf_map_lookup_elem(&targets, &index);
	if (!target)
		return 0;
	w.cpu = task->cpu;
	w.target = index;
	limit = now > task->since ? now - task->since : 0;
	if (ended)
		for (int k = 0; k < KINDS; k++)
			w.left[k] = c->ns[k];
	else
		copy(c, now, w.left, t);
	for (int k = 0; k < KINDS; k++) {
		w.left[k] = w.left[k] > task->copy[k] ? w.left[k] - task->copy[k] : 0;
		sum += w.left[k];
	}
	/* Another CPU continued after `now`; for long if the hypervisor took this one away just then. */
	if (sum > limit) {
		u64 over = sum - limit;

		for (int k = 0; k < KINDS; k++) {
			u64 cut = over < w.left[k] ? over : w.left[k];

			over -= cut;
			w.left[k] -= cut;
		}
		sum = limit;
	}
	for (int k = 0; k < KINDS; k++) {
		if (!w.left[k])
			continue;
		t->wait[k] += w.left[k];
		task->wait[k] += w.left[k];
		target->wait[k] += w.left[k];
		if (has_cgroup(k))
			by_tasks += w.left[k];
	}
	if (control.alarm_ns && w.left[CLASS_OFFLINE])
		notice(now, w.left[CLASS_OFFLINE]);
	task->parts += sum;
	w.from = now > sum ? now - sum : 0;
	if (!by_tasks)
		return 0;
	if (ended && has_cgroup(ended->kind) && ended->from < now) {
		u64 ns = now - (ended->from > w.from ? ended->from : w.from);

		ns = take(w.left, ended->kind, ns < ended->net ? ns : ended->net);
		if (ns)
			blame(c, index, ended->kind, ended->cgroup, ended->tgid, ns);
		if (ns == by_tasks)
			return 0;
	}
	return divide(&w);
}

__noinline int unqueue(struct task_state *task, u64 now)
{
	struct totals *t = all();
	struct target *target;
	u32 index;
	u64 ns;

	if (!task || !t)
		return 0;
	ns = now > task->began ? now - task->began : 0;
	index = TARGET(task->class);
	target = bpf_map_lookup_elem(&targets, &index);
	if (ns > task->parts)
		t->unexplained_ns += ns - task->parts;
	if (task->state == DISPLACED)
		t->displaced_ns += ns;
	if (task->state >= WOKEN) {
		struct delays *d = delays_here();
		u32 i = slot(ns);

		if (d && i < SLOTS)
			d->wake[i]++;
	}
	t->waits++;
	if (target)
		target->waits++;
	task->waited += ns;
	task->waits++;
	task->last_wait = ns;
	task->check |= 1;
	if (task->exiting)
		t->gone_wait_ns += ns;
	return 0;
}

/* Compares the wait that ended before this run with the kernel's own value, which is final when the run ends. */
static __always_inline void compare(struct task_struct *p, struct task_state *task, struct totals *t)
{
	u64 delay = p->sched_info.run_delay, step = delay - task->kernel_delay;

	if (task->check == 3) {
		u64 ours = task->last_wait;
		u64 apart = step > ours ? step - ours : ours - step;

		if (!step) {
			t->kernel_zero++;
			t->kernel_zero_ns += ours;
		} else {
			t->checked++;
			t->checked_ns += ours;
			t->kernel_ns += step;
			if (apart > 20000)
				t->apart++;
		}
	}
	task->kernel_delay = delay;
	task->check = 2;
}

/* Whether a task sleeps though it is still in a run queue: since 6.12, some stay there until it is their turn. */
static __always_inline bool is_delayed(struct task_struct *p)
{
	return bpf_core_field_exists(p->se.sched_delayed) && p->se.sched_delayed;
}

/* Not by prev_state: it exists only since 5.18, and says sleep for a task that a signal keeps queued. */
static __always_inline bool is_queued(struct task_struct *p)
{
	return p->on_rq == 1 && !is_delayed(p);
}

/* Accounts that an online task leaves the CPU. */
static __always_inline void leave(struct task_struct *p, struct task_state *task, u32 cpu, struct cpu_state *c, u64 now,
				  struct totals *t)
{
	u32 index = TARGET(task->class);
	struct target *target;
	bool runnable = is_queued(p);

	if (verify && bpf_core_field_exists(p->sched_info.run_delay))
		compare(p, task, t);
	if (task->state == UNSEEN && task->from_start)
		resume(p, task, RUNNING, cpu, c);
	if (task->state == RUNNING) {
		u64 ns = now > task->began ? now - task->began : 0;

		task->run += ns;
		t->run_ns += ns;
		target = bpf_map_lookup_elem(&targets, &index);
		if (target)
			target->run_ns += ns;
		if (task->exiting)
			t->gone_run_ns += ns;
	} else if (task->state != UNSEEN) {	/* it ran without a switch that anybody told */
		lose(p, task, now, 0, 0);
	}
	/* It may have moved to another group: from now on it is accounted there. */
	if (KIND(class_of(p, task)) != CLASS_ONLINE)
		return;
	if (task->state == UNSEEN) {
		begin(task, now);
		note_delay(p, task, 0);
	}
	note_run(p, task);
	if (!runnable) {
		enter(task, ASLEEP, now);
		return;
	}
	t->preempted++;
	enter(task, RUNNABLE, now);
	queue(task, cpu, c, now);
}
