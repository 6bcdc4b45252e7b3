//! Whatever a person calls it: every way to name a target of `commensal blame`, before and after `apply`, and with an agent.

use crate::agent::{Agent, cleaned, ticks_on};
use crate::support::{Program, can_write_cgroups, cpu_mount, text};
use commensal_testkit::{Groups, Signal, until};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Child;

/// The world of one test: a cgroup, a unit without systemd, a container without an engine, and processes, all named after the test.
struct World {
    program: Program,
    groups: Groups,
    container: String,
    engine: String,
    loose: Vec<Child>,
}

impl World {
    fn new(test: &str) -> Option<World> {
        if !can_write_cgroups(test) {
            return None;
        }
        let mount = cpu_mount();
        let unified = mount.join("cgroup.controllers").exists();
        let program = Program::new(test);
        let (groups, container) = (Groups::new(&mount, unified, test), "c7".repeat(32));
        let engine = format!("unix://{}", play_engine(&program, &container, "ncont").display());
        Some(World { program, groups, container, engine, loose: Vec::new() })
    }

    /// A program of this name, which sleeps.
    fn copy(&self, name: &str) -> PathBuf {
        let path = self.program.path(name);
        if !path.exists() {
            std::fs::copy("/bin/sleep", &path).unwrap();
        }
        path
    }

    /// Starts it in a group, or where this test is.
    fn start(&mut self, name: &str, group: Option<&str>) -> u32 {
        let path = self.copy(name);
        let pid = match group {
            Some(group) => {
                self.groups.make(group);
                self.groups.start(group, None, &format!("exec {} 600", path.display()))
            }
            None => {
                self.loose.push(std::process::Command::new(&path).arg("600").spawn().unwrap());
                self.loose.last().unwrap().id()
            }
        };
        let comm = format!("/proc/{pid}/comm");
        until("it is the program", || {
            std::fs::read_to_string(&comm).is_ok_and(|comm| name.starts_with(comm.trim()))
        });
        pid
    }

    fn path(&self, group: &str) -> String {
        format!("/{}/{group}", self.groups.top.file_name().unwrap().to_str().unwrap())
    }

    fn blame(&self, args: &[&str]) -> (i32, String, String) {
        let mut all = vec!["blame", "--for", "1ms", "--json"];
        all.extend(args);
        let output = self.program.command(&all).env("DOCKER_HOST", &self.engine).output().unwrap();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }

    /// The names of the targets that it has looked at.
    fn subjects(&self, args: &[&str]) -> Vec<String> {
        let (status, out, err) = self.blame(args);
        assert_eq!(status, 0, "{args:?}: {err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        serde_json::from_value(report["subjects"].clone()).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.loose {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Docker is played: the Engine API's one call over a socket.
fn play_engine(program: &Program, id: &str, name: &str) -> PathBuf {
    let path = program.path("engine.sock");
    let socket = UnixListener::bind(&path).unwrap();
    let body = format!("[{{\"Id\":\"{id}\",\"Names\":[\"/{name}\"]}}]");
    std::thread::spawn(move || {
        for mut stream in socket.incoming().flatten() {
            let mut request = [0; 512];
            let _ = stream.read(&mut request);
            let _ = write!(stream, "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{body}");
        }
    });
    path
}

// promise 31
#[test]
fn every_name_before_and_after_apply_and_with_an_agent() {
    let test = "every_name";
    let Some(mut world) = World::new(test) else { return };
    let container = world.container.clone();
    world.start("nunit", Some("nunit.service"));
    world.start("ncg-process", Some("ncg"));
    world.start("nin-cont", Some(&container));
    let by_number = world.start("nproc", None);
    world.start("nproc", None);
    let long_number = world.start("a-very-long-name-of-a-program", None);
    world.start("ngroup-worker", Some("nwork"));
    world.start("nother", Some("nother-group"));
    let worker = world.program.path("ngroup-worker");
    let file = world.program.groups(&format!(
        "[group.nweb]\nclass = \"online\"\nmatch = [{{ cgroup = \"{}\" }}]\n\
         [group.njobs]\nclass = \"offline\"\nmatch = [{{ process = {{ exe = \"{}\" }} }}]\n",
        world.path("ncg"),
        worker.display()
    ));
    let file = file.to_str().unwrap().to_owned();
    let (cgroup, number, short) = (world.path("ncg"), by_number.to_string(), &container[..12]);
    let below = format!("{}{cgroup}", cpu_mount().display());
    let long = "a-very-long-name-of-a-program";
    let names = [
        ("unit", "nunit.service", "nunit.service".to_owned()),
        ("unit", "nunit", "nunit.service".to_owned()),
        ("cgroup", cgroup.as_str(), cgroup.clone()),
        ("cgroup", below.as_str(), cgroup.clone()),
        ("cgroup", "ncg", cgroup.clone()),
        ("container", "ncont", "ncont".to_owned()),
        ("container", container.as_str(), world.path(short)),
        ("container", short, world.path(short)),
        ("process", "nproc", "nproc (2 processes)".to_owned()),
        ("process", number.as_str(), format!("nproc ({number})")),
        ("process", long, format!("{long} ({long_number})")),
        ("group", "nweb", "nweb".to_owned()),
        ("group", "njobs", "njobs".to_owned()),
    ];
    // All names in one look, because loading the probe takes a while: with and without their kind.
    let check = |world: &World, phase: &str, config: &[&str]| {
        let with_kind = names.each_ref().map(|(kind, name, _)| format!("{kind}:{name}"));
        let all = names.iter().map(|(_, name, _)| *name).chain(with_kind.iter().map(String::as_str));
        let all: Vec<&str> = all.chain(config.iter().copied()).collect();
        let wanted: Vec<&str> = names.iter().chain(&names).map(|(_, _, wanted)| wanted.as_str()).collect();
        assert_eq!(world.subjects(&all), wanted, "{phase}");
        let against = names.iter().flat_map(|(_, name, _)| ["--against", *name]);
        let args: Vec<&str> = ["nother"].into_iter().chain(against).chain(config.iter().copied()).collect();
        let (status, _, err) = world.blame(&args);
        assert_eq!(status, 0, "{phase}: {err}");
        assert_eq!(world.subjects(config), ["nweb"], "{phase}: all groups of the file");
    };
    let config = ["-c", file.as_str()];
    check(&world, "before apply", &config);
    let applied = world.program.run(&["apply", "-c", &file]);
    // Not every machine can hold back offline work.
    assert!(matches!(applied.status.code(), Some(0 | 1)), "{}", text(&applied.stderr));
    check(&world, "after apply", &config);
    world.program.expect(0, &["restore"]);
    let agent = Agent::start(&world.program, Path::new(&file), &[]);
    ticks_on(&world.program, 2);
    check(&world, "with an agent", &[]);
    assert_eq!(agent.end(Signal::TERM), Some(0));
    cleaned(&world.program);
}

/// Of two things of one name both are told, unless one is inside of the other.
// promise 31
#[test]
fn one_name_for_several_things() {
    let test = "one_name";
    let Some(mut world) = World::new(test) else { return };
    world.start("inside", Some("inside"));
    world.start("twice", Some("elsewhere"));
    world.groups.make("twice");
    world.groups.make("more");
    world.groups.make("more/deep");
    world.groups.make("other");
    world.groups.make("other/deep");
    assert_eq!(world.subjects(&["inside"]), [world.path("inside")]);
    let (status, _, err) = world.blame(&["twice"]);
    assert_eq!(status, 2, "{err}");
    for line in [
        "twice is 2 things here; say which:".to_owned(),
        format!("  cgroup:twice  {}", world.path("twice")),
        "  process:twice  twice (".to_owned(),
    ] {
        assert!(err.contains(&line), "{line}: {err}");
    }
    assert_eq!(world.subjects(&["cgroup:twice"]), [world.path("twice")]);
    assert!(world.subjects(&["process:twice"])[0].starts_with("twice ("));
    let (status, _, err) = world.blame(&["deep"]);
    assert!(status == 2 && err.contains("2 cgroups have this name; give the path of one"), "{err}");
    let (status, _, err) = world.blame(&["cgroup:twice", "--against", "process:nosuchprocess"]);
    assert!(status == 2 && err.contains("there is no process with the name nosuchprocess"), "{err}");
}
