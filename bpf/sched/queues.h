/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who of the offline threads is next: the slot with the least weighted run time, then the thread of it with the least.
 * A slot has a queue per last-level cache; threads that may run on one CPU only have queues by CPU, since everybody
 * else would have to look past them.
 */
#pragma once
#include "state.h"

#define QUEUE(slot, llc)	(1ULL << 32 | (u64)(slot) << 8 | (llc))
#define PINNED(cpu)		(2ULL << 32 | (u64)(cpu))
/* What a slot may be behind the others, so that who slept is no creditor. */
#define LAG			(20 * MS)	/* of CPU time */
#define NOTHING			(~0ULL)
/* libbpf's name for the iterator of bpf_for_each. */
#define ITERATOR		(&___it)
/* Threads of a queue that are looked at to clear a CPU. */
#define MOST_CLEARED		16
#define LOOK_AT			8	/* threads at the head of a queue */

static __always_inline struct limit *limit_of(struct slot *s)
{
	u32 index = s->limit & (MOST_LIMITS - 1);
	struct limit *l;

	if (!index)
		return 0;
	l = bpf_map_lookup_elem(&limits, &index);
	return l && l->quota_ns ? l : 0;
}

static __always_inline bool dry(struct slot *s)
{
	struct limit *l = limit_of(s);

	return l && READ_ONCE(l->tokens_ns) <= 0;
}

/* Takes what the thread has used since the last time from its slot, its limit and itself. */
static __always_inline void charge(struct task_struct *p, struct thread *t)
{
	u64 used = p->se.sum_exec_runtime, ns = used - t->run_at, weight = p->scx.weight;
	struct slot *s = slot_at(slot_of(p, t));
	struct limit *l;

	t->run_at = used;
	t->vtime += ns * 100 / (weight ? weight : 1);
	if (!s)
		return;
	__sync_fetch_and_add(&s->run_ns, ns);
	__sync_fetch_and_add(&s->vtime, ns * 100 / (s->weight ? s->weight : 100));
	l = limit_of(s);
	if (l && __sync_fetch_and_add(&l->tokens_ns, -(s64)ns) > 0 && READ_ONCE(l->tokens_ns) <= 0)
		__sync_fetch_and_add(&l->throttled, 1);
}

/* The clocks are where whoever was let run last was then. */
static __always_inline void runs(struct slot *s, struct thread *t)
{
	if ((s64)(t->vtime - s->thread_vtime) > 0)
		s->thread_vtime = t->vtime;
	if ((s64)(s->vtime - vtime_now) > 0)
		vtime_now = s->vtime;
}

/* It goes on, which the kernel does not tell: who comes while it runs for long must not be an age behind it. */
static __always_inline void keep(struct task_struct *p, struct thread *t)
{
	struct slot *s = slot_at(t->slot & (MOST_SLOTS - 1));

	if (s)
		runs(s, t);
	set_slice(p, settings.slice_ns);
}

static __always_inline void put(struct task_struct *p, struct thread *t, u64 flags, u64 now)
{
	u32 cpu = p->thread_info.cpu, index = slot_of(p, t);
	struct slot *s = slot_at(index);
	struct cpu *c = cpu_at(cpu);
	u32 llc = c ? c->llc & (MOST_LLCS - 1) : 0;
	u64 vtime = 0, slice = settings.slice_ns;

	if (t && s) {
		u64 lag = LAG * 100 / (s->weight ? s->weight : 100);

		if (!t->queued_at)
			t->queued_at = now;
		/* Differences, since these numbers may wrap. */
		if ((s64)(s->vtime - (vtime_now - lag)) < 0)
			s->vtime = vtime_now - lag;
		if ((s64)(t->vtime - (s->thread_vtime - settings.slice_ns)) < 0)
			t->vtime = s->thread_vtime - settings.slice_ns;
		vtime = t->vtime;
		if (p->nr_cpus_allowed == 1) {
			insert_vtime(p, PINNED(cpu), slice, s->vtime, flags);
			return;
		}
	}
	if (scx_bpf_dsq_nr_queued(QUEUE(index, llc)) > 128)
		slice = settings.short_slice_ns;
	insert_vtime(p, QUEUE(index, llc), slice, vtime, flags);
}

/* The slot after (vtime, index) that has threads in the queues of this cache; NOTHING when none has. */
static __always_inline u32 next_slot(u32 llc, u64 *vtime, s32 *index)
{
	u64 least = 0;
	s32 found = -1, i;

	bpf_for(i, 0, slots_used) {
		struct slot *s = slot_at(i);
		u64 behind;

		if (!s || !s->used || scx_bpf_dsq_nr_queued(QUEUE(i, llc)) <= 0 || dry(s))
			continue;
		/* As an offset: all are near vtime_now. */
		behind = s->vtime - (vtime_now - (1ULL << 62));
		if (behind < *vtime || (behind == *vtime && i <= *index))
			continue;
		if (found < 0 || behind < least) {
			least = behind;
			found = i;
		}
	}
	*vtime = least;
	*index = found;
	return found >= 0;
}

/* The first thread that waits for this CPU alone. */
struct pinned {
	u64 at;		/* where its slot is now, on the same scale; NOTHING when there is none */
	u64 vtime;	/* among the threads of its slot */
	s32 slot;
};

static __always_inline void first_pinned(s32 cpu, struct pinned *first)
{
	struct task_struct *p;

	*first = (struct pinned){ .at = NOTHING, .slot = -1 };
	if (scx_bpf_dsq_nr_queued(PINNED(cpu)) <= 0)
		return;
	bpf_for_each(scx_dsq, p, PINNED(cpu), 0) {
		struct thread *t = thread_of(p);
		u32 index = slot_of(p, t);
		struct slot *s = slot_at(index);

		if (t && s && !dry(s)) {
			first->at = s->vtime - (vtime_now - (1ULL << 62));
			first->vtime = t->vtime;
			first->slot = index;
		}
		break;
	}
}

/* Whether it comes before the slot that is next: by their clocks, and within one slot by those of its threads. */
static __always_inline bool pinned_first(struct pinned *first, u64 vtime, s32 index, u32 llc)
{
	struct task_struct *p;
	bool before = true;

	if (first->at == NOTHING || first->slot != index)
		return first->at <= vtime;
	bpf_for_each(scx_dsq, p, QUEUE(index, llc), 0) {
		before = (s64)(first->vtime - p->scx.dsq_vtime) <= 0;
		break;
	}
	return before;
}

/* Moves the next thread to this CPU. `keep` when the one that has it is the next. */
static __always_inline bool take(s32 cpu, struct cpu *me, struct task_struct *prev, struct thread *mine)
{
	u32 llc = me->llc & (MOST_LLCS - 1);
	u64 vtime = 0, prev_at = NOTHING;
	struct pinned pinned;
	s32 index = -1, i, attempt;
	bool more = true;

	first_pinned(cpu, &pinned);
	if (prev && mine) {
		struct slot *s = slot_at(slot_of(prev, mine));

		if (s && !dry(s))
			prev_at = s->vtime - (vtime_now - (1ULL << 62));
	}
	bpf_for(attempt, 0, 4) {
		more = next_slot(llc, &vtime, &index);
		if (!more)
			break;
		if (pinned.at != NOTHING && pinned.at <= prev_at && pinned_first(&pinned, vtime, index, llc)) {
			if (move_to_local(PINNED(cpu)))
				return true;
			pinned.at = NOTHING;
		}
		/* Its own slot's others come first when it is their turn. */
		if (prev && mine && prev_at < vtime && index != (s32)mine->slot) {
			keep(prev, mine);
			return true;
		}
		if (move_to_local(QUEUE(index, llc)))
			return true;
	}
	if (pinned.at != NOTHING && pinned.at <= prev_at && move_to_local(PINNED(cpu)))
		return true;
	/* Many queues hold nobody who may run here: the rest in any order, then other caches. */
	if (more) {
		bpf_for(i, 0, slots_used) {
			struct slot *s = slot_at(i);

			if (s && s->used && !dry(s) && move_to_local(QUEUE(i, llc)))
				return true;
		}
	}
	if (prev && mine && prev_at != NOTHING) {
		keep(prev, mine);
		return true;
	}
	bpf_for(attempt, 1, settings.nr_llcs) {
		u32 other = (llc + attempt) % settings.nr_llcs & (MOST_LLCS - 1);

		bpf_for(i, 0, slots_used) {
			struct slot *s = slot_at(i);

			if (s && s->used && !dry(s) && scx_bpf_dsq_nr_queued(QUEUE(i, other)) > 0 &&
			    move_to_local(QUEUE(i, other)))
				return true;
		}
	}
	return false;
}

/* A thread of this queue that is to end or to freeze, if it may run here. */
static __always_inline bool let_one_out(s32 cpu, u64 queue)
{
	struct task_struct *p;
	u32 looked = 0;
	bool done = false;

	bpf_for_each(scx_dsq, p, queue, 0) {
		if (wants_out(p) && bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
			scx_bpf_dsq_move_set_slice(ITERATOR, settings.short_slice_ns);
			done = scx_bpf_dsq_move(ITERATOR, p, SCX_DSQ_LOCAL_ON | cpu, 0);
		}
		if (done || ++looked >= LOOK_AT)
			break;
	}
	return done;
}

/* While nothing else may run here: whoever is being killed may. Not static: the verifier looks at it by itself then. */
__noinline u32 let_out(s32 cpu, u32 llc)
{
	s32 i;

	if (scx_bpf_dsq_nr_queued(PINNED(cpu)) > 0 && let_one_out(cpu, PINNED(cpu)))
		return 1;
	llc &= MOST_LLCS - 1;
	bpf_for(i, 0, MOST_SLOTS) {
		if (i >= slots_used && i < MOST_SLOTS - 1)
			continue;
		if (scx_bpf_dsq_nr_queued(QUEUE(i, llc)) > 0 && let_one_out(cpu, QUEUE(i, llc)))
			return 1;
	}
	return 0;
}

/*
 * To the balancer a CPU is idle when no thread at all is queued there, and those that wait in our queues are still queued on
 * the CPU that they were on. So they are sent to the one that this one is vacated for, which sends them back into our queues.
 */
__noinline u32 clear_out(s32 cpu, u32 llc, s32 to)
{
	u32 moved = 0;
	s32 i;

	llc &= MOST_LLCS - 1;
	bpf_for(i, 0, MOST_SLOTS) {
		struct task_struct *p;
		u32 looked = 0;

		if ((i >= slots_used && i < MOST_SLOTS - 1) || scx_bpf_dsq_nr_queued(QUEUE(i, llc)) <= 0)
			continue;
		bpf_for_each(scx_dsq, p, QUEUE(i, llc), 0) {
			if (p->thread_info.cpu == (u32)cpu && bpf_cpumask_test_cpu(to, p->cpus_ptr) &&
			    scx_bpf_dsq_move(ITERATOR, p, SCX_DSQ_LOCAL_ON | (u32)to, 0))
				moved++;
			if (++looked >= MOST_CLEARED)
				break;
		}
	}
	return moved;
}

/* Those of a queue that are queued on this CPU for the kernel come to its own queue. */
static __always_inline void leave_queue(s32 cpu, u64 queue)
{
	struct task_struct *p;

	if (scx_bpf_dsq_nr_queued(queue) <= 0)
		return;
	bpf_for_each(scx_dsq, p, queue, 0) {
		if (p->thread_info.cpu == (u32)cpu)
			scx_bpf_dsq_move(ITERATOR, p, SCX_DSQ_LOCAL_ON | cpu, 0);
	}
}

/*
 * A CPU goes: the kernel asks nobody for threads of it any more, and does not let go of it before all that are queued there have
 * left. Others may take those that may run elsewhere, but the CPUs that a thread is bound to may all have gone. The kernel finds
 * each one another CPU once it comes up here.
 */
static __always_inline void leave(s32 cpu, u32 llc)
{
	s32 i;

	leave_queue(cpu, PINNED(cpu));
	llc &= MOST_LLCS - 1;
	bpf_for(i, 0, MOST_SLOTS) {
		if (i < slots_used || i == MOST_SLOTS - 1)
			leave_queue(cpu, QUEUE(i, llc));
	}
	scx_bpf_kick_cpu(cpu, 0);
}

/* For how long the threads at the head of a queue have waited, and whether one of them wants out. */
static __always_inline u64 oldest(u64 queue, u64 now, bool *out)
{
	struct task_struct *p;
	u64 most = 0;
	u32 looked = 0;

	bpf_for_each(scx_dsq, p, queue, 0) {
		struct thread *t = thread_of(p);

		if (t && t->queued_at && t->queued_at < now && now - t->queued_at > most)
			most = now - t->queued_at;
		*out |= wants_out(p);
		if (++looked >= LOOK_AT)
			break;
	}
	return most;
}
