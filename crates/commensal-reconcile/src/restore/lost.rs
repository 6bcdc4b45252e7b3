//! Finds lost journals and other commensals by the marks on cgroups.

use super::target::open;
use crate::drivers::apply::lives;
use crate::journal::{self, Record, Target};
use crate::marks::{self, Mark};
use commensal_host::Host;
use std::collections::BTreeMap;
use std::path::Path;

/// The marks of this state directory; with `of_all` also those of other lost ones: without a journal and without a
/// running process.
pub(super) fn orphans(host: &mut dyn Host, dir: &Path, marks: Vec<Mark>, of_all: bool) -> Vec<Mark> {
    let mut lost = BTreeMap::new();
    let mut is_lost = |host: &mut dyn Host, mark: &Mark| {
        let key = (mark.owner.clone(), mark.journal.clone());
        *lost.entry(key).or_insert_with(|| {
            let owner = Path::new(&mark.owner);
            let journal = host.state_read(&journal::path(owner, &mark.journal));
            let pid = mark.journal.strip_prefix(journal::LAB).and_then(|pid| pid.parse().ok());
            let runs = pid.is_some_and(|pid| host.process(pid).is_ok()) || lives(host, &mark.owner);
            matches!(journal, Ok(None)) && !runs
        })
    };
    let mut found = Vec::new();
    for mut mark in marks {
        if Path::new(&mark.owner) == dir {
            found.push(mark);
        } else if of_all && is_lost(host, &mark) {
            mark.journal = journal::MACHINE.to_owned();
            found.push(mark);
        }
    }
    found
}

/// The owner of the original, when another commensal has taken it over from this journal.
pub(super) fn kept_by_another(
    host: &mut dyn Host,
    journal: &Path,
    group: &Target,
    record: &Record,
) -> Option<String> {
    let dir = open(host, &group.mount, &group.path, Some(group.inode)).ok()??;
    let mark = marks::of(host, dir, record).ok().flatten();
    host.close(dir);
    mark.map(|mark| mark.owner).filter(|owner| {
        let here = journal.parent() == Some(Path::new(owner));
        // A lost commensal restores nothing.
        !here
            && host
                .state_read(&journal::path(Path::new(owner), journal::MACHINE))
                .is_ok_and(|text| text.is_some())
    })
}
