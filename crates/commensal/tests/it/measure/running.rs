//! Offline commands on a machine whose CPUs are all busy: that they wait is told, and a signal that ends them does so.

use crate::support::{Program, can_write_cgroups};
use commensal_testkit::{Signal, alone, signal, until};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Programs that keep every CPU busy.
struct Busy(Vec<Child>);

impl Busy {
    fn start() -> Busy {
        let cpus = std::thread::available_parallelism().unwrap().get();
        let spin = || Command::new("sh").args(["-c", "ulimit -t 300; while :; do :; done"]).spawn().unwrap();
        Busy((0..2 * cpus).map(|_| spin()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

// promise 16
#[test]
fn a_command_that_waits_says_so_and_ends_at_once() {
    let test = "a_command_that_waits_says_so_and_ends_at_once";
    if !can_write_cgroups(test) {
        return;
    }
    let _alone = alone();
    let program = Program::new("waits");
    let groups = program.groups("[group.etl]\nclass = \"offline\"\n");
    let _busy = Busy::start();
    for (with, command) in [
        (Signal::INT, ["sh", "-c", "while :; do :; done"]),
        (Signal::TERM, ["sh", "-c", "while :; do :; done"]),
    ] {
        let mut run = program.command(&["run", "-g", "etl", "-c", groups.to_str().unwrap(), "--"]);
        run.args(command).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut run = run.spawn().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let (stderr, lines) = (run.stderr.take().unwrap(), Arc::clone(&said));
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                *lines.lock().unwrap() += &line;
            }
        });
        let begun = Instant::now();
        until("it says that it waits", || said.lock().unwrap().contains("waits for a CPU"));
        let told = begun.elapsed();
        // Meanwhile other commands are not kept out.
        let plan = program.run(&["plan", "-c", groups.to_str().unwrap()]);
        assert_ne!(plan.status.code(), Some(2), "{plan:?}");
        let sent = Instant::now();
        assert!(signal(run.id(), with));
        let status = run.wait().unwrap();
        let took = sent.elapsed();
        reader.join().unwrap();
        println!("{test}: {command:?}: told after {told:.2?}, ended {took:.2?} after {with:?}: {status}");
        assert!(took < Duration::from_secs(3), "{took:?}: {}", said.lock().unwrap());
        assert!(!status.success());
    }
}
