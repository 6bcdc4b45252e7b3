//! A single boot: QEMU with an emulated CPU and a time limit. The guest writes the results to virtio-serial ports,
//! which QEMU writes to files. No process or file is left behind.

use super::tools::tool;
use crate::interrupt::interrupted;
use anyhow::Context;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Kernel command line of the guests. Watchdogs are off, because they would report a lockup when an emulated CPU pauses
/// while the machine is busy.
const COMMAND_LINE: &str = "console=ttyS0 panic=-1 mitigations=off random.trust_cpu=1 psi=1 tsc=reliable \
    nosoftlockup nowatchdog rcupdate.rcu_cpu_stall_suppress=1";
const DISKS: usize = 2;
const DISK_BYTES: u64 = 256 << 20;
/// The virtio-serial ports that `init.sh` uses.
const PORTS: [&str; 4] = ["out", "err", "state", "files"];
/// Timeout until the init runs; a boot takes 5 to 40 s.
const BOOT_LIMIT: Duration = Duration::from_secs(240);
/// Number of attempts if a guest dies or hangs before its command has printed anything.
const ATTEMPTS: usize = 3;
/// Console message of a guest that died of an emulator bug.
const HALF_PATCHED: &str = "Oops: int3";
/// Timeout of powering off.
const POWER_OFF: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// Number of console lines that an error quotes.
const CONSOLE_LINES: usize = 30;

/// Parameters of a boot.
#[derive(Debug)]
pub struct Boot<'a> {
    /// Folder for disks, results and the console.
    pub scratch: &'a Path,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub memory_mib: u32,
    pub cores: u32,
    /// Hardware threads per core.
    pub threads: u32,
    /// Whether the CPUs take turns in a single thread of the emulator.
    pub turns: bool,
    pub limit: Duration,
    /// Whether the command's output is also printed as it arrives.
    pub live: bool,
    pub keep_console: Option<&'a Path>,
}

/// The report of a guest.
#[derive(Debug)]
pub struct Report {
    /// `uname -r`.
    pub release: String,
    /// Exit status of the command.
    pub status: u8,
    pub out: Vec<u8>,
    /// Wall-clock time of the whole boot.
    pub wall: Duration,
    /// Time until the init was ready for the command, in s of the guest's clock.
    pub ready_s: f64,
}

/// Reasons why there is no report.
#[derive(Debug)]
pub enum Trouble {
    /// The command still ran at the time limit. Contains its output, and the end of the console.
    LimitReached { limit: Duration, out: Vec<u8>, console: String },
    /// The guest died, or never reached its init. Contains the command's output, and the end of the console.
    Died { how: String, out: Vec<u8>, console: String },
    /// A signal stopped xtask.
    Interrupted,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::LimitReached { limit, console, .. } => write!(
                f,
                "the guest reached the time limit of {} s (raise it with --time-limit); the end of its \
                 console:\n{console}",
                limit.as_secs()
            ),
            Trouble::Died { how, console, .. } => {
                write!(f, "the guest {how} before it sent its report; the end of its console:\n{console}")
            }
            Trouble::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Trouble {}

/// Boots the guest. Retries if the guest itself failed, but never if its command did.
pub fn boot(boot: &Boot) -> anyhow::Result<Report> {
    let mut attempt = 1;
    loop {
        match once(boot) {
            // If the command has printed something, its result counts, even if the command crashed the guest.
            Err(error)
                if attempt < ATTEMPTS
                    && matches!(error.downcast_ref(), Some(Trouble::Died { out, .. }) if out.is_empty()) =>
            {
                eprintln!("xtask: attempt {attempt} of {ATTEMPTS}: {error}");
                attempt += 1;
            }
            done => return done,
        }
    }
}

/// A running QEMU, which is killed when this value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn once(boot: &Boot) -> anyhow::Result<Report> {
    let file = |name: &str| boot.scratch.join(name);
    for port in PORTS {
        File::create(file(port)).with_context(|| format!("create {}", file(port).display()))?;
    }
    for disk in 0..DISKS {
        let path = file(&format!("disk{disk}"));
        let made = File::create(&path).and_then(|disk| disk.set_len(DISK_BYTES));
        made.with_context(|| format!("create {}", path.display()))?;
    }
    let started = Instant::now();
    // setpriv asks the kernel to kill QEMU when xtask dies, and then executes QEMU. The kernel kills QEMU when the
    // thread that started it exits; this is the main thread.
    let mut command = tool("setpriv");
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]).args(arguments(boot));
    let log = File::create(file("qemu.log"))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut qemu = Running(command.spawn().context("start setpriv for qemu-system-x86_64")?);
    let mut copied = [0, 0];
    let mut reported = None;
    let ended = loop {
        let ended = qemu.0.try_wait()?;
        if boot.live {
            copied[0] += copy(&file("out"), copied[0], &mut io::stdout())?;
            copied[1] += copy(&file("err"), copied[1], &mut io::stderr())?;
        }
        if ended.is_some() {
            break ended;
        }
        if interrupted() {
            return Err(Trouble::Interrupted.into());
        }
        let state = fs::read_to_string(file("state")).unwrap_or_default();
        let ready = !state.is_empty();
        // A guest that has sent its report but does not power off will send nothing more, so the wait can end.
        if State::read(&state).done.is_some()
            && *reported.get_or_insert_with(Instant::now) + POWER_OFF < Instant::now()
        {
            break None;
        }
        if started.elapsed() > if ready { boot.limit } else { boot.limit.min(BOOT_LIMIT) } {
            break None;
        }
        std::thread::sleep(POLL);
    };
    drop(qemu);
    let console = fs::read(file("console")).unwrap_or_default();
    if let Some(path) = boot.keep_console {
        fs::write(path, &console).with_context(|| format!("write {}", path.display()))?;
    }
    let state = fs::read_to_string(file("state")).unwrap_or_default();
    let state = State::read(&state);
    let out = fs::read(file("out"))?;
    if let (Some((release, ready_s)), Some(status)) = (&state.ready, state.done) {
        let (release, ready_s) = (release.clone(), *ready_s);
        return Ok(Report { release, status, out, wall: started.elapsed(), ready_s });
    }
    // This is a bug of the emulator (QEMU 7.2): the kernel patched its code, and a CPU executed half of the old
    // instruction. The command's output is discarded, so that the boot is retried.
    let text = String::from_utf8_lossy(&console);
    let out = if text.contains(HALF_PATCHED) { Vec::new() } else { out };
    let console = tail(&text, &fs::read_to_string(file("qemu.log"))?);
    Err(match (ended, &state.ready) {
        (None, Some(_)) => Trouble::LimitReached { limit: boot.limit, out, console }.into(),
        (None, None) => {
            let how = format!("did not reach its init within {} s", started.elapsed().as_secs());
            Trouble::Died { how, out, console }.into()
        }
        (Some(status), _) => Trouble::Died { how: format!("ended ({status})"), out, console }.into(),
    })
}

fn arguments(boot: &Boot) -> Vec<String> {
    let file = |name: &str| boot.scratch.join(name).display().to_string();
    let mut args: Vec<String> = Vec::new();
    let mut add = |option: &str, value: String| args.extend([option.to_owned(), value]);
    add("-machine", "q35".to_owned());
    // KVM is never used, because not every machine that has the device can run a stock kernel with KVM.
    add("-accel", format!("tcg,thread={}", if boot.turns { "single" } else { "multi" }));
    // Linux 6.1 detects sibling threads only on CPUs of this vendor; on AMD's CPUs it requires an extension that TCG
    // (QEMU's emulator) lacks.
    add("-cpu", "max,vendor=GenuineIntel".to_owned());
    // Guests have sibling threads, so that core placement matters, and a cache for each two cores.
    let (cores, threads) = (boot.cores, boot.threads);
    add("-smp", format!("{},sockets={},cores=2,threads={threads}", cores * threads, cores / 2));
    add("-m", boot.memory_mib.to_string());
    add("-display", "none".to_owned());
    add("-kernel", boot.kernel.display().to_string());
    add("-initrd", boot.initrd.display().to_string());
    add("-append", COMMAND_LINE.to_owned());
    add("-chardev", format!("file,id=console,path={}", comma(&file("console"))));
    add("-serial", "chardev:console".to_owned());
    add("-device", "virtio-serial-pci".to_owned());
    for port in PORTS {
        add("-chardev", format!("file,id={port},path={}", comma(&file(port))));
        add("-device", format!("virtserialport,chardev={port},name=vm.{port}"));
    }
    for disk in 0..DISKS {
        let path = comma(&file(&format!("disk{disk}")));
        add("-drive", format!("file={path},format=raw,if=none,id=disk{disk},cache=unsafe,aio=threads"));
        add("-device", format!("virtio-blk-pci,drive=disk{disk}"));
    }
    args.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(str::to_owned));
    args
}

/// Escapes a value for QEMU, where commas are doubled.
fn comma(value: &str) -> String {
    value.replace(',', ",,")
}

/// The state that the init reported.
#[derive(Debug, Default, PartialEq)]
struct State {
    ready: Option<(String, f64)>,
    done: Option<u8>,
}

impl State {
    fn read(text: &str) -> State {
        let mut state = State::default();
        for line in text.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["ready", release, uptime] => {
                    state.ready = Some((release.to_owned(), uptime.parse().unwrap_or_default()));
                }
                ["done", status, _] => state.done = status.parse().ok(),
                _ => {}
            }
        }
        state
    }
}

/// Copies what was appended to the file since `offset`; returns the number of bytes.
fn copy(from: &Path, offset: u64, to: &mut impl Write) -> anyhow::Result<u64> {
    let mut file = File::open(from)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    to.write_all(&bytes)?;
    to.flush()?;
    Ok(bytes.len() as u64)
}

/// Returns the last lines of the console and of QEMU's own output.
fn tail(console: &str, qemu: &str) -> String {
    let last = |text: &str, count: usize| {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(count)..]
            .iter()
            .map(|line| format!("  {line}\n"))
            .collect::<String>()
    };
    last(console, CONSOLE_LINES) + &last(qemu, 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_has_its_say_or_not() {
        let check = |text: &str, ready: Option<(&str, f64)>, done: Option<u8>| {
            let ready = ready.map(|(release, uptime)| (release.to_owned(), uptime));
            assert_eq!(State::read(text), State { ready, done }, "{text:?}");
        };
        check("", None, None);
        check("ready 7.2.13+deb14-cloud-amd64 4.90\n", Some(("7.2.13+deb14-cloud-amd64", 4.9)), None);
        check("ready 6.1 4.90\ndone 42 6.10\n", Some(("6.1", 4.9)), Some(42));
        check("ready 6.1 4.90\ndone", Some(("6.1", 4.9)), None);
    }

    #[test]
    fn the_end_of_the_console() {
        let console: String = (0..40).map(|line| format!("line {line}\r\n\r\n")).collect();
        let end = tail(&console, "qemu: says why\n");
        assert!(end.starts_with("  line 10") && end.ends_with("  qemu: says why\n"), "{end}");
    }
}
