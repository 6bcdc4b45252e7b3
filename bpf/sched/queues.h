/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Chooses the next offline thread: from the slot with the least weighted run time (vtime), the thread with the least.
 * A slot has one queue per last-level cache. Threads that are bound to a single CPU are in a queue per CPU (PINNED),
 * because all other CPUs would have to skip them in a shared one.
 */
#pragma once
#include "state.h"

#define QUEUE(slot, llc)	(1ULL << 32 | (u64)(slot) << 8 | (llc))
#define PINNED(cpu)		(2ULL << 32 | (u64)(cpu))
/* Maximum lag of a slot's vtime behind the others, so that a group cannot save up CPU time by sleeping. */
#define LAG			(20 * MS)	/* of CPU time */
#define NOTHING			(~0ULL)
/* libbpf's name for the iterator of bpf_for_each. */
#define ITERATOR		(&___it)
/* Maximum number of threads of a queue that are examined to clear a CPU. */
#define MOST_CLEARED		16
#define LOOK_AT			8	/* threads at the head of a queue that are examined */

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

/* Charges the CPU time that the thread used since the last call to the thread, its slot and its limit. */
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

/* Advances the slot's clock and that of all slots to the vtimes of the thread that runs now. */
static __always_inline void runs(struct slot *s, struct thread *t)
{
	if ((s64)(t->vtime - s->thread_vtime) > 0)
		s->thread_vtime = t->vtime;
	if ((s64)(s->vtime - vtime_now) > 0)
		vtime_now = s->vtime;
}

/* Lets a thread continue. No callback reports this, so the clocks advance here: threads that arrive must not lag far behind. */
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
		/* Compared by differences, because these numbers may wrap. */
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

/* Finds the next slot after (vtime, index) with threads in its queue of this cache; returns 0 if there is none. */
static __always_inline u32 next_slot(u32 llc, u64 *vtime, s32 *index)
{
	u64 least = 0;
	s32 found = -1, i;

	bpf_for(i, 0, slots_used) {
		struct slot *s = slot_at(i);
		u64 behind;

		if (!s || !s->used || scx_bpf_dsq_nr_queued(QUEUE(i, llc)) <= 0 || dry(s))
			continue;
		/* As an offset, which does not wrap: all are near vtime_now. */
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

/* The first waiting thread that is bound to this CPU. */
struct pinned {
	u64 at;		/* its slot's vtime, as an offset like in next_slot; NOTHING: no such thread */
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

/* Whether it comes before the next slot: by the vtimes of the slots, or of the threads if they are in the same slot. */
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

/* Moves the next thread to this CPU, or lets the current one (prev) continue; returns false if there is neither. */
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
		/* prev continues if its slot comes first; within its slot, the waiting threads come first. */
		if (prev && mine && prev_at < vtime && index != (s32)mine->slot) {
			keep(prev, mine);
			return true;
		}
		if (move_to_local(QUEUE(index, llc)))
			return true;
	}
	if (pinned.at != NOTHING && pinned.at <= prev_at && move_to_local(PINNED(cpu)))
		return true;
	/* No thread of these queues may run here: try the others in any order, then those of other caches. */
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

/* Lets a thread of this queue run that is being killed or frozen, if it may run on this CPU. */
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

/* Lets such a thread run while no other may run here. Not static, so that the verifier checks it separately. */
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
 * The balancer considers a CPU idle only if no thread is queued there, and a thread in our queues counts as queued on the CPU
 * that it was on. So they are sent to the CPU that this one is vacated for, which puts them back into our queues.
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

/* Moves the threads of a queue that the kernel counts as queued on this CPU to the CPU's local queue. */
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
 * Called for a CPU that goes offline. The kernel dispatches nothing there any more, but waits until no thread is queued on it.
 * Other CPUs may take some of the threads, but all CPUs that a thread is bound to may be offline. So the threads are moved to
 * the local queue: the kernel finds another CPU for each one that is picked there.
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

/* Longest wait of the threads at the head of a queue; sets `out` if one of them is being killed or frozen. */
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
