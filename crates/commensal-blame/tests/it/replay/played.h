/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A kernel that a test plays: two CPUs, tasks that take turns when a sequence says so, and the kernel's own account of them. It can hide
 * a switch from the probe, and refuse storage for tasks.
 */
#pragma once

/* The kernel's own account is at the same place in both descriptions of a task. */
#define run_delay run_delay, last_arrival, last_queued
#include "kernel.h"
#undef run_delay
/* Settings are variables here. */
#define const
#include "probe/blame.bpf.c"
#undef const

int printf(const char *format, ...);
int strcmp(const char *one, const char *other);
void *memcpy(void *to, const void *from, unsigned long size);
int memcmp(const void *one, const void *other, unsigned long size);

enum { CPUS = 2, PLACES_OF_MAP = 16 };
enum { WEB = 11, ETL = 12, DESK = 13 };	/* cgroups: the target, offline work, and one that is nobody's */
enum reported { REPORTED, HIDDEN };
enum storage { GIVEN, REFUSED, BUSY };	/* refused: to new tasks; busy: to all, as before 6.2 */
#define US 1000ULL
#define MS 1000000ULL
/* CLOCK_MONOTONIC minus the clock of the run queues. */
#define AHEAD (3 * MS)

struct played {
	struct task_struct task;	/* first: the probe gets a pointer to it */
	struct task_state state;
	bool stored;
	u64 since;	/* when it has got its CPU */
};

static u64 time_ns = 1000 * MS;
static u32 here;	/* the CPU that an event happens on */
static struct task_struct *current_task;
static enum storage storage;
static int failures;

static struct rq run_queues[CPUS];
static struct cfs_rq queues[CPUS];
static struct played idle[CPUS];
static struct kernfs_node nodes[3] = { { WEB }, { ETL }, { DESK } };
static struct cgroup cgroups[3] = { { .kn = &nodes[0] }, { .kn = &nodes[1] }, { .kn = &nodes[2] } };
static struct task_group groups[3];
static struct played web, web2, etl, desk;
static struct played *all_tasks[4] = { &web, &web2, &etl, &desk };

static struct cpu_state states[CPUS];
static struct ring rings_of[CPUS];
static struct arrival arrivals_of[CPUS];
static struct totals totals_of[CPUS];
static struct delays delays_of[CPUS];
static struct target targets_of[CPUS][4];
static struct life lives_of[4];
static struct { struct culprit key; u64 ns; bool used; } culprits_of[PLACES_OF_MAP];

static u64 bpf_ktime_get_ns(void) { return time_ns; }
static u32 bpf_get_smp_processor_id(void) { return here; }
static struct task_struct *bpf_get_current_task_btf(void) { return current_task; }
static u64 bpf_get_current_uid_gid(void) { return 0; }
static long bpf_ringbuf_output(void *ring, void *data, u64 size, u64 flags) { return 0; }
static long bpf_seq_write(struct seq_file *file, const void *data, u32 size) { return 0; }
static long bpf_probe_read_kernel(void *to, u32 size, const void *from) { return 0; }
static long bpf_map_delete_elem(void *map, const void *key) { return 0; }

static void *bpf_map_lookup_elem(void *map, const void *key)
{
	static u32 online = CLASS_ONLINE, offline = CLASS_OFFLINE;
	u32 index = *(const u32 *)key;
	u64 id = *(const u64 *)key;

	if (map == &cpus)
		return &states[index];
	if (map == &rings)
		return &rings_of[index];
	if (map == &arrivals)
		return &arrivals_of[here];
	if (map == &totals)
		return &totals_of[here];
	if (map == &delays)
		return &delays_of[here];
	if (map == &targets)
		return &targets_of[here][index];
	if (map == &lives)
		return &lives_of[index];
	if (map == &classes)
		return id == WEB ? &online : id == ETL ? &offline : 0;
	if (map == &culprits)
		for (int i = 0; i < PLACES_OF_MAP; i++)
			if (culprits_of[i].used && !memcmp(&culprits_of[i].key, key, sizeof(struct culprit)))
				return &culprits_of[i].ns;
	return 0;
}

static long bpf_map_update_elem(void *map, const void *key, const void *value, u64 flags)
{
	for (int i = 0; map == &culprits && i < PLACES_OF_MAP; i++) {
		if (culprits_of[i].used)
			continue;
		memcpy(&culprits_of[i].key, key, sizeof(struct culprit));
		culprits_of[i].ns = *(const u64 *)value;
		culprits_of[i].used = true;
		return 0;
	}
	return -1;
}

static void *bpf_task_storage_get(void *map, struct task_struct *p, void *value, u64 flags)
{
	struct played *one = (struct played *)p;

	if (storage == BUSY)
		return 0;
	if (!one->stored && !(flags & BPF_LOCAL_STORAGE_GET_F_CREATE && storage == GIVEN))
		return 0;
	one->stored = true;
	return &one->state;
}

static u64 rq_clock(void)
{
	return time_ns - AHEAD;
}

static void pass(u64 ns)
{
	time_ns += ns;
	for (int cpu = 0; cpu < CPUS; cpu++)
		run_queues[cpu].clock = rq_clock();
}

static void place(struct played *one, u32 cpu)
{
	one->task.thread_info.cpu = cpu;
	one->task.se.cfs_rq = &queues[cpu];
}

/* Makes the machine: all CPUs idle, and all tasks asleep on the first one. */
static void boot(void)
{
	static int of[4] = { 0, 0, 1, 2 };

	for (int i = 0; i < 3; i++)
		groups[i].css.cgroup = &cgroups[i];
	for (u32 cpu = 0; cpu < CPUS; cpu++) {
		queues[cpu].rq = &run_queues[cpu];
		run_queues[cpu].curr = &idle[cpu].task;
		((struct rq___counted *)&run_queues[cpu])->nr_switches = 100;
		idle[cpu].task.flags = PF_KTHREAD;
		idle[cpu].task.on_cpu = 1;
		idle[cpu].task.sched_task_group = &groups[2];
		place(&idle[cpu], cpu);
		for (int i = 0; i < SIBLINGS; i++)
			states[cpu].sibling[i] = -1;
	}
	for (int i = 0; i < 4; i++) {
		all_tasks[i]->task.pid = all_tasks[i]->task.tgid = 100 + i;
		all_tasks[i]->task.prio = 120;
		all_tasks[i]->task.sched_task_group = &groups[of[i]];
		place(all_tasks[i], 0);
	}
	pass(0);
}

/* Starts the counting, and looks at all tasks. */
static void start(void)
{
	control.order = START;
	for (int i = 0; i < 4; i++) {
		struct bpf_iter__task context = { .task = &all_tasks[i]->task };

		current_task = &desk.task;
		prime(&context);
	}
	control.primed = 1;
}

/* Wakes a task that sleeps. On another CPU than its last, it is moved first. */
static void wake(struct played *one, u32 cpu)
{
	if (one->task.thread_info.cpu != cpu)
		on_migrate(&one->task, cpu);
	place(one, cpu);
	one->task.on_rq = 1;
	one->task.se.sched_delayed = 0;
	((struct task_struct___times *)one)->sched_info.last_queued = rq_clock();
	on_wakeup(&one->task);
}

/* Starts a new task of the one that has this CPU. */
static void born(struct played *one, u32 cpu)
{
	current_task = run_queues[cpu].curr;
	here = cpu;
	on_fork(current_task, &one->task);
	place(one, cpu);
	one->task.on_rq = 1;
	((struct task_struct___times *)one)->sched_info.last_queued = rq_clock();
}

/* Moves a task that is queued, or that sleeps in the queue. */
static void move(struct played *one, u32 cpu)
{
	struct sched_info___times *of = &((struct task_struct___times *)one)->sched_info;

	if (of->last_queued)
		of->run_delay += rq_clock() - of->last_queued;
	of->last_queued = 0;
	here = one->task.thread_info.cpu;
	one->task.on_rq = 2;
	on_migrate(&one->task, cpu);
	place(one, cpu);
	one->task.on_rq = 1;
	if (!one->task.se.sched_delayed)
		of->last_queued = rq_clock();
}

/* Gives a CPU to a task; the one before stays queued, or sleeps. */
static void give(u32 cpu, struct played *next, bool stays, enum reported reported)
{
	struct rq *rq = &run_queues[cpu];
	struct played *prev = (struct played *)rq->curr;
	struct sched_info___times *before = &((struct task_struct___times *)prev)->sched_info;
	struct sched_info___times *after = &((struct task_struct___times *)next)->sched_info;

	if (prev->task.pid) {
		prev->task.se.sum_exec_runtime += rq_clock() - prev->since;
		prev->task.on_rq = stays;
	}
	((struct rq___counted *)rq)->nr_switches++;
	rq->curr = &next->task;
	here = cpu;
	current_task = &prev->task;
	if (reported == REPORTED)
		blame_switch(false, &prev->task, &next->task);
	if (prev->task.pid && stays)
		before->last_queued = rq_clock();
	if (next->task.pid) {
		if (after->last_queued)
			after->run_delay += rq_clock() - after->last_queued;
		after->last_queued = 0;
		after->last_arrival = rq_clock();
		next->since = rq_clock();
		next->task.on_rq = 1;
	}
	prev->task.on_cpu = 0;
	next->task.on_cpu = 1;
}

/* Sum of a counter over all CPUs. */
#define SUM(field) ({ u64 sum = 0; for (int cpu = 0; cpu < CPUS; cpu++) sum += totals_of[cpu].field; sum; })

/* Wait that a culprit is blamed for. */
static u64 blamed(u32 kind, u64 cgroup)
{
	u64 ns = 0;

	for (int i = 0; i < PLACES_OF_MAP; i++)
		if (culprits_of[i].used && culprits_of[i].key.kind == kind && culprits_of[i].key.cgroup == cgroup)
			ns += culprits_of[i].ns;
	for (int cpu = 0; cpu < CPUS; cpu++)
		if (states[cpu].last.kind == kind && states[cpu].last.cgroup == cgroup)
			ns += states[cpu].pending;
	return ns;
}

static void is(char *what, u64 got, u64 wanted)
{
	printf("%s: %llu\n", what, got);
	if (got == wanted)
		return;
	printf("  WRONG: it should be %llu\n", wanted);
	failures++;
}
