//! The command `sched status`: the scheduler's counters, the kernel's view of the scheduler, and the probe's
//! independent measurement.

use super::ask::PATIENCE;
use super::probed::{self, Probed};
use super::record::{self, Recorded};
use crate::cli::sched_args::SchedStatus;
use crate::context::Context;
use anyhow::Context as _;
use commensal_core::scheduler::protocol::Status;
use commensal_core::scheduler::{Mode, SOCKET};
use commensal_host::Host;
use commensal_sensors::sched_ext::{Kernel, State};
use commensal_sensors::scheduler::raw_status;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// State of the loaded scheduler at one moment.
struct Known {
    kernel: Kernel,
    /// The scheduler's status, raw and parsed.
    status: Option<(Value, Status)>,
    /// The recorded process, if that process does not respond.
    silent: Option<Recorded>,
}

impl Known {
    fn look(host: &mut dyn Host, state: &Path) -> anyhow::Result<Known> {
        let status = match raw_status(host, &state.join(SOCKET), PATIENCE) {
            Err(error) if error.is_nobody() => None,
            raw => {
                let raw = raw.context("the scheduler cannot be reached")?;
                let read = Status::read(raw.clone()).map_err(anyhow::Error::msg)?;
                Some((raw, read))
            }
        };
        let silent = if status.is_none() { record::of(host, state) } else { None };
        Ok(Known { kernel: Kernel::read(host), status, silent })
    }

    fn status(&self) -> Option<&Status> {
        self.status.as_ref().map(|(_, status)| status)
    }
}

/// Prints the status.
pub fn run(context: &mut Context, options: &SchedStatus) -> anyhow::Result<u8> {
    let state = context.state_dir.clone();
    let (known, probed) = seen(context, &state, |context, status| match options.r#for.is_zero() {
        true => Probed::NotAsked,
        false => probed::look(context, status, options.r#for),
    })?;
    if options.json {
        println!("{}", commensal_core::text::json_pretty(&as_json(&known, &probed, &state))?);
    } else {
        print!("{}", text(&known, &probed, &state));
    }
    Ok(code(&known))
}

/// Reads the state and runs the probe. If the probe took time, reads the state again, so that both describe the same
/// moment.
fn seen<H: Host>(
    context: &mut Context<H>,
    state: &Path,
    probe: impl FnOnce(&mut Context<H>, &Status) -> Probed,
) -> anyhow::Result<(Known, Probed)> {
    let known = Known::look(&mut context.host, state)?;
    let Some(status) = known.status() else { return Ok((known, Probed::NotAsked)) };
    match probe(context, status) {
        probed @ Probed::Seen(_) => Ok((Known::look(&mut context.host, state)?, probed)),
        probed => Ok((known, probed)),
    }
}

/// Exit status: 0 when the scheduler works, 1 when it is loaded but does not work, 2 when none is loaded.
fn code(known: &Known) -> u8 {
    let enabled = known.kernel.state == Some(State::Enabled);
    match known.status() {
        Some(status) => u8::from(status.mode != Mode::Running || !enabled),
        None if known.kernel.foreign().is_some() => u8::from(!enabled),
        None => 2,
    }
}

fn of_kernel(kernel: &Kernel) -> Value {
    json!({
        "release": kernel.release, "state": kernel.state.as_ref().map(ToString::to_string), "ops": kernel.ops,
        "nr_rejected": kernel.rejected, "switch_all": kernel.whole, "enable_seq": kernel.loads,
    })
}

/// The status as JSON.
fn as_json(known: &Known, probed: &Probed, state_dir: &Path) -> Value {
    json!({
        "kernel": of_kernel(&known.kernel), "scheduler": known.status.as_ref().map(|(raw, _)| raw),
        "probe": probed.as_json(), "state_dir": state_dir,
        "killed": known.silent.as_ref().filter(|silent| !silent.runs).map(|silent| silent.pid),
    })
}

/// The status as text.
fn text(known: &Known, probed: &Probed, state_dir: &Path) -> String {
    let mut out = String::new();
    let kernel = &known.kernel;
    match known.status() {
        Some(status) => scheduler(&mut out, status),
        None => nobody(&mut out, known, state_dir),
    }
    let Some(state) = &kernel.state else {
        kernel.obstacles().iter().for_each(|obstacle| {
            let _ = writeln!(out, "kernel      {}", obstacle.strip_prefix("kernel ").unwrap_or(obstacle));
        });
        return out;
    };
    let _ = write!(out, "kernel      {}: sched_ext is {state}", kernel.release);
    if let Some(ops) = &kernel.ops {
        let _ = write!(out, ", scheduler {ops}");
    }
    match kernel.whole {
        Some(true) if kernel.busy() => out.push_str(", for all threads"),
        Some(false) if kernel.busy() => out.push_str(", only for threads that requested it"),
        _ => {}
    }
    let count = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let _ = writeln!(
        out,
        "; {} threads refused, {} schedulers since the boot",
        count(kernel.rejected),
        count(kernel.loads)
    );
    out.push_str(&probed.text());
    out
}

/// The text when no process responds: the socket that was tried, and the recorded process.
fn nobody(out: &mut String, known: &Known, state_dir: &Path) {
    let _ = match known.silent {
        None if known.kernel.foreign().is_some() => writeln!(
            out,
            "scheduler   {} of another program; to unload it, end that program (Ctrl-C or SIGTERM to `commensal sched \
             load --with`)",
            known.kernel.foreign().unwrap_or_default()
        ),
        None => writeln!(
            out,
            "scheduler   commensal's is not loaded (state directory {}; --state-dir selects another)",
            state_dir.display()
        ),
        Some(Recorded { pid, runs: true }) => {
            writeln!(out, "scheduler   process {pid} exists but does not respond: it is starting or exiting")
        }
        Some(Recorded { pid, runs: false }) => writeln!(
            out,
            "scheduler   none: its process {pid} was killed, so the kernel unloaded the scheduler; `commensal sched \
             unload` reverts what it had changed"
        ),
    };
}

fn scheduler(out: &mut String, status: &Status) {
    let mode = status.mode.words();
    let hold_off_us = status.orders.0.values().map(|orders| orders.hold_off_us).max().unwrap_or(0);
    let hold_off = if hold_off_us > 0 { format!(", hold-off {hold_off_us} us") } else { String::new() };
    let _ = writeln!(
        out,
        "scheduler   {mode}, for {} s; process {}, {} threads, orders {}{hold_off}",
        status.loaded_s, status.pid, status.threads, status.generation
    );
    let c = &status.counters;
    let s = |ns: u64| ns as f64 / 1e9;
    let [idle, other, offline, online, expelling] = c.ns.map(s);
    let _ = writeln!(
        out,
        "CPU time    offline {offline:.1} s, online {online:.1} s, expelling {expelling:.1} s, other {other:.1} s, \
         idle {idle:.1} s"
    );
    if let Some(overlap) = c.overlap() {
        let us = |ns: u64| ns as f64 / 1e3;
        let _ = writeln!(
            out,
            "noise       offline beside expelling threads {:.2} % of their time (longest {:.0} us)\n\
             evictions   {} ({} by the tick), mean {:.0} us, longest {:.0} us; {} refused, {} resumed",
            overlap * 100.0,
            us(c.overlap_max_ns),
            c.evictions,
            c.by_ticks,
            c.evict_mean_us().unwrap_or(0.0),
            us(c.evict_max_ns),
            c.refusals,
            c.resumes
        );
    } else {
        out.push_str("noise       no thread of an expelling group has run\n");
    }
    let _ = writeln!(
        out,
        "made way    {} CPUs vacated for waiting online threads, {} CPUs offered by the kernel declined; {} freezes, \
         {} reloads",
        c.vacated, c.declined, status.freezes, status.reloads
    );
    if let Some(ejected) = &status.ejected {
        let _ = writeln!(out, "ejected     {ejected}");
    }
    for group in &status.groups {
        let missing = if group.found { "" } else { " (not there)" };
        let under = if group.fallback { "cpu.idle underneath" } else { "nothing underneath" };
        let _ = writeln!(
            out,
            "group       {}{missing}: {:.1} % of offline time, {} threads ({} wait), {:.1} s run, longest wait {:.0} \
             ms, {under}",
            group.cgroup,
            group.share * 100.0,
            group.threads,
            group.reading.queued,
            s(group.reading.run_ns),
            group.reading.waited_max_ns.max(group.reading.oldest_ns) as f64 / 1e6
        );
    }
    for problem in &status.problems {
        let _ = writeln!(out, "problem     {problem}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::probed::LookSums;
    use super::*;
    use commensal_blame::Figures;
    use commensal_host::fake::FakeHost;

    const STATE: &str = "/var/lib/commensal";

    fn known(kernel: Kernel, status: Option<Status>) -> Known {
        Known { kernel, status: status.map(|status| (Value::Null, status)), silent: None }
    }

    fn told(known: &Known, probed: &Probed) -> String {
        text(known, probed, Path::new(STATE))
    }

    fn kernel(state: &str) -> Kernel {
        kernel_with(state, "commensal_0.1")
    }

    fn kernel_with(state: &str, ops: &str) -> Kernel {
        let host = FakeHost::v2(2, 1 << 30);
        for (file, text) in [
            ("state", state),
            ("root/ops", ops),
            ("nr_rejected", "3"),
            ("switch_all", "0"),
            ("enable_seq", "7"),
        ] {
            host.set_file(format!("/sys/kernel/sched_ext/{file}"), text);
        }
        Kernel::read(&host)
    }

    fn running() -> Status {
        serde_json::from_str(
            r#"{"ok":true,"pid":70,"mode":"running","generation":2,"loaded_s":5,"threads":4,"realtime":0,
                "orders":{"commensal":{"owner":"commensal","hold_off_us":30,"groups":[{"cgroup":"/g","class":"offline"}]}},
                "groups":[{"cgroup":"/g","found":true,"share":0.25,"run_ns":1500000000,"slots":1}],"problems":["it creaks"],
                "counters":{"ns":[1,2,3000000000,4,5],"expelling_ns":1000000000,"overlap_ns":7000000,"evictions":10,
                "evict_ns":500000,"by_ticks":1,"let_die":9}}"#,
        )
        .unwrap()
    }

    #[test]
    fn it_tells_the_scheduler_the_kernel_and_the_probe() {
        let said = told(&known(kernel("enabled"), Some(running())), &Probed::NoSubject);
        for part in [
            "running, for 5 s; process 70, 4 threads, orders 2, hold-off 30 us",
            "offline 3.0 s",
            "0.70 % of their time",
            "10 (1 by the tick), mean 50 us",
            "/g: 25.0 % of offline time",
            "1.5 s run",
            "problem     it creaks",
            "sched_ext is enabled, scheduler commensal_0.1, only for threads that requested it; 3 threads refused, 7 \
             schedulers",
            "probe       no online group",
        ] {
            assert!(said.contains(part), "{said}lacks {part:?}");
        }
        let said = told(&known(Kernel::read(&FakeHost::v2(2, 1 << 30)), None), &Probed::NotAsked);
        for part in
            ["commensal's is not loaded", "state directory /var/lib/commensal", "CONFIG_SCHED_CLASS_EXT"]
        {
            assert!(said.contains(part), "{said}lacks {part:?}");
        }
    }

    #[test]
    fn json_says_why_there_is_no_probe() {
        let known = known(kernel("enabled"), Some(running()));
        let json = as_json(&known, &Probed::Absent("no BTF".to_owned()), Path::new(STATE));
        assert_eq!(json["probe"], json!({ "absent": "no BTF" }));
    }

    #[test]
    fn one_that_was_killed_is_told_with_the_way_to_put_back_what_it_changed() {
        let mut host = FakeHost::v2(2, 1 << 30);
        let state = Path::new(STATE);
        let pid = host.add_process(&[]);
        let start_ticks = host.process(pid).unwrap().start_ticks;
        record::tests::keep(&mut host, state, pid, start_ticks);
        let check = |host: &mut FakeHost, part: &str| {
            let known = Known::look(host, state).unwrap();
            let said = told(&known, &Probed::NotAsked);
            assert!(said.contains(part) && code(&known) == 2, "{said}lacks {part:?}");
        };
        check(&mut host, "exists but does not respond");
        host.reuse_pid(pid, &[]);
        check(&mut host, "was killed, so the kernel unloaded the scheduler; `commensal sched unload`");
    }

    /// The scheduler's counters are read again at the end of the probe's measurement.
    #[test]
    fn the_scheduler_is_asked_again_after_the_probe() {
        let host = FakeHost::v2(2, 1 << 30);
        let mut generation = 0;
        host.serve(Path::new(STATE).join("sched.sock"), move |_| {
            generation += 1;
            Some(format!("{{\"ok\":true,\"pid\":7,\"mode\":\"running\",\"generation\":{generation}}}\n"))
        });
        let state = Path::new(STATE);
        let mut context = Context {
            host,
            state_dir: state.to_owned(),
            prefix: "commensal".to_owned(),
            cgroup_root: None,
            beside_others: false,
            engines: None,
        };
        let mut check = |probed: Probed, generation: u64| {
            let (known, _) = seen(&mut context, state, |_, _| probed).unwrap();
            assert_eq!(known.status().unwrap().generation, generation);
        };
        check(Probed::NotAsked, 1);
        check(Probed::NoSubject, 2);
        check(Probed::Seen(Box::new(LookSums::new(&Figures::default()))), 4);
    }

    #[test]
    fn the_exit_status_says_whether_it_does_its_work() {
        let check = |state: &str, mode: Option<Mode>, expect: u8| {
            let status = mode.map(|mode| Status { mode, ..running() });
            assert_eq!(code(&known(kernel(state), status)), expect, "{state} {mode:?}");
        };
        check("enabled", Some(Mode::Running), 0);
        check("enabled", Some(Mode::Frozen), 1);
        check("disabled", Some(Mode::Ejected), 1);
        check("disabled", Some(Mode::GivenUp), 1);
        // The scheduler's process has not noticed the ejection yet.
        check("disabled", Some(Mode::Running), 1);
        check("disabled", None, 2);
        // A scheduler of another state directory.
        check("enabled", None, 2);
        for (state, expect) in [("enabled", 0), ("disabling", 1), ("disabled", 2)] {
            let foreign = known(kernel_with(state, "simple"), None);
            assert_eq!(code(&foreign), expect, "{state}");
            let said = told(&foreign, &Probed::NotAsked);
            assert_eq!(said.contains("simple of another program"), expect < 2, "{said}");
        }
    }
}
