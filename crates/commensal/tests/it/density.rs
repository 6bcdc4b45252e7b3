//! `commensal density`: classes, document 003 through the program, and ladders on the running machine: cells that compute, that
//! wait for each other, that die, hang, run out of memory or answer wrongly.

mod vms;

use crate::support::{Program, can_write_cgroups, cgroups_named};
use commensal_density::record::{Attempt, FailureKind, Ladder};
use commensal_testkit::{Signal, holds_within, members, signal, until, until_some, within_every};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a started run may take to do what a test waits for: the machine's host takes its CPUs away for seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// The same for a whole ladder.
const LADDER_PATIENCE: Duration = Duration::from_secs(280);

fn ladder(program: &Program) -> Ladder {
    let text = std::fs::read_to_string(program.path("density.json")).unwrap();
    Ladder::from_json(&text).unwrap()
}

fn attempts<'l>(ladder: &'l Ladder, test: &str, concurrency: u32, placement: &str) -> &'l [Attempt] {
    &ladder
        .rung(test, concurrency, placement)
        .unwrap_or_else(|| panic!("{test} {concurrency} {placement}"))
        .attempts
}

/// Writes a ladder's file.
fn file(program: &Program, text: &str) -> String {
    let path = program.path("ladder.toml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// A ladder of a shell script that speaks the cells' protocol: `$1` is the cell, `$3` the sessions.
fn scripted(program: &Program, script: &str, ladder: &str) -> String {
    let path = program.path("cell.sh");
    std::fs::write(&path, script).unwrap();
    let load = format!(
        "[[load]]\nname = \"t\"\nkind = \"program\"\ncommand = [\"/bin/sh\", {:?}]\nwork = 1\n",
        path.display().to_string()
    );
    file(program, &ladder.replace("[[load]]\n", &load))
}

/// Nothing of this program's runs is left: no group, and no journal that has anything to undo.
fn assert_nothing_left(program: &Program) {
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

/// CPU time of each of twice as many spinners as CPUs, as a share of that of one spinner alone: 0.5, with room for what
/// other work takes from only one of the two.
const LEFT_OF_A_HALF: std::ops::Range<f64> = 0.15..0.8;

/// Spinners on P CPUs: the steal of N of them is (N − P)/N. Others use the machine, too, so the bounds are wide, and each
/// spins for seconds: the kernel takes some tenths of one to give a new group its share of every CPU.
// promise 41
#[test]
fn spinners_steal_what_arithmetic_says() {
    let test = "spinners_steal_what_arithmetic_says";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("density-spin");
    let cpus = std::thread::available_parallelism().unwrap().get();
    if cpus > 16 {
        println!("skipped: {test}: {cpus} CPUs are too many to fill in a test of some seconds");
        return;
    }
    let (one, twice) = (1, 2 * cpus);
    let text = format!(
        "repeats = 1\n[cell]\nvcpu = 1\nmemory = \"64 MiB\"\nquota = true\n[ladder]\ncells = [{one}, {twice}]\n[[load]]\n\
         name = \"spin\"\nkind = \"spin\"\nwork = 1500\nconcurrency = [1]\n[limits]\ntimeout = \"100 s\"\n"
    );
    let path = file(&program, &text);
    let out = run_with_weight(&program, &path);
    assert!(out.contains(&format!("N{twice} time")), "{out}");
    let ladder = ladder(&program);
    let spun = |cells: usize| &attempts(&ladder, "spin", 1, &format!("N{cells}"))[0];
    let (alone, crowded) = (spun(one).steal_pct.unwrap(), spun(twice).steal_pct.unwrap());
    // Each of twice as many spinners as CPUs gets half of what one has that is alone; other work on the machine, and the
    // machine's own hypervisor, take their part from both.
    let left = (100.0 - crowded) / (100.0 - alone);
    assert!(
        alone < crowded && LEFT_OF_A_HALF.contains(&left),
        "steal {alone} % alone and {crowded} % crowded"
    );
    let change = spun(twice).seconds.unwrap() / spun(one).seconds.unwrap();
    assert!(change > 1.2, "half of the time is stolen, and it took {change} times as long");
    assert_nothing_left(&program);
}

/// Runs a ladder whose cells have more weight than whatever else this machine does: what they steal is from each other. Not
/// all the weight that there is, since who conducts the run has to get its turns as well.
fn run_with_weight(program: &Program, path: &str) -> String {
    let mut child =
        program.command(&["density", "run", path]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    program.ran.lock().unwrap().push(child.id());
    let groups = format!("commensal-density-{}-", child.id());
    let holds_processes = |dir: &std::path::PathBuf| !members(dir).is_empty();
    // What looks at the groups shares the CPUs with the ladder.
    within_every(Duration::from_millis(10), LADDER_PATIENCE, "the ladder has ended", || {
        let dirs = cgroups_named(&groups);
        // Before the first cell starts, the program writes weights itself and looks whether they stay.
        let begun = dirs.iter().any(holds_processes);
        for dir in dirs.into_iter().filter(|_| begun) {
            for (file, weight) in [("cpu.shares", "32768"), ("cpu.weight", "3200")] {
                // A group may go meanwhile, and has one of the files at most.
                if std::fs::read_to_string(dir.join(file)).is_ok_and(|now| now.trim() != weight) {
                    let _ = std::fs::write(dir.join(file), weight);
                }
            }
        }
        child.try_wait().unwrap().is_some()
    });
    let output = child.wait_with_output().unwrap();
    let out = crate::support::text(&output.stdout);
    assert!(output.status.success(), "{}: {out}", output.status);
    out
}

#[test]
fn cells_wait_for_each_other_over_datagrams() {
    if !can_write_cgroups("cells_wait_for_each_other_over_datagrams") {
        return;
    }
    let program = Program::new("density-mpp");
    let text = "repeats = 1\n[cell]\nvcpu = 2\n[ladder]\ncells = [1, 3]\n[[load]]\nname = \"mpp\"\nkind = \"mpp\"\nwork = 10\n\
                concurrency = [3]\n";
    program.expect(0, &["density", "run", &file(&program, text)]);
    let ladder = ladder(&program);
    let three = &attempts(&ladder, "mpp", 3, "N3")[0];
    let times = &three.vm_seconds;
    assert_eq!(times.len(), 3);
    // A barrier after every step: nobody is done much before the others.
    let (least, most) =
        times.iter().fold((f64::MAX, 0.0_f64), |(least, most), &one| (least.min(one), most.max(one)));
    assert!(most - least < 0.5 * most, "{times:?}");
    assert!(three.warnings.contains_key("net"), "{three:?}");
    assert_nothing_left(&program);
}

const LADDER: &str = "repeats = 1\n[cell]\nvcpu = 1\nmemory = \"64 MiB\"\n[ladder]\ncells = [2]\n[[load]]\nconcurrency = [1]\n\
                      [limits]\ntimeout = \"3 s\"\n";
const GOOD: &str = "echo ready; read go; ";

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
    let (kind, reason, _) = failure_of(&program, &in_second("exec sleep 1000"), LADDER);
    assert_eq!(kind, FailureKind::TimedOut, "{reason}");
    let (kind, reason, evidence) = failure_of(&program, &in_second("echo the disk is full; exit 3"), LADDER);
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
    let path = scripted(&program, &script, &LADDER.replace("3 s", "60 s"));
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

// promise 41
#[test]
fn a_limit_in_times_of_the_first_placement_and_warnings_by_expression() {
    if !can_write_cgroups("a_limit_in_times_of_the_first_placement_and_warnings_by_expression") {
        return;
    }
    let program = Program::new("density-times");
    let log = program.path("segment.log");
    let written = format!("echo 'WARNING: 100 retries to seg7' >>{0}; echo 'LOG: fine' >>{0}", log.display());
    // The second cell hangs; alone, the first takes half a second.
    let script = format!(
        "{GOOD} {written}; if [ $1 = 1 ]; then exec sleep 1000; fi; sleep 0.5; echo done 0.5; cat >/dev/null"
    );
    let warning = format!(
        "[[warning]]\nname = \"net\"\nfile = {:?}\nregex = '^WARNING: \\d+ retries to seg\\d+$'\n",
        log.display().to_string()
    );
    let text =
        LADDER.replace("[2]", "[1, 2]").replace("3 s", "6x") + "timeout-first = \"100 s\"\n" + &warning;
    let begun = Instant::now();
    program.expect(1, &["density", "run", &scripted(&program, &script, &text)]);
    assert!(begun.elapsed() < Duration::from_secs(100), "it waited for the limit of the first placement");
    let ladder = ladder(&program);
    let failure = attempts(&ladder, "t", 1, "N2")[0].failure.clone().unwrap();
    assert_eq!(failure.kind, FailureKind::TimedOut, "{failure:?}");
    assert!(
        failure.reason.starts_with("the cells had not finished (time limit: 6 times the time of N1) after "),
        "{failure:?}"
    );
    let counted = |placement| attempts(&ladder, "t", 1, placement)[0].warnings["net"];
    assert_eq!((counted("N1"), counted("N2")), (1, 2));
    assert_nothing_left(&program);
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
    let script = format!("{GOOD} sleep 0.3; echo done 0.3; cat >/dev/null");
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
    let slow = scripted(&program, &format!("{GOOD} sleep 1000"), &LADDER.replace("3 s", "1000 s"));
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

/// Sleepers do not disturb each other; the third one takes five times as long as any alone.
#[test]
fn the_density_is_measured_by_bisection() {
    if !can_write_cgroups("the_density_is_measured_by_bisection") {
        return;
    }
    let program = Program::new("density-measure");
    let text = LADDER.replace("repeats = 1", "repeats = 5").replace("3 s", "60 s");
    let script =
        format!("{GOOD} if [ $1 = 2 ]; then sleep 2; else sleep 0.4; fi; echo done 1; cat >/dev/null");
    let path = scripted(&program, &script, &text);
    let args = ["density", "plan", "--measure", &path, "--max-harm", "150", "--most", "4", "--json"];
    let begun = Instant::now();
    let answer = loop {
        let output = program.run(&args);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        // What this machine's own hypervisor takes away makes an answer worthless, and is not to be had otherwise.
        let taken = answer["why"].as_str().filter(|why| why.contains("hypervisor"));
        if let Some(why) = taken.filter(|_| begun.elapsed() > PATIENCE) {
            println!("skipped: the_density_is_measured_by_bisection: for {} s: {why}", PATIENCE.as_secs());
            return;
        }
        if taken.is_none() {
            assert_eq!(output.status.code(), Some(0), "{answer}");
            break answer;
        }
        println!("{}; looking again", answer["why"]);
    };
    assert_eq!(
        (&answer["fits"]["per_server"], &answer["next"][0]["per_server"]),
        (&2.into(), &3.into()),
        "{answer}"
    );
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

/// TPC-DS itself: what `prepare` gets, and a ladder of both engines upon it.
#[test]
fn tpcds_runs_in_cells() {
    let test = "tpcds_runs_in_cells";
    if std::env::var_os("COMMENSAL_KILL_ROUNDS").is_none() {
        println!("skipped: {test}: it fetches an engine and takes minutes (cargo xtask ci --long)");
        return;
    }
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("density-tpcds");
    let postgres = Path::new("/usr/lib/postgresql").exists();
    let prepare: &[&str] = if postgres {
        &["density", "prepare", "--scale", "0.01", "--postgres"]
    } else {
        &["density", "prepare", "--scale", "0.01"]
    };
    let output = program.run(prepare);
    if !output.status.success() {
        println!("skipped: {test}: {}", crate::support::text(&output.stderr));
        return;
    }
    // A copy of a cluster whose cell was killed.
    let copies = Path::new("/var/tmp").join(format!(
        "commensal-density-{}/cells",
        commensal_host::Host::euid(&commensal_host::LinuxHost::new())
    ));
    let left = copies.join("99999999");
    if postgres {
        let owned = std::process::Command::new("install")
            .args(["-d", "-o", "postgres", "-g", "postgres", "-m", "700"])
            .args([&copies, &left])
            .status();
        assert!(owned.unwrap().success());
    }
    for engine in if postgres { &["duckdb", "postgres"][..] } else { &["duckdb"] } {
        let text = format!(
            "repeats = 1\n[cell]\nvcpu = 1\nmemory = \"1 GiB\"\nquota = true\n[ladder]\ncells = [1, 2]\n[[load]]\nname = \"Lite\"\n\
             kind = \"{engine}\"\nscale = 0.01\nconcurrency = [1, 2]\n[[load]]\nname = \"Full\"\nkind = \"{engine}\"\n\
             queries = \"full\"\ncold = true\nscale = 0.01\nconcurrency = [1]\n[limits]\ntimeout = \"10 min\"\n"
        );
        program.expect(0, &["density", "run", &file(&program, &text)]);
        let ladder = ladder(&program);
        assert_eq!(ladder.test("Lite").unwrap().work, 51.0);
        // Every query gave its result in every cell: others would have failed the rung.
        let results = ladder.results.keys().filter(|key| key.starts_with("Full ")).count();
        assert_eq!(results as f64, ladder.test("Full").unwrap().work, "{engine}");
        // Connections last, so what a cell's threads do is seen.
        let unseen = ladder.rungs.iter().flat_map(|rung| &rung.attempts).filter_map(|one| one.unseen_pct);
        let unseen: Vec<f64> = unseen.collect();
        assert!(!unseen.is_empty() && unseen.iter().all(|pct| *pct < 15.0), "{engine}: {unseen:?}");
    }
    assert!(!postgres || !left.exists(), "{} is still there", left.display());
    // In a tenth of the memory it fails, and says why.
    let text = "repeats = 1\n[cell]\nvcpu = 1\nmemory = \"96 MiB\"\n[ladder]\ncells = [1]\n[[load]]\nname = \"Full\"\n\
                kind = \"duckdb\"\nqueries = \"full\"\nscale = 0.1\nconcurrency = [1]\n";
    program.expect(0, &["density", "prepare", "--scale", "0.1"]);
    program.expect(1, &["density", "run", &file(&program, text)]);
    let failure = ladder(&program).rungs[0].attempts[0].failure.clone().unwrap();
    assert_eq!(failure.kind, FailureKind::OutOfMemory, "{failure:?}");
    assert_nothing_left(&program);
}

/// What the planner's band rests on.
#[test]
fn this_machine_is_calibrated() {
    let test = "this_machine_is_calibrated";
    if std::env::var_os("COMMENSAL_KILL_ROUNDS").is_none() {
        println!("skipped: {test}: it takes a minute (cargo xtask ci --long)");
        return;
    }
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("density-calibrate");
    let (out, _) = program.expect(0, &["density", "calibrate"]);
    assert!(out.starts_with("--smt-gain ") && out.contains("GB/s with one core"), "{out}");
    // What it prints is what `plan` takes.
    let options: Vec<&str> = out.lines().next().unwrap().split(' ').collect();
    let plan = ["density", "plan", "--from", "arenadata", "--max-harm", "60", "--accept-means"];
    program.expect(0, &[&plan[..], &options].concat());
}
