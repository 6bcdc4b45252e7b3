//! The agent as plain data.

use super::{Agent, COST_EVERY, Phase};
use crate::sense::Sample;
use crate::snapshot::{self, Snapshot};
use crate::view;
use commensal_reconcile::queue;
use std::sync::Arc;
use std::time::Duration;

impl Agent<'_> {
    pub(super) fn snapshot(&mut self, sample: Sample, took: Duration, problems: Vec<String>) -> Snapshot {
        let now = self.now();
        let lease = self.lease.as_ref().map(|lease| snapshot::Lease {
            time_ms: u64::try_from(lease.time.as_millis()).unwrap_or(u64::MAX),
            guard_pid: lease.link.as_ref().and_then(crate::guard::Link::pid),
        });
        let planned = self.actuation.last.as_ref().map(|round| &round.planned);
        let mut shown = view::of(&self.reconciler.survey.machine, planned, &self.actuation.fixed, &sample);
        shown.machine.memory_available_bytes = self.sensing.available.map(|bytes| bytes.0);
        shown.controllers.clone_from(&self.decisions.decided.shown);
        view::explain(&mut shown.groups, &self.decisions.decided);
        view::judged(&mut shown.groups, self.sensing.shown_judged.as_ref());
        let missed = self.sensing.blame_monitor.absent.as_ref().filter(|_| self.options.probe);
        if let (Some(_), Some(why)) = (self.target_us(), missed) {
            shown.problems.push(format!("who makes online groups wait is not known: {why}"));
        }
        shown.schema = snapshot::SCHEMA.to_owned();
        shown.version.clone_from(&self.options.version);
        shown.pid = std::process::id();
        shown.uptime_s = self.publishing.started.elapsed().as_secs_f64();
        shown.ticks = self.publishing.ticks;
        shown.interval_ms = u64::try_from(self.options.interval.as_millis()).unwrap_or(u64::MAX);
        shown.tick_ms = took.as_secs_f64() * 1e3;
        shown.config = self.groups.state.clone();
        shown.lease = lease;
        shown.drift =
            planned.map(|planned| self.reconciler.drift(now.ms, &planned.actual)).unwrap_or_default();
        shown.actions = Arc::clone(
            self.publishing
                .shown_actions
                .get_or_insert_with(|| Arc::new(self.publishing.actions.iter().cloned().collect())),
        );
        if self.publishing.ticks % COST_EVERY == 1 {
            self.publishing.cost = view::cost(self.host);
        }
        shown.cost = snapshot::Cost {
            writes: self.reconciler.writes,
            late_ticks: self.publishing.late_ticks,
            audit_lost: self.publishing.audit.lost(),
            ..self.publishing.cost.clone()
        };
        shown.paused = self.actuation.phase == Phase::Paused;
        shown.canary = self.canary_shown();
        shown.canary_report.clone_from(&self.canary_report);
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
        shown.problems.extend(problems);
        shown.at = now.text;
        shown
    }
}
