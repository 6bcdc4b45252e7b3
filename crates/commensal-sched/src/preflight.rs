//! Reasons why the scheduler cannot be loaded here, found before anything is changed, with what to do about them.

use commensal_sensors::sched_ext::Kernel;

/// All obstacles. `functions` are the kernel functions that are called, as the kernel describes them: name and argument
/// names. `replace`: a commensal scheduler may be loaded, because this one takes over from it.
#[must_use]
pub fn obstacles(kernel: &Kernel, functions: &[(String, Vec<String>)], replace: bool) -> Vec<String> {
    let mut wrong = kernel.obstacles();
    wrong.extend(kernel.taken(replace));
    let release = &kernel.release;
    let broken = malformed(functions);
    if !broken.is_empty() {
        wrong.push(format!(
            "kernel {release} describes functions of sched_ext wrongly ({} with an argument too many: {}), so no scheduler can be \
             loaded; it was built with a pahole that is too old (dwarves 1.31 or newer is right), another build of the kernel has it \
             (Debian: 7.2.13 of sid or newer, not 7.2.12 of trixie-backports)",
            broken.len(),
            broken.join(", ")
        ));
    }
    if let Some(cpus) = &kernel.nohz_full {
        wrong.push(format!(
            "CPUs {cpus} run without a tick (nohz_full): the kernel has frozen there with sched_ext (7.1, 7.2), and the backstop of noise \
             clean is the tick; boot without nohz_full"
        ));
    }
    wrong
}

/// Functions with the hidden argument, which only the kernel's internal variant has.
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
