//! A lock for tests that measure: only one of them runs at a time.

use std::fs::File;

/// The lock, held by a test that measures or that keeps the CPUs busy. The kernel releases it when the process exits.
#[derive(Debug)]
pub struct Alone(#[allow(dead_code, reason = "held, not read")] File);

/// Waits until no other test of this user measures, in any process and any crate, and takes the lock.
///
/// # Panics
/// Panics if the lock cannot be taken.
#[must_use]
pub fn alone() -> Alone {
    let user = rustix::process::geteuid().as_raw();
    let path = std::env::temp_dir().join(format!("commensal-tests-alone-{user}.lock"));
    let file = File::options().create(true).append(true).open(path).expect("a lock in the temporary folder");
    file.lock().expect("the lock");
    Alone(file)
}
