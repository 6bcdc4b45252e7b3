//! Capabilities (capabilities(7)) of this process: what it gives up for good, and what it has in effect only during the call that
//! needs it. They belong to threads, so a process gives up before it starts any.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::sync::atomic::{AtomicBool, Ordering};

/// What anything here needs of root: `docs/guide/security.md` says for what, a test measures it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// Giving a socket to a group.
    Chown,
    /// Files, cgroups and sockets of other users.
    DacOverride,
    /// Signals to processes of other users.
    Kill,
    /// Attributes `trusted.*`.
    SysAdmin,
    /// CPUs and policies of others' threads, and others' processes in a CPU set of cgroup v1.
    SysNice,
    /// `/proc/PID/exe` of others, and core-scheduling cookies.
    SysPtrace,
    /// Windows of pressure below 2 s.
    SysResource,
    /// BPF programs and maps.
    Bpf,
    /// BPF programs that trace.
    Perfmon,
}

/// In effect all the time; the others inside [`raised`] only.
const AWAKE: [Capability; 1] = [Capability::DacOverride];

/// Whether this process has given anything up: nothing has to be raised before.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

impl Capability {
    /// All of them.
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

    /// The kernel's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// The kernel's number (linux/capability.h).
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

/// This thread, and those that it starts, keep these at most: of the others nothing is left, neither in the bounding set (as far as
/// this process may say so) nor for programs that it starts. What is kept is in effect only inside [`raised`], but for access to
/// files of others.
///
/// # Errors
/// What the kernel says; then more is left than was wished.
pub fn keep_only(keep: &[Capability]) -> std::io::Result<()> {
    let kept = set_of(keep);
    // A program of root's that is started gets what the bounding set has. Ends at the first number that the kernel does not know.
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(one) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            // Who has no CAP_SETPCAP, such as a service; the next line holds for what it starts.
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

/// This thread, and those that it starts, have these no more.
///
/// # Errors
/// What the kernel says.
pub fn give_up(some: &[Capability]) -> std::io::Result<()> {
    let CapabilitySets { effective, permitted, .. } = capabilities(None)?;
    let gone = set_of(some);
    let (effective, permitted) = (effective - gone, permitted - gone);
    Ok(set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })?)
}

/// Does `work` with these in effect in this thread, as far as it has kept them. Without [`keep_only`] nothing changes.
pub fn raised<T>(some: &[Capability], work: impl FnOnce() -> T) -> T {
    /// Lowers them again, after a panic as well.
    struct Lower(CapabilitySets);
    impl Drop for Lower {
        fn drop(&mut self) {
            // To have less in effect is always allowed.
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
