//! Resolves group specs (groups as the user wrote them) against a machine: amounts become numbers, matches become
//! cgroups. A limit that exceeds the machine is an error; its message contains both values.

mod containers;
mod processes;
mod protected;

pub(crate) use protected::takes_everything;

use crate::actual::{ActualState, CgroupPath, CgroupRef};
use crate::config::{ConfigError, repeated};
use crate::cpuset::CpuSet;
use crate::group::{Class, GroupName, GroupSpec, LimitScope, Match, OnExceed, Partition};
use crate::knob::{Controller, KnobId};
use crate::limit::{CPU_MAX, CPU_PARTITION, CPU_SET, FROZEN, Key, Limit, LimitSet, Pair, Write};
use crate::member::{ContainerFact, ProcessId, is_of_pods};
use crate::text::visible;
use crate::topology::{Device, Disk, Machine};
use crate::units::{Bytes, MicroCpus};
use std::collections::{BTreeMap, BTreeSet};

/// A cgroup that belongs to a workload group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Path of the cgroup, the same in every hierarchy.
    pub path: CgroupPath,
    /// Whether commensal creates the cgroup; otherwise a match found it.
    pub own: bool,
    /// The match that found the cgroup, such as `container web`; empty for a cgroup that commensal creates.
    pub found_by: String,
}

/// A process that must be in the cgroup that commensal creates for the process's group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedProcess {
    /// PID and start time of the process.
    pub id: ProcessId,
    /// PID and program, as shown to users.
    pub name: String,
    /// The match (a condition in the groups file) that selects the process, as readable text.
    pub by: String,
}

/// The limits of a group, in the units of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Limits of each of the group's cgroups.
    pub each: LimitSet<Limit>,
    /// Disk limits of each of the group's cgroups, by disk.
    pub on_disk: BTreeMap<Device, LimitSet<Limit>>,
    /// Period of the CPU hard limit (us); `None` keeps the current period.
    pub cpu_period: Option<u32>,
    /// Whether the kernel kills all processes of the group when it reaches the memory hard limit.
    pub kill_group: bool,
    /// Disks to which the disk limits apply.
    pub disks: Vec<Disk>,
}

impl Limits {
    /// The value of a limit; `None` if the group does not have it.
    #[must_use]
    pub fn get<P: Pair>(&self, key: Key<P>) -> Option<P::Here> {
        self.each.get(key)
    }

    /// Sets a limit, or removes it if the amount is `None`.
    pub fn set<P: Pair>(&mut self, key: Key<P>, amount: impl Into<Option<P::Here>>) {
        self.each.set(key, amount);
    }

    /// Whether the group's tasks must be frozen.
    #[must_use]
    pub fn frozen(&self) -> bool {
        self.each.has(FROZEN)
    }
}

/// A group, resolved against the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredGroup {
    /// Name of the group.
    pub name: GroupName,
    /// Class of the group.
    pub class: Class,
    /// Cgroups of the group.
    pub members: Vec<Member>,
    /// Processes that must be in the cgroup that commensal creates for the group.
    pub processes: Vec<WantedProcess>,
    /// Limits of each member.
    pub limits: Limits,
    /// Whether the group's threads are kept off SMT siblings of CPUs that run online threads.
    pub expel: bool,
    /// CPU time that the agent gives the group while the group starves. A group starves if its tasks get no CPU time
    /// because its `cpu.qos_level` is below 0.
    pub min_share: Option<MicroCpus>,
    /// Whether commensal writes knobs even where a manager (systemd, a container manager) claims to be the only writer.
    pub takeover: bool,
    /// Whether commensal does not enforce the group's class at the moment: see [`DesiredState::without_isolation`].
    pub exposed: bool,
    /// Knobs (kernel settings) whose values a controller of the agent chose, not the user. If commensal cannot set such
    /// a value, the plan does not report it as unmet.
    pub chosen: BTreeSet<KnobId>,
    /// Settings that another part of commensal carries out, not a plan: (key, reason, what to do instead).
    pub elsewhere: Vec<(String, String, String)>,
    /// Protected cgroups, such as those of the machine's services, whose paths fit a pattern of the group but which the
    /// pattern does not select: (match, cgroup, reason). A pattern selects a protected cgroup only if the pattern
    /// contains the cgroup's name.
    pub left_out: Vec<(String, CgroupPath, &'static str)>,
}

impl DesiredGroup {
    /// Whether the group has reserved CPUs, which no other group may use.
    #[must_use]
    pub fn has_reserved_cpus(&self) -> bool {
        self.limits.each.has(CPU_SET) && self.limits.each.has(CPU_PARTITION)
    }
}

/// All groups, resolved against a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredState {
    /// The groups, sorted by name.
    pub groups: Vec<DesiredGroup>,
    /// Parent of the online groups that commensal creates.
    pub online_parent: CgroupPath,
    /// Parent of the offline groups that commensal creates.
    pub offline_parent: CgroupPath,
    /// Whether the list contains only some of the groups in force: see [`ResolveOptions::alone`].
    pub alone: bool,
    /// Cgroups created by commensal whose values an agent maintains; a command that starts a process in such a cgroup
    /// does not change the values.
    pub kept: BTreeSet<CgroupRef>,
    /// The cgroup to which this process moves itself if it runs in a delegated cgroup. The move is necessary because a
    /// cgroup that contains processes cannot enable controllers for its children.
    pub aside: CgroupPath,
    /// All CPUs of the machine that are online.
    pub cpus: CpuSet,
    /// All memory nodes of the machine.
    pub mems: CpuSet,
    /// Kernel names of the disks.
    pub disk_names: BTreeMap<Device, String>,
}

impl DesiredState {
    /// The CPUs that online groups have reserved.
    #[must_use]
    pub fn reserved(&self) -> CpuSet {
        let online = self.groups.iter().filter(|group| group.class == Class::Online);
        let own = online.filter(|group| group.has_reserved_cpus());
        own.filter_map(|group| group.limits.get(CPU_SET)).fold(CpuSet::new(), |all, one| all.union(&one))
    }

    /// Confines every offline group to the CPUs in `frame`. If the user chose CPUs for a group, the group keeps the
    /// chosen CPUs that are in the frame. If none of the chosen CPUs is in the frame, the group keeps all of them.
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
    /// Removes the isolation of offline groups: they lose their class and the limits that the agent's controllers
    /// chose. Offline groups keep their frozen state and the limits in `written`, which is the resolved groups file
    /// without the controllers' decisions. Online groups keep everything.
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
    /// Prefix of the names of commensal's parent groups: with `commensal`, one of them is `/commensal-offline`.
    pub prefix: String,
    /// Groups for which commensal creates a cgroup although a match already selects cgroups for them (the command `run`
    /// needs this).
    pub own: BTreeSet<GroupName>,
    /// Whether the specs are only some of the groups in force. If so, a plan does not undo a setting that these specs
    /// do not request, because another group may have requested it.
    pub alone: bool,
    /// Whether an agent maintains these groups. An agent also freezes groups and holds their queues.
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
/// Returns all errors: a limit that exceeds the machine or contradicts another limit, a cgroup that two groups claim,
/// and an online group inside a cgroup of an offline group.
pub fn resolve(
    specs: &[GroupSpec],
    machine: &Machine,
    actual: &ActualState,
    options: &ResolveOptions,
) -> Result<DesiredState, Vec<ConfigError>> {
    let mut errors = repeated(specs);
    let parent = |class: Class| actual.tenancy.base.child(&format!("{}-{class}", options.prefix));
    let mut nodes: CpuSet = machine.topology.nodes().into_keys().collect();
    if nodes.is_empty() {
        nodes.insert(0);
    }
    let mut state = DesiredState {
        groups: Vec::new(),
        online_parent: parent(Class::Online),
        offline_parent: parent(Class::Offline),
        alone: options.alone,
        aside: actual.tenancy.base.child(&format!("{}-self", options.prefix)),
        cpus: machine.topology.all(),
        mems: nodes,
        kept: BTreeSet::new(),
        disk_names: machine.disks.iter().map(|disk| (disk.device, disk.name.clone())).collect(),
    };
    let paths: Vec<&CgroupPath> = actual.paths().into_iter().collect();
    let mut names: BTreeMap<&GroupName, &GroupSpec> = BTreeMap::new();
    for spec in specs {
        if names.insert(&spec.name, spec).is_some() {
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
    (actual, paths): (&ActualState, &[&CgroupPath]),
    options: &ResolveOptions,
    state: &DesiredState,
) -> DesiredGroup {
    let (mut elsewhere, mut left_out) = (Vec::new(), Vec::new());
    let mut members: Vec<Member> = Vec::new();
    let here = protected::own_places(actual);
    let by_process = |one: &Match| matches!(one, Match::Process { .. });
    for one in spec.matches.iter().filter(|one| !by_process(one)) {
        let (mut found, homeless) = find(one, actual, paths, state);
        // List each protected cgroup once, however many of the cgroups in it the pattern matches.
        let mut holders = namesakes(one, actual, paths, state);
        let is_namesake = !holders.is_empty();
        found.retain(|(path, _)| match protected::objection(one, path, &here) {
            Some((holder, why)) => {
                holders.insert(holder, why);
                false
            }
            None => true,
        });
        let refused = !holders.is_empty();
        left_out.extend(holders.into_iter().map(|(holder, why)| (one.to_string(), holder, why)));
        if found.is_empty() && is_namesake {
            elsewhere.push((
                format!("match {one}"),
                "the cgroup that it finds has the name of commensal's own cgroups, and is not one of them"
                    .to_owned(),
                "rename that cgroup, or choose another name for commensal's own (--cgroup-prefix)".to_owned(),
            ));
        } else if found.is_empty() && refused {
            elsewhere.push((
                format!("match {one}"),
                "every cgroup that the pattern finds is protected".to_owned(),
                "write a cgroup's full path, without *, ? and []".to_owned(),
            ));
        } else if found.is_empty() && homeless.is_empty() {
            let (because, try_this) = nothing_found(one, actual);
            elsewhere.push((format!("match {one}"), because, try_this));
        }
        for container in homeless {
            let (because, try_this) = without_cgroup(container);
            elsewhere.push((format!("match {one}"), because, try_this));
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
                "the {} members have no common parent that the group owns, so the limits apply to each",
                members.len()
            ),
            "start the members below one parent cgroup and match that parent".to_owned(),
        ));
    }
    elsewhere.extend(not_by_plan(spec, machine, options.kept));
    DesiredGroup {
        name: spec.name.clone(),
        class: spec.class,
        members,
        processes: Vec::new(),
        limits: limits(spec, machine),
        takeover: spec.takeover,
        exposed: false,
        expel: spec.expel,
        min_share: spec.min_share.map(|amount| amount.on(machine.topology.threads())),
        chosen: BTreeSet::new(),
        elsewhere,
        left_out,
    }
}

/// Why a container that a match found has no cgroup, and what to do.
fn without_cgroup(container: &ContainerFact) -> (String, String) {
    let name = visible(&container.name);
    match &container.unnamed {
        Some((because, try_this)) => {
            (format!("the cgroup of container {name} cannot be named: {because}"), try_this.clone())
        }
        None => (
            format!("container {name} has no cgroup of its own, or has just ended"),
            "start it with a cgroup (podman: not --cgroups=disabled), and apply again".to_owned(),
        ),
    }
}

/// Cgroups, each with the match that found it.
type Found = Vec<(CgroupPath, String)>;

/// Returns the cgroups that the match selects, and the selected containers that have no cgroup.
fn find<'a>(
    one: &Match,
    actual: &'a ActualState,
    paths: &[&CgroupPath],
    state: &DesiredState,
) -> (Found, Vec<&'a ContainerFact>) {
    let taken = actual.engines.containers.iter().filter(|container| one.takes_container(container));
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

fn find_paths(one: &Match, paths: &[&CgroupPath], state: &DesiredState) -> Vec<CgroupPath> {
    let is_found = |path: &&CgroupPath| {
        path.as_str() != "/" && takes_cgroup(one, path) && own_parent(path, state).is_none()
    };
    selectable(one, paths).filter(is_found).cloned().collect()
}

/// Returns those of the sorted paths that begin with the literal prefix of the match.
fn selectable<'p>(one: &'p Match, paths: &'p [&CgroupPath]) -> impl Iterator<Item = &'p CgroupPath> {
    let prefix = literal_prefix(one);
    let from = paths.partition_point(|path| path.as_str() < prefix);
    paths[from..].iter().copied().take_while(move |path| path.as_str().starts_with(prefix))
}

/// Returns the parent of commensal's own groups that is or contains this path.
fn own_parent<'s>(path: &CgroupPath, state: &'s DesiredState) -> Option<&'s CgroupPath> {
    [&state.online_parent, &state.offline_parent].into_iter().find(|parent| parent.contains(path))
}

/// Returns the parents of commensal's own groups that the match finds and that commensal did not create: somebody else's
/// cgroups of that name.
fn namesakes(
    one: &Match,
    actual: &ActualState,
    paths: &[&CgroupPath],
    state: &DesiredState,
) -> BTreeMap<CgroupPath, &'static str> {
    let is_ours = |path: &CgroupPath| actual.ours.created.iter().any(|place| place.path.contains(path));
    let in_parent = selectable(one, paths).filter_map(|path| Some((path, own_parent(path, state)?)));
    let theirs = in_parent.filter(|(path, _)| takes_cgroup(one, path) && !is_ours(path));
    theirs.map(|(_, parent)| (parent.clone(), "it has the name of commensal's own cgroups")).collect()
}

/// Whether a match selects a cgroup by its path alone.
#[must_use]
pub fn takes_cgroup(one: &Match, path: &CgroupPath) -> bool {
    let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
    match one {
        // Compare the literal prefix first, which is cheap: most paths differ from the pattern before its first
        // wildcard.
        Match::Cgroup(pattern) => {
            path.as_str().starts_with(literal_prefix(one)) && pattern.matches_with(path.as_str(), options)
        }
        Match::Systemd(unit) => path.name() == unit && is_system_unit(path),
        Match::Kubernetes(qos) => is_of_pods(path, *qos),
        Match::DockerLabel(_) | Match::DockerName(_) | Match::Process { .. } => false,
    }
}

/// The literal text at the start of every path that a match can select: the part of its pattern before the first
/// wildcard. Empty for matches that are not patterns.
#[must_use]
pub fn literal_prefix(one: &Match) -> &str {
    match one {
        Match::Cgroup(pattern) => pattern.as_str().split(['*', '?', '[']).next().unwrap_or_default(),
        _ => "",
    }
}

/// Whether the path belongs to a unit of the machine's systemd, that is, whether all its ancestors are slices. A unit
/// of the same name inside a container (`/lxc.payload.x/system.slice/…`) or of a user's systemd
/// (`…/user@1000.service/…`) is a different unit.
fn is_system_unit(path: &CgroupPath) -> bool {
    path.ancestors().iter().skip(1).all(|above| above.name().ends_with(".slice"))
}

fn nothing_found(one: &Match, actual: &ActualState) -> (String, String) {
    let again = "start it and apply again, or correct the match".to_owned();
    match one {
        Match::DockerLabel(_) | Match::DockerName(_) => match &actual.engines.obstacle {
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

/// Returns the keys of a group that a plan cannot put in force: (key, reason, what to do instead).
fn not_by_plan(spec: &GroupSpec, machine: &Machine, kept: bool) -> Vec<(String, String, String)> {
    let mut list = Vec::new();
    list.extend(offline_cpus(spec, machine));
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
    if spec.min_share.is_some() && !kept {
        add(
            "cpu.min-share",
            "only an agent can find out that the group starves, and none keeps these groups in force",
            "start one with `commensal agent`, or remove the key",
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
            "only an agent watches the group's memory, and none keeps these groups in force",
            "start one with `commensal agent`, or use \"kill-largest\" or \"kill-group\"",
        );
    }
    list
}

/// What a plan cannot put in force of a group's `cpu.set` because CPUs are offline; `None` if all of them are online.
fn offline_cpus(spec: &GroupSpec, machine: &Machine) -> Option<(String, String, String)> {
    let set = spec.limits.get(CPU_SET)?;
    let offline = set.intersection(&machine.topology.offline);
    let one = offline.iter().next().filter(|_| offline.len() == 1);
    let which = match one {
        Some(cpu) => format!("CPU {cpu} is offline"),
        None => format!("CPUs {offline} are offline"),
    };
    let left = match set.difference(&offline) {
        left if left.is_empty() => "so the group may use every CPU until one of its own is online".to_owned(),
        left => format!("so the group has only CPU {left}"),
    };
    let cpu = offline.iter().next()?;
    let try_this =
        format!("bring it online (echo 1 > /sys/devices/system/cpu/cpu{cpu}/online), or leave it out");
    let what = match spec.limits.get(CPU_PARTITION) {
        Some(partition) => format!("cpu.set = {set} with cpu.partition = {partition}"),
        None => format!("cpu.set = {set}"),
    };
    Some((what, format!("{which}, {left}"), try_this))
}

/// The limits of a group as written, converted to the units of this machine. A CPU set has only the CPUs that are
/// online. If none of them is, the group may use every CPU, and reserves none: the kernel, too, lets a cpuset whose CPUs
/// are all offline use those of its parent (cgroup-v2.rst, `cpuset.cpus.effective`).
#[must_use]
pub fn limits(spec: &GroupSpec, machine: &Machine) -> Limits {
    let named = |disk: &&Disk| spec.disks.is_empty() || spec.disks.contains(&disk.device);
    let mut limits = Limits {
        disks: machine.disks.iter().filter(named).cloned().collect(),
        kill_group: spec.on_exceed == Some(OnExceed::KillGroup),
        ..Limits::default()
    };
    for (row, written) in spec.limits.iter() {
        let mut limit = written.on(machine);
        if let Limit::CpuSet(set) = &mut limit {
            match set.difference(&machine.topology.offline) {
                online if online.is_empty() => *set = machine.topology.all(),
                online => *set = online,
            }
        }
        if matches!(row.write, Write::PerDisk(_)) {
            for disk in &limits.disks {
                limits.on_disk.entry(disk.device).or_default().insert(row.id, limit.clone());
            }
        } else {
            limits.each.insert(row.id, limit);
        }
    }
    if spec.limits.get(CPU_SET).is_some_and(|set| set.is_subset(&machine.topology.offline)) {
        limits.set(CPU_PARTITION, None::<Partition>);
    }
    limits
}

/// Reports limits that exceed the machine and limits that contradict each other.
fn check_limits(spec: &GroupSpec, machine: &Machine, errors: &mut Vec<ConfigError>) {
    let mut refuse = |key: &str, message: String| {
        let message = format!("group {:?}: {message}", spec.name.as_str());
        errors.push(ConfigError { at: spec.source.at(key), message });
    };
    let mut memory: Vec<(&str, Bytes)> = Vec::new();
    // CPUs that are offline now count: the same file fits the machine before and after a hotplug.
    let possible = machine.topology.possible();
    for (row, written) in spec.limits.iter() {
        let key = row.key;
        match written.on(machine) {
            Limit::Cpus(amount) if amount > MicroCpus::whole(possible.len()) => {
                let have = MicroCpus::whole(possible.len());
                refuse(key, format!("{key} is {amount} but this machine has {have}"));
            }
            Limit::CpuSet(set) => {
                let missing = set.difference(&possible);
                if !missing.is_empty() {
                    refuse(key, format!("{key} names CPU {missing}, but this machine's CPUs are {possible}"));
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
    let threads = machine.topology.threads();
    if let Some(share) = spec.min_share.map(|amount| amount.on(threads)) {
        let (most, max) = (MicroCpus::whole(possible.len()).0 / 4, spec.limits.get(CPU_MAX));
        if share.0 > most {
            let most = MicroCpus(most);
            refuse(
                "cpu.min-share",
                format!(
                    "cpu.min-share is {share}, but at most a quarter of this machine, {most}, is possible"
                ),
            );
        }
        if let Some(max) = max.map(|max| max.on(threads)).filter(|max| share > *max) {
            refuse("cpu.min-share", format!("cpu.min-share ({share}) must not exceed cpu.max ({max})"));
        }
    }
    // The rows are in ascending order: memory.min, low, high, max.
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

/// Checks that no cgroup belongs to two groups, and that no online group lies inside a cgroup of an offline group.
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
