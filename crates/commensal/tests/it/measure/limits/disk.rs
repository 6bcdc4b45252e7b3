//! Disks: rates of reading and writing. All I/O is direct: what the page cache serves or
//! takes is not limited, or not yet.

use super::{Window, window};
use crate::limits::{Running, Scene};
use commensal_core::topology::{Device, Disk};
use commensal_testkit::alone;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) const READ_MIB_S: f64 = 4.0;
pub(crate) const WRITE_MIB_S: f64 = 6.0;
const READ_IOPS: f64 = 50.0;
pub(crate) const RATES: &str = "io.read = \"4 MiB/s\"\nio.write = \"6 MiB/s\"\n";
pub(crate) const MIB: f64 = 1_048_576.0;
/// Of the limit. The kernel lets requests go in slices of 100 ms, of which the window cuts one at each end; it never
/// makes up for time in which nobody asked.
const AT_MOST: f64 = 1.25;
/// Of the limit, in the best of the windows: a busy machine asks late, and others use the disk as well.
const AT_LEAST: f64 = 0.6;
const WINDOWS: usize = 3;
const WINDOW: Duration = Duration::from_secs(2);
/// A disk that is not this many times faster than the limit says nothing about it.
const CONTROL_AT_LEAST: f64 = 2.0;
/// The requests of a second, so that the window cuts off little of one.
pub(crate) const BLOCK: &str = "128k";
const SMALL: &str = "8k";
const SMALL_BYTES: f64 = 8_192.0;
/// More than the limited ones can move in a test, and far less than a disk has.
const FILE_MIB: u32 = 64;
/// The first slices belong to the past, in which nothing was used.
pub(crate) const WARM_UP: Duration = Duration::from_millis(500);

/// Something to read and write directly, and the disk that it is on.
pub(crate) struct Target {
    path: PathBuf,
    pub(crate) disk: Disk,
}

/// In a guest of the VM harness the scratch disks themselves, elsewhere a file on the disk with the temporary folder.
fn targets(scene: &Scene) -> Result<Vec<Target>, String> {
    let disks = scene.machine().disks;
    if std::env::var_os("COMMENSAL_VM").is_some() {
        let target = |disk: Disk| Target { path: Path::new("/dev").join(&disk.name), disk };
        return Ok(disks.into_iter().map(target).collect());
    }
    let folder = scene.program.dir.path();
    let number = std::fs::metadata(folder).unwrap().dev();
    let (major, minor) =
        ((number >> 8) & 0xfff | (number >> 32) & !0xfff, number & 0xff | (number >> 12) & !0xff);
    let sys = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let Ok(sys) = sys.canonicalize() else {
        return Err(format!("{} is not on a block device", folder.display()));
    };
    let whole = if sys.join("partition").exists() { sys.parent().unwrap() } else { &sys };
    let device: Option<Device> =
        std::fs::read_to_string(whole.join("dev")).ok().and_then(|text| text.trim().parse().ok());
    let Some(disk) = disks.into_iter().find(|disk| Some(disk.device) == device) else {
        return Err(format!("{} is on {}, which is not a whole disk", folder.display(), whole.display()));
    };
    let path = scene.program.path("file");
    let filled = dd(&[
        "if=/dev/zero",
        &format!("of={}", path.display()),
        "bs=1M",
        &format!("count={FILE_MIB}"),
        "oflag=direct",
    ]);
    filled.map(|_| vec![Target { path, disk }])
}

/// Runs dd to its end and gives the time that it took, s.
fn dd(args: &[&str]) -> Result<f64, String> {
    let started = Instant::now();
    let done = Command::new("dd").args(args).output().map_err(|error| format!("dd: {error}"))?;
    match done.status.success() {
        true => Ok(started.elapsed().as_secs_f64()),
        false => Err(String::from_utf8_lossy(&done.stderr).trim().replace('\n', "; ")),
    }
}

pub(crate) fn reading(target: &Target, block: &str) -> String {
    format!("exec dd if={} of=/dev/null bs={block} iflag=direct 2>/dev/null", target.path.display())
}

/// Overwrites what is there: a file does not grow.
pub(crate) fn writing(target: &Target) -> String {
    let (path, count) = (target.path.display(), FILE_MIB * 8);
    format!("exec dd if=/dev/zero of={path} bs={BLOCK} count={count} oflag=direct conv=notrunc 2>/dev/null")
}

/// What a dd outside every group reads and writes, MiB/s.
fn control(target: &Target) -> Result<(f64, f64), String> {
    let path = target.path.display();
    let blocks = FILE_MIB * 8;
    let count = format!("count={blocks}");
    let block = format!("bs={BLOCK}");
    let read = dd(&[&format!("if={path}"), "of=/dev/null", &block, &count, "iflag=direct"])?;
    let write = dd(&["if=/dev/zero", &format!("of={path}"), &block, &count, "oflag=direct", "conv=notrunc"])?;
    Ok((f64::from(FILE_MIB) / read, f64::from(FILE_MIB) / write))
}

/// Bytes that a process has read from and written to disks.
fn moved(running: &Running) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{}/io", running.pid));
    let text = text.expect("dd came to its end: it was not limited");
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    (field("read_bytes:").unwrap(), field("write_bytes:").unwrap())
}

/// Bytes per second of all of them over one window: what each has read and written.
pub(crate) fn rates(all: &[&Running]) -> Vec<(f64, f64)> {
    let read = || -> Vec<_> { all.iter().map(|one| moved(one)).collect() };
    let Window { before, after, at_most, .. } = window(WINDOW, read);
    let rate = |after: u64, before: u64| (after - before) as f64 / at_most;
    let pairs = after.into_iter().zip(before);
    pairs.map(|(after, before)| (rate(after.0, before.0), rate(after.1, before.1))).collect()
}

/// The most of any window: none may exceed a limit.
pub(crate) fn most(all: &[&Running]) -> Vec<(f64, f64)> {
    std::thread::sleep(WARM_UP);
    let windows = (0..WINDOWS).map(|_| rates(all));
    let larger = |a: Vec<(f64, f64)>, b: Vec<(f64, f64)>| {
        a.into_iter().zip(b).map(|(a, b)| (a.0.max(b.0), a.1.max(b.1))).collect()
    };
    windows.reduce(larger).unwrap_or_default()
}

pub(crate) fn check(what: &str, rate: f64, limit: f64, unit: &str) {
    println!("{what}: {rate:.2} of {limit} {unit}");
    assert!(rate <= limit * AT_MOST && rate >= limit * AT_LEAST, "{what}: {rate:.2} of {limit} {unit}");
}

/// Targets with fast enough disks; says why there are none.
pub(crate) fn fast_targets(test: &str, scene: &Scene) -> Option<Vec<Target>> {
    let found = targets(scene).and_then(|targets| {
        if !Path::new("/proc/self/io").exists() {
            return Err("this kernel does not count what a process moves (TASK_IO_ACCOUNTING)".to_owned());
        }
        for target in &targets {
            let (read, write) = control(target)?;
            println!(
                "{test}: {} unlimited: {read:.1} MiB/s read, {write:.1} MiB/s written",
                target.disk.name
            );
            if read < CONTROL_AT_LEAST * READ_MIB_S || write < CONTROL_AT_LEAST * WRITE_MIB_S {
                let name = &target.disk.name;
                return Err(format!(
                    "{name} reads {read:.1} and writes {write:.1} MiB/s without a limit: too slow to tell"
                ));
            }
        }
        Ok(targets)
    });
    match found {
        Ok(targets) if !targets.is_empty() => return Some(targets),
        Ok(_) => println!("skipped: {test}: this machine has no disk"),
        Err(reason) => println!("skipped: {test}: {reason}"),
    }
    None
}

// promise 6
#[test]
fn rates_of_a_disk_hold() {
    let test = "rates_of_a_disk_hold";
    let _alone = alone();
    let Some(scene) = Scene::new(test) else { return };
    let Some(targets) = fast_targets(test, &scene) else { return };
    let target = &targets[0];
    let device = target.disk.device;
    // Online, so that on a busy machine they have the CPU to ask for what they may have.
    let groups = scene.program.groups(&format!(
        "[group.etl]\nclass = \"online\"\n{RATES}io.devices = [\"{device}\"]\n\
         [group.ops]\nclass = \"online\"\nio.read-iops = \"{READ_IOPS} iops\"\nio.devices = [\"{device}\"]\n"
    ));
    let reader = scene.start("etl", &groups, &reading(target, BLOCK));
    let writer = scene.start("etl", &groups, &writing(target));
    let small = scene.start("ops", &groups, &reading(target, SMALL));
    let rates = most(&[&reader, &writer, &small]);
    drop((reader, writer, small));
    check(&format!("{test}: read"), rates[0].0 / MIB, READ_MIB_S, "MiB/s");
    check(&format!("{test}: written"), rates[1].1 / MIB, WRITE_MIB_S, "MiB/s");
    check(&format!("{test}: small reads"), rates[2].0 / SMALL_BYTES, READ_IOPS, "iops");
}
