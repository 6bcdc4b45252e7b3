//! Reads TOML files into checked, typed keys. Groups files, experiments and density ladders (experiments with a growing
//! number of VMs or databases) all use this reader.
//!
//! ```text
//! text ── Reader::parse ──► TomlTable ── Reader::section, by rows of keys ──► Section ──► its owner's types
//!                └──────────── every mistake with line and column ────────────┘
//! ```
//! A [`FileKey`] states which values a key may have ([`Kind`]). The reader reports all errors that concern a single
//! value; the code that owns a table reports contradictions between keys, in the same pass ([`Reader::note`]). If a
//! file is not valid TOML, the reader reports only the syntax errors, because it cannot know which keys are missing.

use crate::group::{Position, SourcePlace};
use crate::text::printable;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// An error in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Where the error is.
    pub at: SourcePlace,
    /// The error and how to correct it.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, printable(&self.message))
    }
}

impl std::error::Error for ConfigError {}

/// A position in one of the files of a [`Reader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct TextPlace {
    file: usize,
    offset: usize,
}

/// A value and its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Position of the key; for an item of a list, position of the item.
    pub key_at: TextPlace,
    /// Position of the value.
    pub at: TextPlace,
    /// The value.
    pub value: TomlValue,
}

/// A table: its values, by key.
pub type TomlTable = BTreeMap<String, Node>;

/// A TOML value.
#[derive(Debug, Clone, PartialEq)]
pub enum TomlValue {
    /// A string.
    Text(String),
    /// An integer; a number outside the type's range is saturated.
    Whole(i128),
    /// A float: a number with a fraction or an exponent, an infinity or NaN.
    Number(f64),
    /// `true` or `false`.
    Flag(bool),
    /// A date or a time; no key accepts such a value.
    Time,
    /// A list.
    List(Vec<Node>),
    /// A table.
    Table(TomlTable),
}

impl TomlValue {
    fn name(&self) -> &'static str {
        match self {
            TomlValue::Text(_) => "text",
            TomlValue::Whole(_) | TomlValue::Number(_) => "a number",
            TomlValue::Flag(_) => "true or false",
            TomlValue::Time => "a date or time",
            TomlValue::List(_) => "a list",
            TomlValue::Table(_) => "a table",
        }
    }
}

/// A function that checks a string; its error states what is wrong.
pub type Check = fn(&str) -> Result<(), String>;

/// Checks whether a string can be parsed as this type.
///
/// # Errors
/// Returns the parse error of the type.
pub fn is<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<(), String> {
    text.parse::<T>().map(drop).map_err(|error| error.to_string())
}

/// The values that a key accepts.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A string, which may be empty.
    AnyText,
    /// A string that is not empty.
    Text,
    /// A string that passes a check.
    Checked(Check),
    /// An amount with its unit, as a string that passes a check; a number without a unit is refused.
    Quantity(Check),
    /// A number, or a string such as `"60 %"`. The fields are a description of the valid amounts and the check of the
    /// string.
    NumberOrText(&'static str, Check),
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number within these bounds.
    Whole(u64, u64),
    /// A number within these bounds.
    Number(f64, f64),
    /// A number above 0.
    Positive,
    /// `true` or `false`.
    Flag,
    /// A list of strings that all pass a check.
    Texts(Check),
    /// A list of whole numbers within these bounds.
    Wholes(u64, u64),
    /// A command, as a list of strings: the program and its arguments.
    Command,
    /// A list of commands.
    Commands,
    /// A table with any keys, whose values are strings.
    Named,
    /// A table with these keys.
    Table(&'static [FileKey]),
    /// One of these words, or a table with these keys.
    WordOrTable(&'static [&'static str], &'static [FileKey]),
    /// A list of tables with these keys.
    Tables(&'static [FileKey]),
}

impl Kind {
    fn words(self) -> String {
        let quoted =
            |words: &[&str]| words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ");
        match self {
            Kind::AnyText | Kind::Text | Kind::Checked(_) => "a text in quotes".to_owned(),
            Kind::Quantity(_) => "text with a unit".to_owned(),
            Kind::NumberOrText(words, _) => words.to_owned(),
            Kind::Word(words) => format!("one of {}", quoted(words)),
            Kind::Whole(low, high) => format!("a whole number from {low} to {high}"),
            Kind::Number(low, f64::INFINITY) => format!("a number, {low} or more"),
            Kind::Number(low, high) => format!("a number from {low} to {high}"),
            Kind::Positive => "a number above 0".to_owned(),
            Kind::Flag => "true or false".to_owned(),
            Kind::Texts(_) => "a list of texts, such as [\"a\", \"b\"]".to_owned(),
            Kind::Wholes(low, high) => {
                format!("a list of whole numbers from {low} to {high}, such as [1, 2]")
            }
            Kind::Command => "a command, such as [\"program\", \"argument\"]".to_owned(),
            Kind::Commands => "a list of commands, such as [[\"program\", \"argument\"]]".to_owned(),
            Kind::Named => "a table of texts".to_owned(),
            Kind::Table(keys) => format!("a table of {}", names(keys)),
            Kind::WordOrTable(words, keys) => {
                format!("one of {}, or a table of {}", quoted(words), names(keys))
            }
            Kind::Tables(keys) => format!("a list of tables of {}", names(keys)),
        }
    }
}

fn names(keys: &[FileKey]) -> String {
    keys.iter().map(|key| key.path).collect::<Vec<_>>().join(", ")
}

/// A key that a table may or must have.
#[derive(Debug, Clone, Copy)]
pub struct FileKey {
    /// Dotted path of the key, relative to the table.
    pub path: &'static str,
    /// The values that the key accepts.
    pub kind: Kind,
    /// Whether the key is mandatory.
    pub needed: bool,
}

/// Creates an optional key.
#[must_use]
pub const fn key(path: &'static str, kind: Kind) -> FileKey {
    FileKey { path, kind, needed: false }
}

/// Creates a mandatory key.
#[must_use]
pub const fn needed(path: &'static str, kind: Kind) -> FileKey {
    FileKey { path, kind, needed: true }
}

/// A value that has passed the check of its [`Kind`].
#[derive(Debug, Clone, PartialEq)]
enum Content {
    Text(String),
    Whole(u64),
    Number(f64),
    Flag(bool),
    Texts(Vec<(String, TextPlace)>),
    Wholes(Vec<(u64, TextPlace)>),
    Commands(Vec<Vec<String>>),
    Named(BTreeMap<String, (String, TextPlace)>),
    Table(Section),
    Tables(Vec<Section>),
}

/// The checked keys of a table. If a key's value is invalid, [`Section::given`] returns true, but the other methods
/// return no value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Section {
    at: TextPlace,
    size: usize,
    /// For each key: the positions of the key and of its value, and the value; `None` in place of an invalid value.
    keys: BTreeMap<String, (TextPlace, TextPlace, Option<Content>)>,
    /// Positions of the tables on the paths from the section to its keys.
    tables: BTreeMap<String, TextPlace>,
}

impl Section {
    /// Whether a key is present, with a valid value or not.
    #[must_use]
    pub fn given(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// Number of keys in the table itself, including unknown keys.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The known keys that are present, with the positions of key and value.
    pub fn places(&self) -> impl Iterator<Item = (&str, TextPlace, TextPlace)> {
        self.keys.iter().map(|(key, (key_at, at, _))| (key.as_str(), *key_at, *at))
    }

    /// Position of a key's value; if the key is absent, the position of the nearest table above it that is present.
    #[must_use]
    pub fn at(&self, key: &str) -> TextPlace {
        let mut key = key;
        loop {
            let value = self.keys.get(key).map(|(_, at, _)| *at);
            match (value.or_else(|| self.tables.get(key).copied()), key.rsplit_once('.')) {
                (Some(at), _) => return at,
                (None, Some((above, _))) => key = above,
                (None, None) => return self.at,
            }
        }
    }

    fn content(&self, key: &str) -> Option<&Content> {
        self.keys.get(key)?.2.as_ref()
    }

    /// The value of a key as a string: text, a word, or an amount as written.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        if let Some(Content::Text(text)) = self.content(key) { Some(text) } else { None }
    }

    /// The value of a key as an owned string.
    #[must_use]
    pub fn owned(&self, key: &str) -> Option<String> {
        self.text(key).map(str::to_owned)
    }

    /// The value of a key, parsed as `T`.
    #[must_use]
    pub fn parsed<T: FromStr>(&self, key: &str) -> Option<T> {
        self.text(key)?.parse().ok()
    }

    /// The value of a key, parsed by a function.
    pub fn with<T, E>(&self, key: &str, read: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        read(self.text(key)?).ok()
    }

    /// The value of a key as an integer.
    #[must_use]
    pub fn whole<T: TryFrom<u64>>(&self, key: &str) -> Option<T> {
        if let Some(Content::Whole(number)) = self.content(key) { T::try_from(*number).ok() } else { None }
    }

    /// The value of a key as a number.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<f64> {
        if let Some(Content::Number(number)) = self.content(key) { Some(*number) } else { None }
    }

    /// The value of a key as a boolean.
    #[must_use]
    pub fn flag(&self, key: &str) -> Option<bool> {
        if let Some(Content::Flag(flag)) = self.content(key) { Some(*flag) } else { None }
    }

    /// The value of a key as a list of strings, each with its position.
    #[must_use]
    pub fn texts(&self, key: &str) -> Option<&[(String, TextPlace)]> {
        if let Some(Content::Texts(texts)) = self.content(key) { Some(texts) } else { None }
    }

    /// The value of a key as a list of integers, each with its position.
    #[must_use]
    pub fn wholes(&self, key: &str) -> Option<&[(u64, TextPlace)]> {
        if let Some(Content::Wholes(numbers)) = self.content(key) { Some(numbers) } else { None }
    }

    /// The value of a key as a command.
    #[must_use]
    pub fn command(&self, key: &str) -> Option<Vec<String>> {
        self.commands(key).into_iter().next()
    }

    /// The value of a key as a list of commands; empty if the key is absent.
    #[must_use]
    pub fn commands(&self, key: &str) -> Vec<Vec<String>> {
        if let Some(Content::Commands(commands)) = self.content(key) { commands.clone() } else { Vec::new() }
    }

    /// The entries of a table with any keys: the key, its string and the position of the string.
    pub fn named(&self, key: &str) -> impl Iterator<Item = (&str, &str, TextPlace)> {
        let names = match self.content(key) {
            Some(Content::Named(names)) => Some(names),
            _ => None,
        };
        names.into_iter().flatten().map(|(name, (text, at))| (name.as_str(), text.as_str(), *at))
    }

    /// The value of a key as a table.
    #[must_use]
    pub fn table(&self, key: &str) -> Option<&Section> {
        if let Some(Content::Table(section)) = self.content(key) { Some(section) } else { None }
    }

    /// The value of a key as a list of tables.
    #[must_use]
    pub fn tables(&self, key: &str) -> Option<&[Section]> {
        if let Some(Content::Tables(sections)) = self.content(key) { Some(sections) } else { None }
    }
}

/// Reads configuration files and collects their errors.
#[derive(Debug, Default)]
pub struct Reader {
    /// Names and contents of the files.
    files: Vec<(String, String)>,
    mistakes: Vec<(TextPlace, String)>,
    /// Whether the file is one of several files that form one table. Then a missing key is not an error, because
    /// another file may contain the key.
    part: bool,
}

impl Reader {
    /// Parses another file; `name` is the file's name in messages. If the file is not valid TOML, records the errors
    /// and returns `None`.
    pub fn parse(&mut self, name: &str, text: &str) -> Option<TomlTable> {
        let file = self.files.len();
        self.files.push((name.to_owned(), text.to_owned()));
        let (root, syntax) = DeTable::parse_recoverable(text);
        if !syntax.is_empty()
            && let Some((format, offset)) = other_format(text)
        {
            let message = format!(
                "this is {format}, but commensal's files are TOML, in which [name] begins a table and key = \"text\" sets a key"
            );
            self.note(TextPlace { file, offset }, message);
            return None;
        }
        for error in &syntax {
            let offset = error.span().map_or(0, |span| span.start);
            self.note(TextPlace { file, offset }, error.message());
        }
        syntax.is_empty().then(|| table(file, root.get_ref()))
    }

    /// Records an error at a position.
    pub fn note(&mut self, at: TextPlace, message: impl Into<String>) {
        self.mistakes.push((at, message.into()));
    }

    /// Records the error of an unknown key, and suggests known keys.
    pub fn unknown(&mut self, at: TextPlace, key: &str, known: &[&str]) {
        let hint = match nearest(key, known) {
            Some(name) => format!("; did you mean {name:?}?"),
            None if known.len() <= FEW => format!("; known keys: {}", known.join(", ")),
            None => format!("; the nearest keys are {}", nearest_ones(key, known).join(", ")),
        };
        self.note(at, format!("unknown key {key:?}{hint}"));
    }

    /// Line and column of a position.
    #[must_use]
    pub fn position(&self, at: TextPlace) -> Position {
        let text = self.files.get(at.file).map_or("", |(_, text)| text);
        let (line, column) = crate::text::line_and_column(text, at.offset);
        Position { line, column }
    }

    /// Whether no error has been found so far.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.mistakes.is_empty()
    }

    /// Returns all errors, file by file, in the order of the text.
    #[must_use]
    pub fn mistakes(mut self) -> Vec<ConfigError> {
        self.mistakes.sort();
        self.mistakes.dedup();
        let error = |(place, message): &(TextPlace, String)| {
            let file = self.files.get(place.file).map(|(name, _)| name.clone()).unwrap_or_default();
            let at = SourcePlace { file, position: Some(self.position(*place)) };
            ConfigError { at, message: message.clone() }
        };
        self.mistakes.iter().map(error).collect()
    }

    /// Checks a table against its known keys and records the errors. `name` is the prefix of the keys in messages,
    /// empty for the top level of a file.
    pub fn section(&mut self, name: &str, at: TextPlace, table: &TomlTable, keys: &[FileKey]) -> Section {
        let mut section = Section { at, size: table.len(), ..Section::default() };
        self.fill(&mut section, (name, ""), table, keys);
        for row in keys.iter().filter(|row| row.needed) {
            if !self.part && !section.given(row.path) {
                self.note(section.at(row.path), format!("{} is missing", join(name, row.path)));
            }
        }
        section
    }

    /// Checks a table that may be incomplete: missing mandatory keys are not errors.
    pub fn part(&mut self, table: &TomlTable, keys: &[FileKey]) {
        self.part = true;
        self.section("", TextPlace::default(), table, keys);
        self.part = false;
    }

    fn fill(
        &mut self,
        section: &mut Section,
        (name, above): (&str, &str),
        table: &TomlTable,
        keys: &[FileKey],
    ) {
        for (key, node) in table {
            let path = join(above, key);
            let full = join(name, &path);
            if key.contains('.') && keys.iter().any(|row| row.path == path) {
                let message =
                    format!("write {full} without quotes: in quotes, the dot is a part of the name");
                self.note(node.key_at, message);
                continue;
            }
            if let Some(row) = keys.iter().find(|row| row.path == path) {
                let content = self.content(&full, row.kind, node);
                section.keys.insert(path, (node.key_at, node.at, content));
                continue;
            }
            let below = format!("{path}.");
            let mut inside = keys.iter().filter(|row| row.path.starts_with(&below)).peekable();
            match (&node.value, inside.peek()) {
                (TomlValue::Table(inner), Some(_)) => {
                    section.tables.insert(path.clone(), node.at);
                    self.fill(section, (name, &path), inner, keys);
                }
                (_, Some(_)) => {
                    let some: Vec<String> = inside.take(FEW).map(|row| join(name, row.path)).collect();
                    self.note(node.at, format!("{full} must be a table: its keys are {}", some.join(", ")));
                }
                (value, None) => {
                    let known = known(name, keys, matches!(value, TomlValue::Table(_) | TomlValue::List(_)));
                    let known: Vec<&str> = known.iter().map(String::as_str).collect();
                    self.unknown(node.key_at, &full, &known);
                }
            }
        }
    }

    /// Checks a value against its kind; if it is invalid, records an error and returns `None`.
    fn content(&mut self, key: &str, kind: Kind, node: &Node) -> Option<Content> {
        let mut wrong = |at: TextPlace, message: String| {
            self.note(at, message);
            None
        };
        match (kind, &node.value) {
            (Kind::AnyText, TomlValue::Text(text)) => Some(Content::Text(text.clone())),
            (Kind::Text, TomlValue::Text(text)) => match text.trim().is_empty() {
                true => wrong(node.at, format!("{key} must be text that is not empty")),
                false => Some(Content::Text(text.clone())),
            },
            (
                Kind::Checked(check) | Kind::Quantity(check) | Kind::NumberOrText(_, check),
                TomlValue::Text(text),
            ) => match check(text) {
                Ok(()) => Some(Content::Text(text.clone())),
                Err(why) => wrong(node.at, refused(key, text, &why)),
            },
            // The parse error of the type states which unit is expected.
            (Kind::Quantity(check), TomlValue::Whole(_) | TomlValue::Number(_)) => {
                let why = check(&written(&node.value)).err();
                let why = why.unwrap_or_else(|| "write it as text with a unit".to_owned());
                wrong(node.at, format!("{key}: a bare number has no unit: {why}"))
            }
            (Kind::NumberOrText(_, check), TomlValue::Whole(_) | TomlValue::Number(_)) => {
                let text = written(&node.value);
                match check(&text) {
                    Ok(()) => Some(Content::Text(text)),
                    Err(why) => wrong(node.at, format!("{key} = {text}: {why}")),
                }
            }
            (Kind::Word(words) | Kind::WordOrTable(words, _), TomlValue::Text(text)) => {
                if words.contains(&text.as_str()) {
                    return Some(Content::Text(text.clone()));
                }
                let hint =
                    nearest(text, words).map(|word| format!("; did you mean {word:?}?")).unwrap_or_default();
                wrong(node.at, format!("{key} must be {}{hint}", kind.words()))
            }
            (Kind::Whole(low, high), TomlValue::Whole(number)) => match bounded(*number, low, high) {
                Some(number) => Some(Content::Whole(number)),
                None => wrong(node.at, format!("{key} = {number}: it must be {}", kind.words())),
            },
            (Kind::Number(..) | Kind::Positive, TomlValue::Whole(_) | TomlValue::Number(_)) => {
                let number = number(&node.value);
                let fits = match kind {
                    Kind::Number(low, high) => (low..=high).contains(&number),
                    _ => number > 0.0,
                };
                match fits && number.is_finite() {
                    true => Some(Content::Number(number)),
                    false => wrong(node.at, format!("{key} = {number}: it must be {}", kind.words())),
                }
            }
            (Kind::Flag, TomlValue::Flag(flag)) => Some(Content::Flag(*flag)),
            (Kind::Named, TomlValue::Table(table)) => Some(self.named(key, table)),
            (Kind::Table(keys) | Kind::WordOrTable(_, keys), TomlValue::Table(table)) => {
                Some(Content::Table(self.section(key, node.at, table, keys)))
            }
            (Kind::Command, TomlValue::List(items)) => {
                self.words(key, items, node.at).map(|words| Content::Commands(vec![words]))
            }
            (_, TomlValue::List(items)) => self.list(key, kind, items, node),
            (Kind::Word(_), _) => wrong(node.at, format!("{key} must be {}", kind.words())),
            (kind, value) => wrong(node.at, format!("{key} must be {}, not {}", kind.words(), value.name())),
        }
    }

    fn named(&mut self, key: &str, table: &TomlTable) -> Content {
        let mut names = BTreeMap::new();
        for (name, Node { at, value, .. }) in table {
            match value {
                TomlValue::Text(text) => {
                    names.insert(name.clone(), (text.clone(), *at));
                }
                other => {
                    let message = format!("{key}.{name} must be a text in quotes, not {}", other.name());
                    self.note(*at, message);
                }
            }
        }
        Content::Named(names)
    }

    fn list(&mut self, key: &str, kind: Kind, items: &[Node], node: &Node) -> Option<Content> {
        let before = self.mistakes.len();
        let (mut texts, mut wholes, mut commands, mut sections) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for item in items {
            match (kind, &item.value) {
                (Kind::Texts(check), TomlValue::Text(text)) => match check(text) {
                    Ok(()) => texts.push((text.clone(), item.at)),
                    Err(why) => self.note(item.at, refused(key, text, &why)),
                },
                (Kind::Wholes(low, high), TomlValue::Whole(number)) => match bounded(*number, low, high) {
                    Some(number) => wholes.push((number, item.at)),
                    None => self.note(
                        item.at,
                        format!("{key}: {number} must be a whole number from {low} to {high}"),
                    ),
                },
                (Kind::Commands, TomlValue::List(words)) => commands.extend(self.words(key, words, item.at)),
                (Kind::Tables(keys), TomlValue::Table(table)) => {
                    sections.push(self.section(key, item.at, table, keys));
                }
                (Kind::Texts(_) | Kind::Wholes(..) | Kind::Commands | Kind::Tables(_), value) => {
                    self.note(
                        item.at,
                        format!("{key} must be {}, not one of {}", kind.words(), value.name()),
                    );
                }
                _ => {}
            }
        }
        match kind {
            // Valid tables are kept even if others are not, so that the code that owns them can check them, too.
            Kind::Tables(_) if items.is_empty() || !sections.is_empty() => Some(Content::Tables(sections)),
            _ if self.mistakes.len() > before => None,
            Kind::Texts(_) => Some(Content::Texts(texts)),
            Kind::Wholes(..) => Some(Content::Wholes(wholes)),
            Kind::Commands => Some(Content::Commands(commands)),
            _ => {
                self.note(node.at, format!("{key} must be {}, not a list", kind.words()));
                None
            }
        }
    }

    /// Checks a command, whose program name must not be empty, and returns its words.
    fn words(&mut self, key: &str, items: &[Node], at: TextPlace) -> Option<Vec<String>> {
        let mut words = Vec::new();
        for item in items {
            let TomlValue::Text(word) = &item.value else {
                self.note(
                    item.at,
                    format!("{key} must be {}, not one of {}", Kind::Command.words(), item.value.name()),
                );
                return None;
            };
            words.push(word.clone());
        }
        if words.first().is_none_or(String::is_empty) {
            self.note(at, format!("{key}: a command is empty; write it as [\"program\", \"argument\", …]"));
            return None;
        }
        Some(words)
    }
}

/// The message for an invalid string, which is added unless `why` already contains it.
fn refused(key: &str, text: &str, why: &str) -> String {
    match why.contains(&format!("{text:?}")) {
        true => format!("{key}: {why}"),
        false => format!("{key} = {text:?}: {why}"),
    }
}

fn bounded(number: i128, low: u64, high: u64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| (low..=high).contains(number))
}

fn number(value: &TomlValue) -> f64 {
    match value {
        TomlValue::Whole(number) => *number as f64,
        TomlValue::Number(number) => *number,
        _ => f64::NAN,
    }
}

/// Formats a number of a TOML file for a message.
fn written(value: &TomlValue) -> String {
    match value {
        TomlValue::Whole(number) => number.to_string(),
        other => number(other).to_string(),
    }
}

/// The full paths of the keys, and if `tables` is true, also of the tables that contain them.
fn known(name: &str, keys: &[FileKey], tables: bool) -> Vec<String> {
    let mut all: Vec<String> = keys.iter().map(|row| join(name, row.path)).collect();
    if tables {
        let above = keys.iter().flat_map(|row| row.path.match_indices('.').map(|(dot, _)| &row.path[..dot]));
        all.extend(above.map(|table| join(name, table)));
    }
    all.sort();
    all.dedup();
    all
}

fn join(above: &str, key: &str) -> String {
    if above.is_empty() { key.to_owned() } else { format!("{above}.{key}") }
}

fn table(file: usize, table: &DeTable<'_>) -> TomlTable {
    let entry = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
        let key_at = TextPlace { file, offset: key.span().start };
        (key.get_ref().to_string(), Node { key_at, ..node(file, value) })
    };
    table.iter().map(entry).collect()
}

fn node(file: usize, value: &Spanned<DeValue<'_>>) -> Node {
    let at = TextPlace { file, offset: value.span().start };
    let value = match value.get_ref() {
        DeValue::String(text) => TomlValue::Text(text.to_string()),
        DeValue::Integer(number) => {
            let digits = number.as_str();
            let most = if digits.starts_with('-') { i128::MIN } else { i128::MAX };
            TomlValue::Whole(i128::from_str_radix(digits, number.radix()).unwrap_or(most))
        }
        DeValue::Float(number) => TomlValue::Number(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => TomlValue::Flag(*flag),
        DeValue::Datetime(_) => TomlValue::Time,
        DeValue::Array(items) => TomlValue::List(items.iter().map(|item| node(file, item)).collect()),
        DeValue::Table(inner) => TomlValue::Table(table(file, inner)),
    };
    Node { key_at: at, at, value }
}

/// The format of a text that is not TOML, with the offset of its first line that has content; `None` if the text may be
/// TOML with syntax errors.
fn other_format(text: &str) -> Option<(&'static str, usize)> {
    let has_content = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let line = text.lines().find(has_content)?;
    let start = line.trim();
    let offset = start.as_ptr() as usize - text.as_ptr() as usize;
    if start.starts_with('{') || serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
        return Some(("JSON", offset));
    }
    let is_key = |name: &str| name.chars().all(|one| one.is_alphanumeric() || " -_.\"'".contains(one));
    let is_yaml = match start.split_once(':') {
        Some((name, rest)) => is_key(name) && (rest.is_empty() || rest.starts_with(' ')),
        None => start == "---" || start.starts_with("- "),
    };
    is_yaml.then_some(("YAML", offset))
}

/// Maximum number of known keys that a message lists.
const FEW: usize = 6;

/// Edit distance between the name that was written and a known name.
fn distance(given: &str, name: &str) -> usize {
    let last = |text: &str| text.rsplit('.').next().unwrap_or_default().to_owned();
    let whole = strsim::damerau_levenshtein(given, name);
    // Comparing last components lets a key in the wrong table suggest the right one.
    whole.min(strsim::damerau_levenshtein(&last(given), &last(name)) + 1)
}

/// The known name closest to the name that was written; `None` if even the closest name differs by more than a typo.
#[must_use]
pub fn nearest<'k>(given: &str, known: &[&'k str]) -> Option<&'k str> {
    let near = known.iter().map(|name| (distance(given, name), *name)).filter(|(far, _)| *far <= 3);
    near.min().map(|(_, name)| name)
}

/// The known names closest to the name that was written, at any distance; names in the same table come first.
fn nearest_ones<'k>(given: &str, known: &[&'k str]) -> Vec<&'k str> {
    let table = format!("{}.", given.split('.').next().unwrap_or(given));
    let mut all: Vec<_> =
        known.iter().map(|name| (!name.starts_with(&table), distance(given, name), *name)).collect();
    all.sort_unstable();
    all.into_iter().take(FEW).map(|(_, _, name)| name).collect()
}
