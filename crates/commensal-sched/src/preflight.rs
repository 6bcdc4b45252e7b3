//! What keeps the scheduler from being loaded here, found out before anything is touched, with the way out.

use commensal_host::Host;
use std::path::Path;

/// Of the running scheduler, wherever it comes from.
pub const STATE: &str = "/sys/kernel/sched_ext/state";
const OPS: &str = "/sys/kernel/sched_ext/root/ops";
/// The name that our scheduler has for the kernel.
pub const OURS: &str = "commensal";
/// The first kernel whose functions are as the programs call them.
const OLDEST: &str = "6.13";

/// What is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Effective user.
    pub euid: u32,
    /// `uname -r`.
    pub release: String,
    /// `/sys/kernel/sched_ext/state`; `None` without it.
    pub state: Option<String>,
    /// Name of the scheduler that is loaded.
    pub ops: Option<String>,
    /// Whether the kernel describes itself.
    pub btf: bool,
    /// Functions that are called, as the kernel describes them: name, and names of their arguments.
    pub functions: Vec<(String, Vec<String>)>,
    /// CPUs without a tick.
    pub nohz_full: String,
}

/// Reads them; functions are added by who can read BTF.
#[must_use]
pub fn facts(host: &dyn Host) -> Facts {
    let text = |path: &str| host.read_file(Path::new(path)).ok().map(|text| text.trim().to_owned());
    let nohz_full = text("/sys/devices/system/cpu/nohz_full").unwrap_or_default();
    Facts {
        euid: host.euid(),
        release: text("/proc/sys/kernel/osrelease").unwrap_or_default(),
        state: text(STATE),
        ops: text(OPS).filter(|name| !name.is_empty()),
        btf: host
            .list(Path::new("/sys/kernel/btf"))
            .is_ok_and(|names| names.iter().any(|name| name == "vmlinux")),
        functions: Vec::new(),
        // Without such CPUs the file is empty, or says "(null)".
        nohz_full: if nohz_full.contains("null") { String::new() } else { nohz_full },
    }
}

/// Everything in the way. `replace` when one of ours may be loaded, because this one takes over from it.
#[must_use]
pub fn obstacles(facts: &Facts, replace: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    if facts.euid != 0 {
        wrong.push("it takes root to load a scheduler (this is another user)".to_owned());
    }
    let release = &facts.release;
    match facts.state.as_deref() {
        None => wrong.push(format!(
            "kernel {release} has no sched_ext (CONFIG_SCHED_CLASS_EXT): it takes {OLDEST} or newer with it; cpu.idle stays in use"
        )),
        Some("disabled") => {}
        Some(state) => {
            let name = facts.ops.as_deref().unwrap_or("without a name");
            // The kernel shows the name with the version of the programs behind it.
            let ours = name == OURS || name.starts_with("commensal_");
            if !(replace && ours) {
                let way = if ours { "unload it first, or use --replace" } else { "stop the program that loaded it first" };
                wrong.push(format!("another sched_ext scheduler is {state}: {name}; {way}"));
            }
        }
    }
    if facts.state.is_some() && !facts.btf {
        wrong.push(format!("kernel {release} has no /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF)"));
    }
    let broken = malformed(&facts.functions);
    if !broken.is_empty() {
        wrong.push(format!(
            "kernel {release} describes functions of sched_ext wrongly ({} with an argument too many: {}), so no scheduler can be \
             loaded; it was built with a pahole that is too old (dwarves 1.31 or newer is right), another build of the kernel has it \
             (Debian: 7.2.13 of sid or newer, not 7.2.12 of trixie-backports)",
            broken.len(),
            broken.join(", ")
        ));
    }
    if !facts.nohz_full.is_empty() {
        wrong.push(format!(
            "CPUs {} run without a tick (nohz_full): the kernel has frozen there with sched_ext (7.1, 7.2), and the backstop of noise \
             clean is the tick; boot without nohz_full",
            facts.nohz_full
        ));
    }
    wrong
}

/// Those with the hidden argument, which only the kernel's own side of a function has.
#[must_use]
pub fn malformed(functions: &[(String, Vec<String>)]) -> Vec<String> {
    let hidden = |arguments: &[String]| arguments.last().is_some_and(|name| name == "aux");
    functions.iter().filter(|(_, arguments)| hidden(arguments)).map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fine() -> Facts {
        Facts {
            release: "7.2.13".to_owned(),
            state: Some("disabled".to_owned()),
            btf: true,
            functions: vec![("scx_bpf_kick_cpu".to_owned(), vec!["cpu".to_owned(), "flags".to_owned()])],
            ..Facts::default()
        }
    }

    fn check(facts: Facts, replace: bool, expect: &[&str]) {
        let found = obstacles(&facts, replace);
        assert_eq!(found.len(), expect.len(), "{found:?}");
        for (obstacle, part) in found.iter().zip(expect) {
            assert!(obstacle.contains(part), "{obstacle:?} lacks {part:?}");
        }
    }

    #[test]
    fn each_obstacle_has_its_way_out() {
        check(fine(), false, &[]);
        check(Facts { euid: 1000, ..fine() }, false, &["it takes root"]);
        check(Facts { state: None, ..fine() }, false, &["7.2.13 has no sched_ext (CONFIG_SCHED_CLASS_EXT)"]);
        check(Facts { btf: false, ..fine() }, false, &["CONFIG_DEBUG_INFO_BTF"]);
        let loaded =
            |name: &str| Facts { state: Some("enabled".to_owned()), ops: Some(name.to_owned()), ..fine() };
        check(loaded("lavd_1.0"), false, &["enabled: lavd_1.0; stop the program"]);
        check(loaded("lavd_1.0"), true, &["stop the program"]);
        check(loaded("commensal"), false, &["use --replace"]);
        check(loaded("commensal"), true, &[]);
        check(Facts { nohz_full: "2-3".to_owned(), ..fine() }, false, &["CPUs 2-3 run without a tick"]);
        let aux = vec!["cpu".to_owned(), "flags".to_owned(), "aux".to_owned()];
        let broken = vec![("scx_bpf_kick_cpu".to_owned(), aux)];
        check(
            Facts { functions: broken, ..fine() },
            false,
            &["1 with an argument too many: scx_bpf_kick_cpu"],
        );
        check(
            Facts { euid: 5, state: None, nohz_full: "1".to_owned(), ..fine() },
            false,
            &["root", "no sched_ext", "nohz"],
        );
    }
}
