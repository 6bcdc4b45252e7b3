//! Experiments from files that are refused, or whose service does not start.

use crate::bad_input::assert_nothing_left;
use crate::support::{Program, can_write_cgroups, text};
use commensal_core::actual::Hierarchy;
use commensal_core::knob::{Controller, Version};
use commensal_lab::record::Run;
use commensal_testkit::{cpu_time, members, until};
use std::path::PathBuf;
use std::process::Command;

pub const VERDICTS: [i32; 4] = [0, 1, 3, 4];
pub const SHORT: &str =
    "[design]\nrounds = 1\nblock = \"400 ms\"\nsettle = \"100 ms\"\nwarmup = \"200 ms\"\n";
pub(crate) const FOUR: &str = "arms = [\"baseline\", \"baseline2\", \"contended\", \"isolated\"]\n";
/// The service of this program, as if it were somebody else's.
pub const SERVICE: &str = "[online]\ncommand = [\"{program}\", \"workload\", \"http\", \"--port\", \"{port}\", \
                           \"--workers\", \"2\"]\nready = { http = \"/healthz\" }\n";
pub const LOAD: &str = "[load]\nhttp = \"/cpu?cpu=1&count=1000\"\nrate = 500\n";
pub const HOG: &str = "[offline]\ncommand = [\"sh\", \"-c\", \"while :; do :; done\"]\n";

/// Writes an experiment and gives its path.
pub(crate) fn file(program: &Program, text: &str) -> PathBuf {
    let path = program.path("mine.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs an experiment; its status, its record if there is one, and what it said.
pub fn run(program: &Program, text_: &str, more: &[&str]) -> (i32, Option<Run>, String) {
    let path = file(program, text_);
    let mut args = vec!["lab", "run", path.to_str().unwrap()];
    args.extend(more);
    let output = program.run(&args);
    let said = text(&output.stdout) + &text(&output.stderr);
    let record = std::fs::read(program.path("run.json")).ok();
    let record = record.map(|bytes| Run::from_json(&bytes).unwrap());
    (output.status.code().unwrap(), record, said)
}

/// Groups, files and processes of the run are gone.
pub(crate) fn nothing_left(program: &Program) {
    assert!(!program.state().join("lab-files").exists(), "the run's folder is still there");
    assert_nothing_left(&program.state());
}

/// Offline work of the machine in a group of every hierarchy, as a unit or a container has one.
pub(crate) struct Hog {
    pub(crate) name: String,
    pub(crate) child: std::process::Child,
}

impl Hog {
    /// It is in its groups.
    pub(crate) fn start(program: &Program) -> Hog {
        let name = format!("{}-etl.service", program.prefix);
        let groups: Vec<PathBuf> = hierarchies().iter().map(|mount| mount.join(&name)).collect();
        let enter = groups.iter().map(|group| {
            std::fs::create_dir(group).unwrap();
            format!("echo $$ >{}/cgroup.procs && ", group.display())
        });
        let script = enter.collect::<String>() + "while :; do :; done";
        let hog = Hog { name, child: Command::new("sh").args(["-c", &script]).spawn().unwrap() };
        let inside = |group: &PathBuf| members(group).contains(&hog.child.id());
        until("the work is in its groups", || groups.iter().all(inside));
        hog
    }

    /// Waits until it has had a CPU.
    fn goes_on(&self) {
        let before = cpu_time(self.child.id());
        until("it goes on", || cpu_time(self.child.id()) > before);
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for mount in hierarchies() {
            let _ = std::fs::remove_dir(mount.join(&self.name));
        }
    }
}

fn hierarchies() -> Vec<PathBuf> {
    let found = commensal_sensors::mounts::hierarchies(&mut commensal_host::LinuxHost::new()).unwrap();
    // A new group of cpuset in v1 takes nobody before it has CPUs.
    let takes = |hierarchy: &&Hierarchy| {
        hierarchy.version == Version::V2 || !hierarchy.controllers.contains(&Controller::Cpuset)
    };
    found.iter().filter(takes).map(|hierarchy| PathBuf::from(&hierarchy.mount)).collect()
}

// promise 34
#[test]
fn what_cannot_be_attached_to() {
    let program = Program::new("noetl");
    if !can_write_cgroups("what_cannot_be_attached_to") {
        return;
    }
    let hog = Hog::start(&program);
    let refused = |attach: &str| {
        let text = format!("{FOUR}{SHORT}{attach}{LOAD}");
        let (status, _, said) = run(&program, &text, &["--no-blame"]);
        assert_eq!(status, 2, "{said}");
        said
    };
    let said = refused("[offline]\nattach = \"nosuch.service\"\n");
    assert!(said.contains("nosuch.service: no running unit"), "{said}");
    let same = format!(
        "[online]\nattach = \"{0}\"\naddress = \"127.0.0.1:1\"\n[offline]\nattach = \"{0}\"\n",
        hog.name
    );
    let said = refused(&same);
    assert!(said.contains("must be in separate cgroups"), "{said}");
    hog.goes_on();
    drop(hog);
    nothing_left(&program);
}

// promise 39
#[test]
fn what_is_refused_before_anything_starts() {
    let program = Program::new("refused");
    let check = |text: &str, words: &[&str]| {
        let (status, record, said) = run(&program, text, &[]);
        assert_eq!(status, 2, "{said}");
        assert!(record.is_none());
        for word in words {
            assert!(said.contains(word), "{word}: {said}");
        }
    };
    check("arm = []", &["mine.toml:1:1: unknown key \"arm\"; did you mean \"arms\"?"]);
    check(
        &format!("{FOUR}[offline]\ncommand = [\"no-such-program-7\"]\n"),
        &["no-such-program-7 is not installed"],
    );
    let requires = "[[requires]]\nprogram = \"no-such-program-7\"\npackage = \"seven\"\n[[requires]]\nprogram = \
                    \"sh\"\npackage = \"dash\"\nversion = [\"-c\", \"echo sh 1.2.3\"]\nat-least = \"1.10\"\n";
    check(
        &format!("{FOUR}disk = \"900 TiB\"\n{requires}"),
        &[
            "no-such-program-7 is not installed",
            "sh is too old",
            "GiB free",
            "apt-get install --no-install-recommends dash seven",
        ],
    );
    let (_, err) = program.expect(2, &["lab", "run", "./nowhere.toml"]);
    assert!(err.contains("nowhere.toml"), "{err}");
    for (args, word) in [
        (["--load", "120%"], "--load 120%"),
        (["--arms", "baseline"], "baseline2 is missing"),
        (["--restart", "daily"], "block, round and never"),
        (["--slo", "5ms"], "p99=5ms"),
        (["--resume", "/nowhere.json"], "nowhere.json"),
    ] {
        let mut all = vec!["lab", "run", "quickstart"];
        all.extend(args);
        let (_, err) = program.expect(2, &all);
        assert!(err.contains(word), "{word}: {err}");
    }
}

// promise 36
#[test]
fn a_port_that_is_taken() {
    if !can_write_cgroups("a_port_that_is_taken") {
        return;
    }
    let program = Program::new("taken");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let (status, _, said) = run(&program, &format!("{FOUR}{SHORT}{SERVICE}{LOAD}{HOG}"), &["--port", &port]);
    assert_eq!(status, 2, "{said}");
    assert!(said.contains(&format!("cannot listen on port {port} of 127.0.0.1")), "{said}");
    nothing_left(&program);
}

// promise 36
#[test]
fn a_service_that_never_serves() {
    if !can_write_cgroups("a_service_that_never_serves") {
        return;
    }
    let program = Program::new("mute");
    for (command, within, word) in [
        ("sleep 60", "1 s", "it was not ready within 1 s"),
        ("echo my config is wrong; exit 5", "60 s", "my config is wrong"),
    ] {
        let online =
            format!("[online]\ncommand = [\"sh\", \"-c\", \"{command}\"]\nready-within = \"{within}\"\n");
        let (status, _, said) = run(&program, &format!("{FOUR}{SHORT}{online}{LOAD}{HOG}"), &[]);
        assert!(
            status == 2 && said.contains("the online service did not start") && said.contains(word),
            "{status} {said}"
        );
        nothing_left(&program);
    }
}

#[test]
fn what_comes_with_the_program() {
    let program = Program::new("shipped");
    let (list, _) = program.expect(0, &["lab", "list"]);
    for name in ["quickstart", "clickhouse-vs-stress", "http-vs-stress-ng", "nginx-vs-ffmpeg"] {
        assert!(list.contains(name), "{list}");
    }
    let (shown, _) = program.expect(0, &["lab", "show", "nginx-vs-ffmpeg"]);
    assert!(shown.contains("[online]") && shown.contains("ffmpeg"), "{shown}");
    // What is shown can be run as a file.
    let copy = file(&program, &shown);
    let output = program.run(&["lab", "check", copy.to_str().unwrap()]);
    let said = text(&output.stdout);
    assert!(said.contains("rounds, about") && said.contains("arms: baseline"), "{said}");
    let complete = said.contains("everything that it needs is installed");
    assert_eq!(output.status.code(), Some(if complete { 0 } else { 2 }), "{said}");
    assert!(complete || said.contains("apt-get install --no-install-recommends"), "{said}");
    let (quick, _) = program.expect(0, &["lab", "show", "quickstart"]);
    assert!(quick.contains("carry-over"), "{quick}");
    std::fs::write(program.path("mine.toml"), quick).unwrap();
    let (said, _) = program.expect(0, &["lab", "check", "./mine.toml"]);
    assert!(said.contains("in short windows of 103 ms"), "{said}");
    // A file may be what differs from another one; both are shown, and mistakes are told where they stand.
    let (shown, _) = program.expect(0, &["lab", "show", "nginx-wrk-vs-ffmpeg"]);
    assert!(shown.starts_with("based-on = \"nginx-vs-ffmpeg\"\n"), "{shown}");
    assert!(shown.contains("\n# nginx-wrk-vs-ffmpeg is based on nginx-vs-ffmpeg:\n"), "{shown}");
    assert!(shown.contains("\n# command = [\"nginx\", "), "{shown}");
    let write = |name: &str, text: &str| std::fs::write(program.path(name), text).unwrap();
    write(
        "other.toml",
        "based-on = \"mine.toml\"\nabout = \"something else\"\n[design]\nwindow = \"200 ms\"\n",
    );
    let (said, _) = program.expect(0, &["lab", "check", "./other.toml"]);
    assert!(said.contains("something else") && said.contains("in short windows of 200 ms"), "{said}");
    write("circle.toml", "based-on = \"circle.toml\"\n");
    let (_, said) = program.expect(2, &["lab", "check", "./circle.toml"]);
    assert!(
        said.contains(
            "circle.toml:1:12: based-on = \"circle.toml\": the files are based on each other in a circle: "
        ),
        "{said}"
    );
    write("alone.toml", "based-on = \"nowhere.toml\"\n");
    let (_, said) = program.expect(2, &["lab", "check", "./alone.toml"]);
    assert!(
        said.contains("alone.toml:1:12: based-on = \"nowhere.toml\": ") && said.contains("ENOENT"),
        "{said}"
    );
}
