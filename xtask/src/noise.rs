//! Work that takes CPU time away from tests: spinners at normal weight, and spinners above all other work that take every
//! CPU for a part of each second, as a hypervisor does.

use crate::runner::supervise::this_program;
use anyhow::{Context, bail};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The period of bursts.
const SECOND: Duration = Duration::from_secs(1);

/// A kind of noise, and how much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Number of spinners at normal weight.
    Busy(usize),
    /// Time per second during which no CPU is left to other work, in ms.
    Steal(u64),
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let wrong = || format!("{text:?} is not busy:SPINNERS or steal:MS, such as busy:2 or steal:350");
        let (kind, amount) = text.split_once(':').ok_or_else(wrong)?;
        match kind {
            "busy" => amount.parse().map(Kind::Busy).map_err(|_| wrong()),
            "steal" => amount.parse().ok().filter(|ms| *ms < 1_000).map(Kind::Steal).ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }
}

/// Options of a spinner.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Spin {
    /// Time per second to spin, in ms [default: all of it].
    #[arg(long, default_value_t = 1_000)]
    ms: u64,
}

/// Spins for a part of each second, until xtask kills this process.
pub fn spin(spin: Spin) {
    // A spinner above all other work must not outlive xtask.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let busy = Duration::from_millis(spin.ms);
    loop {
        let begun = Instant::now();
        while begun.elapsed() < busy {
            std::hint::spin_loop();
        }
        std::thread::sleep(SECOND.saturating_sub(begun.elapsed()));
    }
}

/// Running noise. It stops when this value is dropped.
#[derive(Debug, Default)]
pub struct Noise(Vec<Child>);

impl Noise {
    /// Starts the noise.
    ///
    /// # Errors
    /// If a spinner cannot be started: spinners that take CPUs away need root and `chrt` and `taskset` (util-linux).
    pub fn start(kinds: &[Kind]) -> anyhow::Result<Noise> {
        let mut noise = Noise::default();
        for kind in kinds {
            match *kind {
                Kind::Busy(count) => {
                    for _ in 0..count {
                        noise.add(Command::new(this_program()).arg("spin"))?;
                    }
                }
                Kind::Steal(ms) => {
                    for cpu in 0..std::thread::available_parallelism()?.get() {
                        let mut command = Command::new("chrt");
                        command.args(["-f", "50", "taskset", "-c", &cpu.to_string()]);
                        noise.add(command.arg(this_program()).args(["spin", "--ms", &ms.to_string()]))?;
                    }
                }
            }
        }
        // A refusal of the scheduling class ends a spinner at once.
        std::thread::sleep(Duration::from_millis(200));
        for child in &mut noise.0 {
            if let Some(status) = child.try_wait()? {
                bail!("a spinner ended with {status}: steal needs root, chrt and taskset");
            }
        }
        Ok(noise)
    }

    fn add(&mut self, command: &mut Command) -> anyhow::Result<()> {
        let program = command.get_program().display().to_string();
        let child = command.stdin(Stdio::null()).spawn().with_context(|| format!("start {program}"))?;
        self.0.push(child);
        Ok(())
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_and_others_are_refused() {
        assert_eq!("busy:2".parse(), Ok(Kind::Busy(2)));
        assert_eq!("steal:350".parse(), Ok(Kind::Steal(350)));
        for wrong in ["busy", "busy:x", "steal:1000", "steal:-1", "rain:3", ""] {
            assert!(wrong.parse::<Kind>().is_err(), "{wrong}");
        }
    }
}
