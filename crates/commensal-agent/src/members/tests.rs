//! Tests with a scripted container engine and real directories.

use super::{Change, Follow, Follower, Interest, Members, Reports};
use commensal_core::actual::{ActualState, CgroupPath};
use commensal_core::config;
use commensal_core::desired::takes_cgroup;
use commensal_core::knob::Controller;
use commensal_host::{LinuxHost, Waker};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for a change; no test depends on how long it takes.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct State {
    running: BTreeSet<String>,
    listeners: Vec<UnixStream>,
    /// Requests are accepted but not answered.
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
        // Ends with the test's process.
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

/// Collects changes until `enough` returns true.
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
    // Events while disconnected are covered by the list after reconnecting.
    {
        let mut state = engine.state.lock().unwrap();
        state.running = BTreeSet::from(["cc".to_owned()]);
    }
    engine.hang_up();
    let seen = until(&changes, runs(&["cc"]));
    let kinds: Vec<bool> = seen.iter().map(|change| matches!(change, Change::EngineLost { .. })).collect();
    assert_eq!(kinds, [true, false, false], "lost, back, list: {seen:?}");
    // The engine restarts at the same path.
    drop(engine);
    let engine = Engine::start(&socket);
    engine.say("start", "dd");
    // A real engine's connections end with it; here they are closed by hand.
    drop(follower);
    let (tell, changes) = channel();
    let _follower = Follower::start(follow.clone(), &Reports::new(tell, Waker::new().unwrap())).unwrap();
    until(&changes, runs(&["dd"]));
}

/// An engine that accepts requests but answers none: reported once, it delays nothing, and it comes back.
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
    std::thread::sleep(Duration::from_millis(100));
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

/// On the loop's side: the list of running containers is kept while the engine is away, and the problem names the
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
    assert!(found.engine_obstacle.as_deref().is_some_and(|text| text.contains("not been asked")));
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
    assert_eq!(found.containers.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["aa"]);
    assert_eq!(found.engine_obstacle, None);
    members.heed(Change::EngineLost { socket: socket.clone(), because: "gone".to_owned() });
    members.fill(&host, &specs, &mut found);
    assert_eq!(found.containers.len(), 1, "what it said last holds");
    assert_eq!(members.lost().get(&socket).map(String::as_str), Some("gone"));
    members.heed(Change::EngineBack { socket });
    assert!(members.lost().is_empty());
}

/// A cgroup of this test in each writable hierarchy; prints a line when there is none.
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

/// Every group of a tree that is created at once is reported, and so is its removal.
#[test]
fn groups_appear_and_go() {
    let places = places("groups_appear_and_go");
    for place in &places {
        let (tell, changes) = channel();
        let follow = Follow { sockets: Vec::new(), mounts: vec![place.clone()] };
        let follower = Follower::start(follow.clone(), &Reports::new(tell, Waker::new().unwrap())).unwrap();
        std::thread::sleep(Duration::from_millis(200));
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

/// The index answers as a look at every member and every pattern would.
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
    // One in seven is a member; not the root, of which everything is part.
    for offset in 1..7 {
        let members: BTreeSet<CgroupPath> = paths.iter().skip(offset).step_by(7).take(6).cloned().collect();
        let matches = specs.iter().flat_map(|spec| &spec.matches).cloned().collect();
        let interest = Interest { matches, parents: parents.clone(), members: members.clone() };
        let (mut taken, mut left) = (0, 0);
        for path in &paths {
            let plain = parents.iter().any(|parent| parent.contains(path))
                || members.iter().any(|member| member.contains(path) || path.contains(member))
                || interest.matches.iter().any(|one| takes_cgroup(one, path));
            assert_eq!(interest.takes(path), plain, "{path} with {members:?}");
            (taken, left) = (taken + usize::from(plain), left + usize::from(!plain));
        }
        assert!(taken > 10 && left > 10, "{taken} and {left}");
    }
}
