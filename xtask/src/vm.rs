//! Tests on other kernels: boots Debian's kernels in QEMU, without KVM, a network or root, and runs the kernel tests or
//! any command in them.

mod image;
mod kernel;
mod qemu;
mod rootfs;
mod suite;
mod tools;

use crate::interrupt;
use crate::tally::{Quiet, Tally};
use anyhow::{Context, bail};
use image::{First, Image};
use kernel::Kernel;
use qemu::{Boot, Report, Trouble};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tools::{find_tool, tool};

/// A guest: a kernel, its first process, and the way its cgroups are mounted.
#[derive(Debug)]
pub struct Layout {
    pub name: &'static str,
    /// Debian suite of the kernel.
    pub suite: &'static str,
    /// Flavour of the kernel, as in the name of its package.
    pub flavour: &'static str,
    /// Kernel release of the suite; by default the newest.
    release: Option<&'static str>,
    pub first: First,
    /// Tests that always run in this guest. If empty, only the long tier uses the guest.
    tests: suite::Filters,
    /// Tests that run in the long tier, and when the user requests this guest on the command line.
    all: suite::Filters,
    memory_mib: u32,
    cores: u32,
    /// Hardware threads per core.
    threads: u32,
    /// Wall-clock limit of a boot in s.
    limit_s: u64,
    /// Whether the CPUs take turns in a single thread of the emulator. This is slower, but while one CPU patches code,
    /// no other CPU executes it.
    turns: bool,
    /// Minimum number of conformance rows that must run in this guest; fewer mean that a controller is missing.
    rows: usize,
}

/// The guests:
///
/// - `v1`: every v1 controller below /sys/fs/cgroup, and an empty v2 hierarchy at `unified`; later Debian kernels lack
///   the v1 controllers memory and cpuset.
/// - `v2`: the unified hierarchy on the newest kernel, with all controllers enabled.
/// - `v2-old`: like `v2`, on the kernel of Debian 12.
/// - `systemd`: the unified hierarchy, managed by the systemd of Debian 12, on its kernel.
/// - `systemd-sched`: like `systemd`, on the newest kernel, with CPUs that take turns.
/// - `sched`: like `v2`, with the scheduler's tests.
/// - `sched-loads`: like `sched`, with CPUs that take turns, for tests that load the scheduler often.
/// - `sched-wide`: four cores, with a cache for each two of them.
/// - `sched-smt4`: cores of four hardware threads.
/// - `sched-broken`: a kernel whose BTF describes functions wrongly.
pub const LAYOUTS: [Layout; 10] = [
    ours("v1", "bookworm", 350, suite::OF_KERNELS),
    ours("v2-old", "bookworm", 200, suite::OF_KERNELS),
    Layout { all: suite::ALL_OF_NEWEST, ..ours("v2", "sid", 220, suite::OF_NEWEST) },
    SYSTEMD,
    Layout {
        name: "systemd-sched",
        suite: "sid",
        all: suite::OF_SYSTEMD_SCHED,
        limit_s: LONG_LIMIT_S,
        turns: true,
        ..SYSTEMD
    },
    // Ten thousand threads need memory for ten thousand stacks.
    Layout { memory_mib: 2048, limit_s: LONG_LIMIT_S, ..long("sched", "sid", suite::ALL_OF_SCHED) },
    // This guest runs the scheduler tests that always run. If emulated CPUs run in parallel, the guest can crash when
    // one CPU executes code while another patches it.
    Layout {
        turns: true,
        tests: suite::OF_SCHED,
        limit_s: LONG_LIMIT_S,
        ..long("sched-loads", "sid", suite::OF_SCHED_LOADS)
    },
    Layout { cores: 4, ..long("sched-wide", "sid", suite::OF_SCHED_WIDE) },
    Layout { threads: 4, ..long("sched-smt4", "sid", suite::OF_SCHED_SMT4) },
    Layout { release: Some(MALFORMED), ..long("sched-broken", "trixie-backports", suite::OF_SCHED_BROKEN) },
];
/// systemd is always that of Debian 12, for any kernel.
const SYSTEMD: Layout = Layout {
    first: First::Systemd,
    // While the kernel unpacks the initramfs, the files are in memory twice.
    memory_mib: 2048,
    ..long("systemd", rootfs::SUITE, suite::OF_SYSTEMD)
};
const FLAVOUR: &str = "cloud-amd64";
/// A kernel built with a pahole that leaves hidden arguments in the BTF of functions.
const MALFORMED: &str = "7.2.12+deb13-cloud-amd64";

const fn ours(name: &'static str, suite: &'static str, rows: usize, tests: suite::Filters) -> Layout {
    Layout {
        name,
        suite,
        flavour: FLAVOUR,
        release: None,
        first: First::Ours,
        tests,
        all: tests,
        memory_mib: 1024,
        cores: 2,
        threads: 2,
        limit_s: TIME_LIMIT_S,
        turns: false,
        rows,
    }
}

/// A layout for the long tier only.
const fn long(name: &'static str, suite: &'static str, all: suite::Filters) -> Layout {
    Layout { tests: &[], ..ours(name, suite, 0, all) }
}

/// Programs that the harness starts, and the Debian packages that contain them.
const NEEDS: [(&str, &str); 14] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("modprobe", "kmod"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("objcopy", "binutils"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("taskset", "util-linux"),
    ("ldd", "libc-bin"),
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
];

const TIME_LIMIT_S: u64 = 900;
/// Time limit in s of guests with scheduler tests that take minutes.
const LONG_LIMIT_S: u64 = 3_600;

/// Exit status when the guest reached its time limit, like that of `timeout`.
const STATUS_LIMIT: u8 = 124;
const STATUS_DIED: u8 = 125;
const STATUS_INTERRUPTED: u8 = 130;

/// Run the kernel tests, or a command, on kernels in virtual machines.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// v2 (Debian sid's kernel, unified hierarchy), v2-old (Debian 12's), v1 (Debian 12's, one hierarchy per
    /// controller), systemd (Debian 12 with its systemd as the first process), systemd-sched (the same on sid's kernel,
    /// with the scheduler's unit), sched, sched-loads, sched-wide or sched-smt4 (like v2, with the scheduler's tests:
    /// on two cores, with CPUs that take turns, four cores, cores of four threads), sched-broken (a kernel that cannot
    /// load the scheduler). By default tests run in v1, v2-old, v2 and sched-loads (there without tests that take
    /// minutes), and a command in v2.
    #[arg(long, value_parser = layout)]
    layout: Option<&'static Layout>,
    /// Boot this kernel instead of Debian's: a bzImage with virtio's PCI bus, console and disks, devtmpfs and cgroups
    /// built in.
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Boot a kernel of another Debian suite, such as trixie-backports.
    #[arg(long, conflicts_with = "kernel")]
    suite: Option<String>,
    /// Boot this kernel of the suite, such as 6.18.15+deb13-cloud-amd64, instead of its newest.
    #[arg(long, conflicts_with = "kernel")]
    release: Option<String>,
    /// Write the kernel's messages to this file.
    #[arg(long, value_name = "FILE")]
    keep_console: Option<PathBuf>,
    /// Wall-clock limit of a boot in s [default: 900; in systemd-sched, sched and sched-loads 3600].
    #[arg(long, value_name = "S")]
    time_limit: Option<u64>,
    /// Memory of a guest in MiB [default: 1024; in sched and with systemd 2048].
    #[arg(long, value_name = "MIB")]
    memory: Option<u32>,
    /// Copy a file or folder into the guest; for a program also its shared libraries. By default programs go to
    /// /usr/bin, other files to /.
    #[arg(short, value_name = "SRC[:DST]")]
    file: Vec<String>,
    /// Copy the files that the command leaves in /out to this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Run this instead of the tests, and exit with its status.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn layout(name: &str) -> Result<&'static Layout, String> {
    let names = LAYOUTS.map(|layout| layout.name).join(" or ");
    LAYOUTS.iter().find(|layout| layout.name == name).ok_or_else(|| format!("not a layout: {names}"))
}

/// `cargo xtask vm`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(reason) = missing() {
        bail!("{reason}");
    }
    if args.command.is_empty() {
        let started = Instant::now();
        let suite = suite::Suite::build()?;
        let mut tally = Tally::default();
        for layout in args.layout.map_or_else(|| by_default(false), |wanted| vec![wanted]) {
            let tests = if args.layout.is_some() { layout.all } else { layout.tests };
            tally.add(tests_in(layout, tests, &Base::obtain(layout, args)?, &suite, args)?);
        }
        tally.print(started);
        return Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let layout = args.layout.unwrap_or(&LAYOUTS[2]);
    let words: Vec<String> = args.command.iter().map(|word| suite::quoted(word)).collect();
    match in_guest(layout, &Base::obtain(layout, args)?, args, true, |image| {
        image.text("/etc/command", &(words.join(" ") + "\n"), 0o644)
    }) {
        Ok(report) => Ok(ExitCode::from(report.status)),
        Err(error) => {
            let status = match error.downcast_ref() {
                Some(Trouble::LimitReached { .. }) => STATUS_LIMIT,
                Some(Trouble::Died { .. }) => STATUS_DIED,
                Some(Trouble::Interrupted) => STATUS_INTERRUPTED,
                None => return Err(error),
            };
            eprintln!("xtask: {error:#}");
            Ok(ExitCode::from(status))
        }
    }
}

/// The guests that are used by default.
fn by_default(long: bool) -> Vec<&'static Layout> {
    LAYOUTS.iter().filter(|layout| long || !layout.tests.is_empty()).collect()
}

/// Boot files of a guest that are not in this tree.
struct Base {
    kernel: Kernel,
    /// Archive of the guest's root file system, if it needs more files than the harness provides.
    tree: Option<PathBuf>,
}

impl Base {
    fn obtain(layout: &Layout, args: &Args) -> anyhow::Result<Base> {
        let kernel = match &args.kernel {
            Some(image) => kernel::own(image)?,
            None => {
                let suite = args.suite.as_deref().unwrap_or(layout.suite);
                kernel::obtain(suite, layout.flavour, args.release.as_deref().or(layout.release))?
            }
        };
        let tree = match layout.first {
            First::Ours => None,
            First::Systemd => Some(rootfs::obtain(rootfs::SUITE)?),
        };
        Ok(Base { kernel, tree })
    }
}

/// Runs the tests in every guest, as a step of CI. Missing requirements are skips, errors are failures.
pub fn kernels(long: bool) -> anyhow::Result<Tally> {
    let mut all = Tally::default();
    if let Some(reason) = missing() {
        for layout in by_default(long) {
            all.skip(format!("kernel tests in VMs: {}: {reason}", layout.name));
        }
        return Ok(all);
    }
    let suite = suite::Suite::build()?;
    let args = Args {
        layout: None,
        kernel: None,
        suite: None,
        release: None,
        keep_console: None,
        time_limit: None,
        memory: None,
        file: Vec::new(),
        out: None,
        command: Vec::new(),
    };
    for layout in by_default(long) {
        match Base::obtain(layout, &args) {
            Ok(base) => {
                let tests = if long { layout.all } else { layout.tests };
                all.add(tests_in(layout, tests, &base, &suite, &args)?);
            }
            // An interrupt aborts the step. The step then does not count as skipped.
            Err(_) if interrupt::interrupted() => return Err(Trouble::Interrupted.into()),
            Err(error) => all.skip(format!("kernel tests in VMs: {}: {error:#}", layout.name)),
        }
    }
    Ok(all)
}

/// Runs the tests of the layout in one guest.
fn tests_in(
    layout: &Layout,
    tests: suite::Filters,
    base: &Base,
    suite: &suite::Suite,
    args: &Args,
) -> anyhow::Result<Tally> {
    let fill = |image: &Image| {
        suite.add_to(image, tests)?;
        image.text("/etc/command", &suite.script(tests), 0o644)
    };
    let (mut tally, release) = run_in(layout, base, args, fill)?;
    // A kernel given by the user may lack controllers.
    if args.kernel.is_none() && tally.rows_ran() < layout.rows {
        let ran = tally.rows_ran();
        eprintln!(
            "VM {} {release}: only {ran} conformance rows ran, at least {} are expected",
            layout.name, layout.rows
        );
        tally.failed = tally.failed.max(1);
    }
    Ok(tally.on(&format!("VM {} {release}", layout.name), Some(layout.name)))
}

/// Boots one guest for tests, prints its relevant output, and counts the results. Also returns the kernel's release.
fn run_in(
    layout: &Layout,
    base: &Base,
    args: &Args,
    fill: impl FnOnce(&Image) -> anyhow::Result<()>,
) -> anyhow::Result<(Tally, String)> {
    println!("VM {} {}", layout.name, base.kernel.release);
    let mut tally = Tally::default();
    let mut quiet = Quiet::default();
    let mut count = |out: &[u8]| {
        for line in String::from_utf8_lossy(out).lines() {
            tally.line(line);
            if quiet.shows(line) {
                println!("{line}");
            }
        }
    };
    let mut release = base.kernel.release.clone();
    let trouble = match in_guest(layout, base, args, false, fill) {
        Ok(report) => {
            count(&report.out);
            release = report.release;
            let (wall, ready) = (report.wall.as_secs_f64(), report.ready_s);
            println!(
                "VM {} {release}: {wall:.1} s, ready {ready:.1} s after the kernel's start",
                layout.name
            );
            (report.status != 0).then(|| format!("the tests ended with status {}", report.status))
        }
        Err(error) => match error.downcast_ref() {
            // Neither of these errors discards the results of other guests.
            Some(Trouble::LimitReached { out, .. } | Trouble::Died { out, .. }) => {
                count(out);
                tally.failed += 1;
                Some(format!("{error}"))
            }
            _ => return Err(error),
        },
    };
    if let Some(trouble) = trouble {
        eprintln!("VM {} {release}: {trouble}", layout.name);
        // A test program that died does not report a result itself.
        tally.failed = tally.failed.max(1);
    }
    Ok((tally, release))
}

/// Boots the layout's kernel with an image to which `fill` adds files, and removes temporary files afterwards.
fn in_guest(
    layout: &Layout,
    base: &Base,
    args: &Args,
    live: bool,
    fill: impl FnOnce(&Image) -> anyhow::Result<()>,
) -> anyhow::Result<Report> {
    interrupt::watch()?;
    let (scratch, _lock) = scratch()?;
    let image = Image::new(scratch.path().join("root"), &base.kernel, layout.first)?;
    let wants_files = if args.out.is_some() { "1" } else { "" };
    image.text("/etc/guest", &format!("LAYOUT={}\nWANTS_FILES={wants_files}\n", layout.name), 0o644)?;
    for file in &args.file {
        let (source, path) = placed(file);
        image.add(&source, &path).with_context(|| format!("-f {file}"))?;
    }
    fill(&image)?;
    let initrd = scratch.path().join("initrd");
    image.pack(&initrd, base.tree.as_deref())?;
    let both = args.command.is_empty() && args.layout.is_none();
    let console = args.keep_console.as_ref().map(|path| match both {
        true => PathBuf::from(format!("{}.{}", path.display(), layout.name)),
        false => path.clone(),
    });
    let report = qemu::boot(&Boot {
        scratch: scratch.path(),
        kernel: base.kernel.image.clone(),
        initrd,
        memory_mib: args.memory.unwrap_or(layout.memory_mib),
        cores: layout.cores,
        threads: layout.threads,
        turns: layout.turns,
        limit: Duration::from_secs(args.time_limit.unwrap_or(layout.limit_s)),
        live,
        keep_console: console.as_deref(),
    })?;
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
        kernel::run(tool("tar").arg("-C").arg(out).arg("-xf").arg(scratch.path().join("files")))?;
    }
    Ok(report)
}

/// Creates a temporary directory with a lock. Removes the directories of killed runs, whose locks are free.
fn scratch() -> anyhow::Result<(TempDir, File)> {
    const PREFIX: &str = "commensal-vm.";
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let lock = ours.then(|| File::open(entry.path().join("lock")).ok()).flatten();
        if lock.is_some_and(|lock| lock.try_lock().is_ok()) {
            // The directory of another user cannot be removed, and need not be removed.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let scratch = tempfile::Builder::new().prefix(PREFIX).tempdir().context("make a temporary folder")?;
    // The lock is taken before the file gets its name: other runs treat a folder without a lock file as in use.
    let early = scratch.path().join("lock.new");
    let lock = File::create(&early).with_context(|| format!("create {}", early.display()))?;
    lock.lock().context("lock a temporary folder")?;
    std::fs::rename(&early, scratch.path().join("lock"))?;
    Ok((scratch, lock))
}

/// Parses `SRC[:DST]`: the source, and the path in the guest.
fn placed(file: &str) -> (PathBuf, PathBuf) {
    if let Some((source, path)) = file.split_once(':') {
        return (PathBuf::from(source), PathBuf::from(path));
    }
    let source = PathBuf::from(file);
    let program = std::fs::metadata(&source).is_ok_and(|data| {
        data.is_file() && std::os::unix::fs::PermissionsExt::mode(&data.permissions()) & 0o111 != 0
    });
    let name = source.file_name().map(PathBuf::from).unwrap_or_default();
    let path = Path::new(if program { "/usr/bin" } else { "/" }).join(name);
    (source, path)
}

/// Returns why this machine cannot boot a guest; `None` if it can.
fn missing() -> Option<String> {
    // Tests are built for this machine's architecture, so guests must have the same one.
    if std::env::consts::ARCH != "x86_64" {
        return Some(format!("guests are x86-64 and this machine is {}", std::env::consts::ARCH));
    }
    let absent = NEEDS.iter().filter(|(program, _)| find_tool(program).is_none());
    let mut packages: Vec<&str> = absent.map(|(_, package)| *package).collect();
    packages.dedup();
    let list = packages.join(" ");
    (!packages.is_empty()).then(|| format!("missing; apt-get install --no-install-recommends {list}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_minutes_is_for_the_long_tier() {
        let names = |long| by_default(long).iter().map(|layout| layout.name).collect::<Vec<_>>();
        assert_eq!(names(false), ["v1", "v2-old", "v2", "sched-loads"]);
        assert!(LAYOUTS.iter().all(|layout| !layout.all.is_empty()));
        // The tests that always run are a subset of all tests.
        let pairs = |tests: suite::Filters| -> Vec<(&str, &str)> {
            tests.iter().flat_map(|(package, all)| all.iter().map(move |one| (*package, *one))).collect()
        };
        let all = pairs(suite::ALL_OF_SCHED);
        for (package, part) in pairs(suite::OF_SCHED) {
            assert!(all.iter().any(|(of, whole)| *of == package && part.starts_with(whole)), "{part}");
        }
        let scheduler = ["sched", "sched-loads", "sched-wide", "sched-smt4", "sched-broken"];
        assert_eq!(
            names(true),
            [&["v1", "v2-old", "v2", "systemd", "systemd-sched"][..], &scheduler].concat()
        );
    }
}
