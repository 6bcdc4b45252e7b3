//! Cells that are real VMs. A cell is the unit whose density is measured. QEMU boots a kernel with an initramfs, which
//! consists of busybox and an init script; the script computes. The guests implement the protocol of cells on the
//! serial line, so the conductor treats them like other programs. At the end, a guest also reports the steal time that
//! its kernel counted.

use crate::error::DensityError;
use crate::experiment::{Accel, Cell, Vm};
use commensal_host::{Child, Host, Signal, SpawnSpec, Stderr, Stdin, Stdout};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The script that runs as the guest's init.
const INIT: &str = include_str!("init.sh");
/// Memory that QEMU itself needs in addition to the guest's memory, in bytes.
pub const OVERHEAD: u64 = 256 << 20;
/// Timeout for a guest to reach its init when the program tests KVM; a guest normally needs a second or two.
const PATIENCE: Duration = Duration::from_secs(20);
/// A guest whose kernel prints nothing for this long counts as hung.
const SILENCE: Duration = Duration::from_secs(6);
/// Memory of the guest that is booted to test KVM, in MiB.
const PROBE_MIB: u64 = 256;
/// Messages that QEMU prints when KVM fails. After such a message, QEMU hangs.
const REFUSALS: [&str; 3] = ["KVM internal error", "emulation failure", "failed to initialize"];

/// The files that guests boot from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    kernel: PathBuf,
    initrd: PathBuf,
    accel: Accel,
}

impl Guest {
    /// Finds the kernel, and creates the initramfs in `dir`. If guests use KVM, also boots one guest to test whether
    /// KVM works.
    ///
    /// # Errors
    /// Returns an error when QEMU, the kernel or busybox is missing, or a guest cannot be booted with KVM.
    pub fn prepare(host: &mut dyn Host, dir: &Path, vm: &Vm) -> Result<Guest, DensityError> {
        let kernel = match &vm.kernel {
            Some(kernel) => kernel.clone(),
            None => {
                let release = host.read_file(Path::new("/proc/sys/kernel/osrelease"))?;
                PathBuf::from(format!("/boot/vmlinuz-{}", release.trim()))
            }
        };
        if !kernel.is_file() {
            return Err(DensityError::new(format!(
                "the kernel {} for the guests does not exist; give another one: cell.kernel = \"/boot/vmlinuz-…\"",
                kernel.display()
            )));
        }
        let initrd = files(host, dir)?;
        let guest = Guest { kernel, initrd, accel: vm.accel };
        if vm.accel == Accel::Kvm {
            guest.boots(host)?;
        }
        Ok(guest)
    }

    /// Returns the QEMU command line for a guest with this number of vCPUs and this memory (MiB). Appends `words` to
    /// the guest's kernel command line. The guest's serial line is QEMU's standard input and output.
    fn command(&self, (vcpu, memory_mib): (u32, u64), words: &str) -> SpawnSpec {
        // Emulated CPUs pause when the machine is busy. The guest's watchdogs would report such a pause as a lockup, so
        // they are off.
        let line = format!(
            "console=ttyS0 panic=-1 reboot=t random.trust_cpu=1 nosoftlockup nowatchdog \
             rcupdate.rcu_cpu_stall_suppress=1 {words}"
        );
        let (accel, cpu) = match self.accel {
            Accel::Kvm => ("kvm", "host"),
            // Linux before about 6.6 requires an AMD extension that QEMU's translator lacks.
            Accel::Tcg => ("tcg,thread=multi,tb-size=64", "max,vendor=GenuineIntel"),
        };
        let words = ["-machine", "q35", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"];
        let spec = words.into_iter().fold(SpawnSpec::new("qemu-system-x86_64"), SpawnSpec::arg);
        spec.arg("-name")
            .arg("cell,debug-threads=on")
            .arg("-accel")
            .arg(accel)
            .arg("-cpu")
            .arg(cpu)
            .arg("-smp")
            .arg(vcpu.to_string())
            .arg("-m")
            .arg(memory_mib.to_string())
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.initrd)
            .arg("-append")
            .arg(line)
            .arg("-chardev")
            .arg("stdio,id=line,signal=off")
            .arg("-serial")
            .arg("chardev:line")
    }

    /// Returns the QEMU command line for a cell whose init runs `sessions` sessions of `work` chunks each.
    #[must_use]
    pub fn cell(&self, cell: &Cell, sessions: u32, work: u32) -> SpawnSpec {
        let memory = cell.memory.map_or(PROBE_MIB, |memory| memory.0 >> 20);
        self.command((cell.vcpu, memory), &format!("quiet sessions={sessions} work={work}"))
    }

    /// Boots a guest until its init runs. Only a booted guest proves that KVM works; an existing device and a loaded
    /// module do not prove it.
    fn boots(&self, host: &mut dyn Host) -> Result<(), DensityError> {
        let (input, ours) =
            std::io::pipe().map_err(|error| no_guest(&format!("cannot create a pipe: {error}")))?;
        // The guest prints all kernel messages, because the last messages show how far it got.
        let mut spec = self.command((1, PROBE_MIB), "earlyprintk=ttyS0 sessions=1 work=1");
        spec.stdin = Stdin::Fd(Arc::new(input.into()));
        spec.stdout = Stdout::Pipe;
        spec.stderr = Stderr::Stdout;
        spec.die_with_parent = true;
        let mut child = host.spawn(&spec).map_err(|error| {
            DensityError::of("QEMU cannot be started; install it (Debian: qemu-system-x86)", &error)
        })?;
        let answer = hear(&mut child);
        drop(ours);
        // A hung guest does not exit by itself.
        let _ = host.signal(&child.process, Signal::KILL);
        child.wait()?;
        answer.map_err(|why| no_guest(&why))
    }
}

/// Waits for `ready` on the serial line; returns the reason when it does not arrive.
fn hear(child: &mut Child) -> Result<(), String> {
    let (tell, said) = channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if tell.send(String::from_utf8_lossy(&line).trim().to_owned()).is_err() {
                    return;
                }
            }
        });
    }
    let deadline = Instant::now() + PATIENCE;
    let mut last = String::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match said.recv_timeout(left.min(SILENCE)) {
            Ok(line) if line == "ready" => return Ok(()),
            Ok(line) if REFUSALS.iter().any(|words| line.contains(words)) => {
                // The next line of QEMU's output names the cause.
                let more = said.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
                return Err(format!("QEMU printed {:?}", format!("{line} {more}").trim_end()));
            }
            Ok(line) if line.is_empty() => {}
            Ok(line) => last = line,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(format!("QEMU exited; its last output was {last:?}"));
            }
            Err(RecvTimeoutError::Timeout) => {
                let heard = if last.is_empty() { "none".to_owned() } else { format!("{last:?}") };
                return Err(format!("a guest hung before it started its init; its last output: {heard}"));
            }
        }
    }
}

fn no_guest(why: &str) -> DensityError {
    DensityError::new(format!(
        "KVM cannot boot a guest on this machine: {why}; accel = \"tcg\" works without KVM, but its times and steal mean nothing"
    ))
}

/// Creates the initramfs from busybox and the init script. Busybox itself packs the archive.
fn files(host: &mut dyn Host, dir: &Path) -> Result<PathBuf, DensityError> {
    let root = dir.join("guest");
    host.state_remove_all(&root)?;
    host.state_dir(&root.join("bin"))?;
    host.state_replace(&root.join("init"), INIT)?;
    let initrd = dir.join("guest.cpio");
    let script = "chmod 755 init && mkdir -p proc dev && cp \"$(command -v busybox)\" bin/busybox && \
                  find . | busybox cpio -o -H newc 2>/dev/null >\"$1.part\" && mv \"$1.part\" \"$1\"";
    let mut spec = SpawnSpec::new("sh").arg("-c").arg(script).arg("files").arg(initrd.as_os_str());
    spec.folder = Some(root.clone());
    spec.die_with_parent = true;
    let mut child = host.spawn(&spec)?;
    let status = child.wait()?.status();
    host.state_remove_all(&root)?;
    if status == 0 {
        return Ok(initrd);
    }
    Err(DensityError::new(format!(
        "the guests' files cannot be created in {} (status {status}); install a static busybox (Debian: \
         busybox-static)",
        dir.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Backend;
    use commensal_core::units::Bytes;

    #[test]
    fn a_guest_is_told_what_to_do() {
        let guest = |accel| Guest { kernel: "/boot/k".into(), initrd: "/s/i".into(), accel };
        let words = |accel| {
            let cell =
                Cell { vcpu: 2, memory: Some(Bytes(512 << 20)), quota: false, backend: Backend::Group };
            let spec = guest(accel).cell(&cell, 3, 40);
            let args: Vec<String> = spec.args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
            args.join(" ")
        };
        let (kvm, tcg) = (words(Accel::Kvm), words(Accel::Tcg));
        for want in
            ["-smp 2 -m 512 -kernel /boot/k -initrd /s/i", "quiet sessions=3 work=40", "debug-threads=on"]
        {
            assert!(kvm.contains(want) && tcg.contains(want), "{want}: {kvm}");
        }
        assert!(kvm.contains("-accel kvm -cpu host") && tcg.contains("-accel tcg"), "{kvm} {tcg}");
    }
}
