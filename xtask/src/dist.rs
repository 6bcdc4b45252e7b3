//! Makes the packages of a release from the list of contents in `packaging/nfpm.yaml`: .deb and .rpm, with checksums and
//! the list of the crates that they are made of.

use crate::devtools;
use crate::tree::{cargo, root, step};
use anyhow::{Context, bail};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Installs the program that builds the packages, at the version with which they were tried.
const INSTALL: &str = "go install github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4";

/// Options of `cargo xtask dist`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder to write to.
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    out: PathBuf,
    /// The profile of the program; another one is for trying out the packages.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Who answers for the packages, as `NAME <ADDRESS>`.
    #[arg(long, value_name = "WHO")]
    maintainer: String,
}

/// Builds the program, lays out the generated files, and makes the packages.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let root = root();
    if Command::new("nfpm").arg("--version").output().is_err() {
        bail!("nfpm makes the packages and is not installed: {INSTALL}");
    }
    let out = std::path::absolute(root.join(&args.out))?;
    let stage = out.join("stage");
    if stage.exists() {
        std::fs::remove_dir_all(&stage)?;
    }
    std::fs::create_dir_all(stage.join("bin"))?;
    step("program");
    let program = build(&args.profile)?;
    std::fs::copy(&program, stage.join("bin/commensal")).context("the program")?;
    done(Command::new("strip").arg(stage.join("bin/commensal")), "strip")?;
    step("generated files");
    devtools::run(&["gen", "--out", &stage.display().to_string()])?;
    let version = version(&root)?;
    texts(&root, &stage, (&version, &args.maintainer))?;
    step("packages");
    let mut made = Vec::new();
    let config = std::fs::read_to_string(root.join("packaging/nfpm.yaml"))?;
    // The control file of a .deb has no field for the license, which is in a file.
    let without_license = config.lines().filter(|line| !line.starts_with("license:"));
    let without_license: String = without_license.map(|line| format!("{line}\n")).collect();
    for (packager, config, libc, units) in [
        ("deb", &without_license, "libc6 (>= 2.34)", "/lib/systemd/system"),
        ("rpm", &config, "glibc >= 2.34", "/usr/lib/systemd/system"),
    ] {
        let arch = std::env::consts::ARCH;
        let architecture = match arch {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let file = out.join(format!("commensal-{version}.{arch}.{packager}"));
        let mut nfpm = Command::new("nfpm");
        let list = stage.join(format!("{packager}.yaml"));
        std::fs::write(&list, config)?;
        nfpm.args(["package", "--packager", packager, "--config"]).arg(&list).arg("--target").arg(&file);
        nfpm.env("ARCH", architecture).env("VERSION", &version).env("LIBC", libc).env("UNITS", units);
        nfpm.env("STAGE", &stage).env("MAINTAINER", &args.maintainer);
        done(nfpm.current_dir(&root), "nfpm")?;
        made.push(file);
    }
    let crates = out.join(format!("commensal-{version}.spdx"));
    std::fs::write(&crates, components(&version)?)?;
    made.push(crates);
    std::fs::write(out.join("SHA256SUMS"), checksums(&made)?)?;
    for file in &made {
        println!("{} ({} KiB)", file.display(), std::fs::metadata(file)?.len() >> 10);
    }
    lint(&made[0])
}

fn done(command: &mut Command, name: &str) -> anyhow::Result<()> {
    let status = command.status().with_context(|| name.to_owned())?;
    if !status.success() {
        bail!("{name} failed");
    }
    Ok(())
}

/// Builds the program and returns its path, as cargo reports it.
fn build(profile: &str) -> anyhow::Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--package", "commensal", "--bin", "commensal", "--profile", profile]);
    command.args(["--message-format", "json-render-diagnostics"]).stderr(std::process::Stdio::inherit());
    let output = command.current_dir(root()).output()?;
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut path = lines.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    path.next_back().context("the program was not built")
}

fn version(root: &Path) -> anyhow::Result<String> {
    let manifest: toml::Table = std::fs::read_to_string(root.join("Cargo.toml"))?.parse()?;
    let version = manifest["workspace"]["package"]["version"].as_str();
    Ok(version.context("no version")?.to_owned())
}

/// Compresses the man pages, and writes what a distribution expects in the documentation folder.
fn texts(root: &Path, stage: &Path, (version, maintainer): (&str, &str)) -> anyhow::Result<()> {
    // Not the pages of internal commands.
    for entry in std::fs::read_dir(stage.join("man"))? {
        done(Command::new("gzip").arg("-9n").arg(entry?.path()), "gzip")?;
    }
    let date = |format: &str| -> anyhow::Result<String> {
        let log = ["log", "-1", "--format=%cd", &format!("--date={format}")];
        let output = Command::new("git").args(log).current_dir(root).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let holder = format!("Copyright: {} the authors of commensal\n", date("format:%Y")?);
    let copyright = format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\n{holder}License: \
         Apache-2.0\n On Debian systems, the text of this license is in /usr/share/common-licenses/Apache-2.0.\n"
    );
    std::fs::write(stage.join("copyright"), copyright)?;
    let date = date("rfc")?;
    let log = stage.join("changelog.Debian");
    let text = format!(
        "commensal ({version}-1) unstable; urgency=medium\n\n  * See CHANGELOG.md in the source tree.\n\n -- {maintainer}  {date}\n"
    );
    std::fs::write(&log, text)?;
    done(Command::new("gzip").arg("-9n").arg(&log), "gzip")
}

/// The crates in the program, as an SPDX 2.3 document.
fn components(version: &str) -> anyhow::Result<String> {
    let mut tree = cargo();
    tree.args(["tree", "--package", "commensal", "--edges", "normal", "--prefix", "none", "--no-dedupe"]);
    let output = tree.args(["--format", "{p}\t{l}"]).current_dir(root()).output()?;
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines.dedup();
    let mut text = format!(
        "SPDXVersion: SPDX-2.3\nDataLicense: CC0-1.0\nSPDXID: SPDXRef-DOCUMENT\nDocumentName: commensal-{version}\n\
         DocumentNamespace: https://spdx.org/spdxdocs/commensal-{version}\nCreator: Tool: cargo-tree\n"
    );
    for (index, line) in lines.iter().enumerate() {
        let Some((name, license)) = line.split_once('\t') else { continue };
        let mut words = name.split(' ');
        let (name, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let license =
            if license.is_empty() { "NOASSERTION".to_owned() } else { license.replace('/', " OR ") };
        let _ = write!(
            text,
            "\nPackageName: {name}\nSPDXID: SPDXRef-{index}\nPackageVersion: {}\nPackageDownloadLocation: NOASSERTION\n\
             FilesAnalyzed: false\nPackageLicenseDeclared: {license}\n",
            version.trim_start_matches('v')
        );
    }
    Ok(text)
}

/// The lines of `sha256sum`.
fn checksums(files: &[PathBuf]) -> anyhow::Result<String> {
    let mut text = String::new();
    for file in files {
        let sum = Sha256::digest(std::fs::read(file)?);
        let hex: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = file.file_name().unwrap_or_default().display();
        let _ = writeln!(text, "{hex}  {name}");
    }
    Ok(text)
}

/// Checks the package by Debian's rules, where their program is installed.
fn lint(package: &Path) -> anyhow::Result<()> {
    step("lintian");
    match Command::new("lintian").args(["--fail-on", "error,warning", "--info"]).arg(package).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => bail!("lintian has objections to {}", package.display()),
        Err(error) => {
            println!("skipped: lintian: {error}");
            Ok(())
        }
    }
}
