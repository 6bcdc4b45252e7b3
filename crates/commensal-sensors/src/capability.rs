//! Determines which mechanisms work on this machine by testing them in a scratch group (a temporary cgroup), which is
//! removed before the result is returned. The distribution's name is never used, and the existence of a file alone is
//! not sufficient.

use crate::run_delay;
use crate::sched_ext;
use crate::vendor;
use commensal_core::actual::{
    ABSOLUTE_EXPEL, CORE_SCHED, Capabilities, Hierarchy, MARKS, QOS_SMT_EXPEL, SCHED_EXT, SMT, Support,
    Tenancy,
};
use commensal_core::errno::Errno;
use commensal_core::knob::{Knob, KnobId, KnobStatus, Scope, TABLE, Value, Version};
use commensal_core::topology::Machine;
use commensal_host::{Dir, Host, HostError, below};
use std::path::{Path, PathBuf};

/// Tests every knob (kernel setting of a cgroup) that commensal writes, in a scratch group `name` below the parent of
/// commensal's groups in each hierarchy. First removes a scratch group of the same name that a killed process left
/// behind. Such a group belongs to no live process, because callers hold the state lock.
pub fn probe(
    host: &mut dyn Host,
    hierarchies: &[Hierarchy],
    tenancy: &Tenancy,
    machine: &Machine,
    name: &str,
) -> Capabilities {
    let mut caps = Capabilities::default();
    let mut refusals = Vec::new();
    let mut tried = 0;
    for (index, hierarchy) in hierarchies.iter().enumerate().filter(|(_, one)| !one.controllers.is_empty()) {
        tried += 1;
        if tenancy.obstacle_in(hierarchy.version).is_some() {
            by_sight(host, hierarchy, &mut caps);
            continue;
        }
        match scratch(host, hierarchy, tenancy, name) {
            Ok((root, dir)) => {
                let base = &tenancy.base;
                let above = if base.depth() == 0 { "the root" } else { base.as_str() };
                let scratch = Scratch { root, dir, version: hierarchy.version, machine, above };
                hierarchy_knobs(host, hierarchy, scratch, &mut caps);
                marks(host, dir, &mut caps);
                let _ = host.rmdir(root, name, dir.inode);
                host.close(dir);
                host.close(root);
            }
            Err(error) => {
                let because = format!("no cgroup can be created in {}", hierarchy.mount);
                for row in TABLE.iter().filter(|row| hierarchy.controllers.contains(&row.controller)) {
                    if row.status == KnobStatus::Driven && row.file(hierarchy.version).is_some() {
                        let support = Support::Refused { errno: error.errno, because: because.clone() };
                        caps.knobs.insert((row.id, hierarchy.version), support);
                    }
                }
                caps.closed.insert(index);
                caps.doubtful |= may_pass(error.errno);
                refusals.push(error);
            }
        }
    }
    if tried == 0 {
        caps.cgroup_obstacle = Some("no cgroup controller is mounted".to_owned());
    } else if refusals.len() == tried {
        caps.cgroup_obstacle = refusals.first().map(|error| obstacle(host, error));
        caps.knobs.clear();
    }
    if hierarchies.iter().any(|hierarchy| namespaced_root(host, hierarchy)) {
        let because =
            "this is a container with a cgroup namespace of its own, whose processes are in its root";
        let first = caps.cgroup_obstacle.take().map(|first| format!("{first}; also, "));
        caps.cgroup_obstacle = Some(first.unwrap_or_default() + because);
    }
    features(host, machine, &mut caps);
    caps
}

/// Returns where a scratch group may be in this hierarchy, the best place first: in the parent of commensal's groups, or
/// above it where that does not exist yet.
fn places(hierarchy: &Hierarchy, tenancy: &Tenancy) -> impl Iterator<Item = PathBuf> {
    let above = tenancy.base.ancestors().into_iter().rev();
    let mount = PathBuf::from(&hierarchy.mount);
    std::iter::once(tenancy.base.clone()).chain(above).map(move |path| below(&mount, path.as_str()))
}

/// Checks knobs without a scratch group: reads only whether their files exist in other groups.
fn by_sight(host: &mut dyn Host, hierarchy: &Hierarchy, caps: &mut Capabilities) {
    let Ok(root) = host.open(Path::new(&hierarchy.mount)) else { return };
    let names = host.children(root).unwrap_or_default();
    let enabled = host.read(root, "cgroup.subtree_control").unwrap_or_default();
    let child = names.iter().find_map(|name| host.open_child(root, name).ok());
    for row in TABLE.iter().filter(|row| hierarchy.controllers.contains(&row.controller)) {
        let Some(file) = row.file(hierarchy.version).filter(|_| row.status == KnobStatus::Driven) else {
            continue;
        };
        let name = row.controller.v2_name();
        if hierarchy.version == Version::V2
            && !row.controller.built_in(hierarchy.version)
            && enabled.split_whitespace().all(|other| other != name)
        {
            let support = match row.vendor.is_some() && !vendor::has_switch(host, row.id) {
                true => Support::No { because: "no sign of this vendor's kernel".to_owned() },
                false => Support::Untried { because: format!("the root does not enable {name}") },
            };
            caps.knobs.insert((row.id, hierarchy.version), support);
            continue;
        }
        // In v1 the root has most files, too.
        let dir = if row.scope == Scope::RootOnly { Some(root) } else { child.or(Some(root)) };
        let there = dir.is_some_and(|dir| host.read(dir, file.name).is_ok());
        let support = match there {
            true => Support::Untried { because: "commensal has no cgroup in which to test it".to_owned() },
            false => Support::No { because: format!("no file {} was found", file.name) },
        };
        caps.knobs.insert((row.id, hierarchy.version), support);
    }
    child.into_iter().for_each(|child| host.close(child));
    host.close(root);
}

fn obstacle(host: &dyn Host, error: &HostError) -> String {
    match error.errno {
        Errno::EROFS => {
            "the cgroup file system is mounted read-only here (a container without privileges?)".to_owned()
        }
        Errno::EACCES | Errno::EPERM if host.euid() != 0 => {
            format!("user {} may not create cgroups here", host.euid())
        }
        _ => format!("no cgroup can be created here: {error}"),
    }
}

/// Removes the scratch groups that a killed process left; returns one message per group.
pub fn sweep(host: &mut dyn Host, hierarchies: &[Hierarchy], tenancy: &Tenancy, name: &str) -> Vec<String> {
    let mut removed = Vec::new();
    for hierarchy in hierarchies {
        for place in places(hierarchy, tenancy) {
            let Ok(root) = host.open(&place) else { continue };
            if let Ok(left) = host.open_child(root, name) {
                if host.rmdir(root, name, left.inode).is_ok() {
                    removed.push(format!("removed {}", place.join(name).display()));
                }
                host.close(left);
            }
            host.close(root);
        }
    }
    removed
}

/// Whether the hierarchy's root is only the root of a container's cgroup namespace, and contains the container's
/// processes. Controllers cannot be enabled there for groups that must contain processes (cgroup-v2.rst, "no internal
/// process constraint").
fn namespaced_root(host: &mut dyn Host, hierarchy: &Hierarchy) -> bool {
    let Ok(root) = host.open(Path::new(&hierarchy.mount)) else { return false };
    // A v2 hierarchy without controllers, mounted in addition to v1 hierarchies, can limit nothing, so no test is
    // needed.
    let inner = hierarchy.has_v2_controllers()
        && host.read(root, "cgroup.type").is_ok()
        && host.read(root, "cgroup.procs").is_ok_and(|procs| !procs.trim().is_empty());
    host.close(root);
    inner
}

fn scratch(
    host: &mut dyn Host,
    hierarchy: &Hierarchy,
    tenancy: &Tenancy,
    name: &str,
) -> Result<(Dir, Dir), HostError> {
    sweep(host, std::slice::from_ref(hierarchy), tenancy, name);
    let there = places(hierarchy, tenancy).find_map(|place| host.open(&place).ok());
    let root = there.map_or_else(|| host.open(Path::new(&hierarchy.mount)), Ok)?;
    match host.mkdir(root, name) {
        Ok(dir) => Ok((root, dir)),
        Err(error) => {
            host.close(root);
            Err(error)
        }
    }
}

fn hierarchy_knobs(
    host: &mut dyn Host,
    hierarchy: &Hierarchy,
    scratch: Scratch<'_>,
    caps: &mut Capabilities,
) {
    let Scratch { root, above, .. } = scratch;
    let enabled = host.read(root, "cgroup.subtree_control").unwrap_or_default();
    let available = host.read(root, "cgroup.controllers").unwrap_or_default();
    for row in TABLE.iter().filter(|row| hierarchy.controllers.contains(&row.controller)) {
        if row.status != KnobStatus::Driven || row.file(hierarchy.version).is_none() {
            continue;
        }
        let name = row.controller.v2_name();
        let off = !row.controller.built_in(hierarchy.version)
            && enabled.split_whitespace().all(|other| other != name);

        let delegated = row.controller.built_in(hierarchy.version)
            || hierarchy.version == Version::V1
            || available.split_whitespace().any(|other| other == name);
        let support = match off && row.scope != Scope::RootOnly {
            true if !delegated => {
                Support::No { because: format!("{above} does not have the {name} controller") }
            }
            // If the knob's files are absent, only a vendor's switch shows that this is the vendor's kernel.
            true if row.vendor.is_some() && !vendor::has_switch(host, row.id) => {
                let kernel = row.vendor.map_or("a vendor", |vendor| vendor.kernel);
                Support::No { because: format!("this is not a kernel of {kernel}") }
            }
            // Enabling the controller would change every group below the root, which only a plan may do.
            true => Support::Untried {
                because: format!(
                    "{above} does not enable {name} yet; a plan that needs the controller enables it"
                ),
            },
            false => match row.id {
                KnobId::CpuQosLevel => vendor::qos(host, scratch, caps),
                KnobId::CpuBvtWarpNs => vendor::identity(host, scratch, caps),
                KnobId::MemoryQosLevel => vendor::memory_qos(host, scratch),
                _ => try_knob(host, scratch, row),
            },
        };
        caps.doubtful |= matches!(&support, Support::Refused { errno, .. } if may_pass(*errno));
        caps.knobs.insert((row.id, hierarchy.version), support);
    }
}

/// Number of repetitions of a test whose refusal may be temporary.
const TRIES: u32 = 3;

/// The scratch group in which knobs are tested.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch<'a> {
    pub root: Dir,
    pub dir: Dir,
    pub version: Version,
    pub machine: &'a Machine,
    /// Description of the parent group, for messages.
    pub above: &'a str,
}

/// Writes a value that differs from the default and reads it back.
pub(crate) fn try_knob(host: &mut dyn Host, scratch: Scratch<'_>, row: &Knob) -> Support {
    let (mut support, mut again) = try_once(host, scratch, row);
    for _ in 1..TRIES {
        if !again {
            break;
        }
        (support, again) = try_once(host, scratch, row);
    }
    support
}

/// Whether a refusal with this error number may be temporary; other refusals are final for this kernel or this user.
fn may_pass(errno: Errno) -> bool {
    !matches!(
        errno,
        Errno::EINVAL
            | Errno::EPERM
            | Errno::EACCES
            | Errno::EOPNOTSUPP
            | Errno::ENOENT
            | Errno::ERANGE
            | Errno::EROFS
    )
}

/// Tests a knob once. Also returns whether another attempt may have another result.
fn try_once(host: &mut dyn Host, scratch: Scratch<'_>, row: &Knob) -> (Support, bool) {
    let Scratch { root, dir, version, machine, .. } = scratch;
    let refused = |errno, because| (Support::Refused { errno, because }, may_pass(errno));
    let Some(file) = row.file(version) else {
        return (Support::No { because: format!("cgroup {version} has no {}", row.name) }, false);
    };
    let dir = if row.scope == Scope::RootOnly { root } else { dir };
    if let Err(error) = host.read(dir, file.name) {
        return match error.errno {
            Errno::ENOENT => {
                (Support::No { because: format!("this kernel has no file {}", file.name) }, false)
            }
            errno => refused(errno, format!("{} cannot be read", file.name)),
        };
    }
    if let Some(because) = changes_for_everybody(row.id) {
        return (Support::Untried { because: because.to_owned() }, false);
    }
    let device = machine.disks.first().map(|disk| disk.device).filter(|_| file.per_device());
    if file.per_device() && device.is_none() {
        return (Support::No { because: "no whole disk was found to limit".to_owned() }, false);
    }
    // In v1 a cpuset can have only what its parent has.
    let above = host.read(root, file.name).ok().and_then(|text| file.parse(&text, None).ok());
    let value = match above {
        Some(Value::List(list)) if version == Version::V1 && !list.is_empty() => Value::List(list),
        _ => file.normalise(&test_value(row.id, machine)),
    };
    let Ok(text) = file.encode(&value, device) else {
        return (Support::No { because: format!("{} has no test value", row.name) }, false);
    };
    if let Err(error) = host.write(dir, file.name, &text) {
        return refused(error.errno, format!("writing {text:?} to {} failed", file.name));
    }
    let read = match host.read(dir, file.name) {
        Ok(text) => file.parse(&text, device).ok(),
        Err(error) => return refused(error.errno, format!("{} cannot be read back", file.name)),
    };
    if read.as_ref() == Some(&value) {
        // The next knob must be tested on a group that is neither idle nor frozen.
        if matches!(row.id, KnobId::CpuIdle | KnobId::CgroupFreeze) {
            let _ = host.write(dir, file.name, file.default);
        }
        return (Support::Yes, false);
    }
    let read = read.map_or("nothing".to_owned(), |value| value.to_string());
    (Support::No { because: format!("{} accepted {value} but reads {read}", file.name) }, true)
}

/// Returns why a knob cannot be tested in a scratch group: the test would change a setting of the whole machine. `None`
/// if it can be tested.
#[must_use]
pub fn changes_for_everybody(knob: KnobId) -> Option<&'static str> {
    match knob {
        KnobId::IoCostQos => Some("a test would change that disk for all its users"),
        KnobId::CpusetPartition | KnobId::CpusetCpusExclusive => {
            Some("a test would take CPUs from all other groups")
        }
        _ => None,
    }
}

/// Returns a test value that has no effect on other groups if it is written to an empty group.
#[must_use]
pub fn test_value(knob: KnobId, machine: &Machine) -> Value {
    match knob {
        KnobId::CpuIdle | KnobId::MemoryOomGroup | KnobId::CgroupFreeze => Value::Number(1),
        KnobId::CpuQosLevel | KnobId::CpuBvtWarpNs | KnobId::MemoryQosLevel => Value::Number(-1),
        KnobId::CpusetCpus => Value::List(machine.topology.all()),
        KnobId::CpusetMems => {
            let mut mems: commensal_core::cpuset::CpuSet = machine.topology.nodes().into_keys().collect();
            if mems.is_empty() {
                mems.insert(0);
            }
            Value::List(mems)
        }
        KnobId::CpuMax | KnobId::CpuPeriod => Value::Number(50_000),
        // The burst must not exceed the quota that the test has set.
        KnobId::CpuBurst => Value::Number(10_000),
        KnobId::CpuWeight | KnobId::PidsMax | KnobId::IoWeight | KnobId::IoBfqWeight => Value::Number(512),
        _ => Value::Number(1 << 30),
    }
}

/// Tests whether cgroups can store attributes that only root may write; the result is "no" if the cgroups of one
/// hierarchy cannot.
fn marks(host: &mut dyn Host, dir: Dir, caps: &mut Capabilities) {
    let support = match host.set_attribute(dir, "trusted.commensal.try", Some("1")) {
        Ok(()) => Support::Yes,
        Err(error) => Support::Refused {
            errno: error.errno,
            because: "cgroups store no attributes for this user: only the undo journal has the originals"
                .to_owned(),
        },
    };
    if caps.features.get(MARKS).is_none_or(|found| found.obstacle().is_none()) {
        caps.features.insert(MARKS, support);
    }
}

/// Checks the features that need no scratch group.
pub(crate) fn features(host: &mut dyn Host, machine: &Machine, caps: &mut Capabilities) {
    let mut there = |name: &'static str, path: &str, because: &str| {
        let support = match host.read_file(Path::new(path)) {
            Ok(_) => Support::Yes,
            Err(_) => Support::No { because: because.to_owned() },
        };
        caps.features.insert(name, support);
    };
    there("psi", "/proc/pressure/cpu", "CONFIG_PSI is off, or psi=1 is missing on the kernel command line");
    there(
        SCHED_EXT,
        sched_ext::STATE,
        &format!(
            "CONFIG_SCHED_CLASS_EXT is off (Linux {} and newer can have it; that of 6.12 lacks what the scheduler needs)",
            sched_ext::OLDEST
        ),
    );
    caps.features.insert("run delay", run_delay::support(host));
    let smt = if machine.topology.smt() {
        Support::Yes
    } else {
        Support::No {
            because: "each core has one online thread, so there is no SMT sibling to keep free".to_owned(),
        }
    };
    caps.features.insert(SMT, smt);
    caps.features.insert(CORE_SCHED, vendor::core_sched(host));
    if caps.qos.is_some() {
        caps.features.insert(QOS_SMT_EXPEL, vendor::smt_expel(host));
    }
    let ranks = |version| caps.obstacle(KnobId::CpuBvtWarpNs, version).is_none();
    if ranks(Version::V1) || ranks(Version::V2) {
        caps.features.insert(ABSOLUTE_EXPEL, vendor::absolute_expel(host));
    }
}
