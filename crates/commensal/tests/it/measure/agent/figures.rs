//! What the agent tells of a group, from whichever files this kernel has.

use crate::agent::{Agent, cleaned, own, until};
use crate::support::{Program, can_write_cgroups, text};
use commensal_testkit::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn group(program: &Program, name: &str) -> Value {
    let said = text(&program.run(&["status", "--json"]).stdout);
    let status: Value = serde_json::from_str(&said).unwrap_or_default();
    let groups = status["groups"].as_array().cloned().unwrap_or_default();
    groups.into_iter().find(|one| one["name"] == name).unwrap_or_default()
}

/// The unified hierarchy's own group, where it counts pressure.
fn counts_pressure(program: &Program) -> bool {
    let hierarchies = commensal_sensors::mounts::hierarchies(&mut commensal_host::LinuxHost::new()).unwrap();
    let unified = hierarchies.iter().find(|one| one.version == commensal_core::knob::Version::V2);
    unified.is_some_and(|one| {
        let group = format!("{}-offline/etl/cpu.pressure", program.prefix);
        std::fs::read_to_string(PathBuf::from(&one.mount).join(group)).is_ok()
    })
}

/// Use, tasks, memory, pressure, and who was killed for want of memory.
// promise 6
#[test]
fn what_a_group_uses_is_told() {
    let test = "what_a_group_uses_is_told";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("told");
    // The CPU limit is on a group of its own: a process that memory is taken from would otherwise need minutes to end.
    let groups = program.groups(
        "[group.etl]\nclass = \"offline\"\ncpu.max = \"0.03 cores\"\npids.max = 50\n\n\
         [group.sort]\nclass = \"offline\"\nmemory.max = \"64 MiB\"\npids.max = 50\n",
    );
    let config = groups.to_str().unwrap();
    let agent = Agent::start(&program, &groups, &["--on-exit", "restore"]);
    until("the groups are there", || own(&program, "etl").exists() && own(&program, "sort").exists());
    let plan: Value =
        serde_json::from_str(&text(&program.run(&["status", "--json"]).stdout)).unwrap_or_default();
    let run_in = |group: &str, script: &str| {
        let mut command = program.command(&["run", "-g", group, "-c", config, "--", "sh", "-c", script]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    // Two that compute, with a quota so small that it stops them even where other work leaves them little.
    let spin = "(while :; do :; done) & while :; do :; done";
    let mut busy = run_in("etl", spin).spawn().unwrap();
    let figure = |key: &str| group(&program, "etl")[key].as_f64();
    until("its CPUs are told", || figure("cpus") > Some(0.001));
    until("its tasks are told", || figure("tasks") >= Some(2.0));
    until("its memory is told", || figure("memory_bytes") > Some(4096.0));
    until("its quota is seen to stop it", || figure("throttled_pct") > Some(0.0));
    until("its run delay is told", || figure("run_delay_ms_per_s") > Some(0.0));
    if counts_pressure(&program) && Path::new("/proc/pressure/cpu").exists() {
        until("its pressure is told", || group(&program, "etl")["pressure"]["cpu_pct"].as_f64() > Some(0.0));
    } else {
        println!("skipped: {test}: a part: no pressure is counted for groups here");
    }
    // What this test started there, and nobody else.
    let inside =
        |group: &str| std::fs::read_to_string(own(&program, group).join("cgroup.procs")).unwrap_or_default();
    until("they have ended", || {
        let _ = Command::new("kill").arg("-KILL").args(inside("etl").lines()).output();
        inside("etl").is_empty()
    });
    busy.wait().unwrap();
    let unmet = plan["unmet"].as_array().is_some_and(|all| all.iter().any(|one| one["group"] == "sort"));
    if !unmet {
        let more = "head -c 150000000 /dev/zero | tail -c 150000000 >/dev/null";
        let _ = run_in("sort", more).status().unwrap();
        until("who was killed is told", || group(&program, "sort")["oom_kills"].as_f64() >= Some(1.0));
        until("the last of them has ended", || inside("sort").is_empty());
    } else {
        println!("skipped: {test}: a part: memory cannot be limited here");
    }
    assert_eq!(agent.end(Signal::TERM), Some(0));
    cleaned(&program);
}
