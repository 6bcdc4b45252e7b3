//! The results of the trials (each tests one fact about the kernel), as a table for people, as JSON for programs, and
//! as an exit status.

use commensal_core::knob::Evidence;
use commensal_core::text::{Align, columns};
use serde_json::{Value, json};
use std::fmt::Write;

/// Whether the kernel behaved as a fact says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The expected result, in words.
    Agrees(String),
    /// A different result, in words.
    Differs(String),
    /// No result; the text says why the fact could not be tested.
    NotTried(String),
}

impl Found {
    /// Returns `agrees`, `differs` or `not tried`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Found::Agrees(_) => "agrees",
            Found::Differs(_) => "differs",
            Found::NotTried(_) => "not tried",
        }
    }

    /// Returns the result in words; if there is no result, returns the reason.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Found::Agrees(text) | Found::Differs(text) | Found::NotTried(text) => text,
        }
    }
}

/// A fact with the result of its trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// The fact, as a sentence without a full stop.
    pub fact: String,
    /// How the project knows the fact.
    pub evidence: Evidence,
    /// The result that agrees with the fact.
    pub expected: String,
    /// The result of this trial.
    pub found: Found,
}

impl Tried {
    /// Creates the entry of a trial whose result is a text. The trial agrees if the texts are equal.
    pub(super) fn compared(fact: String, evidence: Evidence, expected: String, found: String) -> Tried {
        let found = if found == expected { Found::Agrees(found) } else { Found::Differs(found) };
        Tried { fact, evidence, expected, found }
    }
}

/// The results of all trials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// Name and release of the kernel.
    pub kernel: String,
    /// Description of the vendor's scheduler that was found.
    pub model: String,
    /// The tested facts, in the order of the trials.
    pub tried: Vec<Tried>,
    /// Changes that could not be undone; `commensal restore` retries them.
    pub left: Vec<String>,
}

impl Proof {
    fn count(&self, word: &str) -> usize {
        self.tried.iter().filter(|one| one.found.word() == word).count()
    }

    /// Returns 0 if every tested fact agrees, 1 if some differ, and 2 if no fact could be tested.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match (self.count("differs"), self.count("agrees")) {
            (0, 0) => 2,
            (0, _) => 0,
            _ => 1,
        }
    }

    /// Formats the table, followed by the facts that differ and their sources.
    #[must_use]
    pub fn text(&self) -> String {
        let mut rows = vec![["RESULT", "FACT", "KNOWN", "EXPECTED", "FOUND"].map(str::to_owned)];
        rows.extend(self.tried.iter().map(|one| {
            let known = match one.evidence {
                Evidence::Observed(_) => "observed",
                Evidence::Documented(_) => "documented",
            };
            let word = one.found.word().to_owned();
            [word, one.fact.clone(), known.to_owned(), one.expected.clone(), one.found.text().to_owned()]
        }));
        let mut text = format!("{}: {}\n\n{}\n", self.kernel, self.model, columns(&rows, Align::Left));
        for one in self.tried.iter().filter(|one| matches!(one.found, Found::Differs(_))) {
            let _ = writeln!(
                text,
                "differs: {} ({}): expected {}, found {}",
                one.fact,
                one.evidence,
                one.expected,
                one.found.text()
            );
        }
        for line in &self.left {
            let _ = writeln!(text, "not undone: {line}; run `commensal restore` to retry");
        }
        let (agree, differ, not_tried) =
            (self.count("agrees"), self.count("differs"), self.count("not tried"));
        let _ = writeln!(text, "{agree} agree, {differ} differ, {not_tried} not tried");
        text
    }

    /// Formats the results as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let facts: Vec<Value> = self
            .tried
            .iter()
            .map(|one| {
                let (found, because) = match &one.found {
                    Found::NotTried(because) => (None, Some(because)),
                    Found::Agrees(found) | Found::Differs(found) => (Some(found), None),
                };
                let source = one.evidence.to_string();
                let observed = matches!(one.evidence, Evidence::Observed(_));
                json!({
                    "fact": one.fact, "observed": observed, "source": source, "expected": one.expected,
                    "result": one.found.word(), "found": found, "not_tried_because": because,
                })
            })
            .collect();
        json!({
            "kernel": self.kernel, "model": self.model, "facts": facts, "left": self.left,
            "agree": self.count("agrees"), "differ": self.count("differs"),
            "not_tried": self.count("not tried"),
        })
    }
}
