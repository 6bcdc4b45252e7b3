//! Faults against an agent that runs, on this machine's kernel. After each nothing is lost, nothing is left behind, online
//! groups were never limited, and offline work is held back again.

mod clients;
mod config;
mod disk;
mod freezer;
mod kills;
mod last_resort;
pub(crate) mod movers;

use crate::agent::{Theirs, asked, mounts, snapshot, ticks_on, until};
use crate::support::{Program, cgroups_named};
use commensal_core::knob::TABLE;
use commensal_testkit::{cpu_time_of_all, descriptors, holds_within, processes_with, resident_bytes};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longer than any test.
const LONGEST: Duration = Duration::from_secs(3_600);

/// Every setting of a group in every hierarchy, as the kernel has it.
pub(crate) fn settings(theirs: &Theirs) -> BTreeMap<PathBuf, String> {
    let names = TABLE.iter().flat_map(|knob| knob.v1.iter().chain(&knob.v2));
    let names: Vec<&str> = names.map(|file| file.name).collect();
    let dirs = mounts().into_iter().map(|mount| mount.join(&theirs.name));
    let files = dirs.flat_map(|dir| names.iter().map(move |name| dir.join(name)));
    files.filter_map(|file| Some((file.clone(), std::fs::read_to_string(file).ok()?))).collect()
}

/// Writes to a file of the group wherever it is; whether it is anywhere.
pub(crate) fn set(theirs: &Theirs, file: &str, value: &str) -> bool {
    let files = mounts().into_iter().map(|mount| mount.join(&theirs.name).join(file));
    let there: Vec<PathBuf> = files.filter(|file| file.exists()).collect();
    there.iter().for_each(|file| std::fs::write(file, value).unwrap());
    !there.is_empty()
}

/// An online group, which somebody looks at all the time: what must never be there is a limit.
pub(crate) struct Watched {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Option<String>>>,
}

impl Watched {
    pub(crate) fn over(online: &Theirs) -> Watched {
        let before = settings(online);
        // What protects may change: weight and idle of the cpu controller.
        let limits = |file: &Path| {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            !["cpu.shares", "cpu.weight", "cpu.weight.nice"].contains(&name.as_str())
        };
        let before: BTreeMap<PathBuf, String> = before.into_iter().filter(|(file, _)| limits(file)).collect();
        assert!(!before.is_empty());
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let changed = || {
                before.iter().find_map(|(file, want)| {
                    let now = std::fs::read_to_string(file).unwrap_or_default();
                    (now != *want).then(|| format!("{}: {want:?} became {now:?}", file.display()))
                })
            };
            let mut seen = None;
            holds_within(LONGEST, || {
                seen = changed();
                seen.is_some() || flag.load(Ordering::Relaxed)
            });
            seen
        });
        Watched { stop, thread: Some(thread) }
    }

    /// It was never limited.
    pub(crate) fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.thread.take().and_then(|thread| thread.join().unwrap());
        assert_eq!(seen, None, "an online group was limited");
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Processes of this test's agents and guards: their state directory is nobody else's.
pub(crate) fn processes(program: &Program) -> Vec<(u32, String)> {
    processes_with(&program.state().display().to_string())
}

pub(crate) fn guards(program: &Program) -> Vec<u32> {
    let all = processes(program).into_iter();
    all.filter(|(_, line)| line.contains(" guard ")).map(|(pid, _)| pid).collect()
}

/// Descriptors, resident memory in KiB, CPU time in ms.
pub(crate) fn figures(pid: u32) -> (usize, u64, u64) {
    let cpu = cpu_time_of_all(pid).unwrap_or_default();
    (descriptors(pid), resident_bytes(pid).unwrap_or(0) >> 10, cpu.as_millis() as u64)
}

/// As it is, in another program: `with` and its arguments first.
pub(crate) fn wrapped(with: &[&str], command: &Command) -> Command {
    let mut outer = Command::new(with[0]);
    outer.args(&with[1..]).arg(command.get_program()).args(command.get_args());
    if let Some(dir) = command.get_current_dir() {
        outer.current_dir(dir);
    }
    outer
}

/// After `restore`: no process, no cgroup of ours, no half-written state and no record.
pub(crate) fn nothing_left(program: &Program) {
    crate::agent::cleaned(program);
    until("every process has ended", || processes(program).is_empty());
    for of in ["offline", "online", "probe"] {
        let left = cgroups_named(&format!("{}-{of}", program.prefix));
        assert!(left.is_empty(), "{left:?}");
    }
    let names = std::fs::read_dir(program.state()).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let half: Vec<String> = names.filter(|name| name.ends_with(".new")).collect();
    assert!(half.is_empty(), "{half:?}");
}
