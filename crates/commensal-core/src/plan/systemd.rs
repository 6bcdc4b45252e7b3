//! What to tell systemd where it is the only writer: the property that does what a knob would have done
//! (systemd.resource-control(5)).

use crate::actual::CgroupPath;
use crate::knob::{KnobId, Value};
use crate::topology::Device;
use std::collections::BTreeMap;

/// The command that sets the same through systemd, or the ways around it.
pub(super) fn instead(
    unit: &CgroupPath,
    knob: KnobId,
    device: Option<Device>,
    value: &Value,
    disks: &BTreeMap<Device, String>,
) -> String {
    let name = unit.name();
    let disk = device.map(|device| match disks.get(&device) {
        Some(disk) => format!("/dev/{disk}"),
        None => format!("/dev/block/{device}"),
    });
    match property(knob, disk.as_deref(), value) {
        Some(property) => format!("systemctl set-property --runtime {name} {property}; or takeover = true"),
        None if knob == KnobId::CgroupFreeze => format!("systemctl freeze {name}; or takeover = true"),
        None => format!("add Delegate=yes to {name} and match a cgroup below it; or takeover = true"),
    }
}

fn property(knob: KnobId, disk: Option<&str>, value: &Value) -> Option<String> {
    let number = match value {
        Value::Number(number) => number.to_string(),
        Value::NoLimit => "infinity".to_owned(),
        Value::List(set) => set.to_string(),
        Value::Word(_) => return None,
    };
    let disk_rate = |name: &str| disk.map(|disk| format!("'{name}={disk} {number}'"));
    Some(match knob {
        // systemd 252 and newer.
        KnobId::CpuIdle => "CPUWeight=idle".to_owned(),
        KnobId::CpuWeight => format!("CPUWeight={number}"),
        // The share of one CPU: microseconds of every 100 000, which is systemd's own period.
        KnobId::CpuMax => match value {
            Value::Number(us) => format!("CPUQuota={}%", (us / 1_000).max(1)),
            _ => "CPUQuota=".to_owned(),
        },
        KnobId::CpusetCpus => format!("AllowedCPUs={number}"),
        KnobId::CpusetMems => format!("AllowedMemoryNodes={number}"),
        KnobId::MemoryMin => format!("MemoryMin={number}"),
        KnobId::MemoryLow => format!("MemoryLow={number}"),
        KnobId::MemoryHigh => format!("MemoryHigh={number}"),
        KnobId::MemoryMax => format!("MemoryMax={number}"),
        KnobId::PidsMax => format!("TasksMax={number}"),
        KnobId::IoWeight => format!("IOWeight={number}"),
        KnobId::IoReadBps => disk_rate("IOReadBandwidthMax")?,
        KnobId::IoWriteBps => disk_rate("IOWriteBandwidthMax")?,
        KnobId::IoReadIops => disk_rate("IOReadIOPSMax")?,
        KnobId::IoWriteIops => disk_rate("IOWriteIOPSMax")?,
        _ => return None,
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
            let got = instead(&unit, knob, device, &value, &disks);
            assert!(got.contains(want), "{knob}: {got}");
        };
        check(KnobId::CpuIdle, None, Value::Number(1), "set-property --runtime etl.service CPUWeight=idle");
        check(KnobId::CpuMax, None, Value::Number(250_000), "CPUQuota=250%");
        check(KnobId::CpuMax, None, Value::NoLimit, "CPUQuota=;");
        check(KnobId::MemoryMax, None, Value::NoLimit, "MemoryMax=infinity");
        check(KnobId::CpusetCpus, None, Value::List("0-1".parse().unwrap()), "AllowedCPUs=0-1");
        check(KnobId::IoReadBps, Some(disk), Value::Number(7), "'IOReadBandwidthMax=/dev/nvme0n1 7'");
        check(KnobId::CgroupFreeze, None, Value::Number(1), "systemctl freeze etl.service");
        check(KnobId::CpusetPartition, None, Value::Word("root".to_owned()), "Delegate=yes");
    }
}
