//! Paths into JSON documents: `$.a[0]`, `$[last]`, `$.*`, `$**.b`.

use super::sorted;
use crate::engine::error::{Error, Problem};
use serde_json::Value;
use std::collections::BTreeSet;

/// Legs of a path, as in MySQL.
const MOST_LEGS: usize = 100;

/// A path.
#[derive(Debug, PartialEq, Eq)]
pub struct JsonPath(Vec<Leg>);

#[derive(Debug, PartialEq, Eq)]
enum Leg {
    Key(String),
    AnyKey,
    /// The elements of an array from one position to another.
    Elements(Position, Position),
    AnyElement,
    /// The value itself, and all values in it.
    AnyDepth,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    FromStart(usize),
    /// Before the last element.
    FromEnd(usize),
}

impl Position {
    fn of(self, length: usize) -> Option<usize> {
        match self {
            Position::FromStart(at) => Some(at),
            Position::FromEnd(before) => length.checked_sub(1)?.checked_sub(before),
        }
    }
}

impl JsonPath {
    /// Reads a path.
    ///
    /// # Errors
    /// It is no path.
    pub fn read(text: &str) -> Result<JsonPath, Error> {
        let mut reader = Reader { rest: text };
        let Some(legs) = reader.legs() else {
            let at = text.len() - reader.rest.len();
            let text = format!("Invalid JSON path expression. The error is around character position {at}.");
            return Err(Error::Name(Problem::JsonPath, text));
        };
        // Each of them visits all values in those that the one before it finds.
        if legs.iter().filter(|leg| **leg == Leg::AnyDepth).count() > 1 {
            return Err(Error::Unsupported("a path with two ** is not supported".to_owned()));
        }
        Ok(JsonPath(legs))
    }

    /// Whether several values may be at the path.
    pub fn is_wild(&self) -> bool {
        self.0.iter().any(|leg| match leg {
            Leg::Key(_) => false,
            Leg::Elements(from, to) => from != to,
            Leg::AnyKey | Leg::AnyElement | Leg::AnyDepth => true,
        })
    }

    /// Returns the values at the path, in their order.
    pub fn find<'a>(&self, document: &'a Value) -> Vec<&'a Value> {
        let mut found = Vec::new();
        select(document, &self.0, &mut found);
        if self.0.contains(&Leg::AnyDepth) {
            let mut seen = BTreeSet::new();
            found.retain(|value| seen.insert(std::ptr::from_ref(*value)));
        }
        found
    }
}

fn select<'a>(value: &'a Value, legs: &[Leg], found: &mut Vec<&'a Value>) {
    let Some((leg, rest)) = legs.split_first() else { return found.push(value) };
    match (leg, value) {
        (Leg::Key(key), Value::Object(members)) => {
            if let Some(inner) = members.get(key) {
                select(inner, rest, found);
            }
        }
        (Leg::AnyKey, Value::Object(members)) => {
            sorted(members).into_iter().for_each(|(_, inner)| select(inner, rest, found));
        }
        (Leg::AnyElement, Value::Array(all)) => all.iter().for_each(|inner| select(inner, rest, found)),
        (Leg::Elements(from, to), Value::Array(all)) => {
            // A range from a position before the first element begins with it.
            let from = if from == to { from.of(all.len()) } else { Some(from.of(all.len()).unwrap_or(0)) };
            if let (Some(from), Some(to)) = (from, to.of(all.len())) {
                let count = to.saturating_add(1).saturating_sub(from);
                all.iter().skip(from).take(count).for_each(|inner| select(inner, rest, found));
            }
        }
        // What is no array is the only element of one.
        (Leg::Elements(from, to), value) => {
            let from = if from == to { from.of(1) } else { Some(from.of(1).unwrap_or(0)) };
            if from == Some(0) && to.of(1).is_some() {
                select(value, rest, found);
            }
        }
        (Leg::AnyDepth, value) => {
            select(value, rest, found);
            match value {
                Value::Array(all) => all.iter().for_each(|inner| select(inner, legs, found)),
                Value::Object(members) => {
                    sorted(members).into_iter().for_each(|(_, inner)| select(inner, legs, found));
                }
                _ => {}
            }
        }
        _ => {}
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn legs(&mut self) -> Option<Vec<Leg>> {
        self.skip();
        self.take("$").then_some(())?;
        let mut legs = Vec::new();
        loop {
            self.skip();
            let leg = if self.rest.is_empty() {
                break;
            } else if self.take("**") {
                Leg::AnyDepth
            } else if self.take(".") {
                self.skip();
                if self.take("*") { Leg::AnyKey } else { Leg::Key(self.key()?) }
            } else if self.take("[") {
                self.elements()?
            } else {
                return None;
            };
            legs.push(leg);
            (legs.len() <= MOST_LEGS).then_some(())?;
        }
        // `**` needs something behind it.
        (legs.last() != Some(&Leg::AnyDepth)).then_some(legs)
    }

    fn skip(&mut self) {
        self.rest = self.rest.trim_start_matches(|letter: char| letter.is_ascii_whitespace());
    }

    fn take(&mut self, sign: &str) -> bool {
        let rest = self.rest.strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn key(&mut self) -> Option<String> {
        if self.rest.starts_with('"') {
            let mut is_escaped = false;
            let inner = self.rest.get(1..)?;
            let end = inner.find(|letter: char| {
                let ends = letter == '"' && !is_escaped;
                is_escaped = letter == '\\' && !is_escaped;
                ends
            })?;
            let (quoted, rest) = self.rest.split_at(end + 2);
            let key = serde_json::from_str(quoted).ok()?;
            self.rest = rest;
            return Some(key);
        }
        let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '$';
        let end = self.rest.find(|letter: char| !is_letter(letter)).unwrap_or(self.rest.len());
        let (key, rest) = self.rest.split_at(end);
        let begins = key.chars().next().is_some_and(|first| !first.is_ascii_digit());
        self.rest = if begins { rest } else { self.rest };
        begins.then(|| key.to_owned())
    }

    fn elements(&mut self) -> Option<Leg> {
        self.skip();
        let leg = if self.take("*") {
            Leg::AnyElement
        } else {
            let from = self.position()?;
            self.skip();
            let to = if self.take("to") { self.position()? } else { from };
            Leg::Elements(from, to)
        };
        self.skip();
        self.take("]").then_some(leg)
    }

    fn position(&mut self) -> Option<Position> {
        self.skip();
        if !self.take("last") {
            return self.number().map(Position::FromStart);
        }
        self.skip();
        if !self.take("-") {
            return Some(Position::FromEnd(0));
        }
        self.skip();
        self.number().map(Position::FromEnd)
    }

    fn number(&mut self) -> Option<usize> {
        let end = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = self.rest.split_at(end);
        let number = digits.parse::<u32>().ok()?;
        self.rest = rest;
        usize::try_from(number).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_at_paths() {
        let document = r#"{"a": [1, {"b": 2}, [3]], "b": "x", "long key": null}"#;
        let document: Value = serde_json::from_str(document).unwrap();
        for (path, want) in [
            ("$.b", vec![r#""x""#]),
            ("$.a[0]", vec!["1"]),
            (" $ . a [ last - 1 ] . b ", vec!["2"]),
            ("$.a[last][0]", vec!["3"]),
            ("$.a[9]", vec![]),
            ("$.a[last-3]", vec![]),
            ("$.a[1 to last]", vec![r#"{"b":2}"#, "[3]"]),
            ("$.a[*]", vec!["1", r#"{"b":2}"#, "[3]"]),
            ("$.\"long key\"", vec!["null"]),
            ("$**.b", vec![r#""x""#, "2"]),
            ("$.b[0]", vec![r#""x""#]),
            ("$.b[1]", vec![]),
            ("$.b.c", vec![]),
            ("$.a[1].*", vec!["2"]),
        ] {
            let found = JsonPath::read(path).unwrap();
            let found: Vec<String> = found.find(&document).iter().map(ToString::to_string).collect();
            assert_eq!(found, want, "{path}");
        }
        let wrong = [("a", 0), ("$a", 1), ("$.", 2), ("$.1", 2), ("$[1", 3), ("$**", 3), ("", 0)];
        for (path, position) in wrong {
            let error = JsonPath::read(path).unwrap_err().to_string();
            assert!(error.ends_with(&format!("position {position}.")), "{path}: {error}");
        }
        assert!(matches!(JsonPath::read("$**.a**.b"), Err(Error::Unsupported(_))));
    }
}
