//! Tests with a fake container engine and real directories.

use super::{Change, Follow, Follower, Interest, Lost, Members, Reports};
use commensal_core::actual::{ActualState, CgroupPath};
use commensal_core::config;
use commensal_core::desired::{literal_prefix, takes_cgroup};
use commensal_core::group::Match;
use commensal_core::knob::Controller;
use commensal_host::{LinuxHost, Waker};
use commensal_testkit::{Dice, PATIENCE, watches, within};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

#[derive(Default)]
struct State {
    running: BTreeSet<String>,
    listeners: Vec<UnixStream>,
    /// Whether requests are accepted but not answered.
    stalled: bool,
    kept: Vec<UnixStream>,
}

/// A fake engine.
#[derive(Clone)]
struct Engine {
    state: Arc<Mutex<State>>,
}

impl Engine {
    fn start(socket: &Path) -> Engine {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let engine = Engine { state: Arc::default() };
        let other = engine.clone();
        // This thread ends with the test process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                other.serve(stream);
            }
        });
        engine
    }

    fn serve(&self, mut stream: UnixStream) {
        let mut request = [0u8; 4096];
        let length = stream.read(&mut request).unwrap_or(0);
        let request = String::from_utf8_lossy(&request[..length]).into_owned();
        let mut state = self.state.lock().unwrap();
        if state.stalled {
            state.kept.push(stream);
            return;
        }
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let answer = if path.starts_with("/events") {
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n");
            state.listeners.push(stream);
            return;
        } else if path == "/containers/json" {
            let all: Vec<String> =
                state.running.iter().map(|id| format!(r#"{{"Id":"{id}","Names":["/{id}"]}}"#)).collect();
            format!("HTTP/1.0 200 OK\r\n\r\n[{}]", all.join(","))
        } else {
            let id = path.split('/').nth(2).unwrap_or_default().to_owned();
            match state.running.contains(&id) {
                true => format!(
                    "HTTP/1.0 200 OK\r\n\r\n{{\"Id\":\"{id}\",\"Name\":\"/{id}\",\"State\":{{\"Running\":true,\"Pid\":7}},\
                     \"Config\":{{\"Labels\":{{\"tier\":\"batch\"}}}}}}"
                ),
                false => "HTTP/1.0 404 Not Found\r\n\r\n{}".to_owned(),
            }
        };
        let _ = stream.write_all(answer.as_bytes());
    }

    fn say(&self, action: &str, id: &str) {
        let mut state = self.state.lock().unwrap();
        match action {
            "start" => drop(state.running.insert(id.to_owned())),
            "die" => drop(state.running.remove(id)),
            _ => {}
        }
        let line = format!("{{\"Action\":\"{action}\",\"Actor\":{{\"ID\":\"{id}\"}}}}\n");
        state.listeners.retain_mut(|listener| listener.write_all(line.as_bytes()).is_ok());
    }

    /// Closes all connections.
    fn hang_up(&self) {
        self.state.lock().unwrap().listeners.clear();
    }
}

/// Collects changes until `enough` returns true for one of them.
fn until(changes: &Receiver<Change>, enough: impl Fn(&Change) -> bool) -> Vec<Change> {
    let mut seen = Vec::new();
    let end = Instant::now() + PATIENCE;
    while let Ok(change) = changes.recv_timeout(end.saturating_duration_since(Instant::now())) {
        seen.push(change);
        if enough(&seen[seen.len() - 1]) {
            return seen;
        }
    }
    panic!("what was waited for did not come: {seen:?}");
}

fn runs<'a>(ids: &'a [&'a str]) -> impl Fn(&Change) -> bool + 'a {
    move |change| match change {
        Change::Containers { running, .. } => {
            running.iter().map(|one| one.id.as_str()).collect::<Vec<_>>() == ids
        }
        _ => false,
    }
}

#[test]
fn containers_through_restarts_of_their_engine() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("e.sock");
    let engine = Engine::start(&socket);
    engine.say("start", "aa");
    let (tell, changes) = channel();
    let follow = Follow { sockets: vec![socket.clone()], mounts: Vec::new() };
    let follower = Follower::start(follow.clone(), &Reports::new(tell, Waker::new().unwrap())).unwrap();
    let first = until(&changes, runs(&["aa"]));
    assert_eq!(first.len(), 1, "{first:?}");
    engine.say("start", "bb");
    until(&changes, runs(&["aa", "bb"]));
    engine.say("exec_start: sh", "bb");
    engine.say("die", "aa");
    until(&changes, runs(&["bb"]));
    // The list after reconnecting includes events during the disconnection.
    {
        let mut state = engine.state.lock().unwrap();
        state.running = BTreeSet::from(["cc".to_owned()]);
    }
    engine.hang_up();
    let seen = until(&changes, runs(&["cc"]));
    let kinds: Vec<bool> = seen.iter().map(|change| matches!(change, Change::EngineLost { .. })).collect();
    assert_eq!(kinds, [true, false, false], "lost, back, list: {seen:?}");
    // The engine restarts with the same socket path.
    drop(engine);
    let engine = Engine::start(&socket);
    engine.say("start", "dd");
    // A real engine closes its connections when it exits. The fake engine does not, so the test replaces the follower.
    drop(follower);
    let (tell, changes) = channel();
    let _follower = Follower::start(follow.clone(), &Reports::new(tell, Waker::new().unwrap())).unwrap();
    until(&changes, runs(&["dd"]));
}

/// An engine that accepts requests and does not respond is reported once, delays nothing, and is used again once it
/// responds.
#[test]
fn a_stalled_engine_blocks_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("e.sock");
    let places = places("a_stalled_engine_blocks_nobody");
    let Some(watched) = places.first() else { return };
    let engine = Engine::start(&socket);
    engine.state.lock().unwrap().stalled = true;
    let (tell, changes) = channel();
    let follow = Follow { sockets: vec![socket], mounts: vec![watched.clone()] };
    let follower = Follower::start(follow.clone(), &Reports::new(tell, Waker::new().unwrap())).unwrap();
    within(PATIENCE, "the engine is asked, and the folder watched", || {
        !engine.state.lock().unwrap().kept.is_empty() && watches(std::process::id(), watched)
    });
    std::fs::create_dir(watched.join("new")).unwrap();
    let new = watched.join("new");
    let seen = until(
        &changes,
        |change| matches!(change, Change::Cgroup { folder, made: true, .. } if *folder == new),
    );
    assert!(!seen.iter().any(|change| matches!(change, Change::Containers { .. })), "{seen:?}");
    until(&changes, |change| matches!(change, Change::EngineLost { .. }));
    {
        let mut state = engine.state.lock().unwrap();
        state.stalled = false;
        state.running.insert("aa".to_owned());
    }
    let seen = until(&changes, runs(&["aa"]));
    assert!(!seen.iter().any(|change| matches!(change, Change::EngineLost { .. })), "told once: {seen:?}");
    drop(follower);
    std::fs::remove_dir(&new).unwrap();
    places.iter().for_each(|group| std::fs::remove_dir(group).unwrap());
}

/// The loop keeps the list of running containers while the engine is unreachable, and the reported problem names the
/// engine.
#[test]
fn what_the_loop_remembers() {
    let specs =
        config::parse("g", "[group.etl]\nclass = \"offline\"\nmatch = [{ docker-label = \"tier=batch\" }]\n")
            .unwrap();
    let host = LinuxHost::new();
    let mut members = Members::default();
    let mut found = ActualState::default();
    members.fill(&host, &specs, &mut found);
    assert!(found.engines.obstacle.as_deref().is_some_and(|text| text.contains("not been asked")));
    let socket = PathBuf::from("/e.sock");
    let container = |name: &str, tier: &str| commensal_sensors::containers::Container {
        id: name.repeat(32),
        name: name.to_owned(),
        labels: [("tier".to_owned(), tier.to_owned())].into(),
        pid: None,
    };
    let running = vec![container("aa", "batch"), container("bb", "web")];
    members.heed(Change::Containers { socket: socket.clone(), running });
    members.fill(&host, &specs, &mut found);
    assert_eq!(found.engines.containers.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["aa"]);
    assert_eq!(found.engines.obstacle, None);
    let why = Lost { because: "gone".to_owned(), absent: false };
    members.heed(Change::EngineLost { socket: socket.clone(), why });
    members.fill(&host, &specs, &mut found);
    assert_eq!(found.engines.containers.len(), 1, "what it said last holds");
    assert_eq!(members.lost().get(&socket).map(|lost| lost.because.as_str()), Some("gone"));
    members.heed(Change::EngineBack { socket });
    assert!(members.lost().is_empty());
}

/// Of two engines, one without a socket is a problem only if the other one has none either, or if containers of it are
/// known. Every pair of states of the engines, each reached by the events that its thread sends.
#[test]
fn an_engine_that_does_not_exist_is_no_problem_beside_one_that_does() {
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Heard {
        Unheard,
        Absent,
        Silent,
        Answers,
        Vanished,
    }
    use Heard::{Absent, Answers, Silent, Unheard, Vanished};
    let sockets = [PathBuf::from("/run/docker.sock"), PathBuf::from("/run/podman/podman.sock")];
    let lost =
        |absent: bool| Lost { because: if absent { "ENOENT" } else { "ETIMEDOUT" }.to_owned(), absent };
    let one = commensal_sensors::containers::Container {
        id: "aa".repeat(32),
        name: "aa".to_owned(),
        labels: [("tier".to_owned(), "batch".to_owned())].into(),
        pid: None,
    };
    let events = |state: Heard, socket: &PathBuf| {
        let gone = |absent| Change::EngineLost { socket: socket.clone(), why: lost(absent) };
        let list = Change::Containers { socket: socket.clone(), running: vec![one.clone()] };
        match state {
            Unheard => vec![],
            Absent => vec![gone(true)],
            Silent => vec![gone(false)],
            Answers => vec![list],
            Vanished => vec![list, gone(true)],
        }
    };
    let all = [Unheard, Absent, Silent, Answers, Vanished];
    for states in all.into_iter().flat_map(|first| all.map(|second| [first, second])) {
        let mut members = Members::default();
        for (state, socket) in states.into_iter().zip(&sockets) {
            events(state, socket).into_iter().for_each(|event| members.heed(event));
        }
        let told: Vec<&Path> = members.missed(&sockets).map(|(socket, _)| socket).collect();
        let absent = |state: &Heard| matches!(state, Absent | Vanished);
        let wanted = states.iter().zip(&sockets).filter(|(state, _)| match state {
            Unheard | Answers => false,
            Silent | Vanished => true,
            Absent => states.iter().all(absent),
        });
        let wanted: Vec<&Path> = wanted.map(|(_, socket)| socket.as_path()).collect();
        assert_eq!(told, wanted, "{states:?}");
        // Engines that are no longer followed are no problem.
        assert_eq!(members.missed(&[]).count(), 0);
        // The reason why no engine answers names one that exists, if there is one.
        let specs = config::parse(
            "g",
            "[group.etl]\nclass = \"offline\"\nmatch = [{ docker-label = \"tier=batch\" }]\n",
        )
        .unwrap();
        let mut found = ActualState::default();
        members.fill(&LinuxHost::new(), &specs, &mut found);
        let obstacle = found.engines.obstacle;
        assert_eq!(obstacle.is_none(), states.contains(&Answers), "{states:?}: {obstacle:?}");
        let names_silent = obstacle.is_some_and(|text| text.contains("ETIMEDOUT"));
        assert_eq!(names_silent, states.contains(&Silent) && !states.contains(&Answers), "{states:?}");
    }
}

/// A thread tells a socket that does not exist from one on which nobody listens.
#[test]
fn only_a_missing_socket_is_absent() {
    let dir = tempfile::tempdir().unwrap();
    let (missing, below, dead) =
        (dir.path().join("no.sock"), dir.path().join("no/e.sock"), dir.path().join("dead.sock"));
    drop(UnixListener::bind(&dead).unwrap());
    for (socket, absent) in [(missing, true), (below, true), (dead, false)] {
        let (tell, changes) = channel();
        let follow = Follow { sockets: vec![socket.clone()], mounts: Vec::new() };
        let _follower = Follower::start(follow, &Reports::new(tell, Waker::new().unwrap())).unwrap();
        let seen = until(&changes, |change| matches!(change, Change::EngineLost { .. }));
        let told = seen.iter().any(|change| match change {
            Change::EngineLost { why, .. } => why.absent == absent && !why.because.is_empty(),
            _ => false,
        });
        assert!(told, "{}: {seen:?}", socket.display());
    }
}

/// Creates a cgroup for this test in each writable hierarchy; prints a line if there is none.
fn places(test: &str) -> Vec<PathBuf> {
    let hierarchies = commensal_sensors::mounts::hierarchies(&mut LinuxHost::new()).unwrap_or_default();
    let mut places = Vec::new();
    for hierarchy in &hierarchies {
        let used = hierarchy.controllers.is_empty() || hierarchy.controllers.contains(&Controller::Cpu);
        let group = Path::new(&hierarchy.mount).join(format!("commensal-test-{}-{test}", std::process::id()));
        if used && std::fs::create_dir(&group).is_ok() {
            places.push(group);
        }
    }
    if places.is_empty() {
        println!("skipped: {test}: no cgroup hierarchy can be written here");
    }
    places
}

/// Every cgroup of a tree that is created quickly is reported, and so is its removal.
#[test]
fn groups_appear_and_go() {
    let places = places("groups_appear_and_go");
    for place in &places {
        let (tell, changes) = channel();
        let follow = Follow { sockets: Vec::new(), mounts: vec![place.clone()] };
        let follower = Follower::start(follow.clone(), &Reports::new(tell, Waker::new().unwrap())).unwrap();
        within(PATIENCE, "the folder is watched", || watches(std::process::id(), place));
        let mut wanted = BTreeSet::new();
        for index in 0..20 {
            let folder = place.join(format!("a{index}/b/c"));
            std::fs::create_dir_all(&folder).unwrap();
            wanted.insert(folder);
        }
        let mut made = BTreeSet::new();
        while !wanted.is_subset(&made) {
            let change = changes.recv_timeout(PATIENCE).expect("every group is told");
            made.extend(Some(change).and_then(|change| match change {
                Change::Cgroup { folder, made: true, .. } => Some(folder),
                _ => None,
            }));
        }
        for folder in &wanted {
            for path in folder.ancestors().take(3) {
                std::fs::remove_dir(path).unwrap();
            }
        }
        let last = place.join("a9");
        until(
            &changes,
            |change| matches!(change, Change::Cgroup { folder, made: false, .. } if *folder == last),
        );
        drop(follower);
    }
    for group in &places {
        std::fs::remove_dir(group).unwrap();
    }
}

/// [`Interest::takes`] has the same result as a search through all members and matches.
#[test]
fn interest_is_what_a_look_at_all_would_find() {
    let names = ["a", "a-b", "ab", "b", "*", "a.service"];
    let mut paths = vec![CgroupPath::root()];
    for _ in 0..3 {
        let deeper = paths.iter().flat_map(|path| names.map(|name| path.child(name)));
        let deeper: Vec<CgroupPath> = deeper.collect();
        paths.extend(deeper);
        paths.sort();
        paths.dedup();
    }
    let groups =
        "[group.x]\nclass = \"online\"\nmatch = [{ cgroup = \"/a*/b\" }, { systemd = \"a.service\" }]\n";
    let specs = config::parse_file("groups.toml", groups).unwrap().groups;
    let parents = [CgroupPath::new("/b/a"), CgroupPath::new("/ab/b")];
    // One path in seven is a member; never the root, because it contains everything.
    for offset in 1..7 {
        let members: BTreeSet<CgroupPath> = paths.iter().skip(offset).step_by(7).take(6).cloned().collect();
        let matches: Vec<Match> = specs.iter().flat_map(|spec| &spec.matches).cloned().collect();
        let with_prefix = matches.iter().map(|one| (literal_prefix(one).into(), one.clone())).collect();
        let interest = Interest { matches: with_prefix, parents: parents.clone(), members: members.clone() };
        let (mut taken, mut left) = (0, 0);
        for path in &paths {
            let plain = parents.iter().any(|parent| parent.contains(path))
                || members.iter().any(|member| member.contains(path) || path.contains(member))
                || matches.iter().any(|one| takes_cgroup(one, path));
            assert_eq!(interest.takes(path), plain, "{path} with {members:?}");
            (taken, left) = (taken + usize::from(plain), left + usize::from(!plain));
        }
        assert!(taken > 10 && left > 10, "{taken} and {left}");
    }
}

/// A directory that [`Interest::may_take_below`] rules out contains no relevant cgroup.
#[test]
fn nothing_below_a_directory_that_is_left_out_is_relevant() {
    let names = ["a", "a-b", "ab", "b", "s.slice", "kubepods", "a.service"];
    let mut paths = vec![CgroupPath::root()];
    for _ in 0..4 {
        let deeper: Vec<CgroupPath> =
            paths.iter().flat_map(|path| names.map(|name| path.child(name))).collect();
        paths.extend(deeper);
        paths.sort();
        paths.dedup();
    }
    let matches = [
        "{ cgroup = \"/a*/b\" }",
        "{ cgroup = \"/ab/a/*\" }",
        "{ cgroup = \"/a/b\" }",
        "{ cgroup = \"/b/**/a\" }",
        "{ cgroup = \"/b/a-*\" }",
        "{ systemd = \"a.service\" }",
        "{ kubernetes = \"besteffort\" }",
        "{ process = { exe = \"/x\" } }",
    ];
    let parents = [CgroupPath::new("/b/a/a"), CgroupPath::new("/ab/b")];
    let (mut checked, mut left_out) = (0, 0);
    for (offset, one) in matches.iter().enumerate() {
        let text = format!("[group.x]\nclass = \"online\"\nmatch = [{one}]\n");
        let specs = config::parse_file("groups.toml", &text).unwrap().groups;
        let members: BTreeSet<CgroupPath> =
            paths.iter().skip(1 + offset * 11).step_by(401).take(3).cloned().collect();
        let matches = specs.iter().flat_map(|spec| &spec.matches);
        let matches = matches.map(|one| (literal_prefix(one).into(), one.clone())).collect();
        let interest = Interest { matches, parents: parents.clone(), members };
        for path in paths.iter().filter(|path| path.depth() < 4 && !interest.may_take_below(path)) {
            left_out += 1;
            for below in paths.iter().filter(|below| path.contains(below) && *below != path) {
                checked += 1;
                assert!(!interest.takes(below), "{one}: {below} is relevant, but {path} is left out");
            }
        }
    }
    assert!(left_out > 300 && checked > 3_000, "{left_out} and {checked}");
}

/// Whatever is relevant at a time, each creation and removal of a relevant cgroup is reported, and directories in which
/// nothing can be relevant are not watched.
#[test]
fn relevant_cgroups_are_reported_while_what_is_relevant_changes() {
    let places = places("relevant_cgroups_are_reported_while_what_is_relevant_changes");
    let Some(place) = places.first() else { return };
    let (tell, changes) = channel();
    let reports = Reports::new(tell, Waker::new().unwrap());
    let follow = Follow { sockets: Vec::new(), mounts: vec![place.clone()] };
    let follower = Follower::start(follow, &reports).unwrap();
    within(PATIENCE, "the folder is watched", || watches(std::process::id(), place));
    let mut dice = Dice::new(7);
    let names = ["a", "a-b", "b"];
    let mut there: BTreeSet<String> = BTreeSet::new();
    let mut interest = None;
    let (mut relevant, mut reported) = (0, 0);
    // Whether the follower knows what is relevant. What is created before is found by looking; what is removed before is
    // not reported, and found by those who read its files.
    let mut followed = true;
    for number in 0..600 {
        if dice.below(12) == 0 {
            let pattern = ["/a/*", "/a/b", "/b/**", "/a-b/a*", "/nothing"][dice.below(5)];
            let text = format!("[group.x]\nclass = \"online\"\nmatch = [{{ cgroup = \"{pattern}\" }}]\n");
            let specs = config::parse_file("groups.toml", &text).unwrap().groups;
            let members =
                there.iter().filter(|_| dice.below(6) == 0).map(|path| CgroupPath::new(path)).collect();
            let new = || {
                let matches = specs.iter().flat_map(|spec| &spec.matches);
                let matches = matches.map(|one| (literal_prefix(one).into(), one.clone())).collect();
                let parents = ["/own", "/their"].map(CgroupPath::new);
                Interest { matches, parents, members: BTreeSet::clone(&members) }
            };
            reports.mind(Some(new()));
            follower.wake();
            interest = Some(new());
            followed = false;
        }
        let parts: Vec<&str> = (0..=dice.below(3)).map(|_| names[dice.below(3)]).collect();
        let path = format!("/{}", parts.join("/"));
        let folder = place.join(&path[1..]);
        let made = match there.contains(&path) {
            true => {
                if !std::mem::replace(&mut followed, true) {
                    let sign = place.join(format!("sign{number}"));
                    std::fs::create_dir(&sign).unwrap();
                    until(
                        &changes,
                        |change| matches!(change, Change::Cgroup { folder: one, .. } if *one == sign),
                    );
                    std::fs::remove_dir(&sign).unwrap();
                }
                if std::fs::remove_dir(&folder).is_err() {
                    continue;
                }
                there.remove(&path);
                false
            }
            false => {
                if std::fs::create_dir(&folder).is_err() {
                    continue;
                }
                there.insert(path.clone());
                true
            }
        };
        let takes = interest.as_ref().is_none_or(|interest| interest.takes(&CgroupPath::new(&path)));
        if takes {
            relevant += 1;
            let is_it = |change: &Change| matches!(change, Change::Cgroup { folder: one, made: how, .. } if *one == folder && *how == made);
            reported += until(&changes, is_it).len();
        }
    }
    assert!(relevant > 60 && reported >= relevant, "{relevant} and {reported}");
    // With nothing to match, no directory below the top is watched.
    for name in names {
        let _ = std::fs::create_dir(place.join(name));
    }
    let none = Interest {
        matches: Vec::new(),
        parents: ["/own", "/their"].map(CgroupPath::new),
        members: BTreeSet::new(),
    };
    reports.mind(Some(none));
    follower.wake();
    within(PATIENCE, "the other folders are not watched", || {
        names.iter().all(|name| !watches(std::process::id(), &place.join(name)))
    });
    assert!(watches(std::process::id(), place));
    drop(follower);
    there.extend(names.map(|name| format!("/{name}")));
    for path in there.iter().rev() {
        std::fs::remove_dir(place.join(&path[1..])).unwrap();
    }
    places.iter().for_each(|group| std::fs::remove_dir(group).unwrap());
}
