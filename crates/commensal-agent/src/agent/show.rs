//! Makes the agent's snapshot for status displays.

use super::actuation::Phase;
use super::{Agent, FIRST_TICKS};
use crate::sense::Sample;
use crate::snapshot::{self, Snapshot};
use crate::view;
use commensal_reconcile::queue;
use std::time::Duration;

impl Agent<'_> {
    /// Makes the snapshot. `failed` are those of the problems because of which something requested is not in force.
    pub(super) fn snapshot(
        &mut self,
        sample: Sample,
        took: Duration,
        (problems, failed): (Vec<String>, Vec<String>),
    ) -> Snapshot {
        let now = self.ticks.now();
        let mut shown = view::of(
            &self.reconciler.survey.machine,
            self.actuation.planned(),
            &self.actuation.facts.fixed,
            &sample,
        );
        shown.machine.memory_available_bytes = self.sensing.available.map(|bytes| bytes.0);
        shown.controllers.clone_from(&self.decisions.decided.shown);
        view::explain(&mut shown.groups, &self.decisions.decided, &mut self.actuation.facts.fixed);
        let preemption_p99_us =
            self.sensing.shown_waits.as_ref().and_then(|seen| seen.online.preemption_p99_us);
        view::waits(&mut shown.groups, preemption_p99_us, &self.sensing.blame_monitor.parts);
        self.sensing.levels.show(now.ms, &mut shown.groups);
        let missed = self.sensing.blame_monitor.absent.as_ref().filter(|_| self.options.probe);
        // The probe is loaded once the first round has made the cgroups.
        let settled = self.ticks.count >= FIRST_TICKS;
        if let (true, Some(_), Some(why)) = (settled, self.groups.compiled.target_us(), missed) {
            shown
                .problems
                .push(format!("waits of online groups cannot be attributed to offline work: {why}"));
        }
        shown.no_probe = self.sensing.blame_monitor.refused().map(str::to_owned);
        shown.schema = snapshot::SCHEMA.to_owned();
        shown.version.clone_from(&self.options.version);
        shown.pid = std::process::id();
        shown.uptime_s = self.ticks.uptime().as_secs_f64();
        shown.ticks = self.ticks.count;
        shown.interval_ms = u64::try_from(self.options.interval.as_millis()).unwrap_or(u64::MAX);
        shown.tick_ms = took.as_secs_f64() * 1e3;
        shown.config = self.groups.state.clone();
        shown.lease = self.upkeep.shown();
        shown.safe_state.clone_from(&self.publishing.safe_state);
        let planned = self.actuation.planned();
        shown.drift =
            planned.map(|planned| self.reconciler.drift(now.ms, &planned.actual)).unwrap_or_default();
        shown.actions = self.publishing.actions();
        shown.cost = snapshot::Cost {
            writes: self.reconciler.writes,
            late_ticks: self.ticks.late,
            ..self.publishing.cost(self.host, self.ticks.count)
        };
        shown.reactions = self.sensing.early_tick.reactions;
        shown.paused = self.actuation.phase == Phase::Paused;
        shown.canary = self.canary.shown(now.ms);
        shown.canary_report.clone_from(&self.canary.report);
        let specs = self.groups.compiled.groups.iter();
        for (spec, queue) in specs.filter_map(|spec| Some((spec, spec.admission()?))) {
            let group = shown.groups.iter_mut().find(|group| spec.name.as_str() == group.name);
            let Some(group) = group else { continue };
            let Ok(load) = queue::load(self.host, &self.reconciler.instance.state_dir, &spec.name) else {
                continue;
            };
            let (max_concurrency, max_size) = queue.bounds();
            group.queue = Some(snapshot::Queue {
                running: load.running,
                waiting: load.waiting,
                max_concurrency,
                max_size,
                held: load.held,
            });
        }
        shown.read_back_s = self.actuation.outcome.ago().map(|ago| ago.as_secs_f64());
        shown.problems.extend(problems);
        shown.failed = failed;
        shown.at = now.text;
        shown
    }
}
