//! Functions and operators of JSON documents. A value is a document if a function has made it; all others are texts, numbers
//! and so on, which become documents where one is made of them.

use super::super::functions::{DOCUMENT, is_json_function};
use super::super::json_values::{JSON, JSON_OF_TRUTH};
use super::super::operators::is_truth;
use super::{as_text, called, filled_text};
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName, Value,
};

/// Functions whose result is a document.
const MAKERS: [&str; 5] = ["json_array", "json_extract", "json_keys", "json_object", DOCUMENT];

/// Whether an expression is a document, and not a text.
fn is_document(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => is_document(inner),
        Expr::Function(function) => MAKERS.contains(&function.name.to_string().as_str()),
        _ => false,
    }
}

/// Makes a value a document, unless it is one.
fn as_document(value: &Expr) -> Expr {
    match value {
        value if is_document(value) => value.clone(),
        value if is_truth(value) => called(JSON_OF_TRUTH, value),
        value => called(JSON, value),
    }
}

/// Returns `CAST(value AS JSON)`.
pub(super) fn cast(value: &Expr) -> Expr {
    if is_document(value) { value.clone() } else { called(DOCUMENT, &as_text(value)) }
}

/// Rewrites `->` and `->>`, and comparisons of a document with another value, which is compared with the text that the
/// document is. Returns whether the expression is one of them.
pub(super) fn change(expr: &mut Expr) -> bool {
    use BinaryOperator::{Arrow, Eq, Gt, GtEq, LongArrow, Lt, LtEq, NotEq, Spaceship};
    let Expr::BinaryOp { left, op, right } = expr else { return false };
    match op {
        Arrow | LongArrow => {
            let extracted = filled_text("json_extract($1, $2)", &[as_text(left), as_text(right)]);
            *expr = if *op == LongArrow { called("json_unquote", &extracted) } else { extracted };
            true
        }
        Eq | NotEq | Lt | LtEq | Gt | GtEq | Spaceship if is_document(left) != is_document(right) => {
            let (document, other) = if is_document(left) { (left, right) } else { (right, left) };
            **document = called("json_unquote", document);
            if let Expr::Value(value) = other.as_mut()
                && let Value::Boolean(is_true) = value.value
            {
                value.value = Value::SingleQuotedString(is_true.to_string());
            }
            true
        }
        _ => false,
    }
}

/// Returns the call of a function of documents; `None` for other functions.
pub(super) fn call(function: &Function, name: &str, arguments: &[Expr]) -> Option<Expr> {
    is_json_function(name).then_some(())?;
    match (name, arguments) {
        ("json_array", []) => return Some(filled_text(&format!("{DOCUMENT}('[]')"), &[])),
        ("json_object", []) => return Some(filled_text(&format!("{DOCUMENT}('{{}}')"), &[])),
        _ => {}
    }
    let is_value = |at: usize| name == "json_array" || (name == "json_object" && at % 2 == 1);
    let values = arguments.iter().enumerate();
    let values = values.map(|(at, value)| if is_value(at) { as_document(value) } else { as_text(value) });
    let mut function = function.clone();
    function.name = ObjectName::from(vec![Ident::new(name)]);
    if let FunctionArguments::List(list) = &mut function.args {
        list.args = values.map(|value| FunctionArg::Unnamed(FunctionArgExpr::Expr(value))).collect();
    }
    Some(Expr::Function(function))
}
