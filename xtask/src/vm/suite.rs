//! The kernel tests in guests: which tests run, where their programs are, and the script that runs them.

use super::image::Image;
use crate::artifact::{self, Artifact};
use anyhow::Context;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A selection of tests: for each package, filters for its integration test program.
pub type Filters = &'static [(&'static str, &'static [&'static str])];
const OF_HOST: (&str, &[&str]) = ("commensal-host", &["kernel_conforms", "real::"]);
const OF_RECONCILE: (&str, &[&str]) = ("commensal-reconcile", &["on_machine::a_quota"]);
/// Tests whose result depends on the kernel.
pub const OF_KERNELS: Filters = &[
    OF_HOST,
    OF_RECONCILE,
    (
        "commensal",
        &[
            "on_machine::",
            "limits::",
            "unified::",
            "expel::",
            "a_report_for_people",
            // Tests of the files that the agent reads and writes. The tests of the agent's exit do not depend on the
            // kernel.
            "agent::it_puts_back",
            "agent::offline_work_is_kept",
        ],
    ),
    // Tests that depend on the kernel's structures and hierarchies; the other tests of the probe run in one guest only.
    ("commensal-blame", &["agreement::", "other_groups", "the_nearest_group_counts"]),
];
/// [`OF_KERNELS`], and tests that need a core with two hardware threads, a disk or a CPU that can go offline.
pub const OF_NEWEST: Filters = &[
    OF_HOST,
    OF_RECONCILE,
    (
        "commensal",
        &[
            "on_machine::",
            "limits::",
            "unified::",
            "expel::",
            "a_report_for_people",
            "agent::it_puts_back",
            "agent::disks::",
            "agent::figures::",
            "agent::offline_work_is_kept",
            "agent::a_group_at_its_memory_limit",
        ],
    ),
    (
        "commensal-blame",
        &[
            "agreement::",
            "other_groups",
            "the_nearest_group_counts",
            "work_on_a_sibling_overlaps",
            "who_leaves_a_sibling_first",
        ],
    ),
];
/// [`OF_NEWEST`] with all tests of the probe. The tests of the probe always run on the machine's own kernel; on an
/// emulated CPU they take five minutes.
pub const ALL_OF_NEWEST: Filters = &[
    OF_HOST,
    OF_RECONCILE,
    (
        "commensal",
        &[
            "on_machine::",
            "limits::",
            "unified::",
            "expel::",
            "blame::",
            "agent::it_puts_back",
            "agent::disks::",
            "agent::figures::",
            "agent::offline_work_is_kept",
            "agent::a_group_at_its_memory_limit",
        ],
    ),
    ("commensal-blame", &["agreement::", "conservation::", "subjects::"]),
];
/// Tests of coexistence with systemd.
pub const OF_SYSTEMD: Filters = &[("commensal", &["systemd::"])];
/// Tests of the scheduler's systemd unit.
pub const OF_SYSTEMD_SCHED: Filters = &[("commensal", &["systemd::scheduler::"])];
/// Tests of the scheduler on two cores that take two minutes: refusals, loading and unloading, and the commands. Their
/// results do not depend on how steadily an emulated CPU runs.
pub const OF_SCHED: Filters = &[
    (
        "commensal-sched",
        &[
            "smt2::refusals::",
            "obstacles::",
            "smt2::life::every_thread_gets_its_own_back",
            "smt2::life::what_a_killed_loader_leaves",
            "smt2::life::another_process_takes_over",
        ],
    ),
    ("commensal", &["sched::"]),
];
/// All tests of the scheduler on two cores, including those that take minutes.
pub const ALL_OF_SCHED: Filters =
    &[("commensal-sched", &["smt2::", "obstacles::", "probe::"]), ("commensal", &["sched::"])];
/// Tests that load the scheduler repeatedly under load.
pub const OF_SCHED_LOADS: Filters = &[("commensal-sched", &["long::"])];
/// Tests that need a larger number of cores.
pub const OF_SCHED_WIDE: Filters =
    &[("commensal-sched", &["wide::", "online_threads", "groups_share", "affinity_hotplug"])];
/// Tests on cores of four hardware threads.
pub const OF_SCHED_SMT4: Filters = &[("commensal-sched", &["smt4::"])];
/// Tests on a kernel that cannot load the scheduler.
pub const OF_SCHED_BROKEN: Filters = &[("commensal-sched", &["broken::"])];
/// Name of the integration test programs.
const INTEGRATION: &str = "it";
/// Programs that tests start by absolute path.
const PROGRAMS: [&str; 2] = ["commensal", "commensal-sched"];

/// The test programs of a build.
#[derive(Debug)]
pub struct Suite {
    /// Package, its folder, and its test program.
    tests: Vec<(&'static str, PathBuf, PathBuf)>,
    programs: Vec<PathBuf>,
}

impl Suite {
    /// Builds the tests, unless they have been built already.
    pub fn build() -> anyhow::Result<Suite> {
        // The SQL engine has no kernel tests, and building it takes long.
        let which = ["--workspace", "--exclude", crate::tree::SQL];
        let features = crate::features::OF_TESTS;
        let which = [&which, &features[..], crate::features::without_scheduler()].concat();
        Suite::find(&artifact::messages(&which)?)
    }

    /// Finds the test programs in cargo's messages.
    fn find(messages: &str) -> anyhow::Result<Suite> {
        let artifacts: Vec<Artifact> = messages.lines().filter_map(Artifact::read).collect();
        let mut tests = Vec::new();
        let packages: BTreeSet<&str> =
            OF_KERNELS.iter().chain(OF_SCHED).map(|(package, _)| *package).collect();
        for package in packages {
            let test = artifacts
                .iter()
                .find(|one| one.package == package && one.kind == "test" && one.name == INTEGRATION);
            let test = test.with_context(|| format!("{package} has no integration test {INTEGRATION}"))?;
            tests.push((package, test.folder.clone(), test.executable.clone()));
        }
        let mut programs = Vec::new();
        for name in PROGRAMS {
            let program = artifacts.iter().find(|one| one.kind == "bin" && one.name == name && !one.is_test);
            let program = program.with_context(|| format!("cargo built no program {name}"))?;
            programs.push(program.executable.clone());
        }
        Ok(Suite { tests, programs })
    }

    /// Copies the programs and directories to the same paths as on this machine, because these paths are compiled into
    /// the tests.
    pub fn add_to(&self, image: &Image, wanted: Filters) -> anyhow::Result<()> {
        for program in &self.programs {
            image.add_stripped(program, program)?;
        }
        for (folder, test, _) in self.programs(wanted) {
            image.add_stripped(test, test)?;
            image.folder(folder)?;
        }
        // If stress-ng is missing, the test that needs it is skipped with a message.
        let stress = Path::new("/usr/bin/stress-ng");
        if wanted == OF_SCHED_LOADS && stress.exists() {
            image.add(stress, stress)?;
        }
        Ok(())
    }

    /// Generates the shell script that runs these tests.
    pub fn script(&self, wanted: Filters) -> String {
        // Both outputs share one stream, so that a panic appears next to its test.
        let mut script = "exec 2>&1\nstatus=0\n".to_owned();
        for (folder, test, filters) in self.programs(wanted) {
            let (folder, test) = (quoted(&folder.display().to_string()), quoted(&test.display().to_string()));
            // A filter that matches nothing would otherwise pass silently.
            for filter in filters {
                let _ = writeln!(
                    script,
                    "{test} {filter} --list | grep -q ': test$' || {{ echo 'no test is called {filter}'; status=1; }}"
                );
            }
            let filters = filters.join(" ");
            let _ = writeln!(
                script,
                "cd {folder} && {test} {filters} --show-output --test-threads=1 || status=1"
            );
        }
        script + "exit $status\n"
    }

    /// Returns folder, program and filters of these tests.
    fn programs(&self, wanted: Filters) -> impl Iterator<Item = (&Path, &Path, &'static [&'static str])> {
        wanted.iter().filter_map(|(package, filters)| {
            let (_, folder, test) = self.tests.iter().find(|(name, _, _)| name == package)?;
            Some((folder.as_path(), test.as_path(), *filters))
        })
    }
}

/// Quotes a word for a shell.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(package: &str, kind: &str, name: &str, test: bool, executable: &str) -> String {
        serde_json::json!({
            "reason": "compiler-artifact", "manifest_path": format!("/src/{package}/Cargo.toml"),
            "target": { "kind": [kind], "name": name }, "profile": { "test": test },
            "executable": executable,
        })
        .to_string()
    }

    #[test]
    fn programs_are_found_among_messages() {
        let messages = [
            "not json".to_owned(),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            message("commensal-core", "lib", "commensal_core", true, "/t/core"),
            message("commensal", "bin", "commensal", true, "/t/unit-tests-of-the-program"),
            message("commensal", "bin", "commensal", false, "/t/commensal"),
            message("commensal", "test", "it", true, "/t/it-1"),
            message("commensal-host", "test", "it", true, "/t/it-2"),
            message("commensal-blame", "test", "it", true, "/t/it-4"),
            message("commensal-reconcile", "test", "it", true, "/t/it-5"),
            message("commensal-sched", "bin", "commensal-sched", false, "/t/commensal-sched"),
            message("commensal-sched", "test", "it", true, "/t/it-3"),
        ];
        let suite = Suite::find(&messages.join("\n")).unwrap();
        assert_eq!(suite.programs, [Path::new("/t/commensal"), Path::new("/t/commensal-sched")]);
        let script = suite.script(OF_KERNELS);
        assert!(
            script.contains("cd '/src/commensal-host' && '/t/it-2' kernel_conforms real:: --show-output"),
            "{script}"
        );
        assert!(script.contains("'/t/it-1' on_machine:: limits:: "), "{script}");
        let script = suite.script(OF_SYSTEMD);
        assert!(script.contains("'/t/it-1' systemd:: ") && !script.contains("/t/it-2"), "{script}");
        assert!(Suite::find("").is_err());
    }

    #[test]
    fn words_stay_words() {
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
