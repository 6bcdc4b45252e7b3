//! Rules of the tree: dependencies between crates and between files, file headers and sizes, where `unsafe` is allowed,
//! and promises with their tests.

mod circles;
mod gate;
mod words;

use crate::promises::Promises;
use anyhow::Context;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Allowed dependencies between the crates of this workspace: data flows in one direction.
const EDGES: [(&str, &[&str]); 16] = [
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
        "devtools",
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
    ("xtask", &[]),
];

/// Crates that only some files of the program may use, so that the commands that plan, apply, run and restore do not
/// depend on the agent. A path that ends with `/` is a directory.
const NAMED_IN: [(&str, &[&str]); 2] = [
    ("commensal_agent", &["agent.rs", "canary.rs", "canary/", "sched/load.rs", "status.rs", "top.rs"]),
    (
        "commensal_density",
        &["config.rs", "density.rs", "density_args.rs", "density_pin.rs", "density_run.rs", "workload.rs"],
    ),
];

/// Maximum number of lines of a source file; files that are mostly a table are exempt.
const MAX_LINES: usize = 800;
const TABLES: [&str; 1] = ["crates/commensal-core/src/knob/table.rs"];
/// Maximum number of lines of `commensal-host`, which is limited because this code acts as root and must be audited.
/// The fake host and the injected faults do not count, because they do not ship.
const MAX_HOST_LINES: usize = 2_900;

/// The file with the functions that write JSON. The crates in [`JSON_CRATES`] write JSON only through these functions,
/// so that it contains no terminal control characters.
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

/// The folder of a package as a constant. Clones that use the same target directory share compiled programs, so it may be
/// another clone's.
const COMPILED_IN: &str = "env!(\"CARGO_MANIFEST_DIR\"";
const FINDS_THE_TREE: [&str; 2] = ["xtask/src/tree.rs", "xtask/src/tidy.rs"];

/// Lists all violations.
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
        problems.extend(named_elsewhere(&name, &text));
        if text.contains(COMPILED_IN) && !FINDS_THE_TREE.contains(&name.as_str()) {
            problems.push(format!(
                "{name}: {COMPILED_IN}) is where the program was compiled; tests run in their package's folder"
            ));
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
                    "{name}: {raw} does not escape hidden characters: use commensal_core::text::json"
                ));
            }
        }
        let ignore = concat!("#[", "ignore");
        if text.contains(ignore) {
            problems.push(format!(
                "{name}: a test that cannot run must print \"skipped: <reason>\" instead of having {ignore}]"
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
    gate::check(root, &files, &mut problems)?;
    problems.extend(stray_files(root));
    problems.extend(Promises::read(root, &files)?.problems);
    Ok(problems)
}

/// Reports a file of the program that uses a crate which only other files may use.
fn named_elsewhere(file: &str, text: &str) -> Vec<String> {
    let Some(inside) = file.strip_prefix("crates/commensal/src/") else { return Vec::new() };
    let may = |files: &[&str]| {
        let command = inside.strip_prefix("cli/").unwrap_or_default();
        files.iter().any(|one| command == *one || (one.ends_with('/') && command.starts_with(*one)))
    };
    let wrong = NAMED_IN.iter().filter(|(name, files)| text.contains(*name) && !may(files));
    let told = |name| format!("{file}: uses {name}, which only its own commands may use (ARCHITECTURE.md)");
    wrong.map(|(name, _)| told(name)).collect()
}

/// Reports manifests that enable injected faults, except by the feature that builds `commensal-faults`.
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
                problems
                    .push(format!("{name}: enables the injected faults of {dependency}, which never ship"));
            }
        }
    }
}

/// Reports the reasons why a crate with `publish = true` cannot be published: it has no description, no licence or no
/// licence text, or depends on a package of this workspace (`ours`) without a version requirement, which only published
/// crates have.
fn publishable(name: &str, manifest: &toml::Table, (ours, licensed): (&toml::Table, bool)) -> Vec<String> {
    let package = &manifest["package"];
    if package.get("publish").and_then(toml::Value::as_bool) != Some(true) {
        return Vec::new();
    }
    let missing = ["description", "license"].into_iter().filter(|key| package.get(*key).is_none());
    let mut problems: Vec<String> = missing.map(str::to_owned).collect();
    if !licensed {
        problems.push("the file LICENSE".to_owned());
    }
    let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
    let dependencies = dependencies.into_iter().flat_map(toml::Table::keys);
    let loose = dependencies.filter(|one| {
        one.starts_with("commensal") && ours.get(*one).is_none_or(|there| there.get("version").is_none())
    });
    problems.extend(loose.map(|one| format!("a version requirement of {one}")));
    problems.iter().map(|lacks| format!("{name} is to be published, but lacks {lacks}")).collect()
}

fn edges(root: &Path, problems: &mut Vec<String>) -> anyhow::Result<()> {
    let allowed: BTreeMap<&str, &[&str]> = EDGES.into_iter().collect();
    let mut manifests: Vec<PathBuf> = vec![root.join("devtools/Cargo.toml"), root.join("xtask/Cargo.toml")];
    for entry in std::fs::read_dir(root.join("crates"))? {
        manifests.push(entry?.path().join("Cargo.toml"));
    }
    manifests.sort();
    let top: toml::Table = std::fs::read_to_string(root.join("Cargo.toml"))?.parse()?;
    let ours = top["workspace"]["dependencies"].as_table().cloned().unwrap_or_default();
    for path in manifests {
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let manifest: toml::Table = text.parse()?;
        let name = manifest["package"]["name"].as_str().unwrap_or_default().to_owned();
        let Some(may) = allowed.get(name.as_str()) else {
            problems.push(format!("crate {name} is not in the list of allowed edges (xtask/src/tidy.rs)"));
            continue;
        };
        faults_never_ship(&name, &manifest, problems);
        problems.extend(publishable(&name, &manifest, (&ours, path.with_file_name("LICENSE").exists())));
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

/// Files at the top of the tree. Others there are left over from somebody's work.
const AT_THE_TOP: [&str; 13] = [
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "PROMISES.md",
    "README.md",
    "clippy.toml",
    "deny.toml",
    "rust-toolchain.toml",
    "rustfmt.toml",
];

/// Lists the files at the top of the tree that do not belong there. Without git (in a package) there are none.
fn stray_files(root: &Path) -> Vec<String> {
    let mut git = std::process::Command::new("git");
    let listed = git.args(["ls-files", "--cached"]).current_dir(root).output();
    let listed =
        listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let stray = listed.lines().filter(|name| !name.contains('/') && !AT_THE_TOP.contains(name));
    let there = stray.filter(|name| root.join(name).exists());
    there.map(|name| format!("{name}: no file of this name belongs at the top of the tree")).collect()
}

/// Lists every source file of the tree.
pub fn sources(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.join("crates"), root.join("devtools"), root.join("xtask")];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_of_the_agent_name_it() {
        let check = |file: &str, allowed: bool| {
            let found = named_elsewhere(&format!("crates/{file}"), "use commensal_agent::client;\n");
            assert_eq!(found.is_empty(), allowed, "{file}: {found:?}");
        };
        check("commensal/src/cli/agent.rs", true);
        check("commensal/src/cli/canary/report.rs", true);
        check("commensal-agent/src/lib.rs", true);
        check("commensal/src/cli/apply.rs", false);
        check("commensal/src/context.rs", false);
        check("commensal/src/agent.rs", false);
    }

    #[test]
    fn what_is_published_has_what_a_registry_asks_for() {
        let ours: toml::Table =
            "commensal-core = { path = \"x\", version = \"1\" }\ncommensal-lab = { path = \"y\" }"
                .parse()
                .unwrap();
        let check = |more: &str, licensed: bool, want: &[&str]| {
            let manifest: toml::Table = format!("[package]\nlicense = \"MIT\"\n{more}").parse().unwrap();
            let found = publishable("one", &manifest, (&ours, licensed)).join("\n");
            assert_eq!(found.lines().count(), want.len(), "{found}");
            want.iter().for_each(|word| assert!(found.contains(word), "{found}"));
        };
        let core = "[dependencies]\ncommensal-core.workspace = true\n";
        let lab = "[dependencies]\ncommensal-lab.workspace = true\n";
        check(&format!("publish = true\ndescription = \"x\"\n{core}"), true, &[]);
        check(&format!("publish = true\ndescription = \"x\"\n{lab}"), true, &["commensal-lab"]);
        check("publish = true\n", false, &["description", "LICENSE"]);
        check(&format!("publish.workspace = true\n{lab}"), false, &[]);
    }
}
