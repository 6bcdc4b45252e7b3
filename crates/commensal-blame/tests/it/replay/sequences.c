/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sequences of events, and what the probe has to make of them. */
#include "played.h"

/* An online thread is preempted, waits, and gets its CPU back; then it sleeps and is woken on an idle CPU. */
static void all_is_reported(void)
{
	wake(&web, 0);
	pass(10 * US);
	give(0, &web, false, REPORTED);
	pass(2 * MS);
	wake(&desk, 0);
	give(0, &desk, true, REPORTED);
	pass(3 * MS);
	give(0, &web, false, REPORTED);
	pass(1 * MS);
	give(0, &idle[0], false, REPORTED);
	pass(100 * MS);
	wake(&web, 0);
	pass(20 * US);
	give(0, &web, false, REPORTED);
	is("wait behind desk", blamed(CLASS_OTHER, DESK), 3 * MS);
	is("wait on an idle CPU", SUM(wait[CLASS_IDLE]), 30 * US);
	is("run", web.state.run, 3 * MS);
	is("slept", web.state.slept, 101 * MS);
	is("hidden", SUM(hidden_ns), 0);
	is("missed", SUM(missed), 0);
}

/* The CPU goes idle without a report; a thread that is woken there waits for nobody. */
static void goes_idle_hidden(struct played *before)
{
	wake(before, 0);
	give(0, before, false, REPORTED);
	pass(1 * MS);
	give(0, &idle[0], false, HIDDEN);
	pass(500 * MS);
}

static void woken_where_idle_is_hidden(void)
{
	/* Offline work elsewhere: the thread does not queue behind another task while that runs. */
	wake(&etl, 1);
	give(1, &etl, false, REPORTED);
	goes_idle_hidden(&desk);
	wake(&web, 0);
	pass(50 * US);
	give(0, &web, false, REPORTED);
	is("wait on an idle CPU", SUM(wait[CLASS_IDLE]), 50 * US);
	is("wait behind others", SUM(wait[CLASS_OTHER]), 0);
	is("displaced", SUM(displaced), 0);
	is("hidden", SUM(hidden_ns), 0);
	is("missed", SUM(missed), 1);
}

static void woken_by_an_interrupt_where_idle_is_hidden(void)
{
	goes_idle_hidden(&desk);
	here = 0;
	on_irq_entry();
	pass(5 * US);
	wake(&web, 0);
	pass(7 * US);
	here = 0;
	on_irq_exit();
	pass(40 * US);
	give(0, &web, false, REPORTED);
	is("wait for the interrupt", SUM(wait[CLASS_IRQ]), 7 * US);
	is("wait on an idle CPU", SUM(wait[CLASS_IDLE]), 40 * US);
	is("wait behind others", SUM(wait[CLASS_OTHER]), 0);
	is("hidden", SUM(hidden_ns), 0);
}

static void two_are_woken_where_idle_is_hidden(void)
{
	goes_idle_hidden(&desk);
	wake(&web, 0);
	wake(&web2, 0);
	pass(50 * US);
	give(0, &web, false, REPORTED);
	pass(1 * MS);
	give(0, &web2, false, REPORTED);
	is("wait on an idle CPU", SUM(wait[CLASS_IDLE]), 100 * US);
	is("wait for each other", SUM(wait[CLASS_ONLINE]), 1 * MS);
	is("wait behind others", SUM(wait[CLASS_OTHER]), 0);
	is("hidden", SUM(hidden_ns), 0);
}

static void woken_where_offline_work_has_left_hidden(void)
{
	u64 delays = 0;

	goes_idle_hidden(&etl);
	wake(&web, 0);
	pass(50 * US);
	give(0, &web, false, REPORTED);
	for (int i = 0; i < SLOTS; i++)
		delays += delays_of[0].preempt[i];
	is("wait on an idle CPU", SUM(wait[CLASS_IDLE]), 50 * US);
	is("wait behind offline work", SUM(wait[CLASS_OFFLINE]), 0);
	is("delays by offline work", delays, 0);
	is("inversions", SUM(inversions), 0);
	is("CPUs with offline work", offline_cpus, 0);
}

/* A thread that its own quota holds back stays queued while its CPU goes idle. */
static void throttled(struct played *before, enum reported reported)
{
	wake(&web, 0);
	give(0, &web, false, REPORTED);
	pass(2 * MS);
	wake(before, 0);
	give(0, before, true, REPORTED);
	pass(1 * MS);
	give(0, &idle[0], false, reported);
	pass(49 * MS);
	give(0, &web, false, REPORTED);
	is("all waits", web.state.waited, 50 * MS);
}

static void throttled_while_idle_is_reported(void)
{
	throttled(&desk, REPORTED);
	is("wait behind desk", blamed(CLASS_OTHER, DESK), 1 * MS);
	is("wait on an idle CPU", SUM(wait[CLASS_IDLE]), 49 * MS);
	is("hidden", SUM(hidden_ns), 0);
}

/* Nobody knows when the CPU went idle: what is said of the whole time is uncertain. */
static void throttled_while_idle_is_hidden(void)
{
	throttled(&desk, HIDDEN);
	is("hidden", SUM(hidden_ns), 50 * MS);
	is("hidden behind offline work", SUM(hidden_offline_ns), 0);
}

static void throttled_while_offline_work_leaves_hidden(void)
{
	throttled(&etl, HIDDEN);
	is("hidden", SUM(hidden_ns), 50 * MS);
	is("hidden behind offline work", SUM(hidden_offline_ns), 50 * MS);
}

/* One hidden switch, to the thread that waits: all is known. */
static void a_hidden_arrival(void)
{
	wake(&web, 0);
	give(0, &web, false, REPORTED);
	pass(2 * MS);
	wake(&desk, 0);
	give(0, &desk, true, REPORTED);
	pass(3 * MS);
	give(0, &web, false, HIDDEN);
	pass(4 * MS);
	give(0, &idle[0], false, REPORTED);
	is("wait behind desk", blamed(CLASS_OTHER, DESK), 3 * MS);
	is("run", web.state.run, 6 * MS);
	is("hidden", SUM(hidden_ns), 0);
}

/* A thread runs twice, and only the end of its second run is reported. */
static void two_hidden_runs(void)
{
	wake(&web, 0);
	give(0, &web, false, REPORTED);
	pass(10 * MS);
	wake(&desk, 0);
	give(0, &desk, true, REPORTED);
	pass(1 * MS);
	give(0, &web, true, HIDDEN);
	pass(2 * MS);
	give(0, &desk, true, HIDDEN);
	pass(3 * MS);
	give(0, &web, true, HIDDEN);
	pass(4 * MS);
	give(0, &desk, false, REPORTED);
	is("run", web.state.run, 16 * MS);
	is("all waits", web.state.waited, 4 * MS);
	is("parts of the waits", SUM(wait[CLASS_OTHER]), 4 * MS);
	is("lost", web.state.lost, 0);
	is("waiters", states[0].waiters, 0);
}

/* A thread that waits gets its CPU, runs and sleeps while the kernel gives the probe no storage. */
static void runs_and_sleeps_unseen(void)
{
	wake(&web, 0);
	give(0, &web, false, REPORTED);
	pass(10 * MS);
	wake(&desk, 0);
	give(0, &desk, true, REPORTED);
	pass(1 * MS);
	storage = BUSY;
	give(0, &web, true, REPORTED);
	pass(2 * MS);
	give(0, &desk, false, REPORTED);
	storage = GIVEN;
	pass(100 * MS);
}

static void woken_elsewhere_after_an_unseen_run(void)
{
	runs_and_sleeps_unseen();
	wake(&web, 1);
	pass(10 * US);
	give(1, &web, false, REPORTED);
	is("run", web.state.run, 12 * MS);
	is("slept", web.state.slept, 101 * MS);
	is("all waits", web.state.waited, 1 * MS + 10 * US);
	is("parts of the waits", SUM(wait[CLASS_OTHER]) + SUM(wait[CLASS_IDLE]), 1 * MS + 10 * US);
	is("wait on an idle CPU", SUM(wait[CLASS_IDLE]), 10 * US);
	is("wait behind desk", blamed(CLASS_OTHER, DESK), 0);
	is("hidden", SUM(hidden_ns), 1 * MS);
	is("waiters there", states[0].waiters, 0);
	is("waiters here", states[1].waiters, 0);
}

static void woken_after_an_unseen_run(void)
{
	runs_and_sleeps_unseen();
	wake(&web, 0);
	pass(10 * US);
	give(0, &web, true, REPORTED);
	is("run", web.state.run, 12 * MS);
	is("slept", web.state.slept, 101 * MS);
	is("all waits", web.state.waited, 1 * MS + 10 * US);
	is("wait behind desk", blamed(CLASS_OTHER, DESK), 10 * US);
	is("hidden", SUM(hidden_ns), 1 * MS);
	is("waiters", states[0].waiters, 0);
}

/* A thread that waits is moved, which is not seen, and moved again. */
static void moved_unseen(void)
{
	wake(&etl, 1);
	give(1, &etl, false, REPORTED);
	wake(&web, 0);
	give(0, &web, false, REPORTED);
	pass(1 * MS);
	wake(&desk, 0);
	give(0, &desk, true, REPORTED);
	pass(2 * MS);
	storage = BUSY;
	move(&web, 1);
	storage = GIVEN;
	pass(30 * MS);
	move(&web, 0);
	pass(1 * MS);
	give(0, &web, false, REPORTED);
	is("all waits", web.state.waited, 33 * MS);
	is("wait behind desk", blamed(CLASS_OTHER, DESK), 1 * MS);
	is("hidden", SUM(hidden_ns), 32 * MS);
	is("waiters", states[0].waiters + states[1].waiters, 0);
}

/* A thread sleeps, but is still in the queue, and is moved. */
static void moved_asleep(void)
{
	pass(10 * MS);
	move(&web, 1);
	is("waiters", states[0].waiters + states[1].waiters, 0);
	pass(100 * MS);
	wake(&web, 1);
	pass(10 * US);
	give(1, &web, false, REPORTED);
	is("all waits", web.state.waited, 10 * US);
	is("slept", web.state.slept, 111 * MS);
}

/* Offline work without storage is known by its cgroup. */
static void offline_work_without_storage(void)
{
	storage = REFUSED;
	wake(&etl, 0);
	give(0, &etl, false, REPORTED);
	wake(&web, 0);
	pass(3 * MS);
	give(0, &web, true, REPORTED);
	is("wait behind offline work", blamed(CLASS_OFFLINE, ETL), 3 * MS);
	is("wait behind others", SUM(wait[CLASS_OTHER]), 0);
	is("events without storage", SUM(no_storage), 2);
}

static void offline_work_without_storage_comes_hidden(void)
{
	wake(&desk, 0);
	give(0, &desk, false, REPORTED);
	pass(1 * MS);
	storage = REFUSED;
	wake(&etl, 0);
	give(0, &etl, false, HIDDEN);
	pass(1 * MS);
	wake(&web, 0);
	pass(3 * MS);
	give(0, &web, true, REPORTED);
	is("wait behind offline work", blamed(CLASS_OFFLINE, ETL), 3 * MS);
	is("wait behind others", SUM(wait[CLASS_OTHER]), 0);
	is("hidden", SUM(hidden_ns), 0);
}

/* A new thread gets storage only when it gets its CPU. */
static void woken_without_storage(void)
{
	wake(&etl, 0);
	give(0, &etl, false, REPORTED);
	web2.stored = false;
	web2.state = (struct task_state){};
	storage = REFUSED;
	born(&web2, 0);
	on_wakeup_new(&web2.task);
	pass(5000 * MS);
	storage = GIVEN;
	give(0, &web2, true, REPORTED);
	is("all waits", web2.state.waited, 5000 * MS);
	is("parts of the waits", SUM(wait[CLASS_OTHER]), 5000 * MS);
	is("hidden", SUM(hidden_ns), 5000 * MS);
	pass(1 * MS);
	give(0, &etl, false, REPORTED);
	is("run", web2.state.run, 1 * MS);
}

/* A new thread gets storage only when it leaves its CPU: from then on it is seen. */
static void runs_without_storage(void)
{
	wake(&etl, 0);
	give(0, &etl, false, REPORTED);
	web2.stored = false;
	web2.state = (struct task_state){};
	storage = REFUSED;
	born(&web2, 0);
	on_wakeup_new(&web2.task);
	give(0, &web2, true, REPORTED);
	pass(1 * MS);
	storage = GIVEN;
	give(0, &etl, true, REPORTED);
	pass(4 * MS);
	give(0, &web2, true, REPORTED);
	is("wait behind offline work", blamed(CLASS_OFFLINE, ETL), 4 * MS);
	is("waiters", states[0].waiters, 0);
}

/* A child of a target that is a process, for which the kernel has no storage when it is born, but soon after. */
static void a_child_without_storage(void)
{
	processes = 1;
	wake(&desk, 0);
	give(0, &desk, false, REPORTED);
	join(&desk.state, CLASS_ONLINE);
	storage = REFUSED;
	etl.stored = false;
	etl.state = (struct task_state){};
	born(&etl, 0);
	is("events without storage", SUM(no_storage), 1);
	storage = GIVEN;
	on_wakeup_new(&etl.task);
	is("class of the child", etl.state.process, CLASS_ONLINE);
	is("threads of the target", lives_of[0].threads, 2);
	is("class in the queue", KIND(etl.state.class), CLASS_ONLINE);
}

static struct {
	char *name;
	void (*play)(void);
} sequences[] = {
#define SEQUENCE(name) { #name, name }
	SEQUENCE(all_is_reported),
	SEQUENCE(woken_where_idle_is_hidden),
	SEQUENCE(woken_by_an_interrupt_where_idle_is_hidden),
	SEQUENCE(two_are_woken_where_idle_is_hidden),
	SEQUENCE(woken_where_offline_work_has_left_hidden),
	SEQUENCE(throttled_while_idle_is_reported),
	SEQUENCE(throttled_while_idle_is_hidden),
	SEQUENCE(throttled_while_offline_work_leaves_hidden),
	SEQUENCE(a_hidden_arrival),
	SEQUENCE(two_hidden_runs),
	SEQUENCE(woken_elsewhere_after_an_unseen_run),
	SEQUENCE(woken_after_an_unseen_run),
	SEQUENCE(moved_unseen),
	SEQUENCE(moved_asleep),
	SEQUENCE(offline_work_without_storage),
	SEQUENCE(offline_work_without_storage_comes_hidden),
	SEQUENCE(woken_without_storage),
	SEQUENCE(runs_without_storage),
	SEQUENCE(a_child_without_storage),
};

/* Plays one sequence, or lists them all. */
int main(int count, char **arguments)
{
	for (int i = 0; i < (int)(sizeof(sequences) / sizeof(sequences[0])); i++) {
		if (count < 2) {
			printf("%s\n", sequences[i].name);
		} else if (!strcmp(sequences[i].name, arguments[1])) {
			boot();
			if (sequences[i].play == moved_asleep)
				web.task.on_rq = web.task.se.sched_delayed = 1;
			start();
			pass(1 * MS);
			sequences[i].play();
		}
	}
	return failures > 0;
}
