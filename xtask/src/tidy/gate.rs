//! Keeps the gate deterministic: rules for test code outside the modules of the other tiers (`measure`, `external`, `guest`),
//! and for the ledger of flaky tests, which none of the gate's may be in.

use anyhow::Context;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Modules of the other tiers.
const TIERS: [&str; 3] = ["measure", "external", "guest"];
/// What test code of the gate does not contain, and what to do instead.
const REFUSED: [(&str, &str); 6] = [
    ("thread::sleep(", "wait for a condition (commensal_testkit::until)"),
    (".elapsed()", "a test that looks at the time that has passed belongs to the module measure"),
    ("Mutex<()>", "each test is a process of its own, which a mutex does not exclude: use a lock file"),
    ("probe::count()", "probes of other processes count as well: look at those of the test's own processes"),
    ("ns_last_pid", "it belongs to the whole machine: use a PID namespace of the test's own"),
    ("time::sleep(", "wait for a condition, or pause the clock (start_paused)"),
];
/// Waits for something that should succeed, and the shortest deadline that a busy machine keeps.
const WAIT: &str = "within(Duration::from_";
const SHORTEST: Duration = Duration::from_secs(10);
/// The ledger, relative to the top of the tree.
const LEDGER: &str = ".config/flaky.toml";
/// Maximum number of entries, and longest time from the first failure to the end.
const MOST: usize = 3;
const LONGEST: Duration = Duration::from_secs(14 * 24 * 3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Checks all sources and the ledger.
pub fn check(root: &Path, files: &[PathBuf], problems: &mut Vec<String>) -> anyhow::Result<()> {
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        problems.extend(of_file(&name, &std::fs::read_to_string(path)?));
    }
    let path = root.join(LEDGER);
    if path.exists() {
        let text = std::fs::read_to_string(path).context(LEDGER)?;
        problems.extend(of_ledger(&text, SystemTime::now())?);
    }
    Ok(())
}

/// Lists what a file's test code may not contain.
fn of_file(name: &str, text: &str) -> Vec<String> {
    let of_other_tier = |part: &str| TIERS.contains(&part.trim_end_matches(".rs"));
    // The tools for tests name what they look for, and test waiting itself.
    let tool = name.starts_with("xtask/") || name.starts_with("crates/commensal-testkit/");
    if tool || name.split('/').any(of_other_tier) {
        return Vec::new();
    }
    let all = name.contains("/tests/") || name.ends_with("/tests.rs");
    let paused = text.contains("start_paused") || text.contains("paused clock");
    let mut problems = Vec::new();
    // The indentation of the module of another tier that the line is in.
    let mut elsewhere: Option<usize> = None;
    let mut in_tests = all;
    let mut attribute = false;
    for (index, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        in_tests |= attribute && code.starts_with("mod tests {");
        attribute = code == "#[cfg(test)]" || (attribute && code.starts_with("#["));
        match elsewhere {
            Some(at) if indent == at && code == "}" => elsewhere = None,
            Some(_) => continue,
            None if TIERS.iter().any(|tier| code == format!("mod {tier} {{")) => elsewhere = Some(indent),
            None => {}
        }
        if !in_tests || elsewhere.is_some() || code.starts_with("//") {
            continue;
        }
        for (word, instead) in REFUSED {
            // On a paused clock, sleeping and looking at the time are deterministic.
            if code.contains(word) && !(paused && ["time::sleep(", ".elapsed()"].contains(&word)) {
                problems.push(format!("{name}:{}: a test of the gate contains {word}: {instead}", index + 1));
            }
        }
        if short_wait(code).is_some_and(|wait| wait < SHORTEST) {
            let least = SHORTEST.as_secs();
            problems.push(format!(
                "{name}:{}: a test of the gate waits less than {least} s: use until",
                index + 1
            ));
        }
    }
    problems
}

/// The literal deadline of a wait.
fn short_wait(code: &str) -> Option<Duration> {
    let (before, rest) = code.split_once(WAIT)?;
    // `holds_within` also checks that something does not happen.
    if before.ends_with('_') {
        return None;
    }
    let (unit, rest) = rest.split_once('(')?;
    let number: u64 = rest.split(')').next()?.replace('_', "").parse().ok()?;
    match unit {
        "millis" => Some(Duration::from_millis(number)),
        "secs" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ledger {
    #[serde(default)]
    flaky: Vec<Flaky>,
}

/// A test that is known to fail now and then.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Flaky {
    /// Package and path of the test.
    test: String,
    cause: String,
    /// How often it failed, such as `7 of 212`.
    rate: String,
    /// First day, and the day by which the test is mended (YYYY-MM-DD).
    since: String,
    until: String,
}

fn of_ledger(text: &str, now: SystemTime) -> anyhow::Result<Vec<String>> {
    let ledger: Ledger = toml::from_str(text).context(LEDGER)?;
    let mut problems = Vec::new();
    if ledger.flaky.len() > MOST {
        problems.push(format!("{LEDGER}: {} tests, and at most {MOST} may be flaky", ledger.flaky.len()));
    }
    for one in &ledger.flaky {
        let test = &one.test;
        let mut say = |what: &str| problems.push(format!("{LEDGER}: {test} {what}"));
        if !TIERS.iter().any(|tier| test.contains(&format!("{tier}::"))) {
            say("is in the gate, where no test may be flaky: move it to another tier");
        }
        if one.cause.is_empty() || one.rate.is_empty() {
            say("has no cause or no rate");
        }
        let day = |text: &str| humantime::parse_rfc3339(&format!("{text}T00:00:00Z"));
        let (Ok(since), Ok(until)) = (day(&one.since), day(&one.until)) else {
            say("has no days (YYYY-MM-DD)");
            continue;
        };
        if until.duration_since(since).map_or(true, |time| time > LONGEST) {
            say("ends more than 14 days after its first day, or before it");
        }
        // Otherwise a first day in the future would put the end off.
        if since > now + DAY {
            say("begins in the future");
        }
        // The last day counts whole.
        if now > until + DAY {
            say("was to be mended by now: mend it, move it or delete it");
        }
    }
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_depends_on_time_is_found_in_the_gate_only() {
        let test = |body: &str| format!("#[cfg(test)]\nmod tests {{\n    {body}\n}}\n");
        let lines = |name: &str, text: &str| of_file(name, text).len();
        let unit = "crates/a/src/b.rs";
        for body in [
            "std::thread::sleep(PAUSE);",
            "assert!(began.elapsed() < LONG);",
            "static ALONE: Mutex<()> = Mutex::new(());",
            "tokio::time::sleep(PAUSE).await;",
            "within(Duration::from_secs(9), \"x\", || true);",
            "within(Duration::from_millis(9_000), \"x\", || true);",
        ] {
            assert_eq!(lines(unit, &test(body)), 1, "{body}");
            assert_eq!(lines("crates/a/tests/it/b.rs", body), 1, "{body}");
            assert_eq!(lines("crates/a/tests/it/measure/b.rs", body), 0, "{body}");
            assert_eq!(lines("crates/a/tests/it/measure.rs", body), 0, "{body}");
            let inline = format!("mod measure {{\n        {body}\n    }}");
            assert_eq!(lines(unit, &test(&inline)), 0, "{body}");
            assert_eq!(lines(unit, &test(&format!("{inline}\n    {body}"))), 1, "{body}");
            assert_eq!(lines(unit, body), 0, "{body} in the product");
            assert_eq!(lines(unit, &test(&format!("// {body}"))), 0, "{body} in a comment");
        }
        for body in [
            "within(Duration::from_secs(10), \"x\", || true);",
            "throughout(Duration::from_millis(20), \"x\", || true);",
            "assert!(!holds_within(Duration::from_millis(20), || false));",
        ] {
            assert_eq!(lines(unit, &test(body)), 0, "{body}");
        }
        let paused =
            "#[tokio::test(start_paused = true)]\n    async fn a() { tokio::time::sleep(PAUSE).await; }";
        assert_eq!(lines(unit, &test(paused)), 0);
    }

    #[test]
    fn a_flaky_test_has_a_cause_and_an_end() {
        let now = humantime::parse_rfc3339("2026-11-28T12:00:00Z").unwrap();
        let entry = |test: &str, until: &str| {
            format!(
                "[[flaky]]\ntest = \"{test}\"\ncause = \"c\"\nrate = \"1 of 20\"\nsince = \"2026-11-20\"\nuntil = \"{until}\"\n"
            )
        };
        let check = |text: &str, expected: &[&str]| {
            let found = of_ledger(text, now).unwrap();
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (problem, words) in found.iter().zip(expected) {
                assert!(problem.contains(words), "{problem}");
            }
        };
        let right = entry("commensal measure::lab::a", "2026-12-04");
        check("", &[]);
        check(&right, &[]);
        check(&entry("commensal measure::lab::a", "2026-11-28"), &[]);
        check(&entry("commensal measure::lab::a", "2026-11-27"), &["by now"]);
        check(&entry("commensal measure::lab::a", "2026-12-05"), &["more than 14 days"]);
        check(&right.replace("until = \"2026-12-04\"", "until = \"2026-11-19\""), &["before it", "by now"]);
        check(&right.replace("since = \"2026-11-20\"", "since = \"2026-12-01\""), &["in the future"]);
        check(&entry("commensal queue::line::a", "2026-12-04"), &["is in the gate"]);
        check(&entry("commensal measure::lab::a", "soon"), &["no days"]);
        check(&right.replace("\"c\"", "\"\""), &["no cause"]);
        check(&right.repeat(4), &["at most 3"]);
        assert!(of_ledger("[[flaky]]\nname = \"x\"\n", now).is_err());
    }
}
