//! The root file system of guests whose first process is systemd: Debian packages that debootstrap installs. It is
//! packed once into an archive, which precedes the files of a run in the guest's initramfs.

use super::kernel::{cache, lock, mirror, run};
use super::tools::{find_tool, tool};
use anyhow::{Context, bail};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The Debian release that provides systemd, independent of the guest's kernel.
pub const SUITE: &str = "bookworm";
/// Maximum age of an archive. A stable suite only gets security updates, and no guest has a network, so an old archive
/// does no harm.
const FRESH: Duration = Duration::from_secs(30 * 24 * 3600);
/// Packages in addition to Debian's essential ones.
const PACKAGES: &str = "systemd,systemd-sysv,dbus,util-linux";
/// Files that no guest needs. They are left out because an emulated CPU unpacks slowly. systemd's default units and
/// generators are left out as well, so that a guest starts only the units that its own units require.
const LEFT_OUT: [&str; 17] = [
    "./boot/*",
    "./dev/*",
    "./etc/apt/*",
    "./etc/systemd/system/*.wants/*",
    "./run/*",
    "./tmp/*",
    "./usr/lib/apt/*",
    "./usr/lib/systemd/system-generators/*",
    "./usr/lib/systemd/system/*.target.wants/*",
    "./usr/lib/x86_64-linux-gnu/gconv/*",
    "./usr/lib/x86_64-linux-gnu/perl-base/*",
    "./usr/share/doc/*",
    "./usr/share/locale/*",
    "./usr/share/man/*",
    "./usr/share/zoneinfo/*",
    "./var/cache/*",
    "./var/lib/*/*",
];

/// Returns the archive of the suite. Without a network, root or debootstrap, returns the cached archive.
pub fn obtain(suite: &str) -> anyhow::Result<PathBuf> {
    let cache = cache()?;
    let folder = cache.join("roots");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    // Held until the archive is complete. A concurrent run waits, and then uses the same archive.
    let _lock = lock(&cache.join("lock"))?;
    let (archive, recipe) = (folder.join(format!("{suite}.cpio")), folder.join(format!("{suite}.recipe")));
    let made = fs::metadata(&archive).and_then(|data| data.modified()).ok();
    let same = fs::read_to_string(&recipe).is_ok_and(|text| text == self::recipe());
    if same && made.is_some_and(|made| made.elapsed().is_ok_and(|age| age < FRESH)) {
        return Ok(archive);
    }
    match make(suite, &folder, &archive) {
        Ok(()) => {
            fs::write(&recipe, self::recipe()).with_context(|| format!("write {}", recipe.display()))?;
            Ok(archive)
        }
        Err(error) if made.is_some() => {
            eprintln!("xtask: uses the cached root file system {}: {error:#}", archive.display());
            Ok(archive)
        }
        Err(error) => Err(error.context(format!("no root file system of Debian {suite}"))),
    }
}

/// Describes how an archive is built. If the description changes, the archive is rebuilt.
fn recipe() -> String {
    format!("{PACKAGES}\nwithout\n{}\n", LEFT_OUT.join("\n"))
}

fn make(suite: &str, folder: &Path, archive: &Path) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("debootstrap needs root");
    }
    if find_tool("debootstrap").is_none() {
        bail!("missing; apt-get install --no-install-recommends debootstrap");
    }
    eprintln!("xtask: creates a root file system of Debian {suite}");
    // The tree is temporary. Only the archive, which can be read without root, is kept.
    let tree = folder.join(format!("{suite}.new"));
    if tree.exists() {
        fs::remove_dir_all(&tree).with_context(|| format!("remove {}", tree.display()))?;
    }
    // debootstrap's mounts disappear with its mount namespace, so no directory that is removed here can be a mount.
    // When xtask is killed, the kernel kills all processes in the PID namespace as well.
    let mut command = tool("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]);
    command.args(["--pid", "--fork", "--kill-child", "debootstrap", "--variant=minbase"]);
    command.args(["--force-check-gpg", "--arch=amd64", &format!("--include={PACKAGES}"), suite]);
    let made = run(command.arg(&tree).arg(mirror()?)).and_then(|()| pack(&tree, archive));
    let removed = fs::remove_dir_all(&tree).with_context(|| format!("remove {}", tree.display()));
    made.and(removed)
}

/// Packs the tree. Writes the archive under another name and renames it, so that an interrupted run leaves no archive
/// that looks complete.
fn pack(tree: &Path, archive: &Path) -> anyhow::Result<()> {
    let aside = archive.with_extension("cpio.new");
    let to = File::create(&aside).with_context(|| format!("create {}", aside.display()))?;
    let left_out: Vec<String> = LEFT_OUT.iter().map(|path| format!("! -path '{path}'")).collect();
    let script =
        format!("find . {} -print0 | cpio --null --create --format=newc --quiet", left_out.join(" "));
    run(tool("sh").args(["-c", &script]).current_dir(tree).stdout(to))?;
    fs::rename(&aside, archive).with_context(|| format!("rename to {}", archive.display()))
}
