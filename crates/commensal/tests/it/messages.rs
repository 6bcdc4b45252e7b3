//! Every error message has an entry in docs/messages.md, and every entry quotes a message that the program has. The sources
//! are compared, because most of the errors cannot be produced on one machine.

use commensal_testkit::docs::{documents, top};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Crates whose errors users of `commensal` and `commensal-sched` see.
const CRATES: [&str; 10] = [
    "commensal",
    "commensal-agent",
    "commensal-blame",
    "commensal-core",
    "commensal-density",
    "commensal-host",
    "commensal-lab",
    "commensal-reconcile",
    "commensal-sched",
    "commensal-sensors",
];

/// What precedes the text of an error.
const MARKERS: [&str; 6] =
    ["#[error(", "bail!(", "anyhow!(", ".context(", ".with_context(|| format!(", "Error::new("];

/// Letters of a message that is more than another error and its place.
const OWN_WORDS: usize = 12;

/// Files whose errors no user sees: a machine for tests, and hidden commands.
const HIDDEN: [&str; 3] = ["/fake", "/faults.rs", "/cli/workload.rs"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = path.display().to_string();
        if HIDDEN.iter().any(|hidden| name.contains(hidden)) || name.ends_with("/tests.rs") {
            continue;
        }
        match path.is_dir() {
            true => sources(&path, found),
            false => found.push(path),
        }
    }
}

/// The code of every file, without its tests.
fn code() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    CRATES.iter().for_each(|name| sources(&top().join("crates").join(name).join("src"), &mut files));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path, text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned())
    };
    files.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "rs")).map(read).collect()
}

/// The string literal at the beginning of the code as a message, with `…` in place of values.
fn message(code: &str) -> Option<String> {
    let code = code.trim_start();
    let code = code.strip_prefix("format!(").unwrap_or(code).trim_start().strip_prefix('"')?;
    let (mut text, mut depth) = (String::new(), 0);
    let mut rest = code.chars();
    while let Some(one) = rest.next() {
        match one {
            '"' => break,
            '\\' => match rest.next()? {
                '\n' => rest = rest.as_str().trim_start().chars(),
                'n' => text.push(' '),
                other => text.push(other),
            },
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                text.push('…');
            }
            _ if depth == 0 => text.push(one),
            _ => {}
        }
    }
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Each message of the program, and a file that has it.
fn messages() -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for (path, code) in code() {
        for marker in MARKERS {
            let texts = code.split(marker).skip(1).filter_map(message);
            found.extend(texts.map(|text| (text, path.clone())));
        }
    }
    found
}

/// The messages that the page quotes.
fn quotes() -> Vec<String> {
    let page = std::fs::read_to_string(top().join("docs/messages.md")).unwrap();
    let quoted = |line: &str| Some(line.strip_prefix("- `")?.strip_suffix('`')?.to_owned());
    page.lines().filter_map(quoted).collect()
}

#[test]
fn every_error_message_has_an_entry() {
    let (messages, quotes) = (messages(), quotes());
    assert!(messages.len() > 200, "errors are made in another way: {}", messages.len());
    // A message that begins with an option says which values the option takes.
    let of_its_own = |text: &str| {
        text.chars().filter(|one| one.is_alphabetic()).count() >= OWN_WORDS && !text.starts_with("--")
    };
    let has_entry = |text: &str| quotes.iter().any(|quote| text.contains(quote.as_str()));
    let without = messages.iter().filter(|(text, _)| of_its_own(text) && !has_entry(text));
    let without: Vec<String> = without.map(|(text, path)| format!("{}: {text}", path.display())).collect();
    assert!(without.is_empty(), "docs/messages.md has no entry for\n{}", without.join("\n"));
}

#[test]
fn every_entry_quotes_a_message() {
    let messages = messages();
    let strange: Vec<String> =
        quotes().into_iter().filter(|quote| !messages.keys().any(|text| text.contains(quote))).collect();
    assert!(strange.is_empty(), "no error message contains\n{}", strange.join("\n"));
}

/// A heading of the page by symptom names commands, or quotes what the program prints.
#[test]
fn quotes_in_headings_are_what_the_program_prints() {
    let code: String = code().into_iter().map(|(_, code)| code).collect();
    let page = documents().into_iter().find(|one| one.name == "docs/troubleshooting.md").unwrap();
    let mut quoted = 0;
    for heading in page.headings() {
        for quote in heading.split('`').skip(1).step_by(2) {
            for part in quote.split(['…', ':']).map(str::trim).filter(|part| !part.is_empty()) {
                assert!(code.contains(part), "{heading}: the program never prints {part:?}");
                quoted += 1;
            }
        }
    }
    assert!(quoted >= 8, "{quoted}");
}

#[test]
fn a_message_is_read_as_the_compiler_reads_it() {
    let text = "\n    \"{name:?} is\\n  not \\\n         \\\"here\\\": {0}\", .0)";
    assert_eq!(message(text).as_deref(), Some("… is not \"here\": …"));
    assert_eq!(message("format!(\"a {b} c\")").as_deref(), Some("a … c"));
    assert_eq!(message("error)"), None);
}
