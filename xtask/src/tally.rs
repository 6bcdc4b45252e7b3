//! Counts what test runs print: results, skipped tests, and rows of the conformance script by kernel.

use std::collections::BTreeMap;
use std::time::Instant;

/// What the runs of one place (this machine, or one guest) came to, and then of all of them.
#[derive(Debug, Default)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    /// `test: reason`, of tests that returned early: the harness has counted them as passed.
    returned: Vec<String>,
    /// `what: reason`, of what was not even started.
    not_started: Vec<String>,
    /// Rows of the conformance script that did not run, by kernel and reason.
    rows: BTreeMap<(String, String), usize>,
    /// Rows of the conformance script that ran and that did not, by kernel.
    kernels: Vec<(String, usize, usize)>,
    /// Tests that failed, by name.
    failures: Vec<String>,
    /// Tests that failed beside others and passed by themselves.
    second: Vec<String>,
}

/// More failures than that are no accident of a busy machine.
const MOST_AGAIN: usize = 12;

impl Tally {
    /// Takes one line of a test run's output.
    pub fn line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result:") {
            self.passed += number_before(rest, " passed");
            self.failed += number_before(rest, " failed");
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("skipped: ") {
            self.returned.push(rest.to_owned());
        } else if let Some(rest) = line.strip_prefix("row skipped: ") {
            let reason = rest.rsplit(": ").next().unwrap_or(rest).to_owned();
            *self.rows.entry((String::new(), reason)).or_default() += 1;
        } else if let Some(rest) = line.strip_prefix("kernel: ") {
            let (ran, skipped) = (number_before(rest, " rows ran"), number_before(rest, " skipped"));
            self.kernels.push((String::new(), ran, skipped));
        }
    }

    /// The tests that get a second run, one after the other and by themselves: others of the suite use every CPU, and so
    /// do neighbours of a virtual machine, for seconds at a time. `None`: nothing failed, or too much for an accident,
    /// or something failed that has no name (a program that died, or did not build).
    pub fn wants_again(&self) -> Option<&[String]> {
        let named = self.failures.len() == self.failed;
        (named && (1..=MOST_AGAIN).contains(&self.failed)).then_some(&*self.failures)
    }

    /// Takes the outcome of that second run: who passes there has passed, and is told at the end.
    pub fn again(&mut self, alone: &Tally) {
        // A run that broke off proves nothing.
        if alone.passed + alone.failed < self.failures.len() || alone.failures.len() != alone.failed {
            return;
        }
        let (failed, passed): (Vec<String>, Vec<String>) =
            self.failures.drain(..).partition(|name| alone.failures.contains(name));
        self.failed = failed.len();
        self.passed += passed.len();
        self.failures = failed;
        self.second.extend(passed);
    }

    /// Rows of the conformance script that ran.
    pub fn rows_ran(&self) -> usize {
        self.kernels.iter().map(|(_, ran, _)| ran).sum()
    }

    /// Something that could not be started at all.
    pub fn skip(&mut self, what: String) {
        self.not_started.push(what);
    }

    /// Says on which kernel everything so far happened; `skips` stands in front of what was skipped.
    pub fn on(mut self, kernel: &str, skips: Option<&str>) -> Tally {
        self.rows =
            self.rows.into_iter().map(|((_, why), count)| ((kernel.to_owned(), why), count)).collect();
        for (name, _, _) in &mut self.kernels {
            kernel.clone_into(name);
        }
        if let Some(place) = skips {
            let named = self.returned.iter_mut().chain(&mut self.not_started);
            for skip in named.chain(&mut self.failures).chain(&mut self.second) {
                *skip = format!("{place}: {skip}");
            }
        }
        self
    }

    /// Adds the tally of another place.
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.returned.extend(other.returned);
        self.not_started.extend(other.not_started);
        self.kernels.extend(other.kernels);
        self.failures.extend(other.failures);
        self.second.extend(other.second);
        for (key, count) in other.rows {
            *self.rows.entry(key).or_default() += count;
        }
    }

    /// Counts a whole run of the lab.
    pub fn long_run(&mut self, status: Option<i32>) {
        // Every verdict is a result; only trouble is a failure.
        match status {
            Some(0 | 1 | 3 | 4) => self.passed += 1,
            _ => self.failed += 1,
        }
    }

    /// Closes with `N passed, N failed, N skipped`.
    pub fn print(&self, started: Instant) {
        println!();
        for ((kernel, reason), count) in &self.rows {
            println!("conformance rows not run on {kernel}: {count} ({reason})");
        }
        for skip in self.returned.iter().chain(&self.not_started) {
            println!("skipped: {skip}");
        }
        if !self.kernels.is_empty() {
            println!("conformance rows by kernel:");
        }
        let width = self.kernels.iter().map(|(kernel, _, _)| kernel.len()).max().unwrap_or(0);
        for (kernel, ran, skipped) in &self.kernels {
            println!("  {kernel:width$}  {ran:>4} ran, {skipped:>4} skipped");
        }
        for name in &self.second {
            println!("failed beside others, passed by itself in a second run: {name}");
        }
        for name in &self.failures {
            println!("failed: {name}");
        }
        println!("{} s", started.elapsed().as_secs());
        let passed = self.passed.saturating_sub(self.returned.len());
        let skipped = self.returned.len() + self.not_started.len();
        println!("{passed} passed, {} failed, {skipped} skipped", self.failed);
    }
}

/// The number that stands right before `word`; 0 when there is none.
fn number_before(text: &str, word: &str) -> usize {
    let before = text.split(word).next().unwrap_or_default();
    before.split_whitespace().next_back().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Leaves out what passed tests printed, and rows that were skipped: both are there to be counted.
#[derive(Debug, Default)]
pub struct Quiet(bool);

impl Quiet {
    /// Whether a person wants to see the line.
    pub fn shows(&mut self, line: &str) -> bool {
        match line {
            "successes:" => self.0 = true,
            "failures:" => self.0 = false,
            _ => {}
        }
        self.0 &= !line.starts_with("test result:");
        // A failed run of the conformance script would drown its wrong rows in these.
        !self.0 && !line.starts_with("row skipped: ")
    }
}

/// `6.18.44`, from the running kernel.
pub fn running_release() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "\
test real::exits_and_signals ... ok
successes:
kernel: 290 rows ran, 150 skipped
row skipped: 21: no v1 hierarchy with cpu
row skipped: 22: no v1 hierarchy with cpu
skipped: a_full_disk: unshare: No such file or directory
test result: ok. 14 passed; 0 failed; 0 ignored; 0 measured; 40 filtered out; finished in 3.10s
test result: FAILED. 9 passed; 2 failed; 0 ignored; 0 measured; 40 filtered out; finished in 3.10s";

    fn of(text: &str) -> Tally {
        let mut tally = Tally::default();
        text.lines().for_each(|line| tally.line(line));
        tally
    }

    #[test]
    fn lines_are_counted() {
        let tally = of(RUN);
        assert_eq!((tally.passed, tally.failed), (23, 2));
        assert_eq!(tally.returned, ["a_full_disk: unshare: No such file or directory"]);
        let reason = (String::new(), "no v1 hierarchy with cpu".to_owned());
        assert_eq!(tally.rows, BTreeMap::from([(reason, 2)]));
        assert_eq!(tally.kernels, [(String::new(), 290, 150)]);
    }

    #[test]
    fn places_keep_their_names() {
        let mut all = of(RUN).on("machine 6.18", None);
        all.add(of(RUN).on("VM v1 6.1", Some("v1")));
        all.skip("kernel tests in VMs: v2: no QEMU".to_owned());
        assert_eq!((all.passed, all.failed, all.returned.len(), all.not_started.len()), (46, 4, 2, 1));
        assert_eq!(all.returned[1], "v1: a_full_disk: unshare: No such file or directory");
        let kernels: Vec<&str> = all.kernels.iter().map(|(kernel, _, _)| kernel.as_str()).collect();
        assert_eq!(kernels, ["machine 6.18", "VM v1 6.1"]);
        assert!(all.rows.keys().any(|(kernel, _)| kernel == "VM v1 6.1"));
    }

    #[test]
    fn a_second_run_alone_decides() {
        let first =
            "test a ... ok\ntest b ... FAILED\ntest c ... FAILED\ntest result: FAILED. 1 passed; 2 failed;";
        let mut tally = of(first);
        assert_eq!(tally.wants_again().unwrap(), ["b", "c"]);
        // One that broke off, and one that ran.
        tally.again(&of("test b ... ok"));
        assert_eq!((tally.passed, tally.failed), (1, 2));
        tally.again(&of("test b ... ok\ntest c ... FAILED\ntest result: FAILED. 1 passed; 1 failed;"));
        assert_eq!(
            (tally.passed, tally.failed, tally.second.as_slice()),
            (2, 1, ["b".to_owned()].as_slice())
        );
        assert_eq!(tally.failures, ["c"]);
    }

    #[test]
    fn what_is_no_accident_gets_no_second_run() {
        assert!(of("test result: ok. 3 passed; 0 failed;").wants_again().is_none());
        // Two failed and one is named.
        assert!(of("test a ... FAILED\ntest result: FAILED. 0 passed; 2 failed;").wants_again().is_none());
        let many: String = (0..=MOST_AGAIN).map(|n| format!("test t{n} ... FAILED\n")).collect();
        let all = format!("{many}test result: FAILED. 0 passed; {} failed;", MOST_AGAIN + 1);
        assert!(of(&all).wants_again().is_none());
    }

    #[test]
    fn only_failures_show_their_output() {
        let text = "running 1 test\nsuccesses:\nchatter\nfailures:\nrow skipped: 21: no\nwhy\ntest result: FAILED. 1 passed; 1 failed;";
        let mut quiet = Quiet::default();
        let shown: Vec<&str> = text.lines().filter(|line| quiet.shows(line)).collect();
        assert_eq!(shown, ["running 1 test", "failures:", "why", "test result: FAILED. 1 passed; 1 failed;"]);
    }
}
