/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Who held the CPU while a thread waited for it.
 *
 *      kinds     other | online | offline | kernel | idle | irq
 *      cpu  0    [ns ,    ns   ,   ns    ,   ns   ,  ns  , ns ]   closed at every switch and interrupt
 *
 * A wait of a thread is two copies of the vector of the CPU it is queued on; their difference says who had the CPU
 * meanwhile, and adds up to the wait by construction. Which cgroup it was comes from a ring of the CPU's last tenures
 * (who ran, from when to when), which is written only while a thread of interest is queued there.
 *
 * Everything of a CPU is written under its run queue's lock (wake-up, switch, leaving by migration) or by an interrupt
 * on it. Two things are not: a migration's target CPU is read without its lock (`since` is a sequence count for that),
 * and its counter of waiters is atomic.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "Dual BSD/GPL";

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
	u64 switches, wakeups;
	u64 no_start, lost, lost_ns, no_storage, retries;
	u64 missed, relevant, relevant_missed;	/* switches; relevant: while a thread of interest was queued there */
	u64 full, full_ns;	/* culprits that found no place in the map */
	u64 gone, gone_run, gone_wait;	/* threads that have ended */
	u64 checked, checked_ns, kernel_ns, kernel_zero, kernel_zero_ns, off;
	u64 wake_delay[SLOTS];	/* wake-up to running */
	u64 preempt_delay[SLOTS];	/* wake-up on a CPU with OFFLINE to OFFLINE gone */
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

#define ordered() asm volatile("" ::: "memory")

static __always_inline struct totals *all(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&totals, &zero);
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

/* The group of an autogroup is of no cgroup: 0. */
static __always_inline u64 id_of(struct cgroup *cgroup)
{
	return cgroup ? cgroup->kn->id : 0;
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
	return OTHER;
}

static __always_inline void uncount(struct task_state *task)
{
	struct cpu_state *c;

	if (!task->counted)
		return;
	task->counted = 0;
	c = cpu_at(task->cpu);
	if (c)
		__sync_fetch_and_add(&c->waiters, -1);
}

static __always_inline u32 class_of(struct task_struct *p, struct task_state *task)
{
	struct cgroup *cgroup = cgroup_of(p);
	u64 id = id_of(cgroup);

	if (task->cgroup != id || task->generation != generation) {
		u32 class = 0, pid = p->tgid, *process = 0;

		if (processes)
			process = bpf_map_lookup_elem(&process_classes, &pid);
		class = process ? *process : look_up(cgroup);
		class = KIND(class) <= OFFLINE ? class : OTHER;
		if (class != task->class) {	/* its figures begin anew; a wait that it is in is nobody's */
			uncount(task);
			task->state = UNSEEN;
		}
		task->class = class;
		task->cgroup = id;
		task->generation = generation;
	}
	return task->class;
}

/* No variable index into stack or map values: one of six, which every verifier understands. */
static __always_inline void add(u64 *ns, u32 kind, u64 d)
{
	if (kind == OTHER) ns[OTHER] += d;
	else if (kind == ONLINE) ns[ONLINE] += d;
	else if (kind == OFFLINE) ns[OFFLINE] += d;
	else if (kind == KERNEL) ns[KERNEL] += d;
	else if (kind == IDLE) ns[IDLE] += d;
	else ns[IRQ] += d;
}

/* What a CPU did until `now`. */
static __always_inline void copy(struct cpu_state *c, u64 now, u64 *ns, struct totals *t)
{
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

/* Closes what the CPU did until now; from now on it does `kind`. */
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

/* What is pending on a CPU goes into the map. */
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
	sum = bpf_map_lookup_elem(&culprits, &key);
	if (!sum) {
		if (!bpf_map_update_elem(&culprits, &key, &ns, BPF_NOEXIST))
			return 0;
		/* Another CPU was faster, or there is no room. */
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

/* `c` is this CPU's. Mostly it is the same culprit again, so that the map is rarely needed. */
static __always_inline void blame(struct cpu_state *c, u32 target, u32 kind, u64 cgroup, u64 ns)
{
	if (c->last.cgroup != cgroup || c->last.target != target || c->last.kind != kind) {
		flush(c);
		c->last.cgroup = cgroup;
		c->last.target = target;
		c->last.kind = kind;
	}
	c->pending += ns;
}

static __always_inline u64 take(u64 *left, u32 kind, u64 ns)
{
	u64 have = kind == OTHER ? left[OTHER] : kind == ONLINE ? left[ONLINE] : left[OFFLINE];
	u64 taken = ns < have ? ns : have;

	if (kind == OTHER) left[OTHER] -= taken;
	else if (kind == ONLINE) left[ONLINE] -= taken;
	else left[OFFLINE] -= taken;
	return taken;
}

struct window {
	u64 from, to, head;
	u32 cpu, target;
	u64 left[KINDS];
};

/* One tenure's part of a wait. Not static: the verifier looks at it once, not at every turn of the loop. */
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
	if (to <= from || kind > OFFLINE)
		return 0;
	ns = to - from;
	if (ns > one->net)
		ns = one->net;
	ns = take(w->left, kind, ns);
	if (ns)
		blame(here, w->target, kind, one->cgroup, ns);
	return 0;
}

/* Divides what tasks had of a wait among their cgroups; what the ring no longer knows is NOBODY's. */
static __noinline int divide(struct window *w)
{
	struct cpu_state *here = cpu_at(bpf_get_smp_processor_id());
	struct cpu_state *c = cpu_at(w->cpu);

	if (!here || !c)
		return 0;
	w->head = c->head;
	if (c->tenant <= OFFLINE && c->tenure && c->tenure < w->to) {
		u64 from = c->tenure > w->from ? c->tenure : w->from;
		u64 taken = take(w->left, c->tenant, w->to - from);

		if (taken)
			blame(here, w->target, c->tenant, c->cgroup, taken);
	}
	for (u32 back = 1; back <= RING; back++)
		if (divide_one(w, back))
			break;
	if (w->left[OTHER])
		blame(here, w->target, OTHER, NOBODY, w->left[OTHER]);
	if (w->left[ONLINE])
		blame(here, w->target, ONLINE, NOBODY, w->left[ONLINE]);
	if (w->left[OFFLINE])
		blame(here, w->target, OFFLINE, NOBODY, w->left[OFFLINE]);
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
	ns = now > since ? now - since : 0;
	t->inversion_ns += ns;
	t->inversions++;
	if (escaped)
		t->inversions_escaped++;
	if (c->by_wakeup) {
		u32 i = slot(ns);

		if (i < SLOTS)
			t->preempt_delay[i]++;
	}
}

/* Ends what a task of interest did, where that is known. Its time belongs to that, and a new state begins. */
static __always_inline void enter(struct task_state *task, u32 state, u64 now)
{
	task->state = state;
	task->began = now;
}

/* The first time that it is seen, or again after it was somebody else's. */
static __always_inline void begin(struct task_state *task, u64 now)
{
	task->seen = task->began = now;
	task->run = task->waited = task->waits = task->slept = task->lost = 0;
	for (int k = 0; k < KINDS; k++)
		task->wait[k] = 0;
}

/* It did something else than anybody was told. */
static __always_inline void lose(struct task_state *task, u64 now, struct totals *t)
{
	u64 ns = now > task->began ? now - task->began : 0;

	uncount(task);
	t->lost++;
	t->lost_ns += ns;
	task->lost += ns;
}

static __always_inline void queue(struct task_state *task, u32 cpu, struct cpu_state *c, u64 now, u32 how,
				  struct totals *t)
{
	enter(task, how, now);
	task->cpu = cpu;
	task->since = now;
	task->parts = 0;
	copy(c, now, task->copy, t);
	__sync_fetch_and_add(&c->waiters, 1);
	task->counted = 1;
	if (c->tenant == OFFLINE && how >= WOKEN)
		invert(c, now, 1);
}

/* The part of a wait on the CPU that it ends on or leaves. `ended` is the tenure that ends there just now, if one does. */
static __always_inline void part(struct task_state *task, struct cpu_state *c, u64 now, struct totals *t,
				 struct tenure *ended)
{
	u32 index = TARGET(task->class);
	struct target *target = bpf_map_lookup_elem(&targets, &index);
	struct window w = { .to = now, .cpu = task->cpu, .target = index };
	u64 ns[KINDS] = {}, by_tasks = 0, sum = 0, over = 0;
	u64 limit = now > task->since ? now - task->since : 0;

	if (ended)
		for (int k = 0; k < KINDS; k++)
			ns[k] = c->ns[k];
	else
		copy(c, now, ns, t);
	for (int k = 0; k < KINDS; k++)
		over += ns[k] > task->copy[k] ? ns[k] - task->copy[k] : 0;
	/* Another CPU went on after `now`, which is long when a hypervisor took ours away just then. */
	over = over > limit ? over - limit : 0;
	for (int k = 0; k < KINDS; k++) {
		u64 d = ns[k] > task->copy[k] ? ns[k] - task->copy[k] : 0;
		u64 cut = over < d ? over : d;

		over -= cut;
		d -= cut;
		w.left[k] = d;
		t->wait[k] += d;
		task->wait[k] += d;
		sum += d;
		if (k <= OFFLINE)
			by_tasks += d;
		if (target && d)
			__sync_fetch_and_add(&target->wait[k], d);
	}
	task->parts += sum;
	w.from = now > sum ? now - sum : 0;
	if (!by_tasks)
		return;
	if (ended && ended->kind <= OFFLINE && ended->from < now) {
		u64 ns = now - (ended->from > w.from ? ended->from : w.from);

		ns = take(w.left, ended->kind, ns < ended->net ? ns : ended->net);
		if (ns)
			blame(c, index, ended->kind, ended->cgroup, ns);
		if (ns == by_tasks)
			return;
	}
	divide(&w);
}

static __always_inline void unqueue(struct task_state *task, u64 now, struct totals *t)
{
	u64 ns = now > task->began ? now - task->began : 0;
	u32 index = TARGET(task->class);
	struct target *target = bpf_map_lookup_elem(&targets, &index);

	if (ns > task->parts)
		t->unexplained += ns - task->parts;
	if (task->state == DISPLACED)
		t->displaced_ns += ns;
	if (task->state >= WOKEN) {
		u32 i = slot(ns);

		if (i < SLOTS)
			t->wake_delay[i]++;
	}
	t->waits++;
	if (target)
		__sync_fetch_and_add(&target->waits, 1);
	task->waited += ns;
	task->waits++;
	task->last_wait = ns;
	task->check |= 1;
	if (task->exiting)
		t->gone_wait += ns;
}

/* The kernel's own figure of the wait that ended before this run. It is final when the run ends. */
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
				t->off++;
		}
	}
	task->kernel_delay = delay;
	task->check = 2;
}

/* A task of interest leaves the CPU. */
static __always_inline void leave(struct task_struct *p, struct task_state *task, u32 cpu, struct cpu_state *c, u64 now,
				  struct totals *t)
{
	u32 index = TARGET(task->class);
	struct target *target;
	bool runnable = p->on_rq == 1;

	/* Not prev_state: that argument came in 5.18, and says sleep for a task that a signal keeps queued. */
	if (runnable && bpf_core_field_exists(p->se.sched_delayed) && p->se.sched_delayed)
		runnable = false;
	if (verify && bpf_core_field_exists(p->sched_info.run_delay))
		compare(p, task, t);
	if (task->state == RUNNING) {
		u64 ns = now > task->began ? now - task->began : 0;

		task->run += ns;
		t->run += ns;
		target = bpf_map_lookup_elem(&targets, &index);
		if (target)
			__sync_fetch_and_add(&target->run, ns);
		if (task->exiting)
			t->gone_run += ns;
	} else if (task->state != UNSEEN) {	/* it ran without a switch that anybody told */
		lose(task, now, t);
	}
	/* Moved to another group meanwhile: what it does from now on is that one's. */
	if (KIND(class_of(p, task)) != ONLINE)
		return;
	if (task->state == UNSEEN)
		begin(task, now);
	if (!runnable) {
		enter(task, ASLEEP, now);
		return;
	}
	t->preempted++;
	queue(task, cpu, c, now, RUNNABLE, t);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(blame_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u64 now = bpf_ktime_get_ns();
	u32 cpu = bpf_get_smp_processor_id(), class = KERNEL, was;
	struct cpu_state *c = cpu_at(cpu);
	struct totals *t = all();
	struct task_state *task = 0, *left = 0;
	struct tenure ended = { .kind = IDLE };	/* just now, when anybody is queued here */
	u64 cgroup = 0;
	s32 waits;

	if (!c || !t || !enabled)
		return 0;
	t->switches++;
	was = c->class;
	if (c->waiters > 0)
		t->relevant++;
	if (c->pid != prev->pid && c->tenure) {
		t->missed++;
		if (c->waiters > 0)
			t->relevant_missed++;
	}


	if (!next->pid) {
		class = IDLE;
	} else if (!(next->flags & PF_KTHREAD)) {
		task = bpf_task_storage_get(&tasks, next, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		class = OTHER;
		if (task) {
			class = class_of(next, task);
			cgroup = task->cgroup;
		} else {
			t->no_storage++;
		}
	}
	waits = task && KIND(class) == ONLINE && task->state >= RUNNABLE && task->cpu == cpu;
	if (c->waiters > 0) {
		ended.from = c->tenure ? c->tenure : now;
		ended.to = now;
		ended.net = now - ended.from > c->in_irq ? now - ended.from - c->in_irq : 0;
		ended.cgroup = c->cgroup;
		ended.kind = c->tenant;
		/* Kept for whoever else is queued here. */
		if (c->waiters > waits && ended.kind <= OFFLINE && ended.from < now) {
			struct ring *ring = bpf_map_lookup_elem(&rings, &cpu);

			if (ring) {
				ring->of[c->head & (RING - 1)] = ended;
				c->head++;
			}
		}
	}
	turn(c, now, KIND(class));
	c->tenant = KIND(class);
	c->class = class;
	c->cgroup = cgroup;
	c->tenure = now;
	c->in_irq = 0;
	c->irq_depth = 0;
	c->pid = next->pid;

	/* prev: its class when it came; another only if it changed its cgroup. */
	if (KIND(was) == ONLINE || (prev->pid && !(prev->flags & PF_KTHREAD) && prev->on_rq == 1))
		left = bpf_task_storage_get(&tasks, prev, 0, 0);
	if (left && (KIND(was) == ONLINE || KIND(class_of(prev, left)) == ONLINE))
		leave(prev, left, cpu, c, now, t);

	if (task && KIND(class) == ONLINE) {
		if (task->state == UNSEEN) {	/* its wait began before us, or in another class */
			t->no_start++;
			begin(task, now);
		} else if (waits) {
			part(task, c, now, t, &ended);
			uncount(task);
			unqueue(task, now, t);
		} else {
			lose(task, now, t);
		}
		enter(task, RUNNING, now);
	}

	if (KIND(class) == OFFLINE) {
		if (KIND(was) != OFFLINE)
			__sync_fetch_and_add(&offline_cpus, 1);
		if (c->waiters > 0)
			invert(c, now, 0);
	} else if (KIND(was) == OFFLINE) {
		__sync_fetch_and_add(&offline_cpus, -1);
		set_right(c, now, t, false);
	}

	if (KIND(was) == ONLINE || KIND(class) == ONLINE) {
		for (int i = 0; i < SIBLINGS; i++) {
			struct cpu_state *sibling;
			u64 ns[KINDS] = {};

			if (c->sibling[i] < 0)
				break;
			sibling = cpu_at(c->sibling[i]);
			if (!sibling)
				break;
			copy(sibling, now, ns, t);
			/* Stored one higher: 0 says that ONLINE was not here. */
			if (KIND(was) == ONLINE && c->sibling_was[i] && ns[OFFLINE] + 1 > c->sibling_was[i])
				t->overlap += ns[OFFLINE] + 1 - c->sibling_was[i];
			c->sibling_was[i] = KIND(class) == ONLINE ? ns[OFFLINE] + 1 : 0;
		}
	}
	return 0;
}

static __always_inline int woken(struct task_struct *p)
{
	struct totals *t = all();
	struct task_state *task;
	struct cpu_state *c;
	u32 cpu, how = WOKEN;
	u64 now;

	if (!t || !enabled)
		return 0;
	t->wakeups++;
	/* Woken before it left its CPU: it was never queued. */
	if (p->on_cpu || (p->flags & PF_KTHREAD))
		return 0;
	task = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!task) {
		t->no_storage++;
		return 0;
	}
	/* Preempted on its way to sleep, and woken: it has been waiting all the time. */
	if (KIND(class_of(p, task)) != ONLINE || task->state >= RUNNABLE)
		return 0;
	cpu = cpu_of(p);
	c = cpu_at(cpu);
	if (!c)
		return 0;
	t->wakes++;
	if (c->tenant != IDLE && c->tenant != OFFLINE && offline_cpus) {
		how = DISPLACED;
		t->displaced++;
	}
	now = bpf_ktime_get_ns();
	if (task->state == UNSEEN)
		begin(task, now);
	else if (task->state == ASLEEP)
		task->slept += now > task->began ? now - task->began : 0;
	else
		lose(task, now, t);
	queue(task, cpu, c, now, how, t);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	return woken(p);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *p)
{
	return woken(p);
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *p, int to)
{
	struct totals *t = all();
	struct task_state *task;
	struct cpu_state *c, *d;
	u64 now;

	if (!t || !enabled)
		return 0;
	task = bpf_task_storage_get(&tasks, p, 0, 0);
	if (!task || KIND(task->class) != ONLINE)
		return 0;
	t->migrations++;
	if (task->state < RUNNABLE)
		return 0;
	t->migrations_waiting++;
	c = cpu_at(task->cpu);
	d = cpu_at(to);
	if (!c || !d)
		return 0;
	now = bpf_ktime_get_ns();
	part(task, c, now, t, 0);
	if (task->counted) {
		/* The old value: 1 is that nobody else waits there. */
		if (__sync_fetch_and_add(&c->waiters, -1) <= 1)
			set_right(c, now, t, true);
		__sync_fetch_and_add(&d->waiters, 1);
		if (d->tenant == OFFLINE)
			invert(d, now, 0);
	}
	task->cpu = to;
	task->since = now;
	copy(d, now, task->copy, t);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *p)
{
	struct totals *t = all();
	struct task_state *task;

	if (!t || !enabled)
		return 0;
	task = bpf_task_storage_get(&tasks, p, 0, 0);
	if (!task || KIND(task->class) != ONLINE || task->exiting)
		return 0;
	/* What it still does until it is off the CPU for good is added as it comes. */
	task->exiting = 1;
	t->gone++;
	t->gone_run += task->run;
	t->gone_wait += task->waited;
	return 0;
}

/* Who has a CPU that has not switched since the judge came: that may be the same one for long. */
static __noinline int meet(struct cpu_state *c)
{
	struct task_struct *p = bpf_get_current_task_btf();
	u32 class = KERNEL, pid = p->tgid, *process = 0;
	u64 now = bpf_ktime_get_ns();

	if (!c)
		return 0;
	if (!p->pid) {
		class = IDLE;
	} else if (!(p->flags & PF_KTHREAD)) {
		struct cgroup *cgroup = cgroup_of(p);

		if (processes)
			process = bpf_map_lookup_elem(&process_classes, &pid);
		class = process ? *process : look_up(cgroup);
		class = KIND(class) <= OFFLINE ? class : OTHER;
		c->cgroup = id_of(cgroup);
	}
	c->class = class;
	c->tenant = KIND(class);
	if (KIND(class) == OFFLINE)
		__sync_fetch_and_add(&offline_cpus, 1);
	c->pid = p->pid;
	c->tenure = now;
	c->kind = KIND(class);
	ordered();
	c->since = now;
	return 0;
}

/* An interrupt that comes while one of these programs is at work finds `since` 0, and so does its end. */
static __always_inline int interrupt(bool entry)
{
	struct cpu_state *c = cpu_at(bpf_get_smp_processor_id());
	u64 now, since;

	if (!c || !enabled)
		return 0;
	if (!c->tenure)
		return meet(c);
	if (!c->since)
		return 0;
	if (entry) {
		if (c->irq_depth++)
			return 0;
		turn(c, bpf_ktime_get_ns(), IRQ);
		return 0;
	}
	/* The entry came before us, or a switch did (softirqs of PREEMPT_RT sleep). */
	if (!c->irq_depth || --c->irq_depth)
		return 0;
	now = bpf_ktime_get_ns();
	since = c->since;
	if (now > since)
		c->in_irq += now - since;
	turn(c, now, c->tenant);
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(on_irq_entry)
{
	return interrupt(true);
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_irq_exit)
{
	return interrupt(false);
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry)
{
	return interrupt(true);
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_exit)
{
	return interrupt(false);
}

/* x86: the timer's own vector, which is no irq handler. */
SEC("tp_btf/local_timer_entry")
int BPF_PROG(on_timer_entry)
{
	return interrupt(true);
}

SEC("tp_btf/local_timer_exit")
int BPF_PROG(on_timer_exit)
{
	return interrupt(false);
}

/* A thread of interest, for the reader. */
struct thread {
	u32 pid, tgid, target, state;
	u64 wait[KINDS], waited, waits, run, slept, lost, seen, now, began;
};

SEC("iter/task")
int threads(struct bpf_iter__task *context)
{
	struct task_struct *p = context->task;
	struct thread one = {};
	struct task_state *task;

	if (!p)
		return 0;
	task = bpf_task_storage_get(&tasks, p, 0, 0);
	if (!task || KIND(task->class) != ONLINE || task->state == UNSEEN)
		return 0;
	one.pid = p->pid;
	one.tgid = p->tgid;
	one.target = TARGET(task->class);
	one.state = task->state;
	for (int k = 0; k < KINDS; k++)
		one.wait[k] = task->wait[k];
	one.waited = task->waited;
	one.waits = task->waits;
	one.run = task->run;
	one.slept = task->slept;
	one.lost = task->lost;
	one.seen = task->seen;
	one.began = task->began;
	one.now = bpf_ktime_get_ns();
	bpf_seq_write(context->meta->seq, &one, sizeof(one));
	return 0;
}
