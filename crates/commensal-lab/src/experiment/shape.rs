//! The shape of an experiment's file: which keys there are, of what kind each is, and where each stands in the text, so that
//! every mistake is told with line and column, all in one pass.

use commensal_core::config::nearest;
use commensal_core::text::line_and_column;
use std::collections::BTreeMap;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What a key may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Whole,
    Number,
    /// Requests per second, or a share in text.
    Rate,
    Flag,
    Texts,
    Wholes,
    /// Lists of words.
    Commands,
    /// A text, or a table of keys that stand here as well.
    TextOrTable,
    /// Names of the file's own, each with a text.
    Named,
    /// Tables in a list, of keys that stand here as well.
    Tables,
}

impl Kind {
    fn words(self) -> &'static str {
        match self {
            Kind::Text => "a text in quotes",
            Kind::Whole => "a whole number",
            Kind::Number => "a number",
            Kind::Rate => "a number, or a text such as \"60 %\"",
            Kind::Flag => "true or false",
            Kind::Texts => "a list of texts, such as [\"a\", \"b\"]",
            Kind::Wholes => "a list of whole numbers, such as [1, 2]",
            Kind::Commands => "a list of commands, such as [[\"program\", \"argument\"]]",
            Kind::TextOrTable => "a text or a table",
            Kind::Named => "a table of texts",
            Kind::Tables => "a list of tables",
        }
    }

    fn fits(self, value: &DeValue<'_>) -> bool {
        let texts = |list: &DeValue<'_>| matches!(list, DeValue::Array(items) if items.iter().all(|item| item.get_ref().is_str()));
        match (self, value) {
            (Kind::Text | Kind::TextOrTable | Kind::Rate, DeValue::String(_))
            | (Kind::Whole | Kind::Number | Kind::Rate, DeValue::Integer(_))
            | (Kind::Number | Kind::Rate, DeValue::Float(_))
            | (Kind::Flag, DeValue::Boolean(_))
            | (Kind::TextOrTable, DeValue::Table(_)) => true,
            (Kind::Texts, list) => texts(list),
            (Kind::Wholes, DeValue::Array(items)) => items.iter().all(|item| item.get_ref().is_integer()),
            (Kind::Commands, DeValue::Array(items)) => items.iter().all(|item| texts(item.get_ref())),
            (Kind::Named, DeValue::Table(table)) => table.values().all(|value| value.get_ref().is_str()),
            (Kind::Tables, DeValue::Array(items)) => items.iter().all(|item| item.get_ref().is_table()),
            _ => false,
        }
    }
}

/// Every key.
const KEYS: &[(&str, Kind)] = &[
    ("about", Kind::Text),
    ("arms", Kind::Texts),
    ("restart", Kind::Text),
    ("root", Kind::Flag),
    ("disk", Kind::Text),
    ("design.rounds", Kind::Whole),
    ("design.block", Kind::Text),
    ("design.settle", Kind::Text),
    ("design.warmup", Kind::Text),
    ("design.threshold", Kind::Text),
    ("design.thresholds", Kind::Named),
    ("design.gates", Kind::Texts),
    ("design.percentiles", Kind::Texts),
    ("design.seed", Kind::Whole),
    ("design.style", Kind::Text),
    ("design.min-offline", Kind::Text),
    ("design.slo.metric", Kind::Text),
    ("design.slo.latency", Kind::Text),
    ("design.slo.window", Kind::Text),
    ("design.blame.wait-ms-per-cpu-s", Kind::Number),
    ("design.blame.preemption-p99-us", Kind::Number),
    ("design.carry-over", Kind::Text),
    ("design.for", Kind::Text),
    ("design.window", Kind::Text),
    ("design.guard", Kind::Text),
    ("design.per-round", Kind::Whole),
    ("design.contended", Kind::Text),
    ("design.contended-every", Kind::Whole),
    ("design.vary", Kind::Text),
    ("metric", Kind::Tables),
    ("metric.name", Kind::Text),
    ("metric.query", Kind::Text),
    ("metric.url", Kind::Text),
    ("metric.better", Kind::Text),
    ("metric.threshold", Kind::Text),
    ("metric.scrape", Kind::Text),
    ("metric.gate", Kind::Flag),
    ("online.attach", Kind::Text),
    ("online.address", Kind::Text),
    ("online.command", Kind::Texts),
    ("online.files", Kind::Named),
    ("online.prepare", Kind::Commands),
    ("online.setup", Kind::Commands),
    ("online.cleanup", Kind::Commands),
    ("online.ready", Kind::TextOrTable),
    ("online.ready.http", Kind::Text),
    ("online.ready.command", Kind::Texts),
    ("online.ready-within", Kind::Text),
    ("load.http", Kind::Text),
    ("load.rate", Kind::Rate),
    ("load.connections", Kind::Whole),
    ("load.arrival", Kind::Text),
    ("load.tool", Kind::Text),
    ("load.command", Kind::Texts),
    ("load.stdin", Kind::Text),
    ("load.output", Kind::Text),
    ("load.concurrency", Kind::Whole),
    ("offline.attach", Kind::Text),
    ("offline.built-in", Kind::Text),
    ("offline.command", Kind::Texts),
    ("offline.files", Kind::Named),
    ("offline.prepare", Kind::Commands),
    ("offline.cleanup", Kind::Commands),
    ("offline.work", Kind::Text),
    ("offline.cpus", Kind::Number),
    ("offline.ramp", Kind::Wholes),
    ("requires", Kind::Tables),
    ("requires.program", Kind::Text),
    ("requires.package", Kind::Text),
    ("requires.version", Kind::Texts),
    ("requires.at-least", Kind::Text),
];

/// Mistakes of one file, each where it stands. Without a text, such as for options of a command line, they have no place.
#[derive(Debug, Default)]
pub(super) struct Mistakes {
    name: String,
    text: String,
    /// Where the value of each key begins, in bytes; items of lists have keys such as `arms[2]`.
    places: BTreeMap<String, usize>,
    found: Vec<(usize, String)>,
}

impl Mistakes {
    /// Reads the shape of a file; what is wrong with it is noted.
    pub fn of(name: &str, text: &str) -> Mistakes {
        let mut all = Mistakes { name: name.to_owned(), text: text.to_owned(), ..Mistakes::default() };
        let (root, syntax) = DeTable::parse_recoverable(text);
        for error in &syntax {
            all.found.push((error.span().map_or(0, |span| span.start), error.message().to_owned()));
        }
        if syntax.is_empty() {
            all.table("", root.get_ref());
        }
        all
    }

    fn table(&mut self, above: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let place = join(above, key.get_ref());
            self.places.insert(place.clone(), value.span().start);
            // `requires[0].program` is known as `requires.program`.
            let path: String = place
                .split('.')
                .map(|part| part.split('[').next().unwrap_or(part))
                .collect::<Vec<_>>()
                .join(".");
            let kind = KEYS.iter().find(|(known, _)| *known == path).map(|(_, kind)| *kind);
            let below = KEYS
                .iter()
                .any(|(known, _)| known.strip_prefix(&path).is_some_and(|rest| rest.starts_with('.')));
            match (kind, value.get_ref()) {
                (Some(kind), value_now) if !kind.fits(value_now) => {
                    self.found.push((value.span().start, format!("{path} must be {}", kind.words())));
                }
                (Some(Kind::Tables), DeValue::Array(items)) => {
                    for (index, item) in items.iter().enumerate() {
                        self.item(&place, index, item);
                    }
                }
                (Some(Kind::Texts), DeValue::Array(items)) => {
                    for (index, item) in items.iter().enumerate() {
                        self.places.insert(format!("{place}[{index}]"), item.span().start);
                    }
                }
                (Some(Kind::Named), DeValue::Table(names)) => {
                    for (name, value) in names {
                        self.places.insert(join(&place, name.get_ref()), value.span().start);
                    }
                }
                (_, DeValue::Table(inner)) if below => self.table(&place, inner),
                (Some(_), _) => {}
                (None, _) if below => {
                    self.found.push((value.span().start, format!("{path} must be a table: write [{path}]")));
                }
                (None, _) => self.unknown(key.span().start, &path),
            }
        }
    }

    fn item(&mut self, place: &str, index: usize, item: &Spanned<DeValue<'_>>) {
        let place = format!("{place}[{index}]");
        self.places.insert(place.clone(), item.span().start);
        if let DeValue::Table(table) = item.get_ref() {
            self.table(&place, table);
        }
    }

    fn unknown(&mut self, at: usize, path: &str) {
        let names: Vec<&str> = KEYS.iter().map(|(known, _)| *known).collect();
        let hint = match nearest(path, &names) {
            Some(name) => format!("; did you mean {name:?}?"),
            None => {
                let above = path.rsplit_once('.').map_or("", |(above, _)| above);
                let here = names.iter().filter_map(|name| match above {
                    "" => name.split('.').next(),
                    above => name.strip_prefix(above)?.strip_prefix('.'),
                });
                let mut here: Vec<&str> = here.collect();
                here.dedup();
                format!("; known keys here: {}", here.join(", "))
            }
        };
        self.found.push((at, format!("unknown key {path:?}{hint}")));
    }

    /// Notes a mistake of this key's value, or of the nearest table above it that the file has.
    pub fn at(&mut self, key: &str, message: impl Into<String>) {
        let mut key = key;
        let place = loop {
            match (self.places.get(key), key.rsplit_once('.')) {
                (Some(place), _) => break *place,
                (None, Some((above, _))) => key = above,
                (None, None) => break 0,
            }
        };
        self.found.push((place, message.into()));
    }

    /// Notes a mistake that the reader of TOML found.
    pub fn of_toml(&mut self, error: &toml::de::Error) {
        self.found.push((error.span().map_or(0, |span| span.start), error.message().to_owned()));
    }

    pub fn none(&self) -> bool {
        self.found.is_empty()
    }

    /// All mistakes in the order of the text, `NAME:LINE:COLUMN: what is wrong`, or without a place where there is no text.
    pub fn lines(mut self) -> Vec<String> {
        self.found.sort();
        self.found.dedup();
        let (name, text) = (&self.name, &self.text);
        let line = |(at, message): (usize, String)| {
            if text.is_empty() && name.is_empty() {
                return message;
            }
            let (line, column) = line_and_column(text, at);
            format!("{name}:{line}:{column}: {message}")
        };
        self.found.into_iter().map(line).collect()
    }
}

fn join(above: &str, key: &str) -> String {
    if above.is_empty() { key.to_owned() } else { format!("{above}.{key}") }
}
