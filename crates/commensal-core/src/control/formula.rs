//! Evaluates the formula of an explanation, so that a reader can recompute a decision. This module decides nothing.
//!
//! ```text
//! formula    = assignment { "; " assignment }          the last one is the decision
//! assignment = name " = " comparison
//! comparison = sum [ ( ">=" | "<" ) sum ]              1 when it holds, else 0
//! sum        = product { ( "+" | "-" ) product }
//! product    = factor { ( "*" | "/" ) factor }
//! factor     = number [ "%" ] | name | function "(" comparison { "," comparison } ")" | "(" comparison ")"
//! function   = "min" | "max" | "floor" | "ceil" | "clamp" | "least"
//! ```
//!
//! `clamp(x, low, high)` is `max(min(x, high), low)`. `least(a, x, b, y, …)` finds the least of `a`, `b`, … and returns
//! the argument that follows it (`x`, `y`, …); of equal values the first counts. `%` after a number is only its unit
//! and does not change the value.

use std::collections::BTreeMap;

/// Evaluates `formula` and returns the name and value of every assignment, in order. `None` if the formula is empty or
/// invalid, or contains a name that is neither an input nor assigned before.
#[must_use]
pub fn evaluate<'t>(formula: &'t str, inputs: &[(&'t str, f64)]) -> Option<Vec<(&'t str, f64)>> {
    let mut known: BTreeMap<&str, f64> = inputs.iter().copied().collect();
    let mut values = Vec::new();
    for assignment in formula.split(';') {
        let (name, expression) = assignment.trim().split_once(" = ")?;
        let mut parser = Parser { rest: expression, known: &known };
        let value = parser.comparison()?;
        if !parser.rest.trim().is_empty() {
            return None;
        }
        values.push((name, value));
        known.insert(name, value);
    }
    Some(values)
}

struct Parser<'t, 'k> {
    rest: &'t str,
    known: &'k BTreeMap<&'t str, f64>,
}

impl Parser<'_, '_> {
    fn takes(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &str {
        let text = self.rest.trim_start();
        let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
        self.rest = &text[end..];
        &text[..end]
    }

    fn comparison(&mut self) -> Option<f64> {
        let left = self.sum()?;
        if self.takes(">=") {
            return Some(f64::from(u8::from(left >= self.sum()?)));
        }
        if self.takes("<") {
            return Some(f64::from(u8::from(left < self.sum()?)));
        }
        Some(left)
    }

    fn sum(&mut self) -> Option<f64> {
        let mut value = self.product()?;
        loop {
            if self.takes("+") {
                value += self.product()?;
            } else if self.takes("-") {
                value -= self.product()?;
            } else {
                return Some(value);
            }
        }
    }

    fn product(&mut self) -> Option<f64> {
        let mut value = self.factor()?;
        loop {
            if self.takes("*") {
                value *= self.factor()?;
            } else if self.takes("/") {
                value /= self.factor()?;
            } else {
                return Some(value);
            }
        }
    }

    fn factor(&mut self) -> Option<f64> {
        if self.takes("(") {
            let value = self.comparison()?;
            return self.takes(")").then_some(value);
        }
        if self.rest.trim_start().starts_with(|c: char| c.is_ascii_digit()) {
            let number = self.word(|c| c.is_ascii_digit() || c == '.').parse().ok()?;
            self.takes("%");
            return Some(number);
        }
        let name = self.word(|c| c.is_alphanumeric() || c == '_').to_owned();
        if !self.takes("(") {
            return self.known.get(name.as_str()).copied();
        }
        let mut of = vec![self.comparison()?];
        while self.takes(",") {
            of.push(self.comparison()?);
        }
        if !self.takes(")") {
            return None;
        }
        match (name.as_str(), of.as_slice()) {
            ("min", _) => of.into_iter().reduce(f64::min),
            ("max", _) => of.into_iter().reduce(f64::max),
            ("floor", [value]) => Some(value.floor()),
            ("ceil", [value]) => Some(value.ceil()),
            ("clamp", [value, low, high]) => Some(value.min(*high).max(*low)),
            ("least", pairs) if pairs.len().is_multiple_of(2) => {
                let pairs = pairs.chunks_exact(2);
                pairs.min_by(|a, b| a[0].total_cmp(&b[0])).map(|pair| pair[1])
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(formula: &str, expect: Option<f64>) {
        let inputs = [("a", 1.5), ("b", 4.0), ("a_b", 80.0)];
        let value = evaluate(formula, &inputs).and_then(|all| all.last().map(|(_, value)| *value));
        assert_eq!(value, expect, "{formula}");
    }

    #[test]
    fn computes_as_it_reads() {
        check("x = a + b * 2 - 1", Some(8.5));
        check("x = (a + b) * 2 / 4", Some(2.75));
        check("x = b - a - a", Some(1.0));
        check("x = a_b / 5 %", Some(16.0));
        check("y = min(a, b, 9); x = max(y, 2) + floor(a) + ceil(a)", Some(5.0));
        check("x = clamp(a_b, a, b)", Some(4.0));
        check("x = clamp(a_b, 9, b)", Some(9.0));
        check("x = least(b, 1, a, 2, 1.5, 3)", Some(2.0));
        check("x = 1 - min(a >= 1.5, b < 4)", Some(1.0));
        check("a = a + 1; x = a", Some(2.5));
    }

    #[test]
    fn what_is_no_formula_has_no_value() {
        for bad in ["", "a", "x = c", "x = a b", "x = min(a", "x = least(a)", "x = f(a)", "x = ", "x = -a"] {
            check(bad, None);
        }
    }
}
