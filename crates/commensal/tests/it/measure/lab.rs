//! The lab end to end on the running kernel. Nothing here asserts interference: only that a run ends with a
//! verdict, that its record is what the schema says, and that nothing is left however it ends.

use crate::bad_input::assert_nothing_left;
use crate::lab::{QUICK, VERDICTS, burners, schema, workloads};
use crate::support::{Program, can_write_cgroups, cgroups_named, text};
use commensal_lab::record::{Run, decode_histogram};
use commensal_testkit::{Signal, Stopped, ended, signal, until, within};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Groups of runs of this program.
fn lab_groups(program: &Program) -> Vec<PathBuf> {
    let ran = program.ran.lock().unwrap();
    ran.iter().flat_map(|pid| cgroups_named(&format!("commensal-lab-{pid}-"))).collect()
}

// promise 34
#[test]
fn a_short_run_ends_with_a_verdict_and_a_valid_record() {
    if !can_write_cgroups("a_short_run_ends_with_a_verdict_and_a_valid_record") {
        return;
    }
    let program = Program::new("lab");
    let output = program.run(&QUICK);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let status = output.status.code().unwrap();
    assert!(VERDICTS.contains(&status), "status {status}\n{out}{err}");
    assert!(out.contains("baseline") && out.contains("contended") && out.contains("isolated"), "{out}");
    let record = std::fs::read_to_string(program.path("run.json")).unwrap();
    let value: serde_json::Value = serde_json::from_str(&record).unwrap();
    let problems: Vec<String> = schema().iter_errors(&value).map(|error| error.to_string()).collect();
    assert!(problems.is_empty(), "{problems:?}");
    let run = Run::from_json(record.as_bytes()).unwrap();
    assert_eq!(run.blocks.len(), 4);
    for block in &run.blocks {
        let histogram = decode_histogram(block.histograms.latency.as_deref().unwrap()).unwrap();
        // Of 2,100 per second for half a second; the rest of this machine may have had its CPUs for most of it.
        assert!(histogram.len() > 50, "{} requests", histogram.len());
        let beside = block.arm == "contended" || block.arm == "isolated";
        assert_eq!(block.work.offline.is_some(), beside, "{}", block.arm);
        // In half a second of the idle class the other tests may leave it nothing.
        assert!(block.arm != "contended" || block.work.offline.unwrap() > 0.0);
    }
    let policy = run.arms[3].policy.as_ref().unwrap();
    assert!(policy.applied.iter().all(commensal_lab::record::Applied::holds) && !policy.applied.is_empty());
    // The same verdict again from the record, in every form.
    let file = program.path("run.json");
    let file = file.to_str().unwrap();
    let (again, _) = program.expect(0, &["lab", "report", file]);
    program.expect(status, &["lab", "report", file, "--exit-verdict"]);
    assert!(out.starts_with(again.lines().next().unwrap()), "{out}\n{again}");
    let (markdown, _) = program.expect(0, &["lab", "report", file, "--format", "markdown"]);
    assert!(markdown.contains('|') && markdown.lines().count() <= 40, "{markdown}");
    let (csv, _) = program.expect(0, &["lab", "report", file, "--format", "csv"]);
    assert_eq!(csv.lines().count(), 5, "{csv}");
    // It is remembered.
    let (json, told) = program.expect(0, &["lab", "history", "quickstart", "--json"]);
    let series: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(series[0]["runs"][0]["started"], run.started.as_str(), "{json}{told}");
    assert!(lab_groups(&program).is_empty(), "{:?}", lab_groups(&program));
    assert_nothing_left(&program.state());
}

/// Short windows, as few rounds as there can be: what is frozen goes on, every arm has a block, and nothing is left.
// promise 34
#[test]
fn short_windows_freeze_and_thaw_and_leave_nothing() {
    if !can_write_cgroups("short_windows_freeze_and_thaw_and_leave_nothing") {
        return;
    }
    let program = Program::new("windows");
    let output = program.run(&["lab", "run", "quickstart", "--for", "1s"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(VERDICTS.contains(&output.status.code().unwrap()), "{out}{err}");
    let record = std::fs::read_to_string(program.path("run.json")).unwrap();
    let value: serde_json::Value = serde_json::from_str(&record).unwrap();
    let problems: Vec<String> = schema().iter_errors(&value).map(|error| error.to_string()).collect();
    assert!(problems.is_empty(), "{problems:?}");
    let run = Run::from_json(record.as_bytes()).unwrap();
    // More where requests take so long here that the first rounds do not count.
    assert!(run.design.windows.is_some() && run.design.rounds >= 6, "{:?}", run.design);
    for arm in &run.arms {
        let blocks: Vec<_> = run.blocks_of(&arm.name).collect();
        assert!(!blocks.is_empty(), "{}", arm.name);
        for block in blocks {
            let beside = arm.name == "contended" || arm.name == "isolated";
            assert_eq!(block.work.offline.is_some(), beside, "{}", arm.name);
            // What is frozen uses nothing, but for the moments around a switch; what goes on has what other tests leave.
            let used = block.cpu.offline.unwrap_or(0.0);
            assert!(beside || used < 0.05, "{}: {used} CPUs", arm.name);
            assert!(
                block.load.offered_requests > 100,
                "{}: {} requests",
                arm.name,
                block.load.offered_requests
            );
        }
    }
    let worked: f64 = run.blocks_of("contended").filter_map(|block| block.work.offline).sum();
    assert!(worked > 0.0, "thawed work does something");
    assert!(run.since_switch.iter().any(|row| row.arm == "isolated" && row.ms[0] == 0));
    assert!(lab_groups(&program).is_empty(), "{:?}", lab_groups(&program));
    assert_nothing_left(&program.state());
}

/// Every arm that short windows have can be had by long blocks as well; the threads of the warm one are nobody else's.
// promise 38
#[test]
fn every_arm_by_long_blocks() {
    if !can_write_cgroups("every_arm_by_long_blocks") {
        return;
    }
    let program = Program::new("arms");
    let arms = "baseline,baseline2,policy-only,warm,contended,isolated";
    let output = program.run(&[&QUICK[..], &["--arms", arms]].concat());
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(VERDICTS.contains(&output.status.code().unwrap()), "{out}{err}");
    let run = Run::from_json(&std::fs::read(program.path("run.json")).unwrap()).unwrap();
    let mut names: Vec<&str> = run.blocks.iter().map(|block| block.arm.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["baseline", "baseline2", "contended", "isolated", "policy-only", "warm"]);
    let client = |arm: &str| run.blocks_of(arm).filter_map(|block| block.cpu.client).sum::<f64>();
    // Idle threads run on what everybody else leaves, and other tests may leave nothing.
    let warm = run.blocks_of("warm").next().unwrap().cpu;
    let foreign = warm.other.unwrap_or(0.0) - warm.client.unwrap_or(0.0) + warm.steal.unwrap_or(0.0);
    let left = f64::from(run.machine.threads) - foreign - warm.online.unwrap_or(0.0);
    if left > 2.0 * client("baseline") {
        assert!(client("warm") > client("baseline"), "{} {}", client("warm"), client("baseline"));
    } else {
        println!("skipped: every_arm_by_long_blocks: idle threads: other programs left {left:.2} CPUs");
    }
    let policy = |arm: &str| run.arms.iter().find(|one| one.name == arm).unwrap().policy.is_some();
    assert!(policy("policy-only") && policy("warm") && policy("isolated") && !policy("baseline"));
    assert_nothing_left(&program.state());
}

/// A user without cgroups of their own cannot freeze: the same experiment is measured by long blocks, and the record says why.
// promise 38
#[test]
fn who_cannot_freeze_has_long_blocks() {
    let test = "who_cannot_freeze_has_long_blocks";
    if commensal_host::Host::euid(&commensal_host::LinuxHost::new()) != 0 {
        println!("skipped: {test}: needs root to become somebody else");
        return;
    }
    // Where everybody may start it, and a place of the user's own.
    let program = Program::new("shown");
    let (copy, home) = (program.reachable(), program.path("home"));
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65_534), Some(65_534)).unwrap();
    let (shown, _) = program.expect(0, &["lab", "show", "quickstart"]);
    let short = shown.replace("rounds = 6", "rounds = 1").replace("block  = \"5 s\"", "block  = \"300 ms\"");
    assert!(
        short.contains("carry-over") && short.contains("rounds = 1") && short.contains("300 ms"),
        "{short}"
    );
    std::fs::write(home.join("mine.toml"), short).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&copy)
        .args(["lab", "run", "./mine.toml"])
        .current_dir(&home)
        .env("HOME", &home)
        .env("XDG_STATE_HOME", home.join("state"))
        .env("COMMENSAL_LAB_SCOPE", "nobody")
        .output()
        .unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(VERDICTS.contains(&output.status.code().unwrap()), "{out}{err}");
    let run = Run::from_json(&std::fs::read(home.join("run.json")).unwrap()).unwrap();
    assert_eq!((run.design.windows, run.blocks.len()), (None, 4), "{out}");
    let why = "the run uses long blocks instead of short windows: ";
    assert!(run.caveats.iter().any(|caveat| caveat.starts_with(why)), "{:?}", run.caveats);
}

/// SIGKILL while work is frozen: a frozen process does not even die of that. The run's guard thaws and removes everything.
// promise 34
#[test]
fn sigkill_leaves_nothing_frozen() {
    if !can_write_cgroups("sigkill_leaves_nothing_frozen") {
        return;
    }
    let program = Program::new("frozen");
    let args = ["lab", "run", "quickstart", "--for", "60s"];
    let mut child = program.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    let groups = format!("commensal-lab-{pid}-");
    let frozen = || {
        cgroups_named(&groups).iter().any(|group| {
            let below = std::fs::read_dir(group).into_iter().flatten().flatten();
            below.into_iter().any(|child| {
                let reads = |file: &str| std::fs::read_to_string(child.path().join(file)).unwrap_or_default();
                reads("freezer.state").trim() == "FROZEN" || reads("cgroup.freeze").trim() == "1"
            })
        })
    };
    until("something is frozen", frozen);
    child.kill().unwrap();
    child.wait().unwrap();
    until("the groups are gone", || cgroups_named(&groups).is_empty());
    assert_eq!(program.expect(0, &["restore"]).0, "nothing to restore\n");
    assert_nothing_left(&program.state());
}

/// The service dies in every block beside isolated offline work, and only there: that is a result, and the other arms get a new
/// instance. Once is no evidence.
// promise 36
#[test]
fn a_service_that_dies_is_broken_not_lost() {
    if !can_write_cgroups("a_service_that_dies_is_broken_not_lost") {
        return;
    }
    // One round decides nothing, and beside other tests it may not even be valid.
    for (rounds, times, broken) in [("1", 1, false), ("3", 3, true)] {
        let program = Program::new("dies");
        let args = ["lab", "run", "quickstart", "--rounds", rounds, "--block", "1"];
        let mut child = program.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let isolated = || {
            let groups = cgroups_named(&format!("commensal-lab-{pid}-offline"));
            let idle = |path: &PathBuf| std::fs::read_to_string(path.join("cpu.idle"));
            groups.iter().any(|path| idle(path).is_ok_and(|text| text.trim() == "1"))
                && burners(&workloads(pid))
        };
        let mut killed = Vec::new();
        until("the run has ended", || {
            let service = workloads(pid).into_iter().find(|line| line.contains("http"));
            if let Some(service) = service.filter(|_| isolated())
                && !killed.contains(&service)
            {
                let pid = service.split(' ').next().unwrap();
                signal(pid.parse().unwrap(), Signal::KILL);
                killed.push(service);
            }
            child.try_wait().unwrap().is_some()
        });
        assert_eq!(killed.len(), times, "{killed:?}");
        let output = child.wait_with_output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let status = output.status.code().unwrap();
        assert!(if broken { status == 1 } else { matches!(status, 3 | 4) }, "{out}{err}");
        assert_eq!(out.starts_with("BROKEN"), broken, "{out}{err}");
        let said = format!("crashed in {times} of {times} blocks of arm isolated");
        assert!(status == 4 || out.contains(&said), "{out}");
        let run = Run::from_json(&std::fs::read(program.path("run.json")).unwrap()).unwrap();
        assert_eq!(run.blocks.len(), 4 * times);
        assert!(run.blocks.iter().all(|block| block.online_crashed == (block.arm == "isolated")));
        assert_nothing_left(&program.state());
    }
}

/// In short windows the service is started anew where it was, and four deaths decide: BROKEN when isolation kills it, INVALID when
/// it dies while it is alone.
#[test]
fn a_service_that_dies_in_short_windows() {
    if !can_write_cgroups("a_service_that_dies_in_short_windows") {
        return;
    }
    for (beside, status, says) in [(true, 1, "BROKEN"), (false, 4, "INVALID")] {
        let program = Program::new("short");
        let args = ["lab", "run", "quickstart", "--for", "60s"];
        let mut child = program.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let due = || {
            let groups = cgroups_named(&format!("commensal-lab-{pid}-offline"));
            let reads = |path: &std::path::Path, file: &str| {
                std::fs::read_to_string(path.join(file))
                    .is_ok_and(|text| matches!(text.trim(), "1" | "FROZEN"))
            };
            let any =
                |file: &str| groups.iter().any(|path| reads(path, file) || reads(&path.join("batch"), file));
            let frozen = any("freezer.state") || any("cgroup.freeze");
            let worked = groups.iter().any(|path| path.join("batch").exists());
            worked && frozen != beside && (!beside || any("cpu.idle"))
        };
        let recorded = || program.path("run.json").exists();
        let mut killed = Vec::new();
        within(Duration::from_secs(180), "the run has ended", || {
            let new_one = |killed: &[String]| {
                let services = if recorded() && due() { workloads(pid) } else { Vec::new() };
                services.into_iter().find(|line| line.contains("http") && !killed.contains(line))
            };
            if new_one(&killed).is_some() {
                // While the lab stands still, the block does not end before its service does.
                let _stopped = Stopped::new(pid);
                if let Some(service) = new_one(&killed) {
                    let service_pid = service.split(' ').next().unwrap().parse().unwrap();
                    signal(service_pid, Signal::KILL);
                    // Until then a killed process is no dead one, and the lab would go on with the next block.
                    until(format_args!("{service} is dead"), || ended(service_pid));
                    killed.push(service);
                }
            }
            child.try_wait().unwrap().is_some()
        });
        let output = child.wait_with_output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        // One that is killed while it starts anew ends the run.
        assert!(if beside { killed.len() == 4 } else { !killed.is_empty() }, "{killed:?} {out}{err}");
        assert!(out.starts_with(says) && output.status.code() == Some(status), "{out}{err}");
        assert_nothing_left(&program.state());
    }
}

/// Somebody undoes the policy in the middle of the block: it was not in force, so there is no verdict.
// promise 35
#[test]
fn a_policy_that_is_undone_meanwhile_is_invalid() {
    if !can_write_cgroups("a_policy_that_is_undone_meanwhile_is_invalid") {
        return;
    }
    let program = Program::new("undone");
    let args = ["lab", "run", "quickstart", "--rounds", "1", "--block", "1"];
    let mut child = program.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("an isolated arm", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended before an isolated arm");
        let groups = cgroups_named(&format!("commensal-lab-{}-offline", child.id()));
        let mut idle = groups.iter().map(|path| path.join("cpu.idle"));
        let on = idle.find(|file| std::fs::read_to_string(file).is_ok_and(|text| text.trim() == "1"));
        let on = on.filter(|_| burners(&workloads(child.id())));
        on.is_some_and(|file| std::fs::write(file, "0").is_ok())
    });
    let output = child.wait_with_output().unwrap();
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(4), "{out}{}", text(&output.stderr));
    assert!(out.contains("the policy was not in force"), "{out}");
}
