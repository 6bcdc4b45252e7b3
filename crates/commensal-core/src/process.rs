//! Processes as plain data: signals, exit status, `/proc/PID/stat`, and the scheduling policy of a new process.

use crate::cpuset::CpuSet;

/// A signal by its Linux number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal(pub i32);

#[allow(missing_docs, reason = "signal(7)")]
impl Signal {
    /// Sends nothing; only checks whether the process exists.
    pub const NONE: Signal = Signal(0);
    pub const INT: Signal = Signal(2);
    pub const KILL: Signal = Signal(9);
    pub const TERM: Signal = Signal(15);
    pub const USR2: Signal = Signal(12);
}

/// A core-scheduling cookie (Documentation/admin-guide/hw-vuln/core-scheduling.rst): threads with different cookies
/// never share a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cookie {
    /// A new cookie that no other thread has.
    New,
    /// The cookie of this thread.
    Of(u32),
    /// No cookie, the default of every thread.
    None,
}

/// `SCHED_NORMAL` of sched(7).
pub const SCHED_NORMAL: i32 = 0;
/// `SCHED_EXT`, which rustix and libc do not know yet.
pub const SCHED_EXT: i32 = 7;
/// `SCHED_BATCH` and `SCHED_IDLE`: the policies without a priority, besides the normal one.
pub const SCHED_PLAIN: [i32; 2] = [3, 5];

/// Scheduling policy that a child sets before it executes its program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// `SCHED_IDLE`.
    pub idle: bool,
    /// `SCHED_FIFO` with this priority.
    pub fifo: Option<i32>,
    /// nice level.
    pub nice: Option<i32>,
    /// CPUs that it may use.
    pub cpus: Option<CpuSet>,
    /// Core-scheduling cookie; if unset, the child inherits its parent's.
    pub cookie: Option<Cookie>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this status.
    Code(i32),
    /// It was killed by this signal.
    Signal(i32),
}

impl Exit {
    /// The status that a shell would report: the code, or 128 + n.
    #[must_use]
    pub fn status(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
        }
    }
}

/// The text of `/proc/PID/stat` or of a thread's (proc_pid_stat(5)); fields have the manual's numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat<'t> {
    /// From field 3 on.
    fields: Vec<&'t str>,
}

impl<'t> Stat<'t> {
    /// Parses the text. Field 2 is the program's name, which may contain spaces and brackets, so fields are counted
    /// from the last bracket. `None` when there is no bracket.
    #[must_use]
    pub fn parse(text: &'t str) -> Option<Stat<'t>> {
        Some(Stat { fields: text.rsplit_once(')')?.1.split_whitespace().collect() })
    }

    /// The text of a field from 3 on.
    #[must_use]
    pub fn text(&self, number: usize) -> Option<&'t str> {
        self.fields.get(number.checked_sub(3)?).copied()
    }

    /// The number in a field from 4 on.
    #[must_use]
    pub fn number<N: std::str::FromStr>(&self, number: usize) -> Option<N> {
        self.text(number)?.parse().ok()
    }

    /// Whether the process has exited (field 3), even if it is still a zombie.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.text(3), Some("Z" | "X" | "x"))
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

    /// Its scheduling policy (field 41); 5 is `SCHED_IDLE`.
    #[must_use]
    pub fn policy(&self) -> Option<i32> {
        self.number(41)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_numbers_of_the_manual() {
        let rest: Vec<String> = (4..=52).map(|number| (number * 10).to_string()).collect();
        for (name, state, ended) in
            [("a", "R", false), ("a) b (c) d", "Z", true), (") ) ", "X", true), ("", "S", false)]
        {
            let text = format!("7 ({name}) {state} {}\n", rest.join(" "));
            let stat = Stat::parse(&text).unwrap();
            assert_eq!((stat.text(3), stat.has_ended()), (Some(state), ended), "{text}");
            assert_eq!((stat.parent(), stat.start_ticks(), stat.policy()), (Some(40), Some(220), Some(410)));
            assert_eq!((stat.number::<i64>(52), stat.text(53), stat.text(2)), (Some(520), None, None));
        }
        assert_eq!(Stat::parse("7 a R 1"), None);
        let cut = Stat::parse("7 (a) R 1").unwrap();
        assert_eq!((cut.parent(), cut.start_ticks()), (Some(1), None));
    }
}
