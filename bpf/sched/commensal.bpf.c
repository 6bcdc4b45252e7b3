/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Schedules offline threads with sched_ext in partial mode: only they have policy SCHED_EXT, which the kernel ranks below
 * the fair class. User space decides which threads are offline, and which online groups expel them from sibling CPUs.
 *
 *   stop > dl > rt > fair (online, and all others) > ext (offline) > idle
 *
 * An offline thread is not put into a CPU's local queue ahead of time, because it could not be taken back from there.
 */
#include "expel.h"
#include "queues.h"

char _license[] SEC("license") = "GPL";

#define SCHED(name, args...)		SEC("struct_ops/" #name) BPF_PROG(name, ##args)
#define SCHED_SLEEPABLE(name, args...)	SEC("struct_ops.s/" #name) BPF_PROG(name, ##args)
/* Number of CPUs that are searched for a waiting thread; a longer search would cost more than it finds. */
#define SEARCH				64
/* Time after which a kick counts as lost, and the eviction as one by the tick. */
#define LATE				(8 * MS)
/* How long dispatch keeps searching for killed threads. */
#define DYING				(10000 * MS)

/* Number of threads of the fair class that run or wait on this CPU, without those of policy SCHED_IDLE. */
static __always_inline u32 fair_threads(s32 cpu)
{
	struct rq *rq = bpf_per_cpu_ptr(&runqueues, cpu);
	u32 all, idle;

	if (!rq)
		return 0;
	if (bpf_core_field_exists(rq->cfs.h_nr_queued)) {
		all = rq->cfs.h_nr_queued;
		idle = rq->cfs.h_nr_idle;
	} else {
		struct cfs_rq___old *old = (void *)&rq->cfs;

		all = BPF_CORE_READ(old, h_nr_running);
		idle = BPF_CORE_READ(old, idle_h_nr_running);
	}
	return all > idle ? all - idle : 0;
}

/* An idle CPU where an offline thread may run now. */
static __always_inline s32 idle_cpu_for(struct task_struct *p, u32 near, u64 now)
{
	s32 found = -1, i;

	bpf_for(i, 0, SEARCH) {
		u32 cpu = near + i;
		struct cpu *c;

		if (i >= settings.nr_cpus)
			break;
		cpu = cpu >= settings.nr_cpus ? cpu - settings.nr_cpus : cpu;
		c = cpu_at(cpu);
		if (!c || READ_ONCE(c->state) != CLASS_IDLE || READ_ONCE(c->claim) || now < c->vacant_until)
			continue;
		if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr) || expelled(c, now))
			continue;
		found = cpu;
		break;
	}
	return found;
}

s32 SCHED(sched_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	s32 cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, SCX_PICK_IDLE_CORE);

	if (cpu >= 0)
		return cpu;
	cpu = idle_cpu_for(p, prev_cpu, bpf_ktime_get_ns());
	return cpu >= 0 ? cpu : prev_cpu;
}

void SCHED(sched_enqueue, struct task_struct *p, u64 enq_flags)
{
	u32 cpu = p->thread_info.cpu;
	u64 now = bpf_ktime_get_ns();
	struct cpu *here = cpu_at(cpu), *there;
	s32 idle;

	if (here && now < here->vacant_until && here->room_for) {
		u32 to = here->room_for - 1;

		there = cpu_at(to);
		if (there && bpf_cpumask_test_cpu(to, p->cpus_ptr)) {
			insert(p, SCX_DSQ_LOCAL_ON | to, settings.slice_ns, enq_flags);
			WRITE_ONCE(there->flush, 1);
			return;
		}
	}
	put(p, thread_of(p), enq_flags, now);
	idle = idle_cpu_for(p, cpu, now);
	if (idle >= 0)
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
}

/* Keeps offline threads off this CPU, except those with a pending SIGKILL or that are about to freeze. */
static __always_inline void refuse(s32 cpu, struct cpu *me, u64 now)
{
	if (notes.killed_at && now - notes.killed_at < DYING && let_out(cpu, me->llc))
		me->let_die++;
	else
		WRITE_ONCE(me->claim, 0);
}

void SCHED(sched_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu *me = cpu_at(cpu);
	struct thread *mine = 0;
	u64 now = bpf_ktime_get_ns();

	if (!me)
		return;
	if (prev && prev->scx.flags & SCX_TASK_QUEUED) {
		mine = thread_of(prev);
		if (mine)
			charge(prev, mine);
		if (wants_out(prev)) {
			set_slice(prev, settings.short_slice_ns);
			return;
		}
	}
	if (now < me->vacant_until) {
		struct cpu *there = me->room_for ? cpu_at(me->room_for - 1) : 0;

		if (there && clear_out(cpu, me->llc, me->room_for - 1))
			WRITE_ONCE(there->flush, 1);
		refuse(cpu, me, now);
		return;
	}
	/* The kernel's deadline server asks for offline threads although online ones wait; those come first. */
	if (fair_threads(cpu)) {
		me->starved++;
		refuse(cpu, me, now);
		return;
	}
	__sync_lock_test_and_set(&me->claim, 1);
	if (expelled(me, now)) {
		me->refusals++;
		__sync_lock_test_and_set(&me->expelled, 1);
		refuse(cpu, me, now);
		/* The expelling thread may have left before `expelled` was set. */
		if (!expelled(me, now) && __sync_lock_test_and_set(&me->expelled, 0))
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		return;
	}
	if (!take(cpu, me, mine ? prev : 0, mine))
		WRITE_ONCE(me->claim, 0);
}

void SCHED(sched_tick, struct task_struct *p)
{
	struct cpu *me = cpu_at(bpf_get_smp_processor_id());
	struct thread *t = thread_of(p);
	u64 now = bpf_ktime_get_ns();
	struct slot *s;

	if (!me || !t)
		return;
	charge(p, t);
	if (expelled(me, now)) {
		if (wants_out(p))
			return;
		if (!me->asked_at)
			me->asked_at = now;
		/* While a kick may still arrive, the eviction is not attributed to the tick. */
		if (settings.tick_alone || me->asked_at == now || now - me->asked_at > LATE)
			me->by_tick = 1;
		set_slice(p, 0);
		return;
	}
	s = slot_at(t->slot & (MOST_SLOTS - 1));
	if (now < me->vacant_until || (s && dry(s)))
		set_slice(p, 0);
}

void SCHED(sched_running, struct task_struct *p)
{
	struct thread *t = thread_of(p);
	u64 now = bpf_ktime_get_ns();
	struct slot *s;

	if (!t)
		return;
	t->run_at = p->se.sum_exec_runtime;
	s = slot_at(slot_of(p, t));
	if (s) {
		if (t->queued_at && t->queued_at < now && now - t->queued_at > s->waited_max_ns)
			s->waited_max_ns = now - t->queued_at;
		runs(s, t);
	}
	t->queued_at = 0;
}

void SCHED(sched_stopping, struct task_struct *p, bool runnable)
{
	struct thread *t = thread_of(p);

	if (t)
		charge(p, t);
}

s32 SCHED(sched_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	return bpf_task_storage_get(&threads, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE) ? 0 : -ENOMEM;
}

void SCHED(sched_enable, struct task_struct *p)
{
	struct thread *t = thread_of(p);
	struct slot *s;

	if (!t)
		return;
	t->queued_at = 0;
	t->run_at = p->se.sum_exec_runtime;
	s = slot_at(slot_of(p, t));
	if (s)
		t->vtime = s->thread_vtime;
}

/* Without these two callbacks, the kernel would unload the scheduler when a CPU goes online or offline. */
void SCHED(sched_cpu_online, s32 cpu)
{
}

void SCHED(sched_cpu_offline, s32 cpu)
{
	struct cpu *c = cpu_at(cpu);

	if (!c)
		return;
	WRITE_ONCE(c->claim, 0);
	leave(cpu, c->llc);
}

static __always_inline bool refill(u64 now)
{
	bool filled = false;
	s32 i;

	bpf_for(i, 1, limits_used) {
		u32 key = i;
		struct limit *l = bpf_map_lookup_elem(&limits, &key);
		u64 since, more;
		s64 had;

		if (!l || !l->quota_ns || !l->period_ns)
			continue;
		since = now - l->filled_at;
		if (since > l->period_ns)
			since = l->period_ns;
		l->filled_at = now;
		more = l->quota_ns * (since / 1000) / (l->period_ns / 1000 ? l->period_ns / 1000 : 1);
		had = __sync_fetch_and_add(&l->tokens_ns, (s64)more);
		if (had + (s64)more > (s64)l->quota_ns)
			WRITE_ONCE(l->tokens_ns, (s64)l->quota_ns);
		filled |= had <= 0 && had + (s64)more > 0;
	}
	return filled;
}

/*
 * Updates the class of a CPU whose thread got another class, or moved to another group, while it runs without a switch.
 * Called on another CPU: a change made there at the same time wins, and the next call corrects what that overwrites.
 */
static __always_inline void look_again(s32 cpu, struct cpu *c, u64 now)
{
	struct rq *rq = bpf_per_cpu_ptr(&runqueues, cpu);
	struct task_struct *p;
	struct cgroup *cgroup;
	u32 was = READ_ONCE(c->state), is;
	u64 since = READ_ONCE(c->since);

	if (!rq || was == CLASS_IDLE)
		return;
	p = BPF_CORE_READ(rq, curr);
	if (!p || BPF_CORE_READ(p, flags) & (PF_IDLE | PF_KTHREAD) || BPF_CORE_READ(p, policy) == SCHED_EXT)
		return;
	cgroup = settings.unified ? BPF_CORE_READ(p, cgroups, dfl_cgrp) : BPF_CORE_READ(p, sched_task_group, css.cgroup);
	is = (u32)look_up(cgroup);
	if (is == was || is >= CLASSES || was >= CLASSES || BPF_CORE_READ(rq, curr) != p)
		return;
	account_core(c, now);
	if (since != READ_ONCE(c->since) || !__sync_bool_compare_and_swap(&c->state, was, is))
		return;
	__sync_fetch_and_add(&c->ns[was], now - since);
	c->since = now;
	if (is == CLASS_EXPELLING)
		expel_siblings(c, now);
	else if (was == CLASS_EXPELLING)
		resume_siblings(c, now);
}

static int housekeeping(void *map, int *key, struct housekeeper *me)
{
	u64 now = bpf_ktime_get_ns();
	bool filled = refill(now), dying = notes.killed_at && now - notes.killed_at < DYING, out = false;
	bool look = looked_at != orders.generation || beats % 8 == 0;
	u64 next = settings.housekeeping_ns;
	s32 i, l;

	looked_at = orders.generation;
	bpf_for(i, 0, settings.nr_cpus) {
		struct cpu *c = cpu_at(i);
		bool again = filled || dying;

		if (!c)
			continue;
		if (c->core == (u32)i)
			account_core(c, now);
		if (look)
			look_again(i, c, now);
		if (c->vacant_until && now >= c->vacant_until) {
			c->vacant_until = 0;
			again = true;
		}
		if (c->resume_at && now >= c->resume_at) {
			c->resume_at = 0;
			WRITE_ONCE(c->expelled, 0);
			c->resumes++;
			again = true;
		}
		if (again && READ_ONCE(c->state) == CLASS_IDLE)
			scx_bpf_kick_cpu(i, SCX_KICK_IDLE);
	}
	if (beats++ % 8 == 0) {
		bpf_for(i, 0, slots_used) {
			struct slot *s = slot_at(i);
			u64 most = 0, queued = 0;

			if (!s || !s->used)
				continue;
			bpf_for(l, 0, settings.nr_llcs) {
				s32 count = scx_bpf_dsq_nr_queued(QUEUE(i, l));
				u64 age;

				if (count <= 0)
					continue;
				queued += count;
				bpf_rcu_read_lock();
				age = oldest(QUEUE(i, l), now, &out);
				bpf_rcu_read_unlock();
				most = age > most ? age : most;
			}
			s->oldest_ns = most;
			s->queued = queued;
		}
		if (out)
			notes.killed_at = now;
	}
	if (orders.hold_off_ns && orders.hold_off_ns < next)
		next = orders.hold_off_ns;
	bpf_timer_start(&me->timer, next, 0);
	return 0;
}

s32 SCHED_SLEEPABLE(sched_init)
{
	struct housekeeper *h;
	u32 zero = 0;
	s32 done = 0, i, l;

	bpf_for(i, 0, MOST_SLOTS) {
		bpf_for(l, 0, settings.nr_llcs) {
			done = scx_bpf_create_dsq(QUEUE(i, l), -1);
			if (done)
				return done;
		}
	}
	bpf_for(i, 0, settings.nr_cpus) {
		done = scx_bpf_create_dsq(PINNED(i), -1);
		if (done)
			return done;
	}
	h = bpf_map_lookup_elem(&housekeepers, &zero);
	if (!h)
		return -EINVAL;
	bpf_timer_init(&h->timer, &housekeepers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&h->timer, housekeeping);
	return bpf_timer_start(&h->timer, settings.housekeeping_ns, 0);
}

void SCHED(sched_exit, struct scx_exit_info *info)
{
	u32 zero = 0;
	struct dump *dump = bpf_map_lookup_elem(&dumps, &zero);

	bpf_probe_read_kernel_str(notes.reason, sizeof(notes.reason), info->reason);
	bpf_probe_read_kernel_str(notes.message, sizeof(notes.message), info->msg);
	if (dump)
		bpf_probe_read_kernel_str(dump->text, sizeof(dump->text), info->dump);
	notes.code = info->exit_code;
	notes.at = bpf_ktime_get_ns();
	notes.kind = info->kind;
}

/* Finds a CPU with offline work that this thread may use, and keeps it idle so that the balancer moves the thread there. */
static __always_inline void make_room(struct cpu *me, u32 here, struct task_struct *waits, u64 now)
{
	s32 i;

	me->helped_until = now + settings.vacant_ns;
	bpf_for(i, 1, SEARCH) {
		u32 cpu = here + i;
		struct cpu *c;

		if (i >= settings.nr_cpus)
			break;
		cpu = cpu >= settings.nr_cpus ? cpu - settings.nr_cpus : cpu;
		c = cpu_at(cpu);
		if (!c || READ_ONCE(c->state) != CLASS_OFFLINE || now < c->vacant_until)
			continue;
		if (!bpf_cpumask_test_cpu(cpu, waits->cpus_ptr))
			continue;
		WRITE_ONCE(c->room_for, (u64)here + 1);
		WRITE_ONCE(c->vacant_until, now + settings.vacant_ns);
		c->vacated++;
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
		break;
	}
}

/* Called for threads of all classes: only here does the scheduler see online threads. */
SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switched, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	u32 cpu = bpf_get_smp_processor_id(), was, now_is;
	bool user = !(next->flags & (PF_IDLE | PF_KTHREAD));
	struct cpu *me = cpu_at(cpu);
	u64 now = bpf_ktime_get_ns();

	if (!me)
		return 0;
	now_is = next->flags & PF_IDLE ? CLASS_IDLE : CLASS_OTHER;
	if (user)
		now_is = class_of(next, thread_of(next));
	if (now_is >= CLASSES)
		now_is = CLASS_OTHER;
	was = me->state;
	if (now_is != was) {
		account_core(me, now);
		if (was < CLASSES && me->since)
			me->ns[was] += now - me->since;
		me->since = now;
		__sync_lock_test_and_set(&me->state, now_is);
		if (was == CLASS_OFFLINE)
			has_left(me, now);
		if (now_is == CLASS_OFFLINE)
			me->asked_at = expelled(me, now) ? now : 0;
		if (is_online(now_is))
			me->vacant_until = 0;
		if (now_is == CLASS_EXPELLING)
			expel_siblings(me, now);
		else if (was == CLASS_EXPELLING)
			resume_siblings(me, now);
	}
	WRITE_ONCE(me->claim, 0);
	/* Another class has taken the CPU: what is in its local queue may run elsewhere. */
	if ((prev->policy == SCHED_EXT || me->flush) && next->policy != SCHED_EXT &&
	    !(next->flags & PF_IDLE) && bpf_ksym_exists(scx_bpf_reenqueue_local___v2___new)) {
		me->flush = 0;
		scx_bpf_reenqueue_local___v2___new();
	}
	/* An online thread that is still runnable has lost the CPU to another thread. */
	if (user && !prev_state && now_is != CLASS_OFFLINE && prev->policy != SCHED_EXT &&
	    !(prev->flags & (PF_IDLE | PF_KTHREAD)) && is_online(class_of(prev, thread_of(prev)))) {
		if (!me->crowded_since)
			me->crowded_since = now;
		else if (now - me->crowded_since > settings.crowded_ns && now > me->helped_until)
			make_room(me, cpu, prev, now);
	} else if (user || next->flags & PF_IDLE) {
		me->crowded_since = 0;
	}
	return 0;
}

SEC("tp_btf/signal_generate")
int BPF_PROG(signal_sent, int sig, void *info, struct task_struct *task)
{
	if (sig == 9) {
		notes.killed_at = bpf_ktime_get_ns();
		if (task->policy == SCHED_EXT)
			scx_bpf_kick_cpu(task->thread_info.cpu, SCX_KICK_IDLE);
	}
	return 0;
}

static __always_inline bool may_be_ordered(u64 class)
{
	return class == CLASS_OTHER || class == CLASS_OFFLINE || is_online(class);
}

/* Sets the class of a group for user space; refuses a class that this program does not know. */
SEC("syscall")
int set_group(struct group_args *args)
{
	struct group group = { .class = args->class, .slot = args->slot };
	u64 id = args->cgroup;

	if (!may_be_ordered(args->class) || args->slot >= MOST_SLOTS || !id)
		return -EINVAL;
	if (args->class == CLASS_OTHER) {
		bpf_map_delete_elem(&groups, &id);
		return 0;
	}
	return bpf_map_update_elem(&groups, &id, &group, BPF_ANY) ? -E2BIG : 0;
}

/* These set the fields of a slot, and of a limit, that belong to user space; the scheduler writes the others. */
SEC("syscall")
int set_slot(struct slot_args *args)
{
	struct slot *s = slot_at(args->index);

	if (!s || args->limit >= MOST_LIMITS || args->weight == 0)
		return -EINVAL;
	if (!s->used)
		s->vtime = vtime_now;
	s->weight = args->weight;
	s->limit = args->limit;
	s->used = args->used;
	if (args->index >= slots_used)
		slots_used = args->index + 1;
	return 0;
}

SEC("syscall")
int set_limit(struct limit_args *args)
{
	u32 key = args->index;
	struct limit *l = bpf_map_lookup_elem(&limits, &key);

	if (!l || !key || (args->quota_ns && args->period_ns < MS))
		return -EINVAL;
	if (!l->quota_ns)
		l->tokens_ns = args->quota_ns;
	l->period_ns = args->period_ns;
	l->quota_ns = args->quota_ns;
	if (key >= limits_used)
		limits_used = key + 1;
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops commensal = {
	.select_cpu	= (void *)sched_select_cpu,
	.enqueue	= (void *)sched_enqueue,
	.dispatch	= (void *)sched_dispatch,
	.tick		= (void *)sched_tick,
	.running	= (void *)sched_running,
	.stopping	= (void *)sched_stopping,
	.init_task	= (void *)sched_init_task,
	.enable		= (void *)sched_enable,
	.cpu_online	= (void *)sched_cpu_online,
	.cpu_offline	= (void *)sched_cpu_offline,
	.init		= (void *)sched_init,
	.exit		= (void *)sched_exit,
	.flags		= SCX_OPS_ENQ_LAST | SCX_OPS_SWITCH_PARTIAL,
	.timeout_ms	= 30000,
	.name		= "commensal",
};
