//! Kernels for the guests: Debian's own packages, downloaded with a separate apt state and unpacked in a cache folder,
//! so that the system's sources, lists and packages do not change.

use super::tools::tool;
use anyhow::{Context, anyhow, bail};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Interval at which a suite is checked for a newer kernel. Its index has 10 MB, so this would take long compared with
/// a boot.
const FRESH: Duration = Duration::from_secs(24 * 3600);
/// Number of unpacked kernels of a suite that are kept; each takes about 120 MB.
const KEPT: usize = 2;
/// Marker file in a complete tree. Its modification time is when this kernel was last known to be the newest.
const CHECKED: &str = "checked";

/// A kernel to boot.
#[derive(Debug)]
pub struct Kernel {
    /// Release as in `uname -r` and in the module folder; for a user-built kernel, its file name.
    pub release: String,
    /// The bootable kernel image.
    pub image: PathBuf,
    /// Folder that contains `lib/modules/<release>`; `None` if everything is built in.
    pub modules: Option<PathBuf>,
}

/// Returns a user-built kernel, which must have everything that a guest needs built in.
pub fn own(image: &Path) -> anyhow::Result<Kernel> {
    let image = fs::canonicalize(image).with_context(|| format!("find {}", image.display()))?;
    let release = image.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Kernel { release, image, modules: None })
}

/// Returns the newest kernel of a suite, or the given `release`; without a network, the newest cached one.
pub fn obtain(suite: &str, flavour: &str, release: Option<&str>) -> anyhow::Result<Kernel> {
    let cache = cache()?;
    let trees = cache.join("kernels").join(suite);
    fs::create_dir_all(&trees).with_context(|| format!("create {}", trees.display()))?;
    // Held until the tree is complete, because all runs share apt's directories. A concurrent run waits, and then uses
    // the same download.
    let _lock = lock(&cache.join("lock"))?;
    let mut cached = cached(&trees)?;
    if let Some(release) = release {
        if let Some((_, tree)) = cached.iter().find(|(_, tree)| tree.ends_with(release)) {
            return Ok(kernel_at(tree));
        }
        // A specific release never becomes stale.
        cached.clear();
    }
    if let Some((checked, kernel)) = cached.first()
        && checked.elapsed().is_ok_and(|age| age < FRESH)
    {
        return Ok(kernel_at(kernel));
    }
    match fetch((suite, flavour), release, &cache.join("apt").join(suite), &trees) {
        Ok(kernel) => {
            for (_, old) in
                cached.iter().filter(|(_, old)| Some(old) != kernel.modules.as_ref()).skip(KEPT - 1)
            {
                // If this fails, only disk space is wasted.
                let _ = fs::remove_dir_all(old);
            }
            Ok(kernel)
        }
        Err(error) => {
            let Some((_, tree)) = cached.first() else {
                return Err(error.context(format!(
                    "no kernel of Debian {} in {}, and none could be downloaded",
                    suite,
                    trees.display()
                )));
            };
            let kernel = kernel_at(tree);
            eprintln!("xtask: uses the cached kernel {}: {error:#}", kernel.release);
            Ok(kernel)
        }
    }
}

/// Returns the cache folder.
pub fn cache() -> anyhow::Result<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    Ok(base
        .context("neither XDG_CACHE_HOME nor HOME is set: set one of them, because downloads are kept there")?
        .join("commensal-vm"))
}

/// Takes a lock that only one run can hold; it is held until the file is dropped.
pub fn lock(path: &Path) -> anyhow::Result<File> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            eprintln!("xtask: waits for another run that downloads a kernel or a root file system");
            file.lock().with_context(|| format!("lock {}", path.display()))?;
        }
        Err(TryLockError::Error(error)) => {
            return Err(anyhow!(error).context(format!("lock {}", path.display())));
        }
    }
    Ok(file)
}

/// Lists the complete trees, starting with the one last known to be the newest.
fn cached(trees: &Path) -> anyhow::Result<Vec<(SystemTime, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(trees).with_context(|| format!("list {}", trees.display()))? {
        let tree = entry?.path();
        if let Ok(time) = fs::metadata(tree.join(CHECKED)).and_then(|data| data.modified()) {
            found.push((time, tree));
        }
    }
    found.sort_by(|one, other| other.cmp(one));
    Ok(found)
}

fn kernel_at(tree: &Path) -> Kernel {
    let release = tree.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Kernel { release, image: tree.join("vmlinuz"), modules: Some(tree.to_owned()) }
}

/// Finds the suite's newest kernel, and downloads and unpacks it unless it is cached.
fn fetch(
    (suite, flavour): (&str, &str),
    release: Option<&str>,
    state: &Path,
    trees: &Path,
) -> anyhow::Result<Kernel> {
    let apt = Apt::new(state, suite)?;
    apt.get(&["update", "--error-on=any"], state)?;
    let release = match release {
        Some(release) => release.to_owned(),
        None => {
            let meta = format!("linux-image-{}", flavour);
            newest(&apt.depends(&meta)?)
                .with_context(|| format!("{meta} of {} does not depend on a kernel package", suite))?
        }
    };
    let tree = trees.join(&release);
    if !tree.join(CHECKED).exists() {
        eprintln!("xtask: downloads Debian {}'s kernel {release}", suite);
        // Unpacked under another name and then renamed, so that an interrupted run leaves no tree that looks complete.
        let aside = trees.join(format!("{release}.new"));
        let _ = fs::remove_dir_all(&aside);
        fs::create_dir_all(&aside).with_context(|| format!("create {}", aside.display()))?;
        unpack(&apt, &release, &aside)?;
        let _ = fs::remove_dir_all(&tree);
        fs::rename(&aside, &tree).with_context(|| format!("rename to {}", tree.display()))?;
    }
    fs::write(tree.join(CHECKED), "").with_context(|| format!("write into {}", tree.display()))?;
    Ok(kernel_at(&tree))
}

/// Downloads the packages of one kernel and lays them out as modprobe expects it.
fn unpack(apt: &Apt, release: &str, tree: &Path) -> anyhow::Result<()> {
    // Up to 6.x one package contains everything; later kernels are split into several packages of the same release.
    let mut packages = vec![format!("linux-image-{release}")];
    let mut next = 0;
    while let Some(package) = packages.get(next) {
        for part in parts(&apt.depends(package)?, release) {
            if !packages.contains(&part) {
                packages.push(part);
            }
        }
        next += 1;
    }
    let mut args = vec!["download"];
    args.extend(packages.iter().map(String::as_str));
    apt.get(&args, tree)?;
    let files = tree.join("files");
    for entry in fs::read_dir(tree)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "deb") {
            run(tool("dpkg-deb").arg("-x").arg(&path).arg(&files))?;
            fs::remove_file(&path)?;
        }
    }
    let image = find(&files, "vmlinuz")?.with_context(|| format!("{release}: no vmlinuz in {packages:?}"))?;
    std::os::unix::fs::symlink(image.strip_prefix(tree)?, tree.join("vmlinuz"))?;
    let usr = files.join("usr/lib/modules").join(release).exists();
    std::os::unix::fs::symlink(if usr { "files/usr/lib" } else { "files/lib" }, tree.join("lib"))?;
    // Some builds of kmod look below usr.
    std::os::unix::fs::symlink(".", tree.join("usr"))?;
    // Module dependency lists are normally generated when the package is installed.
    run(tool("depmod").arg("-b").arg(tree).arg(release))
}

/// Returns the first regular file in or below the folder whose name starts with `name`.
fn find(folder: &Path, name: &str) -> anyhow::Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_file() && entry.file_name().to_string_lossy().starts_with(name) {
            return Ok(Some(entry.path()));
        }
        if kind.is_dir()
            && let Some(found) = find(&entry.path(), name)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// apt with separate sources, lists and downloads.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    fn new(state: &Path, suite: &str) -> anyhow::Result<Apt> {
        for folder in ["lists/partial", "cache/archives/partial"] {
            let folder = state.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let mirror = mirror()?;
        let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let list = state.join("sources.list");
        fs::write(&list, format!("deb [arch=amd64 signed-by={keys}] {mirror} {suite} main\n"))
            .with_context(|| format!("write {}", list.display()))?;
        let mut options = vec!["-qq".to_owned()];
        let state = state.display();
        for option in [
            format!("Dir::State::Lists={state}/lists"),
            format!("Dir::Cache={state}/cache"),
            format!("Dir::Etc::SourceList={state}/sources.list"),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            // Neither pins nor installed packages may influence which version is selected.
            "Dir::Etc::Preferences=/dev/null".to_owned(),
            "Dir::Etc::PreferencesParts=/dev/null".to_owned(),
            "Dir::State::Status=/dev/null".to_owned(),
            "APT::Architecture=amd64".to_owned(),
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=2".to_owned(),
            "Acquire::http::Timeout=30".to_owned(),
        ] {
            options.extend(["-o".to_owned(), option]);
        }
        Ok(Apt { options })
    }

    fn get(&self, args: &[&str], folder: &Path) -> anyhow::Result<()> {
        run(tool("apt-get").args(&self.options).args(args).current_dir(folder))
    }

    /// Returns the packages that the newest version of this package depends on.
    fn depends(&self, package: &str) -> anyhow::Result<Vec<String>> {
        let mut command = tool("apt-cache");
        command.args(&self.options).args(["show", "--no-all-versions", package]);
        Ok(depends(&output(&mut command)?))
    }
}

/// Returns the mirror of Debian's main archive that this machine uses.
pub fn mirror() -> anyhow::Result<String> {
    let format = "$(REPO_URI) $(ORIGIN) $(CODENAME)";
    let targets = output(tool("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]))?;
    let from_lists = targets.lines().find_map(|line| {
        let (uri, rest) = line.split_once(' ')?;
        let codename = rest.strip_prefix("Debian ")?;
        (!codename.contains("security")).then(|| uri.to_owned())
    });
    if let Some(uri) = from_lists {
        return Ok(uri);
    }
    // Before the first `apt-get update` apt knows only the configured sources.
    let uris = output(tool("apt-get").args(["update", "--print-uris"]))?;
    main_archive(&uris).context("apt's sources name no Debian archive to download from")
}

/// Parses the output of `apt-get update --print-uris`: `'<archive>dists/<suite>/InRelease' …`.
fn main_archive(uris: &str) -> Option<String> {
    uris.lines().find_map(|line| {
        let (archive, _) = line.strip_prefix('\'')?.split_once("dists/")?;
        archive.trim_end_matches('/').ends_with("/debian").then(|| archive.to_owned())
    })
}

/// Returns the package names in every `Depends:` field. Of alternatives, returns the first.
fn depends(show: &str) -> Vec<String> {
    let fields = show.lines().filter_map(|line| line.strip_prefix("Depends: "));
    let names = fields.flat_map(|field| field.split(',')).filter_map(|one| one.split_whitespace().next());
    names.map(str::to_owned).collect()
}

/// Returns the release in `linux-image-<release>`, given the dependencies of the package of the newest kernel.
fn newest(depends: &[String]) -> Option<String> {
    let releases = depends.iter().filter_map(|name| name.strip_prefix("linux-image-"));
    releases.filter(|rest| rest.starts_with(|first: char| first.is_ascii_digit())).map(str::to_owned).next()
}

/// Returns the dependencies that are part of the same kernel.
fn parts(depends: &[String], release: &str) -> Vec<String> {
    let ending = format!("-{release}");
    let ours = |name: &&String| name.starts_with("linux-") && name.ends_with(&ending);
    depends.iter().filter(ours).cloned().collect()
}

/// Runs a tool until it exits; on failure the error contains its output.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    output(command).map(drop)
}

/// Runs a tool and returns its output.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.output().with_context(|| format!("start {name}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let said: Vec<&str> = said.lines().map(str::trim).collect();
        bail!("{name} failed ({}): {}", done.status, said.join("; "));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_package_or_four() {
        let check = |meta: &str, image: &str, expect: (&str, &[&str])| {
            let release = newest(&depends(meta)).unwrap();
            assert_eq!(
                (release.as_str(), parts(&depends(image), &release)),
                (expect.0, expect.1.iter().map(|&name| name.to_owned()).collect())
            );
        };
        check(
            "Package: linux-image-cloud-amd64\nDepends: linux-image-6.1.0-50-cloud-amd64 (= 6.1.176-1)\n",
            "Depends: kmod, linux-base (>= 4.3~), initramfs-tools (>= 0.120) | linux-initramfs-tool\n",
            ("6.1.0-50-cloud-amd64", &[]),
        );
        check(
            "Depends: linux-base-cloud-amd64 (= 7.2.13-1), linux-image-7.2.13+deb14-cloud-amd64 (= 7.2.13-1)\n",
            "Depends: dracut | initramfs-tools, linux-base-7.2.13+deb14-cloud-amd64 (= 7.2.13-1), \
             linux-modules-7.2.13+deb14-cloud-amd64 (= 7.2.13-1)\n",
            (
                "7.2.13+deb14-cloud-amd64",
                &["linux-base-7.2.13+deb14-cloud-amd64", "linux-modules-7.2.13+deb14-cloud-amd64"],
            ),
        );
    }

    #[test]
    fn the_archive_is_found_in_the_sources() {
        let uris = "'http://mirror.example/debian-security/dists/bookworm-security/InRelease' a 0\n\
                    'http://mirror.example/debian/dists/bookworm/InRelease' b 0\n";
        assert_eq!(main_archive(uris).as_deref(), Some("http://mirror.example/debian/"));
        assert_eq!(main_archive(""), None);
    }
}
