//! The commands `config check` and `config schema`, which need neither root nor the machine that the files are for.

use super::args::{ConfigCheck, ConfigVerb};
use super::values::absolute;
use commensal_core::config::{self, ConfigError, Texts};
use commensal_core::text::{json_pretty, path as shown};
use commensal_core::toml_reader::{FileKey, Reader};
use commensal_density::experiment as ladder;
use commensal_host::{Host, LinuxHost};
use commensal_lab::experiment;
use commensal_reconcile::groups_file::{self, LoadError};
use serde_json::{Value, json};
use std::path::Path;

/// Runs the subcommand.
pub fn run(verb: &ConfigVerb) -> anyhow::Result<u8> {
    match verb {
        ConfigVerb::Check(options) => check(&LinuxHost::new(), options),
        ConfigVerb::Schema => {
            println!("{}", json_pretty(&config::schema::schema())?);
            Ok(0)
        }
    }
}

/// What a configuration file describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Groups,
    Experiment,
    Ladder,
}

impl Sort {
    const ALL: [Sort; 3] = [Sort::Groups, Sort::Experiment, Sort::Ladder];

    fn knows(self, table: &str) -> bool {
        let begins = |keys: &[FileKey]| keys.iter().any(|key| key.path.split('.').next() == Some(table));
        match self {
            Sort::Groups => ["group", "agent"].contains(&table),
            Sort::Experiment => begins(experiment::KEYS),
            Sort::Ladder => begins(ladder::KEYS),
        }
    }

    /// The sort that knows most of the keys at the top of the file: a groups file if that leaves a choice.
    fn of(text: &str) -> Sort {
        let top = Reader::default().parse("", text).unwrap_or_default();
        let known = |sort: Sort| top.keys().filter(|key| sort.knows(key)).count();
        Sort::ALL.into_iter().rev().max_by_key(|sort| known(*sort)).unwrap_or(Sort::Groups)
    }

    fn name(self) -> &'static str {
        match self {
            Sort::Groups => "groups",
            Sort::Experiment => "experiment",
            Sort::Ladder => "ladder",
        }
    }
}

/// What was found in one file, or in all files of a folder.
struct Found {
    sort: Sort,
    /// Number of groups, in a groups file.
    groups: usize,
    mistakes: Vec<ConfigError>,
}

/// Checks each path. Status 1 if there are mistakes, 2 if a file could not be read.
fn check(host: &dyn Host, options: &ConfigCheck) -> anyhow::Result<u8> {
    let (mut status, mut files) = (0, Vec::new());
    for path in &options.files {
        let name = path.display().to_string();
        match groups_file::texts(host, path) {
            Ok(texts) => {
                let found = look(host, path, &texts);
                status = status.max(u8::from(!found.mistakes.is_empty()));
                files.push(found.json(&name));
                if !options.json {
                    print!("{}", found.text(path));
                }
            }
            Err(error) => {
                let error: anyhow::Error = match error {
                    LoadError::Read { source, .. } => source.into(),
                    other => other.into(),
                };
                eprintln!("commensal: {error:#}");
                status = 2;
                files.push(json!({ "file": name, "error": format!("{error:#}") }));
            }
        }
    }
    if options.json {
        println!("{}", json_pretty(&json!({ "files": files }))?);
    }
    Ok(status)
}

fn look(host: &dyn Host, path: &Path, texts: &Texts) -> Found {
    let is_folder = host.list(path).is_ok();
    let (name, text) = match texts.as_slice() {
        [(name, text)] if !is_folder => (name, text),
        _ => return groups(texts),
    };
    let sort = Sort::of(text);
    let read = |path: &Path| {
        let path = absolute(path).map_err(|error| error.to_string())?;
        host.read_file(&path).map_err(|error| error.to_string())
    };
    let wrong = match sort {
        Sort::Groups => return groups(texts),
        Sort::Experiment => experiment::read(name, text, &mut |path| read(path)).err(),
        Sort::Ladder => ladder::parse(name, text).err(),
    };
    Found { sort, groups: 0, mistakes: wrong.map(|error| error.wrong).unwrap_or_default() }
}

fn groups(texts: &Texts) -> Found {
    let (groups, mistakes) = match config::compile(texts) {
        Ok(compiled) => (compiled.groups.len(), Vec::new()),
        Err(mistakes) => (0, mistakes),
    };
    Found { sort: Sort::Groups, groups, mistakes }
}

impl Found {
    fn text(&self, path: &Path) -> String {
        if !self.mistakes.is_empty() {
            return self.mistakes.iter().map(|mistake| format!("{mistake}\n")).collect();
        }
        let what = match (self.sort, self.groups) {
            (Sort::Groups, 1) => "1 group".to_owned(),
            (Sort::Groups, groups) => format!("{groups} groups"),
            (Sort::Experiment, _) => "an experiment".to_owned(),
            (Sort::Ladder, _) => "a density ladder".to_owned(),
        };
        format!("{}: {what}, no mistakes\n", shown(path))
    }

    fn json(&self, file: &str) -> Value {
        let mistake = |mistake: &ConfigError| {
            let at = mistake.at.position;
            json!({
                "file": mistake.at.file,
                "line": at.map(|at| at.line),
                "column": at.map(|at| at.column),
                "message": mistake.message,
            })
        };
        let mistakes: Vec<Value> = self.mistakes.iter().map(mistake).collect();
        json!({ "file": file, "kind": self.sort.name(), "groups": self.groups, "mistakes": mistakes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_density::experiment::SHIPPED as LADDERS;
    use commensal_lab::experiment::SHIPPED as EXPERIMENTS;

    #[test]
    fn files_are_recognized_by_their_keys() {
        for (name, text) in EXPERIMENTS {
            assert_eq!(Sort::of(text), Sort::Experiment, "{name}");
        }
        for (name, text) in LADDERS {
            assert_eq!(Sort::of(text), Sort::Ladder, "{name}");
        }
        for text in [
            "",
            "[group.a]",
            "[agent]",
            "[grop.a]\nclass = 'online'",
            "arms = [",
            "[group.a]\n[load]",
            "x = 1",
        ] {
            assert_eq!(Sort::of(text), Sort::Groups, "{text}");
        }
    }
}
