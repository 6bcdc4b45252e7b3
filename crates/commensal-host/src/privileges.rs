//! Capabilities (capabilities(7)) of this process: this module drops those that the process never needs, and limits the
//! others to the calls that need them. Capabilities belong to threads, so a process drops them before it starts any
//! thread.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::sync::atomic::{AtomicBool, Ordering};

/// The capabilities that commensal uses. `docs/guide/security.md` states the purpose of each; a test checks that
/// commensal needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// `CAP_CHOWN`, for changing the group of a socket.
    Chown,
    /// `CAP_DAC_OVERRIDE`, for access to files, cgroups and sockets of other users.
    DacOverride,
    /// `CAP_KILL`, for sending signals to processes of other users.
    Kill,
    /// `CAP_SYS_ADMIN`, for reading and writing the attributes `trusted.*`.
    SysAdmin,
    /// `CAP_SYS_NICE`, for setting CPU affinity and scheduling policy of other users' threads, and for moving other
    /// users' processes into a v1 cpuset.
    SysNice,
    /// `CAP_SYS_PTRACE`, for reading `/proc/PID/exe` of other users' processes, and core-scheduling cookies.
    SysPtrace,
    /// `CAP_SYS_RESOURCE`, for pressure triggers whose window is not a multiple of 2 s.
    SysResource,
    /// `CAP_BPF`, for loading BPF programs and creating BPF maps.
    Bpf,
    /// `CAP_PERFMON`, for loading BPF programs that trace the kernel.
    Perfmon,
}

/// Capabilities that are in effect all the time; the others are in effect only inside [`raised`].
const AWAKE: [Capability; 1] = [Capability::DacOverride];

/// Whether this process has called [`keep_only`]; before that, [`raised`] changes nothing.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

impl Capability {
    /// All capabilities of this type.
    pub const ALL: [Capability; 9] = [
        Capability::Chown,
        Capability::DacOverride,
        Capability::Kill,
        Capability::SysAdmin,
        Capability::SysNice,
        Capability::SysPtrace,
        Capability::SysResource,
        Capability::Bpf,
        Capability::Perfmon,
    ];

    /// The kernel's name of the capability.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// The kernel's number of the capability (linux/capability.h).
    #[must_use]
    pub fn number(self) -> u32 {
        self.row().1.bits().trailing_zeros()
    }

    fn row(self) -> (&'static str, CapabilitySet) {
        match self {
            Capability::Chown => ("CAP_CHOWN", CapabilitySet::CHOWN),
            Capability::DacOverride => ("CAP_DAC_OVERRIDE", CapabilitySet::DAC_OVERRIDE),
            Capability::Kill => ("CAP_KILL", CapabilitySet::KILL),
            Capability::SysAdmin => ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
            Capability::SysNice => ("CAP_SYS_NICE", CapabilitySet::SYS_NICE),
            Capability::SysPtrace => ("CAP_SYS_PTRACE", CapabilitySet::SYS_PTRACE),
            Capability::SysResource => ("CAP_SYS_RESOURCE", CapabilitySet::SYS_RESOURCE),
            Capability::Bpf => ("CAP_BPF", CapabilitySet::BPF),
            Capability::Perfmon => ("CAP_PERFMON", CapabilitySet::PERFMON),
        }
    }
}

fn set_of(some: &[Capability]) -> CapabilitySet {
    some.iter().fold(CapabilitySet::empty(), |set, one| set | one.row().1)
}

/// Drops all capabilities except these from this thread and the threads that it starts. The others are removed from the
/// bounding set too (if this process has `CAP_SETPCAP`), so programs that it starts do not have them. Of the
/// capabilities kept, only `CAP_DAC_OVERRIDE` is in effect outside [`raised`].
///
/// # Errors
/// Returns the kernel's error; then more capabilities are left than requested.
pub fn keep_only(keep: &[Capability]) -> std::io::Result<()> {
    let kept = set_of(keep);
    // A program that root starts gets the capabilities of the bounding set. The loop stops at the first number that the
    // kernel does not know.
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(one) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            // Without CAP_SETPCAP, as in some services, the bounding set does not change; `no_new_privs` then limits
            // the programs that this process starts.
            Err(Errno::PERM) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    rustix::thread::set_no_new_privs(true)?;
    let permitted = capabilities(None)?.permitted & kept;
    let effective = permitted & set_of(&AWAKE);
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })?;
    GIVEN_UP.store(true, Ordering::Relaxed);
    Ok(())
}

/// Drops these capabilities from this thread and the threads that it starts.
///
/// # Errors
/// Returns the kernel's error.
pub fn give_up(some: &[Capability]) -> std::io::Result<()> {
    let CapabilitySets { effective, permitted, .. } = capabilities(None)?;
    let gone = set_of(some);
    let (effective, permitted) = (effective - gone, permitted - gone);
    Ok(set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })?)
}

/// Runs `work` with those of these capabilities in effect that this thread still has. If [`keep_only`] was never
/// called, runs `work` without any change.
pub fn raised<T>(some: &[Capability], work: impl FnOnce() -> T) -> T {
    /// Restores the previous capabilities, also after a panic.
    struct Lower(CapabilitySets);
    impl Drop for Lower {
        fn drop(&mut self) {
            // The kernel always allows a smaller effective set.
            let _ = set_capabilities(None, self.0);
        }
    }
    if !GIVEN_UP.load(Ordering::Relaxed) {
        return work();
    }
    let _lower = capabilities(None).ok().and_then(|before| {
        let effective = before.effective | (before.permitted & set_of(some));
        set_capabilities(None, CapabilitySets { effective, ..before }).ok().map(|()| Lower(before))
    });
    work()
}
