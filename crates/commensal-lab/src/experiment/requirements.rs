//! Checks the requirements of an experiment before its first block: programs, versions, disk space, root.

use super::{Experiment, Load, Offline, Online, Requirement};
use commensal_host::{Host, SpawnSpec, Stderr, Stdout};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A requirement that the machine does not meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Description of what is missing.
    pub what: String,
    /// Debian package that contains the missing program, if there is such a package.
    pub package: Option<String>,
}

/// Result of the check of all requirements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Programs, each with the first line of its version output.
    pub programs: Vec<(String, String)>,
    /// Requirements that the machine does not meet.
    pub missing: Vec<Missing>,
}

impl Checked {
    /// Returns a command that installs all missing packages; `None` if no package is missing.
    #[must_use]
    pub fn install(&self) -> Option<String> {
        let mut packages: Vec<&str> = self.missing.iter().filter_map(|one| one.package.as_deref()).collect();
        packages.sort_unstable();
        packages.dedup();
        (!packages.is_empty())
            .then(|| format!("apt-get install --no-install-recommends {}", packages.join(" ")))
    }
}

/// Checks all requirements. `state_dir` is the directory for the run's files; `path` is the value of `PATH` with which
/// to search for programs.
pub fn check(host: &mut dyn Host, experiment: &Experiment, state_dir: &Path, path: &str) -> Checked {
    let mut checked = Checked::default();
    for one in &experiment.requires {
        match find(host, &one.program, path) {
            Some(_) => version(host, one, &mut checked),
            None => checked.missing.push(Missing {
                what: format!("{} is not installed (Debian: {})", one.program, one.package),
                package: Some(one.package.clone()),
            }),
        }
    }
    for program in programs(experiment) {
        let known = experiment.requires.iter().any(|one| one.program == program);
        let own = program.starts_with('{');
        if !known && !own && find(host, program, path).is_none() {
            checked.missing.push(Missing { what: format!("{program} is not installed"), package: None });
        }
    }
    if experiment.root && host.euid() != 0 {
        checked.missing.push(Missing { what: "the experiment needs root".to_owned(), package: None });
    }
    if experiment.disk_bytes > 0 {
        let free = host.free_bytes(state_dir).unwrap_or(0);
        if free < experiment.disk_bytes {
            let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            let what = format!(
                "{} has {:.1} GiB free, but the experiment needs {:.1} GiB",
                state_dir.display(),
                gib(free),
                gib(experiment.disk_bytes)
            );
            checked.missing.push(Missing { what, package: None });
        }
    }
    checked
}

/// Returns the programs that the experiment's commands start.
fn programs(experiment: &Experiment) -> Vec<&str> {
    let mut commands: Vec<&Vec<String>> = Vec::new();
    if let Online::Program(service) = &experiment.online {
        commands.push(&service.command);
        commands.extend(service.prepare.iter().chain(&service.setup).chain(&service.cleanup));
    }
    if let Offline::Program(batch) = &experiment.offline {
        commands.push(&batch.command);
        commands.extend(batch.prepare.iter().chain(&batch.cleanup));
    }
    if let Load::Tool { command, .. } = &experiment.load {
        commands.push(command);
    }
    let mut programs: Vec<&str> =
        commands.iter().filter_map(|command| command.first()).map(String::as_str).collect();
    programs.sort_unstable();
    programs.dedup();
    programs
}

/// Returns the path of a program; `None` if the program does not exist.
fn find(host: &dyn Host, program: &str, path: &str) -> Option<PathBuf> {
    let has = |dir: &Path, name: &str| host.list(dir).is_ok_and(|names| names.iter().any(|one| one == name));
    let given = Path::new(program);
    if let (Some(dir), Some(name), true) = (given.parent(), given.file_name(), program.contains('/')) {
        return has(dir, &name.to_string_lossy()).then(|| given.to_owned());
    }
    path.split(':').map(Path::new).find(|dir| has(dir, program)).map(|dir| dir.join(program))
}

/// Runs a program to get its version, and compares the version with the minimum version.
fn version(host: &mut dyn Host, one: &Requirement, checked: &mut Checked) {
    if one.version.is_empty() {
        return;
    }
    let said = ask(host, one).unwrap_or_default();
    let line =
        said.lines().find(|line| !line.trim().is_empty()).unwrap_or("unknown version").trim().to_owned();
    if let Some(least) = &one.at_least
        && numbers(&line).is_none_or(|have| numbers(least).is_some_and(|least| have < least))
    {
        let what = format!("{} is too old: it prints {line:?}, but version {least} is needed", one.program);
        checked.missing.push(Missing { what, package: Some(one.package.clone()) });
    }
    checked.programs.push((one.program.clone(), line));
}

fn ask(host: &mut dyn Host, one: &Requirement) -> Option<String> {
    let mut spec = SpawnSpec::new(&one.program);
    spec.args.extend(one.version.iter().map(Into::into));
    spec.stdout = Stdout::Pipe;
    // nginx prints its version to standard error.
    spec.stderr = Stderr::Stdout;
    let mut child = host.spawn(&spec).ok()?;
    let mut text = Vec::new();
    child.stdout.take()?.take(64 << 10).read_to_end(&mut text).ok()?;
    child.wait().ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Returns the first dotted number in `text`.
fn numbers(text: &str) -> Option<Vec<u64>> {
    let start = text.find(|c: char| c.is_ascii_digit())?;
    let rest = &text[start..];
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    Some(rest[..end].split('.').filter_map(|part| part.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(numbers("nginx version: nginx/1.22.1"), Some(vec![1, 22, 1]));
        assert_eq!(numbers("ffmpeg version 5.1.9-0+deb12u1 Copyright"), Some(vec![5, 1, 9]));
        assert!(numbers("1.9") < numbers("1.22"));
        assert_eq!(numbers("none"), None);
    }

    // promise 39
    #[test]
    fn one_command_installs_everything() {
        let missing = |package: &str| Missing { what: String::new(), package: Some(package.to_owned()) };
        let all = vec![missing("wrk"), missing("nginx-light"), missing("wrk")];
        let checked = Checked { missing: all, ..Checked::default() };
        assert_eq!(
            checked.install().as_deref(),
            Some("apt-get install --no-install-recommends nginx-light wrk")
        );
        assert_eq!(Checked::default().install(), None);
    }
}
