//! Alternatives for cgroups of which systemd is the only writer: the unit property with the same effect as a knob
//! (systemd.resource-control(5)).

use super::draft::Setting;
use crate::actual::CgroupPath;
use crate::knob::{Controller, KnobId, Property, Value};
use crate::text::visible;
use crate::topology::Device;
use std::collections::BTreeMap;

/// The reason why cgroups managed by `unit` must not be written.
pub(super) fn because(unit: &CgroupPath) -> String {
    match unit.depth() {
        0 => "systemd manages the root and is the only writer there".to_owned(),
        _ => format!("systemd manages {unit} and is the only writer there"),
    }
}

/// The systemd command with the same effect as the setting, or a workaround. `path` is the cgroup of `unit` or a cgroup
/// below it; `period_us` is the period of the quota of `path`.
pub(super) fn instead(
    unit: &CgroupPath,
    path: &CgroupPath,
    setting: &Setting,
    period_us: i64,
    disks: &BTreeMap<Device, String>,
) -> String {
    // For a cgroup inside the unit, a property of the unit would apply to too much.
    if unit != path || unit.depth() == 0 {
        return "takeover = true writes it nevertheless".to_owned();
    }
    let disk = setting.device.map(|device| match disks.get(&device) {
        Some(disk) => format!("/dev/{disk}"),
        None => format!("/dev/block/{device}"),
    });
    let (command, name) = (systemctl(unit), quoted(unit.name()));
    match property(setting.knob, disk.as_deref(), &setting.value, period_us) {
        Some(property) => {
            let older = if setting.knob == KnobId::CpuIdle { OLDER } else { "" };
            format!("{command} set-property --runtime {name} {property}; or takeover = true{older}")
        }
        None if setting.knob == KnobId::CgroupFreeze => {
            format!("{command} freeze {name}; or takeover = true")
        }
        None if [".service", ".scope"].iter().any(|kind| unit.name().ends_with(kind)) => {
            format!("add Delegate=yes to {name} and match a cgroup below it; or takeover = true")
        }
        None => "takeover = true writes it nevertheless".to_owned(),
    }
}

/// The systemctl command for the unit: units below `user@UID.service` belong to that user's systemd.
fn systemctl(unit: &CgroupPath) -> &'static str {
    match unit.ancestors().iter().any(|above| above.name().starts_with("user@")) {
        true => "systemctl --user",
        false => "systemctl",
    }
}

/// The unit's name, quoted for a shell, because names may contain backslashes (`dev-disk-by\\x2dlabel.swap`). If a
/// directory's name could be taken for a control file, systemd puts an underscore before it; the function removes that
/// underscore.
fn quoted(name: &str) -> String {
    let name = name.strip_prefix('_').unwrap_or(name);
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.@:".contains(c));
    if plain { name.to_owned() } else { format!("'{}'", visible(name)) }
}

/// The command that makes systemd enable a controller for a unit: systemd enables it in all ancestors of a unit that
/// has a property of that controller.
pub(super) fn enabling(unit: &CgroupPath, controller: Controller) -> String {
    let property = match controller {
        Controller::Cpu | Controller::Cpuacct => "CPUWeight=100",
        Controller::Cpuset => "AllowedCPUs=…",
        Controller::Io => "IOWeight=100",
        Controller::Memory => "MemoryAccounting=yes",
        Controller::Pids | Controller::Freezer | Controller::Core => "TasksAccounting=yes",
    };
    format!("{} set-property --runtime {} {property}", systemctl(unit), quoted(unit.name()))
}

/// Instructions to make a whole cgroup yield to its siblings through systemd. Slices that contain unrelated units, such
/// as system.slice, are excluded.
pub(super) fn yielding(entity: &CgroupPath) -> String {
    const SHARED: [&str; 5] = ["system.slice", "user.slice", "machine.slice", "app.slice", "session.slice"];
    match entity.unit() {
        Some(unit) if SHARED.contains(&unit.name()) => {
            "start commensal in a slice of its own: systemd-run --scope --slice=batch.slice -p Delegate=yes commensal …, \
             and then systemctl set-property --runtime batch.slice CPUWeight=idle"
                .to_owned()
        }
        Some(unit) if unit == *entity => {
            format!("{} set-property --runtime {} {IDLE}{OLDER}", systemctl(&unit), quoted(unit.name()))
        }
        _ => "ask the manager that delegated it to give it a small weight".to_owned(),
    }
}

const IDLE: &str = "CPUWeight=idle";
/// Addition to a command with [`IDLE`], for older versions of systemd.
const OLDER: &str = "; before systemd 252 it is CPUWeight=1";

fn property(knob: KnobId, disk: Option<&str>, value: &Value, period_us: i64) -> Option<String> {
    let number = match value {
        Value::Number(number) => number.to_string(),
        Value::NoLimit => "infinity".to_owned(),
        Value::List(set) => set.to_string(),
        Value::Word(_) => return None,
    };
    Some(match (knob, knob.row().systemd) {
        (KnobId::CpuIdle, _) => IDLE.to_owned(),
        // CPUQuota is relative to one CPU, in whole per cent.
        (KnobId::CpuMax, _) => match value {
            Value::Number(us) => format!("CPUQuota={}%", (us * 100 / period_us.max(1)).max(1)),
            _ => "CPUQuota=".to_owned(),
        },
        (KnobId::CpuPeriod, _) => format!("CPUQuotaPeriodSec={number}us"),
        (_, Property::Number(name)) => format!("{name}={number}"),
        (_, Property::PerDisk(name)) => format!("'{name}={} {number}'", disk?),
        (_, Property::None | Property::Converted(_)) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_property_that_does_the_same() {
        let unit = CgroupPath::new("/system.slice/etl.service");
        let disk = Device { major: 259, minor: 0 };
        let disks = [(disk, "nvme0n1".to_owned())].into();
        let check = |knob: KnobId, device, value: Value, want: &str| {
            let setting = Setting { knob, device, value, why: String::new() };
            let got = instead(&unit, &unit, &setting, 50_000, &disks);
            assert!(got.contains(want), "{knob}: {got}");
        };
        check(KnobId::CpuIdle, None, Value::Number(1), "set-property --runtime etl.service CPUWeight=idle");
        check(KnobId::CpuMax, None, Value::Number(125_000), "CPUQuota=250%");
        check(KnobId::CpuMax, None, Value::NoLimit, "CPUQuota=;");
        check(KnobId::MemoryMax, None, Value::NoLimit, "MemoryMax=infinity");
        check(KnobId::CpusetCpus, None, Value::List("0-1".parse().unwrap()), "AllowedCPUs=0-1");
        check(KnobId::IoReadBps, Some(disk), Value::Number(7), "'IOReadBandwidthMax=/dev/nvme0n1 7'");
        check(KnobId::CgroupFreeze, None, Value::Number(1), "systemctl freeze etl.service");
        check(KnobId::CpusetPartition, None, Value::Word("root".to_owned()), "Delegate=yes");
    }

    #[test]
    fn whose_unit_and_which() {
        let setting = Setting::new(KnobId::PidsMax, Value::Number(9), String::new());
        let check = |unit: &str, path: &str, want: &str| {
            let (unit, path) = (CgroupPath::new(unit), CgroupPath::new(path));
            let got = instead(&unit, &path, &setting, 100_000, &BTreeMap::new());
            assert!(got.starts_with(want), "{got}");
        };
        let user = "/user.slice/user-1000.slice/user@1000.service/app.slice/x.service";
        check(user, user, "systemctl --user set-property --runtime x.service TasksMax=9");
        check("/batch.slice", "/batch.slice/worker", "takeover = true");
        check("/", "/", "takeover = true");
        let odd = "/machine.slice/machine-qemu\\x2d1.scope";
        check(odd, odd, "systemctl set-property --runtime 'machine-qemu\\x2d1.scope' TasksMax=9");
        check("/_cpu.service", "/_cpu.service", "systemctl set-property --runtime cpu.service");
    }
}
