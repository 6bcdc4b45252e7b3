//! What one change is for many groups: machine-wide switches, and cost-based control of a disk. It goes back when nobody
//! else uses it any more.

use super::Left;
use commensal_core::knob::{KnobId, Version};
use commensal_core::vendor::Switch;
use commensal_host::{Dir, Host};
use std::path::Path;

/// Turns a switch back, unless groups that are not on record have a value that it would clear.
pub(super) fn switch_back(
    host: &mut dyn Host,
    switch: &str,
    value: &str,
    ours: &dyn Fn(&str) -> bool,
) -> Result<Option<String>, Left> {
    let Some(switch) = Switch::from_name(switch) else { return Ok(None) };
    let path = Path::new(switch.path());
    match host.read_file(path) {
        Ok(now) if now.trim() != value => {
            if let Some(user) = user(host, switch.knob(), ours) {
                return Err(Left::Busy(format!("{switch} stays {}: group {user} uses it", now.trim())));
            }
            host.write_setting(path, value).map_err(Left::Failed)?;
            Ok(Some(format!("{switch} is {value} again")))
        }
        _ => Ok(None),
    }
}

/// A group that nobody of us answers for and that has a value of this knob. `ours` judges paths below the mount.
pub(super) fn user(host: &mut dyn Host, knob: KnobId, ours: &dyn Fn(&str) -> bool) -> Option<String> {
    let row = knob.row();
    let mounts = host.read_file(Path::new("/proc/mounts")).unwrap_or_default();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, mount, kind, options, ..] = fields[..] else { continue };
        let version = match kind {
            "cgroup2" => Version::V2,
            "cgroup" if options.split(',').any(|option| option == row.controller.v1_name()) => Version::V1,
            _ => continue,
        };
        let Some(file) = row.file(version) else { continue };
        let mount = mount.replace("\\040", " ");
        let Ok(root) = host.open(Path::new(&mount)) else { continue };
        let found = below(host, root, "", &mut |host, dir, path| {
            let text = host.read(dir, file.name).unwrap_or_default();
            let text = text.trim();
            !text.is_empty() && text != file.default && !ours(path)
        });
        host.close(root);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The first group below `dir` for which `wanted` holds.
fn below(
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
