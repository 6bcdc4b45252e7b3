//! A state directory that somebody has had their hands on: nothing outside of what we did is written, and what can be read of
//! what we did goes back.

use crate::support::{STATE, applied, journal, planned, restored};
use crate::undo::{GROUPS, machines};
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use commensal_reconcile::journal::{self as journals, Owner, Record};
use commensal_sensors::machine;
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
    for (name, fake) in machines() {
        // Nor do the groups tell anything.
        fake.refuse_attributes();
        let before = fake.snapshot();
        assert!(applied(&mut fake.another(), GROUPS).2.failure.is_none(), "{name}");
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

/// A group of somebody else's with a weight and limits of its own, put on record by [`SMALL`].
fn small(make: fn(u32, u64) -> FakeHost) -> FakeHost {
    let fake = make(2, 1 << 30);
    // The journal stands alone; what is lost of it while the groups tell the rest is for `originals`.
    fake.refuse_attributes();
    let mut host = fake.another();
    let unified = host.read_file(Path::new("/sys/fs/cgroup/cgroup.controllers")).is_ok();
    let mount = if unified { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/cpu" };
    let root = host.open(Path::new(mount)).unwrap();
    if unified {
        host.write(root, "cgroup.subtree_control", "+cpu").unwrap();
    }
    for name in ["batch", "theirs"] {
        let group = host.mkdir(root, name).unwrap();
        host.write(group, if unified { "cpu.weight" } else { "cpu.shares" }, "300").unwrap();
    }
    fake
}

const SMALL: &str =
    "[group.batch]\nclass = \"offline\"\nmatch = [{ cgroup = \"/batch\" }]\ncpu.max = \"1 core\"\n";

/// Puts [`SMALL`] in force, has `attack` change the journal, restores twice, and says what went wrong.
fn attacked(make: fn(u32, u64) -> FakeHost, attack: &dyn Fn(&[u8]) -> Vec<u8>) -> Result<(), String> {
    let fake = small(make);
    let before = fake.snapshot();
    let mut host = fake.another();
    assert!(applied(&mut host, SMALL).2.failure.is_none());
    let text = host.state_read(&machine_journal()).unwrap().unwrap();
    let damaged = String::from_utf8_lossy(&attack(text.as_bytes())).into_owned();
    host.state_replace(&machine_journal(), &damaged).unwrap();
    let readable = journals::read(&host, &damaged);
    let since = fake.mutations().len();
    let results = [restored(&mut host), restored(&mut host)];
    let ours = |path: &str| path.starts_with(STATE) || path.contains("/batch") || path.contains("commensal-");
    for change in &fake.mutations()[since..] {
        if !ours(&change.path) {
            return Err(format!("wrote outside: {change:?}"));
        }
    }
    let after = fake.snapshot();
    let whose = readable.owner().is_none_or(|owner| owner.boot_id == machine::boot_id(&host).unwrap());
    for record in readable.records.iter().filter(|_| whose) {
        let Record::Original { group, file, .. } = record else { continue };
        let path = format!("{}{}/{file}", group.mount, group.path);
        if after.get(&path) != before.get(&path) {
            return Err(format!(
                "{path} is {:?}, not {:?}: {results:?}",
                after.get(&path),
                before.get(&path)
            ));
        }
    }
    Ok(())
}

const MAKES: [fn(u32, u64) -> FakeHost; 2] = [FakeHost::v1, FakeHost::v2];

// promise 71
// promise 14
#[test]
fn flipped_bits_lose_no_line_but_their_own() {
    let mut random = commensal_core::rng::Rng::new(7);
    for case in 0..300 {
        let (place, bit) = (random.u64(), random.below(8));
        let flip = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            let at = usize::try_from(place).unwrap_or_default() % bytes.len();
            bytes[at] ^= 1 << bit;
            bytes
        };
        attacked(MAKES[case % 2], &flip).unwrap_or_else(|wrong| panic!("case {case}: {wrong}"));
    }
}

// promise 14
#[test]
fn a_journal_cut_at_any_byte_loses_no_whole_line() {
    for make in MAKES {
        let length = std::cell::Cell::new(1);
        let mut at = 0;
        while at < length.get() {
            let cut = |bytes: &[u8]| {
                length.set(bytes.len());
                bytes[..at].to_vec()
            };
            attacked(make, &cut).unwrap_or_else(|wrong| panic!("cut at {at}: {wrong}"));
            at += 1;
        }
        assert!(length.get() > 300, "it is a real journal");
    }
}

// promise 14
#[test]
fn lines_twice_in_another_order_or_of_another_boot_are_stood() {
    let lines = |bytes: &[u8]| -> Vec<Vec<u8>> {
        bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    };
    for make in MAKES {
        attacked(make, &|bytes| [bytes, bytes].concat()).unwrap();
        attacked(make, &|bytes| lines(bytes).into_iter().rev().collect::<Vec<_>>().concat()).unwrap();
        for first in 0..6 {
            attacked(make, &|bytes| {
                let mut lines = lines(bytes);
                let length = lines.len();
                lines.swap(first % length, length - 1);
                lines.concat()
            })
            .unwrap();
            attacked(make, &|bytes| {
                let mut lines = lines(bytes);
                lines.remove(first % lines.len());
                lines.concat()
            })
            .unwrap();
        }
        // A journal that was copied from another machine is none of this one's.
        let fake = small(make);
        let mut host = fake.another();
        assert!(applied(&mut host, SMALL).2.failure.is_none());
        let text = host.state_read(&machine_journal()).unwrap().unwrap();
        let contents = journals::parse(&text);
        let foreign = contents.records.into_iter().map(|record| match record {
            Record::Owner(owner) => Record::Owner(Owner { boot_id: "another".to_owned(), ..owner }),
            other => other,
        });
        let foreign: String = foreign.map(|record| journals::line(&record)).collect();
        host.state_replace(&machine_journal(), &foreign).unwrap();
        let now = fake.snapshot();
        assert!(restored(&mut host).nothing());
        assert_eq!(fake.snapshot(), now);
    }
}

// promise 14
#[test]
fn a_full_disk_does_not_keep_values_from_going_back() {
    for make in MAKES {
        let fake = small(make);
        let before = fake.snapshot();
        let mut host = fake.another();
        assert!(applied(&mut host, SMALL).2.failure.is_none());
        let text = host.state_read(&machine_journal()).unwrap().unwrap();
        host.state_replace(&machine_journal(), &format!("{text}damage\n")).unwrap();
        fake.state_full(true);
        let result = restored(&mut host);
        assert_eq!(fake.snapshot(), before, "{result:?}");
        assert!(result.failed.iter().any(|line| line.contains("ENOSPC")), "{result:?}");
        fake.state_full(false);
        let result = restored(&mut host);
        assert_eq!(fake.snapshot(), before, "{result:?}");
        assert!(host.state_read(&machine_journal().with_extension("damaged")).unwrap().is_some());
    }
}

// promise 72
#[test]
fn a_hundred_thousand_records_take_one_look_each() {
    let fake = small(FakeHost::v1);
    let mut host = fake.another();
    let owner = Owner {
        boot_id: machine::boot_id(&host).unwrap(),
        ..Owner::this_process(&mut host, "machine").unwrap()
    };
    let records = (0..100_000_u32).map(|tid| Record::Affinity {
        tid: 1_000_000 + tid,
        start_ticks: 1,
        cpus: "0".to_owned(),
    });
    let records: Vec<Record> = std::iter::once(Record::Owner(owner)).chain(records).collect();
    let text: String = records.iter().map(journals::line).collect();
    host.state_dir(Path::new(STATE)).unwrap();
    host.state_replace(&machine_journal(), &text).unwrap();
    let journal = journal(&mut host).unwrap();
    // Each was looked for in all of them: 5,000,000,000 comparisons.
    assert!(records[1..].iter().all(|record| journal.has(record)));
    assert!(!journal.has(&Record::Scheduling));
    let result = restored(&mut host);
    assert!(result.nothing(), "{:?}", result.failed.first());
    assert_eq!(host.state_read(&machine_journal()).unwrap(), None);
}

// promise 73
#[test]
fn a_wide_pattern_leaves_out_what_the_machine_and_commensal_run_in() {
    let fake = FakeHost::v2(2, 1 << 30);
    let mut host = fake.another();
    let root = host.open(Path::new("/sys/fs/cgroup")).unwrap();
    host.write(root, "cgroup.subtree_control", "+cpu").unwrap();
    for name in [
        "system.slice",
        "user.slice",
        "init.scope",
        "kubepods",
        "agent-1",
        "agent-2",
        "commensal-two-offline",
    ] {
        host.mkdir(root, name).unwrap();
    }
    fake.move_process(std::process::id(), "/sys/fs/cgroup/agent-1");
    fake.set_file("/proc/self/cgroup", "0::/agent-1\n");
    let plan = |host: &mut FakeHost, pattern: &str, more: &str| {
        let text =
            format!("[group.batch]\nclass = \"offline\"\nmatch = [{{ cgroup = \"{pattern}\" }}]\n{more}\n");
        planned(host, &text).unwrap().1
    };
    let wide = plan(&mut host, "/*", "match-everything = true");
    let text = wide.notes.join("\n");
    let touched: std::collections::BTreeSet<&str> =
        wide.steps.iter().map(|step| step.place.path.as_str()).filter(|path| *path != "/").collect();
    assert_eq!(touched.into_iter().collect::<Vec<_>>(), ["/agent-2"], "{text}");
    for (path, why) in [
        ("/system.slice", "it holds the machine's services"),
        ("/agent-1", "commensal itself runs in it"),
        ("/kubepods", "it holds every pod"),
        ("/commensal-two-offline", "another commensal has made it"),
    ] {
        assert!(text.contains(&format!("match cgroup /* leaves out {path}: {why}")), "{text}");
    }
    let none = plan(&mut host, "/*.slice", "");
    assert!(none.steps.is_empty() && none.unmet.len() == 1, "{:?}", none.unmet);
    assert!(none.unmet[0].try_this.contains("name a cgroup in full"), "{:?}", none.unmet[0]);
    // By its full name whatever its owner wants.
    let named = plan(&mut host, "/kubepods", "");
    assert!(named.steps.iter().any(|step| step.place.path.as_str() == "/kubepods"));
}
