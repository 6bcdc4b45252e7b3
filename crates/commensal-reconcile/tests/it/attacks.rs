//! A state directory that somebody has had their hands on: nothing outside of what we did is written, and what can be read of
//! what we did goes back.

use crate::support::{STATE, applied, journal, restored};
use crate::undo::{GROUPS, machines};
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use std::path::{Path, PathBuf};

fn machine_journal() -> PathBuf {
    Path::new(STATE).join("machine.journal")
}

/// A machine with [`GROUPS`] in force.
fn in_force() -> impl Iterator<Item = (&'static str, FakeHost, std::collections::BTreeMap<String, String>)> {
    machines().into_iter().map(|(name, fake)| {
        let before = fake.snapshot();
        assert!(applied(&mut fake.another(), GROUPS).2.failure.is_none(), "{name}");
        (name, fake, before)
    })
}

// promise 70
#[test]
fn what_is_no_journal_keeps_no_other_from_going_back() {
    for (name, fake, before) in in_force() {
        let odd = Path::new(STATE).join("lab-7.journal");
        fake.set_kind(&odd, "a named pipe");
        let result = restored(&mut fake.another());
        assert_eq!(fake.snapshot(), before, "{name}");
        let [told] = &result.failed[..] else { panic!("{name}: {result:?}") };
        assert!(
            told.contains("lab-7.journal was not carried out") && told.contains("a named pipe"),
            "{told}"
        );
    }
}

// promise 69
#[test]
fn a_journal_of_somebody_else_is_not_carried_out() {
    for (name, fake, before) in in_force() {
        let theirs = Path::new(STATE).join("run.journal");
        let mut host = fake.another();
        // A decoy that a forged record would change.
        let text = host.state_read(&machine_journal()).unwrap().unwrap();
        host.state_replace(&theirs, &text).unwrap();
        fake.set_owner(&theirs, 65_534, 0o644);
        host.state_remove(&machine_journal()).unwrap();
        let now = fake.snapshot();
        let result = restored(&mut host);
        assert_eq!(fake.snapshot(), now, "{name}");
        assert!(result.done.is_empty(), "{name}: {result:?}");
        assert!(result.failed[0].contains("belongs to user 65534"), "{name}: {result:?}");
        // The others are.
        host.state_replace(&machine_journal(), &text).unwrap();
        let result = restored(&mut host);
        assert_eq!(fake.snapshot(), before, "{name}: {result:?}");
        assert_eq!(result.failed.len(), 1, "{name}: {result:?}");
        // Nor is one that others can write.
        fake.set_owner(machine_journal(), 0, 0o666);
        assert!(journal(&mut host).unwrap_err().to_string().contains("nothing was written"));
    }
}

// promise 70
#[test]
fn damaged_lines_stay_where_they_are_when_they_cannot_be_kept_aside() {
    for (name, fake, before) in in_force() {
        let mut host = fake.another();
        let text = host.state_read(&machine_journal()).unwrap().unwrap();
        host.state_replace(&machine_journal(), &format!("{text}00000000 {{}}\n")).unwrap();
        fake.set_kind(machine_journal().with_extension("damaged"), "a symbolic link");
        let result = restored(&mut host);
        assert_eq!(fake.snapshot(), before, "{name}: {result:?}");
        assert!(
            result.failed.iter().any(|line| line.contains("stay in") && line.contains("a symbolic link")),
            "{name}: {result:?}"
        );
        let left = host.state_read(&machine_journal()).unwrap().unwrap();
        assert_eq!(left.lines().last(), Some("00000000 {}"), "{name}");
        // What went back is its owner's now.
        assert!(!left.contains("\"original\""), "{name}: {left}");
    }
}
