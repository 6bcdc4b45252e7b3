//! Arbitrary names on FakeHost: cgroups, containers and processes with any name are planned for, limited, recorded and
//! restored, and no message about them contains control or invisible characters.

use crate::members::{ID, engine, make, settled, start};
use crate::support::{STATE, planned, restored};
use commensal_core::plan::Action;
use commensal_core::{spelling, text};
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use commensal_testkit::{hidden, odd_names};
use std::collections::BTreeSet;
use std::path::Path;

const MEMORY: u64 = 16 << 30;

/// Returns the name as a string of TOML and JSON.
fn quoted(name: &str) -> String {
    serde_json::Value::String(name.to_owned()).to_string().replace('\u{7f}', "\\u007f")
}

/// Checks a message about one name: it must be one line without hidden characters.
fn check_said(what: &str, said: &str) {
    assert_eq!(hidden(said), None, "{what}: {said:?}");
    assert!(!said.lines().any(|line| line.trim_start().starts_with("forged")), "{what}: {said}");
}

// promise 60
#[test]
fn groups_of_any_name_are_limited_and_put_back() {
    let groups =
        "[group.odd]\nclass = \"offline\"\ncpu.max = \"0.5 cores\"\nmatch = [{ cgroup = \"/batch/*\" }]\n";
    for fake in [FakeHost::v1(4, MEMORY), FakeHost::v2(4, MEMORY), FakeHost::hybrid(4, MEMORY)] {
        let names: BTreeSet<String> = odd_names().into_iter().map(|(_, name)| spelling::text(name)).collect();
        names.iter().for_each(|name| make(&fake, &format!("/batch/{name}")));
        // Another program has enabled the controller for children, where that is necessary.
        let mut host = fake.another();
        for path in ["/sys/fs/cgroup", "/sys/fs/cgroup/batch"] {
            if let Ok(dir) = host.open(Path::new(path)) {
                let _ = host.write(dir, "cgroup.subtree_control", "+cpu");
            }
        }
        let before = fake.snapshot();
        let (found, plan) = planned(&mut fake.another(), groups).unwrap();
        check_said("plan", &plan.describe(&found));
        let written: BTreeSet<String> = plan
            .steps
            .iter()
            .filter(|step| matches!(step.action, Action::Write { .. }))
            .filter_map(|step| step.place.path.as_str().strip_prefix("/batch/").map(str::to_owned))
            .collect();
        assert_eq!(written, names, "{}", plan.describe(&found));
        settled(&mut fake.another(), groups);
        assert!(planned(&mut fake.another(), groups).unwrap().1.steps.is_empty());
        let journal = fake.another().state_read(&Path::new(STATE).join("machine.journal")).unwrap().unwrap();
        assert_eq!(hidden(&journal), None);
        let back = restored(&mut fake.another());
        assert!(back.failed.is_empty() && back.left.is_empty(), "{back:?}");
        back.done.iter().for_each(|line| check_said("restore", line));
        assert!(names.iter().all(|name| back.done.iter().any(|line| line.contains(&*text::visible(name)))));
        assert_eq!(fake.snapshot(), before);
    }
}

// promise 60
#[test]
fn containers_and_processes_of_any_name() {
    let lines = [("two lines", b"u\nforged: v".to_vec()), ("CR LF", b"u\r\nforged: v\r".to_vec())];
    for (what, name) in odd_names().into_iter().chain(lines) {
        // A groups file does not accept a blank as a name.
        let name = format!("c{}", spelling::text(name));
        let fake = FakeHost::v1(4, MEMORY);
        make(&fake, &format!("/docker/{ID}"));
        make(&fake, "/work");
        let pid = start(&fake, &format!("/docker/{ID}"), "/bin/etl", 1);
        let inner = quoted(&name);
        let inner = &inner[1..inner.len() - 1];
        engine(&fake, &[(ID, inner, &format!("\"l{inner}\":\"{inner}\""), pid)]);
        // The kernel appends ` (deleted)` to the path of a program that was replaced.
        let exe = format!("/opt/{name}.x");
        start(&fake, "/work", &exe, 1);
        let before = fake.snapshot();
        let groups = format!(
            "[group.a]\nclass = \"offline\"\nmemory.max = \"1 GiB\"\nmatch = [{{ docker-name = {0} }}, {{ docker-label = {1} }}]\n\
             [group.b]\nclass = \"offline\"\nmatch = [{{ process = {{ exe = {2} }} }}, {{ process = {{ cmdline = {0} }} }}]\n",
            quoted(&name),
            quoted(&format!("l{name}={name}")),
            quoted(&exe)
        );
        let (found, plan) = planned(&mut fake.another(), &groups).unwrap();
        assert!(plan.steps.iter().any(|step| matches!(step.action, Action::Move(_))), "{what}");
        check_said(what, &plan.describe(&found));
        assert!(
            plan.steps.iter().any(|step| step.place.path.name() == ID),
            "{what}: {}",
            plan.describe(&found)
        );
        let (_, stayed) = settled(&mut fake.another(), &groups);
        stayed.iter().for_each(|line| check_said(what, line));
        let journal = fake.another().state_read(&Path::new(STATE).join("machine.journal")).unwrap().unwrap();
        assert_eq!(hidden(&journal), None, "{what}");
        let back = restored(&mut fake.another());
        assert!(back.failed.is_empty() && back.left.is_empty(), "{what}: {back:?}");
        back.done.iter().for_each(|line| check_said(what, line));
        assert_eq!(fake.snapshot(), before, "{what}");
    }
}
