//! Checks one crate in seconds: format, lints, its own tests, and tests of other crates that depend on the crate's
//! behaviour.

use crate::tree::{root, step};
use anyhow::{Context, bail};
use std::time::Instant;

/// For each crate, tests of other crates that depend on it: a package, and a filter for its tests.
const CONTRACTS: [(&str, &[(&str, &str)]); 5] = [
    ("commensal-core", &[("commensal-core", "golden"), ("commensal-reconcile", "properties::")]),
    ("commensal-host", &[("commensal-host", "conforms"), ("commensal-reconcile", "undo::")]),
    ("commensal-sensors", &[("commensal-reconcile", "sense::")]),
    ("commensal-reconcile", &[("commensal-reconcile", "undo::"), ("commensal-reconcile", "properties::")]),
    ("commensal-lab", &[("commensal-density", "")]),
];

/// Options of `cargo xtask check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The crate, with or without `commensal-`.
    #[arg(value_name = "CRATE")]
    name: String,
}

/// Checks the crate; stops at the first failure.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let name = package(&args.name)?;
    let began = Instant::now();
    let timed = |what: &str, command: &[&str]| -> anyhow::Result<()> {
        let start = Instant::now();
        step(what);
        let status = crate::tree::cargo().args(command).current_dir(root()).status().context("cargo")?;
        if !status.success() {
            bail!("cargo {} failed", command.join(" "));
        }
        println!("{what}: {:.1} s", start.elapsed().as_secs_f64());
        Ok(())
    };
    timed("format", &["fmt", "--package", &name, "--check"])?;
    timed("lints", &["clippy", "--quiet", "--package", &name, "--all-targets", "--", "-D", "warnings"])?;
    if root().join("crates").join(&name).join("src/lib.rs").exists() {
        timed("unit tests", &["test", "--quiet", "--package", &name, "--lib"])?;
    }
    let contract = CONTRACTS.iter().find(|(of, _)| *of == name);
    for (package, filter) in contract.iter().flat_map(|(_, tests)| tests.iter()) {
        let what = format!("{package} {filter}");
        timed(&what, &["test", "--quiet", "--package", package, "--tests", "--", filter])?;
    }
    println!("\n{name}: {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Returns the full name of one of this workspace's packages.
fn package(name: &str) -> anyhow::Result<String> {
    let long = format!("commensal-{name}");
    let known = |name: &String| root().join("crates").join(name).join("Cargo.toml").exists();
    match [name.to_owned(), long].into_iter().find(known) {
        Some(name) => Ok(name),
        None if name == "xtask" => Ok(name.to_owned()),
        None => bail!("there is no crate {name} in crates/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contracts_name_packages_of_ours() {
        for (of, tests) in CONTRACTS {
            for name in [of].into_iter().chain(tests.iter().map(|(package, _)| *package)) {
                assert_eq!(package(name).unwrap(), name);
            }
        }
        assert_eq!(package("core").unwrap(), "commensal-core");
        assert!(package("nobody").is_err());
    }
}
