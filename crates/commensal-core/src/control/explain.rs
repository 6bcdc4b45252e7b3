//! Explanations of decisions: the rule that applied, the formula and its inputs. `commensal explain` and the audit log
//! show them; this module decides nothing.

use super::formula::evaluate;
use std::borrow::Cow;
use std::fmt;

/// An input of a decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Input {
    /// The input's name in the formula.
    pub name: &'static str,
    /// The input's value.
    pub value: f64,
    /// The input's unit, empty for a ratio.
    pub unit: &'static str,
}

/// The explanation of a decision. It does not list an input that is missing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Explanation {
    /// The rule that applied, as readable text.
    pub rule: String,
    /// The formula, which refers to the inputs by name, in the grammar of [`super::formula`]; empty if nothing was
    /// computed.
    pub formula: Cow<'static, str>,
    /// The inputs, in the order in which they were added.
    pub inputs: Vec<Input>,
}

impl Explanation {
    /// Creates an explanation with a rule and a formula, and no inputs yet.
    #[must_use]
    pub fn new(rule: impl Into<String>, formula: impl Into<Cow<'static, str>>) -> Explanation {
        Explanation { rule: rule.into(), formula: formula.into(), inputs: Vec::new() }
    }

    /// Appends an assignment to the formula; the assignment may use the names of previous assignments.
    #[must_use]
    pub fn then(mut self, assignment: &str) -> Explanation {
        let before = if self.formula.is_empty() { "" } else { "; " };
        let formula = self.formula.to_mut();
        formula.push_str(before);
        formula.push_str(assignment);
        self
    }

    /// Adds an input.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64, unit: &'static str) -> Explanation {
        self.inputs.push(Input { name, value, unit });
        self
    }

    /// Adds an input if it has a value.
    #[must_use]
    pub fn maybe(self, name: &'static str, value: Option<f64>, unit: &'static str) -> Explanation {
        match value {
            Some(value) => self.with(name, value, unit),
            None => self,
        }
    }

    /// Evaluates the formula and returns the value of each assignment; the last value is the decision. `None` if there
    /// is no valid formula.
    #[must_use]
    pub fn values(&self) -> Option<Vec<(&str, f64)>> {
        let inputs: Vec<(&str, f64)> = self.inputs.iter().map(|input| (input.name, input.value)).collect();
        evaluate(&self.formula, &inputs)
    }

    /// The decision according to the formula; `None` if there is no valid formula.
    #[must_use]
    pub fn derive(&self) -> Option<f64> {
        Some(self.values()?.last()?.1)
    }

    /// The value of an input; `None` if there is no input of this name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<f64> {
        self.inputs.iter().find(|input| input.name == name).map(|input| input.value)
    }
}

impl fmt::Display for Explanation {
    /// Writes `rule: formula (name = value unit, …)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rule)?;
        if !self.formula.is_empty() {
            write!(f, ": {}", self.formula)?;
        }
        for (index, Input { name, value, unit }) in self.inputs.iter().enumerate() {
            let before = if index == 0 { " (" } else { ", " };
            let space = if unit.is_empty() { "" } else { " " };
            write!(f, "{before}{name} = {}{space}{unit}", (value * 1e3).round() / 1e3)?;
        }
        f.write_str(if self.inputs.is_empty() { "" } else { ")" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_a_sentence() {
        let why = Explanation::new("the frame shrinks at once", "theta * cpus - others")
            .with("theta", 0.8, "")
            .with("cpus", 4.0, "CPUs")
            .maybe("others", Some(1.23456), "CPUs")
            .maybe("steal", None, "CPUs");
        let text = "the frame shrinks at once: theta * cpus - others (theta = 0.8, cpus = 4 CPUs, others = 1.235 CPUs)";
        assert_eq!(why.to_string(), text);
        assert_eq!((why.value("cpus"), why.value("steal")), (Some(4.0), None));
        assert_eq!(Explanation::new("nothing to do", "").to_string(), "nothing to do");
        assert_eq!(Explanation::new("nothing to do", "").derive(), None);
    }

    #[test]
    fn an_assignment_goes_on_from_those_before_it() {
        let why = Explanation::new("a half", "whole = a + b").then("half = whole / 2");
        let why = why.with("a", 1.0, "").with("b", 2.0, "");
        assert_eq!((why.formula.as_ref(), why.derive()), ("whole = a + b; half = whole / 2", Some(1.5)));
    }
}
