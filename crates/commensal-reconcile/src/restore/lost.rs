//! Finds lost journals and other instances of commensal by the marks (copies of journal records) on cgroups.

use super::target::open;
use crate::agent_lock::lives;
use crate::journal::{self, Original, Record};
use crate::marks::{self, Mark};
use commensal_host::Host;
use std::collections::BTreeMap;
use std::path::Path;

/// Returns the marks of this state directory. With `of_all`, also the marks of other lost state directories, which have
/// neither a journal nor a running process.
pub(super) fn orphans(host: &mut dyn Host, dir: &Path, marks: Vec<Mark>, of_all: bool) -> Vec<Mark> {
    let mut lost = BTreeMap::new();
    let mut is_lost = |host: &mut dyn Host, mark: &Mark| {
        let key = (mark.owner.clone(), mark.journal.clone());
        *lost.entry(key).or_insert_with(|| {
            let owner = Path::new(&mark.owner);
            let journal =
                host.state_lock_file(&journal::path(owner, &mark.journal)).map(|file| file.is_some());
            let pid = mark.journal.strip_prefix(journal::LAB).and_then(|pid| pid.parse().ok());
            let runs = pid.is_some_and(|pid| host.process(pid).is_ok()) || lives(host, &mark.owner);
            matches!(journal, Ok(false)) && !runs
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

/// Returns the state directory of another instance of commensal whose mark contains this original, if there is one.
pub(crate) fn kept_by_another(host: &mut dyn Host, journal: &Path, original: &Original) -> Option<String> {
    let dir = open(host, &original.group).ok()??;
    let mark = marks::of(host, dir, &Record::Original(original.clone())).ok().flatten();
    host.close(dir);
    mark.map(|mark| mark.owner).filter(|owner| {
        let here = journal.parent() == Some(Path::new(owner));
        // The other instance will not restore the original if its journal is lost.
        !here
            && host
                .state_lock_file(&journal::path(Path::new(owner), journal::MACHINE))
                .is_ok_and(|file| file.is_some())
    })
}
