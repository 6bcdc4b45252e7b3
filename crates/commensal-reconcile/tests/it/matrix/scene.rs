//! The acts at each moment in each world, and the changes that they make, by the kind of their steps.

use super::{Moment, act, agent, round};
use crate::crash::{MachineState, World, prepared, see, without_scratch, worlds};
use crate::support::{STATE, instance};
use commensal_core::knob::{TABLE, Value, Version};
use commensal_core::topology::Device;
use commensal_host::fake::{FakeHost, Mutation};
use std::collections::BTreeSet;

/// One moment in one world.
#[derive(Debug)]
pub struct Scene {
    pub name: String,
    pub moment: Moment,
    /// Number of the groups file that is put in force, or is in force.
    pub number: usize,
    pub texts: Vec<String>,
    /// The machine right before the act.
    pub start: FakeHost,
    /// The machine before any groups file.
    pub before: MachineState,
    pub middle: MachineState,
    pub after: MachineState,
    /// Mechanisms and unmet requests without a fault.
    pub terms: Vec<String>,
    pub told: Vec<String>,
    pub targets: Vec<Target>,
    /// Groups that the act creates, changes or removes.
    groups: BTreeSet<String>,
    /// Whether the controllers are in the v2 hierarchy.
    unified: bool,
}

/// One change of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub kind: &'static str,
    pub operation: &'static str,
    pub path: String,
    /// If set, the fault is limited to changes with this value, or to requests that contain it.
    pub value: Option<String>,
    pub written: String,
    /// The group whose replacement the change belongs to.
    recreates: Option<String>,
}

/// Suffix of the name of a fresh group.
const ASIDE: &str = ".commensal-recreate";

impl Scene {
    /// Whether the file belongs to a group that the act changes.
    pub fn touches(&self, path: &str) -> bool {
        let path = path.replace(ASIDE, "");
        let group = path.rsplit_once('/').map_or("", |(group, _)| group);
        let is_in = |one: &String| group == one || group.starts_with(&format!("{one}/"));
        self.groups.iter().any(is_in)
    }

    /// Whether the file can have its intended value only after this change.
    pub fn holds_up(&self, target: &Target, path: &str) -> bool {
        let group = target.group();
        let (parent, file) = path.rsplit_once('/').unwrap_or_default();
        match target.kind {
            // A group that is not empty stays, with the groups above it and, on v2, the controllers that it uses.
            "remove" | "move" | "disable" => {
                let ours = |parent: &str| parent.split('/').any(|part| part.starts_with("commensal-"));
                let above = group.starts_with(&format!("{parent}/")) && ours(parent);
                let left = self.moment == Moment::Restore && (ours(parent) || self.unified);
                above || left
            }
            // The parent group is recreated as well, including this group.
            "recreate" => {
                let above = group.rsplit_once('/').map_or("", |(above, _)| above);
                let is_recreated = |one: &Target| one.recreates.as_deref() == Some(above);
                self.targets.iter().any(is_recreated)
                    && path.replace(ASIDE, "").starts_with(&format!("{above}/"))
            }
            // The exclusive CPUs of a partition below the group.
            "write" if target.path.contains("/cpuset.") => {
                file.starts_with("cpuset.") && parent.starts_with(&format!("{group}/"))
            }
            "switch" => file.ends_with("qos_level") || ["cpu.bvt_warp_ns", "cpu.identity"].contains(&file),
            _ => false,
        }
    }
}

fn group_of(operation: &str, path: &str) -> String {
    match operation {
        "create" | "remove" | "rename" => path.to_owned(),
        _ => path.rsplit_once('/').map_or("", |(group, _)| group).to_owned(),
    }
}

impl Target {
    fn group(&self) -> String {
        self.recreates.clone().unwrap_or_else(|| group_of(self.operation, &self.path))
    }

    /// Whether the file belongs to this change itself. For a value, that includes other files of the same group, which
    /// the kernel or the plan may set, and files of the same name below it; for a group, all files in it.
    pub fn is_of(&self, path: &str) -> bool {
        let group = self.group();
        let is_below = path.starts_with(&format!("{group}/"));
        match self.kind {
            "write" | "irreversible" => {
                let same_name = path.rsplit('/').next() == self.path.rsplit('/').next();
                is_below && (same_name || path.rsplit_once('/').is_some_and(|(parent, _)| parent == group))
            }
            "create" | "remove" | "enable" | "disable" => is_below,
            "recreate" => is_below || path.starts_with(&format!("{group}{ASIDE}/")),
            _ => false,
        }
    }
}

/// Assigns changes to the kinds of steps. All changes between the start and the end of a replacement belong to it.
fn targets(changes: &[Mutation], orders: bool) -> Vec<Target> {
    let scratch = format!("/{}", instance().scratch);
    let mut found: Vec<Target> = Vec::new();
    let mut recreating: Option<String> = None;
    for change in changes {
        let state = change.path.starts_with(STATE);
        if state || change.path.contains(&scratch) || matches!(change.operation, "start" | "signal") {
            continue;
        }
        let file = change.path.rsplit('/').next().unwrap_or_default();
        if let ("create", Some(group)) = (change.operation, change.path.strip_suffix(ASIDE)) {
            recreating = Some(group.to_owned());
        }
        let (kind, exact) = match (change.operation, file) {
            _ if recreating.is_some() => ("recreate", false),
            ("create", _) => ("create", false),
            ("remove", _) => ("remove", false),
            ("set", _) => ("switch", false),
            ("cookie", _) => ("cookie", false),
            ("write", "cgroup.subtree_control") if change.value.starts_with('-') => ("disable", true),
            ("write", "cgroup.subtree_control") => ("enable", true),
            ("write", "cgroup.procs") => ("move", true),
            ("write", "cpu.qos_level") => ("irreversible", false),
            ("write", _) => ("write", false),
            (other, _) => panic!("{other} of {} belongs to no kind of step", change.path),
        };
        let recreates = recreating.clone();
        if change.operation == "rename" && change.path.ends_with(ASIDE) {
            recreating = None;
        }
        let value = exact.then(|| change.value.clone());
        let path = change.path.clone();
        let (operation, written) = (change.operation, change.value.clone());
        let new = Target { kind, operation, path, value, written, recreates };
        let same =
            |one: &Target| one.operation == new.operation && one.path == new.path && one.value == new.value;
        if !found.iter().any(same) {
            found.push(new);
        }
    }
    if orders {
        let path = format!("{STATE}/sched.sock");
        let value = Some("hold_off_us".to_owned());
        found.push(Target {
            kind: "order",
            operation: "ask",
            path,
            value,
            written: String::new(),
            recreates: None,
        });
    }
    found
}

/// Returns another value that the file could have; `None` if there is none.
pub fn other_value(target: &Target) -> Option<String> {
    let name = target.path.rsplit('/').next()?;
    let files = TABLE.iter().flat_map(|row| [row.file(Version::V1), row.file(Version::V2)]).flatten();
    files.filter(|file| file.name == name).find_map(|file| {
        let device: Option<Device> = target.written.split_whitespace().next()?.parse().ok();
        let value = file.parse(&target.written, device.filter(|_| file.per_device())).ok()?;
        let others: Vec<Value> = match &value {
            Value::Number(number) => {
                [number / 2, number + 1, number * 2, number - 1].map(Value::Number).to_vec()
            }
            Value::NoLimit => [1 << 20, 1_000].map(Value::Number).to_vec(),
            Value::List(_) | Value::Word(_) => Vec::new(),
        };
        let fits = |other: &Value| file.accepts(other) && file.normalise(other) != value && *other != value;
        let other = others.into_iter().find(fits)?;
        file.encode(&other, device.filter(|_| file.per_device())).ok()
    })
}

fn scene(world: &World, moment: Moment, number: usize, start: FakeHost, before: &MachineState) -> Scene {
    let mut scene = Scene {
        name: world.name.clone(),
        moment,
        number,
        texts: world.texts.clone(),
        before: before.clone(),
        middle: without_scratch(see(&start)),
        after: before.clone(),
        start,
        terms: Vec::new(),
        told: Vec::new(),
        targets: Vec::new(),
        groups: BTreeSet::new(),
        unified: before.files.contains_key("/sys/fs/cgroup/cgroup.subtree_control"),
    };
    let fake = scene.start.copy();
    let mut since = 0;
    let (attempt, _) = act(&scene, &fake, || since = fake.mutations().len());
    scene.after = see(&fake);
    (scene.terms, scene.told) = (attempt.terms, attempt.told);
    let calm = scene.moment == Moment::SafeState || scene.told.is_empty();
    assert!(calm, "{} {moment:?} {number}: {:?}", world.name, scene.told);
    let changes = fake.mutations().split_off(since);
    let orders = !scene.middle.same_orders(&scene.after);
    scene.targets = targets(&changes, orders);
    scene.groups = scene.targets.iter().map(|target| target.group().replace(ASIDE, "")).collect();
    scene
}

/// Creates the machine as agents leave it that have put the first groups files in force.
fn kept(world: &World, texts: usize) -> FakeHost {
    let fake = (world.machine)();
    for text in &world.texts[..texts] {
        let mut agent = agent(&fake).unwrap();
        let done = round(&mut agent, 0, Some(text)).unwrap();
        assert!(done.problems.is_empty(), "{}: {:?}", world.name, done.problems);
    }
    fake
}

/// Like [`kept`], after another agent has died half way through the next groups file.
fn half_kept(world: &World, texts: usize) -> FakeHost {
    let start = kept(world, texts);
    let next =
        |fake: &FakeHost| agent(fake).and_then(|mut one| round(&mut one, 0, Some(&world.texts[texts])));
    let calm = start.copy();
    next(&calm).unwrap();
    let fake = start.copy();
    fake.crash_after(u32::try_from(calm.mutations().len() / 2).unwrap());
    let _ = next(&fake);
    fake.restart()
}

/// Returns all moments of all worlds.
pub fn scenes() -> Vec<Scene> {
    let mut scenes = Vec::new();
    for world in worlds() {
        let before = see(&(world.machine)());
        let mut add = |moment, number, start| scenes.push(scene(&world, moment, number, start, &before));
        for number in 0..world.texts.len() {
            add(Moment::Apply, number, prepared(&world, number));
            add(Moment::Tick, number, kept(&world, number));
            add(Moment::SafeState, number, kept(&world, number + 1));
            add(Moment::HandOver, number, kept(&world, number));
            add(Moment::HandOver, number, half_kept(&world, number));
        }
        add(Moment::Restore, 0, kept(&world, 1));
        add(Moment::Restore, world.texts.len() - 1, kept(&world, world.texts.len()));
    }
    scenes
}
