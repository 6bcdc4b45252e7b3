//! Settings that many groups share: machine-wide switches, and cost-based control of a disk. They are restored only when
//! no other group uses them any more.

use commensal_core::knob::{KnobId, Version};
use commensal_host::{Dir, Host};
use commensal_sensors::mounts::{Mount, cgroup_mounts};
use std::path::Path;

/// Returns a group that has a value of this knob and no record in a journal. `ours` returns, for a path below the mount
/// point, whether the group has a record.
pub(crate) fn user(host: &mut dyn Host, knob: KnobId, ours: &dyn Fn(&str) -> bool) -> Option<String> {
    let row = knob.row();
    for Mount { mount, version, options } in cgroup_mounts(host).unwrap_or_default() {
        if version == Version::V1 && !options.split(',').any(|option| option == row.controller.v1_name()) {
            continue;
        }
        let Some(file) = row.file(version) else { continue };
        let Ok(root) = host.open(Path::new(&mount)) else { continue };
        let found = below(host, root, "", &mut |host, dir, path| {
            let text = host.read(dir, file.name).unwrap_or_default();
            let text = text.trim();
            (!text.is_empty() && text != file.default && !ours(path))
                || (knob == KnobId::CpuBvtWarpNs && has_flags_alone(host, dir, text))
        });
        host.close(root);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Whether the group has flags in `cpu.identity` although its `cpu.bvt_warp_ns` is 0: commensal never writes such
/// flags, and turning the switch off would clear them.
fn has_flags_alone(host: &mut dyn Host, dir: Dir, rank: &str) -> bool {
    let flags = host.read(dir, KnobId::CpuIdentity.row().name).unwrap_or_default();
    rank == "0" && !matches!(flags.trim(), "" | "0")
}

/// Returns the path of the first group below `dir` for which `wanted` returns true.
pub(crate) fn below(
    host: &mut dyn Host,
    dir: Dir,
    path: &str,
    wanted: &mut dyn FnMut(&mut dyn Host, Dir, &str) -> bool,
) -> Option<String> {
    for name in host.children(dir).unwrap_or_default() {
        let Ok(child) = host.open_child(dir, &name) else { continue };
        let inside = format!("{path}/{name}");
        let found = match wanted(host, child, &inside) {
            true => Some(inside),
            false => below(host, child, &inside, wanted),
        };
        host.close(child);
        if found.is_some() {
            return found;
        }
    }
    None
}
