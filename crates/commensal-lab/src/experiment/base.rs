//! The keys `based-on` and `without` of an experiment file. The file then contains only its differences from another
//! experiment, its base.
//!
//! ```text
//! based-on = "nginx-vs-ffmpeg"      # a shipped experiment, or "other.toml" next to this file
//! without  = ["load.rate"]          # keys of the base that are removed first
//! ```
//! The parser merges tables key by key. Any other value, also a list, replaces the value of the base. A base can have a
//! base itself; the files then form a chain.

use super::{KEYS, SHIPPED};
use commensal_core::toml_reader::{FileKey, Kind, Reader, TextPlace, TomlTable, TomlValue, key, nearest};
use std::fmt::Write;
use std::path::{Component, Path, PathBuf};

pub(super) const BASED_ON: FileKey = key("based-on", Kind::Text);
pub(super) const WITHOUT: FileKey = key("without", Kind::Texts(|_| Ok(())));

/// Reads a file by its path relative to that of the experiment file; the error is a message for the user.
pub type FileReader<'a> = dyn FnMut(&Path) -> Result<String, String> + 'a;

/// Maximum number of files in a chain of bases.
const MOST: usize = 8;

/// Merges the keys of a file with those of its bases. Returns the merged keys, and the text of the file followed by the
/// texts of the bases as comments. Returns `None` if a base could not be read; `reader` collects the mistakes.
pub(super) fn whole(
    reader: &mut Reader,
    name: &str,
    text: &str,
    beside: &mut FileReader<'_>,
) -> Option<(TomlTable, String)> {
    let (mut chain, mut source) = (vec![plain(Path::new(name))], text.to_owned());
    let table = merged_with_base(reader, text, &mut chain, &mut source, beside)?;
    Some((table, source))
}

/// Parses `text`, the last file of `chain`, and merges it with its own bases.
fn merged_with_base(
    reader: &mut Reader,
    text: &str,
    chain: &mut Vec<String>,
    source: &mut String,
    beside: &mut FileReader<'_>,
) -> Option<TomlTable> {
    let name = chain.last()?.clone();
    let mut table = reader.parse(&name, text)?;
    let own: TomlTable =
        [BASED_ON.path, WITHOUT.path].into_iter().filter_map(|key| table.remove_entry(key)).collect();
    let keys = reader.section("", TextPlace::default(), &own, &[BASED_ON, WITHOUT]);
    let without = keys.texts(WITHOUT.path).unwrap_or_default();
    let Some(wanted) = keys.text(BASED_ON.path) else {
        if keys.given(WITHOUT.path) && !keys.given(BASED_ON.path) {
            reader.note(keys.at(WITHOUT.path), "without removes keys of a base, so it needs based-on");
        }
        if keys.given(BASED_ON.path) {
            reader.part(&table, KEYS);
            return None;
        }
        return Some(table);
    };
    let found = base(&name, wanted, chain, beside);
    let (base_name, base_text) = match found {
        Ok(found) => found,
        Err(why) => {
            reader.note(keys.at(BASED_ON.path), format!("based-on = {wanted:?}: {why}"));
            reader.part(&table, KEYS);
            return None;
        }
    };
    let _ = write!(source, "\n# {name} is based on {base_name}:\n#\n");
    for line in base_text.lines() {
        let _ = writeln!(source, "{}", format!("# {line}").trim_end());
    }
    chain.push(base_name.clone());
    let Some(mut all) = merged_with_base(reader, &base_text, chain, source, beside) else {
        reader.part(&table, KEYS);
        return None;
    };
    for (path, at) in without {
        if !take(&mut all, path) {
            reader.note(*at, format!("without: {base_name} has no {path:?}"));
        }
    }
    merge(&mut all, table);
    Some(all)
}

/// Returns the name and the text of the base of a file.
fn base(
    name: &str,
    wanted: &str,
    chain: &[String],
    beside: &mut FileReader<'_>,
) -> Result<(String, String), String> {
    let is_file = wanted.ends_with(".toml");
    let path = Path::new(name).parent().unwrap_or(Path::new("")).join(wanted);
    let base = if is_file { plain(&path) } else { wanted.to_owned() };
    if chain.contains(&base) {
        return Err(format!("the files are based on each other in a circle: {}, {base}", chain.join(", ")));
    }
    if chain.len() >= MOST {
        return Err(format!("more than {MOST} files are based on each other"));
    }
    if is_file {
        return beside(Path::new(&base)).map(|text| (base, text));
    }
    let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
    let known = SHIPPED.iter().find(|(known, _)| *known == wanted);
    known.map(|(_, text)| (base, (*text).to_owned())).ok_or_else(|| {
        let hint =
            nearest(wanted, &names).map(|name| format!("; did you mean {name:?}?")).unwrap_or_default();
        format!(
            "no built-in experiment has this name{hint}; built-in: {}; the name of a file must end in .toml",
            names.join(", ")
        )
    })
}

/// Normalises a path: removes `.` components, and each `..` together with the component before it.
fn plain(path: &Path) -> String {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match (part, parts.components().next_back()) {
            (Component::CurDir, _) => {}
            (Component::ParentDir, Some(Component::Normal(_))) => {
                parts.pop();
            }
            (part, _) => parts.push(part),
        }
    }
    parts.display().to_string()
}

/// Merges `over` into `base`; values in `over` win.
fn merge(base: &mut TomlTable, over: TomlTable) {
    for (key, mut node) in over {
        let below = base.get_mut(&key).map(|node| &mut node.value);
        if let (Some(TomlValue::Table(below)), TomlValue::Table(over)) = (below, &mut node.value) {
            merge(below, std::mem::take(over));
            std::mem::swap(below, over);
        }
        base.insert(key, node);
    }
}

/// Removes a key from a table; returns whether the table had the key.
fn take(table: &mut TomlTable, path: &str) -> bool {
    table.remove(path).is_some()
        || path.match_indices('.').any(|(dot, _)| {
            match table.get_mut(&path[..dot]).map(|node| &mut node.value) {
                Some(TomlValue::Table(below)) => take(below, &path[dot + 1..]),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::super::{Experiment, Load, Offline, Online, read};
    use super::*;
    use crate::record::Metric;

    const ONE: &str = r#"about = "one"
arms = ["baseline", "baseline2", "contended", "isolated"]
[design]
rounds = 6
gates = ["P50", "QPS"]
thresholds = { P90 = "10 %" }
[online]
command = ["server"]
files = { "a.conf" = "a", "b.conf" = "b" }
[load]
http = "/"
rate = "15 %"
[offline]
command = ["job"]
"#;

    /// Parses the first of several files; the others can be its bases.
    fn files(all: &[(&str, &str)]) -> Result<Experiment, String> {
        let mut beside = |path: &Path| {
            let found = all.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "there is no such file".to_owned())
        };
        read(all[0].0, all[0].1, &mut beside).map_err(|error| error.to_string())
    }

    // promise 39
    #[test]
    fn a_file_is_what_differs() {
        let two = "based-on = \"one.toml\"\nwithout = [\"load.rate\", \"load.http\", \"online.files.a.conf\"]\n[design]\ngates = [\"P99\"]\n\
                   thresholds = { P99 = \"20 %\" }\n[online.files]\n\"b.conf\" = \"c\"\n[load]\ntool = \"wrk\"\ncommand = [\"wrk\"]\n";
        let three = "based-on = \"sub/two.toml\"\nabout = \"three\"\n[offline]\ncpus = 2\n";
        let all = [("/d/three.toml", three), ("/d/sub/two.toml", two), ("/d/sub/one.toml", ONE)];
        let read = files(&all).unwrap();
        assert_eq!((read.about.as_str(), read.design.rounds, read.arms.len()), ("three", 6, 4));
        assert_eq!(read.design.gates, [Metric::P99]);
        assert_eq!(
            (read.design.threshold_of(Metric::P90), read.design.threshold_of(Metric::P99)),
            (10.0, 20.0)
        );
        let Online::Program(service) = &read.online else { panic!("{:?}", read.online) };
        assert_eq!(service.files.iter().collect::<Vec<_>>(), [(&"b.conf".to_owned(), &"c".to_owned())]);
        assert!(matches!(&read.load, Load::Tool { command, .. } if command == &["wrk"]));
        assert!(matches!(&read.offline, Offline::Program(batch) if batch.expected_cpus == Some(2.0)));
        // The combined text is complete, so it parses again.
        let source = read.source.unwrap();
        assert!(
            source.starts_with(three) && source.contains("# /d/sub/two.toml is based on /d/sub/one.toml:"),
            "{source}"
        );
        assert!(files(&[("/d/three.toml", &source), all[1], all[2]]).is_ok());
        let shipped = files(&[("x.toml", "based-on = \"quickstart\"\n[design]\nrounds = 7\n")]).unwrap();
        assert_eq!((shipped.design.rounds, shipped.arms.len() > 3), (7, true));
    }

    // promise 39
    #[test]
    fn mistakes_are_told_where_they_stand() {
        let check = |all: &[(&str, &str)], want: &[&str]| {
            let said = files(all).unwrap_err();
            assert_eq!(said.lines().count(), want.len(), "{said}");
            for (line, want) in said.lines().zip(want) {
                assert!(line.trim_start().starts_with(want), "{want}: {said}");
            }
        };
        let on_one = "about = \"x\"\nbased-on = \"one.toml\"\n";
        check(&[("two.toml", on_one)], &["two.toml:2:12: based-on = \"one.toml\": there is no such file"]);
        check(
            &[("two.toml", "based-on = \"nginx-vs-ffmpg\"")],
            &[
                "two.toml:1:12: based-on = \"nginx-vs-ffmpg\": no built-in experiment has this name; did you mean \"nginx-vs-ffmpeg\"?",
            ],
        );
        check(
            &[("two.toml", "based-on = 5")],
            &["two.toml:1:12: based-on must be a text in quotes, not a number"],
        );
        check(
            &[("two.toml", "arms = [\"baseline\", \"baseline2\"]\nwithout = [\"disk\"]")],
            &["two.toml:2:11: without removes keys of a base, so it needs based-on"],
        );
        check(
            &[("two.toml", "based-on = \"one.toml\"\nwithout = [\"disk\"]"), ("one.toml", ONE)],
            &["two.toml:2:12: without: one.toml has no \"disk\""],
        );
        // The parser reports mistakes in both files together, each with its file; then the test has mistakes only in
        // the base.
        let bad = ONE.replace("rounds", "ronds").replace("\"15 %\"", "0");
        check(
            &[("two.toml", "based-on = \"./one.toml\"\ndisk = 5\n"), ("one.toml", &bad)],
            &[
                "two.toml:2:8: disk: a bare number has no unit",
                "one.toml:4:1: unknown key \"design.ronds\"; did you mean \"design.rounds\"?",
                "one.toml:12:8: load.rate = 0: give a rate of at most 1000000 requests per second",
            ],
        );
        check(
            &[("two.toml", "based-on = \"one.toml\"\ndisk = 5\n"), ("one.toml", "arms = [")],
            &["two.toml:2:8: disk: a bare number", "one.toml:1:9: "],
        );
        // Files that are their own base, directly or through another file.
        check(
            &[("/d/one.toml", on_one)],
            &[
                "/d/one.toml:2:12: based-on = \"one.toml\": the files are based on each other in a circle: /d/one.toml, /d/one.toml",
            ],
        );
        check(
            &[("a.toml", "based-on = \"d/../b.toml\""), ("b.toml", "based-on = \"a.toml\"")],
            &[
                "b.toml:1:12: based-on = \"a.toml\": the files are based on each other in a circle: a.toml, b.toml, a.toml",
            ],
        );
    }

    #[test]
    fn a_chain_ends() {
        let mut number = 0;
        let mut endless = |_: &Path| {
            number += 1;
            Ok(format!("based-on = \"{number}.toml\""))
        };
        let said = read("x.toml", "based-on = \"0.toml\"", &mut endless).unwrap_err().to_string();
        assert!(said.contains("more than 8 files"), "{said}");
    }
}
