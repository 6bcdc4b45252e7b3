//! Checks names of types: no two public ones in a crate are the same, and none is a retired name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Retired names of types, with their replacement.
const RETIRED: [(&str, &str); 28] = [
    ("Keeper", "Reconciler"),
    ("Deciders", "Controllers"),
    ("Witness", "BlameMonitor"),
    ("Hurry", "EarlyTick"),
    ("Closely", "WatchPrecision"),
    ("Foreman", "BatchRunner"),
    ("Conduct", "RunOptions"),
    ("Fate", "MoveOutcome"),
    ("NotFrozen", "FreezeError"),
    ("NoJudge", "BlameError"),
    ("NoScheduler", "LoadError"),
    ("NoRoom", "DelegationError"),
    ("OfGroup", "a name that says what is told of it"),
    ("OfSubject", "TargetStats"),
    ("Taker", "PayloadReader"),
    ("Instead", "ShowRewrite"),
    ("Ground", "what kind of ground"),
    ("Physics", "a model"),
    ("Seen", "Sample, Observation or what it is"),
    ("Place", "CgroupRef, or what kind of place"),
    ("Ask", "PlanRequest, or what is asked"),
    ("Way", "what kind of way"),
    ("Judge", "WaitProbe"),
    ("Means", "NamedMechanism"),
    ("Room", "Headroom"),
    ("OneWay", "Irreversible"),
    ("Renew", "Recreate"),
    ("Renewed", "Recreated"),
];

/// Keywords that begin the definition of a type.
const KINDS: [&str; 4] = ["struct ", "enum ", "trait ", "type "];

/// Checks all sources.
pub fn check(root: &Path, files: &[PathBuf], problems: &mut Vec<String>) -> anyhow::Result<()> {
    let mut types: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for path in files {
        let file = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let Some(package) = file.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/")) else {
            continue;
        };
        let text = std::fs::read_to_string(path)?;
        for name in defined(&text) {
            if let Some((_, word)) = RETIRED.iter().find(|(old, _)| *old == name.0) {
                problems.push(format!("{file}: {} is retired: call it {word}", name.0));
            }
            if name.1 {
                types.entry((package.0.to_owned(), name.0.to_owned())).or_default().push(file.clone());
            }
        }
    }
    for ((package, name), files) in types.iter().filter(|(_, files)| files.len() > 1) {
        problems.push(format!("{package}: two public types are called {name}: {}", files.join(", ")));
    }
    Ok(())
}

/// Types that a source defines outside its tests, and whether each is public.
fn defined(text: &str) -> Vec<(&str, bool)> {
    // `mod tests;` stands at the top, `mod tests {` at the end.
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let one = |line: &'_ str| -> Option<(usize, bool)> {
        let rest = line.trim_start();
        let (rest, public) = match rest.strip_prefix("pub ") {
            Some(rest) => (rest, true),
            None => (
                rest.strip_prefix("pub(crate) ").or_else(|| rest.strip_prefix("pub(super) ")).unwrap_or(rest),
                false,
            ),
        };
        let name = KINDS.iter().find_map(|kind| rest.strip_prefix(kind))?;
        Some((line.len() - name.len(), public))
    };
    code.lines()
        .filter_map(|line| {
            let (at, public) = one(line)?;
            let name = line[at..].split(|one: char| !one.is_alphanumeric() && one != '_').next()?;
            name.starts_with(|one: char| one.is_ascii_uppercase()).then_some((name, public))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found() {
        let text = "pub struct One<'a> {\n    pub(crate) enum Two {\ntype Three = u8;\n// pub struct Not\nlet x = 1;\n\
                    #[cfg(test)]\nmod tests;\npub struct Four;\n\
                    #[cfg(test)]\nmod tests {\n    pub struct Hidden;\n}\n";
        assert_eq!(defined(text), [("One", true), ("Two", false), ("Three", false), ("Four", true)]);
    }
}
