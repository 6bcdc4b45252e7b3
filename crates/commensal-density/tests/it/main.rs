//! Mistakes in the three kinds of files, one made of every key by every slip: each is told where it stands, beside another one
//! in the same pass. They are here because this crate sees all three.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]

use commensal_core::config;
use commensal_core::toml_reader::{FileKey, Kind};
use commensal_density::experiment as ladder;
use commensal_lab::experiment;

/// What is wrong with a text.
type Mistakes = fn(&str) -> Vec<String>;

fn of_groups(text: &str) -> Vec<String> {
    let wrong = config::parse_file("x.toml", text).err().unwrap_or_default();
    wrong.iter().map(ToString::to_string).collect()
}

fn of_experiment(text: &str) -> Vec<String> {
    let wrong = experiment::parse("x.toml", text).err().map(|error| error.wrong).unwrap_or_default();
    wrong.iter().map(ToString::to_string).collect()
}

fn of_ladder(text: &str) -> Vec<String> {
    let wrong = ladder::parse("x.toml", text).err().map(|error| error.wrong).unwrap_or_default();
    wrong.iter().map(ToString::to_string).collect()
}

/// Values that a key cannot have because of their type.
fn of_another_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Whole(..) | Kind::Number(..) | Kind::Positive | Kind::Flag => "\"yes\"",
        Kind::AnyText
        | Kind::Text
        | Kind::Checked(_)
        | Kind::Quantity(_)
        | Kind::NumberOrText(..)
        | Kind::Word(_)
        | Kind::Texts(_)
        | Kind::Wholes(..)
        | Kind::Command
        | Kind::Commands
        | Kind::Named
        | Kind::Table(_)
        | Kind::WordOrTable(..)
        | Kind::Tables(_) => "true",
    }
}

/// Values with nothing in them, where a key must have something.
fn empty(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Text | Kind::Checked(_) | Kind::Quantity(_) | Kind::NumberOrText(..) => Some("\"\""),
        Kind::Word(_) | Kind::WordOrTable(..) => Some("\"\""),
        Kind::Command => Some("[]"),
        _ => None,
    }
}

/// Where the keys of a table are written, on one line.
struct Slot {
    before: String,
    after: String,
    path: String,
}

/// Tries every slip with every key, and with those of the tables in it; how many were made.
fn slips(head: &str, slot: &Slot, keys: &[FileKey], mistakes: Mistakes) -> usize {
    let mut made = 0;
    let line = head.lines().count() + 1;
    let told = |text: &str, column: usize, words: &[&str]| {
        let (said, at) = (mistakes(text), format!("x.toml:{line}:{column}: "));
        let fits = |one: &String| one.starts_with(&at) && words.iter().all(|word| one.contains(word));
        assert!(said.iter().any(fits), "{text}\nnothing at {at} with {words:?}\n{}", said.join("\n"));
        assert!(said.iter().any(|one| one.starts_with("x.toml:1:1: unknown key \"nonsense\"")), "{said:?}");
    };
    let Slot { before, after, path } = slot;
    for row in keys {
        let (key, full) = (row.path, format!("{path}{}", row.path));
        let column = before.chars().count() + 1;
        let value_column = column + key.len() + 3;
        let with = |value: &str| format!("{head}{before}{key} = {value}{after}\n");
        told(&with(of_another_type(row.kind)), value_column, &[&full]);
        if matches!(row.kind, Kind::Quantity(_)) {
            told(&with("7"), value_column, &[&full, "a bare number has no unit"]);
        }
        if let Some(value) = empty(row.kind) {
            told(&with(value), value_column, &[&full]);
        }
        let unknown = format!("{head}{before}{key}x = 1{after}\n");
        // The last word of a dotted key is what is unknown.
        let last = column + key.rfind('.').map_or(0, |dot| dot + 1);
        told(&unknown, last, &[&format!("unknown key \"{full}x\"; did you mean \"{full}\"?")]);
        let one = format!("{key} = 1");
        if before.is_empty() {
            let twice = format!("{head}{one}\n{one}\n");
            let said = mistakes(&twice);
            let at = format!("x.toml:{}:", line + 1);
            assert!(
                said.iter().any(|said| said.starts_with(&at) && said.contains("duplicate key")),
                "{twice}{said:?}"
            );
        } else {
            let twice = format!("{head}{before}{one}, {one}{after}\n");
            assert!(mistakes(&twice).iter().any(|said| said.contains("duplicate key")), "{twice}");
        }
        made += 3;
    }
    for row in keys {
        let full = format!("{path}{}.", row.path);
        let (open, close, inner) = match row.kind {
            Kind::Table(inner) | Kind::WordOrTable(_, inner) => ("{ ", " }", inner),
            Kind::Tables(inner) => ("[{ ", " }]", inner),
            _ => continue,
        };
        let before = format!("{before}{} = {open}", row.path);
        let slot = Slot { before, after: format!("{close}{after}"), path: full };
        made += slips(head, &slot, inner, mistakes);
    }
    made
}

// promise 39
#[test]
fn every_slip_with_every_key_is_told_where_it_stands() {
    let kinds: [(&str, Vec<FileKey>, Mistakes); 4] = [
        ("nonsense = 1\n[group.g]\n", config::keys(), of_groups),
        ("nonsense = 1\n[agent]\n", config::AGENT_KEYS.to_vec(), of_groups),
        ("nonsense = 1\n", experiment::KEYS.to_vec(), of_experiment),
        ("nonsense = 1\n", ladder::KEYS.to_vec(), of_ladder),
    ];
    for (head, keys, mistakes) in kinds {
        let slot = Slot { before: String::new(), after: String::new(), path: String::new() };
        let made = slips(head, &slot, &keys, mistakes);
        assert!(made >= 3 * keys.len(), "{made} of {} keys", keys.len());
    }
}

/// Whatever a text has become, it is read or it is told what is wrong, and where.
// promise 39
#[test]
fn no_text_makes_a_reader_panic() {
    let check = |text: &str, mistakes: Mistakes| {
        for one in mistakes(text) {
            let place = one.strip_prefix("x.toml:").and_then(|rest| rest.split_once(": "));
            let (line, column) = place.unwrap_or_else(|| panic!("{one}")).0.split_once(':').unwrap();
            let (line, column): (usize, usize) = (line.parse().unwrap(), column.parse().unwrap());
            assert!(line <= text.matches('\n').count() + 1 && column >= 1, "{one}\n{text}");
        }
    };
    let groups = "[agent]\nheadroom = \"auto\"\n[group.etl]\nclass = \"offline\"\nmatch = [{ cgroup = \"/b/*\" }, { process = { exe = \"x\" } }]\n\
                  cpu.max = \"50 %\"\nqueue = { max-concurrency = 4 }\n";
    let shipped = |name: &str| experiment::SHIPPED.iter().find(|(known, _)| *known == name).unwrap().1;
    let texts: [(&str, Mistakes); 5] = [
        (groups, of_groups),
        (shipped("quickstart"), of_experiment),
        (shipped("nginx-vs-ffmpeg"), of_experiment),
        (ladder::SHIPPED[0].1, of_ladder),
        (ladder::SHIPPED[5].1, of_ladder),
    ];
    for (text, mistakes) in texts {
        assert!(!text.contains("x.toml"));
        for (at, letter) in text.char_indices().step_by(1 + text.len() / 120) {
            check(&text[..at], mistakes);
            for other in ["\"", "[", "{", "=", "\n", "9", "\u{1f6e0}"] {
                let after = at + letter.len_utf8();
                check(&format!("{}{other}{}", &text[..at], &text[after..]), mistakes);
                check(&format!("{}{other}{}", &text[..at], &text[at..]), mistakes);
            }
        }
    }
}
