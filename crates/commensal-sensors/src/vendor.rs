//! Tests features that only vendors' kernels have, and core scheduling, which conflicts with one of them.

use crate::capability::{Scratch, try_knob};
use commensal_core::actual::{Capabilities, Support};
use commensal_core::errno::Errno;
use commensal_core::knob::KnobId;
use commensal_core::vendor::{QosLevels, Switch, identity_obstacle};
use commensal_host::Host;
use std::path::Path;

/// Alibaba Cloud Linux's switch for core scheduling; other kernels have none.
const SCHED_CORE: &str = "/proc/sys/kernel/sched_core";

fn number(host: &dyn Host, path: &str) -> Option<i64> {
    host.read_file(Path::new(path)).ok()?.trim().parse().ok()
}

fn release(host: &dyn Host) -> String {
    let text = host.read_file(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default();
    text.trim().to_owned()
}

/// Why the scratch group does not have the knob, if so.
fn absent(host: &mut dyn Host, scratch: Scratch<'_>, knob: KnobId) -> Option<Support> {
    let file = knob.row().file(scratch.version)?;
    let kernel = knob.row().vendor.map_or("a vendor", |vendor| vendor.kernel);
    host.read(scratch.dir, file.name)
        .is_err()
        .then(|| Support::No { because: format!("not a kernel of {kernel}") })
}

/// Whether the knob's machine-wide switch exists.
pub(crate) fn has_switch(host: &dyn Host, knob: KnobId) -> bool {
    Switch::of(knob).is_some_and(|switch| number(host, switch.path()).is_some())
}

/// `cpu.qos_level`: a write of 1 tells the number of levels, because a kernel with two levels refuses it; whether a
/// level can be raised again is tested too. The scratch group is removed afterwards, so it does not matter if it stays
/// at -1.
pub(crate) fn qos(host: &mut dyn Host, scratch: Scratch<'_>, caps: &mut Capabilities) -> Support {
    const FILE: &str = "cpu.qos_level";
    if let Some(support) = absent(host, scratch, KnobId::CpuQosLevel) {
        return support;
    }
    let five = host.write(scratch.dir, FILE, "1").is_ok();
    if five {
        let _ = host.write(scratch.dir, FILE, "0");
    }
    let support = try_knob(host, scratch, KnobId::CpuQosLevel.row());
    if support == Support::Yes {
        let up = host.write(scratch.dir, FILE, "0").is_ok();
        let reversible = up && host.read(scratch.dir, FILE).is_ok_and(|text| text.trim() == "0");
        caps.qos = Some(QosLevels { five, reversible });
    }
    support
}

/// Group Identity: while the switch is off, a write that succeeds proves nothing.
pub(crate) fn identity(host: &mut dyn Host, scratch: Scratch<'_>) -> Support {
    if let Some(support) = absent(host, scratch, KnobId::CpuBvtWarpNs) {
        return support;
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

/// Core scheduling, tested by reading the cookie of this thread: creating one would switch the whole machine's
/// scheduler for a moment.
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
        Err(error) => {
            Support::Refused { errno: error.errno, because: "asking for a cookie failed".to_owned() }
        }
    }
}

/// openEuler's SMT expulsion is a build option and can be turned off at boot; it cannot be detected at run time, so the
/// result is "untried" where it cannot be read.
pub(crate) fn smt_expel(host: &mut dyn Host) -> Support {
    let line = host.read_file(Path::new("/proc/cmdline")).unwrap_or_default();
    if line.split_whitespace().any(|word| word == "nosmtexpell") {
        return Support::No { because: "nosmtexpell is on the kernel command line".to_owned() };
    }
    let config = format!("/boot/config-{}", release(host));
    match host.read_file(Path::new(&config)) {
        Ok(text) if text.lines().any(|line| line == "CONFIG_QOS_SCHED_SMT_EXPELLER=y") => Support::Yes,
        Ok(_) => Support::No { because: format!("CONFIG_QOS_SCHED_SMT_EXPELLER is not set in {config}") },
        Err(_) => Support::Untried { because: format!("{config} cannot be read, and nothing else tells") },
    }
}
