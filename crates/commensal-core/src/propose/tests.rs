//! Tests of the proposal: decisions, homes, what belongs to the machine, and names of any characters.

use super::*;
use crate::config::parse;
use crate::group::Class;
use proptest::prelude::*;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn process(cgroup: &str, exe: &str) -> SeenProcess {
    let (cgroup, exe) = (CgroupPath::new(cgroup), exe.to_owned());
    SeenProcess { args: vec![exe.clone()], cgroup, exe, listens: Some(Vec::new()), ..SeenProcess::default() }
}

fn seen(processes: Vec<SeenProcess>) -> Inventory {
    Inventory { window_s: 1.0, processes, ..Inventory::default() }
}

/// The class that the proposal gives to a home, with the reason.
fn class(proposal: &Proposal) -> String {
    let entries =
        [("online", &proposal.online), ("offline", &proposal.offline), ("undecided", &proposal.undecided)];
    let line = |(class, entries): (&str, &Vec<Proposed>)| {
        entries.iter().map(|entry| format!("{class} {}: {}", entry.name, entry.reason)).collect::<Vec<_>>()
    };
    let machine = proposal.machine.iter().map(|name| format!("machine {name}"));
    let idle = (proposal.idle > 0).then(|| format!("idle {}", proposal.idle));
    entries.into_iter().flat_map(line).chain(machine).chain(idle).collect::<Vec<_>>().join("\n")
}

/// Every combination of signs: only those of one class decide.
#[test]
fn signs_decide() {
    for listens in [Some(false), Some(true), None] {
        for timer in [false, true] {
            for low in [false, true] {
                for batch in [false, true] {
                    for busy in [false, true] {
                        let mut one = process(
                            "/system.slice/x.service",
                            if batch { "/usr/bin/ffmpeg" } else { "/opt/x" },
                        );
                        one.listens =
                            listens.map(|some| if some { vec!["port 80".to_owned()] } else { Vec::new() });
                        one.nice = if low { 19 } else { 0 };
                        one.cpu_s = [1.0, if busy { 1.8 } else { 1.0 }];
                        let mut seen = seen(vec![one]);
                        if timer {
                            seen.timers.insert("x.service".to_owned(), "x.timer".to_owned());
                        }
                        let want = match (listens, timer || low || batch) {
                            (Some(true), true) => "undecided",
                            (Some(true), false) => "online",
                            (_, true) => "offline",
                            (_, false) if !busy => "idle",
                            (None, false) => "undecided",
                            (Some(false), false) => "offline",
                        };
                        let got = class(&propose(&seen));
                        let facts = format!("{listens:?} {timer} {low} {batch} {busy}: {got}");
                        assert!(got.starts_with(want), "{want}, {facts}");
                        if want == "idle" {
                            continue;
                        }
                        for (sign, words) in [
                            (timer, "started by x.timer"),
                            (low, "low priority"),
                            (batch, "runs ffmpeg"),
                            (listens == Some(true), "accepts connections on port 80"),
                            (busy, "used 0.80 CPUs"),
                        ] {
                            assert_eq!(got.contains(words), sign, "{words}, {facts}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn homes() {
    let containers: BTreeMap<String, String> = [(ID.to_owned(), "web".to_owned())].into();
    let other = ID.replace('0', "f");
    for (cgroup, exe, args, want) in [
        ("/system.slice/a.service", "/opt/x", "", "a.service"),
        ("/system.slice/system-a.slice/a@1.service/worker", "/opt/x", "", "a@1.service"),
        ("/app.slice/a.service", "/opt/x", "", "a.service"),
        ("/user.slice/user-7.slice/user@7.service/app.slice/a.service", "/opt/x", "", "/opt/x in a session"),
        ("/user.slice/user-7.slice/session-1.scope", "/opt/x", "", "/opt/x in a session"),
        (&format!("/docker/{ID}"), "/opt/x", "", "container web"),
        (&format!("/system.slice/docker-{ID}.scope/child"), "/opt/x", "", "container web"),
        (&format!("/docker/{other}"), "/opt/x", "", "nameless"),
        (&format!("/kubepods/besteffort/pod1/{ID}"), "/opt/x", "", "besteffort pods"),
        (
            &format!("/kubepods.slice/kubepods-pod12.slice/cri-containerd-{ID}.scope"),
            "/opt/x",
            "",
            "guaranteed pods",
        ),
        ("/", "/opt/x", "", "/opt/x"),
        ("/", "", "", "nothing"),
        ("/", "/bin/bash", "bash", "nothing"),
        ("/", "/bin/bash", "bash -c /opt/x", "nothing"),
        ("/", "/bin/bash", "bash /opt/x.sh a", "/bin/bash /opt/x.sh"),
        ("/", "/usr/bin/python3.11", "python3 -u /opt/etl.py", "/usr/bin/python3.11 /opt/etl.py"),
        ("/", "/usr/bin/python3.11", "python3 -m celery", "/usr/bin/python3.11 celery"),
        ("/", "/usr/bin/java", "java -Xmx1g -jar job.jar", "/usr/bin/java job.jar"),
    ] {
        let mut one = process(cgroup, exe);
        one.args = args.split(' ').map(str::to_owned).collect();
        let got = match home(&one, &containers) {
            Ok(None) => "nothing".to_owned(),
            Err(Nameless) => "nameless".to_owned(),
            Ok(Some(home)) if home.as_match().is_none() => format!("{} in a session", home.name()),
            Ok(Some(home)) => home.name(),
        };
        assert_eq!(got, want, "{cgroup} {exe} {args}");
    }
}

/// Nothing of the machine is proposed, whatever its facts are.
#[test]
fn the_machine_is_left_alone() {
    let (units, programs) = machine::names();
    let mut places = Vec::new();
    for unit in units {
        places.push((format!("/system.slice/{unit}.service"), "/opt/x".to_owned()));
        places.push((format!("/system.slice/{}@1.service", unit.trim_end_matches('@')), "/opt/x".to_owned()));
    }
    for program in programs {
        for cgroup in [
            "/",
            "/system.slice/x.service",
            "/user.slice/session-1.scope",
            &format!("/docker/{ID}"),
            "/kubepods/besteffort",
        ] {
            places.push((cgroup.to_owned(), format!("/usr/sbin/{program}")));
        }
    }
    for (cgroup, exe) in places {
        for (listens, nice, cpu_s) in [(true, 0, 0.0), (true, 19, 1.0), (false, 19, 1.0), (false, 0, 1.0)] {
            let mut one = process(&cgroup, &exe);
            one.listens = Some(if listens { vec!["port 22".to_owned()] } else { Vec::new() });
            (one.nice, one.cpu_s[1]) = (nice, cpu_s);
            // A child that does something else changes nothing.
            let mut child = process(&cgroup, "/usr/bin/ffmpeg");
            child.cpu_s[1] = 1.0;
            let with_child =
                if cgroup == "/" || cgroup.contains("session") { Vec::new() } else { vec![child] };
            let mut seen = seen([one].into_iter().chain(with_child).collect());
            seen.containers.insert(ID.to_owned(), "c".to_owned());
            if let Some(unit) = cgroup.strip_prefix("/system.slice/") {
                seen.timers.insert(unit.to_owned(), "x.timer".to_owned());
            }
            let proposal = propose(&seen);
            assert!(
                proposal.is_empty() && proposal.undecided.is_empty(),
                "{cgroup} {exe}: {}",
                class(&proposal)
            );
        }
    }
}

/// Time that a child takes with it when it exits belongs to its parent, and is not lost or counted twice.
#[test]
fn a_child_that_exits_is_counted_once() {
    let mut parent = process("/system.slice/x.service", "/opt/x");
    parent.cpu_s = [1.0, 1.7];
    let mut child = process("/system.slice/x.service", "/opt/x");
    child.cpu_s = [0.5, 0.0];
    let got = class(&propose(&seen(vec![parent, child])));
    assert!(got.contains("used 0.20 CPUs"), "{got}");
}

/// Names with any characters.
fn name() -> impl Strategy<Value = String> {
    let odd = "[\u{0}-\u{9f}\u{200b}-\u{206f}\u{feff}\u{10ff80}-\u{10ffff}\"'\\\\#\\[\\]{}=,]{0,12}";
    (any::<String>(), odd).prop_map(|(any, odd)| any + &odd)
}

proptest! {
    /// The parser reads back exactly the matches that were proposed, whatever the names are.
    #[test]
    fn what_is_proposed_is_read_back(
        rows in proptest::collection::vec((name(), name(), 0..4_u8, any::<bool>(), 0..3_u8), 0..12),
        timer in name(),
        job in name(),
        unseen in name(),
    ) {
        let mut seen = seen(Vec::new());
        for (index, (name, other, kind, listens, busy)) in rows.into_iter().enumerate() {
            let plain = name.replace(['/', '\0', '\n'], "");
            let id = format!("{index:064x}");
            let (cgroup, exe) = match kind {
                0 => (format!("/system.slice/{plain}.service"), "/opt/x".to_owned()),
                1 => (format!("/docker/{id}"), "/opt/x".to_owned()),
                2 => ("/".to_owned(), name.clone()),
                _ => ("/".to_owned(), "/usr/bin/python3".to_owned()),
            };
            let mut one = process(&cgroup, &exe);
            one.args = vec!["x".to_owned(), other.clone()];
            one.listens = Some(if listens { vec![other.clone()] } else { Vec::new() });
            one.cpu_s[1] = f64::from(busy);
            seen.containers.insert(id, name.clone());
            seen.timers.insert(format!("{other}.service"), timer.clone());
            seen.processes.push(one);
        }
        seen.jobs.push(CronJob { at: "/c:1".to_owned(), command: job });
        seen.unseen.push(unseen);
        let proposal = propose(&seen);
        let text = proposal.groups_file();
        let specs = parse("init.toml", &text).map_err(|wrong| TestCaseError::fail(format!("{wrong:?}\n{text}")))?;
        for (of, entries) in [(Class::Online, &proposal.online), (Class::Offline, &proposal.offline)] {
            let read: Vec<&Match> = specs.iter().filter(|spec| spec.class == of).flat_map(|spec| &spec.matches).collect();
            let wanted: Vec<&Match> = entries.iter().filter_map(|entry| entry.one.as_ref()).collect();
            prop_assert_eq!(read, wanted, "{}", text);
        }
        prop_assert!(specs.iter().all(|spec| spec.limits.is_empty() && !spec.takeover));
        prop_assert!(!text.contains(|one: char| crate::text::is_hidden(one) && one != '\n'));
    }
}
