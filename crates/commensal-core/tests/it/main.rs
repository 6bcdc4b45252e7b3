//! Golden plans: each file in `tests/plan` holds a machine, its cgroup tree, a groups file and the
//! plan that must come out. `UPDATE=1 cargo test -p commensal-core` rewrites the expectations.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(clippy::disallowed_methods, reason = "tests read their scripts")]

mod control;
mod scheduler;
mod schema;

use commensal_core::actual::{ActualState, Capabilities, Cgroup, CgroupPath, CgroupRef, Hierarchy, Support};
use commensal_core::desired::{ResolveOptions, resolve};
use commensal_core::knob::{Controller, KnobId, TABLE, Value, Version};
use commensal_core::namespace::MountedPart;
use commensal_core::topology::{LogicalCpu, Machine};
use commensal_core::units::Bytes;
use commensal_core::{config, plan};
use std::collections::BTreeMap;
use std::path::Path;

// promises 2, 3, 5, 6
#[test]
fn golden_plans() {
    let folder = Path::new("tests/plan");
    let mut scripts: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    assert!(scripts.len() >= 10, "the scripts are not where they should be: {folder:?}");
    let mut wrong = Vec::new();
    for path in scripts {
        let text = std::fs::read_to_string(&path).unwrap();
        let (before, expected) = text.split_once("== plan\n").unwrap_or((&text, ""));
        let got = run(before);
        if got == expected {
            continue;
        }
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, format!("{before}== plan\n{got}")).unwrap();
        } else {
            wrong.push(format!("{}\n--- expected\n{expected}--- got\n{got}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Holding a queue and freezing near a memory limit need somebody who watches; beside an agent nothing is missing.
#[test]
fn what_an_agent_does_is_unmet_only_without_one() {
    for (word, kept) in [("", false), ("agent\n", true)] {
        for way in ["queue", "freeze"] {
            let group = format!(
                "[group.a]\nclass = \"offline\"\nmemory = {{ max = \"1 GiB\", on-exceed = \"{way}\" }}\nmatch = [{{ cgroup = \"/a\" }}]\n"
            );
            let plan = run(&format!("== machine\nlayout v2\n{word}== tree\n/a\n== groups\n{group}"));
            assert!(plan.contains("memory.max"), "{plan}");
            let key = format!("memory.on-exceed = \"{way}\"");
            for words in [key.as_str(), "`commensal agent`"] {
                assert_eq!(plan.contains(words), !kept, "{words}: {plan}");
            }
        }
    }
}

/// Sections of a script by name.
fn sections(text: &str) -> BTreeMap<&str, String> {
    let mut sections: BTreeMap<&str, String> = BTreeMap::new();
    let mut name = "";
    for line in text.lines() {
        if let Some(next) = line.strip_prefix("== ") {
            name = next;
        } else if name == "groups" || !line.starts_with('#') {
            let section = sections.entry(name).or_default();
            section.push_str(line);
            section.push('\n');
        }
    }
    sections
}

fn run(script: &str) -> String {
    let sections = sections(script);
    let section = |name: &str| sections.get(name).map(String::as_str).unwrap_or_default();
    let (machine, mut actual, caps, options) = machine(section("machine"));
    tree(section("tree"), &mut actual);
    let specs = match config::parse("groups.toml", section("groups")) {
        Ok(specs) => specs,
        Err(errors) => return errors.iter().map(|error| format!("error {error}\n")).collect(),
    };
    match resolve(&specs, &machine, &actual, &options) {
        Ok(desired) => {
            let plan = plan::plan(&desired, &actual, &caps);
            assert_eq!(plan, plan::plan(&desired, &actual, &caps), "planning twice differs");
            plan.describe(&actual)
        }
        Err(errors) => errors.iter().map(|error| format!("error {error}\n")).collect(),
    }
}

fn machine(text: &str) -> (Machine, ActualState, Capabilities, ResolveOptions) {
    let mut machine = Machine::simple(4, Bytes(16 << 30));
    let mut actual = ActualState::default();
    let mut caps = Capabilities::everything();
    let mut options = ResolveOptions::default();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "cpus" => machine = Machine::simple(rest.parse().unwrap(), machine.memory),
            "offline" => {
                machine.topology.offline = rest.parse().unwrap();
                let online = |cpu: &LogicalCpu| !machine.topology.offline.contains(cpu.id);
                machine.topology.cpus.retain(online);
            }
            "memory" => machine.memory = rest.parse().unwrap(),
            "layout" => actual.hierarchies = layout(rest),
            "lacks" => {
                let knob = KnobId::from_name(rest).unwrap_or_else(|| panic!("no knob {rest}"));
                for version in [Version::V1, Version::V2] {
                    caps.knobs.insert(
                        (knob, version),
                        Support::No { because: format!("this kernel has no {rest}") },
                    );
                }
            }
            "agent" => options.kept = true,
            "scheduler" => scheduler::found(&mut actual, &mut caps, rest),
            "no-cgroups" => caps.cgroup_obstacle = Some(rest.to_owned()),
            "run" => {
                options.own.insert(commensal_core::group::GroupName::new(rest).unwrap());
            }
            other => panic!("unknown machine line {other:?}"),
        }
    }
    let roots = actual.hierarchies.len();
    for hierarchy in 0..roots {
        let mut root = Cgroup { inode: 1, ..Cgroup::default() };
        if actual.hierarchies[hierarchy].version == Version::V2 {
            root.subtree = [Controller::Cpu, Controller::Memory].into_iter().collect();
        }
        actual.cgroups.insert(CgroupRef { hierarchy, path: CgroupPath::root() }, root);
    }
    (machine, actual, caps, options)
}

fn layout(name: &str) -> Vec<Hierarchy> {
    use Controller::{Cpu, Cpuacct, Cpuset, Io, Memory, Pids};
    let v1 = |controllers: &[Controller]| Hierarchy {
        version: Version::V1,
        mount: format!("/sys/fs/cgroup/{}", controllers[0].v1_name()),
        controllers: controllers.iter().copied().collect(),
        part: MountedPart::default(),
    };
    let v2 = |controllers: &[Controller]| Hierarchy {
        version: Version::V2,
        mount: "/sys/fs/cgroup".to_owned(),
        controllers: controllers.iter().copied().collect(),
        part: MountedPart::default(),
    };
    match name {
        "v1" => [[Cpu].as_slice(), &[Cpuacct], &[Cpuset], &[Memory], &[Io], &[Pids]].map(v1).to_vec(),
        "v1-comounted" => vec![v1(&[Cpu, Cpuacct]), v1(&[Memory])],
        "v2" => vec![v2(&[Cpu, Cpuset, Memory, Io, Pids])],
        "hybrid" => vec![v1(&[Cpu, Cpuacct]), v1(&[Memory]), v2(&[])],
        other => panic!("unknown layout {other:?}"),
    }
}

/// `PATH` or `LABEL:PATH`, then `file=value`, `populated`, `+controller`, `ours` or `was:file=value`.
fn tree(text: &str, actual: &mut ActualState) {
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap();
        let (label, path) = first.split_once(':').map_or((None, first), |(label, path)| (Some(label), path));
        let words: Vec<&str> = words.collect();
        for hierarchy in 0..actual.hierarchies.len() {
            if label.is_none_or(|label| actual.hierarchies[hierarchy].label() == label) {
                place(CgroupRef { hierarchy, path: CgroupPath::new(path) }, &words, actual);
            }
        }
    }
}

fn place(place: CgroupRef, words: &[&str], actual: &mut ActualState) {
    let version = actual.hierarchies[place.hierarchy].version;
    let inode = 100 + u64::try_from(actual.cgroups.len()).unwrap();
    let mut found = actual.cgroups.remove(&place).unwrap_or(Cgroup { inode, ..Cgroup::default() });
    for word in words {
        if *word == "populated" {
            found.populated = true;
        } else if *word == "ours" {
            actual.ours.created.insert(place.clone());
        } else if let Some(name) = word.strip_prefix('+') {
            found.subtree.insert(Controller::from_name(name, version).unwrap());
        } else if let Some((knob, value)) = word.strip_prefix("was:").and_then(|word| value(word, version)) {
            actual.ours.originals.insert((place.clone(), knob, None), value);
        } else if let Some((knob, value)) = value(word, version) {
            found.values.insert((knob, None), value);
        } else {
            panic!("{word:?} is neither a flag nor file=value");
        }
    }
    actual.cgroups.insert(place, found);
}

fn value(word: &str, version: Version) -> Option<(KnobId, Value)> {
    let (name, text) = word.split_once('=')?;
    let row = TABLE.iter().find(|row| row.file(version).is_some_and(|file| file.name == name))?;
    Some((row.id, row.file(version)?.parse(text, None).ok()?))
}
