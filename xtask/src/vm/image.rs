//! The initramfs of a guest: busybox, the init script, kernel modules, and files of this machine with their libraries.
//! For a guest with systemd, these files are added to Debian's file system.

use super::kernel::{Kernel, output, run};
use super::tools::{find_tool, tool};
use anyhow::{Context, bail};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The first process that the kernel starts.
const INIT: &str = include_str!("init.sh");
const INIT_SYSTEMD: &str = include_str!("init-systemd.sh");
/// Script that the init script and systemd both run at the end.
const REPORT: &str = include_str!("report.sh");
/// The units that systemd starts, and the slice that its init creates.
const UNITS: [(&str, &str); 3] = [
    ("default.target", include_str!("units/default.target")),
    ("command.service", include_str!("units/command.service")),
    ("patches.slice", include_str!("units/patches.slice")),
];
/// Folders that are symbolic links in Debian's tree; real folders would replace the links.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];
/// Modules that a stock kernel may need: for the bus, the ports that carry the results, and the scratch disks.
const MODULES: [&str; 3] = ["virtio_pci", "virtio_console", "virtio_blk"];
/// Tools that busybox has as well, but without the options that tests use.
const TOOLS: [&str; 5] = ["unshare", "setpriv", "taskset", "chrt", "dd"];
const FOLDERS: [&str; 15] = [
    "bin", "sbin", "usr/bin", "usr/sbin", "lib", "lib64", "proc", "sys", "dev", "etc", "modules", "out",
    "root", "run", "tmp",
];

/// The files of a guest while they are collected.
#[derive(Debug)]
pub struct Image {
    root: PathBuf,
}

impl Image {
    /// Collects the files that all guests of this kind need.
    pub fn new(root: PathBuf, kernel: &Kernel, first: First) -> anyhow::Result<Image> {
        let image = Image { root };
        match first {
            First::Ours => image.whole()?,
            First::Systemd => image.over_debian()?,
        }
        image.add(&find_tool("busybox").context("needs busybox")?, Path::new("/bin/busybox"))?;
        image.text("/etc/report", REPORT, 0o644)?;
        image.modules(kernel)?;
        Ok(image)
    }

    /// Adds all files of a guest without systemd.
    fn whole(&self) -> anyhow::Result<()> {
        for folder in FOLDERS {
            self.folder(&Path::new("/").join(folder))?;
        }
        // Debian's shell, as on the machines where tests usually run. Busybox's shell would prefer its own commands.
        self.add(&find_tool("sh").context("needs sh")?, Path::new("/bin/sh"))?;
        for name in TOOLS {
            let source = find_tool(name).with_context(|| format!("needs {name}"))?;
            self.add(&source, &Path::new("/usr/bin").join(name))?;
        }
        self.text("/init", INIT, 0o755)?;
        self.text(
            "/etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
            0o644,
        )?;
        self.text("/etc/group", "root:x:0:\nnogroup:x:65534:\n", 0o644)
    }

    /// Adds the files that Debian's file system lacks. The libraries of programs that are added later replace Debian's:
    /// the programs need the versions with which they were built, and Debian's programs also work with newer versions.
    fn over_debian(&self) -> anyhow::Result<()> {
        for folder in MERGED {
            let usr = Path::new("usr").join(folder);
            self.folder(&Path::new("/").join(&usr))?;
            let link = self.root.join(folder);
            std::os::unix::fs::symlink(&usr, &link).with_context(|| format!("link {}", link.display()))?;
        }
        self.folder(Path::new("/out"))?;
        self.text("/init", INIT_SYSTEMD, 0o755)?;
        for (name, text) in UNITS {
            self.text(&format!("/etc/systemd/system/{name}"), text, 0o644)?;
        }
        // Without a machine ID systemd treats the boot as the first one and sets up the machine.
        self.text("/etc/machine-id", "c0ffee00c0ffee00c0ffee00c0ffee00\n", 0o444)?;
        self.text("/etc/hostname", "guest\n", 0o644)
    }

    /// Adds a text file.
    pub fn text(&self, path: &str, text: &str, mode: u32) -> anyhow::Result<()> {
        let path = self.inside(Path::new(path))?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
        Ok(())
    }

    /// Adds a file or folder of this machine; for a program also its shared libraries.
    pub fn add(&self, source: &Path, path: &Path) -> anyhow::Result<()> {
        let inside = self.inside(path)?;
        run(tool("cp").arg("-aL").arg("-T").arg(source).arg(&inside))?;
        self.add_libraries(source)
    }

    /// Adds a program without its debug information, which is most of its size and would have to be unpacked in the
    /// guest.
    pub fn add_stripped(&self, source: &Path, path: &Path) -> anyhow::Result<()> {
        let inside = self.inside(path)?;
        run(tool("objcopy").arg("--strip-debug").arg(source).arg(&inside))?;
        self.add_libraries(source)
    }

    /// Adds an empty folder.
    pub fn folder(&self, path: &Path) -> anyhow::Result<()> {
        let inside = self.inside(path)?;
        fs::create_dir_all(&inside).with_context(|| format!("create {}", inside.display()))
    }

    /// Returns the path on this machine of a path in the guest, and creates its parent folders.
    fn inside(&self, path: &Path) -> anyhow::Result<PathBuf> {
        let Ok(below) = path.strip_prefix("/") else {
            bail!("{}: a path in the guest begins with /", path.display());
        };
        let inside = self.root.join(below);
        if let Some(above) = inside.parent() {
            fs::create_dir_all(above).with_context(|| format!("create {}", above.display()))?;
        }
        Ok(inside)
    }

    fn add_libraries(&self, program: &Path) -> anyhow::Result<()> {
        let executable =
            fs::metadata(program).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0);
        if !executable {
            return Ok(());
        }
        // For a script or a static program ldd fails, and there are no libraries to add.
        let done = tool("ldd").arg(program).output().context("start ldd")?;
        for library in libraries(&String::from_utf8_lossy(&done.stdout)) {
            let inside = self.inside(&library)?;
            if !inside.exists() {
                run(tool("cp").arg("-aL").arg("-T").arg(&library).arg(&inside))?;
            }
        }
        Ok(())
    }

    /// Adds kernel modules and their dependencies, decompressed, and the order in which the init loads them.
    fn modules(&self, kernel: &Kernel) -> anyhow::Result<()> {
        let mut order: Vec<String> = Vec::new();
        for (tree, name) in kernel.modules.iter().flat_map(|tree| MODULES.map(|name| (tree, name))) {
            let mut command = tool("modprobe");
            command.arg("-d").arg(tree).arg("-S").arg(&kernel.release);
            let needed = output(command.args(["--show-depends", name]))?;
            for file in insmods(&needed) {
                let packed =
                    file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                let (name, unpack) = match packed.rsplit_once('.') {
                    Some((name, "xz")) => (name, "xz"),
                    Some((name, "zst")) => (name, "zstd"),
                    Some((name, "gz")) => (name, "gzip"),
                    _ => (packed.as_str(), "cat"),
                };
                if order.iter().any(|known| known == name) {
                    continue;
                }
                let path = self.inside(&Path::new("/modules").join(name))?;
                let to = File::create(&path).with_context(|| format!("create {}", path.display()))?;
                let mut command = tool(unpack);
                if unpack != "cat" {
                    command.arg("-dc");
                }
                run(command.arg(&file).stdout(to))?;
                order.push(name.to_owned());
            }
        }
        order.push(String::new());
        self.text("/modules/order", &order.join("\n"), 0o644)
    }

    /// Writes the archive. If there is an archive of a whole file system, appends to it: the kernel unpacks both in
    /// turn. The archive is not compressed, because an emulated CPU decompresses slowly.
    pub fn pack(self, path: &Path, tree: Option<&Path>) -> anyhow::Result<()> {
        let mut to = File::create(path).with_context(|| format!("create {}", path.display()))?;
        if let Some(tree) = tree {
            let copied = File::open(tree).and_then(|mut tree| std::io::copy(&mut tree, &mut to));
            copied.with_context(|| format!("copy {}", tree.display()))?;
        }
        let script = "find . -print0 | cpio --null --create --format=newc --owner=+0:+0 --quiet";
        run(tool("sh").args(["-c", script]).current_dir(&self.root).stdout(to))?;
        fs::remove_dir_all(&self.root).with_context(|| format!("remove {}", self.root.display()))
    }
}

/// Parses the output of ldd: `name => /path (address)`, or `/path (address)` for the loader.
fn libraries(ldd: &str) -> Vec<PathBuf> {
    let words = ldd.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    // ldd prints `PATH:` before an error about the file itself.
    words.filter(|word| !word.ends_with(':')).map(PathBuf::from).collect()
}

/// Parses the output of `modprobe --show-depends`: the files that it would load, in order. Built-in modules need no
/// file.
fn insmods(modprobe: &str) -> Vec<PathBuf> {
    let files = modprobe.lines().filter_map(|line| line.strip_prefix("insmod "));
    files.filter_map(|rest| rest.split_whitespace().next()).map(PathBuf::from).collect()
}

/// The first process of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// A script, on a file system that contains only what tests need.
    Ours,
    /// systemd, on Debian's file system. For the long tier only: creating the file system takes a minute and needs
    /// root.
    Systemd,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_have_paths() {
        let ldd = "\tlinux-vdso.so.1 (0x00007ffd4a5f2000)\n\
                   \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1b3d600000)\n\
                   \t/lib64/ld-linux-x86-64.so.2 (0x00007f1b3d8f3000)\n";
        let expect = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(libraries(ldd), expect);
        assert_eq!(libraries("\tstatically linked\n"), Vec::<PathBuf>::new());
    }

    #[test]
    fn modules_come_in_order() {
        let text = "builtin virtio_pci\ninsmod /t/lib/modules/7/a.ko.xz \ninsmod /t/lib/modules/7/b.ko.xz option=1\n";
        assert_eq!(
            insmods(text),
            ["/t/lib/modules/7/a.ko.xz", "/t/lib/modules/7/b.ko.xz"].map(PathBuf::from)
        );
    }
}
