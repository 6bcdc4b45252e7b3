//! Makes the packages of a release from the lists of contents in `packaging`: .deb and .rpm, and of a static program a
//! tarball and an image, with checksums and the list of the crates that they are made of.

mod image;

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
    /// What to package; commensal-sql takes a quarter of an hour.
    #[arg(value_enum, default_value = "commensal")]
    packages: Vec<Package>,
    /// The folder to write to.
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    out: PathBuf,
    /// The profile of the programs; another one is for trying out the packages.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Who answers for the packages, as `NAME <ADDRESS>`.
    #[arg(long, value_name = "WHO")]
    maintainer: String,
    /// Instead make a tarball and an image (OCI layout) of commensal as a static program. Needs the target of musl (`rustup
    /// target add x86_64-unknown-linux-musl`).
    #[arg(long = "static", conflicts_with = "packages")]
    is_static: bool,
}

/// A package, with the name of its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Package {
    Commensal,
    CommensalSched,
    CommensalSql,
}

impl Package {
    fn name(self) -> &'static str {
        match self {
            Package::Commensal => "commensal",
            Package::CommensalSched => "commensal-sched",
            Package::CommensalSql => "commensal-sql",
        }
    }

    /// The list of contents.
    fn list(self) -> &'static str {
        match self {
            Package::Commensal => "packaging/nfpm.yaml",
            Package::CommensalSched => "packaging/sched/nfpm.yaml",
            Package::CommensalSql => "packaging/sql/nfpm.yaml",
        }
    }

    /// The man page that is not generated, because the program's command line is not part of a library.
    fn page(self) -> Option<&'static str> {
        match self {
            Package::Commensal => None,
            Package::CommensalSched => Some("packaging/sched/commensal-sched.1"),
            Package::CommensalSql => Some("packaging/sql/commensal-sql.1"),
        }
    }
}

/// A kind of package, and what differs in it.
struct Format {
    packager: &'static str,
    libc: &'static str,
    units: &'static str,
    zsh: &'static str,
}

const DEB: Format = Format {
    packager: "deb",
    libc: "libc6 (>= 2.34)",
    units: "/lib/systemd/system",
    zsh: "vendor-completions",
};
const RPM: Format = Format {
    packager: "rpm",
    libc: "glibc >= 2.34",
    units: "/usr/lib/systemd/system",
    zsh: "site-functions",
};
/// Its files, owned by root, are an archive of their own in it: the content of the tarball and of the image.
const FILES: Format =
    Format { packager: "ipk", libc: "libc", units: "/usr/lib/systemd/system", zsh: "site-functions" };

/// Where the files of one package are laid out, and what is in its name.
struct Stage<'a> {
    root: &'a Path,
    package: Package,
    folder: PathBuf,
    version: &'a str,
    maintainer: &'a str,
}

/// Builds the programs, lays out the generated files, and makes the packages.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let root = root();
    if Command::new("nfpm").arg("--version").output().is_err() {
        bail!("nfpm makes the packages and is not installed: {INSTALL}");
    }
    let out = std::path::absolute(root.join(&args.out))?;
    let version = version(&root)?;
    let (mut made, mut debs) = (Vec::new(), Vec::new());
    for package in args.packages.iter().copied() {
        let folder = out.join("stage").join(package.name());
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        let stage = Stage { root: &root, package, folder, version: &version, maintainer: &args.maintainer };
        step(&format!("{}: program", package.name()));
        let target = args.is_static.then(|| format!("{}-unknown-linux-musl", std::env::consts::ARCH));
        let program = build(package, &args.profile, target.as_deref())?;
        stage.lay_out(&program)?;
        step(&format!("{}: packages", package.name()));
        if args.is_static {
            made.extend(image::make(&stage, &out)?);
        } else {
            for format in [DEB, RPM] {
                let (name, arch) = (package.name(), std::env::consts::ARCH);
                let file = out.join(format!("{name}-{version}.{arch}.{}", format.packager));
                stage.pack(&format, &file)?;
                debs.extend((format.packager == "deb").then(|| file.clone()));
                made.push(file);
            }
        }
        let crates = out.join(format!("{}-{version}.spdx", package.name()));
        std::fs::write(&crates, components(package, &version)?)?;
        made.push(crates);
    }
    std::fs::write(out.join("SHA256SUMS"), checksums(&made)?)?;
    for file in &made {
        println!("{} ({} KiB)", file.display(), std::fs::metadata(file)?.len() >> 10);
    }
    debs.iter().try_for_each(|deb| lint(deb))
}

impl Stage<'_> {
    /// Copies the program, and writes what is generated.
    fn lay_out(&self, program: &Path) -> anyhow::Result<()> {
        let bin = self.folder.join("bin");
        std::fs::create_dir_all(&bin)?;
        let copy = bin.join(self.package.name());
        std::fs::copy(program, &copy).context("the program")?;
        done(Command::new("strip").arg(&copy), "strip")?;
        match self.package.page() {
            None => devtools::run(&["gen", "--out", &self.folder.display().to_string()])?,
            Some(page) => {
                let pages = self.folder.join("man");
                std::fs::create_dir_all(&pages)?;
                let name = Path::new(page).file_name().unwrap_or_default();
                std::fs::copy(self.root.join(page), pages.join(name)).context("the man page")?;
            }
        }
        self.texts()
    }

    /// Compresses the man pages, and writes what a distribution expects in the documentation folder.
    fn texts(&self) -> anyhow::Result<()> {
        for entry in std::fs::read_dir(self.folder.join("man"))? {
            done(Command::new("gzip").arg("-9n").arg(entry?.path()), "gzip")?;
        }
        let holder = format!("Copyright: {} the authors of commensal\n", date(self.root, "format:%Y")?);
        let mut copyright = format!(
            "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\n{holder}License: \
             Apache-2.0\n On Debian systems, the text of this license is in /usr/share/common-licenses/Apache-2.0.\n"
        );
        if self.package == Package::CommensalSched {
            let _ = write!(
                copyright,
                "\nFiles: usr/share/commensal-sched/bpf/*\n{holder}License: GPL-2\n The program loads an object that is \
                 compiled from these files. On Debian systems, the text of this license is in \
                 /usr/share/common-licenses/GPL-2.\n"
            );
        }
        std::fs::write(self.folder.join("copyright"), copyright)?;
        let (version, name) = (self.version, self.package.name());
        let text = format!(
            "{name} ({version}-1) unstable; urgency=medium\n\n  * See CHANGELOG.md in the source tree.\n\n -- {}  {}\n",
            self.maintainer,
            date(self.root, "rfc")?
        );
        let log = self.folder.join("changelog.Debian");
        std::fs::write(&log, text)?;
        done(Command::new("gzip").arg("-9n").arg(&log), "gzip")
    }

    /// Makes one package from the list of contents.
    fn pack(&self, format: &Format, file: &Path) -> anyhow::Result<()> {
        let mut list = std::fs::read_to_string(self.root.join(self.package.list()))?;
        if format.packager == "deb" {
            // The control file of a .deb has no field for the license, which is in a file.
            list = list
                .lines()
                .filter(|line| !line.starts_with("license:"))
                .fold(String::new(), |all, line| all + line + "\n");
        }
        let copy = self.folder.join(format!("{}.yaml", format.packager));
        std::fs::write(&copy, list)?;
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let mut nfpm = Command::new("nfpm");
        nfpm.args(["package", "--packager", format.packager, "--config"])
            .arg(&copy)
            .arg("--target")
            .arg(file);
        nfpm.env("ARCH", architecture).env("VERSION", self.version).env("LIBC", format.libc);
        nfpm.env("UNITS", format.units).env("ZSH", format.zsh);
        nfpm.env("STAGE", &self.folder).env("MAINTAINER", self.maintainer);
        done(nfpm.current_dir(self.root), "nfpm")
    }
}

fn done(command: &mut Command, name: &str) -> anyhow::Result<()> {
    let status = command.status().with_context(|| name.to_owned())?;
    if !status.success() {
        bail!("{name} failed");
    }
    Ok(())
}

/// The time of the last commit, in a format of git.
fn date(root: &Path, format: &str) -> anyhow::Result<String> {
    let log = ["log", "-1", "--format=%cd", &format!("--date={format}")];
    let output = Command::new("git").args(log).env("TZ", "UTC").current_dir(root).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Builds the program and returns its path, as cargo reports it.
fn build(package: Package, profile: &str, target: Option<&str>) -> anyhow::Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--package", package.name(), "--bin", package.name(), "--profile", profile]);
    command.args(target.iter().flat_map(|target| ["--target", *target]));
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

/// The crates in the program, as an SPDX 2.3 document.
fn components(package: Package, version: &str) -> anyhow::Result<String> {
    let mut tree = cargo();
    tree.args(["tree", "--package", package.name(), "--edges", "normal", "--prefix", "none", "--no-dedupe"]);
    let output = tree.args(["--format", "{p}\t{l}"]).current_dir(root()).output()?;
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines.dedup();
    let document = format!("{}-{version}", package.name());
    let mut text = format!(
        "SPDXVersion: SPDX-2.3\nDataLicense: CC0-1.0\nSPDXID: SPDXRef-DOCUMENT\nDocumentName: {document}\n\
         DocumentNamespace: https://spdx.org/spdxdocs/{document}\nCreator: Tool: cargo-tree\n"
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

/// The SHA-256 of bytes, in hexadecimal.
fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The lines of `sha256sum`.
fn checksums(files: &[PathBuf]) -> anyhow::Result<String> {
    let mut text = String::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().display();
        let _ = writeln!(text, "{}  {name}", digest(&std::fs::read(file)?));
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

#[cfg(test)]
mod tests;
