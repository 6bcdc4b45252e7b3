//! Processes as plain data: signals, exit status, `/proc/PID/stat`, and the scheduling policy of a new process.

use crate::cpuset::CpuSet;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A signal by its Linux number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal(pub i32);

#[allow(missing_docs, reason = "signal(7)")]
impl Signal {
    /// Sends nothing; only checks whether the process exists.
    pub const NONE: Signal = Signal(0);
    pub const HUP: Signal = Signal(1);
    pub const INT: Signal = Signal(2);
    pub const QUIT: Signal = Signal(3);
    pub const KILL: Signal = Signal(9);
    pub const TERM: Signal = Signal(15);
    pub const USR2: Signal = Signal(12);

    /// Whether the signal asks a process to end and the process can handle it: SIGHUP, SIGINT, SIGQUIT and SIGTERM.
    #[must_use]
    pub fn asks_to_end(self) -> bool {
        matches!(self, Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM)
    }
}

/// A core-scheduling cookie (Documentation/admin-guide/hw-vuln/core-scheduling.rst): threads with different cookies
/// never share a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cookie {
    /// A new cookie that no other thread has.
    New,
    /// The cookie of the thread with this ID.
    Of(u32),
    /// No cookie, which is the default.
    None,
}

/// Number of the scheduling policy `SCHED_NORMAL` (`SCHED_OTHER` in sched(7)).
pub const SCHED_NORMAL: i32 = 0;
/// Number of the scheduling policy `SCHED_EXT`, which rustix and libc do not define yet.
pub const SCHED_EXT: i32 = 7;
/// Number of the scheduling policy `SCHED_FIFO`.
pub const SCHED_FIFO: i32 = 1;
/// Number of the scheduling policy `SCHED_RR`.
pub const SCHED_RR: i32 = 2;
/// Number of the scheduling policy `SCHED_BATCH`.
pub const SCHED_BATCH: i32 = 3;
/// Number of the scheduling policy `SCHED_IDLE`.
pub const SCHED_IDLE: i32 = 5;
/// Number of the scheduling policy `SCHED_DEADLINE`.
pub const SCHED_DEADLINE: i32 = 6;
/// Numbers of the policies other than `SCHED_NORMAL` that have no priority.
pub const SCHED_PLAIN: [i32; 2] = [SCHED_BATCH, SCHED_IDLE];

/// Scheduling attributes of a thread, as sched_setattr(2) takes them, without the nice value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Scheduling {
    /// Number of the scheduling policy.
    pub policy: i32,
    /// Priority of `SCHED_FIFO` and `SCHED_RR`, 1 to 99; 0 for other policies.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: u32,
    /// Whether the thread's children start with the normal policy (`SCHED_RESET_ON_FORK`).
    #[serde(default, skip_serializing_if = "is_off")]
    pub reset_on_fork: bool,
    /// Runtime, deadline and period of `SCHED_DEADLINE` (ns); `None` for other policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<[u64; 3]>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_off(flag: &bool) -> bool {
    !*flag
}

impl Scheduling {
    /// A policy without further attributes.
    #[must_use]
    pub const fn of(policy: i32) -> Scheduling {
        Scheduling { policy, priority: 0, reset_on_fork: false, deadline: None }
    }

    /// A real-time policy with a priority.
    #[must_use]
    pub const fn real_time(policy: i32, priority: u32) -> Scheduling {
        Scheduling { policy, priority, reset_on_fork: false, deadline: None }
    }

    /// Whether a thread can have these attributes. The policy must be known. The attributes must contain a priority if
    /// the policy needs a priority, and times if the policy needs times; otherwise they must contain neither.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let real_time = [SCHED_FIFO, SCHED_RR].contains(&self.policy);
        let known = real_time
            || SCHED_PLAIN.contains(&self.policy)
            || [SCHED_NORMAL, SCHED_DEADLINE].contains(&self.policy);
        let priority = if real_time { (1..=99).contains(&self.priority) } else { self.priority == 0 };
        known && priority && self.deadline.is_some() == (self.policy == SCHED_DEADLINE)
    }
}

impl fmt::Display for Scheduling {
    /// Writes the policy's name in sched(7), with its priority.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.policy {
            SCHED_NORMAL => f.write_str("SCHED_OTHER"),
            SCHED_FIFO => write!(f, "SCHED_FIFO {}", self.priority),
            SCHED_RR => write!(f, "SCHED_RR {}", self.priority),
            SCHED_BATCH => f.write_str("SCHED_BATCH"),
            SCHED_IDLE => f.write_str("SCHED_IDLE"),
            SCHED_DEADLINE => f.write_str("SCHED_DEADLINE"),
            other => write!(f, "scheduling policy {other}"),
        }
    }
}

/// Scheduling policy that a child sets before it executes its program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether the child gets `SCHED_IDLE`.
    pub idle: bool,
    /// Priority of `SCHED_FIFO`, if the child gets that policy.
    pub fifo: Option<i32>,
    /// Nice level that the child gets; `None` leaves it unchanged.
    pub nice: Option<i32>,
    /// CPUs that the child may use.
    pub cpus: Option<CpuSet>,
    /// Core-scheduling cookie; if `None`, the child inherits its parent's.
    pub cookie: Option<Cookie>,
    /// Makes it impossible for the child to leave `SCHED_IDLE`: `RLIMIT_NICE` and `RLIMIT_RTPRIO` become 0, and the
    /// program that the child executes does not have `CAP_SYS_NICE` (sched(7)).
    pub confined: bool,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The process exited with this status.
    Code(i32),
    /// The process was killed by this signal.
    Signal(i32),
}

impl Exit {
    /// The exit status that a shell reports: the status itself, or 128 plus the signal's number.
    #[must_use]
    pub fn status(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
        }
    }
}

/// Length to which the kernel shortens the name of a process (`TASK_COMM_LEN` without the terminating 0).
pub const COMM: usize = 15;

/// The parsed text of `/proc/PID/stat` or `/proc/PID/task/TID/stat`; fields are numbered as in proc_pid_stat(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat<'t> {
    /// Name of the program (field 2), which the kernel shortens to [`COMM`] bytes.
    pub name: &'t str,
    /// The fields from number 3 on.
    fields: Vec<&'t str>,
}

impl<'t> Stat<'t> {
    /// Parses the text. Field 2 is the program's name, which may contain spaces and brackets, so the following fields
    /// are counted from the last closing bracket. Returns `None` if there is no bracket.
    #[must_use]
    pub fn parse(text: &'t str) -> Option<Stat<'t>> {
        let (before, fields) = text.rsplit_once(')')?;
        let name = before.split_once('(').map_or("", |(_, name)| name);
        Some(Stat { name, fields: fields.split_whitespace().collect() })
    }

    /// The text of field `number`, which must be at least 3.
    #[must_use]
    pub fn text(&self, number: usize) -> Option<&'t str> {
        self.fields.get(number.checked_sub(3)?).copied()
    }

    /// The value of field `number`, parsed as a number.
    #[must_use]
    pub fn number<N: std::str::FromStr>(&self, number: usize) -> Option<N> {
        self.text(number)?.parse().ok()
    }

    /// Whether the process has exited, or is about to: it runs no code of its own anymore. True for a zombie (field 3),
    /// and from the moment when the kernel sets `PF_EXITING` (field 9).
    #[must_use]
    pub fn has_ended(&self) -> bool {
        const EXITING: u64 = 0x4;
        matches!(self.text(3), Some("Z" | "X" | "x"))
            || self.number::<u64>(9).is_some_and(|flags| flags & EXITING != 0)
    }

    /// Whether all threads of the process have ended. If only the first one has, the process looks like a zombie, too:
    /// field 20 counts the threads that are left, with the zombie.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.has_ended() && self.number(20) == Some(1)
    }

    /// Whether this is a kernel thread (`PF_KTHREAD` of field 9, include/linux/sched.h).
    #[must_use]
    pub fn is_kernel_thread(&self) -> bool {
        const KERNEL_THREAD: u64 = 0x20_0000;
        self.number::<u64>(9).is_some_and(|flags| flags & KERNEL_THREAD != 0)
    }

    /// PID of the parent (field 4).
    #[must_use]
    pub fn parent(&self) -> Option<u32> {
        self.number(4)
    }

    /// Start time, in clock ticks since boot (field 22): together with the PID it identifies a process.
    #[must_use]
    pub fn start_ticks(&self) -> Option<u64> {
        self.number(22)
    }

    /// Number of the scheduling policy (field 41); 5 is `SCHED_IDLE`.
    #[must_use]
    pub fn policy(&self) -> Option<i32> {
        self.number(41)
    }

    /// CPU time in user mode so far, in clock ticks (field 14).
    #[must_use]
    pub fn user_ticks(&self) -> Option<u64> {
        self.number(14)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_a_thread_can_have() {
        let deadline = Scheduling { deadline: Some([1, 2, 3]), ..Scheduling::of(SCHED_DEADLINE) };
        for (one, possible, shown) in [
            (Scheduling::default(), true, "SCHED_OTHER"),
            (Scheduling::of(SCHED_BATCH), true, "SCHED_BATCH"),
            (Scheduling::of(SCHED_IDLE), true, "SCHED_IDLE"),
            (Scheduling::real_time(SCHED_FIFO, 3), true, "SCHED_FIFO 3"),
            (Scheduling::real_time(SCHED_RR, 99), true, "SCHED_RR 99"),
            (deadline, true, "SCHED_DEADLINE"),
            (Scheduling::of(SCHED_FIFO), false, "SCHED_FIFO 0"),
            (Scheduling::real_time(SCHED_RR, 100), false, "SCHED_RR 100"),
            (Scheduling::real_time(SCHED_NORMAL, 1), false, "SCHED_OTHER"),
            (Scheduling::of(SCHED_DEADLINE), false, "SCHED_DEADLINE"),
            (Scheduling { policy: SCHED_IDLE, ..deadline }, false, "SCHED_IDLE"),
            (Scheduling::of(SCHED_EXT), false, "scheduling policy 7"),
            (Scheduling::of(-1), false, "scheduling policy -1"),
        ] {
            assert_eq!((one.is_possible(), one.to_string().as_str()), (possible, shown));
            let text = serde_json::to_string(&one).unwrap();
            assert_eq!(serde_json::from_str::<Scheduling>(&text).unwrap(), one);
        }
    }

    #[test]
    fn fields_have_the_numbers_of_the_manual() {
        let rest: Vec<String> = (4..=52).map(|number| (number * 10).to_string()).collect();
        for (name, state, ended) in
            [("a", "R", false), ("a) b (c) d", "Z", true), (") ) ", "X", true), ("", "S", false)]
        {
            let text = format!("7 ({name}) {state} {}\n", rest.join(" "));
            let stat = Stat::parse(&text).unwrap();
            assert_eq!(stat.name, name, "{text}");
            assert_eq!((stat.text(3), stat.has_ended()), (Some(state), ended), "{text}");
            assert_eq!((stat.parent(), stat.start_ticks(), stat.policy()), (Some(40), Some(220), Some(410)));
            assert_eq!((stat.number::<i64>(52), stat.text(53), stat.text(2)), (Some(520), None, None));
        }
        let mut exiting = rest.clone();
        exiting[5] = 0x40_0104.to_string();
        assert!(Stat::parse(&format!("7 (a) R {}\n", exiting.join(" "))).unwrap().has_ended());
        assert_eq!(Stat::parse("7 a R 1"), None);
        let cut = Stat::parse("7 (a) R 1").unwrap();
        assert_eq!((cut.parent(), cut.start_ticks()), (Some(1), None));
    }
}
