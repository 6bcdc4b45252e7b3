//! The section of the page on how a run was made: the machine, the plan, and the arms (ways of running the service)
//! with their control files as read back.

use crate::format::{count, sentence_list, three_digits};
use crate::record::{Arm, Machine, Role, Run};
use crate::report::charts::escape;
use std::fmt::Write as _;

/// Renders the section on the environment.
pub fn environment(run: &Run) -> String {
    let mut out = String::from("<h2 id=\"environment\">Machine and method</h2>\n");
    let mut rows = machine(&run.machine);
    if let Some(why) = &run.no_cpi {
        rows.push(("cycles per instruction", format!("not counted: {why}")));
    }
    out.push_str(&list(&rows));
    out.push_str(&list(&plan(run)));
    out.push_str(&arms(run));
    out.push_str(&commands(run));
    out
}

fn list(rows: &[(&str, String)]) -> String {
    let mut out = String::from("<dl>\n");
    for (name, value) in rows {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{}</dd>", escape(value));
    }
    out.push_str("</dl>\n");
    out
}

fn machine(machine: &Machine) -> Vec<(&'static str, String)> {
    let smt = match machine.smt {
        Some(true) => ", SMT on",
        Some(false) => ", SMT off",
        None => "",
    };
    let mut rows = vec![
        ("CPU", format!("{}, {} cores, {} logical CPUs{smt}", machine.cpu, machine.cores, machine.threads)),
        ("kernel", machine.kernel.clone()),
        ("control groups", machine.cgroup.clone().unwrap_or_else(|| "none mounted".into())),
        ("hypervisor", machine.virt.clone().unwrap_or_else(|| "unknown".into())),
    ];
    if let Some(bytes) = machine.memory_bytes {
        rows.push(("memory", format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))));
    }
    rows.push(("fingerprint", machine.fingerprint.clone()));
    rows
}

fn plan(run: &Run) -> Vec<(&'static str, String)> {
    let design = &run.design;
    let done = run.blocks.iter().map(|block| block.round).collect::<std::collections::BTreeSet<_>>().len();
    let by = design.load.as_deref().map(|tool| format!(", made by {tool}")).unwrap_or_default();
    let load = match (design.offered_per_s, design.concurrency) {
        (Some(rate), _) => format!("open loop, {} requests per second{by}", three_digits(rate)),
        (None, Some(n)) => format!("closed loop, {n} requests in flight at any time{by}"),
        (None, None) => format!("closed loop{by}"),
    };
    let gates: Vec<String> = design
        .gates
        .iter()
        .map(|gate| format!("{} within {} %", gate.label(), design.threshold_of(*gate)))
        .collect();
    let gates: Vec<&str> = gates.iter().map(String::as_str).collect();
    let mut rows = vec![
        ("experiment", run.experiment.clone()),
        ("started", run.started.clone()),
        (
            "rounds",
            format!(
                "{done} of {}{} planned, {} blocks, seed {}",
                if design.looks.is_empty() { "" } else { "at most " },
                design.rounds,
                run.blocks.len(),
                run.seed
            ),
        ),
        (
            "a block",
            format!(
                "{} s measured after {} s to settle and {} s to warm up",
                design.block_s, design.settle_s, design.warmup_s
            ),
        ),
        ("load", load),
        ("gates", if gates.is_empty() { "none".into() } else { sentence_list(&gates) }),
    ];
    if let Some(slo) = design.slo {
        let latency = crate::format::latency(slo.latency_us);
        let said = format!("{} within {latency} in every window of {} s", slo.metric.label(), slo.window_s);
        rows.push(("objective", said));
    }
    for query in &design.queries {
        rows.push(("query", format!("{}: {} at {}", query.metric.label(), query.query, query.url)));
    }
    if let Some(bounds) = design.blame {
        let (wait, stay) = (bounds.wait_ms_per_cpu_s, bounds.preemption_p99_us);
        rows.push((
            "waits",
            format!(
                "at most {wait} ms of wait per CPU-second blamed on offline work, preemption delay at most {stay} µs (P99)"
            ),
        ));
    }
    rows
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Baseline => "online work alone: the reference",
        Role::Baseline2 => "online work alone once more: gives the noise floor",
        Role::PolicyOnly => "online work alone, with the policy on: the reference of isolated arms",
        Role::Warm => {
            "online work with the policy on, next to SCHED_IDLE threads that keep every CPU from idling"
        }
        Role::Contended => "with offline work, without isolation",
        Role::Isolated => "with offline work, under an isolation policy: the verdict is about this arm",
        Role::OfflineAlone => "offline work alone",
    }
}

fn arms(run: &Run) -> String {
    let mut out = String::from("<h3>The arms</h3>\n<dl>\n");
    for arm in &run.arms {
        let requests =
            run.blocks_of(&arm.name).map(|block| block.load.offered_requests).fold(0, u64::saturating_add);
        let driver =
            arm.policy.as_ref().map(|policy| format!("; mechanism {}", policy.driver)).unwrap_or_default();
        let said = format!("{}{driver}; {} requests", role(arm.role), count(requests));
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(&arm.name), escape(&said));
    }
    out.push_str("</dl>\n");
    for arm in &run.arms {
        out.push_str(&policy(arm));
    }
    out
}

/// Renders the control files of an arm, and highlights values that differ from the values to be set.
fn policy(arm: &Arm) -> String {
    let Some(policy) = &arm.policy else { return String::new() };
    let mut out = format!("<h3>Control files of {}, with the values read back</h3>\n", escape(&arm.name));
    if let Some(weak) = &policy.weak {
        let _ = writeln!(
            out,
            "<p>Mechanism {} gives only weak protection: {}</p>",
            escape(&policy.driver),
            escape(weak)
        );
    }
    if policy.applied.is_empty() {
        out.push_str("<p>The record lists no control file.</p>\n");
        return out;
    }
    out.push_str(
        "<p class=\"hint\">The table is wider than the screen; scroll it sideways.</p><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"control files\"><table class=\"left\"><thead><tr>\
         <th scope=\"col\">control group</th><th scope=\"col\">file</th><th scope=\"col\">wanted</th>\
         <th scope=\"col\">read back</th><th scope=\"col\"></th></tr></thead><tbody>\n",
    );
    for one in &policy.applied {
        let read = one.read.as_deref().map_or("–".to_owned(), |read| escape(read.trim()));
        let holds = if one.holds() { "<td>holds</td>" } else { "<td class=\"no\">differs</td>" };
        let _ = writeln!(
            out,
            "<tr><td><code>{}</code></td><td><code>{}</code></td><td><code>{}</code></td><td><code>{read}</code></td>{holds}</tr>",
            escape(&one.path),
            escape(&one.file),
            escape(&one.want)
        );
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn commands(run: &Run) -> String {
    let mut out = String::new();
    if !run.commands.is_empty() {
        let lines: Vec<String> = run.commands.iter().map(|line| escape(line)).collect();
        let _ = writeln!(out, "<h3>Command lines</h3>\n<pre>{}</pre>", lines.join("\n"));
    }
    if !run.tool.args.is_empty() {
        let _ =
            writeln!(out, "<h3>Recorded by</h3>\n<pre>commensal {}</pre>", escape(&run.tool.args.join(" ")));
    }
    if let Some(source) = &run.source {
        let _ = writeln!(
            out,
            "<details><summary>The experiment file</summary><pre>{}</pre></details>",
            escape(source)
        );
    }
    out
}
