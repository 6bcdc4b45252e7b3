//! Finds the compiler of BPF programs: for the build script, and for whoever decides whether to ask for them.

use std::process::Command;

/// The oldest that makes what the kernels of this project take.
const OLDEST: u32 = 18;

/// The one named in `BPF_CLANG`, or the newest that is installed; `None` when there is none or it is too old.
pub fn clang() -> Option<String> {
    let named = std::env::var("BPF_CLANG").ok();
    let known = (OLDEST..=24).rev().map(|version| format!("clang-{version}")).chain(["clang".to_owned()]);
    let mut candidates = named.map_or_else(|| known.collect(), |one| vec![one]).into_iter();
    candidates.find(|name| {
        let Ok(output) = Command::new(name).arg("--version").output() else { return false };
        version(&String::from_utf8_lossy(&output.stdout)).is_some_and(|version| version >= OLDEST)
    })
}

/// The major version in what the compiler says of itself.
pub fn version(text: &str) -> Option<u32> {
    text.split("version ").nth(1)?.split('.').next()?.parse().ok()
}
