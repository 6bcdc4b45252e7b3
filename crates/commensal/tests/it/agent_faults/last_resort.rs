//! The agent is gone and something else is broken as well: online groups are free all the same, and `restore` finds every original.

use super::{guards, nothing_left, settings};
use crate::agent::{Agent, Theirs, limited, mounts, own, until};
use crate::support::{Program, can_write_cgroups};
use commensal_testkit::{Signal, holds_within, signal, told, within};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A disk that this machine reads from, as the kernel numbers it, if groups can have a rate of it.
fn disk() -> Option<String> {
    let there = mounts().iter().any(|mount| mount.join("blkio.throttle.read_bps_device").exists());
    let blocks = std::fs::read_dir("/sys/block").ok()?.flatten();
    let mut real = blocks.map(|entry| entry.path()).filter(|path| path.join("device").exists());
    let dev = std::fs::read_to_string(real.next()?.join("dev")).ok()?;
    there.then(|| dev.trim().to_owned())
}

/// Online and offline groups of somebody else, and one of our own.
struct World {
    program: Program,
    web: Theirs,
    tmp: Theirs,
    groups: PathBuf,
    before: [BTreeMap<PathBuf, String>; 2],
}

impl World {
    fn new(name: &str) -> World {
        let program = Program::new(name);
        let (web, tmp) = (Theirs::new(&program, "web"), Theirs::new(&program, "tmp"));
        let of = |name: &str, class: &str, path: &Theirs, more: &str| {
            format!(
                "[group.{name}]\nclass = \"{class}\"\n{more}match = [{{ cgroup = \"/{}\" }}]\n",
                path.name
            )
        };
        let io = disk().map(|_| "io.read = \"500 MiB/s\"\nio.write = \"400 MiB/s\"\n").unwrap_or_default();
        let text = [
            "[group.etl]\nclass = \"offline\"\ncpu.max = \"0.2 cores\"\n".to_owned(),
            of("web", "online", &web, &format!("pids.max = 500\nmemory.max = \"64 MiB\"\n{io}")),
            of("tmp", "offline", &tmp, "safe-state = \"restore\"\ncpu.max = \"0.7 cores\"\n"),
        ];
        let groups = program.groups(&text.concat());
        let before = [settings(&web), settings(&tmp)];
        World { program, web, tmp, groups, before }
    }

    fn agent(&self, more: &[&str]) -> Agent {
        let mut agent = Agent::start(&self.program, &self.groups, &[&["--lease", "60s"], more].concat());
        until("all are limited", || {
            assert_eq!(agent.child.try_wait().unwrap(), None, "{}", agent.said());
            limited(&own(&self.program, "etl")) && self.web.counted() && limited(&self.tmp.cpu)
        });
        let rate = |file: &PathBuf| std::fs::read_to_string(file).is_ok_and(|text| !text.trim().is_empty());
        let blkio = mounts().into_iter().map(|mount| mount.join(&self.web.name));
        let blkio: Vec<PathBuf> = blkio.map(|dir| dir.join("blkio.throttle.read_bps_device")).collect();
        until("the disk has its rate", || disk().is_none() || blkio.iter().any(rate));
        agent
    }

    /// What of a group is not as it was, but for what protects an online one.
    fn changed(&self, which: usize) -> Vec<String> {
        let now = settings([&self.web, &self.tmp][which]);
        let differs = self.before[which].iter().filter(|(file, text)| now.get(*file) != Some(*text));
        let shown =
            differs.map(|(file, text)| format!("{}: {text:?} became {:?}", file.display(), now.get(file)));
        shown
            .filter(|line| which == 1 || !(line.contains("cpu.shares") || line.contains("cpu.weight")))
            .collect()
    }

    /// The safe state, whatever else there is.
    fn is_safe(&self, agent: &Agent, what: &str) {
        let left = || [self.changed(0), self.changed(1)];
        let wrong = told(|| format!("{what}: {:?}\n{}", left(), agent.said()));
        within(crate::agent::PATIENCE, wrong, || left().iter().all(|one| one.is_empty()));
        assert!(limited(&own(&self.program, "etl")), "{what}: offline work stays held back");
    }

    /// Everything as it was, and nothing left.
    fn ends(self, what: &str) {
        let restored = self.program.run(&["restore"]);
        for (theirs, before) in [&self.web, &self.tmp].into_iter().zip(&self.before) {
            assert_eq!(settings(theirs), *before, "{what}: {restored:?}");
        }
        assert!(!own(&self.program, "etl").exists(), "{what}: {restored:?}");
        drop((self.web, self.tmp));
        nothing_left(&self.program);
    }
}

/// What is broken before the agent is killed.
type Broken = fn(&World) -> Option<Box<dyn std::any::Any>>;

const BROKEN: [(&str, Broken); 7] = [
    ("nothing", |_| None),
    ("the journal is gone", |world| {
        std::fs::remove_file(world.program.state().join("machine.journal")).unwrap();
        None
    }),
    ("every other line of the journal is damaged", |world| {
        let path = world.program.state().join("machine.journal");
        let text = std::fs::read_to_string(&path).unwrap();
        let damage = |(number, line): (usize, &str)| match number % 2 {
            0 => format!("{line}\n"),
            _ => format!("0{line}\n"),
        };
        std::fs::write(&path, text.lines().enumerate().map(damage).collect::<String>()).unwrap();
        None
    }),
    ("the journal is empty", |world| {
        std::fs::write(world.program.state().join("machine.journal"), "").unwrap();
        None
    }),
    ("the state directory is gone", |world| {
        // The agent goes on writing into it.
        until("it is gone", || {
            let _ = std::fs::remove_dir_all(world.program.state());
            !world.program.state().exists()
        });
        None
    }),
    ("somebody holds the lock", |world| {
        let lock = std::fs::File::options().write(true).open(world.program.state().join("lock")).unwrap();
        lock.lock().unwrap();
        Some(Box::new(lock))
    }),
    ("the groups file is gone", |world| {
        std::fs::remove_file(&world.groups).unwrap();
        None
    }),
];

// promise 21
#[test]
fn nothing_that_is_broken_keeps_limits_on_online_groups() {
    let test = "nothing_that_is_broken_keeps_limits_on_online_groups";
    if !can_write_cgroups(test) {
        return;
    }
    if disk().is_none() {
        println!("skipped part: {test}: no rates of disks are tried, because no v1 blkio or no disk is here");
    }
    for (number, (what, broken)) in BROKEN.into_iter().enumerate() {
        let world = World::new(&format!("broken{number}"));
        let agent = world.agent(&[]);
        let held = broken(&world);
        agent.signal(Signal::KILL);
        world.is_safe(&agent, what);
        drop((held, agent));
        world.ends(what);
    }
}

/// A journal that somebody removed under an agent is told of, and is there again with every original.
// promise 21
#[test]
fn a_journal_that_is_gone_is_written_anew() {
    let test = "a_journal_that_is_gone_is_written_anew";
    if !can_write_cgroups(test) {
        return;
    }
    let world = World::new("anew");
    let agent = world.agent(&[]);
    let path = world.program.state().join("machine.journal");
    std::fs::remove_file(&path).unwrap();
    until("it is there again", || path.exists());
    until("it is told", || agent.said().contains("machine.journal was missing and was rebuilt"));
    // Without what the groups tell: what is in the file is enough.
    agent.signal(Signal::KILL);
    world.is_safe(&agent, "the journal was written anew");
    drop(agent);
    world.ends("the journal was written anew");
}

/// The state directory is removed under an agent: it can be asked again, is still the only one, and makes room.
// promises 20, 21
#[test]
fn a_state_directory_that_is_gone_is_made_anew() {
    let test = "a_state_directory_that_is_gone_is_made_anew";
    if !can_write_cgroups(test) {
        return;
    }
    let world = World::new("dirgone");
    // The agent goes on writing into it.
    let remove = || until("it is gone", || std::fs::remove_dir_all(world.program.state()).is_ok());
    let mut first = world.agent(&[]);
    remove();
    until("it answers again", || {
        super::snapshot(&world.program).is_some_and(|seen| seen.pid == first.child.id())
    });
    until("it is told", || first.said().contains("the agent's lock and the control socket were gone from"));
    let second = world.program.run(&["agent", "-c", world.groups.to_str().unwrap(), "--no-probe"]);
    assert_eq!(second.status.code(), Some(2), "there is one already");
    let mut next = world.agent(&["--replace"]);
    until("it has made room", || first.child.try_wait().unwrap().is_some());
    assert_eq!(first.child.wait().unwrap().code(), Some(0), "{}", first.said());
    // Another one begins before or after this one sees that it is gone: one of them stays.
    until("it has its guard", || guards(&world.program).len() == 1);
    remove();
    let mut last = world.agent(&[]);
    let mut ended = [false, false];
    until("one of them has ended", || {
        ended = [&mut next, &mut last].map(|one| one.child.try_wait().unwrap().is_some());
        ended.contains(&true)
    });
    assert_ne!(ended, [true, true], "{}\n{}", next.said(), last.said());
    let (gone, stays) = if ended[0] { (next, last) } else { (last, next) };
    drop((first, gone));
    until("the other one keeps the groups", || {
        super::snapshot(&world.program).is_some_and(|seen| seen.pid == stays.child.id())
    });
    stays.signal(Signal::KILL);
    world.is_safe(&stays, "the state directory was made anew");
    drop(stays);
    world.ends("the state directory was made anew");
}

/// Something else stands at the control socket's place: the agent listens there again, or says why it cannot.
// promise 20
#[test]
fn a_control_socket_that_was_replaced_is_made_anew() {
    let test = "a_control_socket_that_was_replaced_is_made_anew";
    if !can_write_cgroups(test) {
        return;
    }
    let world = World::new("sockgone");
    let agent = world.agent(&[]);
    let socket = world.program.state().join("control.sock");
    let answers = || super::snapshot(&world.program).is_some_and(|seen| seen.pid == agent.child.id());
    let replace = |put: &dyn Fn()| {
        // An answer needs a new socket, however soon the agent has made it.
        until("it answers", answers);
        std::fs::remove_file(&socket).unwrap();
        put();
    };
    let told = |what: &str| until(what, || agent.said().contains(what));
    replace(&|| {});
    // Whose process has ended.
    replace(&|| drop(UnixListener::bind(&socket).unwrap()));
    replace(&|| std::os::unix::fs::symlink("nowhere", &socket).unwrap());
    told("control.sock is not a socket: remove it");
    std::fs::remove_file(&socket).unwrap();
    replace(&|| std::fs::create_dir(&socket).unwrap());
    std::fs::remove_dir(&socket).unwrap();
    replace(&|| std::fs::write(&socket, "{}").unwrap());
    std::fs::remove_file(&socket).unwrap();
    // What cannot be asked holds up nothing else: the lock is taken again meanwhile.
    let lock = socket.with_file_name("agent.lock");
    replace(&|| drop(UnixDatagram::bind(&socket).unwrap()));
    std::fs::remove_file(&lock).unwrap();
    until("the lock is there again", || lock.exists());
    std::fs::remove_file(&socket).unwrap();
    let other = std::cell::RefCell::new(None);
    replace(&|| drop(other.replace(Some(UnixListener::bind(&socket).unwrap()))));
    told("an agent already listens on");
    drop(other);
    until("it answers", answers);
    agent.signal(Signal::KILL);
    world.is_safe(&agent, "the control socket was made anew");
    drop(agent);
    world.ends("the control socket was made anew");
}

/// Program files are replaced while they run, here by something that cannot run: the guard needs none of them.
// promise 21
#[test]
fn a_program_that_is_garbage_on_the_disk() {
    let test = "a_program_that_is_garbage_on_the_disk";
    if !can_write_cgroups(test) {
        return;
    }
    let world = World::new("garbage");
    let copy = world.program.path("commensal");
    let command = Agent::command(&world.program, &world.groups, &["--lease", "60s"]);
    std::fs::copy(command.get_program(), &copy).unwrap();
    let mut from_copy = Command::new(&copy);
    from_copy.args(command.get_args()).current_dir(world.program.dir.path());
    let agent = Agent::spawn(from_copy);
    until("all are limited", || world.web.counted() && limited(&world.tmp.cpu));
    until("the guard is there", || !guards(&world.program).is_empty());
    let garbage = world.program.path("garbage");
    std::fs::write(&garbage, "nothing that runs").unwrap();
    std::fs::rename(&garbage, &copy).unwrap();
    agent.signal(Signal::KILL);
    world.is_safe(&agent, "the program was replaced");
    drop(agent);
    world.ends("the program was replaced");
}

/// Asked to end, it leaves the safe state, and says by its status whether all of it is.
// promise 21
#[test]
fn an_agent_that_ends_leaves_no_rate_of_a_disk() {
    let test = "an_agent_that_ends_leaves_no_rate_of_a_disk";
    if !can_write_cgroups(test) {
        return;
    }
    let world = World::new("terminated");
    let mut agent = world.agent(&[]);
    agent.signal(Signal::TERM);
    assert_eq!(agent.child.wait().unwrap().code(), Some(0), "{}", agent.said());
    world.is_safe(&agent, "SIGTERM");
    drop(agent);
    world.ends("SIGTERM");
}

/// A guard that stands still is ended and replaced while the agent lives, and the new one does what it is for.
// promise 21
#[test]
fn a_guard_that_stands_still_is_replaced() {
    let test = "a_guard_that_stands_still_is_replaced";
    if !can_write_cgroups(test) {
        return;
    }
    let world = World::new("still");
    let agent = Agent::start(&world.program, &world.groups, &["--lease", "10s"]);
    until("all are limited", || world.web.counted() && limited(&world.tmp.cpu));
    let first = guards(&world.program);
    assert_eq!(first.len(), 1);
    assert!(signal(first[0], Signal::STOP));
    until("another guard is there", || {
        let now = guards(&world.program);
        now.len() == 1 && now != first
    });
    until("it is told", || agent.said().contains("did not acknowledge keep-alives for 10s and was killed"));
    agent.signal(Signal::KILL);
    world.is_safe(&agent, "the second guard");
    drop(agent);
    world.ends("the second guard");
}

/// An engine that answers a byte now and then.
struct Dripping {
    path: PathBuf,
    over: Arc<AtomicBool>,
}

impl Dripping {
    fn listen(path: PathBuf) -> Dripping {
        let listener = UnixListener::bind(&path).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&over);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok).take(200) {
                if flag.load(Ordering::Relaxed) {
                    return;
                }
                let flag = Arc::clone(&flag);
                std::thread::spawn(move || drip(stream, &flag));
            }
        });
        Dripping { path, over }
    }
}

fn drip(mut stream: UnixStream, over: &AtomicBool) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    let _ = stream.read(&mut [0; 512]);
    let is_over = || over.load(Ordering::Relaxed);
    while stream.write_all(b"H").is_ok() && !holds_within(Duration::from_millis(900), is_over) {}
}

impl Drop for Dripping {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(&self.path);
    }
}

/// It holds up nothing: groups that it has nothing to say of are in force, the guard needs it for nothing, and nobody waits for it
/// with the lock.
// promise 21
#[test]
fn an_engine_that_drips_holds_up_nothing() {
    let test = "an_engine_that_drips_holds_up_nothing";
    if !can_write_cgroups(test) {
        return;
    }
    let world = World::new("drips");
    let engine = Dripping::listen(world.program.path("engine.sock"));
    let text = std::fs::read_to_string(&world.groups).unwrap()
        + "[group.labelled]\nclass = \"offline\"\nmatch = [{ docker-label = \"batch\" }]\n";
    std::fs::write(&world.groups, text).unwrap();
    let mut command = Agent::command(&world.program, &world.groups, &["--lease", "60s"]);
    command.env("DOCKER_HOST", format!("unix://{}", engine.path.display()));
    let mut agent = Agent::spawn(command);
    until("all are limited", || {
        assert_eq!(agent.child.try_wait().unwrap(), None, "{}", agent.said());
        limited(&own(&world.program, "etl")) && world.web.counted() && limited(&world.tmp.cpu)
    });
    let mut plan = world.program.command(&["plan", "-c", world.groups.to_str().unwrap()]);
    plan.env("DOCKER_HOST", format!("unix://{}", engine.path.display()));
    let plan = plan.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    agent.signal(Signal::KILL);
    world.is_safe(&agent, "a dripping engine");
    let plan = plan.wait_with_output().unwrap();
    assert!(plan.status.code().is_some_and(|code| code <= 1), "{plan:?}");
    drop((agent, engine));
    world.ends("a dripping engine");
}

/// The same program without leave to run beside another.
fn alone(program: &Program, args: &[&str]) -> Command {
    let beside = program.command(args);
    let mut command = Command::new(beside.get_program());
    command.args(beside.get_args().filter(|arg| *arg != "--beside-others")).current_dir(program.dir.path());
    command
}

/// Two commensals with state directories of their own: the second is told who keeps this machine, and changes nothing; once the first
/// is gone, however it went, the way is free. `restore` in either order ends at the first originals.
// promise 20
#[test]
fn a_second_commensal_is_told_who_keeps_the_machine() {
    let test = "a_second_commensal_is_told_who_keeps_the_machine";
    if !can_write_cgroups(test) {
        return;
    }
    let (first, second) = (World::new("master"), Program::new("second"));
    let other = second.groups(&format!(
        "[group.batch]\nclass = \"offline\"\ncpu.max = \"0.3 cores\"\nmatch = [{{ cgroup = \"/{}\" }}]\n",
        first.tmp.name
    ));
    let agent_args =
        |groups: &Path| ["agent", "-c", groups.to_str().unwrap(), "--interval", "100ms"].map(str::to_owned);
    let (of_first, of_second) = (agent_args(&first.groups), agent_args(&other));
    let args = |list: &[String; 5]| list.clone();
    let start = |program: &Program, list: &[String; 5]| {
        let list = args(list);
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        Agent::spawn(alone(program, &list))
    };
    let mut agent = start(&first.program, &of_first);
    let mut elsewhere = false;
    until("all are limited", || {
        elsewhere = agent.child.try_wait().unwrap().is_some();
        elsewhere || first.web.counted() && limited(&first.tmp.cpu)
    });
    if elsewhere {
        println!("skipped: {test}: {}", agent.said());
        return;
    }
    let before = settings(&first.tmp);
    let mut refused = start(&second, &of_second);
    assert_eq!(refused.child.wait().unwrap().code(), Some(2), "{}", refused.said());
    until("it says who", || refused.said().contains(&format!("process {}", agent.child.id())));
    assert!(refused.said().contains(&first.program.state().display().to_string()), "{}", refused.said());
    let apply = alone(&second, &["apply", "-c", other.to_str().unwrap()]).output().unwrap();
    assert_eq!(apply.status.code(), Some(2), "{apply:?}");
    assert_eq!(settings(&first.tmp), before, "the second has changed something");
    // Beside the first, what that keeps is left to it.
    let beside = second.run(&["apply", "-c", other.to_str().unwrap()]);
    assert_eq!(beside.status.code(), Some(2), "{beside:?}");
    assert!(
        String::from_utf8_lossy(&beside.stderr)
            .contains("is managed by another running commensal, whose state directory is"),
        "{beside:?}"
    );
    assert_eq!(settings(&first.tmp), before, "the second has changed something");
    agent.signal(Signal::KILL);
    agent.child.wait().unwrap();
    first.is_safe(&agent, "the first is gone");
    let next = start(&second, &of_second);
    until("the second has it", || limited(&first.tmp.cpu));
    assert_eq!(next.end(Signal::TERM), Some(0));
    for program in [&first.program, &second] {
        program.run(&["restore"]);
    }
    drop((agent, refused));
    first.ends("two in turn");
    nothing_left(&second);
}

mod measure {
    use super::*;
    use std::time::Instant;

    /// A thousand online groups are free within the lease and a second.
    // promise 21
    #[test]
    fn a_thousand_groups_are_free_in_time() {
        const MANY: usize = 1_000;
        const LEASE: Duration = Duration::from_secs(10);
        let test = "a_thousand_groups_are_free_in_time";
        if !can_write_cgroups(test) {
            return;
        }
        // Its agent needs most of a CPU, which another test's measurement would lack.
        let _alone = commensal_testkit::alone();
        let program = Program::new("thousand");
        let many: Vec<Theirs> =
            (0..MANY).map(|number| Theirs::new(&program, &format!("web-{number}"))).collect();
        let groups = program.groups(&format!(
            "[group.web]\nclass = \"online\"\npids.max = 500\nmatch = [{{ cgroup = \"/{}-web-*\" }}]\n",
            program.prefix
        ));
        let free = |theirs: &Theirs| !theirs.counted();
        if !mounts().iter().any(|mount| mount.join(&many[0].name).join("pids.max").exists()) {
            println!("skipped: {test}: no pids controller");
            return;
        }
        let agent = Agent::start(&program, &groups, &["--lease", "10s"]);
        until("all are limited", || !many.iter().any(free));
        let since = Instant::now();
        agent.signal(Signal::KILL);
        let left = || many.iter().filter(|theirs| !free(theirs)).count();
        let wrong = told(|| format!("{} are limited: {}", left(), agent.said()));
        within(LEASE + Duration::from_secs(1), wrong, || many.iter().all(free));
        println!("{test}: {MANY} groups are free after {:.1?}", since.elapsed());
        drop(agent);
        program.expect(0, &["restore"]);
        drop(many);
        nothing_left(&program);
    }
}
