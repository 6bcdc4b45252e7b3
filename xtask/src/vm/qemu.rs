//! One boot: QEMU with an emulated CPU, results by virtio-serial ports into files, a limit, and no process
//! or file left behind.

use super::tool;
use crate::interrupt::interrupted;
use anyhow::Context;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Emulated CPUs stand still when the machine is busy: watchdogs would call that a lockup.
const COMMAND_LINE: &str = "console=ttyS0 panic=-1 mitigations=off random.trust_cpu=1 psi=1 tsc=reliable \
    nosoftlockup nowatchdog rcupdate.rcu_cpu_stall_suppress=1";
const DISKS: usize = 2;
const DISK_BYTES: u64 = 256 << 20;
/// The ports of `init.sh`.
const PORTS: [&str; 4] = ["out", "err", "state", "files"];
/// A guest that has not reached its init by then hangs; a boot takes 5 to 40 s.
const BOOT_LIMIT: Duration = Duration::from_secs(240);
/// Attempts when a guest ends or hangs without having had its say.
const ATTEMPTS: usize = 3;
/// On the console of a guest that died of the emulator.
const HALF_PATCHED: &str = "Oops: int3";
/// How long a guest may take to power off.
const POWER_OFF: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// Lines of the console in an error.
const CONSOLE_LINES: usize = 30;

/// What to boot.
#[derive(Debug)]
pub struct Boot<'a> {
    /// Disks, results and the console go here.
    pub scratch: &'a Path,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub memory_mib: u32,
    pub cores: u32,
    /// Of each core.
    pub threads: u32,
    /// CPUs take turns in one thread.
    pub turns: bool,
    pub limit: Duration,
    /// Copy the command's output on as it comes.
    pub live: bool,
    pub keep_console: Option<&'a Path>,
}

/// What a guest reported.
#[derive(Debug)]
pub struct Report {
    /// `uname -r`.
    pub release: String,
    /// Of the command.
    pub status: u8,
    pub out: Vec<u8>,
    /// Of the whole boot.
    pub wall: Duration,
    /// Until the init was ready for the command, by the guest's clock.
    pub ready_s: f64,
}

/// Why there is no report.
#[derive(Debug)]
pub enum Trouble {
    /// The command ran when the time was over; what it had printed, and the kernel's release.
    LimitReached { limit: Duration, out: Vec<u8>, console: String },
    /// The guest ended, or never reached its init; what its command had printed.
    Died { how: String, out: Vec<u8>, console: String },
    /// A signal asked xtask to end.
    Interrupted,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::LimitReached { limit, console, .. } => write!(
                f,
                "the guest reached the limit of {} s (--time-limit gives it more); its console ends:\n{console}",
                limit.as_secs()
            ),
            Trouble::Died { how, console, .. } => {
                write!(f, "the guest {how} before it reported; its console ends:\n{console}")
            }
            Trouble::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Trouble {}

/// Boots, again when the guest itself failed, never when its command did.
pub fn boot(boot: &Boot) -> anyhow::Result<Report> {
    let mut attempt = 1;
    loop {
        match once(boot) {
            // Once the command has printed something its say counts, also if the guest died of it.
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

/// Ends with its owner, whatever the way.
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
    // When xtask is killed, so is QEMU: setpriv asks the kernel for that and becomes QEMU. It holds for the
    // thread that starts it, and that is the main one.
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
        // A guest that has reported and does not power off has nothing more to say.
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
    // The emulator's own doing (QEMU 7.2): the kernel had patched its code, and a CPU ran half of the old instruction. What the
    // command had said counts no more.
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
    // Never KVM: not every machine that has the device can run a stock kernel with it.
    add("-accel", format!("tcg,thread={}", if boot.turns { "single" } else { "multi" }));
    // Linux 6.1 sees siblings on this vendor's CPUs only: it wants an extension of AMD's that TCG lacks.
    add("-cpu", "max,vendor=GenuineIntel".to_owned());
    // Guests see siblings, so that placement by cores has something to decide, and a cache for each two cores.
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

/// QEMU wants a comma inside a value twice.
fn comma(value: &str) -> String {
    value.replace(',', ",,")
}

/// What the init said of itself.
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

/// Copies what came since; gives how many bytes that were.
fn copy(from: &Path, offset: u64, to: &mut impl Write) -> anyhow::Result<u64> {
    let mut file = File::open(from)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    to.write_all(&bytes)?;
    to.flush()?;
    Ok(bytes.len() as u64)
}

/// The last lines of the console, and of what QEMU itself said.
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
