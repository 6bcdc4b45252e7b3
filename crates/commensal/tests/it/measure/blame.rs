//! `commensal blame` as people use it, on groups that a test makes.

use crate::agent::Agent;
use crate::support::{Program, can_write_cgroups, text};
use commensal_blame::{BlameError, Scope, WaitProbe};
use commensal_core::knob::{Controller, Version};
use commensal_host::LinuxHost;
use commensal_sensors::{machine, mounts};
use commensal_testkit::{Alone, Groups, Signal, alone, field_of_stat, signal, until};
use serde_json::Value;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// One process that never sleeps.
const HOG: &str = "while :; do :; done";

/// Groups that outweigh the rest of the machine on one CPU, while no other test measures.
struct Scene {
    groups: Groups,
    cpu: u32,
    _alone: Alone,
}

impl Scene {
    /// `None` where groups cannot be made or the probe cannot work, which it prints.
    fn new(test: &str) -> Option<Scene> {
        let alone = alone();
        match WaitProbe::attach(&LinuxHost::new(), &Scope::default()) {
            Ok(_) => {}
            // Anything else that it says is a failure.
            Err(why @ (BlameError::TooOld(_) | BlameError::NoBtf | BlameError::Forbidden(_))) => {
                println!("skipped: {test}: {why}");
                return None;
            }
            Err(error) => panic!("{error}"),
        }
        if !can_write_cgroups(test) {
            return None;
        }
        let hierarchies = mounts::hierarchies(&mut LinuxHost::new()).unwrap();
        let cpu = hierarchies.iter().find(|one| one.controllers.contains(&Controller::Cpu)).unwrap();
        let groups = Groups::new(Path::new(&cpu.mount), cpu.version == Version::V2, test);
        groups.outweigh_the_machine();
        // Interrupts prefer the first CPU.
        let cpu = machine::machine(&LinuxHost::new()).unwrap().topology.all().iter().last().unwrap();
        Some(Scene { groups, cpu, _alone: alone })
    }

    /// Makes a group with a process that never sleeps; gives its path in the hierarchy.
    fn hog(&mut self, group: &str) -> String {
        self.runs(group, HOG)
    }

    /// Makes a group with a service: a thread that wakes up at random times.
    fn service(&mut self, group: &str) -> String {
        let script = format!("exec {} workload pulse", env!("CARGO_BIN_EXE_commensal"));
        self.groups.make(group);
        // Past its calibration.
        self.groups.start_threads(group, Some(self.cpu), &script, 2);
        self.path(group)
    }

    fn runs(&mut self, group: &str, script: &str) -> String {
        self.groups.make(group);
        self.groups.start(group, Some(self.cpu), script);
        self.path(group)
    }

    fn path(&self, group: &str) -> String {
        format!("/{}/{group}", self.groups.top.file_name().unwrap().to_str().unwrap())
    }

    /// A service `web.service` beside a hog `etl`, as paths in the hierarchy.
    fn service_and_hog(&mut self) -> (String, String) {
        let etl = self.hog("etl");
        (self.service("web.service"), etl)
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_report_for_people_and_one_for_programs() {
    let test = "a_report_for_people_and_one_for_programs";
    let Some(mut scene) = Scene::new(test) else { return };
    let (web, etl) = scene.service_and_hog();
    let program = Program::new("bl");
    let (out, _) = program.expect(0, &["blame", &web, "--against", &etl, "--for", "2s"]);
    for part in
        ["wait per CPU-second ", "of which caused by others ", "who held the CPU meanwhile", "(offline)"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(out.contains("wake-up to running") && out.contains("offline work off the CPU"), "{out}");
    // The same by the name of its unit, and with every other form at once.
    let paths = ["svg", "html", "prom"].map(|name| program.path(name));
    let [svg, html, prom] = paths.each_ref().map(|path| path.to_str().unwrap());
    let (out, _) = program.expect(
        0,
        &[
            "blame",
            "web.service",
            "--against",
            &etl,
            "--for",
            "2s",
            "--json",
            "--svg",
            svg,
            "--html",
            html,
            "--prometheus",
            prom,
            "--verify",
        ],
    );
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!(report["subjects"][0], "web.service");
    assert!(number(&report["run_s"]) > 0.0 && number(&report["wait_ms"]) > 0.0, "{out}");
    let rows = report["culprits"].as_array().unwrap();
    let sum: f64 = rows.iter().map(|row| number(&row["ms"])).sum();
    assert!((sum - number(&report["wait_ms"])).abs() < 0.01, "{out}");
    let of_etl = rows.iter().find(|row| row["name"] == etl.as_str()).unwrap();
    assert_eq!(of_etl["kind"], "offline");
    // Of what tasks made it wait: an emulated CPU has as many interrupts.
    let by_tasks = rows.iter().filter(|row| row["kind"] != "interrupts").map(|row| number(&row["share"]));
    assert!(number(&of_etl["share"]) > by_tasks.sum::<f64>() / 2.0, "{out}");
    assert!(report["evidence"]["kernel"]["waits"].is_u64(), "{out}");
    let [svg, html, prom] = paths.map(|path| std::fs::read_to_string(path).unwrap());
    assert!(
        svg.starts_with("<svg ") && svg.contains("class=\"offline\"") && svg.contains("web.service"),
        "{svg}"
    );
    assert!(
        html.starts_with("<!doctype html>")
            && html.contains("<svg ")
            && html.contains("Who made web.service wait?")
    );
    let line = format!(
        "commensal_blame_wait_seconds_total{{service=\"web.service\",kind=\"offline\",culprit=\"{etl}\"}} "
    );
    assert!(prom.contains(&line), "{prom}");
}

/// Row A10 and row A11: who it was is told by command and user, and where the time went.
// promise 31
#[test]
fn commands_and_phases_are_told() {
    let Some(mut scene) = Scene::new("commands_and_phases_are_told") else { return };
    scene.runs("desk", "exec dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null");
    let (desk, web) = (scene.hog("desk"), scene.service("web.service"));
    let program = Program::new("bc");
    let (out, err) = program.expect(0, &["blame", &web, "--for", "2s", "--json"]);
    assert_eq!(err, "loading the probe…\n");
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    let rows = report["culprits"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == desk.as_str()).unwrap();
    let parts = row["commands"].as_array().unwrap();
    let sum: f64 = parts.iter().map(|part| number(&part["ms"])).sum();
    assert!((sum - number(&row["ms"])).abs() < 0.01, "{row}");
    for command in ["dd", "sh"] {
        let part = parts.iter().find(|part| part["command"] == command).unwrap_or_else(|| panic!("{row}"));
        assert!(part["uid"].is_u64() && part["user"].is_string() && number(&part["ms"]) > 0.0, "{row}");
    }
    let phases = report["phases_ms"].as_object().unwrap();
    let names = ["attach", "detach", "find", "load", "look", "names", "read", "verify"];
    assert!(names.iter().all(|name| phases[*name].is_number()), "{phases:?}");
    // The time asked for is the time looked at.
    assert!((number(&phases["look"]) / 1e3 - number(&report["seconds"])).abs() < 1e-3, "{phases:?}");
    assert!(number(&phases["look"]) >= 2_000.0, "{phases:?}");
    println!("{phases:?}");
}

/// The first cause of a service that its own limit holds back, and of one behind a real-time task.
// promise 31
#[test]
fn the_cause_is_named() {
    let test = "the_cause_is_named";
    let Some(mut scene) = Scene::new(test) else { return };
    let web = scene.hog("web.service");
    let program = Program::new("bw");
    let causes = || -> Vec<Value> {
        let (out, _) = program.expect(0, &["blame", &web, "--for", "2s", "--json"]);
        let report: Value = serde_json::from_str(&out).unwrap();
        report["causes"].as_array().unwrap().clone()
    };
    let limit = |quota: Option<u32>| match (scene.groups.unified, quota) {
        (true, Some(us)) => scene.groups.set("web.service", "cpu.max", &format!("{us} 100000")),
        (true, None) => scene.groups.set("web.service", "cpu.max", "max"),
        (false, quota) => {
            let text = quota.map_or_else(|| "-1".to_owned(), |us| us.to_string());
            scene.groups.set("web.service", "cpu.cfs_quota_us", &text);
        }
    };
    limit(Some(20_000));
    let found = causes();
    // It computes all the time, so its limit takes four fifths of the two seconds.
    assert_eq!(found[0]["cause"], "own-limit", "{found:?}");
    assert!((1_200.0..=1_800.0).contains(&number(&found[0]["ms"])), "{found:?}");
    limit(None);
    let cpu = scene.cpu.to_string();
    let child =
        std::process::Command::new("chrt").args(["-f", "10", "taskset", "-c", &cpu, "sh", "-c", HOG]).spawn();
    let Ok(mut real_time) = child else {
        println!("skipped: {test}: real-time tasks: no chrt");
        return;
    };
    let policy = || field_of_stat(real_time.id(), 41);
    until("it has its policy", || policy().as_deref() != Some("0"));
    let found = if policy().as_deref() == Some("1") { Some(causes()) } else { None };
    real_time.kill().unwrap();
    real_time.wait().unwrap();
    match found {
        Some(found) => assert_eq!(found[0]["cause"], "real-time", "{found:?}"),
        None => println!("skipped: {test}: real-time tasks: not allowed here"),
    }
}

// promise 33
#[test]
fn a_verdict_is_an_exit_status() {
    let test = "a_verdict_is_an_exit_status";
    let Some(mut scene) = Scene::new(test) else { return };
    let (web, etl) = scene.service_and_hog();
    let program = Program::new("bv");
    let check = |bounds: &[&str], time: &str| {
        let mut args = vec!["blame", &web, "--against", &etl, "--check", "--for", time];
        args.extend(bounds);
        let output = program.run(&args);
        (output.status.code().unwrap(), text(&output.stdout))
    };
    // A host that hides switches from tracers can make a look worthless; hardly every look.
    let over = || check(&["--blame-below", "0.001", "--preempt-below", "0.001"], "2s");
    let (status, out) = (0..5).map(|_| over()).find(|(status, _)| *status != 3).unwrap_or_else(over);
    assert!(status == 1 && out.contains(&format!("{etl}: over budget")), "{status} {out}");
    let (status, out) = check(&["--blame-below", "1e9"], "1ms");
    assert!(status == 3 && out.contains(": unknown"), "{status} {out}");
    // Nobody can be below nothing, and anybody is below infinity if there was enough to see.
    let (status, out) = check(&["--blame-below", "1e9", "--preempt-below", "1e9"], "3s");
    assert!(matches!(status, 0 | 3), "{status} {out}");
    assert!(out.contains(": within budget") == (status == 0), "{status} {out}");
}

// promise 31
#[test]
fn the_groups_file_names_both_sides() {
    let test = "the_groups_file_names_both_sides";
    let Some(mut scene) = Scene::new(test) else { return };
    let (web, etl) = scene.service_and_hog();
    let program = Program::new("bg");
    let groups = program.groups(&format!(
        "[group.shop]\nclass = \"online\"\nmatch = [{{ cgroup = \"{web}\" }}]\n[group.jobs]\nclass = \"offline\"\nmatch = [{{ cgroup = \"{etl}\" }}]\n"
    ));
    let file = groups.to_str().unwrap();
    let (out, _) = program.expect(0, &["blame", "-c", file, "--for", "1s", "--json"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((report["subjects"][0].as_str(), report["against"][0].as_str()), (Some("shop"), Some("jobs")));
    assert!(report["verdict"]["result"].is_string(), "{out}");
    let (out, _) = program.expect(0, &["blame", "shop", "-c", file, "--for", "1s"]);
    assert!(out.starts_with("shop: "), "{out}");
}

// promise 4
#[test]
fn two_at_once_and_one_that_is_killed() {
    let test = "two_at_once_and_one_that_is_killed";
    let Some(mut scene) = Scene::new(test) else { return };
    let (web, etl) = scene.service_and_hog();
    let program = Program::new("bk");
    let before = commensal_blame::probe::count();
    let long = ["blame", &web, "--against", &etl, "--for", "100s", "--json"];
    let mut first = program.command(&long).stdout(Stdio::piped()).spawn().unwrap();
    let mut second = program.command(&long).stdout(Stdio::piped()).spawn().unwrap();
    let wait = |wanted: usize| {
        until(format_args!("{wanted} probes"), || commensal_blame::probe::count() == wanted);
    };
    wait(before + 2);
    // Both look for a while: nothing shows when the first look begins, and one of no time would say nothing.
    std::thread::sleep(Duration::from_secs(1));
    first.kill().unwrap();
    first.wait().unwrap();
    // Nobody is left to take it away: the kernel does.
    wait(before + 1);
    signal(second.id(), Signal::INT);
    let mut out = String::new();
    second.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(second.wait().unwrap().code(), Some(0), "Ctrl-C ends a look, it is no failure");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert!(number(&report["seconds"]) < 90.0 && number(&report["wait_ms"]) > 0.0, "{out}");
    wait(before);
}

// promise 4
#[test]
fn a_service_that_ends_meanwhile() {
    let test = "a_service_that_ends_meanwhile";
    let Some(mut scene) = Scene::new(test) else { return };
    let path = scene.runs("job.service", "exec sleep 600");
    let program = Program::new("be");
    let before = commensal_blame::probe::count();
    let child = program.command(&["blame", &path]).stdout(Stdio::piped()).spawn().unwrap();
    until("it looks", || commensal_blame::probe::count() > before);
    scene.groups.clear();
    let output = child.wait_with_output().unwrap();
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}");
    assert!(out.contains("job.service ended after "), "{out}");
}

/// Docker is played: the Engine API's one call over a socket, and the cgroup that an engine makes.
// promise 31
#[test]
fn a_container_by_its_name() {
    let test = "a_container_by_its_name";
    let Some(mut scene) = Scene::new(test) else { return };
    let [web, etl] = ["5e", "77"].map(|two| two.repeat(32));
    scene.hog(&format!("docker-{etl}.scope"));
    scene.service(&web);
    let program = Program::new("bc");
    let path = program.path("engine.sock");
    let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let body =
        format!("[{{\"Id\":\"{web}\",\"Names\":[\"/shop\"]}},{{\"Id\":\"{etl}\",\"Names\":[\"/etl-7\"]}}]");
    std::thread::spawn(move || {
        for mut stream in socket.incoming().flatten() {
            let mut request = [0; 512];
            let length = stream.read(&mut request).unwrap_or(0);
            assert!(request[..length].starts_with(b"GET /containers/json HTTP/1.0\r\n"));
            let _ = write!(stream, "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{body}");
        }
    });
    let mut command = program.command(&["blame", "shop", "--against", "etl-7", "--for", "1s"]);
    let output = command.env("DOCKER_HOST", format!("unix://{}", path.display())).output().unwrap();
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}{}", text(&output.stderr));
    assert!(
        out.starts_with("shop: ") && out.contains("docker-777777777777.scope (container etl-7) (offline)"),
        "{out}"
    );
    // An engine that does not answer is no engine.
    let mut command = program.command(&["blame", "shop", "--for", "10ms"]);
    let output = command.env("DOCKER_HOST", "unix:///no/such.sock").output().unwrap();
    assert!(text(&output.stderr).contains("shop is not a process"), "{}", text(&output.stderr));
}

/// An agent without any latency target tells what an online group waits for, and that a limit holds it back: its own, and
/// that of a cgroup above it.
// promise 31
#[test]
fn an_agent_tells_who_makes_a_group_wait() {
    let test = "an_agent_tells_who_makes_a_group_wait";
    let Some(mut scene) = Scene::new(test) else { return };
    let (web, etl) = (scene.hog("web.service"), scene.hog("etl.slice"));
    scene.hog("none");
    let program = Program::new("bk");
    let config = program.groups(&format!(
        "[agent]\nweights = false\n[group.web]\nclass = \"online\"\nmatch = [{{ cgroup = \"{web}\" }}]\n\
         [group.etl]\nclass = \"offline\"\nmatch = [{{ cgroup = \"{etl}\" }}]\n"
    ));
    let agent = Agent::start(&program, &config, &["--on-exit", "restore"]);
    let group = || -> Value {
        let status: Value =
            serde_json::from_str(&text(&program.run(&["status", "--json"]).stdout)).unwrap_or_default();
        let groups = status["groups"].as_array().cloned().unwrap_or_default();
        groups.into_iter().find(|one| one["name"] == "web").unwrap_or_default()
    };
    let rate = |group: &Value, kind: &str| -> f64 {
        let parts = group["waits"].as_array().cloned().unwrap_or_default();
        parts.iter().filter(|part| part["kind"] == kind).map(|part| number(&part["ms_per_s"])).sum()
    };
    // It shares the CPU with work of no group; the offline work runs only when nobody else wants to.
    until("what it waits for is told", || rate(&group(), "other") > 250.0);
    let told = group();
    assert!(told["blamed_ms_per_cpu_s"].as_f64() < Some(300.0), "{told}");
    let sum: f64 = told["waits"].as_array().unwrap().iter().map(|part| number(&part["ms_per_s"])).sum();
    assert!((250.0..1_050.0).contains(&sum), "one thread, on one CPU: {told}");
    let set = |name: &str, quota: Option<u32>| match (scene.groups.unified, quota) {
        (true, quota) => {
            let text = quota.map_or_else(|| "max".to_owned(), |us| format!("{us} 100000"));
            scene.groups.set(name, "cpu.max", &text);
        }
        (false, quota) => {
            let text = quota.map_or_else(|| "-1".to_owned(), |us| us.to_string());
            scene.groups.set(name, "cpu.cfs_quota_us", &text);
        }
    };
    let held = |kind: &str| {
        let all = group()["held_back"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|one| one["kind"] == kind && one["now"].is_string())
    };
    for (name, kind) in [("web.service", "own-limit"), ("", "parent-limit")] {
        set(name, Some(20_000));
        until(format!("{kind} is told"), || held(kind).is_some_and(|one| number(&one["total_s"]) > 0.1));
        set(name, None);
    }
    let status = text(&program.run(&["status"]).stdout);
    assert!(status.contains("waits for a CPU, ms per second\n  web: "), "{status}");
    assert_eq!(agent.end(Signal::TERM), Some(0));
}
