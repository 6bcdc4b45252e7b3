//! Processes on the running kernel that are moved while they fork, and what a look at many of them costs.

use crate::processes::{Home, copy, places};
use crate::support::{Program, can_write_cgroups, cgroups_named};
use commensal_host::LinuxHost;
use commensal_testkit::{members, until};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

/// A process that forks all the time, whose children outlive it or not: in the end nobody is left behind, and all come home.
#[test]
fn a_process_that_forks_all_the_time() {
    let test = "a_process_that_forks_all_the_time";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("fork");
    let mut home = Home::new(&program);
    let shell = copy(&program, "/bin/sh", "sh");
    let script = "while :; do (sleep 0.3 & sleep 0.05 &) ; sleep 0.02 & wait $!; done";
    let first = home.start(&shell, &["-c", script]);
    home.start(&shell, &["-c", script]);
    until("both have forked", || home.inside().len() >= 4);
    let file = program.groups(&format!(
        "[group.busy]\nclass = \"offline\"\npids.max = 500\nmatch = [{{ process = {{ exe = \"{}\" }} }}]\n",
        shell.display()
    ));
    let config = file.to_str().unwrap();
    let (out, err) = program.expect(0, &["apply", "-c", config]);
    let own = format!("/{}-offline/busy", program.prefix);
    assert!(places(first).contains(&own), "{out}{err}");
    println!("{test}: {} processes moved in {} steps", out.matches("move     ").count(), out.lines().count());
    // What was born meanwhile and has lost its parent ends by itself; what is born now is inside. The group is not made where
    // it neither limits nor accounts.
    let made = |path: &Path| path.parent().unwrap().join(own.trim_start_matches('/')).exists();
    let left = || home.groups.iter().filter(|(path, _)| made(path) && !members(path).is_empty()).count();
    until("nobody is left behind", || left() == 0);
    let accounted: BTreeSet<u32> = cgroups_named("busy")
        .iter()
        .filter(|path| path.to_string_lossy().contains(&program.prefix))
        .flat_map(|path| members(path))
        .collect();
    assert!(accounted.len() >= 2, "{accounted:?}");
    let (out, _) = program.expect(0, &["restore"]);
    assert!(cgroups_named(&format!("{}-offline", program.prefix)).is_empty(), "{out}");
    assert!(home.inside().contains(&first), "{out}");
}

/// What a look costs with a thousand processes more; printed, not judged.
#[test]
fn a_look_at_many_processes() {
    let program = Program::new("many");
    if !can_write_cgroups("a_look_at_many_processes") {
        return;
    }
    let mut home = Home::new(&program);
    let victim = copy(&program, "/bin/sleep", "victim");
    let started: BTreeSet<u32> = (0..1_000).map(|_| home.start(&victim, &["300"])).collect();
    let others = std::fs::read_dir("/proc").unwrap().flatten().count();
    let specs = commensal_core::config::parse(
        "g",
        "[group.a]\nclass = \"offline\"\nmatch = [{ process = { exe = \"/no/such/program\", user = \"nobody\" } }]\n",
    )
    .unwrap();
    let matches: Vec<&commensal_core::group::Match> = specs[0].matches.iter().collect();
    let nothing = BTreeSet::new();
    let host = LinuxHost::new();
    let mut scanner = commensal_sensors::processes::Scanner::default();
    let wanted =
        commensal_sensors::processes::Wanted { matches: &matches, moved: &nothing, hierarchies: &[] };
    let mut took: Vec<f64> = Vec::new();
    for _ in 0..13 {
        let begin = Instant::now();
        assert!(scanner.scan(&host, &wanted).is_empty());
        took.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    took[3..].sort_by(f64::total_cmp);
    println!(
        "a_look_at_many_processes: {others} entries of /proc: first look {:.1} ms, later ones {:.1} ms (median of 10)",
        took[0], took[8]
    );
    // A kept scanner does not look at everybody every time.
    assert!(took[8] < took[0], "{took:?}");
    let all = "[group.a]\nclass = \"offline\"\nmatch = [{ process = { exe = \"";
    let file = program.groups(&format!("{all}{}\" }} }}]\n", victim.display()));
    let begin = Instant::now();
    program.expect(0, &["apply", "-c", file.to_str().unwrap()]);
    println!(
        "a_look_at_many_processes: {} processes moved in {:.0} ms",
        started.len(),
        begin.elapsed().as_secs_f64() * 1e3
    );
    let begin = Instant::now();
    program.expect(0, &["restore"]);
    println!("a_look_at_many_processes: and back in {:.0} ms", begin.elapsed().as_secs_f64() * 1e3);
    assert!(home.inside().is_superset(&started));
}
