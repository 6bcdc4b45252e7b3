//! Formats a snapshot in a few lines: the settings in force, and the problems. Pure.

use crate::canary::Shown;
use crate::explain::{is_of, lists};
use crate::publish::is_stale;
use crate::snapshot::{Config, Drift, Group, LastSafeState, Machine, Snapshot, Unmet, WaitPart};
use commensal_core::text::{Align, columns, count, printable, visible};
use commensal_core::units::Bytes;
use std::fmt::Write as _;
use std::time::Duration;

/// Number of actions that are shown.
const ACTIONS: usize = 5;
/// Minimum wait that is shown (ms per second).
const LEAST_WAIT_MS: f64 = 0.05;

/// Whether everything requested is in force: no problem, nothing unmet, nothing changed by another program, and the
/// loop does not hang.
#[must_use]
pub fn is_well(snapshot: &Snapshot, age: Duration) -> bool {
    problems(snapshot, age).is_empty() && failures(snapshot, age).is_empty()
}

/// What was requested and is not in force, or not known to be, a line each. Other problems do not count, such as lost
/// lines of the audit log.
#[must_use]
pub fn failures(snapshot: &Snapshot, age: Duration) -> Vec<String> {
    let changed = snapshot.drift.iter().filter(|drift| !drift.back).map(|drift| {
        format!("{}/{}: {} wanted, {} found", visible(&drift.path), drift.file, drift.want, drift.found)
    });
    let mut failures = obstacles(snapshot, age);
    failures.extend(snapshot.failed.iter().map(|problem| printable(problem).into_owned()));
    failures.extend(changed);
    failures.extend(snapshot.unmet.iter().map(unmet));
    failures
}

pub(crate) fn unmet(unmet: &Unmet) -> String {
    let [what, because] = [&unmet.what, &unmet.because].map(|text| visible(text));
    format!("{}: {what}: {because}", unmet.group)
}

/// Formats the status for a terminal. `age` is the time since the snapshot was made.
#[must_use]
pub fn text(snapshot: &Snapshot, age: Duration) -> String {
    let mut out = String::new();
    agent(&mut out, snapshot);
    machine(&mut out, &snapshot.machine);
    let problems = problems(snapshot, age);
    if !problems.is_empty() {
        out.push_str("\nproblems\n");
    }
    for problem in &problems {
        // The mistakes of a file have a line each.
        let _ = writeln!(out, "  {}", problem.replace('\n', "\n  "));
    }
    groups(&mut out, &snapshot.groups, &snapshot.drift);
    queues(&mut out, &snapshot.groups);
    waits(&mut out, snapshot);
    let first = snapshot.actions.len().saturating_sub(ACTIONS);
    lists(&mut out, &snapshot.unmet, &snapshot.drift, &snapshot.actions[first..]);
    out
}

/// Current problems, including those that only the reader of the snapshot can notice, such as an old snapshot.
#[must_use]
pub fn problems(snapshot: &Snapshot, age: Duration) -> Vec<String> {
    let mut problems = obstacles(snapshot, age);
    if snapshot.lease.as_ref().is_some_and(|lease| lease.guard_pid.is_none()) {
        problems.push("there is no guard: nothing sets the safe state if the agent dies".to_owned());
    }
    problems.extend(snapshot.problems.iter().map(|problem| printable(problem).into_owned()));
    problems
}

/// Why nothing is known about what is in force, or newer groups are not.
fn obstacles(snapshot: &Snapshot, age: Duration) -> Vec<String> {
    let mut problems = Vec::new();
    if is_stale(snapshot, age) {
        problems.push(format!(
            "the agent's loop has not finished a tick for {}, so this status is old; the guard sets the safe state when the lease ends; restart the agent to put the groups in force again",
            duration(age.as_secs_f64())
        ));
    }
    if snapshot.paused {
        problems.push(
            "the agent is paused: it observes and writes nothing until `commensal agent resume`".to_owned(),
        );
    }
    problems.extend(rejected(&snapshot.config).map(|problem| printable(&problem).into_owned()));
    problems
}

/// The problem of a rejected configuration: what stays in force, and each mistake on a line of its own.
#[must_use]
pub fn rejected(config: &Config) -> Option<String> {
    let error = config.error.as_ref()?;
    Some(format!(
        "the newest configuration was rejected, and generation {} stays in force:\n{error}",
        config.generation
    ))
}

fn agent(out: &mut String, snapshot: &Snapshot) {
    let _ = writeln!(
        out,
        "commensal {}, agent {}, up {}; tick {}, the last took {:.1} ms",
        snapshot.version,
        snapshot.pid,
        duration(snapshot.uptime_s),
        duration(snapshot.interval_ms as f64 / 1e3),
        snapshot.tick_ms
    );
    let config = &snapshot.config;
    let _ = writeln!(
        out,
        "configuration {}, generation {}, loaded {}",
        visible(&config.path),
        config.generation,
        config.loaded
    );
    if let Some(ago) = snapshot.read_back_s {
        let _ = writeln!(out, "every setting was read back {} ago", duration(ago));
    }
    match &snapshot.lease {
        Some(lease) => {
            let guard = lease.guard_pid.map_or("gone".to_owned(), |pid| pid.to_string());
            let _ = writeln!(out, "lease {}, guard {guard}", duration(lease.time_ms as f64 / 1e3));
        }
        None => out.push_str("no lease: nothing sets the safe state if the agent dies\n"),
    }
    if let Some(last) = &snapshot.safe_state {
        let _ = writeln!(out, "{}", safe_state(last));
    }
    if let Some(canary) = &snapshot.canary {
        let _ = writeln!(out, "{}", canary_line(canary));
    }
    let cost = &snapshot.cost;
    let cpu = cost.cpu_s.filter(|_| snapshot.uptime_s > 0.0).map(|cpu| cpu / snapshot.uptime_s * 100.0);
    let _ = writeln!(
        out,
        "cost {} of a CPU, {}; {}, {}",
        percent(cpu, 2),
        bytes(cost.rss_bytes),
        count(cost.writes, "write"),
        count(cost.late_ticks, "late tick")
    );
}

/// Formats when and why the safe state was last set, and what failed then.
#[must_use]
pub fn safe_state(last: &LastSafeState) -> String {
    let failed = match last.failures {
        0 => String::new(),
        failures => format!(", {failures} could not be set or read"),
    };
    let mut text = format!(
        "safe state last set {}, because {}: {} in force after {}{failed}",
        visible(&last.at),
        visible(&last.why),
        count(last.held as u64, "value"),
        duration(last.took_ms as f64 / 1e3)
    );
    for failed in &last.failed {
        let _ = write!(text, "\n  {}", visible(failed));
    }
    text
}

/// Formats the line about the running canary.
pub(crate) fn canary_line(canary: &Shown) -> String {
    let [over, pairs] = canary.pairs;
    format!(
        "canary: isolation is {} now; {over} of {pairs} pairs of windows have ended, {} aborted, {} left",
        if canary.off { "OFF" } else { "on" },
        canary.aborted,
        duration(canary.left_ms as f64 / 1e3)
    )
}

fn machine(out: &mut String, machine: &Machine) {
    let _ = writeln!(
        out,
        "\nmachine {}: {} busy (online {}, offline {}, other {}), steal {}\n\
         memory {} available of {}; waiting for CPU {}, memory {}, disk {}",
        count(machine.cpus, "CPU"),
        cpus(machine.busy),
        cpus(machine.online),
        cpus(machine.offline),
        cpus(machine.other),
        cpus(machine.steal),
        bytes(machine.memory_available_bytes),
        Bytes(machine.memory_bytes),
        percent(machine.pressure.cpu_pct, 1),
        percent(machine.pressure.memory_pct, 1),
        percent(machine.pressure.io_pct, 1),
    );
}

/// Formats the groups as a table, without columns of which nothing is known. A limit that another program has changed
/// is shown with the value that was found.
pub(crate) fn groups(out: &mut String, groups: &[Group], drift: &[Drift]) {
    if groups.is_empty() {
        out.push_str("\nno groups\n");
        return;
    }
    let mut rows = vec![
        ["GROUP", "CLASS", "BY", "MEMBERS", "CPUS", "MEMORY", "RUN DELAY", "THROTTLED", "LIMITS"]
            .map(str::to_owned),
    ];
    for group in groups {
        let limits: Vec<String> =
            group.limits.iter().map(|limit| format!("{} {}", limit.key, limit.value)).collect();
        let mut stands = String::new();
        if let Some(since) = &group.freezing_since {
            stands += &format!("FREEZING since {}, ", visible(since));
        } else if group.frozen {
            stands += "frozen, ";
        }
        if let Some(since) = &group.starved_since {
            stands += &format!("starved since {}, ", visible(since));
        }
        let changed = drift.iter().filter(|drift| !drift.back && is_of(group, drift));
        let changed: Vec<String> = changed.map(|one| format!("{} reads {}", one.file, one.found)).collect();
        if !changed.is_empty() {
            let _ = write!(stands, "NOT in force ({}), ", visible(&changed.join(", ")));
        }
        rows.push([
            group.name.clone(),
            group.class.clone(),
            group.mechanism.clone().unwrap_or_else(|| "-".to_owned()),
            members(group).to_string(),
            cpus(group.cpus),
            bytes(group.memory_bytes),
            group.run_delay_ms_per_s.map_or("-".to_owned(), |ms| format!("{ms:.1} ms/s")),
            percent(group.throttled_pct, 0),
            format!("{stands}{}", if limits.is_empty() { "-".to_owned() } else { limits.join(", ") }),
        ]);
    }
    let known: Vec<usize> =
        (0..rows[0].len()).filter(|column| rows[1..].iter().any(|row| row[*column] != "-")).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| known.iter().map(|column| row[*column].clone()).collect()).collect();
    out.push('\n');
    out.push_str(&columns(&rows, Align::Left));
}

/// Number of members: the cgroups that the group matches, and its own cgroup while there are tasks in it.
fn members(group: &Group) -> usize {
    group.members.iter().filter(|member| !member.own || group.tasks != Some(0)).count()
}

fn queues(out: &mut String, groups: &[Group]) {
    let queues: Vec<_> =
        groups.iter().filter_map(|group| Some((&group.name, group.queue.as_ref()?))).collect();
    if !queues.is_empty() {
        out.push_str("\nqueues\n");
    }
    for (name, queue) in queues {
        let held =
            queue.held.as_ref().map(|held| format!("; held closed: {}", visible(held))).unwrap_or_default();
        let of = |limit: Option<u32>| limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
        let (run, wait) = (of(queue.max_concurrency), of(queue.max_size));
        let _ = writeln!(out, "  {name}: {}{run} run, {}{wait} wait{held}", queue.running, queue.waiting);
    }
}

/// Formats what the online groups' waits were for, and what else held the groups back.
fn waits(out: &mut String, snapshot: &Snapshot) {
    let mut lines = String::new();
    if let Some(why) = &snapshot.no_probe {
        let _ =
            writeln!(lines, "  who had the CPU meanwhile is not known: {}", visible(&why.replace('\n', " ")));
    }
    for group in &snapshot.groups {
        let sum: f64 = group.waits.iter().map(|part| part.ms_per_s).sum();
        let parts = group.waits.iter().filter(|part| part.ms_per_s >= LEAST_WAIT_MS);
        let parts: Vec<String> = parts.map(|part| format!("{} {:.1}", whose(part), part.ms_per_s)).collect();
        if !parts.is_empty() {
            let _ = writeln!(lines, "  {}: {sum:.1}, of these {}", group.name, parts.join(", "));
        }
        for text in group.held_back.iter().filter_map(|one| one.now.as_ref()) {
            let _ = writeln!(lines, "  {}: {}", group.name, visible(text));
        }
    }
    if !lines.is_empty() {
        let _ = write!(out, "\nwaits for a CPU, ms per second\n{lines}");
    }
}

/// Whose work had the CPU while a group waited.
pub(crate) fn whose(part: &WaitPart) -> String {
    match (part.kind.as_str(), &part.group) {
        (kind, None) => kind.to_owned(),
        ("peers", Some(group)) => format!("online {group}"),
        (kind, Some(group)) => format!("{kind} {group}"),
    }
}

pub(crate) fn cpus(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

pub(crate) fn bytes(value: Option<u64>) -> String {
    value.map_or("-".to_owned(), |value| Bytes(value).to_string())
}

pub(crate) fn percent(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$} %"))
}

/// Formats a number of seconds in at most two units.
pub(crate) fn duration(seconds: f64) -> String {
    if !(0.0..1e15).contains(&seconds) {
        return "-".to_owned();
    }
    let whole = seconds.floor() as u64;
    let pair = |big: u64, big_name: &str, small: u64, small_name: &str| match small {
        0 => format!("{big} {big_name}"),
        _ => format!("{big} {big_name} {small} {small_name}"),
    };
    match whole {
        0 => format!("{:.0} ms", seconds * 1e3),
        1..60 if seconds.fract() < 0.05 => format!("{whole} s"),
        1..60 => format!("{seconds:.1} s"),
        60..3_600 => pair(whole / 60, "min", whole % 60, "s"),
        3_600..86_400 => pair(whole / 3_600, "h", whole % 3_600 / 60, "min"),
        _ => pair(whole / 86_400, "d", whole % 86_400 / 3_600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn golden_status() {
        let snapshot = crate::fixture::snapshot();
        let fresh = text(&snapshot, Duration::from_millis(250));
        let mut hangs = Snapshot { paused: true, lease: None, ..snapshot };
        hangs.groups.clear();
        let hangs = text(&hangs, Duration::from_secs(90));
        let empty = text(&Snapshot::default(), Duration::ZERO);
        golden::check("status.txt", &format!("{fresh}\n=== hangs\n{hangs}\n=== empty\n{empty}"));
    }

    #[test]
    fn what_is_well() {
        let well = Snapshot { interval_ms: 1_000, ..Snapshot::default() };
        assert!(is_well(&well, Duration::ZERO));
        assert!(!is_well(&well, Duration::from_secs(60)));
        assert!(!is_well(&Snapshot { paused: true, ..well.clone() }, Duration::ZERO));
        assert!(!is_well(&Snapshot { problems: vec!["x".to_owned()], ..well }, Duration::ZERO));
        assert!(!is_well(&crate::fixture::snapshot(), Duration::ZERO));
    }

    /// A starving group, and a group whose tasks have not all stopped and which therefore does not count as frozen.
    // promise 3
    #[test]
    fn what_starves_or_has_not_stopped_is_told_since_when() {
        let group = Group { name: "etl".to_owned(), frozen: true, ..Group::default() };
        let shown =
            |group: Group| text(&Snapshot { groups: vec![group], ..Snapshot::default() }, Duration::ZERO);
        assert!(shown(group.clone()).contains("frozen, -"));
        let since = Some("2026-11-22T06:15:30Z".to_owned());
        let freezing = Group { freezing_since: since.clone(), ..group.clone() };
        let freezing = shown(freezing);
        assert!(freezing.contains("FREEZING since 2026-11-22T06:15:30Z, -"), "{freezing}");
        assert!(!freezing.contains("frozen"), "{freezing}");
        let starved = shown(Group { frozen: false, starved_since: since, ..group });
        assert!(starved.contains("starved since 2026-11-22T06:15:30Z, -"), "{starved}");
    }

    #[test]
    fn a_canary_is_told() {
        let canary = Shown { off: true, pairs: [3, 29], aborted: 1, left_ms: 90_000 };
        let snapshot = Snapshot { canary: Some(canary), ..Snapshot::default() };
        let line =
            "canary: isolation is OFF now; 3 of 29 pairs of windows have ended, 1 aborted, 1 min 30 s left";
        assert!(
            text(&snapshot, Duration::ZERO).lines().any(|one| one == line),
            "{}",
            text(&snapshot, Duration::ZERO)
        );
        assert!(!text(&Snapshot::default(), Duration::ZERO).contains("canary"));
    }

    #[test]
    fn durations() {
        for (seconds, expect) in [
            (0.0, "0 ms"),
            (0.25, "250 ms"),
            (1.0, "1 s"),
            (3.5, "3.5 s"),
            (60.0, "1 min"),
            (7_530.25, "2 h 5 min"),
            (86_400.0 * 3.5, "3 d 12 h"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(duration(seconds), expect);
        }
    }
}
