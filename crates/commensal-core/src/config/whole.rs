//! Compiles all groups files of a configuration into one set of groups and settings.

use super::{ConfigError, Headroom, parse_file};
use crate::group::{GroupName, GroupSpec, Position, SourcePlace};
use std::collections::BTreeMap;

/// The texts of the groups files, each with the file's name.
pub type Texts = Vec<(String, String)>;

/// The compiled contents of all files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// The groups.
    pub groups: Vec<GroupSpec>,
    /// The kind of limit that keeps offline work within its headroom.
    pub headroom: Headroom,
    /// Whether online groups get a higher weight than siblings that belong to no group.
    pub weights: bool,
    /// Whether offline disk I/O is limited while online groups wait for the disks.
    pub io: bool,
}

impl Default for Compiled {
    fn default() -> Compiled {
        Compiled { groups: Vec::new(), headroom: Headroom::default(), weights: true, io: true }
    }
}

impl Compiled {
    /// The lowest latency target of all groups (us); `None` if no group has one.
    #[must_use]
    pub fn target_us(&self) -> Option<f64> {
        let targets = self.groups.iter().filter_map(|spec| spec.target_wakeup_p99);
        targets.min().map(|target| target.0 as f64)
    }
}

/// Compiles the texts as a whole.
///
/// # Errors
/// Returns all errors in the texts.
pub fn compile(texts: &Texts) -> Result<Compiled, Vec<ConfigError>> {
    let (mut compiled, mut errors) = (Compiled::default(), Vec::new());
    let mut written: BTreeMap<&str, SourcePlace> = BTreeMap::new();
    for (file, text) in texts {
        let mut first = |key: &'static str, position: Position| {
            let at = SourcePlace { file: file.clone(), position: Some(position) };
            let known = written.entry(key).or_insert_with(|| at.clone());
            let message = format!("[agent] {key} is already set at {known}");
            if *known != at {
                errors.push(ConfigError { at, message });
            }
        };
        match parse_file(file, text) {
            Ok(mut one) => {
                compiled.groups.append(&mut one.groups);
                let keys = one.agent.unwrap_or_default();
                if let Some((headroom, at)) = keys.headroom {
                    compiled.headroom = headroom;
                    first("headroom", at);
                }
                if let Some((weights, at)) = keys.weights {
                    compiled.weights = weights;
                    first("weights", at);
                }
                if let Some((io, at)) = keys.io {
                    compiled.io = io;
                    first("io", at);
                }
            }
            Err(mut wrong) => errors.append(&mut wrong),
        }
    }
    errors.extend(repeated(&compiled.groups));
    if errors.is_empty() { Ok(compiled) } else { Err(errors) }
}

/// Returns an error for each group that has the name of an earlier one.
pub(crate) fn repeated(specs: &[GroupSpec]) -> Vec<ConfigError> {
    let mut names: BTreeMap<&GroupName, &GroupSpec> = BTreeMap::new();
    let again = |spec: &GroupSpec, first: &GroupSpec| ConfigError {
        at: spec.source.at(""),
        message: format!("group {:?} is already defined at {}", spec.name.as_str(), first.source.at("")),
    };
    let mut errors = Vec::new();
    for spec in specs {
        let first = names.entry(&spec.name).or_insert(spec);
        errors.extend((!std::ptr::eq(*first, spec)).then(|| again(spec, first)));
    }
    errors
}
