//! `sched status`: what the scheduler counts, what the kernel says of it, and what the judge sees independently.

use super::judged::{self, Judged};
use super::socket::{self, Asked};
use super::with::{self, Other};
use crate::cli::sched_args::SchedStatus;
use crate::context::Context;
use commensal_core::scheduler::Mode;
use commensal_core::scheduler::protocol::Status;
use commensal_sensors::sched_ext::{Kernel, State};
use serde_json::{Value, json};
use std::fmt::Write;

/// Tells all of it.
pub fn run(context: &mut Context, options: &SchedStatus) -> anyhow::Result<u8> {
    let kernel = Kernel::read(&context.host);
    let other = with::look(&mut context.host, &context.state_dir)?;
    let raw = match socket::raw_status(&context.host, &context.state_dir) {
        Ok(raw) => Some(raw),
        Err(Asked::Nobody) => None,
        Err(Asked::Trouble(error)) => return Err(error.context("the scheduler cannot be asked")),
    };
    let status: Option<Status> = raw.clone().map(serde_json::from_value).transpose()?;
    let judged = match &status {
        Some(status) if !options.r#for.is_zero() => judged::look(context, status, options.r#for),
        _ => Judged::NotAsked,
    };
    if options.json {
        let value = json!({
            "kernel": of_kernel(&kernel), "scheduler": raw, "other": other, "judge": judged.as_json(),
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
    } else {
        print!("{}", text(&kernel, status.as_ref(), other.as_ref(), &judged));
    }
    Ok(code(&kernel, status.as_ref(), other.as_ref()))
}

/// 0 it runs, 1 it is loaded and does not do its work, 2 nothing is loaded.
fn code(kernel: &Kernel, status: Option<&Status>, other: Option<&Other>) -> u8 {
    let enabled = kernel.state == Some(State::Enabled);
    match (status, other) {
        (Some(status), _) => u8::from(status.mode != Mode::Running || !enabled),
        (None, Some(other)) if other.lives() => u8::from(!enabled),
        _ => 2,
    }
}

fn of_kernel(kernel: &Kernel) -> Value {
    json!({
        "release": kernel.release, "state": kernel.state.as_ref().map(ToString::to_string), "ops": kernel.ops,
        "nr_rejected": kernel.rejected, "switch_all": kernel.whole, "enable_seq": kernel.loads,
    })
}

/// For people.
fn text(kernel: &Kernel, status: Option<&Status>, other: Option<&Other>, judged: &Judged) -> String {
    let mut out = String::new();
    match (status, other) {
        (Some(status), _) => scheduler(&mut out, status),
        (None, Some(other)) => out.push_str(&other.text()),
        (None, None) => out.push_str("scheduler   none of commensal is loaded with this state directory\n"),
    }
    let Some(state) = &kernel.state else {
        kernel.obstacles().iter().for_each(|obstacle| {
            let _ = writeln!(out, "kernel      {obstacle}");
        });
        return out;
    };
    let _ = write!(out, "kernel      {}: sched_ext is {state}", kernel.release);
    if let Some(ops) = &kernel.ops {
        let _ = write!(out, ", scheduler {ops}");
    }
    match kernel.whole {
        Some(true) if kernel.busy() => out.push_str(", every thread under it"),
        Some(false) if kernel.busy() => out.push_str(", only threads under it that asked"),
        _ => {}
    }
    let count = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let _ = writeln!(
        out,
        "; {} threads refused, {} schedulers since the boot",
        count(kernel.rejected),
        count(kernel.loads)
    );
    out.push_str(&judged.text());
    out
}

fn scheduler(out: &mut String, status: &Status) {
    let mode = match status.mode {
        Mode::Starting => "starting",
        Mode::Running => "running",
        Mode::Frozen => "offline groups are frozen: online work leaves them nothing",
        Mode::Ejected => "taken off by the kernel, to be loaded again; the fallback holds",
        Mode::GivenUp => "taken off by the kernel for good; the fallback holds",
    };
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
        "CPU time    offline {offline:.1} s, online {online:.1} s, expelling {expelling:.1} s, other {other:.1} s, idle {idle:.1} s"
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
        "made way    {} CPUs vacated for waiting online threads, {} offers of the kernel declined; {} freezes, {} reloads",
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
            "group       {}{missing}: {:.1} % of offline time, {} threads ({} wait), {:.1} s run, longest wait {:.0} ms, {under}",
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
    use super::*;
    use commensal_host::fake::FakeHost;

    fn kernel(state: &str) -> Kernel {
        let host = FakeHost::v2(2, 1 << 30);
        for (file, text) in [
            ("state", state),
            ("root/ops", "commensal_0.1"),
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
    fn it_tells_the_scheduler_the_kernel_and_the_judge() {
        let told = text(&kernel("enabled"), Some(&running()), None, &Judged::NoSubject);
        for part in [
            "running, for 5 s; process 70, 4 threads, orders 2, hold-off 30 us",
            "offline 3.0 s",
            "0.70 % of their time",
            "10 (1 by the tick), mean 50 us",
            "/g: 25.0 % of offline time",
            "1.5 s run",
            "problem     it creaks",
            "sched_ext is enabled, scheduler commensal_0.1, only threads under it that asked; 3 threads refused, 7 schedulers",
            "judge       no online group",
        ] {
            assert!(told.contains(part), "{told}lacks {part:?}");
        }
        let told = text(&Kernel::read(&FakeHost::v2(2, 1 << 30)), None, None, &Judged::NotAsked);
        assert!(told.contains("none of commensal") && told.contains("CONFIG_SCHED_CLASS_EXT"), "{told}");
    }

    #[test]
    fn the_exit_status_says_whether_it_does_its_work() {
        let check = |state: &str, mode: Option<Mode>, expect: u8| {
            let status = mode.map(|mode| Status { mode, ..running() });
            assert_eq!(code(&kernel(state), status.as_ref(), None), expect, "{state} {mode:?}");
        };
        check("enabled", Some(Mode::Running), 0);
        check("enabled", Some(Mode::Frozen), 1);
        check("disabled", Some(Mode::Ejected), 1);
        check("disabled", Some(Mode::GivenUp), 1);
        // Its process has not noticed yet.
        check("disabled", Some(Mode::Running), 1);
        check("disabled", None, 2);
        // Somebody else's.
        check("enabled", None, 2);
    }
}
