//! The invariants of a chaos soak, which must hold at every moment. The code that checks them reads the cgroup files
//! and is independent of commensal's code.
//!
//! ```text
//! online        an online cgroup has its original values, except for limits of the groups file and increased weights
//! unclaimed     cgroups that no group claims, and the files next to the state directory, are unchanged byte for byte
//! recoverable   the original of a changed value is on the cgroup (`trusted.commensal.original.*`) or in the journal
//! alive         no process of an online or unclaimed cgroup has exited
//! ```
//!
//! The invariants must hold without any grace period, with one exception: until an agent has had time to apply the
//! current groups file, values of previous groups files are accepted.

use super::churn::{OFFLINE, ONLINE};
use crate::stage::{self, Stage};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;

/// Cgroups that no group claims: some with their own values, one nested, and one with the kernel's defaults.
const UNCLAIMED: [&str; 4] = ["by", "by/a", "by/a/child", "by/fresh"];
/// Cgroups above those that groups claim.
const ABOVE: [&str; 2] = ["", "on"];
const FRESH: &str = "by/fresh";
/// Values written at the start to unclaimed, online and offline cgroups; files that do not exist here are skipped.
const VALUES: [(&str, &str, &str); 24] = [
    ("by/a", "cpu.shares", "333"),
    ("by/a", "cpu.weight", "33"),
    ("by/a", "cpu.cfs_quota_us", "77000"),
    ("by/a", "cpu.max", "77000 100000"),
    ("by/a", "pids.max", "77"),
    ("by/a", "memory.limit_in_bytes", "314572800"),
    ("by/a", "memory.max", "314572800"),
    ("by/a", "cgroup.max.depth", "5"),
    ("by/a", "cgroup.max.descendants", "9"),
    ("by/a/child", "pids.max", "55"),
    ("by/a/child", "memory.limit_in_bytes", "104857600"),
    ("by/a/child", "memory.max", "104857600"),
    ("on/b", "cpu.shares", "2048"),
    ("on/b", "cpu.weight", "200"),
    ("on/b", "pids.max", "3000"),
    ("on/b", "memory.limit_in_bytes", "1073741824"),
    ("on/b", "memory.max", "1073741824"),
    ("off/b", "cpu.shares", "777"),
    ("off/b", "cpu.weight", "77"),
    ("off/b", "cpu.cfs_quota_us", "93000"),
    ("off/b", "cpu.max", "93000 100000"),
    ("off/b", "pids.max", "4321"),
    ("off/b", "memory.limit_in_bytes", "1073741824"),
    ("off/b", "memory.max", "1073741824"),
];
/// Values of an online cgroup that may increase, because they protect it.
const WEIGHTS: [&str; 3] = ["cpu.shares", "cpu.weight", "cpu.weight.nice"];
/// The limit of online groups in the soak's groups files.
const LIMIT: &str = "pids.max";
/// A file that is not compared, because the kernel changes it by itself.
const FREEZER: &str = "freezer.state";
/// Prefix of the extended attributes that record an original.
const ORIGINAL: &str = "trusted.commensal.original.";
/// Extended attribute of a cgroup that commensal has created.
const CREATED: &str = "trusted.commensal.created";
/// Maximum size of a list of attribute names, and of a value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const ATTRIBUTES: usize = 65_536;
/// Number of checks before the original of a changed value counts as lost: commensal may restore the value between two
/// reads.
const LOOKS: usize = 3;

/// The state at the start.
#[derive(Debug)]
pub struct Invariants {
    unclaimed: BTreeMap<PathBuf, String>,
    beside: PathBuf,
    beside_was: BTreeMap<PathBuf, Vec<u8>>,
    /// Values of the claimed cgroups that exist throughout.
    claimed: BTreeMap<PathBuf, String>,
    /// Values of a cgroup that the kernel has just created, by mount point and file name.
    fresh: BTreeMap<PathBuf, String>,
    /// Limits of online groups in the groups files that may be in force; the current one is last.
    limits: Vec<u64>,
    /// Values that the soak's other writer wrote last.
    pub meddled: BTreeMap<PathBuf, String>,
    residents: Vec<Child>,
    /// Number of checks so far.
    pub checks: u64,
}

/// A violation of an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub what: String,
}

impl Invariants {
    /// Creates the cgroups and files that no group claims, writes values to all cgroups, and records all values.
    /// `beside` is the directory that contains the state directory.
    pub fn new(stage: &Stage, beside: &Path) -> anyhow::Result<Invariants> {
        UNCLAIMED.iter().try_for_each(|path| stage.make(path))?;
        for (path, file, value) in VALUES {
            if let Some(file) = stage.file(path, file) {
                std::fs::write(file, value)?;
            }
        }
        let decoy = beside.join("decoy");
        std::fs::create_dir_all(decoy.join("lock"))?;
        for name in ["machine.journal", "agent-groups.json", "lock/held"] {
            std::fs::write(decoy.join(name), format!("{name} of somebody else\n"))?;
        }
        std::fs::write(beside.join("state.journal"), "of somebody else\n")?;
        let residents = [ONLINE[0], "by/a"].map(|path| stage.start(path, "exec sleep 86400"));
        let residents = residents.into_iter().collect::<anyhow::Result<_>>()?;
        let all = |paths: &[&str]| paths.iter().flat_map(|path| stage.settings_of(path)).collect();
        let mut fresh = BTreeMap::new();
        for mount in &stage.mounts {
            let dir = mount.join(&stage.top).join(FRESH);
            for (file, value) in stage.settings_of(FRESH) {
                if let Ok(name) = file.strip_prefix(&dir) {
                    fresh.insert(mount.join(name), value);
                }
            }
        }
        Ok(Invariants {
            unclaimed: all(&[&UNCLAIMED[..], &ABOVE].concat()),
            beside_was: files(beside, &stage.state),
            beside: beside.to_owned(),
            claimed: all(&[&ONLINE[..], &OFFLINE, &["off"]].concat()),
            fresh,
            limits: Vec::new(),
            meddled: BTreeMap::new(),
            residents,
            checks: 0,
        })
    }

    /// Records that a new groups file has this limit for online groups.
    pub fn limited_to(&mut self, limit: u64) {
        self.limits.push(limit);
    }

    /// Records that the agent has applied the current groups file, so that values of earlier ones are no longer
    /// accepted.
    pub fn followed(&mut self) {
        self.limits.drain(..self.limits.len().saturating_sub(1));
    }

    /// Returns the limit of online groups in the current groups file.
    pub fn limit(&self) -> u64 {
        self.limits.last().copied().unwrap_or_default()
    }

    /// Checks the invariants and returns the violations.
    pub fn broken(&mut self, stage: &Stage) -> Vec<Violation> {
        self.checks += 1;
        let mut seen = Vec::new();
        self.check_unclaimed(stage, &mut seen);
        for resident in &mut self.residents {
            if let Ok(Some(status)) = resident.try_wait() {
                let what = format!(
                    "process {} of an unclaimed or online cgroup has exited: {status}",
                    resident.id()
                );
                seen.push(Violation { invariant: "alive", what });
            }
        }
        for (mount, path) in claimed(stage) {
            self.check_claimed(stage, &mount, &path, &mut seen);
        }
        seen
    }

    fn check_unclaimed(&self, stage: &Stage, seen: &mut Vec<Violation>) {
        for (file, was) in &self.unclaimed {
            let now = read(file);
            if now.as_ref() != Some(was) {
                let what = format!("{}: was {was:?}, is {now:?}", file.display());
                seen.push(Violation { invariant: "unclaimed", what });
            }
        }
        let now = files(&self.beside, &stage.state);
        if now != self.beside_was {
            let names = |all: &BTreeMap<PathBuf, Vec<u8>>| -> Vec<String> {
                all.keys().map(|path| path.display().to_string()).collect()
            };
            let what = format!(
                "a file next to the state directory: was {:?}, is {:?}",
                names(&self.beside_was),
                names(&now)
            );
            seen.push(Violation { invariant: "unclaimed", what });
        }
    }

    /// Returns the value at the start; for a cgroup created later, the kernel's default.
    fn original(&self, mount: &Path, file: &Path) -> Option<&String> {
        let name = file.file_name()?;
        // When the soak creates an offline cgroup, it copies the CPUs of the cgroup above it, which the agent may have
        // reduced.
        let narrowed = name.to_string_lossy().starts_with("cpuset.")
            && file
                .strip_prefix(mount)
                .is_ok_and(|below| below.iter().nth(1).is_some_and(|side| side == "off"));
        self.claimed.get(file).or_else(|| self.fresh.get(&mount.join(name)).filter(|_| !narrowed))
    }

    fn check_claimed(&self, stage: &Stage, mount: &Path, path: &str, seen: &mut Vec<Violation>) {
        let dir = mount.join(&stage.top).join(path);
        let mut values = BTreeMap::new();
        stage::settings(&dir, false, &mut values);
        if let Some(state) =
            read(&dir.join(FREEZER)).filter(|now| path.starts_with("on/") && now != "THAWED\n")
        {
            seen.push(Violation { invariant: "online", what: format!("{path}: {}", state.trim()) });
        }
        for (file, now) in values {
            let Some(was) = self.original(mount, &file).filter(|was| **was != now) else { continue };
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.starts_with("on/") && !self.may_be(&name, was, &now) {
                let what = format!("{}: was {was:?}, is {now:?}", file.display());
                seen.push(Violation { invariant: "online", what });
            }
            if self.meddled.get(&file).map(|text| text.trim()) != Some(now.trim())
                && let Some(what) = lost(stage, &dir, &name, was)
            {
                seen.push(Violation { invariant: "recoverable", what });
            }
        }
    }

    /// Whether an online cgroup may have this value.
    fn may_be(&self, name: &str, was: &str, now: &str) -> bool {
        if WEIGHTS.contains(&name) {
            let number = |text: &str| text.trim().parse::<i64>().unwrap_or_default();
            return match name {
                "cpu.weight.nice" => number(now) <= number(was),
                _ => number(now) >= number(was),
            };
        }
        name == LIMIT && self.limits.iter().any(|limit| limit.to_string() == now.trim())
    }

    /// Returns a cgroup whose limit differs from that of the groups file; `None` if the groups file is in force.
    pub fn unmet(&self, stage: &Stage, offline: u64) -> Option<String> {
        let wrong = |(mount, path): (PathBuf, String)| {
            let file = mount.join(&stage.top).join(&path).join(LIMIT);
            let want = if path.starts_with("on/") { self.limit() } else { offline };
            let now = read(&file)?;
            let below = path.contains('/');
            (below && now.trim() != want.to_string()).then(|| format!("{path} {LIMIT} {}", now.trim()))
        };
        claimed(stage).into_iter().find_map(wrong)
    }

    /// Returns an online cgroup that still has a limit. In the safe state there must be none.
    pub fn not_safe(&self, stage: &Stage) -> Option<String> {
        for (mount, path) in claimed(stage) {
            let file = mount.join(&stage.top).join(&path).join(LIMIT);
            let (Some(now), Some(was)) = (read(&file), self.original(&mount, &file)) else { continue };
            if path.starts_with("on/") && now != *was {
                return Some(format!("{path} {LIMIT} {} instead of {}", now.trim(), was.trim()));
            }
        }
        None
    }

    /// Whether every changed value has its original on its cgroup, and every cgroup that commensal created is marked as
    /// created.
    pub fn are_marked(&self, stage: &Stage) -> bool {
        let own = stage.cgroups().into_iter().filter(|dir| !dir.ends_with(&stage.top));
        if !own.into_iter().all(|dir| says_it_was_made(&dir)) {
            return false;
        }
        claimed(stage).into_iter().all(|(mount, path)| {
            let dir = mount.join(&stage.top).join(path);
            let records: Vec<Value> =
                [Some(dir.as_path()), dir.parent()].into_iter().flatten().flat_map(on_cgroup).collect();
            let mut values = BTreeMap::new();
            stage::settings(&dir, false, &mut values);
            values.into_iter().all(|(file, now)| {
                let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let changed = self.original(&mount, &file).is_some_and(|was| *was != now);
                !changed || records.iter().any(|record| is_of(record, &name))
            })
        })
    }

    /// Returns the limits of offline cgroups, by file.
    pub fn offline_limits(&self, stage: &Stage) -> BTreeMap<PathBuf, String> {
        let offline = claimed(stage).into_iter().filter(|(_, path)| path.starts_with("off/"));
        let files = offline.map(|(mount, path)| mount.join(&stage.top).join(path).join(LIMIT));
        files.filter_map(|file| Some((file.clone(), read(&file)?))).collect()
    }

    /// Whether a value differs from the one at the start.
    pub fn is_ours(&self, file: &Path) -> bool {
        self.claimed.get(file).is_some_and(|was| read(file).is_some_and(|now| now != *was))
    }

    /// Lists the values of claimed cgroups that differ from those at the start.
    pub fn not_as_at_the_start(&self, stage: &Stage) -> Vec<String> {
        let mut seen = Vec::new();
        for (mount, path) in claimed(stage) {
            let mut values = BTreeMap::new();
            stage::settings(&mount.join(&stage.top).join(&path), false, &mut values);
            let changed = values.into_iter().filter_map(|(file, now)| {
                let was = self.original(&mount, &file)?;
                (*was != now).then(|| format!("{}: was {was:?}, is {now:?}", file.display()))
            });
            seen.extend(changed);
        }
        seen
    }
}

impl Drop for Invariants {
    fn drop(&mut self) {
        self.residents.iter_mut().for_each(stage::end);
    }
}

fn read(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok()
}

/// Lists the cgroups that groups claim, with the mount point of each hierarchy.
fn claimed(stage: &Stage) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for mount in &stage.mounts {
        for side in ["on", "off"] {
            let entries =
                std::fs::read_dir(mount.join(&stage.top).join(side)).into_iter().flatten().flatten();
            let dirs = entries.filter(|one| one.file_type().is_ok_and(|kind| kind.is_dir()));
            found.extend(dirs.map(|one| (mount.clone(), format!("{side}/{}", one.file_name().display()))));
        }
        found.push((mount.clone(), "off".to_owned()));
    }
    found
}

/// Reads all files in a directory except the state directory.
fn files(dir: &Path, without: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        // Leaves out files that fill the disk, and the state directory while it is moved aside.
        if path == *without || entry.file_name().to_string_lossy().starts_with("soak-") {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.insert(path.clone(), Vec::new());
            found.extend(files(&path, without));
        } else {
            found.insert(path.clone(), std::fs::read(&path).unwrap_or_default());
        }
    }
    found
}

/// Returns the files from which the kernel derives the value of this file. If commensal has recorded the original of
/// one of them, that also covers this file.
fn derives_from(name: &str) -> &'static [&'static str] {
    match name {
        "cpu.shares" | "cpu.weight" | "cpu.weight.nice" => {
            &["cpu.shares", "cpu.weight", "cpu.weight.nice", "cpu.idle"]
        }
        "cpu.cfs_quota_us" | "cpu.cfs_period_us" => &["cpu.cfs_quota_us", "cpu.cfs_period_us"],
        _ => &[],
    }
}

/// Returns why the original of a changed file is lost; `None` if it is not lost.
fn lost(stage: &Stage, dir: &Path, name: &str, was: &str) -> Option<String> {
    let mut why = String::new();
    for _ in 0..LOOKS {
        // The kernel also shows a frozen cgroup in the `freezer.state` of its descendants.
        let above = dir.parent().filter(|_| name == "freezer.state");
        let homes = [Some(dir), above].into_iter().flatten();
        let mut records: Vec<Value> = homes.clone().flat_map(on_cgroup).collect();
        if !records.iter().any(|record| is_of(record, name)) {
            records.extend(homes.flat_map(|dir| in_journal(stage, dir)));
        }
        let own = records.iter().find(|record| record["file"] == name);
        let kept = |record: &Value| record["device"].is_string() || same(record["value"].as_str(), was);
        match own {
            Some(record) if kept(record) => return None,
            Some(record) => why = format!("the original is kept as {}", record["value"]),
            None if records.iter().any(|record| is_of(record, name)) => return None,
            None => "no original is kept".clone_into(&mut why),
        }
        // Commensal may have restored the value meanwhile.
        let now = read(&dir.join(name))?;
        if now == was {
            return None;
        }
        why = format!("{}: was {was:?}, is {now:?}: {why}", dir.join(name).display());
    }
    Some(why)
}

fn is_of(record: &Value, name: &str) -> bool {
    record["file"] == name || derives_from(name).iter().any(|other| record["file"] == *other)
}

/// Whether a record's value equals the file's original. "No limit" has several spellings.
fn same(recorded: Option<&str>, was: &str) -> bool {
    let unlimited = |text: &str| matches!(text, "-1" | "max") || text.len() > 15;
    let (recorded, was) = (recorded.unwrap_or_default().trim(), was.trim());
    recorded == was || (unlimited(recorded) && unlimited(was))
}

/// Whether a cgroup and all its descendants have the mark of cgroups that commensal has created.
fn says_it_was_made(dir: &Path) -> bool {
    let below = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut below = below.filter(|one| one.file_type().is_ok_and(|kind| kind.is_dir()));
    rustix::fs::getxattr(dir, CREATED, &mut [0u8; 4_096]).is_ok()
        && below.all(|one| says_it_was_made(&one.path()))
}

/// Reads the records of originals in the extended attributes of a cgroup.
fn on_cgroup(dir: &Path) -> Vec<Value> {
    let mut names = vec![0; ATTRIBUTES];
    let length = rustix::fs::listxattr(dir, &mut names).unwrap_or_default();
    let names = names[..length].split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    let of = |name: &str| -> Option<Value> {
        let mut text = vec![0; ATTRIBUTES];
        let length = rustix::fs::getxattr(dir, name, &mut text).ok()?;
        let mark: Value = serde_json::from_slice(&text[..length]).ok()?;
        Some(mark["record"].clone())
    };
    names.filter(|name| name.starts_with(ORIGINAL)).filter_map(of).collect()
}

/// Reads the records of originals of a cgroup in the journals, as `commensal journal show` prints them.
fn in_journal(stage: &Stage, dir: &Path) -> Vec<Value> {
    let Ok(shown) = stage.command(&["journal", "show", "--json"]).output() else { return Vec::new() };
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of = |line: Value| {
        let record = line["record"].clone();
        let group = &record["group"];
        let place = format!("{}{}", group["mount"].as_str()?, group["path"].as_str()?);
        (record["record"] == "original" && Path::new(&place) == dir).then_some(record)
    };
    lines.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_has_several_spellings() {
        assert!(same(Some("-1"), "9223372036854771712\n"));
        assert!(same(Some("max"), "max\n"));
        assert!(same(Some("300"), "300\n"));
        assert!(!same(Some("300"), "max\n"));
        assert!(!same(None, "300"));
    }

    #[test]
    fn what_fills_the_disk_is_not_beside_the_state_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("state")).unwrap();
        std::fs::write(dir.path().join("state/x"), "1").unwrap();
        std::fs::write(dir.path().join("soak-fill"), "1").unwrap();
        std::fs::write(dir.path().join("decoy"), "1").unwrap();
        let found = files(dir.path(), &dir.path().join("state"));
        assert_eq!(found, BTreeMap::from([(dir.path().join("decoy"), b"1".to_vec())]));
    }
}
