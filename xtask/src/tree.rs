//! Where the source tree is, and cargo in it.

use std::path::{Path, PathBuf};

/// Cargo with the environment of a user's shell. `cargo run` sets variables for this package, and build scripts depend
/// on them (ring's is rerun when they change), so everything that depends on ring would be rebuilt in each clone.
pub fn cargo() -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "OUT_DIR" {
            command.env_remove(&name);
        }
    }
    command
}

/// The top of the source tree.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Says which step begins.
pub fn step(name: &str) {
    println!("\n== {name}");
}

/// The SQL engine is built separately: built together with it, the other crates would get features that its
/// dependencies enable, unlike in shipped builds.
pub const SQL: &str = "commensal-sql";
