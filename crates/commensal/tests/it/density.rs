//! `commensal density`: classes, document 003 through the program, and ladders on the running machine: cells that die, hang, run
//! out of memory or answer wrongly.

pub(crate) mod vms;

use crate::support::{Program, can_write_cgroups, cgroups_named};
use commensal_density::record::{Attempt, FailureKind, Ladder};
use commensal_testkit::{Signal, holds_within, signal, until, until_some};
use std::path::Path;
use std::time::Duration;

/// How long a started run may take to do what a test waits for: the machine's host takes its CPUs away for seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The same for a whole ladder.
pub(crate) const LADDER_PATIENCE: Duration = Duration::from_secs(280);

pub(crate) fn ladder(program: &Program) -> Ladder {
    let text = std::fs::read_to_string(program.path("density.json")).unwrap();
    Ladder::from_json(&text).unwrap()
}

pub(crate) fn attempts<'l>(
    ladder: &'l Ladder,
    test: &str,
    concurrency: u32,
    placement: &str,
) -> &'l [Attempt] {
    &ladder
        .rung(test, concurrency, placement)
        .unwrap_or_else(|| panic!("{test} {concurrency} {placement}"))
        .attempts
}

/// Writes a ladder's file.
pub(crate) fn file(program: &Program, text: &str) -> String {
    let path = program.path("ladder.toml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// A ladder of a shell script that speaks the cells' protocol: `$1` is the cell, `$3` the sessions.
pub(crate) fn scripted(program: &Program, script: &str, ladder: &str) -> String {
    let path = program.path("cell.sh");
    std::fs::write(&path, script).unwrap();
    let load = format!(
        "[[load]]\nname = \"t\"\nkind = \"program\"\ncommand = [\"/bin/sh\", {:?}]\nwork = 1\n",
        path.display().to_string()
    );
    file(program, &ladder.replace("[[load]]\n", &load))
}

/// Nothing of this program's runs is left: no group, and no journal that has anything to undo.
pub(crate) fn assert_nothing_left(program: &Program) {
    for pid in program.ran.lock().unwrap().iter() {
        let left = cgroups_named(&format!("commensal-density-{pid}-"));
        assert!(left.is_empty(), "{left:?}");
    }
    let (out, _) = program.expect(0, &["restore"]);
    assert!(out.contains("nothing"), "{out}");
}

#[test]
fn classes_of_described_servers_and_fleets() {
    let program = Program::new("density-classify");
    let server = ["--cores", "48", "--threads", "96", "--reserve", "0"];
    let classify = |status, vms: &[&str], more: &[&str]| {
        let args: Vec<&str> =
            ["density", "classify"].iter().chain(vms).chain(&server).chain(more).copied().collect();
        program.expect(status, &args).0
    };
    assert!(classify(0, &["1x16"], &[]).starts_with("ideal (16 vCPU, 48 cores, 96 threads)"));
    assert!(classify(0, &["4x16"], &[]).starts_with("shared-core (64 vCPU"));
    assert!(classify(0, &["8x16"], &[]).starts_with("oversubscribed 1:1.33 (128 vCPU / 96 T)"));
    assert!(classify(0, &["2x16", "32"], &[]).starts_with("shared-core (64 vCPU"));
    // The promise: no worse than this class.
    classify(0, &["4x16"], &["--require", "shared-core"]);
    classify(1, &["8x16"], &["--require", "shared-core"]);
    let json: serde_json::Value = serde_json::from_str(&classify(0, &["8x16"], &["--json"])).unwrap();
    assert_eq!(json["placement"]["scenario"], "oversubscribed");
    let fleet = program.path("fleet.toml");
    let text =
        "[[server]]\nname = \"a\"\ncount = 3\ncores = 48\nthreads = 96\nvms = [{ count = 8, vcpu = 16 }]\n";
    std::fs::write(&fleet, text).unwrap();
    let (out, _) = program.expect(0, &["density", "classify", "--fleet", "fleet.toml"]);
    assert!(out.contains("servers: 0 ideal, 0 shared-core, 3 oversubscribed"), "{out}");
    program.expect(1, &["density", "classify", "--fleet", "fleet.toml", "--require", "ideal"]);
    // This machine: whatever it is, it has a class.
    let (out, _) = program.expect(0, &["density", "classify", "1x1", "--reserve", "0"]);
    assert!(out.starts_with("ideal (1 vCPU"), "{out}");
}

#[test]
fn placements_and_ladders_that_cannot_be() {
    let program = Program::new("density-bad");
    let check = |args: &[&str], want: &str| {
        let (_, err) = program.expect(2, args);
        assert!(err.contains(want), "{want}: {err}");
    };
    let on = |vms, more: &[&'static str]| {
        [&["density", "classify", vms, "--cores", "4", "--threads", "8"], more].concat()
    };
    check(&on("1x0", &[]), "both numbers must be 1 or more");
    check(&on("0x4", &[]), "both numbers must be 1 or more");
    check(&on("four", &[]), "such as 4x16");
    check(&on("1x1", &["--reserve", "9"]), "leaves none");
    check(&on("1x1", &["--reserve", "some"]), "or the word measured");
    check(&on("1x1", &["--require", "good"]), "is not ideal");
    check(&["density", "classify", "1x1", "--cores", "8", "--threads", "4"], "cannot have");
    check(&["density", "report", "/nonexistent.json"], "nonexistent");
    check(&["density", "run", "no-such"], "the built-in ladders are density-spin");
    std::fs::write(program.path("x.json"), "{\"schema\":\"commensal.lab/1\"}").unwrap();
    check(&["density", "report", "x.json"], "the file has schema \"commensal.lab/1\"");
    check(&["density", "plan", "--from", "arenadata", "--max-harm", "NaN"], "--max-harm");
    check(
        &["density", "plan", "--from", "arenadata", "--max-harm", "10", "--test", "Light"],
        "the tests of this ladder are Lite, Full",
    );
    let bad = file(
        &program,
        "[cell]\nvcpu = 0\n[ladder]\ncells = []\n[[load]]\nname = \"a\"\nkind = \"spin\"\nconcurrency = [1]\n",
    );
    check(&["density", "run", &bad], "cell.vcpu = 0");
    let text = "[cell]\nvcpu = 1\n[ladder]\ncells = [1]\n[[load]]\nname = \"a\"\nkind = \"spin\"\nwork = \
                1\nconcurrency = [1]\n";
    let bad = file(&program, &format!("{text}[[warning]]\nname = \"net\"\nfile = \"/l\"\nregex = 'a(b'\n"));
    check(&["density", "run", &bad], "unclosed group");
    // A VM without a kernel.
    let vm = text.replace("vcpu = 1", "vcpu = 1\nbackend = \"qemu\"\nkernel = \"/nonexistent/vmlinuz\"");
    if can_write_cgroups("placements_and_ladders_that_cannot_be") {
        check(&["density", "run", &file(&program, &vm)], "the kernel /nonexistent/vmlinuz");
    }
    // More pinned vCPU than there are cores, and more memory than there is.
    if can_write_cgroups("placements_and_ladders_that_cannot_be") {
        let text = "[cell]\nvcpu = 1\n[ladder]\ncells = [1]\npinned = [4000]\n[[load]]\nname = \"a\"\nkind = \
                    \"spin\"\nwork = 1\nconcurrency = [1]\n";
        check(&["density", "run", &file(&program, text)], "pin fewer VMs, or run them without pinning");
        let text = text.replace("pinned = [4000]", "").replace("vcpu = 1", "vcpu = 1\nmemory = \"100 TiB\"");
        check(&["density", "run", &file(&program, &text)], "give cells less memory");
        assert_nothing_left(&program);
    }
}

#[test]
fn document_003_through_the_program() {
    let program = Program::new("density-document");
    let (out, _) = program.expect(0, &["density", "report", "arenadata", "--html", "page.html"]);
    for want in ["50% of 15  160% of 11", "50% of 15  170% of 15", "x2.7", "x3.0", "1:52:42"] {
        assert!(out.contains(want), "{want}: {out}");
    }
    assert!(std::fs::read_to_string(program.path("page.html")).unwrap().contains("<svg"));
    let plan = |status, more: &[&str]| {
        let args = [&["density", "plan", "--from", "arenadata", "--max-harm", "60"], more].concat();
        program.expect(status, &args).0
    };
    assert!(plan(3, &[]).contains("only published means"));
    let out = plan(0, &["--accept-means", "--fleet", "1000"]);
    assert!(out.starts_with("4 VMs per server fit: shared-core"), "{out}");
    assert!(out.contains("needs 250 servers instead of 1000"), "{out}");
    let json: serde_json::Value = serde_json::from_str(&plan(0, &["--accept-means", "--json"])).unwrap();
    assert_eq!((&json["answer"], &json["fits"]["per_server"]), (&"fits".into(), &4.into()));
}

pub(crate) const LADDER: &str = "repeats = 1\n[cell]\nvcpu = 1\nmemory = \"64 MiB\"\n[ladder]\ncells = [2]\n[[load]]\nconcurrency = [1]\n\
                      [limits]\ntimeout = \"60 s\"\n";
pub(crate) const GOOD: &str = "echo ready; read go; ";

/// One rung of a script, which has to fail.
fn failure_of(program: &Program, script: &str, ladder_text: &str) -> (FailureKind, String, Vec<String>) {
    let path = scripted(program, script, ladder_text);
    let (out, _) = program.expect(1, &["density", "run", &path]);
    assert!(out.contains("attempts completed"), "{out}");
    let ladder = ladder(program);
    let failure = ladder.rungs[0].attempts[0].failure.clone().unwrap();
    assert_nothing_left(program);
    (failure.kind, failure.reason, failure.evidence)
}

// promise 42
#[test]
fn engines_that_hang_die_or_fail_in_one_cell_only() {
    if !can_write_cgroups("engines_that_hang_die_or_fail_in_one_cell_only") {
        return;
    }
    let program = Program::new("density-faults");
    let done = "echo done 0.1; cat >/dev/null";
    let in_second = |what: &str| format!("{GOOD} if [ $1 = 1 ]; then {what}; fi; {done}");
    let hasty = LADDER.replace("60 s", "3 s");
    let (kind, reason, _) = failure_of(&program, &in_second("exec sleep 1000"), &hasty);
    assert_eq!(kind, FailureKind::TimedOut, "{reason}");
    // What it says is read before it is seen to have ended.
    let full = in_second("echo the disk is full; sleep 1; exit 3");
    let (kind, reason, evidence) = failure_of(&program, &full, LADDER);
    assert_eq!((kind, reason.as_str()), (FailureKind::Ended, "the program of cell 2 ended with status 3"));
    assert!(evidence.iter().any(|line| line == "cell 2: the disk is full"), "{evidence:?}");
    let (kind, reason, _) =
        failure_of(&program, &in_second("echo fail q14: no such table; cat >/dev/null"), LADDER);
    assert_eq!((kind, reason.as_str()), (FailureKind::Query, "cell 2: q14: no such table"));
    let (kind, reason, _) = failure_of(&program, &format!("{GOOD} echo result q1 $1; {done}"), LADDER);
    assert_eq!(kind, FailureKind::WrongResult, "{reason}");
    assert!(reason.starts_with("the result of q1 differs from its first result"), "{reason}");
    // An engine that says so itself has as little memory as one that is killed.
    let out = "echo 'fail q67: Out of Memory Error: failed to allocate'; cat >/dev/null";
    let (kind, reason, _) = failure_of(&program, &in_second(out), LADDER);
    assert_eq!(kind, FailureKind::OutOfMemory, "{reason}");
    // One that never becomes ready, but dies, is told as well.
    let (kind, _, _) = failure_of(&program, "exit 7", LADDER);
    assert_eq!(kind, FailureKind::Ended);
}

// promise 42
#[test]
fn a_cell_whose_memory_runs_out() {
    if !can_write_cgroups("a_cell_whose_memory_runs_out") {
        return;
    }
    let program = Program::new("density-oom");
    // Without a newline tail keeps all that it reads.
    let eat = "if [ $1 = 1 ]; then exec tail /dev/zero; fi;";
    let script = format!("{GOOD} {eat} echo done 0.1; cat >/dev/null");
    let path = scripted(&program, &script, LADDER);
    program.expect(1, &["density", "run", &path]);
    let attempt = ladder(&program).rungs[0].attempts[0].clone();
    let failure = attempt.failure.unwrap();
    if !attempt.counters.contains_key("oom-kills") {
        println!("skipped: a_cell_whose_memory_runs_out: this machine has no memory controller");
        return;
    }
    assert_eq!(failure.kind, FailureKind::OutOfMemory, "{failure:?}");
    // Nor is it another failure when it happens before the cell is ready.
    let (kind, reason, _) = failure_of(&program, &format!("{eat} {GOOD}"), LADDER);
    assert_eq!(kind, FailureKind::OutOfMemory, "{reason}");
    assert!(reason.contains("ended with status"), "{reason}");
}

/// What the kernel kills in a cgroup that a cell's program made below its own fails the cell, also when the program
/// itself goes on.
// promise 42
#[test]
fn a_helper_whose_memory_runs_out_in_a_cgroup_of_its_own() {
    let test = "a_helper_whose_memory_runs_out_in_a_cgroup_of_its_own";
    let memory = Path::new("/sys/fs/cgroup/memory");
    if !can_write_cgroups(test) || !memory.join("memory.oom_control").exists() {
        println!("skipped: {test}: no memory hierarchy of cgroup v1");
        return;
    }
    let program = Program::new("density-oom-below");
    let helper = "d=/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)/inner; mkdir $d; \
                  sh -c \"echo \\$\\$ >$d/cgroup.procs; exec tail /dev/zero\";";
    let script = format!("{GOOD} {helper} echo done 0.1; cat >/dev/null; rmdir $d");
    let (kind, reason, _) = failure_of(&program, &script, LADDER);
    assert_eq!(kind, FailureKind::OutOfMemory, "{reason}");
}

#[test]
fn two_failed_rungs_leave_the_higher_ones_out() {
    if !can_write_cgroups("two_failed_rungs_leave_the_higher_ones_out") {
        return;
    }
    let program = Program::new("density-stop");
    let script = format!("{GOOD} if [ $3 -gt 1 ]; then exit 1; fi; echo done 0.1; cat >/dev/null");
    // Three repeats: after the first all of 2, 4 and 8 have failed, or were left out already.
    let text = LADDER.replace("repeats = 1", "repeats = 3").replace("[1]", "[1, 2, 4, 8]");
    let (out, _) = program.expect(1, &["density", "run", &scripted(&program, &script, &text)]);
    let ladder = ladder(&program);
    assert!(attempts(&ladder, "t", 1, "N2").iter().all(|one| one.seconds.is_some()));
    assert_eq!(attempts(&ladder, "t", 2, "N2").len(), 3);
    assert!(attempts(&ladder, "t", 8, "N2").len() < 3, "it was left out once two lower ones had failed");
    assert!(out.contains("x of") || out.contains("  x"), "{out}");
    assert_nothing_left(&program);
}

// promise 42
#[test]
fn an_interrupted_run_is_gone_on_with() {
    if !can_write_cgroups("an_interrupted_run_is_gone_on_with") {
        return;
    }
    let program = Program::new("density-resume");
    // Both cells of two attempts come to their end; the others wait until the run may go on.
    let script = format!(
        "{GOOD} cd {}; until test -e go-on || test $(ls | grep -c ^done-) -lt 4; do sleep 0.05; done; : >done-$$; \
         echo done 0.3; cat >/dev/null",
        program.dir.path().display()
    );
    let text = LADDER.replace("repeats = 1", "repeats = 8");
    let path = scripted(&program, &script, &text);
    let mut child = program.command(&["density", "run", &path]).spawn().unwrap();
    let recorded = |least: usize| {
        let text = std::fs::read_to_string(program.path("density.json")).unwrap_or_default();
        Ladder::from_json(&text)
            .is_ok_and(|ladder| ladder.rungs.iter().any(|rung| rung.attempts.len() >= least))
    };
    until("two attempts are recorded", || recorded(2));
    program.ran.lock().unwrap().push(child.id());
    assert!(signal(child.id(), Signal::INT));
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let before = ladder(&program).rungs[0].attempts.clone();
    assert!((2..8).contains(&before.len()), "{} attempts", before.len());
    assert_nothing_left(&program);
    std::fs::write(program.path("go-on"), "").unwrap();
    program.expect(0, &["density", "run", &path, "--resume", "density.json"]);
    let after = ladder(&program);
    assert_eq!(after.rungs[0].attempts.len(), 8);
    assert_eq!(after.rungs[0].attempts[..before.len()], before[..]);
    assert!(after.notes.iter().any(|note| note.contains("was interrupted after")));
    let args = after.tool.unwrap().args;
    assert!(args.ends_with(&["density", "run", &path].map(str::to_owned)), "it was not begun by {args:?}");
    let (_, err) = program.expect(2, &["density", "run", &path, "--resume", "density.json", "--seed", "9"]);
    assert!(err.contains("cannot be continued"), "{err}");
}

// promise 42
#[test]
fn a_killed_run_is_undone_by_the_next() {
    if !can_write_cgroups("a_killed_run_is_undone_by_the_next") {
        return;
    }
    let program = Program::new("density-kill");
    let slow = scripted(&program, &format!("{GOOD} sleep 1000"), &LADDER.replace("60 s", "1000 s"));
    let mut child = program.command(&["density", "run", &slow]).spawn().unwrap();
    let prefix = format!("commensal-density-{}", child.id());
    until("a cell is made", || !cgroups_named(&prefix).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!cgroups_named(&prefix).is_empty());
    let quick = scripted(&program, &format!("{GOOD} echo done 0.1; cat >/dev/null"), LADDER);
    // A cell that was just being started has the lock until it is its program, or dies with the run.
    let output = until_some("the lock is free", || {
        let output = program.run(&["density", "run", &quick]);
        let busy = crate::support::text(&output.stderr).contains("another lab run");
        (!busy).then_some(output)
    });
    let err = crate::support::text(&output.stderr);
    assert!(output.status.success() && err.contains("cleaned up after an earlier run"), "{err}");
    assert!(cgroups_named(&prefix).is_empty());
    assert_nothing_left(&program);
}

/// A cell of the built-in kinds ends by itself when the conductor lets go: it is not to be waited for, nor to be killed.
#[test]
fn a_cell_ends_with_its_input() {
    let program = Program::new("density-cell");
    for kind in [&[][..], &["--barrier"], &["--stream", "3000000"]] {
        let args = [&["workload", "cell", "--vcpu", "2", "--sessions", "3", "--work", "2"], kind].concat();
        let mut command = program.command(&args);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let output = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut said = Vec::new();
        for line in std::io::BufRead::lines(output).map_while(Result::ok) {
            if line == "ready" {
                // Alone: the only port is its own.
                let ports =
                    said.iter().find_map(|line: &String| line.strip_prefix("port ")).unwrap_or_default();
                std::io::Write::write_all(&mut input, format!("go {ports}\n").as_bytes()).unwrap();
            }
            let done = line.starts_with("done ");
            said.push(line);
            if done {
                break;
            }
        }
        drop(input);
        if !holds_within(PATIENCE, || child.try_wait().unwrap().is_some()) {
            let _ = child.kill();
            panic!("it goes on without anybody to answer: {said:?}");
        }
        assert!(child.wait().unwrap().success(), "{said:?}");
    }
}
