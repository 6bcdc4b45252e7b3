//! `doctor --prove` on the running kernel, which is killed.

use crate::support::{Program, can_write_cgroups, cgroups_named};
use commensal_testkit::until;
use std::process::Stdio;

/// Killed in the middle, it leaves nothing for long: a process of its own removes the scratch groups.
// promise 4
#[test]
fn killed_while_it_tries() {
    if !can_write_cgroups("killed_while_it_tries") {
        return;
    }
    let program = Program::new("prove-killed");
    let mut command = program.command(&["doctor", "--prove"]);
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let scratch = format!("{}-prove", program.prefix);
    until("a scratch group appears", || !cgroups_named(&scratch).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    until("the scratch groups are gone", || cgroups_named(&scratch).is_empty());
}
