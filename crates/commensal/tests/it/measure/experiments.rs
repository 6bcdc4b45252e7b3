//! Experiments from files that run to their end, with programs of others on both sides: what they record, and how they end when
//! something breaks. Nothing here asserts interference.

use crate::experiments::{FOUR, HOG, Hog, LOAD, SERVICE, SHORT, VERDICTS, file, nothing_left, run};
use crate::support::{Program, can_write_cgroups, cgroups_named, text};
use commensal_lab::record::{Applied, Run};
use commensal_testkit::{Signal, cpu_time, line, signal, until};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Requests of an overloaded service wait for seconds. Windows that hold ten of them would make a run of a second take half an
/// hour: it ends and says what to do.
// promise 38
#[test]
fn an_overloaded_service_does_not_outlast_the_time_limit() {
    if !can_write_cgroups("an_overloaded_service_does_not_outlast_the_time_limit") {
        return;
    }
    let program = Program::new("overloaded");
    let design = "[design]\ncarry-over = \"short\"\nfor = \"1 s\"\nwarmup = \"3 s\"\n";
    // More than both workers can compute.
    let load = "[load]\nhttp = \"/cpu?cpu=1&count=100000000\"\nrate = 500\n";
    let (status, _, said) = run(&program, &format!("{FOUR}{design}{SERVICE}{load}{HOG}"), &["--no-blame"]);
    assert!(status == 4 && said.starts_with("INVALID"), "{status} {said}");
    assert!(said.contains("--for allows 1 s") && said.contains("lower the load"), "{said}");
    nothing_left(&program);
}

// promise 39
#[test]
fn a_service_of_ones_own() {
    if !can_write_cgroups("a_service_of_ones_own") {
        return;
    }
    let program = Program::new("own");
    let about = "about = \"a <service> & a job\"\n";
    let text = format!(
        "{about}{FOUR}{SHORT}slo = {{ metric = \"P50\", latency = \"1 s\", window = \"1 s\" }}\n{SERVICE}{LOAD}{HOG}"
    );
    let (status, run, said) = run(&program, &text, &["--no-blame"]);
    assert!(VERDICTS.contains(&status), "{status} {said}");
    let run = run.unwrap();
    assert_eq!(run.blocks.len(), 4);
    assert_eq!(run.source.as_deref(), Some(text.as_str()));
    assert!(
        run.commands[0].starts_with("online: ") && run.commands[1].starts_with("offline: sh"),
        "{:?}",
        run.commands
    );
    for block in &run.blocks {
        assert!(
            block.load.offered_requests > 50 && block.histograms.latency.is_some() && block.slo.is_some(),
            "{block:?}"
        );
        assert!(!block.series.is_empty() && block.at_s.is_some() && block.cpu.client.is_some(), "{block:?}");
        let beside = block.arm == "contended" || block.arm == "isolated";
        assert_eq!(block.work.offline.is_some(), beside, "{}", block.arm);
    }
    assert!(run.arms[3].policy.as_ref().unwrap().applied.iter().all(Applied::holds));
    let page = std::fs::read_to_string(program.path("run.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg "), "{page}");
    nothing_left(&program);
}

/// A service that runs already is measured where it is, and is left as it was.
// promise 39
#[test]
fn a_service_of_the_machine() {
    let test = "a_service_of_the_machine";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("attach");
    let top = crate::support::cpu_mount().join(format!("{}-web.service", program.prefix));
    std::fs::create_dir(&top).unwrap();
    let script = format!(
        "echo $$ >{}/cgroup.procs && exec {} workload http --workers 2",
        top.display(),
        env!("CARGO_BIN_EXE_commensal")
    );
    let mut service = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    let said = line(service.stdout.as_mut().unwrap());
    let addr = said.strip_prefix("listening ").unwrap();
    let name = top.file_name().unwrap().to_str().unwrap().to_owned();
    let online = format!("[online]\nattach = \"{name}\"\naddress = \"{addr}\"\n");
    let (status, run, said) = run(&program, &format!("{FOUR}{SHORT}{online}{LOAD}{HOG}"), &["--no-blame"]);
    let alive = service.try_wait().unwrap().is_none();
    let gone = self::run(
        &program,
        &format!("{FOUR}{SHORT}[online]\nattach = \"nosuch.service\"\naddress = \"{addr}\"\n{LOAD}{HOG}"),
        &[],
    );
    service.kill().unwrap();
    service.wait().unwrap();
    std::fs::remove_dir(&top).unwrap();
    assert!(VERDICTS.contains(&status) && alive, "{status} {said}");
    let run = run.unwrap();
    assert!(
        run.blocks.iter().all(|block| block.load.offered_requests > 50 && block.run_delay_s.online.is_some()),
        "{said}"
    );
    assert!(gone.0 == 2 && gone.2.contains("nosuch.service: no running unit"), "{}", gone.2);
    nothing_left(&program);
}

impl Hog {
    /// Whether it gets no CPU for longer than two ticks of the slowest kernel.
    fn stands_still(&self) -> bool {
        let before = cpu_time(self.child.id());
        std::thread::sleep(Duration::from_millis(50));
        cpu_time(self.child.id()) == before
    }

    fn wait_until(&self, still: bool) {
        until(format_args!("it stands still: {still}"), || self.stands_still() == still);
    }
}

/// Offline work that runs already stands still where a block has none, and goes on afterwards, also when the lab is killed.
// promise 34
#[test]
fn offline_work_of_the_machine() {
    let test = "offline_work_of_the_machine";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("etl");
    let hog = Hog::start(&program);
    let offline = format!("[offline]\nattach = \"{}\"\ncpus = 1\n", hog.name);
    // A quota: the smallest weight would leave nothing where others keep the machine busy.
    let arms =
        "arms = [\"baseline\", \"baseline2\", \"contended\", \"isolated:quota=40%\", \"isolated:nice\"]\n";
    let text_ = format!("{arms}{SHORT}{SERVICE}{LOAD}{offline}");
    let (status, run, said) = run(&program, &text_, &["--no-blame"]);
    assert!(VERDICTS.contains(&status), "{status} {said}");
    let run = run.unwrap();
    assert!(run.caveats.iter().any(|one| one.contains("isolated:nice is omitted")), "{:?}", run.caveats);
    assert_eq!(run.blocks.len(), 4, "{said}");
    for block in &run.blocks {
        let beside = block.arm == "contended" || block.arm == "isolated:quota=40%";
        let used = block.cpu.offline.unwrap();
        println!("{test}: {} {used:.3} CPUs", block.arm);
        assert!(if beside { used > 0.05 } else { used == 0.0 }, "{}: {used} CPUs", block.arm);
        assert_eq!(block.work.offline.is_some(), beside, "{}", block.arm);
    }
    hog.wait_until(false);
    // Killed while it stands still.
    let path = file(&program, &text_);
    let long = ["lab", "run", path.to_str().unwrap(), "--no-blame", "--rounds", "20"];
    let mut lab = program.command(&long).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    hog.wait_until(true);
    lab.kill().unwrap();
    lab.wait().unwrap();
    // The guard lets it go on, whether or not anybody restores.
    hog.wait_until(false);
    program.run(&["restore"]);
    drop(hog);
    let _ = std::fs::remove_dir_all(program.state().join("lab-files"));
    nothing_left(&program);
}

// promise 37
#[test]
fn each_mechanism_is_what_its_arm_says() {
    if !can_write_cgroups("each_mechanism_is_what_its_arm_says") {
        return;
    }
    let program = Program::new("mechanisms");
    let names = [
        "cpu.idle",
        "weight",
        "nice",
        "sched-idle",
        "cpuset",
        "cpu.idle+frame",
        "quota=20%",
        "best+quota=80%",
        "bvt",
        "sched_ext",
        "scheduler=scx_none",
    ];
    let arms: Vec<String> = names.iter().map(|name| format!("\"isolated:{name}\"")).collect();
    let text =
        format!("arms = [\"baseline\", \"baseline2\", {}]\n{SHORT}{SERVICE}{LOAD}{HOG}", arms.join(", "));
    let (status, run, said) = run(&program, &text, &["--no-blame"]);
    assert!(VERDICTS.contains(&status), "{status} {said}");
    let run = run.unwrap();
    // What this machine does not have is left out, and said.
    for arm in run.arms.iter().filter(|arm| arm.policy.is_some()) {
        let policy = arm.policy.as_ref().unwrap();
        let file = match arm.name.trim_start_matches("isolated:") {
            "cpu.idle" => "cpu.idle",
            "weight" => {
                if policy.applied.iter().any(|one| one.file == "cpu.shares") {
                    "cpu.shares"
                } else {
                    "cpu.weight"
                }
            }
            "nice" => "nice",
            "sched-idle" => "policy",
            "cpuset" | "cpu.idle+frame" => "cpuset.cpus",
            _ => "cpu.",
        };
        let set: Vec<&Applied> = policy.applied.iter().filter(|one| one.file.starts_with(file)).collect();
        assert!(!set.is_empty() && set.iter().all(|one| one.holds()), "{}: {policy:?}", arm.name);
        if matches!(file, "nice" | "policy") {
            assert_eq!(policy.applied.len(), 1, "nothing else: {policy:?}");
        }
    }
    for name in names {
        let here = run.arms.iter().any(|arm| arm.name == format!("isolated:{name}"));
        let out =
            run.caveats.iter().any(|caveat| caveat.contains(&format!("arm isolated:{name} is omitted: ")));
        assert!(here != out, "{name}: {:?}", run.caveats);
    }
    assert!(said.contains("isolated:sched_ext is omitted"), "{said}");
    if !Path::new("/sys/kernel/sched_ext").exists() {
        let why = "isolated:scheduler=scx_none is omitted: kernel";
        assert!(said.contains(why) && said.contains("CONFIG_SCHED_CLASS_EXT"), "{said}");
    }
    nothing_left(&program);
}

// promise 39
#[test]
fn a_tool_makes_the_load() {
    if !can_write_cgroups("a_tool_makes_the_load") {
        return;
    }
    let program = Program::new("tool");
    let load = "[load]\ntool = \"json-lines\"\nconcurrency = 3\ncommand = [\"sh\", \"-c\", \"cat; test -e {dir}/a.conf \
                && sleep 0.3; i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo '{\\\"latency_us\\\":'$i'}'; \
                done\"]\nstdin = \"{\\\"latency_us\\\":{port}}\\n\"\n";
    let online = format!("{SERVICE}files = {{ \"a.conf\" = \"port {{port}}\" }}\n");
    let (status, run, said) = run(&program, &format!("{FOUR}{SHORT}{online}{load}{HOG}"), &["--no-blame"]);
    assert!(VERDICTS.contains(&status), "{status} {said}");
    let run = run.unwrap();
    assert_eq!((run.design.load.as_deref(), run.design.concurrency), (Some("json-lines"), Some(3)));
    for block in &run.blocks {
        assert_eq!(block.load.offered_requests, 401, "{block:?}");
        assert!(
            block.histograms.latency.is_some()
                && block.load.offered_per_s.is_none()
                && block.concurrency == Some(3),
            "{block:?}"
        );
    }
    // A tool that fails has loaded nothing: no baseline, no verdict.
    let broken = load.replace("cat; test", "echo no such server >&2; exit 7; test");
    let (status, record, said) =
        self::run(&program, &format!("{FOUR}{SHORT}{online}{broken}{HOG}"), &["--no-blame"]);
    assert_eq!(status, 4, "{said}");
    let record = record.unwrap();
    let said: Vec<&String> =
        record.caveats.iter().chain(record.blocks.iter().flat_map(|block| &block.notes)).collect();
    assert!(said.iter().any(|note| note.contains("exited with status 7: no such server")), "{said:?}");
    nothing_left(&program);
}

// promise 36
#[test]
fn offline_work_that_never_runs() {
    if !can_write_cgroups("offline_work_that_never_runs") {
        return;
    }
    let program = Program::new("never");
    let offline = "[offline]\ncommand = [\"sh\", \"-c\", \"echo no licence >&2; exit 3\"]\n";
    let (status, run, said) =
        run(&program, &format!("{FOUR}{SHORT}{SERVICE}{LOAD}{offline}"), &["--no-blame"]);
    assert!(matches!(status, 3 | 4), "{status} {said}");
    let run = run.unwrap();
    let contended = run.blocks_of("contended").next().unwrap();
    let why = contended.invalid_reason.as_deref().unwrap_or_default();
    assert!(
        !contended.valid
            && why.contains("the offline work ended with status 3")
            && why.contains("no licence"),
        "{why}"
    );
    nothing_left(&program);
}

// promise 36
#[test]
fn a_service_that_dies_beside_offline_work() {
    if !can_write_cgroups("a_service_that_dies_beside_offline_work") {
        return;
    }
    let program = Program::new("dies");
    let online = "[online]\ncommand = [\"sh\", \"-c\", \"{program} workload http --port {port} --workers 1 & while \
                  kill -0 $!; do test -e {dir}/boom && kill -9 $!; sleep 0.02; done\"]\nready = { http = \"/healthz\" \
                  }\n";
    let offline = "[offline]\ncommand = [\"sh\", \"-c\", \"touch {dir}/boom; while :; do :; done\"]\ncleanup = \
                   [[\"rm\", \"-f\", \"{dir}/boom\"]]\n";
    // A quota: work of the idle class gets no turn to do it where others keep the machine busy.
    let arms = "arms = [\"baseline\", \"baseline2\", \"isolated:quota=80%\"]\n";
    let three = SHORT.replace("rounds = 1", "rounds = 3");
    let (status, run, said) =
        run(&program, &format!("{arms}{three}{online}{LOAD}{offline}"), &["--no-blame"]);
    assert!(status == 1 && said.contains("BROKEN"), "{status} {said}");
    let run = run.unwrap();
    assert!(run.blocks_of("baseline").all(|block| !block.online_crashed));
    assert!(run.blocks_of("isolated:quota=80%").all(|block| block.online_crashed), "{run:?}");
    nothing_left(&program);
}

/// A service that dies by itself half a second after each start dies beside isolated offline work as well: isolation is not to
/// blame.
// promise 36
#[test]
fn a_service_that_dies_by_itself() {
    if !can_write_cgroups("a_service_that_dies_by_itself") {
        return;
    }
    let program = Program::new("fragile");
    // It dies a while after it was found ready, however long the start took.
    let online = "[online]\ncommand = [\"sh\", \"-c\", \"rm -f {dir}/ready; {program} workload http --port {port} \
                  --workers 1 & until test -e {dir}/ready; do sleep 0.02; done; sleep 0.3; kill $!; wait $!\"]\nready = \
                  { http = \"/healthz\" }\nsetup = [[\"touch\", \"{dir}/ready\"]]\n";
    let design = SHORT.replace("rounds = 1", "rounds = 3");
    let (status, run, said) =
        run(&program, &format!("{FOUR}restart = \"block\"\n{design}{online}{LOAD}{HOG}"), &["--no-blame"]);
    assert!(status == 4 && said.contains("repair the service first"), "{status} {said}");
    assert!(run.unwrap().blocks_of("isolated").any(|block| block.online_crashed));
    nothing_left(&program);
}

/// It listens and answers nobody: a request that never ends must not make a run that never does.
#[test]
fn a_service_that_never_answers() {
    if !can_write_cgroups("a_service_that_never_answers") {
        return;
    }
    let program = Program::new("silent");
    // Stopped once it has served: connections are accepted by the kernel still.
    let online = "[online]\ncommand = [\"sh\", \"-c\", \"{program} workload http --port {port} --workers 1 & while \
                  kill -0 $!; do test -e {dir}/still && kill -STOP $!; sleep 0.02; done\"]\nready = { http = \
                  \"/healthz\" }\nsetup = [[\"touch\", \"{dir}/still\"]]\ncleanup = [[\"rm\", \"-f\", \
                  \"{dir}/still\"]]\n";
    let (status, run, said) = run(&program, &format!("{FOUR}{SHORT}{online}{LOAD}{HOG}"), &["--no-blame"]);
    assert!(status == 4 && said.contains("answered no request without any offline work"), "{status} {said}");
    assert!(
        run.unwrap()
            .blocks
            .iter()
            .all(|block| block.load.offered_requests > 0 && block.load.achieved_per_s == Some(0.0))
    );
    nothing_left(&program);
}

/// It listens only after a while, and is waited for.
#[test]
fn a_service_that_listens_late() {
    if !can_write_cgroups("a_service_that_listens_late") {
        return;
    }
    let program = Program::new("late");
    let online = "[online]\ncommand = [\"sh\", \"-c\", \"sleep 1; exec {program} workload http --port {port} --workers \
                  1\"]\nready = { http = \"/healthz\" }\nready-within = \"30 s\"\n";
    let (status, run, said) = run(&program, &format!("{FOUR}{SHORT}{online}{LOAD}{HOG}"), &["--no-blame"]);
    assert!(VERDICTS.contains(&status), "{status} {said}");
    assert!(
        run.unwrap().blocks.iter().all(|block| block.load.errors == 0 && block.load.offered_requests > 50),
        "{said}"
    );
    nothing_left(&program);
}

/// Blocks are saved as they end; an interrupted run goes on where it was, and only if it is the same.
// promise 39
#[test]
fn an_interrupted_run_goes_on() {
    if !can_write_cgroups("an_interrupted_run_goes_on") {
        return;
    }
    let program = Program::new("resume");
    let text_ = format!("{FOUR}{}{SERVICE}{LOAD}{HOG}", SHORT.replace("rounds = 1", "rounds = 2"));
    let path = file(&program, &text_);
    let path = path.to_str().unwrap();
    let record = program.path("run.json");
    let mut child =
        program.command(&["lab", "run", path, "--no-blame"]).stdout(Stdio::null()).spawn().unwrap();
    let blocks = || {
        std::fs::read(&record)
            .ok()
            .and_then(|bytes| Run::from_json(&bytes).ok())
            .map_or(0, |run| run.blocks.len())
    };
    until("two blocks are recorded", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended before two blocks");
        blocks() >= 2
    });
    assert!(signal(child.id(), Signal::TERM));
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let before = Run::from_json(&std::fs::read(&record).unwrap()).unwrap();
    assert!((2..8).contains(&before.blocks.len()));
    let resume = record.to_str().unwrap();
    let (_, err) = program
        .expect(2, &["lab", "run", path, "--no-blame", "--resume", resume, "--seed", "9", "-o", "x.json"]);
    assert!(err.contains("cannot be continued, because the design differs"), "{err}");
    let output = program.run(&["lab", "run", path, "--no-blame", "--resume", resume]);
    assert!(VERDICTS.contains(&output.status.code().unwrap()), "{}", text(&output.stderr));
    let whole = Run::from_json(&std::fs::read(&record).unwrap()).unwrap();
    assert_eq!(whole.blocks.len(), 8);
    assert_eq!(
        whole.blocks[..before.blocks.len()].iter().map(|block| &block.histograms.latency).collect::<Vec<_>>(),
        before.blocks.iter().map(|block| &block.histograms.latency).collect::<Vec<_>>()
    );
    assert!(whole.caveats.iter().any(|caveat| caveat.contains("interrupted after")), "{:?}", whole.caveats);
    nothing_left(&program);
}

/// The record's disk is full: it is said, and nothing is left running.
// promise 36
#[test]
fn a_full_disk() {
    let test = "a_full_disk";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("full");
    let path = file(&program, &format!("{FOUR}{SHORT}{SERVICE}{LOAD}{HOG}"));
    let small = program.path("small");
    std::fs::create_dir(&small).unwrap();
    let run = program.command(&["lab", "run", path.to_str().unwrap(), "--no-blame", "-o", "small/run.json"]);
    let words: Vec<String> = std::iter::once(run.get_program())
        .chain(run.get_args())
        .map(|word| format!("'{}'", word.to_str().unwrap()))
        .collect();
    let script = format!("mount -t tmpfs -o size=8k none small || exit 99; {}", words.join(" "));
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .current_dir(program.dir.path())
        .env("COMMENSAL_LAB_SCOPE", &program.prefix)
        .output()
        .unwrap();
    if output.status.code() == Some(99) || text(&output.stderr).contains("unshare:") {
        println!("skipped: {test}: nothing can be mounted here: {}", text(&output.stderr).trim());
        return;
    }
    let (status, err) = (output.status.code().unwrap(), text(&output.stderr));
    assert!(
        status == 2 && err.contains("the record cannot be written") && err.contains("ENOSPC"),
        "{status} {err}"
    );
    let out = text(&output.stdout);
    assert!(out.contains("baseline"), "what was found out is at least printed");
    assert!(!out.contains("record: "), "nothing is said to be where it is not: {out}");
    nothing_left(&program);
}

#[test]
fn a_profile_and_a_pilot() {
    if !can_write_cgroups("a_profile_and_a_pilot") {
        return;
    }
    let program = Program::new("profile");
    let against =
        ["lab", "profile", "--against", "l2,page-cache", "--isolated", "--rounds", "1", "--block", "0.4"];
    let output = program.run(&against);
    let out = text(&output.stdout);
    assert!(matches!(output.status.code(), Some(0 | 4)), "{out}{}", text(&output.stderr));
    for row in ["l2 ", "l2, isolated", "page-cache ", "page-cache, isolated"] {
        assert!(out.lines().any(|line| line.starts_with(row)), "{row}: {out}");
    }
    let record = Run::from_json(&std::fs::read(program.path("profile.json")).unwrap()).unwrap();
    assert!(
        record.blocks.iter().filter(|block| block.arm.starts_with("page")).all(|block| block
            .work
            .unit
            .as_deref()
            == Some("MiB"))
    );
    let (_, err) = program.expect(2, &["lab", "profile", "--against", "noise"]);
    assert!(err.contains("no antagonist \"noise\""), "{err}");
    let output = program.run(&["lab", "run", "quickstart", "--pilot", "--block", "0.3"]);
    let out = text(&output.stdout);
    assert!(out.starts_with("YES") || out.starts_with("NO"), "{out}{}", text(&output.stderr));
    nothing_left(&program);
    assert!(cgroups_named(&program.prefix).is_empty());
}
