//! Resolves group specs against a machine: amounts become numbers, matches become cgroups, and limits that this machine
//! cannot have are refused with both values.

mod containers;
mod processes;
mod protected;

pub(crate) use protected::takes_everything;

use crate::actual::{ActualState, CgroupPath, CgroupRef};
use crate::config::ConfigError;
use crate::cpuset::CpuSet;
use crate::group::{Class, GroupName, GroupSpec, LimitScope, Match, OnExceed};
use crate::knob::{Controller, KnobId};
use crate::limit::{CPU_SET, FROZEN, Key, Limit, LimitSet, Pair, Write};
use crate::member::{ContainerFact, ProcessId, is_of_pods};
use crate::text::visible;
use crate::topology::{Device, Disk, Machine};
use crate::units::{Bytes, MicroCpus};
use std::collections::{BTreeMap, BTreeSet};

/// A cgroup that belongs to a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its path, the same in every hierarchy.
    pub path: CgroupPath,
    /// Whether commensal created the cgroup; otherwise a match found it.
    pub own: bool,
    /// The match that found it, such as `container web`; empty for a cgroup that commensal created.
    pub found_by: String,
}

/// A process that belongs in its group's own cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedProcess {
    /// The process's identity.
    pub id: ProcessId,
    /// PID and program, as shown to users.
    pub name: String,
    /// The match that selects it, in words.
    pub by: String,
}

/// Limits of one group in the units of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Limits of each of the group's cgroups.
    pub each: LimitSet<Limit>,
    /// Limits of each of the group's cgroups on one disk.
    pub on_disk: BTreeMap<Device, LimitSet<Limit>>,
    /// Period of the CPU hard limit, us; `None` keeps the current one.
    pub cpu_period: Option<u32>,
    /// Kill the whole group at the memory hard limit.
    pub kill_group: bool,
    /// Disks to which the disk limits apply.
    pub disks: Vec<Disk>,
}

impl Limits {
    /// One limit.
    #[must_use]
    pub fn get<P: Pair>(&self, key: Key<P>) -> Option<P::Here> {
        self.each.get(key)
    }

    /// Sets or removes one limit.
    pub fn set<P: Pair>(&mut self, key: Key<P>, amount: impl Into<Option<P::Here>>) {
        self.each.set(key, amount);
    }

    /// Whether the group's tasks are frozen.
    #[must_use]
    pub fn frozen(&self) -> bool {
        self.each.has(FROZEN)
    }
}

/// One group, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredGroup {
    /// Its name.
    pub name: GroupName,
    /// Its side.
    pub class: Class,
    /// Its cgroups.
    pub members: Vec<Member>,
    /// Processes that belong in the cgroup that commensal creates for the group.
    pub processes: Vec<WantedProcess>,
    /// Its limits, for each member.
    pub limits: Limits,
    /// Whether SMT siblings of online threads are kept free of the group.
    pub expel: bool,
    /// Whether class knobs are written even where a manager writes the weight.
    pub takeover: bool,
    /// Whether its class is not enforced for now: see [`DesiredState::without_isolation`].
    pub exposed: bool,
    /// Knobs whose values a controller chose, not the user: if one cannot be set, no promise is broken.
    pub chosen: BTreeSet<KnobId>,
    /// Settings that a plan does not carry out: (key, reason, what to do instead).
    pub elsewhere: Vec<(String, String, String)>,
    /// Protected cgroups that a pattern matches but that must be named in full: (match, cgroup, why).
    pub left_out: Vec<(String, CgroupPath, &'static str)>,
}

/// All groups, resolved against one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredState {
    /// The groups, by name.
    pub groups: Vec<DesiredGroup>,
    /// Parent of the online groups that commensal creates.
    pub online_parent: CgroupPath,
    /// Parent of the offline groups that commensal creates.
    pub offline_parent: CgroupPath,
    /// Whether this is only a part of the groups in force: see [`ResolveOptions::alone`].
    pub alone: bool,
    /// Groups created by commensal whose values an agent maintains: a command that joins one changes nothing there.
    pub kept: BTreeSet<CgroupRef>,
    /// Where this process moves itself to make room in a delegated group.
    pub aside: CgroupPath,
    /// All CPUs of the machine.
    pub cpus: CpuSet,
    /// All memory nodes of the machine.
    pub mems: CpuSet,
    /// Kernel names of the disks.
    pub disk_names: BTreeMap<Device, String>,
}

impl DesiredState {
    /// Confines every offline group to `frame`. CPUs that the user chose for a group are narrowed, or stay as they are
    /// when the frame has none of them.
    pub fn keep_offline_to(&mut self, frame: &CpuSet) {
        for group in self.groups.iter_mut().filter(|group| group.class == Class::Offline) {
            let within = group.limits.get(CPU_SET).map(|own| own.intersection(frame));
            let set = within.unwrap_or_else(|| frame.clone());
            if !set.is_empty() {
                group.limits.set(CPU_SET, set);
            }
        }
    }
}

impl DesiredState {
    /// Removes isolation: offline groups keep what the user wrote (`written`, as resolved) and whether they are frozen,
    /// and lose their class and the controllers' limits. Online groups keep everything.
    pub fn without_isolation(&mut self, written: &DesiredState) {
        for group in self.groups.iter_mut().filter(|group| group.class == Class::Offline) {
            group.exposed = true;
            if let Some(own) = written.groups.iter().find(|own| own.name == group.name) {
                let frozen = group.limits.get(FROZEN);
                group.limits = own.limits.clone();
                group.limits.set(FROZEN, frozen);
            }
        }
    }
}

/// Options of [`resolve`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolveOptions {
    /// First part of the names of commensal's parent groups: `commensal` gives `/commensal-offline`.
    pub prefix: String,
    /// Groups that need a cgroup created by commensal although they have matches (for `run`).
    pub own: BTreeSet<GroupName>,
    /// These groups are a part of what another process keeps in force: settings that they do not ask for are not
    /// undone.
    pub alone: bool,
    /// An agent maintains these groups: it freezes them and holds their queues.
    pub kept: bool,
}

impl Default for ResolveOptions {
    fn default() -> ResolveOptions {
        ResolveOptions { prefix: "commensal".to_owned(), own: BTreeSet::new(), alone: false, kept: false }
    }
}

/// Resolves all groups.
///
/// # Errors
/// Every limit that this machine cannot have, and every cgroup that two groups claim.
pub fn resolve(
    specs: &[GroupSpec],
    machine: &Machine,
    actual: &ActualState,
    options: &ResolveOptions,
) -> Result<DesiredState, Vec<ConfigError>> {
    let mut errors = Vec::new();
    let parent = |class: Class| actual.base.child(&format!("{}-{class}", options.prefix));
    let mut nodes: CpuSet = machine.topology.nodes().into_keys().collect();
    if nodes.is_empty() {
        nodes.insert(0);
    }
    let mut state = DesiredState {
        groups: Vec::new(),
        online_parent: parent(Class::Online),
        offline_parent: parent(Class::Offline),
        alone: options.alone,
        aside: actual.base.child(&format!("{}-self", options.prefix)),
        cpus: machine.topology.all(),
        mems: nodes,
        kept: BTreeSet::new(),
        disk_names: machine.disks.iter().map(|disk| (disk.device, disk.name.clone())).collect(),
    };
    let paths = actual.paths();
    let mut names: BTreeMap<&GroupName, &GroupSpec> = BTreeMap::new();
    for spec in specs {
        if let Some(first) = names.insert(&spec.name, spec) {
            let message =
                format!("group {:?} is already defined at {}", spec.name.as_str(), first.source.at(""));
            errors.push(ConfigError { at: spec.source.at(""), message });
            continue;
        }
        check_limits(spec, machine, &mut errors);
        let group = resolve_group(spec, machine, (actual, &paths), options, &state);
        state.groups.push(group);
    }
    state.groups.sort_by(|a, b| a.name.cmp(&b.name));
    containers::share_out(actual, &mut state);
    processes::assign(&names, actual, &mut state);
    check_claims(&state.groups, &names, &mut errors);
    if errors.is_empty() { Ok(state) } else { Err(errors) }
}

fn resolve_group(
    spec: &GroupSpec,
    machine: &Machine,
    (actual, paths): (&ActualState, &BTreeSet<&CgroupPath>),
    options: &ResolveOptions,
    state: &DesiredState,
) -> DesiredGroup {
    let (mut elsewhere, mut left_out) = (Vec::new(), Vec::new());
    let mut members: Vec<Member> = Vec::new();
    let here = protected::own_places(actual);
    let by_process = |one: &Match| matches!(one, Match::Process { .. });
    for one in spec.matches.iter().filter(|one| !by_process(one)) {
        let (mut found, homeless) = find(one, actual, paths, state);
        let before = left_out.len();
        found.retain(|(path, _)| match protected::objection(one, path, &here) {
            Some(why) => {
                left_out.push((one.to_string(), path.clone(), why));
                false
            }
            None => true,
        });
        if found.is_empty() && left_out.len() > before {
            elsewhere.push((
                format!("match {one}"),
                "a pattern takes none of what it finds here".to_owned(),
                "name a cgroup in full, without *, ? and []".to_owned(),
            ));
        } else if found.is_empty() && homeless.is_empty() {
            let (because, try_this) = nothing_found(one, actual);
            elsewhere.push((format!("match {one}"), because, try_this));
        }
        for container in homeless {
            elsewhere.push((
                format!("match {one}"),
                format!("container {} has no cgroup of its own, or has just ended", visible(&container.name)),
                "start it with a cgroup (podman: not --cgroups=disabled), and apply again".to_owned(),
            ));
        }
        for (path, found_by) in found {
            if members.iter().all(|member| member.path != path) {
                members.push(Member { path, own: false, found_by });
            }
        }
    }
    let own = spec.matches.is_empty() || spec.matches.iter().any(by_process);
    if own || options.own.contains(&spec.name) {
        let parent = match spec.class {
            Class::Online => &state.online_parent,
            Class::Offline => &state.offline_parent,
        };
        let path = parent.child(spec.name.as_str());
        members.push(Member { path, own: true, found_by: String::new() });
    }
    if spec.scope == LimitScope::Total && members.iter().filter(|member| !member.own).count() > 1 {
        elsewhere.push((
            "limits = \"total\"".to_owned(),
            format!(
                "the {} members have no common parent that the group owns, so limits hold for each",
                members.len()
            ),
            "start the members below one parent cgroup and match that parent".to_owned(),
        ));
    }
    elsewhere.extend(not_by_plan(spec, options.kept));
    DesiredGroup {
        name: spec.name.clone(),
        class: spec.class,
        members,
        processes: Vec::new(),
        limits: limits(spec, machine),
        takeover: spec.takeover,
        exposed: false,
        expel: spec.expel,
        chosen: BTreeSet::new(),
        elsewhere,
        left_out,
    }
}

/// Cgroups, and the match that found each.
type Found = Vec<(CgroupPath, String)>;

/// Cgroups that the match selects, with the match that found each; and selected containers that have no cgroup.
fn find<'a>(
    one: &Match,
    actual: &'a ActualState,
    paths: &BTreeSet<&CgroupPath>,
    state: &DesiredState,
) -> (Found, Vec<&'a ContainerFact>) {
    let taken = actual.containers.iter().filter(|container| one.takes_container(container));
    let cpu = actual.hierarchy_of(Controller::Cpu);
    let (mut found, mut homeless) = (Found::new(), Vec::new());
    for container in taken {
        match container.cgroup(cpu) {
            Some(path) => found.push((path, format!("container {}", visible(&container.name)))),
            None => homeless.push(container),
        }
    }
    found.extend(find_paths(one, paths, state).into_iter().map(|path| (path, one.to_string())));
    (found, homeless)
}

fn find_paths(one: &Match, paths: &BTreeSet<&CgroupPath>, state: &DesiredState) -> Vec<CgroupPath> {
    let ours = |path: &CgroupPath| state.online_parent.contains(path) || state.offline_parent.contains(path);
    let found = paths.iter().filter(|path| path.depth() > 0 && takes_cgroup(one, path) && !ours(path));
    found.map(|path| (*path).clone()).collect()
}

/// Whether a match selects a cgroup by its path alone.
#[must_use]
pub fn takes_cgroup(one: &Match, path: &CgroupPath) -> bool {
    let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
    match one {
        Match::Cgroup(pattern) => {
            // Most paths differ from most patterns before their first special character.
            let plain = pattern.as_str().split(['*', '?', '[']).next().unwrap_or_default();
            path.as_str().starts_with(plain) && pattern.matches_with(path.as_str(), options)
        }
        Match::Systemd(unit) => path.name() == unit && is_system_unit(path),
        Match::Kubernetes(qos) => is_of_pods(path, *qos),
        Match::DockerLabel(_) | Match::DockerName(_) | Match::Process { .. } => false,
    }
}

/// Whether the path is a unit of the machine's systemd: everything above it is a slice. A unit of the same name inside
/// a container (`/lxc.payload.x/system.slice/…`) or of a user's systemd (`…/user@1000.service/…`) is another one.
fn is_system_unit(path: &CgroupPath) -> bool {
    path.ancestors().iter().skip(1).all(|above| above.name().ends_with(".slice"))
}

fn nothing_found(one: &Match, actual: &ActualState) -> (String, String) {
    let again = "start it and apply again, or correct the match".to_owned();
    match one {
        Match::DockerLabel(_) | Match::DockerName(_) => match &actual.engine_obstacle {
            Some(obstacle) => (
                obstacle.clone(),
                "start the engine, or name its socket: DOCKER_HOST=unix:///run/docker.sock".to_owned(),
            ),
            None => ("there is no such container running now".to_owned(), again),
        },
        Match::Kubernetes(_) => ("there is no cgroup of such pods now".to_owned(), again),
        Match::Cgroup(_) | Match::Systemd(_) | Match::Process { .. } => {
            ("there is no such cgroup now".to_owned(), again)
        }
    }
}

/// Keys that are not carried out by writing kernel settings of a cgroup.
fn not_by_plan(spec: &GroupSpec, kept: bool) -> Vec<(String, String, String)> {
    let mut list = Vec::new();
    let mut add = |key: &str, because: &str, try_this: &str| {
        list.push((key.to_owned(), because.to_owned(), try_this.to_owned()));
    };
    if spec.remote_read.is_some() {
        add(
            "remote.read",
            "remote reads are limited inside the SQL engine, which this version does not have",
            "remove the key",
        );
    }
    let by_agent = match spec.on_exceed {
        Some(OnExceed::Freeze) => Some("freeze"),
        Some(OnExceed::Queue) => Some("queue"),
        _ => None,
    };
    if let Some(word) = by_agent.filter(|_| !kept) {
        add(
            &format!("memory.on-exceed = \"{word}\""),
            "somebody has to watch the group's memory, and no agent keeps these groups",
            "start one with `commensal agent`, or use \"kill-largest\" or \"kill-group\"",
        );
    }
    list
}

/// What a group's file says, in the units of this machine.
#[must_use]
pub fn limits(spec: &GroupSpec, machine: &Machine) -> Limits {
    let named = |disk: &&Disk| spec.disks.is_empty() || spec.disks.contains(&disk.device);
    let mut limits = Limits {
        disks: machine.disks.iter().filter(named).cloned().collect(),
        kill_group: spec.on_exceed == Some(OnExceed::KillGroup),
        ..Limits::default()
    };
    for (row, written) in spec.limits.iter() {
        let limit = written.on(machine);
        if matches!(row.write, Write::PerDisk(_)) {
            for disk in &limits.disks {
                limits.on_disk.entry(disk.device).or_default().insert(row.id, limit.clone());
            }
        } else {
            limits.each.insert(row.id, limit);
        }
    }
    limits
}

/// Limits above what the machine has, and limits that contradict each other.
fn check_limits(spec: &GroupSpec, machine: &Machine, errors: &mut Vec<ConfigError>) {
    let mut refuse = |key: &str, message: String| {
        let message = format!("group {:?}: {message}", spec.name.as_str());
        errors.push(ConfigError { at: spec.source.at(key), message });
    };
    let mut memory: Vec<(&str, Bytes)> = Vec::new();
    for (row, written) in spec.limits.iter() {
        let key = row.key;
        match written.on(machine) {
            Limit::Cpus(amount) if amount > MicroCpus::whole(machine.topology.threads()) => {
                let have = MicroCpus::whole(machine.topology.threads());
                refuse(key, format!("{key} is {amount} but this machine has {have}"));
            }
            Limit::CpuSet(set) => {
                let (have, missing) = (machine.topology.all(), set.difference(&machine.topology.all()));
                if !missing.is_empty() {
                    refuse(key, format!("{key} names CPU {missing}, but this machine has {have}"));
                }
            }
            Limit::Memory(size) => {
                if size > machine.memory {
                    refuse(key, format!("{key} is {size} but this machine has {}", machine.memory));
                }
                memory.push((key, size));
            }
            _ => {}
        }
    }
    // The rows go from the smallest to the largest.
    for pair in memory.windows(2) {
        let [(lower_key, lower), (upper_key, upper)] = pair else { continue };
        if lower > upper {
            refuse(lower_key, format!("{lower_key} ({lower}) must not exceed {upper_key} ({upper})"));
        }
    }
    for device in &spec.disks {
        if machine.disks.iter().all(|disk| disk.device != *device) {
            let disks: Vec<String> =
                machine.disks.iter().map(|disk| format!("{} ({})", disk.device, disk.name)).collect();
            refuse(
                "io.devices",
                format!("{device} is not a whole disk of this machine, which has {}", disks.join(", ")),
            );
        }
    }
}

/// Checks that no cgroup is in two groups, and no online group inside an offline one's cgroup.
fn check_claims(
    groups: &[DesiredGroup],
    specs: &BTreeMap<&GroupName, &GroupSpec>,
    errors: &mut Vec<ConfigError>,
) {
    let mut claims: BTreeMap<&CgroupPath, Vec<&DesiredGroup>> = BTreeMap::new();
    for group in groups {
        for member in &group.members {
            claims.entry(&member.path).or_default().push(group);
        }
    }
    let at = |group: &DesiredGroup| specs.get(&group.name).map(|spec| spec.source.at("match"));
    for (path, claiming) in &claims {
        for (index, group) in claiming.iter().enumerate() {
            for other in claiming[..index].iter().filter(|other| other.name != group.name) {
                let message = format!(
                    "groups {:?} and {:?} both claim cgroup {path}",
                    other.name.as_str(),
                    group.name.as_str()
                );
                errors.push(ConfigError { at: at(group).unwrap_or_default(), message });
            }
        }
        for group in claiming.iter().filter(|group| group.class == Class::Online) {
            for claimed in path.ancestors() {
                let others = claims.get(&claimed).into_iter().flatten();
                for other in others.filter(|other| other.class == Class::Offline) {
                    let message = format!(
                        "online group {:?} claims {path}, which is inside {claimed} of offline group {:?} and would yield with it",
                        group.name.as_str(),
                        other.name.as_str()
                    );
                    errors.push(ConfigError { at: at(group).unwrap_or_default(), message });
                }
            }
        }
    }
}
