//! The compiled BPF programs. One pinned compiler builds them from `bpf/`, and they are stored in the crates that load
//! them. `bpf/SHA256SUMS` has the SHA-256 of every source and object (in the format of `sha256sum`, relative to the top
//! of the tree). The same compiler produces identical bytes on every machine.

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The pinned compiler version. Other versions produce different bytes.
pub const CLANG: &str = "19.1.7";
/// Path of each source below `bpf/`, and path of its object.
const OBJECTS: [(&str, &str); 2] = [
    ("probe/blame.bpf.c", "crates/commensal-blame/blame.bpf.o"),
    ("sched/commensal.bpf.c", "crates/commensal-sched-bpf/commensal.bpf.o"),
];
const SUMS: &str = "bpf/SHA256SUMS";
/// Package with libbpf's headers for BPF programs, which are not copied into this tree.
const HEADERS: &str = "libbpf-sys";

/// Compiles the objects and writes them, or with `check` reports which are stale. If this machine cannot compile them,
/// prints the reason (which is an error with `must`) and compares the recorded sums instead.
pub fn run(root: &Path, check: bool, must: bool) -> anyhow::Result<()> {
    match compiled(root)? {
        Ok(objects) => {
            let mut stale = Vec::new();
            for (name, bytes) in objects {
                let path = root.join(name);
                if std::fs::read(&path).ok().as_deref() == Some(&bytes) {
                    continue;
                }
                if check {
                    stale.push(name);
                } else {
                    std::fs::write(&path, bytes)?;
                    println!("wrote {name}");
                }
            }
            if !stale.is_empty() {
                bail!(
                    "the objects in the tree differ from those that clang {CLANG} compiles from bpf/: {} (run `cargo \
                     xtask gen bpf`)",
                    stale.join(", ")
                );
            }
            if !check {
                std::fs::write(root.join(SUMS), text(&sums(root)?))?;
            }
        }
        Err(why) if check || !must => println!("skipped: the BPF objects are not compiled again: {why}"),
        Err(why) => bail!("the BPF objects cannot be compiled: {why}"),
    }
    let wrong = differences(root)?;
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

/// Lists the files that have changed since the objects were built.
pub fn differences(root: &Path) -> anyhow::Result<Vec<String>> {
    let recorded = std::fs::read_to_string(root.join(SUMS)).context(SUMS)?;
    let recorded: BTreeMap<String, String> = recorded
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(sum, name)| (name.to_owned(), sum.to_owned()))
        .collect();
    let found = sums(root)?;
    let names: std::collections::BTreeSet<&String> = recorded.keys().chain(found.keys()).collect();
    let differs = names.into_iter().filter(|name| recorded.get(*name) != found.get(*name));
    Ok(differs
        .map(|name| format!("{name} does not have the sum in {SUMS}: run `cargo xtask gen bpf`"))
        .collect())
}

/// Computes the SHA-256 of each source and object.
fn sums(root: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut names: Vec<String> = OBJECTS.iter().map(|(_, object)| (*object).to_owned()).collect();
    let mut folders = vec![root.join("bpf")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "c" || ending == "h") {
                names.push(path.strip_prefix(root)?.display().to_string());
            }
        }
    }
    names
        .into_iter()
        .map(|name| {
            let bytes = std::fs::read(root.join(&name)).with_context(|| name.clone())?;
            let sum = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            Ok((name, sum))
        })
        .collect()
}

fn text(sums: &BTreeMap<String, String>) -> String {
    sums.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect()
}

/// An object's path in the tree, and its bytes.
type Object = (&'static str, Vec<u8>);

/// Returns the compiled objects; the inner error is the reason why this machine cannot compile them.
fn compiled(root: &Path) -> anyhow::Result<Result<Vec<Object>, String>> {
    let Some((clang, strip)) = compiler() else {
        return Ok(Err(format!(
            "clang {CLANG} with its llvm-strip is not installed (Debian 13: clang-19 llvm-19; for other paths set \
             BPF_CLANG and BPF_STRIP)"
        )));
    };
    let headers = match headers(root) {
        Ok(headers) => headers,
        Err(error) => {
            return Ok(Err(format!(
                "the package {HEADERS}, which has libbpf's headers, cannot be used: {error:#}"
            )));
        }
    };
    let folder = tempfile::tempdir()?;
    // The programs include <bpf/...>, as on a system with libbpf's headers installed.
    std::os::unix::fs::symlink(&headers, folder.path().join("bpf"))?;
    let mut objects = Vec::new();
    for (source, name) in OBJECTS {
        let object = folder.path().join("object.o");
        let mut command = Command::new(&clang);
        // Relative paths, so that the object contains nothing specific to this machine.
        command.current_dir(root).args([
            "-target",
            "bpf",
            "-g",
            "-O2",
            "-mcpu=v3",
            "-Wall",
            "-Werror",
            "-fno-ident",
        ]);
        command.args(["-D__TARGET_ARCH_x86", "-fdebug-compilation-dir=."]);
        command.arg(format!("-ffile-prefix-map={}=libbpf", folder.path().display()));
        command
            .arg("-isystem")
            .arg(folder.path())
            .arg("-c")
            .arg(format!("bpf/{source}"))
            .arg("-o")
            .arg(&object);
        if !command.status().with_context(|| clang.clone())?.success() {
            bail!("{clang} does not compile bpf/{source}");
        }
        if !Command::new(&strip).arg("-g").arg(&object).status().with_context(|| strip.clone())?.success() {
            bail!("{strip} cannot remove the debug sections of bpf/{source}");
        }
        objects.push((name, std::fs::read(&object)?));
    }
    Ok(Ok(objects))
}

/// Returns the pinned compiler and its `llvm-strip`, if they are installed.
fn compiler() -> Option<(String, String)> {
    let named = |variable: &str, usual: &str| std::env::var(variable).unwrap_or_else(|_| usual.to_owned());
    let pair = (named("BPF_CLANG", "clang-19"), named("BPF_STRIP", "llvm-strip-19"));
    let said = |tool: &str| -> Option<String> {
        let output = Command::new(tool).arg("--version").output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let right = version(&said(&pair.0)?) == Some(CLANG) && said(&pair.1).is_some();
    right.then_some(pair)
}

/// Parses the version in the compiler's output.
fn version(text: &str) -> Option<&str> {
    text.split("version ").nth(1)?.split(|one: char| one != '.' && !one.is_ascii_digit()).next()
}

/// Returns the folder into which cargo has unpacked libbpf's headers.
fn headers(root: &Path) -> anyhow::Result<PathBuf> {
    let output = crate::tree::cargo()
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("packages")?;
    let package =
        packages.iter().find(|one| one["name"] == HEADERS).context("the package is not in Cargo.lock")?;
    let manifest = Path::new(package["manifest_path"].as_str().context("its manifest")?);
    Ok(manifest.parent().context("its folder")?.join("libbpf/src"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_are_of_these_sources() {
        assert_eq!(differences(&crate::tree::root()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn the_default_build_has_no_libbpf() {
        let tree = |args: &[&str]| {
            let mut command = crate::tree::cargo();
            command.args(["tree", "--locked", "--edges", "normal,build", "--prefix", "none"]).args(args);
            let output = command.current_dir(crate::tree::root()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let default = tree(&[]);
        assert!(default.contains("aya v0.14.0"), "the probe is in it");
        for name in ["libbpf", "clang", "bindgen", "libelf"] {
            assert!(!default.contains(name), "the default build has {name}");
        }
        assert!(tree(&["--package", "commensal-sched"]).contains(HEADERS), "this test can see it");
    }

    #[test]
    fn versions_of_the_compiler() {
        assert_eq!(version("Debian clang version 19.1.7 (3+b1)\nTarget: x"), Some("19.1.7"));
        assert_eq!(version("clang version 19.1.7\n"), Some("19.1.7"));
        assert_eq!(version("Apple clang"), None);
    }
}
