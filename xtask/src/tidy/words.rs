//! Checks names: no two public types of a crate have the same name, and no type, function, field, variant or module has
//! a retired name. Also checks the help of commands and of metrics for retired words.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Retired names of types, each with its replacement.
const RETIRED: [(&str, &str); 29] = [
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
    ("OfGroup", "a name that says which data it holds"),
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
    ("Judged", "ProbeWaits, VerdictText, or what was decided"),
    ("Means", "NamedMechanism"),
    ("Room", "Headroom"),
    ("OneWay", "Irreversible"),
    ("Renew", "Recreate"),
    ("Renewed", "Recreated"),
];

/// Retired words in all other names and in help, in lower case, each with its replacement. Everyday words (`ask`,
/// `place`, `room`, `seen`, `way`) are retired only as names of types.
const RETIRED_WORDS: [(&str, &str); 23] = [
    ("keeper", "reconciler"),
    ("decider", "controller"),
    ("deciders", "controllers"),
    ("witness", "monitor"),
    ("hurry", "early tick"),
    ("foreman", "runner"),
    ("conduct", "options, or run"),
    ("fate", "outcome"),
    ("fates", "outcomes"),
    ("guilty", "over budget"),
    ("innocent", "within budget"),
    ("judged", "what was measured, tested or decided"),
    ("troubles", "problems"),
    ("wish", "what is wanted"),
    ("wishes", "what is wanted"),
    ("physics", "model"),
    ("taker", "reader"),
    ("one_way", "irreversible"),
    ("renew", "recreate"),
    ("renewed", "recreated"),
    ("take_over", "replace, or hand over"),
    ("takes_over", "replaces, or hands over"),
    ("taken_over", "replaced, or handed over"),
];

/// Words that are retired only in help: in code they are verbs, or a key that must stay.
const RETIRED_IN_HELP: [(&str, &str); 3] =
    [("judge", "probe"), ("takeover", "replace, or hand over"), ("company", "load")];

/// Keywords that begin the definition of a type.
const KINDS: [&str; 4] = ["struct ", "enum ", "trait ", "type "];

/// Checks all sources.
pub fn check(root: &Path, files: &[PathBuf], problems: &mut Vec<String>) -> anyhow::Result<()> {
    let mut types: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for path in files {
        let file = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let inside = file.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/"));
        if inside.is_none() && !["devtools/src/", "xtask/src/"].iter().any(|tools| file.starts_with(tools)) {
            continue;
        }
        let text = std::fs::read_to_string(path)?;
        for (name, word) in retired_names(&text) {
            problems.push(format!("{file}: {name} is retired: call it {word}"));
        }
        for (line, old, word) in retired_help(&file, &text) {
            problems.push(format!("{file}:{line}: help says {old:?}, which is retired: say {word}"));
        }
        let Some((package, _)) = inside else { continue };
        for name in defined(&text) {
            if let Some((_, word)) = RETIRED.iter().find(|(old, _)| *old == name.0) {
                problems.push(format!("{file}: {} is retired: call it {word}", name.0));
            }
            if name.1 {
                types.entry((package.to_owned(), name.0.to_owned())).or_default().push(file.clone());
            }
        }
    }
    for ((package, name), files) in types.iter().filter(|(_, files)| files.len() > 1) {
        problems.push(format!("{package}: two public types are called {name}: {}", files.join(", ")));
    }
    Ok(())
}

/// Returns the code before the tests of a file. (`mod tests;` is at the top of a file, `mod tests {` at its end.)
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

/// Lists the names in a source, outside its tests, that contain a retired word, each with the replacement.
fn retired_names(text: &str) -> BTreeMap<String, &'static str> {
    let mut found = BTreeMap::new();
    for line in without_tests(text).lines() {
        for name in bare(line).split(|one: char| !one.is_alphanumeric() && one != '_') {
            if let Some((_, word)) = RETIRED_WORDS.iter().find(|(old, _)| has_word(name, old)) {
                found.insert(name.to_owned(), *word);
            }
        }
    }
    found
}

/// Removes string literals and the comment from a line. If a literal spans several lines, its text counts as code from
/// the second line on.
fn bare(line: &str) -> String {
    let (mut code, mut in_text, mut escaped) = (String::new(), false, false);
    for one in line.split("//").next().unwrap_or(line).chars() {
        match one {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            _ if in_text => {}
            _ => code.push(one),
        }
    }
    code
}

/// Whether a name, in any case convention, contains a word. Parts of the word are separated by `_`.
fn has_word(name: &str, word: &str) -> bool {
    let mut parts = String::from("_");
    let mut before = '_';
    for one in name.chars() {
        if one.is_uppercase() && before.is_lowercase() {
            parts.push('_');
        }
        parts.extend(one.to_lowercase());
        before = one;
    }
    parts.push('_');
    parts.contains(&format!("_{word}_"))
}

/// Lists retired words in help: in the doc comments of a file with options of commands, and in the texts of a file with
/// metrics. Returns the number of the line, the word and the replacement.
fn retired_help(file: &str, text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let code = without_tests(text);
    let metrics = file.ends_with("/exposition.rs");
    let options = code.contains("#[arg(") || code.contains("#[command(");
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let said = match line.trim_start().strip_prefix("///") {
            Some(said) if options => said.to_owned(),
            None if metrics => line.split('"').skip(1).step_by(2).collect::<Vec<_>>().join(" "),
            _ => continue,
        };
        let words: Vec<&str> = said.split(|one: char| !one.is_alphanumeric()).collect();
        let said = format!("_{}_", words.join("_").to_lowercase());
        let retired = RETIRED_WORDS.iter().chain(&RETIRED_IN_HELP);
        let in_it = retired.filter(|(old, _)| said.contains(&format!("_{old}_")));
        found.extend(in_it.map(|(old, word)| (index + 1, *old, *word)));
    }
    found
}

/// Lists the types that a source defines outside its tests, and whether each is public.
fn defined(text: &str) -> Vec<(&str, bool)> {
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
    without_tests(text)
        .lines()
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

    #[test]
    fn retired_words_are_found_in_every_kind_of_name() {
        let check = |line: &str, want: &[&str]| {
            let found = retired_names(line);
            assert_eq!(found.keys().map(String::as_str).collect::<Vec<_>>(), want, "{line}");
        };
        check("fn the_keeper(&self) {", &["the_keeper"]);
        check("    pub troubles: Vec<String>,", &["troubles"]);
        check("    OneWay { from: Value },", &["OneWay"]);
        check("mod foreman;", &["foreman"]);
        check("const MAX_WISHES: usize = 3; // a wish", &["MAX_WISHES"]);
        check("let conductor = bookkeeper(\"troubles \\\" wish\", taken, over);", &[]);
        check("#[cfg(test)]\nmod tests {\n    fn wish() {}\n}\n", &[]);
    }

    #[test]
    fn retired_words_are_found_in_help() {
        let check = |file: &str, text: &str, want: &[(usize, &str)]| {
            let found = retired_help(file, text);
            let found: Vec<(usize, &str)> = found.into_iter().map(|(line, old, _)| (line, old)).collect();
            assert_eq!(found, want, "{text}");
        };
        let options = "#[arg(long)]\n/// Take over from the judge.\npub x: bool,\n// a wish\n";
        check("a/args.rs", options, &[(2, "take_over"), (2, "judge")]);
        check("a/args.rs", "/// A wish.\nfn one() {}\n", &[]);
        check("a/exposition.rs", "/// A wish.\nhelp(\"Troubles of now.\");\n", &[(2, "troubles")]);
    }
}
