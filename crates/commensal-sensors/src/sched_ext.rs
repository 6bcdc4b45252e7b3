//! Reads the kernel's state of sched_ext: whether it is available, which scheduler is loaded, and what prevents loading
//! one.

use commensal_host::Host;
use std::fmt;
use std::path::Path;

/// sysfs directory of sched_ext.
const FOLDER: &str = "/sys/kernel/sched_ext";
/// File that exists on every kernel with sched_ext.
pub const STATE: &str = "/sys/kernel/sched_ext/state";
const LOADS: &str = "/sys/kernel/sched_ext/enable_seq";
/// File with the list of CPUs without a timer tick.
const NOHZ_FULL: &str = "/sys/devices/system/cpu/nohz_full";
/// The first kernel release with the functions that current schedulers call.
pub const OLDEST: &str = "6.13";

/// Returns a string that changes when a scheduler is loaded or unloaded, and that is cheap to read. Empty on a kernel
/// without sched_ext.
#[must_use]
pub fn stamp(host: &dyn Host) -> String {
    [STATE, LOADS].map(|file| host.read_file(Path::new(file)).unwrap_or_default()).concat()
}

/// The state in `/sys/kernel/sched_ext/state`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// No scheduler is loaded.
    Disabled,
    /// A scheduler is being loaded.
    Enabling,
    /// A scheduler is loaded.
    Enabled,
    /// A scheduler is being unloaded.
    Disabling,
    /// A state that only newer kernels have.
    Other(String),
}

impl State {
    fn parse(text: &str) -> State {
        match text.trim() {
            "disabled" => State::Disabled,
            "enabling" => State::Enabling,
            "enabled" => State::Enabled,
            "disabling" => State::Disabling,
            other => State::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Disabled => "disabled",
            State::Enabling => "enabling",
            State::Enabled => "enabled",
            State::Disabling => "disabling",
            State::Other(word) => word,
        })
    }
}

/// The kernel's support and state of sched_ext.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Whether this user may load schedulers.
    pub root: bool,
    /// Release of the kernel (`uname -r`).
    pub release: String,
    /// Whether the kernel has type information (BTF).
    pub btf: bool,
    /// State of sched_ext; `None` if the kernel does not have it.
    pub state: Option<State>,
    /// Name of the loaded scheduler.
    pub ops: Option<String>,
    /// The kernel's counter `nr_rejected`: number of threads that were refused the policy `SCHED_EXT`.
    pub rejected: Option<u64>,
    /// Whether the loaded scheduler schedules every thread, not only those with the policy `SCHED_EXT` (`switch_all`).
    pub whole: Option<bool>,
    /// Number of schedulers loaded since boot (`enable_seq`).
    pub loads: Option<u64>,
    /// CPUs without a timer tick.
    pub nohz_full: Option<String>,
}

impl Kernel {
    /// Reads the kernel's support and state.
    #[must_use]
    pub fn read(host: &dyn Host) -> Kernel {
        let text = |path: &Path| host.read_file(path).ok().map(|text| text.trim().to_owned());
        let of = |name: &str| text(&Path::new(FOLDER).join(name));
        let number = |name: &str| of(name).and_then(|text| text.parse().ok());
        Kernel {
            root: host.euid() == 0,
            release: text(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default(),
            btf: host
                .list(Path::new("/sys/kernel/btf"))
                .is_ok_and(|names| names.iter().any(|name| name == "vmlinux")),
            state: of("state").map(|text| State::parse(&text)),
            ops: of("root/ops").filter(|name| !name.is_empty()),
            rejected: number("nr_rejected"),
            whole: number("switch_all").map(|number| number != 0),
            loads: number("enable_seq"),
            // Without such CPUs the file is empty, or contains "(null)".
            nohz_full: text(Path::new(NOHZ_FULL)).filter(|list| !list.is_empty() && !list.contains("null")),
        }
    }

    /// Whether the loaded scheduler is commensal's: the kernel shows the name with a version appended.
    #[must_use]
    pub fn ours(&self) -> bool {
        self.ops.as_deref().is_some_and(|name| name == "commensal" || name.starts_with("commensal_"))
    }

    /// Returns the name of the loaded scheduler, if it is not commensal's.
    #[must_use]
    pub fn foreign(&self) -> Option<&str> {
        self.ops.as_deref().filter(|_| self.busy() && !self.ours())
    }

    /// Whether a scheduler is loaded, being loaded or being unloaded.
    #[must_use]
    pub fn busy(&self) -> bool {
        self.state.as_ref().is_some_and(|state| *state != State::Disabled)
    }

    /// Describes the loaded scheduler, such as `lavd_1.0 is enabled`.
    #[must_use]
    pub fn loaded(&self) -> String {
        let state = self.state.as_ref().map_or_else(|| "absent".to_owned(), ToString::to_string);
        format!("{} is {state}", self.ops.as_deref().unwrap_or("a scheduler without a name"))
    }

    /// Returns the reasons why no scheduler at all can be loaded here.
    #[must_use]
    pub fn obstacles(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let release = &self.release;
        if !self.root {
            wrong.push("only root can load a scheduler (this is another user)".to_owned());
        }
        if self.state.is_none() {
            wrong.push(format!(
                "kernel {release} has no sched_ext (no {FOLDER}): this needs Linux {OLDEST} or newer with CONFIG_SCHED_CLASS_EXT; \
                 cpu.idle stays in use"
            ));
        } else if !self.btf {
            wrong.push(format!("kernel {release} has no /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF)"));
        }
        wrong
    }

    /// Returns why the loaded scheduler prevents loading commensal's; `None` if it does not. `replace` says
    /// whether a scheduler that is already commensal's may be replaced.
    #[must_use]
    pub fn taken(&self, replace: bool) -> Option<String> {
        if !self.busy() || (replace && self.ours()) {
            return None;
        }
        let way = match (self.ours(), replace) {
            (true, _) => "--replace replaces it, or unload it first with `commensal sched unload`",
            (false, false) => "end the program that loaded it first",
            (false, true) => "--replace replaces commensal's own only: end the program that loaded it first",
        };
        Some(format!("another sched_ext scheduler is loaded already ({}): {way}", self.loaded()))
    }

    /// Returns the reasons why a scheduler that cannot coexist with another one cannot be loaded.
    #[must_use]
    pub fn obstacles_to_another(&self) -> Vec<String> {
        let mut wrong = self.obstacles();
        if self.busy() {
            let way =
                if self.ours() { "run `commensal sched unload`" } else { "end the program that loaded it" };
            wrong.push(format!(
                "the kernel has one sched_ext scheduler at a time, and {}: {way} first",
                self.loaded()
            ));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    fn with(state: Option<&str>, ops: &str) -> FakeHost {
        let host = FakeHost::v2(2, 1 << 30);
        host.set_file("/sys/kernel/btf/vmlinux", "");
        if let Some(state) = state {
            host.set_file(STATE, state);
            host.set_file("/sys/kernel/sched_ext/root/ops", ops);
        }
        host
    }

    fn check(host: &FakeHost, expect: &[&str]) {
        let found = Kernel::read(host).obstacles_to_another();
        assert_eq!(found.len(), expect.len(), "{found:?}");
        for (obstacle, part) in found.iter().zip(expect) {
            assert!(obstacle.contains(part), "{obstacle:?} lacks {part:?}");
        }
    }

    #[test]
    fn each_obstacle_has_its_way_out() {
        check(&with(Some("disabled\n"), ""), &[]);
        check(&with(None, ""), &["with CONFIG_SCHED_CLASS_EXT"]);
        check(
            &with(Some("enabled\n"), "lavd_1.0\n"),
            &["lavd_1.0 is enabled: end the program that loaded it first"],
        );
        check(&with(Some("enabled\n"), "commensal_0.1\n"), &["run `commensal sched unload` first"]);
        check(&with(Some("enabled\n"), "commensalism\n"), &["end the program that loaded it first"]);
        let host = with(Some("disabled\n"), "");
        host.remove_file("/sys/kernel/btf/vmlinux");
        check(&host, &["CONFIG_DEBUG_INFO_BTF"]);
        host.unprivileged(true);
        check(&host, &["only root can load", "CONFIG_DEBUG_INFO_BTF"]);
    }

    #[test]
    fn one_of_ours_may_be_replaced() {
        let taken = |ops: &str, replace: bool| Kernel::read(&with(Some("enabled"), ops)).taken(replace);
        assert_eq!(taken("commensal_0.1", true), None);
        assert!(taken("commensal_0.1", false).unwrap().contains("--replace replaces it"));
        assert!(taken("lavd_1.0", false).unwrap().contains("lavd_1.0 is enabled): end the program"));
        assert!(taken("lavd_1.0", true).unwrap().contains("commensal's own only"));
        assert_eq!(Kernel::read(&with(Some("disabled"), "")).taken(true), None);
        assert_eq!(Kernel::read(&with(None, "")).taken(false), None);
        let foreign = |state, ops| Kernel::read(&with(Some(state), ops)).foreign().map(str::to_owned);
        assert_eq!(foreign("enabled", "lavd_1.0"), Some("lavd_1.0".to_owned()));
        assert_eq!((foreign("enabled", "commensal_0.1"), foreign("disabled", "lavd_1.0")), (None, None));
    }

    #[test]
    fn what_tells_cheaply_changes_with_each_load() {
        let host = with(Some("enabled\n"), "commensal_0.1\n");
        let first = stamp(&host);
        host.set_file("/sys/kernel/sched_ext/enable_seq", "2\n");
        assert_ne!(stamp(&host), first);
        assert_eq!(stamp(&with(None, "")), "");
    }

    // promise 52
    #[test]
    fn cpus_without_a_tick() {
        let of = |text: &str| {
            let host = with(Some("disabled"), "");
            host.set_file(NOHZ_FULL, text);
            Kernel::read(&host).nohz_full
        };
        assert_eq!((of("\n"), of("(null)\n"), of("2-3\n")), (None, None, Some("2-3".to_owned())));
    }
}
