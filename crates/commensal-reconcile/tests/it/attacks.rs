//! State directories that another user or program has tampered with: only changes that commensal made are undone, and
//! every change with a readable record is undone.

use crate::support::{STATE, applied, instance, journal, planned, restored, specs};
use crate::undo::{GROUPS, machines};
use commensal_core::group::GroupName;
use commensal_host::fake::FakeHost;
use commensal_host::{Host, SMALL_STATE_FILE_MOST};
use commensal_reconcile::journal::{
    self as journals, Affinity, Cookied, Created, Creating, Enabling, Moved, Moving, Ordering, Original,
    Owner, Policy, Record, Recreating, Safe, Switching, Target,
};
use commensal_reconcile::{Instance, PlanRequest, Reconciler, queue};
use commensal_sensors::machine;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn machine_journal() -> PathBuf {
    Path::new(STATE).join("machine.journal")
}

/// Returns each machine with [`GROUPS`] in force, and its snapshot from before.
fn in_force() -> impl Iterator<Item = (&'static str, FakeHost, std::collections::BTreeMap<String, String>)> {
    machines().into_iter().map(|(name, fake)| {
        let before = fake.snapshot();
        assert!(applied(&mut fake.another(), GROUPS).2.failure.is_none(), "{name}");
        (name, fake, before)
    })
}

// promise 57
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

// promise 57
#[test]
fn a_journal_of_somebody_else_is_not_carried_out() {
    for (name, fake) in machines() {
        // The groups have no marks either.
        fake.refuse_attributes();
        let before = fake.snapshot();
        assert!(applied(&mut fake.another(), GROUPS).2.failure.is_none(), "{name}");
        let theirs = Path::new(STATE).join("run.journal");
        let mut host = fake.another();
        // A copy of the journal that belongs to another user must not be carried out.
        let text = host.state_read(&machine_journal()).unwrap().unwrap();
        host.state_replace(&theirs, &text).unwrap();
        fake.set_owner(&theirs, 65_534, 0o644);
        host.state_remove(&machine_journal()).unwrap();
        let now = fake.snapshot();
        let result = restored(&mut host);
        assert_eq!(fake.snapshot(), now, "{name}");
        assert!(result.done.is_empty(), "{name}: {result:?}");
        assert!(result.failed[0].contains("belongs to user 65534"), "{name}: {result:?}");
        // This user's own journal is carried out.
        host.state_replace(&machine_journal(), &text).unwrap();
        let result = restored(&mut host);
        assert_eq!(fake.snapshot(), before, "{name}: {result:?}");
        assert_eq!(result.failed.len(), 1, "{name}: {result:?}");
        // A journal that other users can write is not carried out either.
        fake.set_owner(machine_journal(), 0, 0o666);
        assert!(journal(&mut host).unwrap_err().to_string().contains("nothing was written"));
    }
}

// promise 57
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
        // A restored value belongs to the group's owner again.
        assert!(!left.contains("\"original\""), "{name}: {left}");
    }
}

/// Creates a machine with groups of another program, which have a weight; [`SMALL`] changes one of them.
fn small(make: fn(u32, u64) -> FakeHost) -> FakeHost {
    let fake = make(2, 1 << 30);
    // Without marks, only the journal has the records; `originals` tests the loss of one of the two.
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

/// Puts [`SMALL`] in force, lets `attack` change the journal, and restores twice. An error describes what went wrong.
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
        let Record::Original(Original { group, file, .. }) = record else { continue };
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

// promise 58
// promise 12
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

// promise 12
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

// promise 12
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
        // A journal that was copied from another machine does not apply to this one.
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

// promise 12
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

// promise 12
#[test]
fn a_hundred_thousand_records_take_one_look_each() {
    let fake = small(FakeHost::v1);
    let mut host = fake.another();
    let owner = Owner {
        boot_id: machine::boot_id(&host).unwrap(),
        ..Owner::this_process(&mut host, "machine").unwrap()
    };
    let records = (0..100_000_u32)
        .map(|tid| Record::Affinity(Affinity { tid: 1_000_000 + tid, start_ticks: 1, cpus: "0".to_owned() }));
    let records: Vec<Record> = std::iter::once(Record::Owner(owner)).chain(records).collect();
    let text: String = records.iter().map(journals::line).collect();
    host.state_dir(Path::new(STATE)).unwrap();
    host.state_replace(&machine_journal(), &text).unwrap();
    let journal = journal(&mut host).unwrap();
    // Previously each record was searched for among all others: 5,000,000,000 comparisons.
    assert!(records[1..].iter().all(|record| journal.has(record)));
    assert!(!journal.has(&Record::Scheduling));
    let result = restored(&mut host);
    assert!(result.nothing(), "{:?}", result.failed.first());
    assert_eq!(host.state_read(&machine_journal()).unwrap(), None);
}

/// A journal that is larger than it may be is not read by anybody, and everybody names it, its size and the limit.
// promise 57
#[test]
fn a_journal_has_a_largest_size() {
    let most = journals::MOST_BYTES;
    for (name, fake, _) in in_force() {
        let mut host = fake.another();
        let now = fake.snapshot();
        for (size, fits) in [(most, true), (most + 1, false), (u64::MAX, false)] {
            fake.set_size(machine_journal(), size);
            assert_eq!(journal(&mut host).is_ok(), fits, "{name}: {size}");
            let found = journals::inspect(&mut host, Path::new(STATE), journals::MACHINE, &mut |_, _| {});
            assert_eq!(found.unreadable.is_none(), fits, "{name}: {size}: {found:?}");
            if fits {
                continue;
            }
            let said = format!("machine.journal, which has {size} bytes and may have at most {most}");
            let error = journal(&mut host).unwrap_err();
            assert!(error.to_string().contains("nothing was written"), "{name}: {error}");
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert!(source.contains(&said), "{name}: {source}");
            assert!(found.unreadable.unwrap().contains(&said), "{name}");
            let state = commensal_reconcile::bring_safe_state(&mut host, Path::new(STATE), Duration::ZERO);
            assert!(state.failed.iter().any(|line| line.contains(&said)), "{name}: {state:?}");
        }
        assert_eq!(fake.snapshot(), now, "{name}");
        let result = restored(&mut host);
        assert!(result.failed.iter().any(|line| line.contains("may have")), "{name}: {result:?}");
    }
}

/// What waiting and running commands say of themselves, and whether a queue is closed, is small.
// promise 57
#[test]
fn files_of_a_queue_have_a_largest_size() {
    let (fake, state) = (FakeHost::v2(2, 1 << 30), Path::new(STATE));
    let mut host = fake.another();
    let group = GroupName::new("etl").unwrap();
    queue::hold(&mut host, state, &group, "memory at 91 %", Duration::from_secs(60)).unwrap();
    let queue_dir = state.join("queue/etl");
    let ticket = queue_dir.join(format!("running/{:020}", 1));
    let job = "{\"pid\":7,\"command\":\"sort\",\"arrived_ns\":1,\"started_ns\":2}\n";
    let lock = host.state_lock_new(&ticket, job).unwrap();
    let whole = queue::read(&mut host, state, &group).unwrap();
    assert!(whole.held.is_some() && whole.running[0].command == "sort", "{whole:?}");
    // A ticket that cannot be read still counts as a running command: its lock says so.
    fake.set_size(&ticket, SMALL_STATE_FILE_MOST + 1);
    let read = queue::read(&mut host, state, &group).unwrap();
    assert_eq!((read.running.len(), queue::load(&mut host, state, &group).unwrap().running), (1, 1));
    assert!(read.running[0].command.is_empty(), "{read:?}");
    drop(lock);
    fake.set_size(queue_dir.join("held"), SMALL_STATE_FILE_MOST + 1);
    let error = queue::read(&mut host, state, &group).unwrap_err().to_string();
    let said = format!(
        "etl/held, which has {} bytes and may have at most {SMALL_STATE_FILE_MOST}",
        SMALL_STATE_FILE_MOST + 1
    );
    assert!(error.contains(&said), "{error}");
}

/// A record of every kind, about things that no longer exist and that `n` tells apart.
fn about_nothing(n: u32) -> Record {
    let mount = "/sys/fs/cgroup/cpu".to_owned();
    let path = format!("/gone/{n}");
    let group = Target { mount: mount.clone(), path: path.clone(), inode: u64::from(n) + 1_000_000 };
    let (knob, file) = ("cpu.weight".to_owned(), "cpu.shares".to_owned());
    let (pid, start_ticks, value) = (1_000_000 + n, 1, "300".to_owned());
    match n % 14 {
        0 => Record::Affinity(Affinity { tid: pid, start_ticks, cpus: "0".to_owned() }),
        1 => Record::Policy(Policy { tid: pid, start_ticks, policy: 0 }),
        2 => Record::Moved(Moved { pid, start_ticks }),
        3 => {
            let to = vec![group.clone()];
            Record::Moving(Moving {
                pid,
                start_ticks,
                pgrp: pid,
                by: "processes".to_owned(),
                from: vec![group],
                to,
            })
        }
        4 => Record::Original(Original { group, knob, file, device: None, value }),
        5 => {
            Record::Safe(Safe { setting: Original { group, knob, file, device: None, value }, online: true })
        }
        6 => Record::Created(Created(group)),
        7 => Record::Creating(Creating { mount, path }),
        8 => Record::Enabling(Enabling { group, controller: "cpu".to_owned() }),
        9 => Record::Cookied(Cookied(group)),
        10 => Record::Recreating(Recreating(group)),
        11 => Record::Ordering(Ordering { owner: "machine".to_owned(), mount, path }),
        12 => {
            Record::Switching(Switching { switch: "vm.memcg_qos_enable".to_owned(), value: "0".to_owned() })
        }
        _ => Record::Scheduling,
    }
}

/// Most memory that this process has had, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
}

/// Distinct and repeated records of every kind: reading and undoing them takes a bounded number of looks for each record,
/// and memory in proportion to the file. A million of each in the long tier.
// promise 12
#[test]
fn a_million_records_take_few_looks_each() {
    /// Looks at cgroups, processes and files for each record.
    const LOOKS: u64 = 16;
    /// Memory for each byte of the journal: its text, its records, and copies of both.
    const COPIES: u64 = 40;
    let is_long = std::env::var_os("PROPTEST_CASES").is_some();
    if !is_long {
        println!(
            "skipped: the million of a_million_records_take_few_looks_each: it takes minutes (cargo xtask ci --long)"
        );
    }
    let many: u32 = if is_long { 1_000_000 } else { 14_000 };
    for (what, distinct) in [("distinct", many), ("repeated", 14), ("some repeated", many / 2)] {
        let fake = small(FakeHost::v1);
        let mut host = fake.another();
        let before = fake.snapshot();
        let owner = Owner::this_process(&mut host, "machine").unwrap();
        let text: String = std::iter::once(Record::Owner(owner))
            .chain((0..many).map(|n| about_nothing(n % distinct)))
            .map(|record| journals::line(&record))
            .collect();
        host.state_dir(Path::new(STATE)).unwrap();
        host.state_replace(&machine_journal(), &text).unwrap();
        let (bytes, peak, since) = (text.len() as u64, peak_bytes(), fake.calls());
        drop(text);
        assert_eq!(journal(&mut host).unwrap().len(), many as usize, "{what}");
        let read = fake.calls();
        assert!(read - since < 100, "{what}: {} looks to read it", read - since);
        let result = restored(&mut host);
        let looks = fake.calls() - read;
        assert!(result.nothing(), "{what}: {:?} {:?}", result.failed.first(), result.left.first());
        assert_eq!(host.state_read(&machine_journal()).unwrap(), None, "{what}");
        assert!(looks <= LOOKS * u64::from(many), "{what}: {looks} looks");
        assert_eq!(fake.snapshot(), before, "{what}");
        let more = peak_bytes() - peak;
        println!("{what}: {many} records, {bytes} bytes, {looks} looks, {} MiB more", more >> 20);
        // Other tests may run in this process, which says nothing about a small journal.
        assert!(!is_long || more <= COPIES * bytes, "{what}: {more} bytes of memory for {bytes}");
    }
}

// promise 59
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
    assert!(none.unmet[0].try_this.contains("a cgroup's full path"), "{:?}", none.unmet[0]);
    // A cgroup that is named in full is always claimed.
    let named = plan(&mut host, "/kubepods", "");
    assert!(named.steps.iter().any(|step| step.place.path.as_str() == "/kubepods"));
}

/// Patterns x kinds of machines: what is in a cgroup of the machine becomes a member only if the pattern has its name.
// promise 59
#[test]
fn a_wildcard_takes_nothing_in_the_cgroups_of_the_machine() {
    let (nginx, second) = ("/system.slice/nginx.service", "/system.slice/nginx-2.service");
    let (user, pods, job) = ("/user.slice/user-7.slice", "/kubepods/burstable", "/sales/job");
    let all = [nginx, second, user, pods, job, "/init.scope/x", "/union/job"];
    let everything = "match-everything = true";
    let cases: [(&str, &str, &[&str], &[&str]); 12] = [
        ("/s*/*", "", &[job], &["/system.slice"]),
        ("/?ystem.slice/*", "", &[], &["/system.slice"]),
        ("/[s]ystem.slice/nginx.service", "", &[], &["/system.slice"]),
        ("/**/nginx.service", "", &[], &["/system.slice"]),
        ("/u*/*", "", &["/union/job"], &["/user.slice"]),
        ("/i*/*", "", &[], &["/init.scope"]),
        ("/k*/*", "", &[], &["/kubepods"]),
        (
            "/*/*",
            everything,
            &[job, "/union/job"],
            &["/init.scope", "/kubepods", "/system.slice", "/user.slice"],
        ),
        ("/system.slice/nginx*.service", "", &[second, nginx], &[]),
        ("/system.slice/*", "", &[second, nginx], &[]),
        ("/user.slice/*", "", &[user], &[]),
        ("/kubepods/*", "", &[pods], &[]),
    ];
    for make in [FakeHost::v1, FakeHost::v2, FakeHost::hybrid] {
        let fake = make(2, 1 << 30);
        let mut host = fake.another();
        for hierarchy in commensal_sensors::mounts::hierarchies(&mut host).unwrap() {
            let root = host.open(Path::new(&hierarchy.mount)).unwrap();
            for path in all {
                let (above, name) = path[1..].split_once('/').unwrap();
                let above = match host.mkdir(root, above) {
                    Ok(made) => made,
                    Err(_) => host.open_child(root, above).unwrap(),
                };
                host.mkdir(above, name).unwrap();
            }
        }
        for (pattern, more, taken, left_out) in cases {
            let text = format!(
                "[group.batch]\nclass = \"offline\"\nmatch = [{{ cgroup = \"{pattern}\" }}]\n{more}\n"
            );
            let survey = instance().survey(&mut host).unwrap();
            let planned = instance().plan(&mut host, &survey, &PlanRequest::all(&specs(&text))).unwrap();
            let members = planned.desired.groups[0].members.iter().map(|member| member.path.as_str());
            assert_eq!(members.collect::<Vec<_>>(), taken, "{pattern}");
            let notes = planned.plan.notes.iter().filter(|note| note.contains("leaves out"));
            let notes: Vec<&String> = notes.collect();
            assert_eq!(notes.len(), left_out.len(), "{pattern}: {notes:?}");
            for (note, path) in notes.iter().zip(left_out) {
                assert!(
                    note.contains(&format!("match cgroup {pattern} leaves out {path}: it holds ")),
                    "{note}"
                );
            }
            assert_eq!(
                planned.plan.unmet.iter().any(|one| one.try_this.contains("full path")),
                taken.is_empty()
            );
        }
    }
}

/// Kinds of machines x parents of commensal's own groups x patterns x who created the cgroup: somebody else's cgroup of such
/// a name is named, and nothing of commensal's own is.
// promise 59
#[test]
fn a_cgroup_with_a_name_of_commensals_own_is_refused_by_name() {
    for (make, parent) in [FakeHost::v1, FakeHost::v2, FakeHost::hybrid]
        .into_iter()
        .flat_map(|make| ["/commensal-offline", "/commensal-online"].map(|parent| (make, parent)))
    {
        for is_ours in [false, true] {
            let fake = make(2, 1 << 30);
            let mut host = fake.another();
            match is_ours {
                true => {
                    let own = "[group.off]\nclass = \"offline\"\n[group.on]\nclass = \"online\"\n";
                    assert!(applied(&mut host, own).2.failure.is_none());
                }
                false => crate::members::make(&fake, &format!("{parent}/job")),
            }
            crate::members::make(&fake, "/sales/job");
            let below = if is_ours { format!("{parent}/o*") } else { format!("{parent}/job") };
            let cases: [(&str, &[&str]); 5] = [
                (parent, &[]),
                (&below, &[]),
                ("/commensal-o*", &[]),
                ("/*/*", &["/sales/job"]),
                ("/sales/*", &["/sales/job"]),
            ];
            for (pattern, taken) in cases {
                let wide = if pattern.starts_with("/*") { "match-everything = true\n" } else { "" };
                let text = format!(
                    "[group.batch]\nclass = \"offline\"\n{wide}match = [{{ cgroup = \"{pattern}\" }}]\n"
                );
                let survey = instance().survey(&mut host).unwrap();
                let planned = instance().plan(&mut host, &survey, &PlanRequest::all(&specs(&text))).unwrap();
                let about = format!("{pattern}, {parent}, ours: {is_ours}: {:?}", planned.plan.notes);
                let members = planned.desired.groups[0].members.iter().map(|member| member.path.as_str());
                assert_eq!(members.collect::<Vec<_>>(), taken, "{about}");
                let said = format!("leaves out {parent}: it has the name of commensal's own cgroups");
                let named = planned.plan.notes.iter().any(|note| note.contains(&said));
                assert_eq!(named, !is_ours && !pattern.starts_with("/sales"), "{about}");
                let refused = planned.plan.unmet.iter().any(|one| one.try_this.contains("--cgroup-prefix"));
                assert_eq!(refused, named && taken.is_empty(), "{about}: {:?}", planned.plan.unmet);
            }
        }
    }
}

/// Whatever is in the place of the journal, what stands on the cgroups goes back.
// promise 57
#[test]
fn a_journal_that_cannot_be_used_loses_nothing_that_is_on_the_cgroups() {
    type Spoil = fn(&FakeHost);
    let ways: [(&str, Spoil, usize); 7] = [
        ("a directory", |fake| fake.set_kind(machine_journal(), "a directory"), 1),
        ("a named pipe", |fake| fake.set_kind(machine_journal(), "a named pipe"), 1),
        ("a socket", |fake| fake.set_kind(machine_journal(), "a socket"), 1),
        ("too large", |fake| fake.set_size(machine_journal(), 1 << 40), 1),
        ("somebody else's", |fake| fake.set_owner(machine_journal(), 65_534, 0o644), 1),
        ("for all to write", |fake| fake.set_owner(machine_journal(), 0, 0o666), 1),
        (
            "of another boot",
            |fake| {
                let mut host = fake.another();
                let mut owner = Owner::this_process(&mut host, journals::MACHINE).unwrap();
                owner.boot_id = "another".to_owned();
                host.state_replace(&machine_journal(), &journals::line(&Record::Owner(owner))).unwrap();
            },
            0,
        ),
    ];
    for (what, spoil, failures) in ways {
        for (name, fake, before) in in_force() {
            spoil(&fake);
            let result = restored(&mut fake.another());
            assert_eq!(fake.snapshot(), before, "{name}: {what}: {result:?}");
            assert_eq!(result.failed.len(), failures, "{name}: {what}: {result:?}");
            assert!(!result.done.is_empty(), "{name}: {what}");
        }
    }
}

/// A journal of an earlier boot holds up nothing, damaged or not.
// promise 57
#[test]
fn damage_from_before_the_boot_is_no_obstacle() {
    for (name, fake) in machines() {
        let mut host = fake.another();
        let mut owner = Owner::this_process(&mut host, journals::MACHINE).unwrap();
        owner.boot_id = "another".to_owned();
        let text = journals::line(&Record::Owner(owner)) + "00000000 {\"record\":\"created\"}\n";
        host.state_dir(Path::new(STATE)).unwrap();
        host.state_replace(&machine_journal(), &text).unwrap();
        let failure = applied(&mut host, GROUPS).2.failure;
        assert!(failure.is_none(), "{name}: {failure:?}");
    }
}

/// More marks than the kernel lists names of: all of them are found.
// promise 20
#[test]
fn more_marks_than_can_be_listed() {
    const PROCESSES: usize = 2_000;
    let fake = FakeHost::v1(4, 1 << 30);
    let before = fake.snapshot();
    for _ in 0..PROCESSES {
        crate::members::start(&fake, "/", "/usr/bin/ffmpeg", 1);
    }
    let text =
        "[group.media]\nclass = \"offline\"\npids.max = 9000\nmatch = [{ process = { exe = \"ffmpeg\" } }]\n";
    let specs = commensal_core::config::parse("groups.toml", text).unwrap();
    let (mut host, instance) = (fake.another(), Instance::new(Path::new(STATE)));
    let round = Reconciler::new(instance.clone(), &mut host)
        .and_then(|mut one| one.round(&mut host, 0, &PlanRequest::all(&specs)));
    let round = round.unwrap();
    assert!(round.problems.is_empty(), "{:?}", round.problems);
    fake.another().state_remove(&machine_journal()).unwrap();
    let result = instance.restore(&mut fake.another(), &[]).unwrap();
    assert!(result.failed.is_empty() && result.left.is_empty(), "{:?} {:?}", result.failed, result.left);
    assert_eq!(fake.snapshot(), before);
}

/// A lab's cgroups are emptied by killing: only where a mark says that commensal made them.
// promise 58
#[test]
fn processes_of_a_cgroup_that_nothing_marks_are_not_killed() {
    for (name, fake) in machines() {
        let mut host = fake.another();
        let (mount, path) = commensal_sensors::mounts::hierarchies(&mut host)
            .map(|all| (all[0].mount.clone(), "/theirs".to_owned()))
            .unwrap();
        let root = host.open(Path::new(&mount)).unwrap();
        let dir = host.mkdir(root, "theirs").unwrap();
        let pid = fake.add_process(&[&format!("{mount}{path}")]);
        let mut owner = Owner::this_process(&mut host, "lab").unwrap();
        // A run that has died.
        (owner.pid, owner.start_ticks) = (u32::MAX - 1, 1);
        let created = Record::Created(Created(Target { mount, path, inode: dir.inode }));
        let text: String = [&Record::Owner(owner), &created].into_iter().map(journals::line).collect();
        host.state_dir(Path::new(STATE)).unwrap();
        let lab = Path::new(STATE).join(format!("lab-{}.journal", u32::MAX - 1));
        host.state_replace(&lab, &text).unwrap();
        let result = restored(&mut host);
        assert!(result.failed.iter().any(|one| one.contains("not marked")), "{name}: {result:?}");
        assert!(fake.processes().iter().any(|one| one.pid == pid && one.exit.is_none()), "{name}: killed");
        // With its mark it is commensal's.
        let mark = serde_json::json!({ "owner": STATE, "journal": "lab", "record": created }).to_string();
        host.set_attribute(dir, "trusted.commensal.created", Some(&mark)).unwrap();
        let result = restored(&mut host);
        assert!(result.left.is_empty(), "{name}: {result:?}");
        assert!(fake.processes().iter().all(|one| one.pid != pid || one.exit.is_some()), "{name}: left");
    }
}
