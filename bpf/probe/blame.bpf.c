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

SEC("tp_btf/sched_switch")
int BPF_PROG(blame_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u64 now;
	u32 cpu = bpf_get_smp_processor_id(), class = CLASS_KERNEL, was;
	struct cpu_state *c = cpu_at(cpu);
	struct totals *t = all();
	struct task_state *task = 0, *left = 0;
	struct tenure ended = { .kind = CLASS_IDLE };	/* just now, when anybody is queued here */
	u64 cgroup = 0;
	s32 waits;

	if (!c || !t || !control.enabled)
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
		class = CLASS_IDLE;
	} else if (!(next->flags & PF_KTHREAD)) {
		task = bpf_task_storage_get(&tasks, next, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		class = CLASS_OTHER;
		if (task) {
			class = class_of(next, task);
			cgroup = task->cgroup;
		} else {
			t->no_storage++;
		}
	}
	now = time_of_switch(c, prev, next, class);
	/* The task that the missed switch brought may have had the CPU at any time since the last one. */
	if (c->waiters > 0 && c->tenure && c->pid != prev->pid && now > c->tenure)
		t->hidden_ns += (now - c->tenure) * c->waiters;
	waits = task && KIND(class) == CLASS_ONLINE && task->state >= RUNNABLE && task->cpu == cpu;
	if (c->waiters > 0) {
		ended.from = c->tenure ? c->tenure : now;
		ended.to = now;
		ended.net = now - ended.from > c->in_irq ? now - ended.from - c->in_irq : 0;
		ended.cgroup = c->cgroup;
		ended.kind = c->tenant;
		if (by_command)
			ended.tgid = c->tgid;
		/* Kept for the other threads that are queued here. */
		if (c->waiters > waits && ended.kind <= CLASS_OFFLINE && ended.from < now) {
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
	if (by_command)
		c->tgid = class == CLASS_OTHER ? next->tgid : 0;
	c->tenure = now;
	c->in_irq = 0;
	c->irq_depth = 0;
	c->pid = next->pid;

	/* `was` is the class of prev when it got the CPU; it differs now only if prev changed its cgroup. */
	if (KIND(was) == CLASS_ONLINE || (prev->pid && !(prev->flags & PF_KTHREAD) && prev->on_rq == 1))
		left = bpf_task_storage_get(&tasks, prev, 0, 0);
	if (left && (KIND(was) == CLASS_ONLINE || KIND(class_of(prev, left)) == CLASS_ONLINE))
		leave(prev, left, cpu, c, now, t);

	if (task && KIND(class) == CLASS_ONLINE) {
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

	if (KIND(class) == CLASS_OFFLINE) {
		if (KIND(was) != CLASS_OFFLINE)
			__sync_fetch_and_add(&offline_cpus, 1);
		if (c->waiters > 0)
			invert(c, now, 0);
	} else if (KIND(was) == CLASS_OFFLINE) {
		__sync_fetch_and_add(&offline_cpus, -1);
		set_right(c, now, t, false);
	}

	if (c->sibling[0] >= 0 && (KIND(was) == CLASS_ONLINE || KIND(class) == CLASS_ONLINE)) {
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
			if (KIND(was) == CLASS_ONLINE && c->sibling_was[i] && ns[CLASS_OFFLINE] + 1 > c->sibling_was[i])
				t->overlap_ns += ns[CLASS_OFFLINE] + 1 - c->sibling_was[i];
			c->sibling_was[i] = KIND(class) == CLASS_ONLINE ? ns[CLASS_OFFLINE] + 1 : 0;
		}
	}
	if (c->sibling[0] >= 0 && KIND(was) != KIND(class))
		beside(c, KIND(was), KIND(class), now, t);
	return 0;
}

static __always_inline int woken(struct task_struct *p)
{
	struct totals *t = all();
	struct task_state *task;
	struct cpu_state *c;
	u32 cpu, how = WOKEN;
	u64 now;

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
	/* Preempted on its way to sleep, and woken: it has been waiting all the time. */
	if (KIND(class_of(p, task)) != CLASS_ONLINE || task->state >= RUNNABLE)
		return 0;
	t->wakes++;
	if (c->tenant != CLASS_IDLE && c->tenant != CLASS_OFFLINE && offline_cpus) {
		how = DISPLACED;
		t->displaced++;
	}
	now = time_of(c, c->wakeup);
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

	if (!t || !control.enabled)
		return 0;
	task = bpf_task_storage_get(&tasks, p, 0, 0);
	if (!task || KIND(task->class) != CLASS_ONLINE)
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
		/* Returns the old value: 1 means that no other thread waits there. */
		if (__sync_fetch_and_add(&c->waiters, -1) <= 1)
			set_right(c, now, t, true);
		__sync_fetch_and_add(&d->waiters, 1);
		if (d->tenant == CLASS_OFFLINE)
			invert(d, now, 0);
	}
	task->cpu = to;
	task->since = now;
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
	struct task_state *task, *own;
	u32 class, tgid = child->tgid;

	/* The name is that of a process that had this number before. */
	if (by_command && child->pid == tgid)
		bpf_map_delete_elem(&command_names, &tgid);
	if (!processes)
		return 0;
	task = bpf_task_storage_get(&tasks, parent, 0, 0);
	class = task ? task->process & ~ENDED : 0;
	if (!class)
		return 0;
	own = bpf_task_storage_get(&tasks, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (own)
		join(own, class);
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

/* Determines the task on a CPU that has not switched since the probe was attached, which may take long. */
static __noinline int meet(struct cpu_state *c)
{
	struct task_struct *p = bpf_get_current_task_btf();
	u32 class = CLASS_KERNEL;
	u64 now = bpf_ktime_get_ns();

	if (!c)
		return 0;
	if (!p->pid) {
		class = CLASS_IDLE;
	} else if (!(p->flags & PF_KTHREAD)) {
		struct cgroup *cgroup = cgroup_of(p);
		struct task_state *task = processes ? bpf_task_storage_get(&tasks, p, 0, 0) : 0;

		class = task ? task->process & ~ENDED : 0;
		if (!class)
			class = look_up(cgroup);
		class = KIND(class) <= CLASS_OFFLINE ? class : CLASS_OTHER;
		c->cgroup = id_of(cgroup);
		if (by_command && class == CLASS_OTHER)
			c->tgid = p->tgid;
	}
	c->class = class;
	c->tenant = KIND(class);
	if (KIND(class) == CLASS_OFFLINE)
		__sync_fetch_and_add(&offline_cpus, 1);
	c->online = KIND(class) == CLASS_ONLINE ? now : 0;
	c->offline = KIND(class) == CLASS_OFFLINE ? now : 0;
	c->pid = p->pid;
	c->tenure = now;
	c->kind = KIND(class);
	ordered();
	c->since = now;
	return 0;
}

/* If an interrupt arrives while one of these programs runs, `since` is 0 both at its entry and at its exit. */
static __always_inline int interrupt(bool entry)
{
	struct cpu_state *c = cpu_at(bpf_get_smp_processor_id());
	u64 now, since;

	if (!c || !control.enabled)
		return 0;
	if (!c->tenure)
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

SEC("iter/task")
int threads(struct bpf_iter__task *context)
{
	struct task_struct *p = context->task;
	struct thread_reading one = {};
	struct task_state *task;

	if (!p)
		return 0;
	task = bpf_task_storage_get(&tasks, p, 0, 0);
	if (!task || KIND(task->class) != CLASS_ONLINE || task->state == UNSEEN)
		return 0;
	one.pid = p->pid;
	one.tgid = p->tgid;
	one.target = TARGET(task->class);
	one.state = task->state;
	for (int k = 0; k < KINDS; k++)
		one.wait[k] = task->wait[k];
	one.waited_ns = task->waited;
	one.waits = task->waits;
	one.run_ns = task->run;
	one.slept_ns = task->slept;
	one.lost_ns = task->lost;
	one.seen_ns = task->seen;
	one.began_ns = task->began;
	one.now_ns = bpf_ktime_get_ns();
	bpf_seq_write(context->meta->seq, &one, sizeof(one));
	return 0;
}
