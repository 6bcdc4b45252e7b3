/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Who held the CPU while a thread waited for it.
 *
 *      kinds     other | online | offline | kernel | idle | irq
 *      cpu  0    [ns ,    ns   ,   ns    ,   ns   ,  ns  , ns ]   closed at every switch and interrupt
 *
 * When a thread begins to wait and when it gets a CPU, the vector of the CPU that it is queued on is copied. The difference
 * says which classes had the CPU meanwhile, and adds up to the wait by construction. The cgroups are those in a ring of the
 * CPU's last tenures (who ran, from when to when), which is written only while an online thread is queued there.
 *
 * The state of a CPU is written under the lock of its run queue (wake-up, switch, leaving by migration) or by an interrupt
 * on it. There are two exceptions: the target CPU of a migration is read without its lock (`since` serves as a sequence
 * count), and its number of waiters is changed atomically.
 */
#include "account.h"

char _license[] SEC("license") = "Dual BSD/GPL";

/*
 * Determines the class of the task that has had this CPU since control.from_ns: the current one, because nothing has happened here
 * since. So the time of its predecessors ends at control.from_ns, too.
 */
static __noinline int meet(struct cpu_state *c)
{
	struct task_struct *p = bpf_get_current_task_btf();
	u32 class = CLASS_KERNEL;
	u64 from = control.from_ns;

	if (!c)
		return 0;
	if (KIND(c->class) == CLASS_OFFLINE && c->tenure)
		__sync_fetch_and_add(&offline_cpus, -1);
	if (c->since && from > c->since)
		turn(c, from, c->kind);
	for (int k = 0; k < KINDS; k++)
		c->base[k] = c->ns[k];
	c->cgroup = 0;
	c->tgid = 0;
	if (!p->pid) {
		class = CLASS_IDLE;
	} else if (!(p->flags & PF_KTHREAD)) {
		struct cgroup *cgroup = cgroup_of(p);

		class = fresh(bpf_task_storage_get(&tasks, p, 0, 0), cgroup);
		c->cgroup = whose(class, id_of(cgroup));
		if (by_command && class == CLASS_OTHER)
			c->tgid = p->tgid;
	}
	c->class = class;
	c->tenant = kind_of(p, class);
	if (KIND(class) == CLASS_OFFLINE) {
		__sync_fetch_and_add(&offline_cpus, 1);
		if (c->waiters > 0)
			invert(c, from, 0);
	}
	c->online = KIND(class) == CLASS_ONLINE ? from : 0;
	c->offline = KIND(class) == CLASS_OFFLINE ? from : 0;
	c->pid = p->pid;
	c->switches = 0;
	c->tenure = from;
	c->in_irq = 0;
	c->irq_depth = 0;
	c->kind = c->tenant;
	ordered();
	c->since = from;
	c->generation = control.generation;
	return 0;
}

static __always_inline bool of_same(struct tenure *one, struct tenure *other)
{
	return one->cgroup == other->cgroup && one->kind == other->kind && one->tgid == other->tgid;
}

/*
 * Puts a tenure into the ring of its CPU. If only kernel threads came between, it continues the last one there. It also continues an
 * earlier one of the same culprit that began after all waits here: their parts stay exact, because none begins or ends between the
 * two. So a long wait of one thread needs one tenure for each culprit, however often they take turns.
 */
static __noinline int keep(struct cpu_state *c, u32 cpu, struct tenure *ended)
{
	struct ring *ring = bpf_map_lookup_elem(&rings, &cpu);
	struct tenure *last;
	u64 hash;
	u32 *place;

	if (!c || !ended || !ring)
		return 0;
	last = &ring->of[(c->head - 1) & (RING - 1)];
	if (c->kept == ended->from && of_same(last, ended)) {
		last->to = ended->to;
		last->net += ended->net;
		return 0;
	}
	hash = (ended->cgroup ^ (u64)ended->tgid << 32 ^ ended->kind) * 0x9e3779b97f4a7c15ULL;
	place = &ring->place[hash >> 56 & (PLACES - 1)];
	last = &ring->of[*place & (RING - 1)];
	if ((u32)c->head - *place <= RING && of_same(last, ended) && last->from >= larger(c->queued, control.from_ns)) {
		last->to = ended->to;
		last->net += ended->net;
		return 0;
	}
	*place = c->head;
	ring->of[c->head & (RING - 1)] = *ended;
	c->head++;
	return 0;
}

/* The clock of the run queue and CLOCK_MONOTONIC are compared only now and then (ns). */
#define CLOCKS_APART 20000

/*
 * The kernel has not reported the switch that brought the task which leaves the CPU now. Its own account says when that was. Until
 * then, somebody unknown may have had the CPU, unless only one switch is missing: that from the task before to this one. The idle task
 * has no such account: if it leaves, it is only known to have been there since a wake-up found it. Returns whether the task waited until
 * then, which `arrive` accounts.
 */
static __noinline bool catch_up(struct cpu_state *c, u32 cpu, struct task_struct *p, bool direct)
{
	struct totals *t = all();
	struct arrival *a = arrival_here();
	struct task_state *task = 0;
	u32 class = CLASS_KERNEL, was;
	u64 now, at, hidden, over, cgroup = 0;
	bool waits, known, idle = !p->pid;

	if (!c || !t || !a)
		return false;
	was = c->class;
	now = at = time_of(c, clock_of(p));
	known = idle ? direct && c->found_idle > c->tenure : has_account(p);
	if (known)
		at = at_most(idle ? c->found_idle : arrival_of(p, c), now);
	at = larger(at, c->tenure);
	if (c->waiters > 0 && (idle || !direct)) {
		hidden = less(at, larger(c->tenure, c->waiting_since)) * c->waiters;
		t->hidden_ns += hidden;
		if (c->tenant == CLASS_OFFLINE)
			t->hidden_offline_ns += hidden;
	}
	if (!known)
		return false;
	if (idle) {
		class = CLASS_IDLE;
		/* Interrupts since then, such as that of the wake-up, keep what they have got. */
		at = larger(at, c->since);
	} else if (!(p->flags & PF_KTHREAD)) {
		task = bpf_task_storage_get(&tasks, p, 0, 0);
		class = class_now(p, task);
		cgroup = whose(class, task ? task->cgroup : id_of(cgroup_of(p)));
	}
	if (task && KIND(class) == CLASS_ONLINE && task->state == UNSEEN && task->from_start)
		resume(p, task, task->counted ? RUNNABLE : RUNNING, cpu, c);
	/* One that has run before that, too, has not waited all the time. */
	waits = task && KIND(class) == CLASS_ONLINE && task->state >= RUNNABLE && task->cpu == cpu &&
		!has_run(p, task, less(now, at) + CLOCKS_APART);
	a->ended.from = c->tenure;
	a->ended.to = at;
	a->ended.net = at - c->tenure > c->in_irq ? at - c->tenure - c->in_irq : 0;
	a->ended.cgroup = c->cgroup;
	a->ended.kind = c->tenant;
	if (by_command)
		a->ended.tgid = c->tgid;
	if (c->waiters > waits) {
		if (has_cgroup(c->tenant) && c->tenure < at)
			keep(c, cpu, &a->ended);
		c->kept = at;
	}
	/* An interrupt since then has already given the time up to it to the task before. */
	over = c->since > at && at >= c->tenure + c->in_irq ? c->since - at : 0;
	turn(c, at > c->since ? at : c->since, kind_of(p, class));
	add(c->ns, c->tenant, -over);
	c->tenant = c->kind;
	c->class = class;
	c->cgroup = cgroup;
	if (by_command)
		c->tgid = class == CLASS_OTHER ? p->tgid : 0;
	c->tenure = at;
	c->in_irq = 0;
	if (KIND(class) == CLASS_OFFLINE && KIND(was) != CLASS_OFFLINE) {
		__sync_fetch_and_add(&offline_cpus, 1);
	} else if (KIND(class) != CLASS_OFFLINE && KIND(was) == CLASS_OFFLINE) {
		__sync_fetch_and_add(&offline_cpus, -1);
		set_right(c, at, t, false);
	}
	if (c->sibling[0] >= 0 && KIND(was) != KIND(class))
		beside(c, KIND(was), KIND(class), at);
	a->at = at;
	a->over = over;
	if (waits)
		return true;
	add(c->ns, c->kind, over);
	if (!task || KIND(class) != CLASS_ONLINE || task->state == UNSEEN)
		return false;
	lose(p, task, at, 0, less(now, at));
	enter(task, RUNNING, at);
	return false;
}

/* Ends the wait of a task that has had this CPU since the arrival which `catch_up` found. */
static __always_inline void arrive(struct cpu_state *c, struct task_struct *p)
{
	struct task_state *task = bpf_task_storage_get(&tasks, p, 0, 0);
	struct arrival *a = arrival_here();

	if (!task || !a)
		return;
	part(task, c, a->at, &a->ended);
	add(c->ns, c->kind, a->over);
	uncount(task);
	unqueue(task, a->at);
	enter(task, RUNNING, a->at);
	note_delay(p, task, 0);
}

/* Whether the task that leaves a CPU, as the first thing that happens there, has come only after control.from_ns. */
static __noinline bool came_late(struct cpu_state *c, struct task_struct *p)
{
	if (!c || !has_account(p) || !p->pid)
		return false;
	time_of(c, clock_of(p));
	return arrival_of(p, c) > control.from_ns + CLOCKS_APART;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(blame_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u64 now;
	u32 cpu = bpf_get_smp_processor_id(), class = CLASS_KERNEL, was;
	struct cpu_state *c = cpu_at(cpu);
	struct totals *t = all();
	struct task_state *task = 0, *left = 0;
	struct tenure ended = { .kind = CLASS_IDLE };	/* just now, when anybody is queued here */
	u64 cgroup = 0, clock, switches, missed = 0;
	s32 waits;

	if (!c || !t || !control.enabled)
		return 0;
	t->switches++;
	if (is_new(c))
		meet(c);
	if (c->waiters > 0)
		t->relevant++;
	clock = clock_of(next);
	switches = switches_of(next);
	if (c->switches && switches)
		missed = switches - c->switches - 1;
	if (missed || c->pid != prev->pid || (!c->switches && switches && came_late(c, prev))) {
		u64 least = missed ? missed : 1;

		t->missed += least;
		if (c->waiters > 0)
			t->relevant_missed += least;
		if (catch_up(c, cpu, prev, missed == 1))
			arrive(c, prev);
	}
	c->switches = switches;
	was = c->class;

	if (!next->pid) {
		class = CLASS_IDLE;
	} else if (!(next->flags & PF_KTHREAD)) {
		task = bpf_task_storage_get(&tasks, next, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!task)
			t->no_storage++;
		class = class_now(next, task);
		cgroup = whose(class, task ? task->cgroup : id_of(cgroup_of(next)));
	}
	now = time_of_switch(c, prev, clock, class);
	if (task && KIND(class) == CLASS_ONLINE && task->state == UNSEEN && task->from_start)
		resume(next, task, RUNNABLE, cpu, c);
	waits = task && KIND(class) == CLASS_ONLINE && task->state >= RUNNABLE && task->cpu == cpu;
	/* As long as `prime` has not seen all tasks, there may be one that waits here. */
	if (c->waiters > 0 || !control.primed) {
		ended.from = c->tenure;
		ended.to = now;
		ended.net = now - ended.from > c->in_irq ? now - ended.from - c->in_irq : 0;
		ended.cgroup = c->cgroup;
		ended.kind = c->tenant;
		if (by_command)
			ended.tgid = c->tgid;
		/* Kept for the other threads that are queued here. */
		if (c->waiters > waits || !control.primed) {
			if (has_cgroup(ended.kind) && ended.from < now)
				keep(c, cpu, &ended);
			c->kept = now;
		}
	}
	c->tenant = kind_of(next, class);
	turn(c, now, c->tenant);
	c->class = class;
	c->cgroup = cgroup;
	if (by_command)
		c->tgid = class == CLASS_OTHER ? next->tgid : 0;
	c->tenure = now;
	c->in_irq = 0;
	c->irq_depth = 0;
	c->pid = next->pid;

	/*
	 * `was` is the class of prev when it got the CPU; it differs now only if prev changed its cgroup. If the kernel had no storage for
	 * it then, it may have now.
	 */
	if (prev->pid && !(prev->flags & PF_KTHREAD) && (KIND(was) == CLASS_ONLINE || prev->on_rq == 1))
		left = bpf_task_storage_get(&tasks, prev, 0, KIND(was) == CLASS_ONLINE ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	if (left && (KIND(was) == CLASS_ONLINE || KIND(class_of(prev, left)) == CLASS_ONLINE))
		leave(prev, left, cpu, c, now, t);

	if (task && KIND(class) == CLASS_ONLINE) {
		if (task->state == UNSEEN) {	/* its wait began in another class, or when the kernel had no storage for it */
			t->no_start++;
			begin(task, now);
			note_run(next, task);
			if (task->first)
				make_up(next, task, c, now, clock);
		} else if (waits && !has_run(next, task, 0)) {
			part(task, c, now, &ended);
			uncount(task);
			unqueue(task, now);
		} else {
			lose(next, task, now, clock, 0);
		}
		enter(task, RUNNING, now);
		note_delay(next, task, clock);
	}

	if (KIND(class) == CLASS_OFFLINE) {
		if (KIND(was) != CLASS_OFFLINE)
			__sync_fetch_and_add(&offline_cpus, 1);
		if (c->waiters > 0)
			invert(c, now, 0);
	} else if (KIND(was) == CLASS_OFFLINE) {
		__sync_fetch_and_add(&offline_cpus, -1);
		set_right(c, now, t, false);
	}

	if (c->sibling[0] >= 0 && (KIND(was) == CLASS_ONLINE || KIND(class) == CLASS_ONLINE))
		overlap(c, KIND(was), KIND(class), now);
	if (c->sibling[0] >= 0 && KIND(was) != KIND(class))
		beside(c, KIND(was), KIND(class), now);
	return 0;
}

/* Makes a child of a target's thread part of that target. */
static __always_inline void inherit(struct task_struct *parent, struct task_struct *child, struct totals *t)
{
	struct task_state *task = bpf_task_storage_get(&tasks, parent, 0, 0), *own;
	u32 class = task ? task->process & ~ENDED : 0;

	if (!class)
		return;
	own = bpf_task_storage_get(&tasks, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (own)
		join(own, class);
	else
		t->no_storage++;
}

static __always_inline int woken(struct task_struct *p, bool new)
{
	struct totals *t = all();
	struct task_state *task;
	struct cpu_state *c;
	u32 cpu, how = WOKEN;
	u64 now;

	/* Once more, because the kernel may have had no storage for it at `on_fork`. */
	if (new && processes && t)
		inherit(bpf_get_current_task_btf(), p, t);
	if (!t || !control.enabled)
		return 0;
	t->wakeups++;
	cpu = cpu_of(p);
	c = cpu_at(cpu);
	if (!c)
		return 0;
	c->wakeup = clock_of(p);
	/* Woken before it left its CPU: it was never queued. */
	if (p->on_cpu || (p->flags & PF_KTHREAD))
		return 0;
	task = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!task) {
		t->no_storage++;
		return 0;
	}
	if (KIND(class_of(p, task)) != CLASS_ONLINE)
		return 0;
	if (task->state == UNSEEN && task->from_start && !new)
		resume(p, task, task->counted ? RUNNABLE : ASLEEP, cpu, c);
	/* Preempted on its way to sleep, and woken: it has been waiting all the time, unless it ran and slept without any report. */
	if (task->state >= RUNNABLE && !has_run(p, task, 0))
		return 0;
	t->wakes++;
	now = time_of(c, c->wakeup);
	if (!idles(c, p, now) && c->tenant != CLASS_OFFLINE && offline_cpus) {
		how = DISPLACED;
		t->displaced++;
	}
	if (task->state == UNSEEN) {
		begin(task, now);
		note_run(p, task);
		note_delay(p, task, 0);
	} else if (task->state == ASLEEP && !has_run(p, task, 0)) {
		task->slept += now > task->began ? now - task->began : 0;
	} else {
		lose(p, task, now, 0, 0);
	}
	enter(task, how, now);
	queue(task, cpu, c, now);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	return woken(p, false);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *p)
{
	return woken(p, true);
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *p, int to)
{
	struct totals *t = all();
	struct task_state *task;
	struct cpu_state *c, *d;
	bool queued = p->on_rq && !is_delayed(p);
	u64 now;

	if (!t || !control.enabled)
		return 0;
	task = bpf_task_storage_get(&tasks, p, 0, 0);
	if (!task || KIND(task->class) != CLASS_ONLINE)
		return 0;
	t->migrations++;
	if (task->state == UNSEEN && task->from_start && queued) {
		c = cpu_at(cpu_of(p));
		if (c)
			resume(p, task, RUNNABLE, cpu_of(p), c);
	}
	if (task->state < RUNNABLE)
		return 0;
	t->migrations_waiting++;
	c = cpu_at(task->cpu);
	d = cpu_at(to);
	if (!c || !d)
		return 0;
	now = bpf_ktime_get_ns();
	if (queued && task->cpu == cpu_of(p) && !has_run(p, task, 0)) {
		struct cpu_state *last;

		part(task, c, now, 0);
		last = uncount(task);
		if (last)
			set_right(last, now, t, true);
	} else {	/* it has run, slept or moved since, without any report */
		lose(p, task, now, clock_of(p), 0);
		enter(task, queued ? RUNNABLE : ASLEEP, now);
		if (!queued)
			return 0;
		task->parts = 0;
	}
	task->counted = to + 1;
	count_waiter(d, now);
	if (d->tenant == CLASS_OFFLINE)
		invert(d, now, 0);
	task->cpu = to;
	task->since = d->queued = now;
	copy(d, now, task->copy, t);
	return 0;
}

/* Keeps the name of a process that ends: its last time on the CPU may be blamed only after it has gone. */
static __noinline int remember(struct task_struct *p)
{
	struct cpu_state *c = cpu_at(bpf_get_smp_processor_id());
	struct command_name name = {};
	u32 tgid = p->tgid;

	if (!c || c->tgid != tgid)
		return 0;
	BPF_CORE_READ_STR_INTO(&name.comm, (struct task_struct___named *)p, group_leader, comm);
	name.uid = (u32)bpf_get_current_uid_gid();
	bpf_map_update_elem(&command_names, &tgid, &name, BPF_ANY);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct totals *t = all();
	u32 tgid = child->tgid;

	/* The name is that of a process that had this number before. */
	if (by_command && child->pid == tgid)
		bpf_map_delete_elem(&command_names, &tgid);
	if (processes && t)
		inherit(parent, child, t);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *p)
{
	struct totals *t = all();
	struct task_state *task;

	if (processes) {
		/* Also of a thread that nobody has marked yet, so that it is not marked any more. */
		task = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (task) {
			u32 was = __sync_fetch_and_or(&task->process, ENDED);

			if (was && !(was & ENDED))
				count(was, -1);
		}
	}
	if (!t || !control.enabled)
		return 0;
	if (by_command)
		remember(p);
	task = bpf_task_storage_get(&tasks, p, 0, 0);
	if (!task || KIND(task->class) != CLASS_ONLINE || task->exiting)
		return 0;
	/* What it still uses before it leaves the CPU for good is added later. */
	task->exiting = 1;
	t->gone++;
	t->gone_run_ns += task->run;
	t->gone_wait_ns += task->waited;
	return 0;
}

/* If an interrupt arrives while one of these programs runs, `since` is 0 both at its entry and at its exit. */
static __always_inline int interrupt(bool entry)
{
	struct cpu_state *c = cpu_at(bpf_get_smp_processor_id());
	u64 now, since;

	if (!c || !control.enabled)
		return 0;
	if (is_new(c))
		return meet(c);
	if (!c->since)
		return 0;
	if (entry) {
		if (c->irq_depth++)
			return 0;
		turn(c, bpf_ktime_get_ns(), CLASS_IRQ);
		return 0;
	}
	/* The entry was before the probe was attached, or a switch came between (softirqs of PREEMPT_RT sleep). */
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

/* x86: the timer has a vector of its own, which is not an irq handler. */
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

/* Number of a process in the PID namespace of the task that reads, which is `level` deep. All tasks that it sees have such a number. */
static __always_inline u32 number_of(struct task_struct___named *p, u32 level)
{
	struct pid *pid = BPF_CORE_READ(p, group_leader, thread_pid);
	u64 at = bpf_core_field_offset(struct pid, numbers) + level * bpf_core_type_size(struct upid);
	u32 number = 0;

	bpf_probe_read_kernel(&number, sizeof(number), (void *)pid + at);
	return number;
}

/* Class of the target that a process is, or descends from; the nearest counts. */
static __noinline u32 descent(struct task_struct *task)
{
	struct task_struct___named *p = (void *)task;
	u32 level = BPF_CORE_READ((struct task_struct___named *)bpf_get_current_task_btf(), thread_pid, level);

	for (int i = 0; i < KIN && p; i++) {
		u32 number = number_of(p, level);
		struct process *process = bpf_map_lookup_elem(&process_classes, &number);

		if (process) {
			if (!i)
				process->found = 1;
			return process->class;
		}
		p = BPF_CORE_READ(p, real_parent);
	}
	return 0;
}

/*
 * Marks the threads of the processes that are targets. It is run twice: a process that was born during the first time may have a
 * number that had already been passed, but its parent is marked.
 */
SEC("iter/task")
int mark(struct bpf_iter__task *context)
{
	struct task_struct *p = context->task;
	struct task_state *task;
	u32 class;

	if (!p || p->flags & (PF_KTHREAD | PF_EXITING))
		return 0;
	class = descent(p);
	if (!class)
		return 0;
	task = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (task)
		join(task, class);
	return 0;
}

/* Counts a task that waits in a run queue, unless something happens to it meanwhile: then that counts it. */
static __always_inline void hint(struct task_state *task, u32 class, u32 cpu)
{
	u32 mark = HINT | (cpu + 1);
	struct cpu_state *c = cpu_at(cpu);

	if (!c)
		return;
	__sync_fetch_and_add(&c->waiters, 1);
	if (!__sync_val_compare_and_swap(&task->counted, 0, mark)) {
		if (*(volatile u32 *)&task->state == UNSEEN || *(volatile u32 *)&task->class != class)
			return;
		if (__sync_val_compare_and_swap(&task->counted, mark, 0) != mark)
			return;
	}
	__sync_fetch_and_add(&c->waiters, -1);
}

/*
 * Starts or stops counting, at one moment. After a start, looks at every task: one that nothing happens to has no other way to be
 * seen. The state of a thread is written by what happens to it, under the lock of its run queue, which this program cannot take; so it
 * only says that it has been in one state since the start, and counts it where it waits.
 */
SEC("iter/task")
int prime(struct bpf_iter__task *context)
{
	struct task_struct *p = context->task;
	struct totals *t = all();
	struct task_state *task;
	struct cgroup *cgroup;
	u32 class, cpu;

	if (control.order == STOP) {
		control.until_ns = bpf_ktime_get_ns();
		control.enabled = 0;
		control.order = NOTHING;
	} else if (control.order == START) {
		control.from_ns = bpf_ktime_get_ns();
		__sync_fetch_and_add(&control.generation, 1);
		control.enabled = 1;
		control.order = NOTHING;
	}
	if (!p || !control.enabled)
		return 0;
	cgroup = cgroup_of(p);
	class = p->flags & PF_KTHREAD ? CLASS_KERNEL : fresh(bpf_task_storage_get(&tasks, p, 0, 0), cgroup);
	cpu = cpu_of(p);
	if (p->on_cpu) {
		struct cpu_state *c = cpu_at(cpu);

		if (c && is_new(c)) {
			c->first_generation = control.generation;
			c->first_class = kind_of(p, class) == CLASS_REALTIME ? CLASS_REALTIME : class;
			c->first_cgroup = whose(class, id_of(cgroup));
			c->first_tgid = by_command && class == CLASS_OTHER ? p->tgid : 0;
		}
	}
	if (KIND(class) != CLASS_ONLINE)
		return 0;
	task = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!task) {
		if (t)
			t->no_storage++;
		return 0;
	}
	if (!task->generation) {
		task->class = class;
		task->cgroup = id_of(cgroup);
		task->from_start = SINCE_PRIMED;
		task->ran = p->se.sum_exec_runtime;
		task->delayed = delay_of(p, clock_of(p));
		ordered();
		task->generation = control.generation;
	}
	if ((task->state == UNSEEN || task->class != class) && !p->on_cpu && is_queued(p))
		hint(task, class, cpu);
	return 0;
}

/* Fills in the parts of a wait that goes on; one->open are the times of the CPU when it began there. */
static __always_inline void still_waits(struct window *w, struct thread_reading *one)
{
	struct cpu_state *c = cpu_at(w->cpu);
	struct totals *t = all();
	u64 most = w->to - w->from, over = 0;

	if (!c || !t)
		return;
	copy(c, w->to, w->left, t);
	for (int k = 0; k < KINDS; k++) {
		w->left[k] = w->left[k] > one->open[k] ? w->left[k] - one->open[k] : 0;
		over += w->left[k];
	}
	over = over > most ? over - most : 0;
	for (int k = 0; k < KINDS; k++) {
		u64 cut = over < w->left[k] ? over : w->left[k];

		over -= cut;
		w->left[k] -= cut;
		one->open[k] = w->left[k];
		one->wait[k] += w->left[k];
	}
}

/*
 * Divides the time since the state of a thread began. If the kernel has not reported when that ended, its own account says what the
 * thread has run and waited for since; what it did after the counting stopped is in that account, too. Returns the wait.
 */
static __always_inline u64 settle(struct task_struct *p, struct task_state *task, struct thread_reading *one, bool known)
{
	u64 ns = less(one->now_ns, one->began_ns), after = less(bpf_ktime_get_ns(), one->now_ns);
	struct cpu_state *c = cpu_at(cpu_of(p));
	u64 run = one->state == RUNNING ? ns : 0, wait = one->state >= RUNNABLE ? ns : 0;

	if (c && known && has_account(p) && !(one->state == RUNNING && p->on_cpu)) {
		u64 delayed = delay_of(p, clock_of(p)) - task->delayed;

		run = p->se.sum_exec_runtime - task->ran;
		run = at_most(one->state == RUNNING ? run : less(run, after), ns);
		/* Of a run that goes on, the account knows what it was at the last tick. */
		if (p->on_cpu && c->compared)
			run = at_most(larger(run, less(one->now_ns, arrival_of(p, c))), ns);
		if (one->state < RUNNABLE)
			wait = less(delayed, after);
		else if (run)
			wait = delayed;
		wait = at_most(wait, ns - run);
	}
	one->open_run_ns = run;
	one->run_ns += run;
	one->slept_ns += ns - run - wait;
	one->waited_ns += wait;
	one->waits += wait > 0;
	return wait;
}

SEC("iter/task")
int threads(struct bpf_iter__task *context)
{
	struct task_struct *p = context->task;
	struct thread_reading one = {};
	struct window w = { .reading = 1 };
	struct task_state *task;
	bool known = true;
	u64 wait;
	u32 class;

	if (!p || p->flags & PF_KTHREAD)
		return 0;
	task = bpf_task_storage_get(&tasks, p, 0, 0);
	if (!task)
		return 0;
	class = task->class;
	one.state = task->state;
	one.began_ns = task->began;
	w.from = task->since;
	w.cpu = task->cpu;
	for (int k = 0; k < KINDS; k++)
		one.open[k] = task->copy[k];
	one.now_ns = control.enabled ? bpf_ktime_get_ns() : control.until_ns;
	/* Its class has changed with the targets, and nothing has happened to it since. */
	if (task->generation != control.generation) {
		u32 now = fresh(task, cgroup_of(p));

		if (now != class)
			one.state = UNSEEN;
		class = now;
	} else if (one.state == UNSEEN && !task->from_start) {
		return 0;
	}
	if (KIND(class) != CLASS_ONLINE)
		return 0;
	one.pid = p->pid;
	one.tgid = p->tgid;
	one.target = TARGET(class);
	if (one.state == UNSEEN) {
		struct cpu_state *c = cpu_at(cpu_of(p));

		w.cpu = cpu_of(p);
		if (!c)
			return 0;
		one.state = p->on_cpu ? RUNNING : is_queued(p) ? RUNNABLE : ASLEEP;
		one.seen_ns = one.began_ns = w.from = control.from_ns;
		copy_base(c, one.open);
		/* Of other ones the account is that of an earlier state. */
		known = task->from_start == SINCE_PRIMED;
	} else {
		for (int k = 0; k < KINDS; k++)
			one.wait[k] = task->wait[k];
		one.waited_ns = task->waited;
		one.waits = task->waits;
		one.run_ns = task->run;
		one.slept_ns = task->slept;
		one.lost_ns = task->lost;
		one.seen_ns = task->seen;
	}
	wait = settle(p, task, &one, known);
	w.target = one.target;
	w.to = one.began_ns + wait;
	if (one.state < RUNNABLE || w.to <= w.from) {
		for (int k = 0; k < KINDS; k++)
			one.open[k] = 0;
		w.to = w.from;
	} else {
		still_waits(&w, &one);
	}
	/* Nobody knows who had the CPU during a wait that the kernel has not reported. */
	if (one.state < RUNNABLE && wait) {
		one.open[CLASS_OTHER] = wait;
		one.wait[CLASS_OTHER] += wait;
	}
	/* If the buffer is full, this program is run once more for this task. */
	if (bpf_seq_write(context->meta->seq, &one, sizeof(one)))
		return 0;
	if (w.to > w.from)
		divide(&w);
	else if (one.open[CLASS_OTHER])
		show(one.target, CLASS_OTHER, NOBODY, 0, one.open[CLASS_OTHER]);
	return 0;
}
