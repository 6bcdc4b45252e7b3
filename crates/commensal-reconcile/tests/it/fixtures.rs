//! Tests on other kinds of machines, each from a tree in `fixtures/`.

use crate::support::{applied, planned, restored};
use commensal_host::Host;
use commensal_host::fake::FakeHost;
use std::path::Path;

/// The groups file that is used on all machines.
const GROUPS: &str = include_str!("../../../../fixtures/groups.toml");

/// On each machine the plan can be carried out, a second plan is empty, and restoring leaves the machine as it was.
// promise 7
#[test]
fn every_machine_takes_its_plan_and_gets_everything_back() {
    for (name, fake) in FakeHost::fixtures().unwrap() {
        // Where systemd manages the tree, this process runs in a delegated scope.
        let slice = Path::new("/sys/fs/cgroup/system.slice");
        let mut host = fake.another();
        if fake.another().list(Path::new("/sys/fs/cgroup/init.scope")).is_ok() {
            let slice = host.open(slice).unwrap();
            let scope = host.mkdir(slice, "run-r1.scope").unwrap();
            host.mkdir(scope, "inner").unwrap();
            let scope = "/sys/fs/cgroup/system.slice/run-r1.scope";
            fake.give_attribute(scope, "trusted.delegate", "1");
            fake.set_file("/proc/self/cgroup", "0::/system.slice/run-r1.scope/inner\n");
            fake.move_process(std::process::id(), format!("{scope}/inner"));
        }
        let before = fake.snapshot();
        let (found, plan, outcome) = applied(&mut fake.another(), GROUPS);
        assert!(plan.steps.len() > 5, "{name}\n{}", plan.describe(&found));
        let failure = outcome.failure.map(|failure| failure.refusal.to_string());
        assert_eq!(failure, None, "{name}\n{}", plan.describe(&found));
        let (again, second) = planned(&mut fake.another(), GROUPS).unwrap();
        assert!(second.is_empty(), "{name}\n{}\nagain\n{}", plan.describe(&found), second.describe(&again));
        let back = restored(&mut fake.another());
        assert!(back.failed.is_empty() && back.left.is_empty(), "{name}: {back:?}");
        assert_eq!(fake.snapshot(), before, "{name}");
    }
}
