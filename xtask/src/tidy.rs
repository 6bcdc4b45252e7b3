//! Rules of the tree: dependencies between crates and between files, file headers and sizes, where unsafe is allowed,
//! promises with their tests.

mod circles;
mod words;

use crate::promises::Promises;
use anyhow::Context;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Allowed dependencies between our crates: data flows one way.
const EDGES: [(&str, &[&str]); 15] = [
    ("commensal-core", &[]),
    ("commensal-store", &[]),
    ("commensal-host", &["commensal-core"]),
    ("commensal-sensors", &["commensal-core", "commensal-host"]),
    ("commensal-reconcile", &["commensal-core", "commensal-host", "commensal-sensors"]),
    ("commensal-blame", &["commensal-core", "commensal-host", "commensal-sensors"]),
    (
        "commensal-sched",
        &[
            "commensal-core",
            "commensal-host",
            "commensal-sensors",
            "commensal-reconcile",
            "commensal-sched-bpf",
        ],
    ),
    ("commensal-sched-bpf", &[]),
    (
        "commensal-lab",
        &["commensal-core", "commensal-host", "commensal-sensors", "commensal-reconcile", "commensal-blame"],
    ),
    (
        "commensal-density",
        &["commensal-core", "commensal-host", "commensal-sensors", "commensal-reconcile", "commensal-lab"],
    ),
    ("commensal-sql", &["commensal-core", "commensal-host", "commensal-sensors", "commensal-store"]),
    (
        "commensal-agent",
        &["commensal-core", "commensal-host", "commensal-sensors", "commensal-reconcile", "commensal-blame"],
    ),
    ("commensal-testkit", &[]),
    (
        "commensal",
        &[
            "commensal-agent",
            "commensal-core",
            "commensal-host",
            "commensal-sensors",
            "commensal-reconcile",
            "commensal-blame",
            "commensal-density",
            "commensal-lab",
        ],
    ),
    (
        "xtask",
        &[
            "commensal",
            "commensal-core",
            "commensal-host",
            "commensal-sensors",
            "commensal-reconcile",
            "commensal-blame",
            "commensal-density",
            "commensal-lab",
        ],
    ),
];

/// Maximum number of lines of a source file; files that are mostly a table are exempt.
const MAX_LINES: usize = 800;
const TABLES: [&str; 1] = ["crates/commensal-core/src/knob/table.rs"];
/// Lines of the root audit surface, without the fake and the injected faults, which do not ship.
const MAX_HOST_LINES: usize = 2_600;

/// Where JSON is made, and crates that make it nowhere else: nothing that a terminal obeys is in it.
const JSON: &str = "crates/commensal-core/src/text.rs";
const JSON_CRATES: [&str; 8] = [
    "commensal",
    "commensal-agent",
    "commensal-blame",
    "commensal-core",
    "commensal-density",
    "commensal-lab",
    "commensal-reconcile",
    "commensal-sched",
];

/// All violations.
pub fn problems(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    edges(root, &mut problems)?;
    let mut host_lines = 0;
    let files = sources(root)?;
    for path in &files {
        let text = std::fs::read_to_string(path)?;
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        if !text.starts_with("//!") {
            problems.push(format!("{name}: does not begin with a //! header that says what it holds"));
        }
        let lines = text.lines().count();
        if lines > MAX_LINES && !TABLES.contains(&name.as_str()) {
            problems.push(format!("{name}: {lines} lines, more than {MAX_LINES}"));
        }
        if name.starts_with("crates/commensal-host/src")
            && !name.contains("fake")
            && !name.ends_with("/faults.rs")
        {
            host_lines += lines;
        }
        let top = name.ends_with("src/lib.rs") || name.ends_with("src/main.rs");
        if top && !name.starts_with("crates/commensal-host") && !text.contains("#![forbid(unsafe_code") {
            problems.push(format!("{name}: lacks #![forbid(unsafe_code)]"));
        }
        if JSON_CRATES.iter().any(|one| name.starts_with(&format!("crates/{one}/src"))) {
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(&text);
            let raw = concat!("serde_json::to_", "string");
            if code.contains(raw) && name != JSON && !name.ends_with("tests.rs") {
                problems.push(format!(
                    "{name}: {raw} leaves hidden characters as they are; commensal_core::text::json does not"
                ));
            }
        }
        let ignore = concat!("#[", "ignore");
        if text.contains(ignore) {
            problems.push(format!(
                "{name}: a test that cannot run prints \"skipped: <reason>\" instead of {ignore}]"
            ));
        }
    }
    if host_lines > MAX_HOST_LINES {
        problems.push(format!(
            "commensal-host has {host_lines} lines without the fake, more than {MAX_HOST_LINES}"
        ));
    }
    words::check(root, &files, &mut problems)?;
    circles::check(root, &files, &mut problems)?;
    problems.extend(Promises::read(root, &files)?.problems);
    Ok(problems)
}

/// Manifests that enable injected faults other than by the feature that makes `commensal-faults`.
fn faults_never_ship(name: &str, manifest: &toml::Table, problems: &mut Vec<String>) {
    let features = manifest.get("features").and_then(toml::Value::as_table);
    let enables = |value: &toml::Value| {
        let names = value.as_array().into_iter().flatten().filter_map(toml::Value::as_str);
        names.into_iter().any(|name| name.contains("faults"))
    };
    for (feature, value) in features.into_iter().flatten() {
        let theirs = (feature == "faults") && ["commensal", "commensal-host"].contains(&name);
        if enables(value) && !theirs {
            problems.push(format!("{name}: feature {feature} enables injected faults, which never ship"));
        }
    }
    for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
        let dependencies = manifest.get(section).and_then(toml::Value::as_table);
        for (dependency, value) in dependencies.into_iter().flatten() {
            if dependency.starts_with("commensal") && value.get("features").is_some_and(enables) {
                problems.push(format!("{name}: {dependency} with injected faults, which never ship"));
            }
        }
    }
}

fn edges(root: &Path, problems: &mut Vec<String>) -> anyhow::Result<()> {
    let allowed: BTreeMap<&str, &[&str]> = EDGES.into_iter().collect();
    let mut manifests: Vec<PathBuf> = vec![root.join("xtask/Cargo.toml")];
    for entry in std::fs::read_dir(root.join("crates"))? {
        manifests.push(entry?.path().join("Cargo.toml"));
    }
    manifests.sort();
    for path in manifests {
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let manifest: toml::Table = text.parse()?;
        let name = manifest["package"]["name"].as_str().unwrap_or_default().to_owned();
        let Some(may) = allowed.get(name.as_str()) else {
            problems.push(format!("crate {name} is not in the list of allowed edges (xtask/src/tidy.rs)"));
            continue;
        };
        faults_never_ship(&name, &manifest, problems);
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        for dependency in dependencies.into_iter().flat_map(toml::Table::keys) {
            if dependency.starts_with("commensal") && !may.contains(&dependency.as_str()) {
                problems.push(format!(
                    "{name} depends on {dependency}: data flows the other way (ARCHITECTURE.md)"
                ));
            }
        }
    }
    Ok(())
}

/// Every source file of the tree.
pub fn sources(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.join("crates"), root.join("xtask")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}
