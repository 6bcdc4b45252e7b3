//! Functions of JSON documents. A document is a text: what it is made of is written as MySQL writes it, with the keys of an
//! object by their length and then by their bytes.

mod path;

use super::dates::clock_text;
use super::numbers::real;
use super::row::ArgumentKind::{Clock, Double, Text};
use super::row::RowFunction;
use crate::engine::error::{Error, Problem};
use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Builder, StringArray, StringBuilder};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, plan_err};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use path::JsonPath;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Name of the function that makes a document of a text with one.
pub const DOCUMENT: &str = "__json_document";
/// Name of the function that makes a text a document.
pub const QUOTE: &str = "json_quote";
/// Name of the function that writes a floating point number for a document.
pub const NUMBER_OF_DOUBLE: &str = "__json_of_double";
/// Name of the function that writes a time with all digits of the fraction of a second.
pub const LONG_CLOCK: &str = "__long_clock";

/// Pairs of elements that `JSON_CONTAINS` compares at most: a call cannot be interrupted.
const MOST_COMPARED: usize = 100_000_000;

pub(super) const ROWS: &[RowFunction] = &[
    RowFunction::new(NUMBER_OF_DOUBLE, &[Double], Text, |of| Some(number_text(of[0].double()).into())),
    RowFunction::new(LONG_CLOCK, &[Clock], Text, |of| {
        let text = clock_text(of[0].clock());
        Some(if text.contains('.') { text } else { text + ".000000" }.into())
    }),
];

/// The arguments of a call in one row; `None` is NULL.
type Arguments<'a> = [Option<&'a str>];

enum JsonResult {
    Text(String),
    Whole(i64),
}

/// A function: its name, the numbers of arguments that it takes, whether its result is a number, and how it is computed.
struct JsonFunction {
    name: &'static str,
    least: usize,
    most: usize,
    is_number: bool,
    call: fn(&Arguments<'_>) -> Result<Option<JsonResult>, Error>,
}

const fn of_text(
    name: &'static str,
    least: usize,
    most: usize,
    call: fn(&Arguments<'_>) -> Result<Option<JsonResult>, Error>,
) -> JsonFunction {
    JsonFunction { name, least, most, is_number: false, call }
}

const fn of_number(
    name: &'static str,
    least: usize,
    most: usize,
    call: fn(&Arguments<'_>) -> Result<Option<JsonResult>, Error>,
) -> JsonFunction {
    JsonFunction { name, least, most, is_number: true, call }
}

const FUNCTIONS: &[JsonFunction] = &[
    of_text("json_extract", 2, usize::MAX, extract),
    of_text("json_unquote", 1, 1, unquote),
    of_text(QUOTE, 1, 1, |of| Ok(of[0].map(|text| JsonResult::Text(quoted(text))))),
    of_text(DOCUMENT, 1, 1, |of| {
        let Some(text) = of[0] else { return Ok(None) };
        Ok(Some(JsonResult::Text(written(&document(text, 1, "cast_as_json")?))))
    }),
    of_text("json_array", 0, usize::MAX, |of| {
        let elements: Vec<&str> = of.iter().map(|element| element.unwrap_or("null")).collect();
        Ok(Some(JsonResult::Text(format!("[{}]", elements.join(", ")))))
    }),
    of_text("json_object", 0, usize::MAX, object),
    of_text("json_keys", 1, 2, |of| {
        let Some(document) = Located::new(of, 1, "json_keys")? else { return Ok(None) };
        Ok(document.value().and_then(|value| match value {
            Value::Object(members) => {
                let keys: Vec<String> = sorted(members).into_iter().map(|(key, _)| quoted(key)).collect();
                Some(JsonResult::Text(format!("[{}]", keys.join(", "))))
            }
            _ => None,
        }))
    }),
    of_text("json_type", 1, 1, |of| {
        let Some(text) = of[0] else { return Ok(None) };
        Ok(Some(JsonResult::Text(type_name(&document(text, 1, "json_type")?).to_owned())))
    }),
    of_number("json_valid", 1, 1, |of| {
        Ok(of[0].map(|text| JsonResult::Whole(i64::from(serde_json::from_str::<Value>(text).is_ok()))))
    }),
    of_number("json_length", 1, 2, |of| {
        let Some(document) = Located::new(of, 1, "json_length")? else { return Ok(None) };
        Ok(document.value().map(|value| {
            JsonResult::Whole(super::row::length(match value {
                Value::Array(all) => all.len(),
                Value::Object(members) => members.len(),
                _ => 1,
            }))
        }))
    }),
    of_number("json_contains", 2, 3, |of| {
        let (Some(_), Some(candidate)) = (of[0], of[1]) else { return Ok(None) };
        let Some(target) = Located::new(of, 2, "json_contains")? else { return Ok(None) };
        let candidate = document(candidate, 2, "json_contains")?;
        let Some(target) = target.value() else { return Ok(None) };
        let mut left = MOST_COMPARED;
        Ok(Some(JsonResult::Whole(i64::from(contains(target, &candidate, &mut left)?))))
    }),
];

/// Whether there is a function of JSON documents with this name.
#[must_use]
pub fn is_json_function(name: &str) -> bool {
    FUNCTIONS.iter().any(|function| function.name == name)
}

/// Returns the functions for DataFusion.
#[must_use]
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    FUNCTIONS.iter().map(|function| Arc::new(json_function(function.name))).collect()
}

/// Returns the function of this name, for expressions that are built after planning.
#[must_use]
pub fn json_function(name: &'static str) -> ScalarUDF {
    ScalarUDF::new_from_impl(OfTexts { name, signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OfTexts {
    name: &'static str,
    signature: Signature,
}

impl OfTexts {
    fn function(&self, count: usize) -> Result<&'static JsonFunction> {
        let takes = |of: &&JsonFunction| of.name == self.name && (of.least..=of.most).contains(&count);
        match FUNCTIONS.iter().find(takes) {
            Some(function) if self.name != "json_object" || count.is_multiple_of(2) => Ok(function),
            _ => plan_err!("Incorrect parameter count in the call to native function '{}'", self.name),
        }
    }
}

impl ScalarUDFImpl for OfTexts {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.function(types.len())?;
        Ok(vec![DataType::Utf8; types.len()])
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let is_number = self.function(types.len())?.is_number;
        Ok(if is_number { DataType::Int64 } else { DataType::Utf8 })
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let function = self.function(arguments.args.len())?;
        let are_scalars = arguments.args.iter().all(|one| matches!(one, ColumnarValue::Scalar(_)));
        let count = if are_scalars { 1 } else { arguments.number_rows };
        let arrays: Vec<ArrayRef> =
            arguments.args.iter().map(|one| one.to_array(count)).collect::<Result<_>>()?;
        let texts: Option<Vec<&StringArray>> =
            arrays.iter().map(|array| array.as_string_opt::<i32>()).collect();
        let Some(texts) = texts else {
            return Err(exec_datafusion_err!("{} takes texts", self.name));
        };
        let results = (0..count).map(|at| {
            let of: Vec<Option<&str>> =
                texts.iter().map(|text| text.is_valid(at).then(|| text.value(at))).collect();
            (function.call)(&of).map_err(|error| DataFusionError::External(Box::new(error)))
        });
        let array = column(function.is_number, results)?;
        match are_scalars {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)),
            false => Ok(ColumnarValue::Array(array)),
        }
    }
}

fn column(is_number: bool, results: impl Iterator<Item = Result<Option<JsonResult>>>) -> Result<ArrayRef> {
    let (mut texts, mut numbers) = (StringBuilder::new(), Int64Builder::new());
    for result in results {
        match result? {
            Some(JsonResult::Text(text)) => texts.append_value(text),
            Some(JsonResult::Whole(number)) => numbers.append_value(number),
            None if is_number => numbers.append_null(),
            None => texts.append_null(),
        }
    }
    Ok(if is_number { Arc::new(numbers.finish()) } else { Arc::new(texts.finish()) })
}

/// Reads a document, which is this argument of this function.
fn document(text: &str, argument: usize, function: &str) -> Result<Value, Error> {
    serde_json::from_str(text).map_err(|error| {
        // Lines and columns are counted from 1.
        let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1));
        let at = lines.map(str::len).sum::<usize>() + error.column().saturating_sub(1);
        let text = format!(
            "Invalid JSON text in argument {argument} to function {function}: \"Invalid value.\" at position {at}."
        );
        Error::Name(Problem::JsonText, text)
    })
}

/// A document and the path to a value in it.
struct Located {
    document: Value,
    path: Option<JsonPath>,
}

impl Located {
    /// Reads the document, which is the first argument, and the path, which is the argument after `before` others, if there
    /// is one; `None` if one of them is NULL.
    fn new(of: &Arguments<'_>, before: usize, function: &str) -> Result<Option<Located>, Error> {
        let Some(text) = of[0] else { return Ok(None) };
        let document = document(text, 1, function)?;
        let path = match of.get(before) {
            None => None,
            Some(None) => return Ok(None),
            Some(Some(path)) => Some(JsonPath::read(path)?),
        };
        if path.as_ref().is_some_and(JsonPath::is_wild) {
            let text =
                "In this situation, path expressions may not contain the * and ** tokens or an array range.";
            return Err(Error::Name(Problem::JsonWildcard, text.to_owned()));
        }
        Ok(Some(Located { document, path }))
    }

    fn value(&self) -> Option<&Value> {
        match &self.path {
            Some(path) => path.find(&self.document).first().copied(),
            None => Some(&self.document),
        }
    }
}

/// `JSON_EXTRACT`: one value, or an array of all if there may be several.
fn extract(of: &Arguments<'_>) -> Result<Option<JsonResult>, Error> {
    let Some(all) = of.iter().copied().collect::<Option<Vec<&str>>>() else { return Ok(None) };
    let [text, paths @ ..] = all.as_slice() else { return Ok(None) };
    let document = document(text, 1, "json_extract")?;
    let paths: Vec<JsonPath> = paths.iter().map(|path| JsonPath::read(path)).collect::<Result<_, _>>()?;
    let found: Vec<&Value> = paths.iter().flat_map(|path| path.find(&document)).collect();
    let is_one = matches!(paths.as_slice(), [path] if !path.is_wild());
    Ok(match found.as_slice() {
        [] => None,
        [value] if is_one => Some(JsonResult::Text(written(value))),
        all => {
            let all: Vec<String> = all.iter().map(|value| written(value)).collect();
            Some(JsonResult::Text(format!("[{}]", all.join(", "))))
        }
    })
}

/// `JSON_UNQUOTE`: the text that a document is, and other texts as they are.
fn unquote(of: &Arguments<'_>) -> Result<Option<JsonResult>, Error> {
    let Some(text) = of[0] else { return Ok(None) };
    let is_quoted = text.len() > 1 && text.starts_with('"') && text.ends_with('"');
    Ok(Some(JsonResult::Text(match is_quoted {
        true => match document(text, 1, "json_unquote")? {
            Value::String(text) => text,
            _ => text.to_owned(),
        },
        false => text.to_owned(),
    })))
}

/// `JSON_OBJECT`: of equal keys the last one stays.
fn object(of: &Arguments<'_>) -> Result<Option<JsonResult>, Error> {
    let mut members: Vec<(&str, &str)> = Vec::new();
    for pair in of.chunks_exact(2) {
        let Some(key) = pair[0] else {
            let text = "JSON documents may not contain NULL member names.";
            return Err(Error::Name(Problem::JsonKey, text.to_owned()));
        };
        members.push((key, pair[1].unwrap_or("null")));
    }
    // The sort keeps the order of equal keys.
    members.sort_by_key(|(key, _)| (key.len(), *key));
    let is_last = |at: usize| members.get(at + 1).is_none_or(|(next, _)| *next != members[at].0);
    let kept = members.iter().enumerate().filter(|(at, _)| is_last(*at));
    let written: Vec<String> = kept.map(|(_, (key, value))| format!("{}: {value}", quoted(key))).collect();
    Ok(Some(JsonResult::Text(format!("{{{}}}", written.join(", ")))))
}

/// Whether a document contains another one, by the rules of MySQL's manual.
fn contains(target: &Value, candidate: &Value, left: &mut usize) -> Result<bool, Error> {
    let too_many = || Error::Unsupported("json_contains of so many values is not supported".to_owned());
    *left = left.checked_sub(1).ok_or_else(too_many)?;
    match (target, candidate) {
        (Value::Object(target), Value::Object(candidate)) => {
            for (key, value) in candidate {
                match target.get(key) {
                    Some(inner) if contains(inner, value, left)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        (Value::Array(target), Value::Array(candidate)) => {
            for value in candidate {
                if !any_contains(target, value, left)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::Array(target), candidate) => any_contains(target, candidate, left),
        (target, candidate) => Ok(are_equal(target, candidate)),
    }
}

fn any_contains(all: &[Value], candidate: &Value, left: &mut usize) -> Result<bool, Error> {
    for target in all {
        if contains(target, candidate, left)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether two values without values in them are equal; a number is, however it is written.
fn are_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => a.as_f64() == b.as_f64(),
        (one, other) => one == other,
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "NULL",
        Value::Bool(_) => "BOOLEAN",
        Value::Number(number) if number.is_f64() => "DOUBLE",
        Value::Number(number) if number.is_i64() => "INTEGER",
        Value::Number(_) => "UNSIGNED INTEGER",
        Value::String(_) => "STRING",
        Value::Array(_) => "ARRAY",
        Value::Object(_) => "OBJECT",
    }
}

/// The members of an object in MySQL's order.
fn sorted(members: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut all: Vec<(&String, &Value)> = members.iter().collect();
    all.sort_by_key(|(key, _)| (key.len(), *key));
    all
}

/// Writes a text with quotes, as a part of a document.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Writes a number so that it stays a floating point number when it is read.
fn number_text(value: f64) -> String {
    let text = real(value, &value.to_string(), format!("{value:e}"));
    let is_whole = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    if is_whole { text + ".0" } else { text }
}

/// Writes a document as MySQL does.
fn written(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &Value, to: &mut String) {
    match value {
        Value::Array(all) => {
            to.push('[');
            for (at, value) in all.iter().enumerate() {
                to.push_str(if at > 0 { ", " } else { "" });
                write(value, to);
            }
            to.push(']');
        }
        Value::Object(members) => {
            to.push('{');
            for (at, (key, value)) in sorted(members).into_iter().enumerate() {
                to.push_str(if at > 0 { ", " } else { "" });
                to.push_str(&quoted(key));
                to.push_str(": ");
                write(value, to);
            }
            to.push('}');
        }
        Value::Number(number) if number.is_f64() => {
            to.push_str(&number_text(number.as_f64().unwrap_or_default()));
        }
        Value::Number(number) => to.push_str(&number.to_string()),
        Value::String(text) => to.push_str(&quoted(text)),
        Value::Bool(value) => to.push_str(if *value { "true" } else { "false" }),
        Value::Null => to.push_str("null"),
    }
}
