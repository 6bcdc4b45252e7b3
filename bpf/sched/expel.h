/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Noise clean: no offline thread runs on an SMT sibling of an expelling thread.
 *
 *   arriving:  state = EXPELLING, barrier, read siblings   -> kick those that run offline work or have claimed to
 *   starting:  claim = 1,         barrier, read siblings   -> refuse when one is EXPELLING
 *
 * One of the two always sees the other. An offline thread that runs nevertheless is evicted at the next tick.
 */
#pragma once
#include "state.h"

/* Accounts the time of a core since the last call by the classes on its CPUs. Called before one of them changes. */
static __always_inline void account_core(struct cpu *me, u64 now)
{
	u32 index = me->core, mine = READ_ONCE(me->state);
	bool expelling = mine == CLASS_EXPELLING, offline = mine == CLASS_OFFLINE;
	struct core *core = bpf_map_lookup_elem(&cores, &index);
	u64 from, ns;

	if (!core)
		return;
	from = __sync_lock_test_and_set(&core->since, now);
	if (!from || from >= now)
		return;
	ns = now - from;
#pragma unroll
	for (int i = 0; i < SIBLINGS; i++) {
		struct cpu *other;
		u32 state;

		if (me->sibling[i] < 0 || !(other = cpu_at(me->sibling[i])))
			continue;
		state = READ_ONCE(other->state);
		expelling |= state == CLASS_EXPELLING;
		offline |= state == CLASS_OFFLINE;
	}
	if (!expelling) {
		core->overlap_now_ns = 0;
		if (mine == CLASS_IDLE)
			__sync_fetch_and_add(&me->room_ns, ns);
#pragma unroll
		for (int i = 0; i < SIBLINGS; i++) {
			struct cpu *other;

			if (me->sibling[i] >= 0 && (other = cpu_at(me->sibling[i])) &&
			    READ_ONCE(other->state) == CLASS_IDLE)
				__sync_fetch_and_add(&other->room_ns, ns);
		}
		return;
	}
	__sync_fetch_and_add(&core->expelling_ns, ns);
	if (!offline) {
		core->overlap_now_ns = 0;
		return;
	}
	__sync_fetch_and_add(&core->overlap_ns, ns);
	core->overlap_now_ns += ns;
	if (core->overlap_now_ns > core->overlap_max_ns)
		core->overlap_max_ns = core->overlap_now_ns;
}

/* Whether offline work must not run on this CPU now. */
static __always_inline bool expelled(struct cpu *me, u64 now)
{
	if (now < READ_ONCE(me->resume_at))
		return true;
#pragma unroll
	for (int i = 0; i < SIBLINGS; i++) {
		struct cpu *other;

		if (me->sibling[i] >= 0 && (other = cpu_at(me->sibling[i])) &&
		    READ_ONCE(other->state) == CLASS_EXPELLING)
			return true;
	}
	return false;
}

static __always_inline void expel_siblings(struct cpu *me, u64 now)
{
#pragma unroll
	for (int i = 0; i < SIBLINGS; i++) {
		struct cpu *other;

		if (me->sibling[i] < 0 || !(other = cpu_at(me->sibling[i])))
			continue;
		if (READ_ONCE(other->state) != CLASS_OFFLINE && !READ_ONCE(other->claim))
			continue;
		/* The eviction is timed from the first request. */
		if (!other->asked_at)
			WRITE_ONCE(other->asked_at, now);
		if (settings.tick_alone)
			continue;
		scx_bpf_kick_cpu(me->sibling[i], SCX_KICK_PREEMPT);
		me->kicks++;
	}
}

static __always_inline void resume_siblings(struct cpu *me, u64 now)
{
#pragma unroll
	for (int i = 0; i < SIBLINGS; i++) {
		struct cpu *other;

		if (me->sibling[i] < 0 || !(other = cpu_at(me->sibling[i])))
			continue;
		if (orders.hold_off_ns) {
			/* Also for a sibling that was not refused yet. Housekeeping kicks it at the end. */
			WRITE_ONCE(other->resume_at, now + orders.hold_off_ns);
			continue;
		}
		if (!READ_ONCE(other->expelled))
			continue;
		WRITE_ONCE(other->expelled, 0);
		scx_bpf_kick_cpu(me->sibling[i], SCX_KICK_IDLE);
		other->resumes++;
	}
}

/* Accounts the eviction when offline work has left this CPU. */
static __always_inline void has_left(struct cpu *me, u64 now)
{
	u64 asked = me->asked_at, ns;

	if (asked && asked <= now) {
		ns = now - asked;
		me->evictions++;
		me->evict_ns += ns;
		if (ns > me->evict_max_ns)
			me->evict_max_ns = ns;
		me->by_ticks += me->by_tick;
	}
	me->asked_at = 0;
	me->by_tick = 0;
}
