//! Tests features that only vendors' kernels have, and core scheduling, which conflicts with one of these features
//! (Group Identity). The tests use a scratch group, a temporary cgroup.

use crate::capability::{Scratch, try_knob};
use commensal_core::actual::{CPU_PRIORITY, Capabilities, Support};
use commensal_core::errno::Errno;
use commensal_core::knob::{KnobId, TABLE};
use commensal_core::vendor::{QOS_PERIOD, QosLevels, Switch, identity_obstacle};
use commensal_host::Host;
use std::path::Path;

/// Alibaba Cloud Linux's switch for core scheduling; other kernels have none.
const SCHED_CORE: &str = "/proc/sys/kernel/sched_core";

/// Features of the scheduler, in older and in newer kernels.
const SCHED_FEATURES: [&str; 2] = ["/sys/kernel/debug/sched_features", "/sys/kernel/debug/sched/features"];

/// Folders in which tracefs may be mounted, on kernels that mount it themselves and on older ones.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// A trace event that only kernels with SMT expulsion have (openEuler 5.10, include/trace/events/sched.h; read, not
/// observed).
const EXPEL_EVENT: &str = "events/sched/sched_qos_smt_expel/id";

fn number(host: &dyn Host, path: &str) -> Option<i64> {
    host.read_file(Path::new(path)).ok()?.trim().parse().ok()
}

fn release(host: &dyn Host) -> String {
    let text = host.read_file(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default();
    text.trim().to_owned()
}

/// Returns why the scratch group does not have the knob (a kernel setting of a cgroup); `None` if it has.
fn absent(host: &mut dyn Host, scratch: Scratch<'_>, knob: KnobId) -> Option<Support> {
    let file = knob.row().file(scratch.version)?;
    host.read(scratch.dir, file.name).is_err().then(|| Support::No { because: lacking(host, knob) })
}

/// Returns why the kernel does not have a vendor's knob. Scheduling levels and memory levels are two build options of
/// openEuler's kernel.
pub(crate) fn lacking(host: &dyn Host, knob: KnobId) -> String {
    if knob == KnobId::MemoryQosLevel && host.read_file(Path::new(QOS_PERIOD)).is_ok() {
        return "CONFIG_MEMCG_QOS (in 6.6 CONFIG_MEMCG_OOM_PRIORITY) is off in this kernel".to_owned();
    }
    format!("this is not a kernel of {}", knob.row().vendor.map_or("a vendor", |vendor| vendor.kernel))
}

/// Whether the knob's machine-wide switch exists.
pub(crate) fn has_switch(host: &dyn Host, knob: KnobId) -> bool {
    Switch::of(knob).is_some_and(|switch| number(host, switch.path()).is_some())
}

/// Whether a machine-wide switch of any vendor exists.
pub(crate) fn has_any_switch(host: &dyn Host) -> bool {
    TABLE.iter().any(|row| has_switch(host, row.id))
}

/// Tests `cpu.qos_level` with the level that commensal uses, because with five levels the first level other than 0 that
/// a group gets cannot be changed. The scratch group is removed afterwards, so it may stay at -1.
pub(crate) fn qos(host: &mut dyn Host, scratch: Scratch<'_>, caps: &mut Capabilities) -> Support {
    if let Some(support) = absent(host, scratch, KnobId::CpuQosLevel) {
        return support;
    }
    let support = try_knob(host, scratch, KnobId::CpuQosLevel.row());
    if support == Support::Yes {
        let five = host.read_file(Path::new(QosLevels::WEIGHTS)).is_ok();
        caps.qos = Some(if five { QosLevels::Five } else { QosLevels::Two });
    }
    support
}

/// Tests Group Identity. While its switch is off the result is "untried", because a write then succeeds without any
/// effect.
pub(crate) fn identity(host: &mut dyn Host, scratch: Scratch<'_>, caps: &mut Capabilities) -> Support {
    if let Some(support) = absent(host, scratch, KnobId::CpuBvtWarpNs) {
        let Some(other) = priority(host, scratch) else { return support };
        caps.features.insert(CPU_PRIORITY, other.clone());
        return other;
    }
    if let Some(because) = identity_obstacle(&release(host)) {
        return Support::No { because };
    }
    if number(host, SCHED_CORE).is_some_and(|on| on != 0) {
        let because =
            "core scheduling is on (kernel.sched_core), and the kernel allows only one of the two".to_owned();
        return Support::No { because };
    }
    switched(host, scratch, KnobId::CpuBvtWarpNs)
}

/// Whether `ID_ABSOLUTE_EXPEL` is on: the feature of the scheduler with which Group Identity keeps offline groups off a
/// CPU on which an online one runs (Anolis 5.10, kernel/sched/fair.c, `need_expel`; read, not observed).
pub(crate) fn absolute_expel(host: &dyn Host) -> Support {
    let features = SCHED_FEATURES.iter().find_map(|path| host.read_file(Path::new(path)).ok());
    let Some(features) = features else {
        return Support::Untried { because: format!("{} cannot be read", SCHED_FEATURES[0]) };
    };
    match features.split_whitespace().find(|word| word.trim_start_matches("NO_") == "ID_ABSOLUTE_EXPEL") {
        Some("ID_ABSOLUTE_EXPEL") => Support::Yes,
        Some(_) => Support::No {
            because: "ID_ABSOLUTE_EXPEL is off: an offline and an online group share a CPU by their weights"
                .to_owned(),
        },
        None => Support::No { because: "this kernel has no scheduler feature ID_ABSOLUTE_EXPEL".to_owned() },
    }
}

/// Tests whether the kernel is Anolis 6.6, which has other files in place of `cpu.bvt_warp_ns`. `None` if it is another
/// kernel.
fn priority(host: &mut dyn Host, scratch: Scratch<'_>) -> Option<Support> {
    let file = KnobId::CpuPriority.row().file(scratch.version)?;
    host.read(scratch.dir, file.name).ok()?;
    let because = "not supported: found cpu.priority and cpu.identity, as in Anolis 6.6, which commensal does not write";
    Some(Support::No { because: because.to_owned() })
}

pub(crate) fn memory_qos(host: &mut dyn Host, scratch: Scratch<'_>) -> Support {
    match absent(host, scratch, KnobId::MemoryQosLevel) {
        Some(support) => support,
        None => switched(host, scratch, KnobId::MemoryQosLevel),
    }
}

fn switched(host: &mut dyn Host, scratch: Scratch<'_>, knob: KnobId) -> Support {
    let off = Switch::of(knob).filter(|switch| number(host, switch.path()) == Some(0));
    match off {
        Some(switch) => Support::Untried {
            because: format!("{switch} is 0; a plan that needs it sets it to 1 for the machine"),
        },
        None => try_knob(host, scratch, knob.row()),
    }
}

/// Tests core scheduling by reading the cookie of this thread. The test creates no cookie, because that would switch
/// the scheduler of the whole machine for a moment.
pub(crate) fn core_sched(host: &mut dyn Host) -> Support {
    if number(host, Switch::GroupIdentity.path()).is_some_and(|on| on != 0) {
        let because = "Group Identity is on, and the kernel allows only one of the two".to_owned();
        return Support::No { because };
    }
    if number(host, SCHED_CORE) == Some(0) {
        return Support::No { because: "kernel.sched_core is 0".to_owned() };
    }
    match host.cookie(0) {
        Ok(_) => Support::Yes,
        Err(error) if error.errno == Errno::EINVAL => {
            Support::No { because: "CONFIG_SCHED_CORE is off (Linux 5.14 and newer can have it)".to_owned() }
        }
        Err(error) if error.errno == Errno::ENODEV => {
            Support::No { because: "each core has one online thread".to_owned() }
        }
        Err(error) => Support::Refused { errno: error.errno, because: "reading a cookie failed".to_owned() },
    }
}

/// Tests openEuler's SMT expulsion (offline threads leave the SMT siblings of online ones), which is a build option and
/// can be turned off at boot. A kernel with SMT expulsion has trace events for it. If there are none, the kernel's
/// configuration file decides, because versions without the events may exist; if that file is missing too, the result
/// is "untried".
pub(crate) fn smt_expel(host: &mut dyn Host) -> Support {
    let line = host.read_file(Path::new("/proc/cmdline")).unwrap_or_default();
    if line.split_whitespace().any(|word| word == "nosmtexpell") {
        return Support::No { because: "nosmtexpell is on the kernel command line".to_owned() };
    }
    let traced = |root: &&str| host.read_file(&Path::new(root).join(EXPEL_EVENT)).is_ok();
    if TRACEFS.iter().any(traced) {
        return Support::Yes;
    }
    let config = format!("/boot/config-{}", release(host));
    match host.read_file(Path::new(&config)) {
        Ok(text) if text.lines().any(|line| line == "CONFIG_QOS_SCHED_SMT_EXPELLER=y") => Support::Yes,
        Ok(_) => Support::No { because: format!("CONFIG_QOS_SCHED_SMT_EXPELLER is not set in {config}") },
        Err(_) => {
            let seen = |root: &&str| host.read_file(&Path::new(root).join("README")).is_ok();
            Support::Untried {
                because: match TRACEFS.iter().any(seen) {
                    true => format!("tracefs has no event sched_qos_smt_expel, and {config} cannot be read"),
                    false => format!("neither tracefs nor {config} can be read"),
                },
            }
        }
    }
}
