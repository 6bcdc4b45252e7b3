//! Runs of the lab that are refused, stopped or killed: nothing is left. And what its parts say without a run.

use crate::bad_input::assert_nothing_left;
use crate::support::{Program, Server, can_write_cgroups, cgroups_named, text};
use commensal_lab::record::{Run, decode_histogram, encode_histogram, new_histogram};
use commensal_testkit::{Signal, ended, http, signal, until};
use std::process::{Child, Stdio};

pub(crate) const QUICK: [&str; 7] = ["lab", "run", "quickstart", "--rounds", "1", "--block", "0.5"];

/// Statuses that are a verdict: PASS, FAIL or BROKEN, INCONCLUSIVE, INVALID.
pub(crate) const VERDICTS: [i32; 4] = [0, 1, 3, 4];

pub(crate) fn schema() -> jsonschema::Validator {
    let schema = commensal_lab::record::json_schema();
    jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap()
}

/// Starts a long run and waits until its children are as wanted.
fn start(program: &Program, wanted: impl Fn(&[String]) -> bool) -> Child {
    let args = ["lab", "run", "quickstart", "--rounds", "9", "--block", "1"];
    let mut child = program.command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut ended = None;
    until("the run gets there", || {
        ended = child.try_wait().unwrap();
        ended.is_some() || wanted(&workloads(child.id()))
    });
    if let Some(status) = ended {
        panic!("{status}: {}", text(&child.wait_with_output().unwrap().stderr));
    }
    child
}

/// Command lines of the children of a process.
pub fn workloads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let pids: Vec<String> =
        lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
    let command = |pid: &String| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ")
    };
    pids.iter().map(|pid| format!("{pid} {}", command(pid))).collect()
}

pub fn burners(lines: &[String]) -> bool {
    lines.iter().any(|line| line.contains("burn"))
}

// promise 34
#[test]
fn ctrl_c_and_sigterm_leave_nothing() {
    if !can_write_cgroups("ctrl_c_and_sigterm_leave_nothing") {
        return;
    }
    for with in [Signal::INT, Signal::TERM] {
        let program = Program::new("stop");
        let child = start(&program, burners);
        let children = workloads(child.id());
        let groups = format!("commensal-lab-{}-", child.id());
        assert!(!cgroups_named(&groups).is_empty());
        assert!(signal(child.id(), with));
        let output = child.wait_with_output().unwrap();
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains("stopped before its end"), "{err}");
        assert!(cgroups_named(&groups).is_empty(), "{with:?}");
        assert_gone(&children);
        assert_nothing_left(&program.state());
    }
}

/// SIGKILL while the policy is on: the workloads die with the run; `restore`, or the next run, removes the rest.
// promise 34
#[test]
fn sigkill_is_cleaned_up_by_restore_or_the_next_run() {
    if !can_write_cgroups("sigkill_is_cleaned_up_by_restore_or_the_next_run") {
        return;
    }
    for cleaner in ["restore", "next run"] {
        let program = Program::new("killed");
        let mut child = start(&program, burners);
        let children = workloads(child.id());
        let groups = format!("commensal-lab-{}-", child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_gone(&children);
        assert!(!cgroups_named(&groups).is_empty(), "SIGKILL leaves the groups");
        if cleaner == "restore" {
            let (out, _) = program.expect(0, &["restore"]);
            assert!(out.contains(&groups), "{out}");
            assert_eq!(program.expect(0, &["restore"]).0, "nothing to restore\n");
        } else {
            let output = program.run(&QUICK);
            assert!(VERDICTS.contains(&output.status.code().unwrap()), "{}", text(&output.stderr));
        }
        assert!(cgroups_named(&groups).is_empty(), "{cleaner}");
        assert_nothing_left(&program.state());
    }
}

/// Makes a cgroup below its own, puts a process into it or not, and freezes it or not; then works.
const BELOW: &str = r#"
f=$(sed -n 's/^[0-9]*:freezer://p' /proc/self/cgroup)
if [ "$f" ]; then d=/sys/fs/cgroup/freezer$f/inner/most; else d=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/inner/most; fi
mkdir -p $d
if [ $1 != empty ]; then sleep 1000 & echo $! >$d/cgroup.procs; fi
if [ $1 = frozen ]; then if [ "$f" ]; then echo FROZEN >$d/freezer.state; else echo 1 >$d/cgroup.freeze; fi; fi
echo "$!" >$2/said
mv $2/said $2/ready
while :; do :; done
"#;

/// What the offline work made below its cgroup: contents x how the run ends.
// promise 34
#[test]
fn what_was_made_below_a_run_goes_with_it() {
    let test = "what_was_made_below_a_run_goes_with_it";
    if !can_write_cgroups(test) {
        return;
    }
    for (content, with) in ["empty", "process", "frozen"]
        .into_iter()
        .flat_map(|content| [Signal::INT, Signal::KILL].map(|with| (content, with)))
    {
        let program = Program::new("below");
        let (script, ready) = (program.path("in.sh"), program.path("ready"));
        std::fs::write(&script, BELOW).unwrap();
        let file = program.path("lab.toml");
        let experiment = format!(
            "based-on = \"quickstart\"\nwithout = [\"offline\"]\n[offline]\ncommand = [\"sh\", {script:?}, {content:?}, {:?}]\n\
             work = \"cpu-seconds\"\ncpus = 1\n",
            program.dir.path()
        );
        std::fs::write(&file, experiment).unwrap();
        let args = ["lab", "run", file.to_str().unwrap()];
        let mut child = program.command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        until("the offline work has begun", || ready.exists() || child.try_wait().unwrap().is_some());
        let groups = format!("commensal-lab-{}-", child.id());
        let of_script = || cgroups_named(&groups).len();
        assert!(of_script() > 0, "{content}: {}", text(&child.wait_with_output().unwrap().stderr));
        let sleeper = std::fs::read_to_string(&ready).unwrap().trim().to_owned();
        assert!(signal(child.id(), with));
        let output = child.wait_with_output().unwrap();
        let err = text(&output.stderr);
        if with == Signal::INT {
            assert_eq!(output.status.code(), Some(2), "{content}: {err}");
            assert!(err.contains("stopped before its end") && !err.contains("was left"), "{content}: {err}");
            assert_eq!(of_script(), 0, "{content}: {err}");
        }
        // After SIGKILL the run's guard, if it has one, or `restore` does it.
        until(format!("{content}, {with:?}: the cgroups are gone"), || {
            of_script() == 0 || program.run(&["restore"]).status.success()
        });
        until(format!("{content}, {with:?}: process {sleeper} is gone"), || {
            sleeper.is_empty() || ended(sleeper.parse().unwrap())
        });
        assert_nothing_left(&program.state());
    }
}

/// Whatever their state directories are.
// promise 34
#[test]
fn two_runs_at_once_are_refused() {
    if !can_write_cgroups("two_runs_at_once_are_refused") {
        return;
    }
    let program = Program::new("both");
    let child = start(&program, |lines| !lines.is_empty());
    // It has children before it has the lock: one that it asks about the machine is the first.
    until("the run has the lock", || locks(child.id(), &program.state().join("lab.lock")));
    let refused = |of: &Program, args: &[&str]| {
        let output = of.command(args).env("COMMENSAL_LAB_SCOPE", &program.prefix).output().unwrap();
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains("another lab run is using this machine"), "{err}");
        assert!(err.contains(&format!("process {} (", child.id())) && err.contains("kill -INT"), "{err}");
    };
    let other = Program::new("other");
    for of in [&program, &other] {
        refused(of, &QUICK);
        refused(of, &["lab", "doctor"]);
    }
    assert!(signal(child.id(), Signal::INT));
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(2));
    [&program, &other].iter().for_each(|of| assert_nothing_left(&of.state()));
}

/// Whether the process has locked the file, as the kernel lists it: trying would take the lock from the run.
fn locks(pid: u32, file: &std::path::Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(inode) = std::fs::metadata(file).map(|data| format!(":{}", data.ino())) else { return false };
    let listed = std::fs::read_to_string("/proc/locks").unwrap();
    listed.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(4).is_some_and(|of| *of == pid.to_string())
            && fields.get(5).is_some_and(|of| of.ends_with(&inode))
    })
}

pub fn assert_gone(children: &[String]) {
    assert!(!children.is_empty());
    for child in children {
        let (pid, command) = child.split_once(' ').unwrap();
        let alive = || {
            let now = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .unwrap_or_default()
                .replace('\0', " ");
            !now.is_empty() && now == command
        };
        until(format!("{child} ends with its run"), || !alive());
    }
}

/// A record whose identical arms differ in every round: whatever the rest looks like, it is INVALID.
#[test]
fn a_machine_too_noisy_for_any_verdict() {
    let program = Program::new("noisy");
    let recorded = std::env::current_dir().unwrap().join("../../fixtures/runs/quickstart-6-rounds.json");
    let mut run = Run::from_json(&std::fs::read(recorded).unwrap()).unwrap();
    let mut one_round = std::mem::take(&mut run.blocks);
    one_round.retain(|block| block.round == 0);
    run.design.rounds = 8;
    for round in 0..8u32 {
        for block in &one_round {
            let mut block = block.clone();
            block.round = round;
            block.valid = true;
            let factor = if block.arm == "baseline2" { 1.6 } else { 1.0 };
            let mut scaled = new_histogram().unwrap();
            for value in
                decode_histogram(block.histograms.latency.as_deref().unwrap()).unwrap().iter_recorded()
            {
                let us = (value.value_iterated_to() as f64 * factor) as u64;
                scaled.record_n(us.max(1), value.count_at_value()).unwrap();
            }
            block.histograms.latency = Some(encode_histogram(&scaled).unwrap());
            run.blocks.push(block);
        }
    }
    let file = program.path("noisy.json");
    std::fs::write(&file, run.to_json().unwrap()).unwrap();
    let (out, _) = program.expect(0, &["lab", "report", file.to_str().unwrap()]);
    program.expect(4, &["lab", "report", file.to_str().unwrap(), "--exit-verdict"]);
    assert!(out.starts_with("INVALID") && out.contains("not a valid result"), "{out}");
    let broken = program.path("broken.json");
    std::fs::write(&broken, &run.to_json().unwrap()[..5_000]).unwrap();
    let (_, err) = program.expect(2, &["lab", "report", broken.to_str().unwrap()]);
    assert!(err.contains("is not a record"), "{err}");
}

#[test]
fn the_service_answers_over_loopback() {
    let program = Program::new("http");
    let server = Server::start(&program, &["workload", "http", "--workers", "1"]);
    let get = |path: &str| http(std::net::TcpStream::connect(&server.addr).unwrap(), "GET", path);
    let answers = [get("/cpu?cpu=1&count=1000"), get("/cpu?cpu=x"), get("/metrics"), get("/nothing")];
    let codes = answers.each_ref().map(|answer| answer.split(' ').nth(1).unwrap_or_default().to_owned());
    assert_eq!(codes, ["200", "400", "200", "404"]);
    assert!(answers[2].contains("http_response_time_count{path=\"/cpu\"} 1"), "{}", answers[2]);
}

/// The table in the guide and the sentence in the README are what the committed record says, not what somebody typed.
#[test]
fn the_documents_show_what_the_records_say() {
    let root = std::env::current_dir().unwrap().join("../..");
    let root = root.display();
    let text = |path: &str| std::fs::read_to_string(format!("{root}/{path}")).unwrap();
    let (readme, guide) = (text("README.md"), text("docs/guide/lab.md"));
    let program = Program::new("documents");
    for (record, status) in [("quickstart.json", 0)] {
        let file = format!("{root}/docs/measurements/{record}");
        let (out, _) = program.expect(status, &["lab", "report", &file, "--exit-verdict"]);
        let table: Vec<&str> = out.lines().take_while(|line| *line != "notes").collect();
        assert!(table.len() >= 5, "{out}");
        for line in &table {
            assert!(guide.lines().any(|shown| shown == *line), "{record}: the lab's guide lacks {line:?}");
        }
        for line in &table[..2] {
            assert!(readme.lines().any(|shown| shown == *line), "{record}: the README lacks {line:?}");
        }
        let value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert!(schema().is_valid(&value), "{record}");
    }
}
