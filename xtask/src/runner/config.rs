//! Parser for `.config/nextest.toml`. It supports only the keys and filters that this file uses. Anything else is an
//! error, so that `cargo nextest run` and `cargo xtask test` never interpret the file differently.

use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Path of the file, relative to the top of the tree.
pub const FILE: &str = ".config/nextest.toml";
pub const DEFAULT: &str = "default";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    profile: BTreeMap<String, Profile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Profile {
    test_threads: Option<usize>,
    retries: Option<u32>,
    fail_fast: Option<bool>,
    slow_timeout: Option<SlowTimeout>,
    default_filter: Option<String>,
    #[serde(default)]
    overrides: Vec<Override>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct SlowTimeout {
    period: String,
    terminate_after: u32,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Override {
    filter: String,
    slow_timeout: Option<SlowTimeout>,
    threads_required: Option<usize>,
}

/// A profile, merged with the default profile.
#[derive(Debug)]
pub struct Config {
    /// Number of tests that may run at the same time.
    pub threads: usize,
    limit: Duration,
    /// Tests that the profile runs.
    wanted: Filter,
    rules: Vec<Rule>,
}

/// Settings for some tests.
#[derive(Debug)]
struct Rule {
    filter: Filter,
    limit: Option<Duration>,
    threads: Option<usize>,
}

/// Effective settings of one test.
#[derive(Debug, PartialEq, Eq)]
pub struct Terms {
    /// Limit of the CPU time.
    pub limit: Duration,
    /// Number of threads that the test occupies.
    pub threads: usize,
}

impl Config {
    /// Reads the profile with this name.
    pub fn read(root: &Path, profile: &str) -> anyhow::Result<Config> {
        let path = root.join(FILE);
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Config::parse(&text, profile).with_context(|| format!("profile {profile} of {FILE}"))
    }

    fn parse(text: &str, profile: &str) -> anyhow::Result<Config> {
        let mut file: File = toml::from_str(text)?;
        let default = file.profile.remove(DEFAULT).context("there is no profile.default")?;
        let own = match profile {
            DEFAULT => Profile::default(),
            _ => file.profile.remove(profile).with_context(|| format!("there is no profile.{profile}"))?,
        };
        for one in [&own, &default].into_iter().chain(file.profile.values()) {
            if one.retries.unwrap_or(0) > 0 || one.fail_fast == Some(true) {
                bail!(
                    "retries must be 0 and fail-fast must be false: a test gets one try, and a failure does not end \
                     the run"
                );
            }
        }
        let timeout = own.slow_timeout.or(default.slow_timeout).context("slow-timeout is missing")?;
        let filter = own.default_filter.or(default.default_filter).unwrap_or_else(|| "all()".to_owned());
        // The profile's own overrides come first, because for each setting the first match applies.
        let overrides = own.overrides.into_iter().chain(default.overrides);
        let rules = overrides.map(Rule::parse).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Config {
            threads: own.test_threads.or(default.test_threads).context("there is no test-threads")?,
            limit: timeout.limit()?,
            wanted: Filter::parse(&filter)?,
            rules,
        })
    }

    /// Whether the profile runs the test.
    pub fn runs(&self, test: &str) -> bool {
        self.wanted.matches(test)
    }

    pub fn terms(&self, test: &str) -> Terms {
        let rules = || self.rules.iter().filter(|rule| rule.filter.matches(test));
        Terms {
            limit: rules().find_map(|rule| rule.limit).unwrap_or(self.limit),
            // Without this limit, a test that needs more threads than there are would wait forever.
            threads: rules().find_map(|rule| rule.threads).unwrap_or(1).min(self.threads),
        }
    }

    /// Lists the patterns that match none of these tests, for example because a module was renamed. Its tests would
    /// lose their group unnoticed.
    pub fn unused(&self, tests: &[&str]) -> Vec<String> {
        let filters = self.rules.iter().map(|rule| &rule.filter).chain([&self.wanted]);
        let patterns = filters.flat_map(|filter| &filter.patterns);
        let unused = patterns.filter(|pattern| !tests.iter().any(|test| pattern.matches(test)));
        unused.map(|pattern| pattern.as_str().to_owned()).collect()
    }
}

impl Rule {
    fn parse(given: Override) -> anyhow::Result<Rule> {
        Ok(Rule {
            filter: Filter::parse(&given.filter)?,
            limit: given.slow_timeout.map(|timeout| timeout.limit()).transpose()?,
            threads: given.threads_required,
        })
    }
}

impl SlowTimeout {
    /// Returns the time after which nextest terminates the test.
    fn limit(&self) -> anyhow::Result<Duration> {
        let period = humantime::parse_duration(&self.period).context("slow-timeout.period")?;
        Ok(period * self.terminate_after)
    }
}

/// A filter `all()`, `test(#GLOB) | test(#GLOB)`, or `not (...)` around one of the second form.
#[derive(Debug)]
struct Filter {
    patterns: Vec<glob::Pattern>,
    /// Whether the filter is negated.
    not: bool,
}

impl Filter {
    fn parse(text: &str) -> anyhow::Result<Filter> {
        if text == "all()" {
            return Ok(Filter { patterns: Vec::new(), not: true });
        }
        let inner = text.strip_prefix("not (").and_then(|rest| rest.strip_suffix(')'));
        let pattern = |term: &str| {
            let glob = term.trim().strip_prefix("test(#").and_then(|rest| rest.strip_suffix(')'));
            let glob = glob.with_context(|| format!("{term:?} is not test(#GLOB)"))?;
            glob::Pattern::new(glob).with_context(|| glob.to_owned())
        };
        let patterns = inner.unwrap_or(text).split('|').map(pattern).collect::<anyhow::Result<_>>()?;
        Ok(Filter { patterns, not: inner.is_some() })
    }

    fn matches(&self, test: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(test)) != self.not
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
[profile.default]
test-threads = 3
slow-timeout = { period = "60s", terminate-after = 2 }
default-filter = "not (test(#docker::*))"
[profile.all]
default-filter = "all()"
[[profile.all.overrides]]
filter = "test(#lab::*)"
slow-timeout = { period = "1m", terminate-after = 9 }
[[profile.default.overrides]]
filter = "test(#lab::*) | test(#limits::*)"
threads-required = 9
"#;

    #[test]
    fn a_profile_adds_to_the_default_one() {
        let config = Config::parse(TEXT, DEFAULT).unwrap();
        assert_eq!(config.threads, 3);
        assert!(config.runs("lab::a") && !config.runs("docker::b"));
        let terms =
            |minutes: u64, threads: usize| Terms { limit: Duration::from_secs(60 * minutes), threads };
        assert_eq!(config.terms("lab::a"), terms(2, 3));
        assert_eq!(config.terms("output::lab::a"), terms(2, 1));
        let all = Config::parse(TEXT, "all").unwrap();
        assert!(all.runs("docker::b"));
        assert_eq!(all.terms("lab::a"), terms(9, 3));
        assert_eq!(config.unused(&["lab::a", "docker::b"]), ["limits::*"]);
    }

    #[test]
    fn what_nextest_would_understand_otherwise_is_refused() {
        let refused = |from: &str, to: &str, words: &str| {
            assert!(TEXT.contains(from));
            let error = Config::parse(&TEXT.replace(from, to), "all").unwrap_err();
            assert!(format!("{error:#}").contains(words), "{error:#}");
        };
        refused("threads-required = 9", "run-extra-args = []", "run-extra-args");
        refused("test(#limits::*)", "package(x)", "is not test(#GLOB)");
        refused("test-threads = 3", "test-threads = 3\nretries = 1", "one try");
        assert!(Config::parse(TEXT, "none").is_err());
    }

    #[test]
    fn the_file_of_the_tree_gives_each_test_to_one_tier() {
        let of = |profile: &str| Config::read(&crate::tree::root(), profile).unwrap();
        let tiers = [DEFAULT, "measure", "external", "guest"].map(of);
        for (test, tier) in [
            ("queue::line::they_are_admitted_in_order", 0),
            ("measure::lab::a_run", 1),
            ("loadgen::tests::measure::a_rate_is_kept", 1),
            ("external::docker::both_sides", 2),
            ("guest::systemd::units::a_slice", 3),
            ("measurement::of_nothing", 0),
        ] {
            let found: Vec<usize> = (0..4).filter(|index| tiers[*index].runs(test)).collect();
            assert_eq!(found, [tier], "{test}");
            assert!(of("long").runs(test));
        }
    }
}
