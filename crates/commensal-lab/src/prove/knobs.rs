//! Tests commensal's knob table. For each control file that plans write, checks that the file may be written and what
//! value it has in a new cgroup. Then writes a test value, and afterwards the original value, and reads back each of
//! them.

use super::bench::{Bench, errno};
use super::report::{Found, Tried};
use commensal_core::facts::MAINLINE;
use commensal_core::knob::{Controller, File, Knob, KnobId, KnobStatus, Scope, TABLE, Value, Version};
use commensal_core::topology::Device;
use commensal_core::vendor::Switch;
use commensal_host::Dir;
use commensal_sensors::capability::{changes_for_everybody, test_value};
use std::path::Path;

/// Controllers of the table, in the order of the table's rows.
const CONTROLLERS: [Controller; 6] = [
    Controller::Cpu,
    Controller::Cpuset,
    Controller::Memory,
    Controller::Io,
    Controller::Pids,
    Controller::Freezer,
];

/// Tests every knob that plans write and that this kernel has.
pub(super) fn try_all(bench: &mut Bench<'_>) -> Vec<Tried> {
    CONTROLLERS.iter().flat_map(|controller| of_controller(bench, *controller)).collect()
}

fn rows(controller: Controller) -> impl Iterator<Item = &'static Knob> {
    TABLE.iter().filter(move |row| row.controller == controller && row.status == KnobStatus::Driven)
}

fn of_controller(bench: &mut Bench<'_>, controller: Controller) -> Vec<Tried> {
    let made = bench.hierarchy(controller).and_then(|hierarchy| {
        let groups = bench.make(hierarchy, controller, &[])?;
        Ok((hierarchy.1, groups))
    });
    let (version, groups) = match made {
        Ok(made) => made,
        Err(because) => {
            let fact = format!("files of the {controller} controller");
            let expected = "the behaviour that the knob table describes".to_owned();
            return vec![Tried { fact, evidence: MAINLINE, expected, found: Found::NotTried(because) }];
        }
    };
    let dir = groups.dirs[0];
    let tried = rows(controller).filter_map(|row| one(bench, dir, row, version)).collect();
    bench.clear(groups, Vec::new());
    tried
}

/// Tests one knob; returns `None` if this kernel or this cgroup version lacks the knob.
fn one(bench: &mut Bench<'_>, dir: Dir, row: &'static Knob, version: Version) -> Option<Tried> {
    let file = row.file(version)?;
    let evidence = row.vendor.map_or(MAINLINE, |vendor| vendor.evidence);
    let fact = match row.name == file.name {
        true => row.name.to_owned(),
        false => format!("{} ({})", row.name, file.name),
    };
    let not_tried = |because: String| {
        let (fact, expected) = (fact.clone(), "the behaviour that the knob table describes".to_owned());
        Some(Tried { fact, evidence, expected, found: Found::NotTried(because) })
    };
    if row.scope != Scope::RootOnly && bench.host.read(dir, file.name).is_err() {
        return None;
    }
    if let Some(because) = changes_for_everybody(row.id) {
        return not_tried(because.to_owned());
    }
    let device = bench.survey.machine.disks.first().map(|disk| disk.device).filter(|_| file.per_device());
    if file.per_device() && device.is_none() {
        return not_tried("the machine has no disk that can be limited".to_owned());
    }
    let before = match device {
        Some(_) => Value::NoLimit,
        None => file.parse(file.default, None).ok()?,
    };
    let value = file.normalise(&test_value(row.id, &bench.survey.machine));
    let off = Switch::of(row.id).is_some_and(|switch| {
        row.id == KnobId::MemoryQosLevel
            && bench.host.read_file(Path::new(switch.path())).is_ok_and(|text| text.trim() == "0")
    });
    let expected = match row.id {
        // The vendor's machine-wide switch is off, so the kernel refuses the write.
        _ if off => vec![before.to_string(), "EACCES".to_owned()],
        KnobId::CpuQosLevel => vec![before.to_string(), value.to_string(), "EINVAL".to_owned()],
        _ => vec![before.to_string(), value.to_string(), before.to_string()],
    };
    let mut found = vec![read(bench, dir, file, device)];
    for wanted in [&value, &before].into_iter().take(expected.len() - 1) {
        found.push(write(bench, dir, file, (wanted, device)));
    }
    let may = if bench.host.may_write(dir, file.name) { "may be written" } else { "may not be written" };
    let words = |may: &str, values: &[String]| format!("{may}, {}", values.join(" -> "));
    Some(Tried::compared(fact, evidence, words("may be written", &expected), words(may, &found)))
}

fn write(bench: &mut Bench<'_>, dir: Dir, file: &File, (value, device): (&Value, Option<Device>)) -> String {
    let text = match file.encode(value, device) {
        Ok(text) => text,
        Err(error) => return error.to_string(),
    };
    match bench.host.write(dir, file.name, &text) {
        Ok(()) => read(bench, dir, file, device),
        Err(error) => errno(&error),
    }
}

fn read(bench: &mut Bench<'_>, dir: Dir, file: &File, device: Option<Device>) -> String {
    match bench.host.read(dir, file.name) {
        Ok(text) => {
            file.parse(&text, device).map_or_else(|error| error.to_string(), |value| value.to_string())
        }
        Err(error) => errno(&error),
    }
}
