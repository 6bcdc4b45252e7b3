//! The way home of moved processes, on FakeHost: every kind of original cgroup x everything that ends a move x every
//! kind of machine.
//!
//! ```text
//!  Home x End x machine ─► a matched process with children is moved in ─► the end ─► it is home in every hierarchy,
//!                                                     or it stays, and every command says so until a user moves it
//! ```
//! Where a process is, is read from `/proc/PID/cgroup` and compared by equality.

use crate::members::{MEDIA, make, mounts, start};
use crate::support::{STATE, instance, journal, planned, restored, specs};
use commensal_core::actual::CgroupPath;
use commensal_core::errno::Errno;
use commensal_core::plan::Unmet;
use commensal_core::process::{Exit, Stat};
use commensal_host::fake::{Effect, FakeHost, FakeLooks, Trouble};
use commensal_host::{Host, below};
use commensal_reconcile::journal::{self as journals, Record};
use commensal_reconcile::{
    Instance, Outcome, PlanRequest, Planned, Reconciler, Restored, apply, enforce, restore_own,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Where a process was before it was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Home {
    Root,
    /// The root, with commensal's groups below a chosen parent.
    RootAboveChosen,
    /// The chosen parent of commensal's groups.
    Chosen,
    /// A cgroup between the root and the chosen parent.
    AboveChosen,
    Sibling,
    /// The root in every other hierarchy.
    Mixed,
    /// Removed meanwhile.
    Removed,
    /// Removed in the first hierarchy only.
    RemovedInOne,
    /// Removed, and another cgroup has the name.
    MadeAgain,
}

const HOMES: [Home; 9] = [
    Home::Root,
    Home::RootAboveChosen,
    Home::Chosen,
    Home::AboveChosen,
    Home::Sibling,
    Home::Mixed,
    Home::Removed,
    Home::RemovedInOne,
    Home::MadeAgain,
];

/// What ends the move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// `apply` of a file whose group has no match.
    Unmatched,
    /// `apply` of a file without the group.
    Dropped,
    /// The same two, by an agent's tick.
    UnmatchedByTick,
    DroppedByTick,
    /// The last command of `commensal run` in the group ends; the process stays until `restore`.
    RunEnds,
    /// A later step of the `apply` that moved it is refused.
    RolledBack,
    /// A later step of the `apply` that moved it back is refused; the next `apply` moves it back.
    MovedInAgain,
    Restore,
}

const ENDS: [End; 8] = [
    End::Unmatched,
    End::Dropped,
    End::UnmatchedByTick,
    End::DroppedByTick,
    End::RunEnds,
    End::RolledBack,
    End::MovedInAgain,
    End::Restore,
];

const UNMATCHED: &str = "[group.media]\nclass = \"offline\"\npids.max = 100\n";
const WITHOUT: &str = "[group.other]\nclass = \"offline\"\n";
/// A group whose removal is the last step of a plan.
const OLD: &str = "[group.old]\nclass = \"offline\"\n";

type Places = BTreeMap<String, CgroupPath>;

/// The process's line of each hierarchy in `/proc/PID/cgroup`.
fn places(fake: &FakeHost, pid: u32) -> Places {
    places_in(fake, &format!("/proc/{pid}/cgroup"))
}

fn places_in(fake: &FakeHost, file: &str) -> Places {
    let text = fake.read_file(Path::new(file)).unwrap();
    let line =
        |line: &str| line.rsplit_once(':').map(|(name, path)| (name.to_owned(), CgroupPath::new(path)));
    text.lines().filter_map(line).collect()
}

struct Scene {
    what: String,
    home: Home,
    fake: FakeHost,
    instance: Instance,
    /// The process, a child that is moved with it, and one that starts in the group.
    family: Vec<u32>,
    before: Places,
    files: BTreeMap<String, String>,
}

impl Scene {
    /// A machine with a process in its home; `None` if the kernel has no such home there.
    fn new(name: &str, fake: FakeHost, home: Home, end: End) -> Option<Scene> {
        let chosen = matches!(home, Home::RootAboveChosen | Home::Chosen | Home::AboveChosen);
        make(&fake, "/above/chosen");
        make(&fake, "/work");
        let path = match home {
            Home::Root | Home::RootAboveChosen => "/",
            Home::Chosen => "/above/chosen",
            Home::AboveChosen => "/above",
            _ => "/work",
        };
        // Below these, the unified hierarchy needs controllers, which it enables only where no process is.
        if name == "v2" && matches!(home, Home::Chosen | Home::AboveChosen) {
            return None;
        }
        let pid = start(&fake, path, "/usr/bin/ffmpeg", 1);
        let child = start(&fake, path, "/bin/sh", pid);
        if home == Home::Mixed {
            for mount in mounts(&fake).iter().step_by(2) {
                [pid, child].iter().for_each(|pid| fake.move_process(*pid, mount));
            }
        }
        let cgroup_root = chosen.then(|| CgroupPath::new("/above/chosen"));
        let instance = Instance { cgroup_root, ..instance() };
        let (before, files) = (places(&fake, pid), fake.snapshot());
        let what = format!("{name}: {home:?}, {end:?}");
        Some(Scene { what, home, fake, instance, family: vec![pid, child], before, files })
    }

    fn apply(&self, text: &str) -> (Planned, Outcome) {
        let mut host = self.fake.another();
        let (specs, mut journal) = (specs(text), journal(&mut host).unwrap());
        enforce(&self.instance, &mut host, &PlanRequest::all(&specs), &mut journal).unwrap()
    }

    fn applied(&self, text: &str) -> Vec<Unmet> {
        let (planned, outcome) = self.apply(text);
        assert!(outcome.failure.is_none(), "{}: {:?}", self.what, outcome.failure);
        assert_eq!(outcome.stayed, [""; 0], "{}", self.what);
        planned.plan.unmet
    }

    fn ticked(&self, text: &str) -> Vec<Unmet> {
        let mut host = self.fake.another();
        let mut agent = Reconciler::new(self.instance.clone(), &mut host).unwrap();
        let specs = specs(text);
        let done = agent.round(&mut host, 0, &PlanRequest::all(&specs)).unwrap();
        assert_eq!(done.problems, [""; 0], "{}", self.what);
        done.planned.plan.unmet
    }

    fn restored(&self) -> Restored {
        self.instance.restore(&mut self.fake.another(), &[]).unwrap()
    }

    /// Moves the process in, and lets it start a child there.
    fn moved_in(&mut self, text: &str) {
        self.applied(text);
        let pid = self.family[0];
        let inside = self.groups_of(pid);
        assert!(inside.iter().any(|group| group.ends_with("commensal-offline/media")), "{}", self.what);
        let late = self.fake.add_process(&inside.iter().filter_map(|path| path.to_str()).collect::<Vec<_>>());
        self.fake
            .set_looks(late, FakeLooks { exe: "/bin/late".to_owned(), parent: pid, ..FakeLooks::default() });
        self.family.push(late);
    }

    fn groups_of(&self, pid: u32) -> Vec<PathBuf> {
        self.fake.processes().into_iter().find(|one| one.pid == pid).unwrap().groups
    }

    /// Makes the removal of the group `old` fail, which is the last step of a plan.
    fn refuses_last_step(&self) {
        let parent = self.instance.cgroup_root.clone().unwrap_or_default().child("commensal-offline");
        for path in [parent, CgroupPath::new("/commensal-offline")] {
            let old = path.child("old");
            let all = mounts(&self.fake);
            let there = |mount: &&PathBuf| self.fake.another().open(&below(mount, old.as_str())).is_ok();
            if let Some(mount) = all.iter().find(there) {
                let path = below(mount, old.as_str()).display().to_string();
                let effect = Effect::Fails(Errno::EBUSY);
                self.fake.trouble(Trouble { operation: "remove", path, value: None, effect, lasts: true });
            }
        }
    }

    fn refused(&self, text: &str) {
        self.refuses_last_step();
        let (_, outcome) = self.apply(text);
        let failure = outcome.failure.unwrap_or_else(|| panic!("{}: nothing was refused", self.what));
        assert_eq!(failure.left, [""; 0], "{}", self.what);
        assert_eq!(self.fake.no_trouble(), 1, "{}", self.what);
    }

    fn loses_home(&self) {
        let all = mounts(&self.fake);
        let many = match self.home {
            Home::Removed | Home::MadeAgain => all.len(),
            Home::RemovedInOne => 1,
            _ => return,
        };
        all.iter().take(many).for_each(|mount| self.fake.vanish(below(mount, "/work")));
        if self.home == Home::MadeAgain {
            make(&self.fake, "/work");
        }
    }

    /// Whether the journal has a record of the process or one of its children.
    fn is_recorded(&self) -> bool {
        let path = Path::new(STATE).join("machine.journal");
        let text = self.fake.another().state_read(&path).unwrap().unwrap_or_default();
        let of_family = |record: &Record| record.process().is_some_and(|one| self.family.contains(&one.pid));
        journals::parse(&text).records.iter().any(of_family)
    }

    /// Whether the whole family is where it was, in every hierarchy.
    fn is_home(&self) -> bool {
        self.family.iter().all(|pid| places(&self.fake, *pid) == self.before)
    }

    /// Puts the processes where they were before, as a user can who reads that they stay.
    fn by_hand(&self) {
        make(&self.fake, "/work");
        for (pid, mount) in
            self.family.iter().flat_map(|pid| mounts(&self.fake).into_iter().map(move |m| (pid, m)))
        {
            self.fake.move_process(*pid, below(&mount, "/work"));
        }
    }
}

pub fn machines() -> [(&'static str, FakeHost); 4] {
    const MEMORY: u64 = 16 << 30;
    [
        ("v1", FakeHost::v1(4, MEMORY)),
        ("co-mounted", FakeHost::v1_comounted(4, MEMORY)),
        ("v2", FakeHost::v2(4, MEMORY)),
        ("hybrid", FakeHost::hybrid(4, MEMORY)),
    ]
}

/// Brings the process to the end of its move; returns the unmet requests of the last plan.
fn to_the_end(scene: &mut Scene, end: End) -> Vec<Unmet> {
    let with_old = format!("{MEDIA}{OLD}");
    if end == End::RolledBack {
        scene.applied(OLD);
        scene.refused(MEDIA);
        return Vec::new();
    }
    scene.moved_in(if end == End::MovedInAgain { &with_old } else { MEDIA });
    scene.loses_home();
    match end {
        End::Unmatched => scene.applied(UNMATCHED),
        End::Dropped => scene.applied(WITHOUT),
        End::UnmatchedByTick => scene.ticked(UNMATCHED),
        End::DroppedByTick => scene.ticked(WITHOUT),
        End::MovedInAgain => {
            let inside = places(&scene.fake, scene.family[0]);
            scene.refused(UNMATCHED);
            for pid in &scene.family {
                assert_eq!(places(&scene.fake, *pid), inside, "{}", scene.what);
            }
            assert!(scene.is_recorded(), "{}", scene.what);
            scene.applied(UNMATCHED)
        }
        End::RunEnds => {
            let inside = places(&scene.fake, scene.family[0]);
            restore_own(&mut scene.fake.another(), Path::new(STATE), journals::RUN).unwrap();
            assert_eq!(places(&scene.fake, scene.family[0]), inside, "{}", scene.what);
            assert!(scene.is_recorded(), "{}", scene.what);
            Vec::new()
        }
        End::RolledBack | End::Restore => Vec::new(),
    }
}

// promises 11, 13
#[test]
fn every_way_home() {
    let (mut home, mut stays) = (0, 0);
    for (at, end) in HOMES.into_iter().flat_map(|home| ENDS.map(|end| (home, end))) {
        for (name, fake) in machines() {
            let Some(mut scene) = Scene::new(name, fake, at, end) else { continue };
            let unmet = to_the_end(&mut scene, end);
            let what = scene.what.clone();
            let homeless = matches!(at, Home::Removed | Home::RemovedInOne | Home::MadeAgain);
            let lost = homeless && end != End::RolledBack;
            let by_restore = matches!(end, End::Restore | End::RunEnds);
            let first = if by_restore { scene.restored() } else { Restored::default() };
            assert_eq!(first.failed, [""; 0], "{what}");
            match lost {
                false => {
                    assert!(
                        scene.is_home(),
                        "{what}: {:?}, not {:?}",
                        places(&scene.fake, scene.family[0]),
                        scene.before
                    );
                    assert!(!scene.is_recorded() && first.left.is_empty(), "{what}: {first:?}");
                    home += 1;
                }
                // The home is gone: the process stays, which the plan and every `restore` say, until a user moves it.
                true => {
                    let told = |line: &String| line.contains("/work, where it came from, was removed");
                    if !by_restore {
                        let told =
                            |one: &Unmet| one.because.contains("the cgroup that it came from was removed");
                        assert_eq!(
                            unmet.iter().filter(|one| told(one)).count(),
                            scene.family.len(),
                            "{what}: {unmet:?}"
                        );
                    }
                    for _ in 0..2 {
                        let again = scene.restored();
                        assert!(again.left.iter().any(told) && again.failed.is_empty(), "{what}: {again:?}");
                        assert!(scene.is_recorded() && !scene.is_home(), "{what}");
                    }
                    scene.by_hand();
                    stays += 1;
                }
            }
            let last = scene.restored();
            assert!(last.left.is_empty() && last.failed.is_empty(), "{what}: {last:?}");
            assert!(lost || scene.is_home(), "{what}: {:?}", places(&scene.fake, scene.family[0]));
            let now = scene.fake.snapshot();
            assert!(now.keys().all(|file| !file.contains("commensal-")), "{what}");
            if !lost {
                assert_eq!(now, scene.files, "{what}");
            }
            assert!(scene.restored().nothing(), "{what}");
        }
    }
    println!("{home} ways home, {stays} homes that were removed");
}

/// A process exits while it is moved in or back, before or after a write: nobody says that another program moved it, and
/// once it is gone, nothing is left of it. cgroup v1 shows a process that exits in `/`.
// promise 13
#[test]
fn a_process_that_exits_on_the_way() {
    let mut exited = 0;
    for at in [Home::Root, Home::Sibling, Home::Mixed] {
        for end in [End::Unmatched, End::UnmatchedByTick, End::Dropped, End::Restore] {
            for (name, fake) in machines() {
                for (moves_in, moment) in
                    [true, false].into_iter().flat_map(|one| (0..12).map(move |n| (one, n)))
                {
                    let scene = Scene::new(name, fake.copy(), at, end).unwrap();
                    let pid = scene.family[0];
                    if !moves_in {
                        scene.applied(MEDIA);
                    }
                    scene.fake.exits_at_move(pid, moment);
                    if moves_in {
                        scene.applied(MEDIA);
                    }
                    let what = format!("{}, moves in {moves_in}, moment {moment}", scene.what);
                    match end {
                        End::Restore => {
                            let back = scene.restored();
                            assert!(back.left.is_empty() && back.failed.is_empty(), "{what}: {back:?}");
                        }
                        End::UnmatchedByTick => drop(scene.ticked(UNMATCHED)),
                        End::Dropped => drop(scene.applied(WITHOUT)),
                        _ => drop(scene.applied(UNMATCHED)),
                    }
                    let stat =
                        scene.fake.read_file(Path::new(&format!("/proc/{pid}/stat"))).unwrap_or_default();
                    exited += usize::from(Stat::parse(&stat).is_none_or(|stat| stat.has_ended()));
                    for pid in scene.family.clone() {
                        scene.fake.end(pid, Exit::Code(0));
                    }
                    let back = scene.restored();
                    assert!(back.left.is_empty() && back.failed.is_empty(), "{what}: {back:?}");
                    assert_eq!(scene.fake.snapshot(), scene.files, "{what}");
                }
            }
        }
    }
    assert!(exited > 200, "{exited}");
}

/// A process starts a child while it is moved in and while it is moved back: both are home at the end, also if the
/// child outlives its parent.
// promise 13
#[test]
fn children_that_start_on_the_way() {
    for at in [Home::Root, Home::Sibling, Home::Mixed] {
        for end in [End::Unmatched, End::UnmatchedByTick, End::Dropped, End::Restore] {
            for (name, fake) in machines() {
                let mut scene = Scene::new(name, fake, at, end).unwrap();
                let pid = scene.family[0];
                scene.fake.forks_before_move(pid);
                scene.moved_in(MEDIA);
                scene.fake.forks_before_move(pid);
                match end {
                    End::Restore => assert!(scene.restored().left.is_empty(), "{}", scene.what),
                    End::UnmatchedByTick => drop(scene.ticked(UNMATCHED)),
                    End::Dropped => drop(scene.applied(WITHOUT)),
                    _ => drop(scene.applied(UNMATCHED)),
                }
                let all = scene.fake.processes().into_iter().map(|one| one.pid);
                scene.family = all.filter(|pid| *pid != std::process::id()).collect();
                assert_eq!(scene.family.len(), 5, "{}: two children have started", scene.what);
                let wrong = scene.family.iter().find(|pid| places(&scene.fake, **pid) != scene.before);
                assert_eq!(wrong.map(|pid| places(&scene.fake, *pid)), None, "{}", scene.what);
                assert!(!scene.is_recorded(), "{}", scene.what);
                let back = scene.restored();
                assert!(back.left.is_empty() && back.failed.is_empty(), "{}: {back:?}", scene.what);
                assert_eq!(scene.fake.snapshot(), scene.files, "{}", scene.what);
            }
        }
    }
}

/// The cgroups of each thread, from `/proc/PID/task/TID/cgroup`.
fn of_threads(fake: &FakeHost, pid: u32) -> BTreeMap<u32, Places> {
    let folder = format!("/proc/{pid}/task");
    let tids = fake.list(Path::new(&folder)).unwrap();
    tids.iter()
        .map(|tid| (tid.parse().unwrap(), places_in(fake, &format!("{folder}/{tid}/cgroup"))))
        .collect()
}

/// Machines on which the kernel lets a thread leave the cgroup of its process for any other one.
fn with_threads() -> [(&'static str, FakeHost); 3] {
    let [v1, comounted, _, hybrid] = machines();
    [v1, comounted, hybrid]
}

/// The cgroups that libvirt makes for a machine, without and with systemd: the cgroup of the machine, the one that has
/// those of its threads, and how a groups file names the latter.
const LIBVIRT: [(&str, &str, &str); 2] = [
    ("/machine/qemu-1-vm.libvirt-qemu", "/machine/qemu-1-vm.libvirt-qemu", "/machine/qemu-1-vm.libvirt-qemu"),
    (
        r"/machine.slice/machine-qemu\x2d1\x2dvm.scope",
        r"/machine.slice/machine-qemu\x2d1\x2dvm.scope/libvirt",
        r"/machine.slice/machine-qemu\\x2d1\\x2dvm.scope/libvirt",
    ),
];

/// Distributes the threads of a process as libvirt does those of QEMU: in cpu and cpuset on v1, in a threaded subtree on
/// v2.
fn as_libvirt(fake: &FakeHost, pid: u32, (machine, above): (&str, &str)) {
    let mut threads = vec![pid];
    threads.extend((0..4).map(|_| fake.add_thread(pid)));
    make(fake, machine);
    make(fake, above);
    for mount in mounts(fake) {
        fake.move_process(pid, below(&mount, machine));
        let apart = ["cpu", "cpu,cpuacct", "cpuset"].iter().any(|name| mount.ends_with(name));
        let unified = mounts(fake).len() == 1;
        for (tid, name) in threads
            .iter()
            .zip(["emulator", "vcpu0", "vcpu1", "vcpu2", "iothread1"])
            .filter(|_| apart || unified)
        {
            let path = format!("{above}/{name}");
            make(fake, &path);
            fake.move_thread(*tid, below(&mount, &path));
        }
    }
}

/// QEMU's layout under libvirt: such a process stays, with the reason, until its threads are together.
// promise 14
#[test]
fn a_process_whose_threads_are_apart_is_left_alone() {
    for ((machine, above, in_file), end) in
        LIBVIRT.into_iter().flat_map(|layout| [End::Unmatched, End::UnmatchedByTick].map(|end| (layout, end)))
    {
        for (name, fake) in machines() {
            let scene = Scene::new(name, fake, Home::Sibling, end).unwrap();
            let (pid, what) = (scene.family[0], format!("{}, {above}", scene.what));
            as_libvirt(&scene.fake, pid, (machine, above));
            let before = of_threads(&scene.fake, pid);
            assert!(before.values().collect::<BTreeSet<_>>().len() == before.len(), "{what}: {before:?}");
            let unmet = match end {
                End::Unmatched => scene.applied(MEDIA),
                _ => scene.ticked(MEDIA),
            };
            assert_eq!(of_threads(&scene.fake, pid), before, "{what}");
            let told: Vec<&Unmet> = unmet
                .iter()
                .filter(|one| one.because.contains("its threads are in several cgroups"))
                .collect();
            let [told] = told[..] else { panic!("{what}: {unmet:?}") };
            assert!(told.what.contains(&pid.to_string()), "{what}: {told:?}");
            assert!(told.because.contains(&format!("{above}/emulator")), "{what}: {told:?}");
            assert!(told.because.contains("and 2 more"), "{what}: {told:?}");
            // The advice is a line of a groups file.
            let advice = format!("match = [{{ cgroup = \"{in_file}\" }}]");
            assert!(told.try_this.ends_with(&advice), "{what}: {told:?}");
            let followed = format!("[group.media]\nclass = \"offline\"\n{advice}\n");
            assert!(scene.ticked(&followed).iter().all(|one| !one.what.contains("process")), "{what}");
            assert_eq!(of_threads(&scene.fake, pid), before, "{what}");
            // Together again, it is moved, and comes back.
            for mount in mounts(&scene.fake) {
                scene.fake.move_process(pid, below(&mount, machine));
            }
            let before = of_threads(&scene.fake, pid);
            assert_eq!(scene.applied(MEDIA), [], "{what}");
            assert!(of_threads(&scene.fake, pid).values().all(|places| *places != before[&pid]), "{what}");
            let back = scene.restored();
            assert!(back.left.is_empty() && back.failed.is_empty(), "{what}: {back:?}");
            assert_eq!(of_threads(&scene.fake, pid), before, "{what}");
        }
    }
}

/// Another program distributes the threads between the plan and the move.
#[test]
fn threads_that_part_after_the_plan() {
    for (_, fake) in with_threads() {
        make(&fake, "/work");
        make(&fake, "/other");
        let pid = start(&fake, "/work", "/usr/bin/ffmpeg", 1);
        let tid = fake.add_thread(pid);
        let mut host = fake.another();
        let (found, plan) = planned(&mut host, MEDIA).unwrap();
        fake.move_thread(tid, below(&mounts(&fake)[0], "/other"));
        let before = of_threads(&fake, pid);
        let mut journal = journal(&mut host).unwrap();
        let outcome = apply(&mut host, &plan.steps, &found, &mut journal);
        assert!(
            outcome.stayed.iter().any(|line| line.contains("threads are in several cgroups")),
            "{outcome:?}"
        );
        assert_eq!(of_threads(&fake, pid), before);
        let back = restored(&mut host);
        assert!(back.left.is_empty() && back.failed.is_empty(), "{back:?}");
    }
}

/// Another program takes one thread of a moved process: the others go home, and this one stays where it is.
// promise 14
#[test]
fn a_thread_that_another_program_took_stays_there() {
    for at in [Home::Root, Home::Sibling, Home::Mixed] {
        for end in [End::Unmatched, End::Dropped, End::UnmatchedByTick, End::Restore] {
            for (name, fake) in with_threads() {
                let mut scene = Scene::new(name, fake, at, end).unwrap();
                let pid = scene.family[0];
                let tids = [(); 3].map(|()| scene.fake.add_thread(pid));
                make(&scene.fake, "/other");
                scene.files = scene.fake.snapshot();
                let before = of_threads(&scene.fake, pid);
                scene.moved_in(MEDIA);
                let cpu = mounts(&scene.fake)[0].clone();
                scene.fake.move_thread(tids[1], below(&cpu, "/other"));
                match end {
                    End::Unmatched => drop(scene.applied(UNMATCHED)),
                    End::Dropped => drop(scene.applied(WITHOUT)),
                    End::UnmatchedByTick => drop(scene.ticked(UNMATCHED)),
                    _ => {}
                }
                let back = scene.restored();
                assert!(back.left.is_empty() && back.failed.is_empty(), "{}: {back:?}", scene.what);
                let now = of_threads(&scene.fake, pid);
                for (tid, home) in &before {
                    let away: Vec<_> = now[tid].iter().filter(|(name, path)| home[*name] != **path).collect();
                    match *tid == tids[1] {
                        true => assert!(
                            away.len() == 1 && away[0].1.as_str() == "/other",
                            "{}: {away:?}",
                            scene.what
                        ),
                        false => assert!(away.is_empty(), "{}: thread {tid}: {away:?}", scene.what),
                    }
                }
                assert_eq!(scene.fake.snapshot(), scene.files, "{}", scene.what);
            }
        }
    }
}
