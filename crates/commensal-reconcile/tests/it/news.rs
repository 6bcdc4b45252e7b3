//! Cgroups and containers that come and go between two rounds: what is read alone must be what a whole round reads.

use crate::support::{STATE, instance, restored, specs};
use commensal_core::actual::{ActualState, CgroupPath, CgroupRef, Hierarchy};
use commensal_core::knob::Version;
use commensal_core::member::{ContainerFact, EngineReport};
use commensal_host::fake::FakeHost;
use commensal_host::{Host, below};
use commensal_reconcile::{FindMembers, PlanRequest, Reconciler};
use commensal_testkit::Dice;
use std::collections::BTreeSet;
use std::path::Path;

const GROUPS: &str = "[group.web]\nclass = \"online\"\nmatch = [{ cgroup = \"/web/*\" }]\n\
    [group.jobs]\nclass = \"offline\"\ncpu.max = \"1 core\"\nmemory.max = \"1 GiB\"\npids.max = 60\n\
    match = [{ cgroup = \"/batch/*\" }]\n\
    [group.etl]\nclass = \"offline\"\ncpu.max = \"50%\"\nmatch = [{ docker-label = \"etl\" }]\n";

type Make = fn(u32, u64) -> FakeHost;
const MACHINES: [(&str, Make); 4] = [
    ("v1", FakeHost::v1),
    ("v1, comounted", FakeHost::v1_comounted),
    ("v2", FakeHost::v2),
    ("hybrid", FakeHost::hybrid),
];

struct Machine {
    fake: FakeHost,
    hierarchies: Vec<Hierarchy>,
    running: Vec<ContainerFact>,
    /// The cgroups that were made here and exist, without those of the setup.
    there: BTreeSet<String>,
    serial: u64,
}

impl Machine {
    fn new(fake: FakeHost) -> Machine {
        let hierarchies = commensal_sensors::mounts::hierarchies(&mut fake.another()).unwrap();
        let machine = Machine { fake, hierarchies, running: Vec::new(), there: BTreeSet::new(), serial: 0 };
        for hierarchy in machine.hierarchies.iter().filter(|one| one.version == Version::V2) {
            machine.enable(hierarchy, "/");
        }
        for path in ["/web", "/batch", "/other"] {
            machine.make_in(&(0..machine.hierarchies.len()).collect::<Vec<_>>(), path);
        }
        machine
    }

    /// Enables all controllers for the cgroups below this one, as a container manager does.
    fn enable(&self, hierarchy: &Hierarchy, path: &str) {
        let mut host = self.fake.another();
        let dir = host.open(&below(Path::new(&hierarchy.mount), path)).unwrap();
        for controller in host.read(dir, "cgroup.controllers").unwrap().split_whitespace() {
            host.write(dir, "cgroup.subtree_control", &format!("+{controller}")).unwrap();
        }
    }

    fn make_in(&self, hierarchies: &[usize], path: &str) {
        let mut host = self.fake.another();
        for hierarchy in hierarchies.iter().map(|index| &self.hierarchies[*index]) {
            let mut at = host.open(Path::new(&hierarchy.mount)).unwrap();
            let mut made = String::new();
            for part in path.split('/').filter(|part| !part.is_empty()) {
                made += &format!("/{part}");
                at = host.open_child(at, part).or_else(|_| host.mkdir(at, part)).unwrap();
                if hierarchy.version == Version::V2 && made.matches('/').count() == 1 {
                    self.enable(hierarchy, &made);
                }
            }
        }
    }

    fn make(&mut self, path: &str) {
        self.make_in(&(0..self.hierarchies.len()).collect::<Vec<_>>(), path);
        self.there.insert(path.to_owned());
    }

    /// Removes a cgroup and all below it.
    fn remove(&mut self, path: &str) {
        let inside = format!("{path}/");
        let below_it = self.there.iter().filter(|one| one.starts_with(&inside) || *one == path);
        for path in below_it.cloned().collect::<Vec<_>>().into_iter().rev() {
            let mut host = self.fake.another();
            let (above, name) = path.rsplit_once('/').unwrap();
            for hierarchy in &self.hierarchies {
                let above = host.open(&below(Path::new(&hierarchy.mount), above)).unwrap();
                let Ok(inode) = host.open_child(above, name).map(|dir| dir.inode) else { continue };
                host.rmdir(above, name, inode).unwrap();
            }
            self.there.remove(&path);
        }
    }

    fn some(&self, dice: &mut Dice, side: &str) -> Option<String> {
        let those: Vec<&String> = self.there.iter().filter(|path| path.starts_with(side)).collect();
        (!those.is_empty()).then(|| those[dice.below(those.len())].clone())
    }

    /// Changes something; returns the cgroups that the agent is told of.
    fn change(&mut self, dice: &mut Dice) -> Vec<String> {
        self.serial += 1;
        let side = ["/web", "/batch", "/other"][dice.below(3)];
        match dice.below(7) {
            0 | 1 => {
                let path = format!("{side}/n{}", self.serial);
                self.make(&path);
                vec![path]
            }
            2 => {
                let Some(path) = self.some(dice, side) else { return Vec::new() };
                let path = format!("{path}/in");
                self.make(&path);
                vec![path]
            }
            3 => {
                let Some(path) = self.some(dice, side) else { return Vec::new() };
                self.remove(&path);
                vec![path]
            }
            // Removed and made again with the same name.
            4 => {
                let Some(path) = self.some(dice, side) else { return Vec::new() };
                self.remove(&path);
                self.make(&path);
                vec![path]
            }
            5 => {
                let id = format!("{:064x}", self.serial);
                let path = format!("/docker/{id}");
                self.make(&path);
                let labels = match dice.below(3) {
                    0 => [].into(),
                    _ => [("etl".to_owned(), "1".to_owned())].into(),
                };
                let places = (0..self.hierarchies.len()).map(|one| (one, CgroupPath::new(&path)));
                let (name, paths) = (format!("c{}", self.serial), places.collect());
                self.running.push(ContainerFact { id, name, labels, pid: Some(7), paths, unnamed: None });
                Vec::new()
            }
            _ => {
                if !self.running.is_empty() {
                    let gone = self.running.remove(dice.below(self.running.len()));
                    self.remove(&format!("/docker/{}", gone.id));
                }
                Vec::new()
            }
        }
    }

    fn report(&self) -> EngineReport {
        let labelled = self.running.iter().filter(|one| !one.labels.is_empty());
        EngineReport { containers: labelled.cloned().collect(), obstacle: None }
    }
}

/// Compares with a second reader, which reads everything. Nobody tells of cgroups that no group can match.
fn compare(what: &str, (held, read): (&ActualState, &ActualState), members: &BTreeSet<&CgroupPath>) {
    let all = |state: &ActualState| -> BTreeSet<(CgroupRef, u64)> {
        state.cgroups.iter().map(|(place, one)| (place.clone(), one.inode)).collect()
    };
    let (all_held, all_read) = (all(held), all(read));
    let needs = |place: &CgroupRef| {
        members.contains(&place.path)
            || ["/web/", "/batch/"].iter().any(|side| place.path.as_str().starts_with(side))
    };
    for (place, inode) in &all_held {
        assert!(!needs(place) || all_read.contains(&(place.clone(), *inode)), "{what}: {place:?} has gone");
    }
    for (place, inode) in &all_read {
        let has_values = read.cgroups[place].values.iter().next().is_some();
        let is_held = all_held.contains(&(place.clone(), *inode));
        assert!(is_held || !(needs(place) || has_values), "{what}: {place:?} is not known");
    }
    for (place, one) in &read.cgroups {
        let Some(known) = held.cgroups.get(place) else { continue };
        for (knob, value) in one.values.iter() {
            assert_eq!(known.values.get(knob), Some(value), "{what}: {place:?} {knob:?}");
        }
        if one.values.iter().next().is_some() {
            assert_eq!(known.subtree, one.subtree, "{what}: {place:?}");
        }
    }
    assert_eq!(held.ours, read.ours, "{what}");
    assert_eq!(held.engines, read.engines, "{what}");
}

/// Kinds of machines x orders of births, deaths, containers and cgroups with an old name. After each, the state that is held
/// equals what a second reader finds, and nothing is left to do.
// promises 21, 23
#[test]
fn what_comes_and_goes_is_read_alone() {
    for (kind, make) in MACHINES {
        let (mut met, mut rounds, mut calls_alone, mut calls_in_all) = (0, 0, 0, 0);
        for seed in 0..12 {
            let mut dice = Dice::new(seed);
            let mut machine = Machine::new(make(2, 8 << 30));
            for _ in 0..20 {
                machine.change(&mut dice);
            }
            let specs = specs(GROUPS);
            let mut host = machine.fake.another();
            let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
            let mut last = None;
            for step in 0..25 {
                let mut news = BTreeSet::new();
                if last.is_some() {
                    for _ in 0..=dice.below(3) {
                        news.extend(machine.change(&mut dice).iter().map(|path| CgroupPath::new(path)));
                    }
                }
                let report = machine.report();
                let find: FindMembers<'_> = &|_, found| found.engines = report.clone();
                let request = PlanRequest { members: Some(find), kept: true, ..PlanRequest::all(&specs) };
                let (what, now_ms) = (format!("{kind}, seed {seed}, step {step}"), step * 1_000);
                let calls = machine.fake.calls();
                let alone = match &mut last {
                    Some(round) => reconciler.meet(&mut host, now_ms, (&request, &mut news), round).unwrap(),
                    None => false,
                };
                calls_alone += machine.fake.calls() - calls;
                if !alone {
                    let round = reconciler.round(&mut host, now_ms, &request).unwrap();
                    assert_eq!(round.problems, [""; 0], "{what}");
                    rounds += u32::from(step > 0);
                    last = Some(round);
                    // A round that has created something is followed by another one.
                    while !last.as_ref().unwrap().current {
                        last = Some(reconciler.round(&mut host, now_ms, &request).unwrap());
                    }
                    continue;
                }
                met += 1;
                let round = last.as_ref().unwrap();
                let mut second = machine.fake.another();
                let before = machine.fake.calls();
                let fresh = instance().plan(&mut second, &reconciler.survey, &request).unwrap();
                calls_in_all += machine.fake.calls() - before;
                let members = fresh.desired.groups.iter().flat_map(|group| &group.members);
                let members = members.map(|member| &member.path).collect();
                compare(&what, (&round.planned.actual, &fresh.actual), &members);
                assert_eq!(round.planned.desired, fresh.desired, "{what}");
                assert_eq!(fresh.plan.steps, [], "{what}");
                assert_eq!(round.problems, [""; 0], "{what}");
                assert!((0..20).all(|_| !reconciler.disturbed(&mut host, true)), "{what}: all values hold");
            }
            let undone = restored(&mut machine.fake.another());
            assert!(undone.failed.is_empty() && undone.left.is_empty(), "{kind}, seed {seed}: {undone:?}");
        }
        println!(
            "{kind}: {met} times alone, {rounds} times by a round; {calls_alone} calls, {calls_in_all} to read all"
        );
        assert!(calls_alone < calls_in_all, "{kind}: {calls_alone} calls alone, writes included");
        assert!(met > 9 * rounds, "{kind}: {met} times alone, {rounds} times by a round");
    }
}

/// What is read alone is not enough where something else has changed; then a round is asked for, and it mends everything.
#[test]
fn anything_else_takes_a_round() {
    for (kind, make) in MACHINES {
        let mut machine = Machine::new(make(2, 8 << 30));
        machine.make("/batch/a");
        let specs = specs(GROUPS);
        let find: FindMembers<'_> = &|_, _| ();
        let request = PlanRequest { members: Some(find), kept: true, ..PlanRequest::all(&specs) };
        let mut host = machine.fake.another();
        let mut reconciler = Reconciler::new(instance(), &mut host).unwrap();
        let mut round = reconciler.round(&mut host, 0, &request).unwrap();
        while !round.current {
            round = reconciler.round(&mut host, 0, &request).unwrap();
        }
        machine.make("/batch/b");
        let mut meet = |request: &PlanRequest<'_>, round: &mut commensal_reconcile::Round| {
            let mut news = [CgroupPath::new("/batch/b")].into();
            reconciler.meet(&mut machine.fake.another(), 1_000, (request, &mut news), round).unwrap()
        };
        // Nobody says how members are found; the journal is gone; the last round was not complete.
        assert!(!meet(&PlanRequest::all(&specs), &mut round), "{kind}");
        round.current = true;
        machine.fake.remove_file(Path::new(STATE).join("machine.journal"));
        assert!(!meet(&request, &mut round), "{kind}");
        assert!(!meet(&request, &mut round), "{kind}");
        let again = reconciler.round(&mut machine.fake.another(), 2_000, &request).unwrap();
        let made: Vec<&str> = again.changes.iter().map(|change| change.what.as_str()).collect();
        assert!(
            made.iter().any(|what| what.starts_with("/batch/b ")),
            "{kind}: {made:?} {:?}",
            again.problems
        );
    }
}
