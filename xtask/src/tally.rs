//! Counts results in the output of test runs: passed, failed and skipped tests, and rows of the conformance script by
//! kernel.

use anyhow::bail;
use std::collections::BTreeMap;
use std::time::Instant;

/// Totals of the test runs in one place (this machine or one guest); in the end, of all places.
#[derive(Debug, Default)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    /// Number of tests that belong to another tier.
    pub elsewhere: usize,
    /// Tests that failed while the machine gave no CPU time, by name: neither passed nor failed.
    undecided: Vec<String>,
    /// Tests that returned early, with the reasons. The test harness counts them as passed.
    returned: BTreeMap<String, Vec<String>>,
    /// Tests and steps that were not started, as `what: reason`.
    not_started: Vec<String>,
    /// Rows of the conformance script that did not run, by kernel and reason.
    rows: BTreeMap<(String, String), usize>,
    /// For each kernel, the numbers of rows of the conformance script that ran and that did not run.
    kernels: Vec<(String, usize, usize)>,
    /// Tests that failed, by name.
    failures: Vec<String>,
}

impl Tally {
    /// Processes a line of the output of a test program in a guest.
    pub fn line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result:") {
            self.passed += number_before(rest, " passed");
            self.failed += number_before(rest, " failed");
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("skipped: ") {
            let (test, reason) = rest.split_once(": ").unwrap_or((rest, ""));
            self.returned(test, reason);
        } else {
            self.rows(line);
        }
    }

    /// Processes the result of a test that ran in a separate process.
    pub fn test(&mut self, title: &str, passed: bool, output: &[String]) {
        output.iter().for_each(|line| self.rows(line));
        if !passed {
            self.failed += 1;
            self.failures.push(title.to_owned());
            return;
        }
        self.passed += 1;
        for skip in output.iter().filter_map(|line| line.strip_prefix("skipped: ")) {
            let reason = skip.split_once(": ").map_or(skip, |(_, reason)| reason);
            self.returned(title, reason);
        }
    }

    fn returned(&mut self, test: &str, reason: &str) {
        let reasons = self.returned.entry(test.to_owned()).or_default();
        if !reasons.iter().any(|other| other == reason) {
            reasons.push(reason.to_owned());
        }
    }

    /// Processes a line if it is about rows of the conformance script.
    fn rows(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("row skipped: ") {
            let reason = rest.rsplit(": ").next().unwrap_or(rest).to_owned();
            *self.rows.entry((String::new(), reason)).or_default() += 1;
        } else if let Some(rest) = line.strip_prefix("kernel: ") {
            let (ran, skipped) = (number_before(rest, " rows ran"), number_before(rest, " skipped"));
            self.kernels.push((String::new(), ran, skipped));
        }
    }

    /// Number of rows of the conformance script that ran.
    pub fn rows_ran(&self) -> usize {
        self.kernels.iter().map(|(_, ran, _)| ran).sum()
    }

    /// Tests that failed, by name.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Takes a failure back out of the failed tests, because the machine gave the test no CPU time.
    pub fn undecide(&mut self, title: &str) {
        if let Some(at) = self.failures.iter().position(|name| name == title) {
            self.undecided.push(self.failures.remove(at));
            self.failed -= 1;
        }
    }

    /// Fails if a test failed, or if nothing can be said of one.
    pub fn result(&self) -> anyhow::Result<()> {
        if self.failed > 0 {
            bail!("{} failed", self.failed);
        }
        if !self.undecided.is_empty() {
            bail!("the machine gave {} tests no CPU time: run them again", self.undecided.len());
        }
        Ok(())
    }

    /// Records a test or step that could not be started.
    pub fn skip(&mut self, what: String) {
        self.not_started.push(what);
    }

    /// Assigns all results so far to this kernel. `skips` is a prefix for the names of skipped and failed tests.
    pub fn on(mut self, kernel: &str, skips: Option<&str>) -> Tally {
        self.rows =
            self.rows.into_iter().map(|((_, why), count)| ((kernel.to_owned(), why), count)).collect();
        for (name, _, _) in &mut self.kernels {
            kernel.clone_into(name);
        }
        if let Some(place) = skips {
            let of_place = |name: &str| format!("{place}: {name}");
            self.returned =
                self.returned.into_iter().map(|(test, reasons)| (of_place(&test), reasons)).collect();
            for name in self.not_started.iter_mut().chain(&mut self.failures).chain(&mut self.undecided) {
                *name = of_place(name);
            }
        }
        self
    }

    /// Adds the tally of another place.
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.elsewhere += other.elsewhere;
        self.returned.extend(other.returned);
        self.not_started.extend(other.not_started);
        self.kernels.extend(other.kernels);
        self.failures.extend(other.failures);
        self.undecided.extend(other.undecided);
        for (key, count) in other.rows {
            *self.rows.entry(key).or_default() += count;
        }
    }

    /// Counts a complete run of the lab, by its exit status.
    pub fn long_run(&mut self, status: Option<i32>) {
        // Every verdict counts as passed; only an error counts as failed.
        match status {
            Some(0 | 1 | 3 | 4) => self.passed += 1,
            _ => self.failed += 1,
        }
    }

    /// Prints the summary, which ends with `N passed, N failed, N skipped`.
    pub fn print(&self, started: Instant) {
        println!();
        for ((kernel, reason), count) in &self.rows {
            println!("conformance rows not run on {kernel}: {count} ({reason})");
        }
        for (test, reasons) in &self.returned {
            println!("skipped: {test}: {}", reasons.join("; "));
        }
        for what in &self.not_started {
            println!("skipped: {what}");
        }
        if !self.kernels.is_empty() {
            println!("conformance rows by kernel:");
        }
        let width = self.kernels.iter().map(|(kernel, _, _)| kernel.len()).max().unwrap_or(0);
        for (kernel, ran, skipped) in &self.kernels {
            println!("  {kernel:width$}  {ran:>4} ran, {skipped:>4} skipped");
        }
        if self.elsewhere > 0 {
            println!("{} tests belong to other tiers: cargo xtask test --help", self.elsewhere);
        }
        for name in &self.undecided {
            println!("no CPU: {name}");
        }
        for name in &self.failures {
            println!("failed: {name}");
        }
        println!("{} s", started.elapsed().as_secs());
        if !self.undecided.is_empty() {
            println!("{} not decided: the machine gave no CPU", self.undecided.len());
        }
        let passed = self.passed.saturating_sub(self.returned.len());
        let skipped = self.returned.len() + self.not_started.len();
        println!("{passed} passed, {} failed, {skipped} skipped", self.failed);
    }
}

/// The number directly before `word`; 0 when there is none.
fn number_before(text: &str, word: &str) -> usize {
    let before = text.split(word).next().unwrap_or_default();
    before.split_whitespace().next_back().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Hides the output of passed tests and the skipped rows, which are only counted.
#[derive(Debug, Default)]
pub struct Quiet(bool);

impl Quiet {
    /// Whether the line is to be printed.
    pub fn shows(&mut self, line: &str) -> bool {
        match line {
            "successes:" => self.0 = true,
            "failures:" => self.0 = false,
            _ => {}
        }
        let closes = line.starts_with("test result:");
        self.0 &= !closes;
        // After a failed run of the conformance script, the lines of skipped rows would hide those of failed rows.
        // Summaries of single test programs are hidden as well, because the totals are printed at the end.
        !self.0 && !closes && !line.starts_with("row skipped: ")
    }
}

/// Release of the running kernel, such as `6.18.44`.
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
        assert_eq!(tally.returned["a_full_disk"], ["unshare: No such file or directory"]);
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
        assert_eq!(all.returned["v1: a_full_disk"], ["unshare: No such file or directory"]);
        let kernels: Vec<&str> = all.kernels.iter().map(|(kernel, _, _)| kernel.as_str()).collect();
        assert_eq!(kernels, ["machine 6.18", "VM v1 6.1"]);
        assert!(all.rows.keys().any(|(kernel, _)| kernel == "VM v1 6.1"));
    }

    #[test]
    fn a_test_of_its_own_process_counts_once() {
        let mut tally = Tally::default();
        let output: Vec<String> =
            RUN.lines().map(str::to_owned).chain(["skipped: b: no disk".to_owned()]).collect();
        tally.test("host real::a", true, &output);
        tally.test("host real::b", true, &[]);
        tally.test("host real::c", false, &output);
        assert_eq!((tally.passed, tally.failed), (2, 1));
        assert_eq!(tally.failures, ["host real::c"]);
        assert_eq!(tally.returned["host real::a"], ["unshare: No such file or directory", "no disk"]);
        assert_eq!((tally.returned.len(), tally.kernels.len()), (1, 2));
    }

    #[test]
    fn a_test_without_a_cpu_neither_passed_nor_failed() {
        let mut tally = Tally::default();
        for (title, passed) in [("host a", true), ("host b", false), ("host c", false)] {
            tally.test(title, passed, &[]);
        }
        tally.undecide("host b");
        assert_eq!((tally.passed, tally.failed, tally.undecided.len()), (1, 1, 1));
        assert_eq!(tally.result().unwrap_err().to_string(), "1 failed");
        tally.undecide("host a");
        tally.undecide("host c");
        assert_eq!((tally.passed, tally.failed, tally.undecided.len()), (1, 0, 2));
        assert!(tally.result().unwrap_err().to_string().contains("2 tests no CPU time"));
    }

    #[test]
    fn only_failures_show_their_output() {
        let text = "running 1 test\nsuccesses:\nchatter\nfailures:\nrow skipped: 21: no\nwhy\ntest result: FAILED. 1 passed; 1 failed;";
        let mut quiet = Quiet::default();
        let shown: Vec<&str> = text.lines().filter(|line| quiet.shows(line)).collect();
        assert_eq!(shown, ["running 1 test", "failures:", "why"]);
    }
}
