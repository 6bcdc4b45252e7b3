//! Ladders on the running machine whose times count: cells that compute, that wait for each other, that take several times as long
//! as alone, and the calibration of the planner.

use crate::density::{
    GOOD, LADDER, LADDER_PATIENCE, PATIENCE, assert_nothing_left, attempts, file, ladder, scripted,
};
use crate::support::{Program, can_write_cgroups, cgroups_named, text};
use commensal_density::record::FailureKind;
use commensal_testkit::{members, within_every};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

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
    let mut child = program.command(&["density", "run", path]).stdout(Stdio::piped()).spawn().unwrap();
    program.ran.lock().unwrap().push(child.id());
    let groups = format!("commensal-density-{}-", child.id());
    let holds_processes = |dir: &PathBuf| !members(dir).is_empty();
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
    let out = text(&output.stdout);
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
        LADDER.replace("[2]", "[1, 2]").replace("60 s", "6x") + "timeout-first = \"100 s\"\n" + &warning;
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

/// Sleepers do not disturb each other; the third one takes five times as long as any alone.
#[test]
fn the_density_is_measured_by_bisection() {
    if !can_write_cgroups("the_density_is_measured_by_bisection") {
        return;
    }
    let program = Program::new("density-measure");
    let text = LADDER.replace("repeats = 1", "repeats = 5");
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
