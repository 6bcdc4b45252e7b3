//! The table of outcomes in `PROMISES.md`.

use super::{ERRNOS, Fault, MOMENTS, Moment, Outcome};
use crate::crash::KINDS;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

/// A set of faults, each with whether it lasts.
type Faults = BTreeSet<(Fault, bool)>;

/// The outcomes of a cell, each with the faults that lead to it.
type Outcomes = BTreeMap<Outcome, Faults>;

/// The cells of the table, by kind of step and moment.
pub type Cells = BTreeMap<(&'static str, Moment), Outcomes>;

const ONCE: &str = "once";
const LASTING: &str = "lasting";
/// The word for all error numbers.
const REFUSED: &str = "refused";
const ALL_BUT: &str = "all but ";

/// Separator of the outcomes of a cell.
const NEXT: &str = "<br>";

const BEGIN: &str = "<!-- generated: `UPDATE=1 PROPTEST_CASES=1 cargo test -p commensal-reconcile matrix` rewrites this table -->\n";
const END: &str = "<!-- end of the generated table -->\n";

/// Returns the table's text for an outcome.
fn words(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done anyway",
        Outcome::OtherWay => "done in another way, reported",
        Outcome::AsBefore => "all refused, machine as before",
        Outcome::PartLeft => "all refused, what could not be reverted is reported",
        Outcome::Stays => "the process stays",
        Outcome::LeftOut => "only this step left out",
        Outcome::LeftOutWithOthers => "left out with the steps that need it",
    }
}

fn fault_words(fault: Fault) -> String {
    match fault {
        Fault::Says(errno) => errno.to_string(),
        Fault::Ignored => "ignored".to_owned(),
        Fault::Altered => "altered".to_owned(),
    }
}

/// Returns the names of some faults: nothing for all of them, `refused` for all error numbers.
fn names(some: &BTreeSet<Fault>, every: &BTreeSet<Fault>) -> String {
    let numbers = ERRNOS.map(Fault::Says);
    let missing: Vec<String> = every.difference(some).copied().map(fault_words).collect();
    let refused = numbers.iter().all(|one| some.contains(one));
    match missing.len() {
        0 => String::new(),
        _ if refused => {
            let silent = some.iter().filter(|one| !numbers.contains(one)).copied().map(fault_words);
            std::iter::once(REFUSED.to_owned()).chain(silent).collect::<Vec<_>>().join(", ")
        }
        1 => format!("{ALL_BUT}{}", missing.join(", ")),
        _ => some.iter().copied().map(fault_words).collect::<Vec<_>>().join(", "),
    }
}

/// Describes which faults lead to an outcome, if not all do: once or lasting, and which ones.
fn when(faults: &Faults, cell: &Outcomes) -> String {
    let all: Faults = cell.values().flatten().copied().collect();
    let of = |set: &Faults, lasts| -> BTreeSet<Fault> {
        set.iter().filter(|(_, one)| *one == lasts).map(|(fault, _)| *fault).collect()
    };
    let part = |lasts| {
        let some = of(faults, lasts);
        (!some.is_empty()).then(|| names(&some, &of(&all, lasts)))
    };
    let words = |often: &str, names: String| match names.is_empty() {
        true => often.to_owned(),
        false => format!("{often}: {names}"),
    };
    match (part(false), part(true)) {
        (Some(once), Some(lasting)) if once == lasting && once.is_empty() => String::new(),
        (Some(once), Some(lasting)) if once == lasting => format!(" ({once})"),
        (once, lasting) => {
            let parts = [once.map(|names| words(ONCE, names)), lasting.map(|names| words(LASTING, names))];
            format!(" ({})", parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
        }
    }
}

fn cell(outcomes: &Outcomes) -> String {
    let one =
        |(outcome, faults): (&Outcome, &Faults)| format!("{}{}", words(*outcome), when(faults, outcomes));
    outcomes.iter().map(one).collect::<Vec<_>>().join(NEXT)
}

/// Formats the table as Markdown.
pub fn text(cells: &Cells) -> String {
    let mut text = String::from(
        "| step | apply | tick | safe state | restore | hand-over |\n|---|---|---|---|---|---|\n",
    );
    for kind in KINDS {
        let row = MOMENTS.map(|moment| cells.get(&(kind, moment)).map_or("–".to_owned(), cell));
        let _ = writeln!(text, "| {kind} | {} |", row.join(" | "));
    }
    text
}

fn path() -> PathBuf {
    PathBuf::from("../../PROMISES.md")
}

/// Returns the parts of the page before, in and after the table.
fn page() -> [String; 3] {
    let page = std::fs::read_to_string(path()).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the marker above the table");
    let (stored, after) = rest.split_once(END).expect("the marker below the table");
    [before, stored, after].map(str::to_owned)
}

/// Compares the table of the whole product with the one in the page, or writes it there if `UPDATE` is set.
pub fn compare(table: &str) {
    let [before, stored, after] = page();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path(), format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(
        stored, table,
        "UPDATE=1 PROPTEST_CASES=1 cargo test -p commensal-reconcile matrix rewrites it"
    );
}

/// Whether a cell allows this outcome for a fault; the inverse of [`when`].
fn says(cell: &str, outcome: Outcome, (fault, lasts): (Fault, bool)) -> bool {
    let often = if lasts { LASTING } else { ONCE };
    let is_named = |names: &str| match names.strip_prefix(ALL_BUT) {
        Some(others) => others != fault_words(fault),
        None => names
            .split(", ")
            .any(|name| name == fault_words(fault) || (name == REFUSED && matches!(fault, Fault::Says(_)))),
    };
    let is_of = |part: &str| match part.split_once(": ") {
        Some((when, names)) => when == often && is_named(names),
        None if [ONCE, LASTING].contains(&part) => part == often,
        None => is_named(part),
    };
    cell.split(NEXT).any(|line| match line.strip_prefix(words(outcome)) {
        Some("") => true,
        Some(which) => which.trim_matches([' ', '(', ')']).split("; ").any(is_of),
        None => false,
    })
}

/// Asserts that the table in the page has all these outcomes, which are a part of the product.
pub fn allows(cells: &Cells) {
    let [_, stored, _] = page();
    let rows: Vec<Vec<&str>> = stored.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
    let mut wrong = Vec::new();
    for ((kind, moment), outcomes) in cells {
        let column = MOMENTS.iter().position(|one| one == moment).unwrap() + 2;
        let cell =
            rows.iter().find(|row| row.get(1) == Some(kind)).and_then(|row| row.get(column)).unwrap_or(&"");
        let all =
            outcomes.iter().flat_map(|(outcome, faults)| faults.iter().map(move |one| (*outcome, *one)));
        let others = all.filter(|(outcome, one)| !says(cell, *outcome, *one));
        wrong
            .extend(others.map(|other| format!("{kind} {moment:?}: {other:?}, and the table says {cell:?}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
