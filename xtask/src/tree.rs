//! The location of the source tree, and cargo commands in it.

use std::path::{Path, PathBuf};

/// Returns a command for cargo with the environment of a user's shell. `cargo run` sets variables for this package, and
/// some build scripts (that of ring) run again when these change. Without this function, all packages that depend on
/// ring would be rebuilt in each clone.
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

/// The top of the source tree. cargo says at run time where it is: the program may have been compiled in another clone that
/// uses the same target directory.
pub fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    let package = package.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().map(Path::to_owned).unwrap_or_default()
}

/// Prints the name of the step that begins.
pub fn step(name: &str) {
    println!("\n== {name}");
}

/// The package of the SQL engine, which is built separately. In a common build, its dependencies would enable features
/// in the other crates that shipped builds do not have.
pub const SQL: &str = "commensal-sql";
