//! Maps promises to tests: `PROMISES.md` has a numbered list, and a test that verifies a promise has the comment
//! `// promise N`.

use anyhow::Context;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The promises, each with its sentence and the tests that verify it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Promises {
    all: BTreeMap<u32, (String, Vec<String>)>,
    /// Inconsistencies between the list and the tests, each in a whole sentence.
    pub problems: Vec<String>,
}

impl Promises {
    /// Parses the list and the sources.
    pub fn read(root: &Path, sources: &[PathBuf]) -> anyhow::Result<Promises> {
        let list = std::fs::read_to_string(root.join("PROMISES.md")).context("PROMISES.md")?;
        let mut promises = Promises::listed(&list);
        for path in sources {
            let text = std::fs::read_to_string(path)?;
            let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
            promises.held_in(&name, &text);
        }
        let unheld = promises.all.iter().filter(|(_, (_, tests))| tests.is_empty());
        let unheld: Vec<String> = unheld
            .map(|(number, (says, _))| format!("PROMISES.md: no test verifies promise {number}: {says}"))
            .collect();
        promises.problems.extend(unheld);
        Ok(promises)
    }

    /// Parses the numbered lines of the list.
    fn listed(text: &str) -> Promises {
        let mut promises = Promises::default();
        for line in text.lines() {
            let Some((number, sentence)) = line.split_once(". ") else { continue };
            let Ok(number) = number.parse() else { continue };
            let next = promises.all.last_key_value().map_or(1, |(last, _)| last + 1);
            if number != next {
                promises.problems.push(format!("PROMISES.md: promise {number} follows instead of {next}"));
            }
            promises.all.insert(number, (sentence.to_owned(), Vec::new()));
        }
        promises
    }

    /// Adds the promises that the tests of a file verify.
    fn held_in(&mut self, file: &str, text: &str) {
        let mut said: Vec<u32> = Vec::new();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            let marked = line.strip_prefix("// promise ").or_else(|| line.strip_prefix("// promises "));
            is_test |= line.starts_with("#[") && line.contains("test");
            if let Some(numbers) = marked {
                is_test = false;
                match numbers.split(',').map(|number| number.trim().parse()).collect::<Result<Vec<u32>, _>>()
                {
                    Ok(numbers) => said.extend(numbers),
                    Err(_) => self.problems.push(format!("{file}: {line:?} is not \"// promise N\"")),
                }
                continue;
            }
            let name = line.split_once("fn ").filter(|_| !said.is_empty() && !line.starts_with("//"));
            let Some((_, rest)) = name else { continue };
            let test = rest.split(['(', '<']).next().unwrap_or(rest);
            if !is_test {
                self.problems.push(format!("{file}: {test} has a promise comment, but is not a test"));
            }
            for number in said.drain(..) {
                match self.all.get_mut(&number) {
                    Some((_, tests)) => tests.push(format!("{file} {test}")),
                    None => {
                        self.problems.push(format!(
                            "{file}: {test} verifies promise {number}, which PROMISES.md lacks"
                        ));
                    }
                }
            }
        }
    }

    /// Lists each promise with its tests.
    pub fn list(&self) -> String {
        let one = |(number, (sentence, tests)): (&u32, &(String, Vec<String>))| {
            let tests: String = tests.iter().map(|test| format!("     {test}\n")).collect();
            format!("{number:3}. {sentence}\n{tests}")
        };
        self.all.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_say_what_they_hold() {
        let mut promises = Promises::listed("# Promises\n\n1. One.\n2. Two.\n4. Four.\n");
        assert_eq!(promises.problems, ["PROMISES.md: promise 4 follows instead of 3"]);
        let mark = concat!("// prom", "ise");
        let text = format!(
            "{mark} 1\n#[test]\nfn one() {{}}\n    {mark}s 1, 2\n    #[tokio::test]\n    async fn both<T>() {{}}\n\
             {mark} 7\n#[test]\nfn none() {{}}\n{mark} 4\nfn helper() {{}}\n{mark} x\nfn other() {{}}\n"
        );
        promises.held_in("a.rs", &text);
        assert_eq!(promises.all[&1].1, ["a.rs one", "a.rs both"]);
        assert_eq!(promises.all[&2].1, ["a.rs both"]);
        let found: Vec<&str> = promises.problems[1..].iter().map(String::as_str).collect();
        assert!(found[0].contains("none verifies promise 7"), "{found:?}");
        assert!(
            found[1].contains("helper has a promise comment") && found[2].contains("is not"),
            "{found:?}"
        );
    }
}
