//! `commensal run` waits its turn, and `commensal queue` shows who does.

use super::{files, view};
use crate::support::{Program, text, waits_for_a_cpu};
use commensal_host::LinuxHost;
use commensal_testkit::{Signal, line, signal, throughout, until};
use serde_json::Value;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

fn groups(queue: &str) -> String {
    format!("[group.etl]\nclass = \"offline\"\nqueue = {{ {queue} }}\n")
}

/// `commensal run` in the background, with what it says.
struct Job {
    child: Child,
}

impl Job {
    fn start(program: &Program, options: &[&str], script: &str) -> Job {
        let config = program.path("groups.toml");
        let mut args = vec!["run", "-g", "etl", "-c", config.to_str().unwrap()];
        args.extend(options);
        args.extend(["--", "sh", "-c", script]);
        // Whoever started the tests may ignore some signals (nohup, a background job).
        let plain = program.command(&args);
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,INT,QUIT,TERM").arg(plain.get_program()).args(plain.get_args());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Job { child: command.spawn().unwrap() }
    }

    /// The next line that the command prints.
    fn line(&mut self) -> String {
        line(self.child.stdout.as_mut().unwrap())
    }

    /// The first line of what commensal says.
    fn said(&mut self) -> String {
        loop {
            let said = line(self.child.stderr.as_mut().unwrap());
            if !waits_for_a_cpu(&said) {
                return said;
            }
        }
    }

    /// Lets the command end that waits for its input's end; gives the status and what else commensal said.
    fn end(mut self) -> (ExitStatus, String) {
        drop(self.child.stdin.take());
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let said: String = said.split_inclusive('\n').filter(|line| !waits_for_a_cpu(line)).collect();
        (self.child.wait().unwrap(), said)
    }

    fn waits(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

/// A test that fails leaves nobody behind.
impl Drop for Job {
    fn drop(&mut self) {
        if self.waits() {
            signal(self.child.id(), Signal::TERM);
            drop(self.child.stdin.take());
            let _ = self.child.wait();
        }
    }
}

/// A command that says its number and ends with its input.
const STAYS: &str = "echo $$; read -r _; exit 5";

fn queue(program: &Program) -> Value {
    let config = program.path("groups.toml");
    let (out, _) = program.expect(0, &["queue", "-c", config.to_str().unwrap(), "--json"]);
    serde_json::from_str(&out).unwrap()
}

fn waiting(program: &Program) -> usize {
    view(&program.state()).waiting.len()
}

#[test]
fn a_command_waits_its_turn_and_says_so_once() {
    let program = Program::new("queue");
    let config = program.groups(&groups("max-concurrency = 1, max-size = 5, timeout = \"10 min\""));
    let mut first = Job::start(&program, &[], STAYS);
    let pid: u32 = first.line().parse().unwrap();
    let mut second = Job::start(&program, &[], STAYS);
    let said = second.said();
    assert_eq!(
        said,
        "commensal: group etl: waiting at place 1 of the queue, for 10 min at most (1 of 1 run)"
    );
    let now = &queue(&program)[0];
    assert_eq!(
        (&now["group"], &now["max_concurrency"], &now["timeout_ms"]),
        (&"etl".into(), &1.into(), &600_000.into())
    );
    assert_eq!(now["held"], Value::Null);
    until("the command's own number", || queue(&program)[0]["running"][0]["pid"] == pid);
    assert_eq!(now["waiting"][0]["place"], 1);
    assert_eq!(now["waiting"][0]["pid"], second.child.id());
    let (shown, _) = program.expect(0, &["queue", "-c", config.to_str().unwrap()]);
    assert!(shown.starts_with("etl: 1 of 1 run, 1 of 5 wait\n  runs "), "{shown}");
    assert!(shown.contains("waits 1") && shown.contains("sh -c \"echo $$; read -r _; exit 5\""), "{shown}");
    assert!(second.waits());
    let (status, _) = first.end();
    assert_eq!(status.code(), Some(5));
    second.line();
    let (status, said) = second.end();
    assert_eq!((status.code(), said.as_str()), (Some(5), ""), "it says so once");
    assert_eq!(files(&program.state()), [""; 0]);
    let (shown, _) = program.expect(0, &["queue", "-c", config.to_str().unwrap()]);
    assert_eq!(shown, "etl: 0 of 1 run, 0 of 5 wait\n");
}

// promise 17
#[test]
fn full_late_and_no_wait_are_told_apart() {
    let program = Program::new("full");
    let config = program.groups(&groups("max-concurrency = 1, max-size = 1, timeout = \"100 ms\""));
    let config = config.to_str().unwrap();
    let mut first = Job::start(&program, &[], STAYS);
    first.line();
    let run = |options: &[&str]| {
        let mut args = vec!["run", "-g", "etl", "-c", config];
        args.extend(options);
        args.extend(["--", "true"]);
        program.expect(125, &args).1
    };
    let err = run(&["--no-wait"]);
    assert!(err.contains("1 run and 0 wait; it would have to wait, which --no-wait forbids"), "{err}");
    let err = run(&[]);
    assert!(err.contains("waited 100 ms in the queue and was not admitted (1 run and 0 wait)"), "{err}");
    let err = run(&["--queue-timeout", "20ms"]);
    assert!(err.contains("waited 20 ms in the queue"), "{err}");
    program.groups(&groups("max-concurrency = 1, max-size = 1"));
    let mut second = Job::start(&program, &[], STAYS);
    second.said();
    let err = run(&[]);
    assert!(err.contains("the queue is full: 1 run and 1 of 1 wait"), "{err}");
    assert_eq!(first.end().0.code(), Some(5));
    assert_eq!(second.end().0.code(), Some(5));
    program.expect(0, &["run", "-g", "etl", "-c", config, "--no-wait", "--", "true"]);
}

/// A signal takes one out of the line at once, without a ticket left and without harm to those behind it.
// promise 17
#[test]
fn ctrl_c_leaves_the_queue() {
    let program = Program::new("leave");
    program.groups(&groups("max-concurrency = 1"));
    let mut first = Job::start(&program, &[], STAYS);
    first.line();
    let mut line: Vec<(Job, Signal, i32)> = Vec::new();
    for (with, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let mut job = Job::start(&program, &[], "echo began");
        job.said();
        line.push((job, with, status));
    }
    let mut last = Job::start(&program, &[], "echo began");
    last.said();
    assert_eq!(waiting(&program), 5);
    // The one that is first in line hears it as well as one behind another.
    for (left, (job, with, status)) in line.into_iter().enumerate() {
        assert!(signal(job.child.id(), with));
        let (ended, said) = job.end();
        assert_eq!((ended.code(), said.as_str()), (Some(status), ""), "{with:?}");
        assert_eq!(files(&program.state()).len(), 1 + 4 - left, "no ticket is left");
    }
    assert!(last.waits());
    first.end();
    assert_eq!(last.line(), "began");
    assert_eq!(last.end().0.code(), Some(0));
}

/// What is killed frees its place; a command that outlives `commensal run` keeps its slot until it ends.
// promise 17
#[test]
fn kill_9_frees_what_it_should() {
    let program = Program::new("kill");
    program.groups(&groups("max-concurrency = 1"));
    let mut first = Job::start(&program, &[], STAYS);
    let pid: u32 = first.line().parse().unwrap();
    let mut second = Job::start(&program, &[], "echo began");
    second.said();
    let mut third = Job::start(&program, &[], "echo began");
    third.said();
    signal(second.child.id(), Signal::KILL);
    second.end();
    until("the dead one is not shown", || waiting(&program) == 1);
    // Its command lives on, and is what is shown.
    until("the command is noted", || queue(&program)[0]["running"][0]["pid"] == pid);
    let _input = first.child.stdin.take();
    signal(first.child.id(), Signal::KILL);
    first.child.wait().unwrap();
    let given = "the slot was given away although its command runs";
    throughout(Duration::from_millis(300), given, || third.waits());
    assert_eq!(queue(&program)[0]["running"][0]["pid"], pid);
    signal(pid, Signal::KILL);
    assert_eq!(third.line(), "began");
    assert_eq!(third.end().0.code(), Some(0));
}

/// A background process that a command leaves behind has no slot.
// promise 17
#[test]
fn what_is_left_in_the_background_has_no_slot() {
    let program = Program::new("background");
    let config = program.groups(&groups("max-concurrency = 1"));
    let mut first = Job::start(&program, &[], "sleep 300 >/dev/null 2>&1 & echo $!");
    let sleeper: u32 = first.line().parse().unwrap();
    assert_eq!(first.end().0.code(), Some(0));
    program.expect(0, &["run", "-g", "etl", "-c", config.to_str().unwrap(), "--no-wait", "--", "true"]);
    signal(sleeper, Signal::KILL);
    until("it has ended", || !std::path::Path::new(&format!("/proc/{sleeper}")).exists());
}

/// New limits hold for new arrivals at once, and max-concurrency for the first in line within a second.
// promise 17
#[test]
fn limits_may_change_while_people_wait() {
    let program = Program::new("edit");
    program.groups(&groups("max-concurrency = 1, max-size = 2"));
    let mut first = Job::start(&program, &[], STAYS);
    first.line();
    let mut second = Job::start(&program, &[], STAYS);
    second.said();
    let mut third = Job::start(&program, &[], STAYS);
    third.said();
    // While it is being edited it is wrong, and the old limits hold.
    program.groups("[group.etl\n");
    throughout(Duration::from_millis(1_200), "the old limits are gone", || second.waits() && third.waits());
    program.groups(&groups("max-concurrency = 2, max-size = 0"));
    second.line();
    // The third keeps the place that it has, although nobody could wait now.
    let config = program.path("groups.toml");
    let (_, err) = program.expect(125, &["run", "-g", "etl", "-c", config.to_str().unwrap(), "--", "true"]);
    assert!(err.contains("the queue is full: 2 run and 1 of 0 wait"), "{err}");
    assert!(third.waits());
    assert_eq!(second.end().0.code(), Some(5));
    third.line();
    // Fewer may run than do: nobody is ended, nobody begins.
    program.groups(&groups("max-concurrency = 1, max-size = 5"));
    let mut fourth = Job::start(&program, &[], STAYS);
    fourth.said();
    assert_eq!(third.end().0.code(), Some(5));
    throughout(Duration::from_millis(300), "more run than may", || fourth.waits());
    assert_eq!(first.end().0.code(), Some(5));
    fourth.line();
    // Without a queue there is nothing to wait for.
    let mut fifth = Job::start(&program, &[], "echo began");
    fifth.said();
    program.groups("[group.etl]\nclass = \"offline\"\n");
    assert_eq!(fifth.line(), "began");
    assert_eq!((fifth.end().0.code(), fourth.end().0.code()), (Some(0), Some(5)));
}

// promise 17
#[test]
fn a_hold_is_told_and_ends_by_itself() {
    let program = Program::new("held");
    let config = program.groups(&groups("max-concurrency = 4, max-size = 5"));
    let mut host = LinuxHost::default();
    let hold = |host: &mut LinuxHost, time| {
        commensal_reconcile::queue::hold(host, &program.state(), &super::etl(), "memory at 91 %", time)
            .unwrap();
    };
    hold(&mut host, Duration::from_secs(3_600));
    let run = ["run", "-g", "etl", "-c", config.to_str().unwrap(), "--no-wait", "--", "true"];
    let (_, err) = program.expect(125, &run);
    assert!(err.contains("the queue is held closed (memory at 91 %)"), "{err}");
    let mut job = Job::start(&program, &[], "echo began");
    let said = job.said();
    assert!(
        said.ends_with("waiting at place 1 of the queue (the queue is held closed: memory at 91 %)"),
        "{said}"
    );
    let (shown, _) = program.expect(0, &["queue", "-c", config.to_str().unwrap()]);
    assert!(
        shown.contains("etl: 0 of 4 run, 1 of 5 wait; held closed for ") && shown.contains("memory at 91 %"),
        "{shown}"
    );
    assert!(job.waits());
    // Nobody renews it.
    hold(&mut host, Duration::from_millis(200));
    assert_eq!(job.line(), "began");
    assert_eq!(job.end().0.code(), Some(0));
}

/// Another user has queues of their own, in their own state directory.
#[test]
fn a_user_who_is_not_root_has_a_queue() {
    let test = "a_user_who_is_not_root_has_a_queue";
    if rustix_euid() != 0 {
        println!("skipped: {test}: not root, so every other test here was that");
        return;
    }
    let program = Program::new("user");
    let config = program.groups(&groups("max-concurrency = 1"));
    let home = program.path("home");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65_534), Some(65_534)).unwrap();
    let copy = program.reachable();
    let run = |options: &[&str], script: &str| {
        let mut command = Command::new(&copy);
        command.args([
            "--state-dir",
            home.join("state").to_str().unwrap(),
            "--cgroup-prefix",
            &program.prefix,
        ]);
        command.args(["run", "-g", "etl", "-c", config.to_str().unwrap()]).args(options);
        command.args(["--", "sh", "-c", script]).uid(65_534).gid(65_534).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Job { child: command.spawn().unwrap() }
    };
    let mut first = run(&[], STAYS);
    first.line();
    let (status, said) = run(&["--no-wait"], "true").end();
    assert!(status.code() == Some(125) && said.contains("--no-wait forbids"), "{said}");
    let mut second = run(&[], "echo began");
    assert!(second.said().contains("waiting at place 1"));
    assert_eq!(first.end().0.code(), Some(5));
    assert_eq!(second.line(), "began");
    assert_eq!(second.end().0.code(), Some(0));
    assert_eq!(files(&home.join("state")), [""; 0]);
}

fn rustix_euid() -> u32 {
    use commensal_host::Host;
    LinuxHost::default().euid()
}

#[test]
fn a_broken_folder_is_told_and_nothing_starts() {
    let program = Program::new("broken");
    let config = program.groups(&groups("max-concurrency = 1"));
    std::fs::create_dir(program.state()).unwrap();
    std::fs::write(program.state().join("queue"), "").unwrap();
    let output = program.run(&["run", "-g", "etl", "-c", config.to_str().unwrap(), "--", "echo", "began"]);
    let err = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(125), ""), "{err}");
    assert!(err.contains("the admission queue in") && err.contains("so nothing was started"), "{err}");
}

/// On a disk of its own without room for one more file, in a mount namespace of its own.
// promise 17
#[test]
fn a_full_disk_is_told_and_nothing_starts() {
    let test = "a_full_disk_is_told_and_nothing_starts";
    let program = Program::new("disk");
    let config = program.groups(&groups("max-concurrency = 1"));
    std::fs::create_dir(program.state()).unwrap();
    // Folders and the lock fit; the job's own file does not.
    let script = "mount -t tmpfs -o size=64k,nr_inodes=6 small \"$1\" || exit 77; shift; exec \"$@\"";
    let run = program.command(&["run", "-g", "etl", "-c", config.to_str().unwrap(), "--", "echo", "began"]);
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
        .arg(program.state())
        .arg(run.get_program())
        .args(run.get_args())
        .output();
    let output = match output {
        Ok(output) if matches!(output.status.code(), Some(1 | 77)) => {
            println!("skipped: {test}: {}", text(&output.stderr).trim());
            return;
        }
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {test}: unshare: {error}");
            return;
        }
    };
    let err = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(125), ""), "{err}");
    assert!(err.contains("the admission queue in") && err.contains("no space left on device"), "{err}");
}

#[test]
fn groups_without_a_queue_have_none() {
    let program = Program::new("none");
    let config = program.groups("[group.etl]\nclass = \"offline\"\n");
    let config = config.to_str().unwrap();
    let (out, _) = program.expect(0, &["queue", "-c", config]);
    assert_eq!(out, format!("no group in {config} has a queue\n"));
    assert_eq!(program.expect(0, &["queue", "-c", config, "--json"]).0, "[]\n");
    program.expect(0, &["run", "-g", "etl", "-c", config, "--no-wait", "--", "true"]);
    assert!(!program.state().join("queue").exists());
}

mod measure {
    use super::*;
    use commensal_testkit::field_of_status;

    /// Times that a process has gone to sleep, all its threads together.
    fn sleeps(pid: u32) -> u64 {
        let mut sum = 0;
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
            let tid = task.file_name().to_str().unwrap().parse().unwrap();
            let switches = field_of_status(tid, "voluntary_ctxt_switches");
            sum += switches.map_or(0, |number| number.parse::<u64>().unwrap());
        }
        sum
    }

    /// Those who wait behind others do nothing at all; the first in line looks now and then.
    // promise 17
    #[test]
    fn nobody_polls() {
        /// A look takes a thread, a handful of locks and files; every 20 ms it would be some hundreds.
        const FEW: u64 = 60;
        let program = Program::new("polls");
        program.groups(&groups("max-concurrency = 1, timeout = \"10 min\""));
        let mut first = Job::start(&program, &[], STAYS);
        first.line();
        let mut line: Vec<Job> = Vec::new();
        for _ in 0..4 {
            let mut job = Job::start(&program, &[], "echo began");
            job.said();
            line.push(job);
        }
        // The looks after the last thing heard grow rarer for two seconds, which nothing shows but the looks themselves.
        std::thread::sleep(Duration::from_millis(2_500));
        let count = |line: &[Job]| line.iter().map(|job| sleeps(job.child.id())).collect::<Vec<u64>>();
        let before = count(&line);
        std::thread::sleep(Duration::from_secs(2));
        let woke: Vec<u64> =
            count(&line).iter().zip(before).map(|(after, before)| after.abs_diff(before)).collect();
        println!("woke in 2 s: {woke:?}");
        assert_eq!(woke[1..], [0, 0, 0], "those behind sleep");
        assert!(woke[0] < FEW, "the first polls: {woke:?}");
        first.end();
        for job in line {
            assert_eq!(job.end().0.code(), Some(0));
        }
    }
}
