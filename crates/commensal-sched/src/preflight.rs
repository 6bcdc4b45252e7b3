//! Reasons why this machine cannot load the scheduler, each with a remedy. The check runs before anything is changed.

use commensal_sensors::sched_ext::Kernel;

/// Lists all obstacles. `functions` are the kernel functions that the BPF programs call: the name and the argument
/// names that the kernel's type information gives. With `replace`, a loaded commensal scheduler is not an obstacle,
/// because the new scheduler replaces it.
#[must_use]
pub fn obstacles(kernel: &Kernel, functions: &[(String, Vec<String>)], replace: bool) -> Vec<String> {
    let mut wrong = kernel.obstacles();
    wrong.extend(kernel.taken(replace));
    let release = &kernel.release;
    let broken = malformed(functions);
    if !broken.is_empty() {
        wrong.push(format!(
            "the BTF of kernel {release} describes functions of sched_ext wrongly ({} with an argument too many: {}), \
             so no sched_ext scheduler can be loaded: the kernel was built with a pahole that is too old; use a kernel \
             that was built with dwarves 1.31 or newer (Debian: 7.2.13 of sid or newer, not 7.2.12 of \
             trixie-backports)",
            broken.len(),
            broken.join(", ")
        ));
    }
    if let Some(cpus) = &kernel.nohz_full {
        wrong.push(format!(
            "CPUs {cpus} run without a tick (nohz_full): kernels 7.1 and 7.2 have hung on such CPUs with sched_ext, \
             and keeping offline threads off SMT siblings (`expel`) needs the tick as a fallback; boot without nohz_full"
        ));
    }
    wrong
}

/// Returns the functions whose description contains the hidden argument `aux`. Only the kernel's internal variants of
/// these functions should have it.
#[must_use]
pub fn malformed(functions: &[(String, Vec<String>)]) -> Vec<String> {
    let hidden = |arguments: &[String]| arguments.last().is_some_and(|name| name == "aux");
    functions.iter().filter(|(_, arguments)| hidden(arguments)).map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_sensors::sched_ext::State;

    fn fine() -> Kernel {
        Kernel {
            root: true,
            release: "7.2.13".to_owned(),
            btf: true,
            state: Some(State::Disabled),
            ops: None,
            rejected: Some(0),
            whole: Some(false),
            loads: Some(0),
            nohz_full: None,
        }
    }

    fn check(kernel: &Kernel, last: &str, replace: bool, expect: &[&str]) {
        let functions = [("scx_bpf_kick_cpu".to_owned(), ["cpu", "flags", last].map(str::to_owned).to_vec())];
        let found = obstacles(kernel, &functions, replace);
        assert_eq!(found.len(), expect.len(), "{found:?}");
        for (obstacle, part) in found.iter().zip(expect) {
            assert!(obstacle.contains(part), "{obstacle:?} lacks {part:?}");
        }
    }

    #[test]
    fn each_obstacle_has_its_way_out() {
        check(&fine(), "more", false, &[]);
        check(&fine(), "aux", false, &["1 with an argument too many: scx_bpf_kick_cpu"]);
        let ours = Kernel { state: Some(State::Enabled), ops: Some("commensal_0.1".to_owned()), ..fine() };
        check(&ours, "more", false, &["--replace"]);
        check(&ours, "more", true, &[]);
        let nohz_full = Some("2-3".to_owned());
        check(
            &Kernel { nohz_full: nohz_full.clone(), ..fine() },
            "more",
            false,
            &["CPUs 2-3 run without a tick"],
        );
        check(
            &Kernel { root: false, state: None, nohz_full, ..fine() },
            "more",
            false,
            &["root", "no sched_ext", "nohz"],
        );
    }
}
