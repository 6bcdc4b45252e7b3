//! The command `blame`: resolves the targets, runs the probe (a BPF program), and prints its measurement. Changes
//! nothing on the machine.

mod outputs;
pub(super) mod target;

use super::args::Blame;
use crate::context::Context;
use crate::signals;
use anyhow::{Context as _, bail};
use commensal_blame::clients::{self, Client};
use commensal_blame::names::Cgroups;
use commensal_blame::surroundings::Freezes;
use commensal_blame::unattributed::Unattributed;
use commensal_blame::{BlameError, Bounds, Figures, Labels, Report, Scope, Surroundings, WaitProbe};
use commensal_core::actual::CgroupPath;
use commensal_core::text::visible;
use commensal_host::Host;
use outputs::Outputs;
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use target::Named;

/// Interval of live output.
const LIVE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);

/// Measures and prints the report. Status 0; with `--check` 1 when over budget, and 3 when the data is not sufficient
/// to decide.
pub fn run(context: &mut Context, options: &Blame) -> anyhow::Result<u8> {
    let begun = Instant::now();
    let mut outputs = Outputs::new(context, options)?;
    let cgroups = target::look(context)?;
    let who = target::find(context, cgroups.as_ref(), options)?;
    let scope = Scope {
        online: who.online.iter().map(|one| one.subject.clone()).collect(),
        offline: who.offline.iter().chain(&who.known_offline).map(|one| one.subject.clone()).collect(),
        unified: cgroups.as_ref().is_none_or(|found| found.unified),
        verify: options.verify,
        interrupts: !options.no_interrupts,
        commands: target::sees_every_process(context),
        by_target: false,
        max_culprits: None,
    };
    let mut look = Look {
        labels: Labels {
            subjects: names(&who.online),
            against: names(&who.offline),
            users: target::users(context),
        },
        bounds: Bounds {
            blame_ms: options.blame_below.unwrap_or(Bounds::default().blame_ms),
            preempt_us: options.preempt_below.unwrap_or(Bounds::default().preempt_us),
        },
        online: who.online,
        scope,
        cgroups,
        stop: signals::stop_flag(&context.host).context("cannot watch for Ctrl-C")?,
        limit: options.r#for,
        started: Instant::now(),
    };
    let find = begun.elapsed();
    eprintln!("loading the probe…");
    let mut probe = match WaitProbe::attach(&context.host, &look.scope) {
        Ok(probe) => probe,
        Err(error) if error.is_about_targets() => return Err(error.into()),
        Err(error) => return without(context, options, &mut look, &error),
    };
    look.started = Instant::now();
    let before = look.surroundings(context);
    let mut freezes = Freezes::default();
    let (total, ended) = look.watch(context, &mut probe, &mut outputs, &mut freezes)?;
    // Finds groups that appeared during the measurement. The names of groups that were removed meanwhile are known
    // already.
    let looked = Duration::from_nanos(total.time_ns);
    let read = look.started.elapsed().saturating_sub(looked);
    let begun = Instant::now();
    look.learn(context, &total);
    let mut report = look.report(&total);
    report.explain(&total, &freezes.added_to(look.surroundings(context).since(&before)));
    let (names, took) = (begun.elapsed(), probe.took());
    let begun = Instant::now();
    drop(probe);
    let detach = begun.elapsed();
    let clients = look.clients(context, &report);
    if options.json {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let phases_ms = json!({
            "find": ms(find), "load": ms(took.load), "verify": ms(took.verify), "attach": ms(took.attach),
            "look": ms(looked), "read": ms(read), "names": ms(names), "detach": ms(detach),
        });
        let timed = Timed {
            report: &report,
            ended: look.ended_as_json(context, &ended),
            clients: &clients,
            phases_ms,
        };
        println!("{}", commensal_core::text::json_pretty(&timed)?);
    } else if !outputs.takes_stdout() {
        print!("{}", report.text());
        clients.iter().for_each(|client| println!("note: {}", waits(client)));
        look.tell_ended(context, &ended);
    }
    outputs.close(context, &total, &report, &look)?;
    if !options.check {
        return Ok(0);
    }
    Ok(match report.verdict.map(|verdict| verdict.result) {
        Some("within budget") => 0,
        Some("over budget") => 1,
        _ => 3,
    })
}

/// The report for JSON output, with the targets that ended meanwhile and the time that each phase took.
#[derive(Serialize)]
struct Timed<'r> {
    #[serde(flatten)]
    report: &'r Report,
    ended: Vec<serde_json::Value>,
    /// Clients of the targets on this machine that wait far longer than the targets.
    clients: &'r [Client],
    phases_ms: serde_json::Value,
}

/// Targets that have ended, by index, and after which time.
type Ended = BTreeMap<usize, Duration>;

/// One measurement: its targets, names, budgets and time limit.
struct Look {
    labels: Labels,
    bounds: Bounds,
    online: Vec<Named>,
    scope: Scope,
    cgroups: Option<Cgroups>,
    stop: Arc<AtomicBool>,
    limit: Option<Duration>,
    started: Instant,
}

impl Look {
    /// Measures until the time limit is reached, Ctrl-C is pressed, or no target is left. Returns the totals, and the
    /// targets that have ended.
    fn watch(
        &mut self,
        context: &mut Context,
        probe: &mut WaitProbe,
        outputs: &mut Outputs,
        freezes: &mut Freezes,
    ) -> anyhow::Result<(Figures, Ended)> {
        let first = probe.beginning();
        freezes.find(&mut context.host, self.cgroups.as_ref(), &self.scope.online);
        let (mut last, mut next) = (first.clone(), Instant::now() + LIVE);
        let mut ended = Ended::new();
        while ended.len() < self.online.len() && !self.over() {
            let left = self.limit.map_or(POLL, |limit| limit.saturating_sub(self.started.elapsed()));
            std::thread::sleep(POLL.min(left));
            ended = self.ended(context, Some(probe), ended);
            freezes.look(&mut context.host, self.started.elapsed());
            if Instant::now() < next || self.over() {
                continue;
            }
            next += LIVE;
            freezes.find(&mut context.host, self.cgroups.as_ref(), &self.scope.online);
            probe.gather(&context.host)?;
            if outputs.live() {
                let now = probe.read(&context.host)?;
                self.learn(context, &now);
                outputs.show(context, &now.since(&last), &now.since(&first), self)?;
                last = now;
            }
        }
        probe.stop(&context.host)?;
        Ok((probe.read(&context.host)?.since(&first), self.ended(context, Some(probe), ended)))
    }

    /// Adds the targets that have ended meanwhile to those of which it is known.
    fn ended(&mut self, context: &mut Context, probe: Option<&WaitProbe>, known: Ended) -> Ended {
        let elapsed = self.started.elapsed();
        target::ended(context, &mut self.cgroups, probe, &self.online, (known, elapsed))
    }

    fn replaced(&self, context: &mut Context, ended: &Ended) -> BTreeSet<usize> {
        target::replaced(context, self.cgroups.as_ref(), &self.online, ended.keys().copied())
    }

    fn ended_as_json(&self, context: &mut Context, ended: &Ended) -> Vec<serde_json::Value> {
        let replaced = self.replaced(context, ended);
        let one = |(index, after): (&usize, &Duration)| {
            let named = &self.online[*index];
            json!({
                "name": visible(&named.name),
                "after_s": after.as_secs_f64(),
                "replaced": replaced.contains(index),
            })
        };
        ended.iter().map(one).collect()
    }

    fn tell_ended(&self, context: &mut Context, ended: &Ended) {
        let replaced = self.replaced(context, ended);
        for (index, after) in ended {
            let named = &self.online[*index];
            let another = match replaced.contains(index) {
                true => "; another one has been started in its place, and is not counted",
                false => "",
            };
            println!("note: {} ended after {:.1} s{another}", visible(&named.name), after.as_secs_f64());
        }
    }

    fn over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.limit.is_some_and(|limit| self.started.elapsed() >= limit)
    }

    fn surroundings(&self, context: &mut Context) -> Surroundings {
        Surroundings::read(&mut context.host, self.cgroups.as_ref(), &self.scope.online)
    }

    /// Reads the cgroups again if `figures` has culprits whose names are unknown.
    fn learn(&mut self, context: &mut Context, figures: &Figures) {
        let Some(before) = self.cgroups.as_mut() else { return };
        let mut ids = figures.culprits.keys().filter_map(|culprit| culprit.cgroup);
        if ids.all(|id| id == 0 || before.path(id).is_some()) {
            return;
        }
        if let Ok(Some(now)) = target::look(context) {
            before.learn(&now);
        }
    }

    fn name(&self, id: u64) -> String {
        match &self.cgroups {
            Some(cgroups) => cgroups.name(id),
            None => format!("cgroup {id}"),
        }
    }

    /// Finds clients of the targets on this machine that wait far longer than the targets.
    fn clients(&self, context: &mut Context, report: &Report) -> Vec<Client> {
        let paths: Vec<&CgroupPath> = (self.online.iter())
            .flat_map(|one| one.subject.cgroups())
            .filter_map(|id| self.cgroups.as_ref()?.path(*id))
            .collect();
        let processes = self.online.iter().flat_map(|one| one.subject.processes());
        let processes: BTreeSet<u32> = processes.map(|process| process.pid).collect();
        let is_target = |host: &dyn Host, pid: u32| {
            let text = || host.read_file(Path::new(&format!("/proc/{pid}/cgroup"))).unwrap_or_default();
            // Each line ends with a path after the second colon.
            let inside = |line: &str| {
                let of = line.splitn(3, ':').nth(2).map(CgroupPath::new);
                of.is_some_and(|of| paths.iter().any(|path| path.contains(&of)))
            };
            processes.contains(&pid) || (!paths.is_empty() && text().lines().any(inside))
        };
        clients::waiting(&mut context.host, &is_target, report.wait_ms_per_cpu_s.unwrap_or(0.0))
    }

    fn report(&self, figures: &Figures) -> Report {
        Report::new(figures, &self.labels, self.bounds, &|id| self.name(id))
    }
}

/// A sentence about a client that waits.
fn waits(client: &Client) -> String {
    let (name, ms) = (visible(&client.name), client.wait_ms_per_cpu_s);
    format!(
        "{name} ({}) is a client on this machine, and waited {ms:.0} ms per CPU-second for a CPU itself: what it measures is \
         partly its own wait. If the service is in a group, give its client the same weight: commensal run --group GROUP -- \
         {name} …",
        client.pid
    )
}

fn names(all: &[Named]) -> Vec<String> {
    all.iter().map(|one| one.name.clone()).collect()
}

/// Reports run delay only: how long targets waited for a CPU, but not which tasks held it.
fn without(
    context: &mut Context,
    options: &Blame,
    look: &mut Look,
    error: &BlameError,
) -> anyhow::Result<u8> {
    if options.check || options.html.is_some() || options.svg.is_some() || options.prometheus.is_some() {
        bail!("{error}; without the probe, blame can neither name who held the CPU nor give a verdict");
    }
    eprintln!(
        "commensal: {error}\n  the following is the kernel's run delay: how long the targets waited, but not what \
         occupied the CPU"
    );
    let mut sums = Unattributed::default();
    let mut read = |context: &mut Context, look: &Look| {
        sums.read(&mut context.host, &look.scope.online, look.cgroups.as_ref())
    };
    read(context, look).context(
        "this kernel does not count run delay either (/proc/PID/task/TID/schedstat, CONFIG_SCHED_INFO)",
    )?;
    // Not when this program began to load the probe: what refuses it may do so late.
    look.started = Instant::now();
    let mut ended = Ended::new();
    while ended.len() < look.online.len() && !look.over() {
        std::thread::sleep(POLL);
        ended = look.ended(context, None, ended);
    }
    let total =
        read(context, look).context("the run delay of the targets' threads could not be read at the end")?;
    let (run_s, wait_ms) = (total.run_ns as f64 / 1e9, total.delay_ns as f64 / 1e6);
    let per = (run_s > 0.0).then(|| wait_ms / run_s);
    let (subjects, seconds) = (&look.labels.subjects, look.started.elapsed().as_secs_f64());
    if options.json {
        let value = json!({
            "subjects": subjects, "seconds": seconds, "run_s": run_s, "wait_ms": wait_ms, "wait_ms_per_cpu_s": per,
            "unattributed": error.to_string(),
        });
        println!("{}", commensal_core::text::json_pretty(&value)?);
        return Ok(0);
    }
    println!(
        "{}: {run_s:.2} s on a CPU and {wait_ms:.1} ms waiting for one in {seconds:.1} s",
        subjects.join(", ")
    );
    if let Some(per) = per {
        println!(
            "wait per CPU-second {per:.1} ms, without its causes; a wake-up that preempts the running task at once \
             counts as no wait"
        );
    }
    look.tell_ended(context, &ended);
    Ok(0)
}

/// Whether standard output is a terminal.
fn on_a_terminal() -> bool {
    std::io::stdout().is_terminal()
}
