//! Groups with any name that the kernel accepts, on the kernel and on the fake: the host converts the names, and
//! otherwise these groups behave like all others.

use crate::script::remove_tree;
use commensal_core::{spelling, text};
use commensal_host::fake::FakeHost;
use commensal_host::{Dir, FolderEvent, For, GroupWatch, Host, LinuxHost, below};
use commensal_testkit::{hidden, odd_names, until};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Returns unusual names as the host spells them, each with a description.
fn spelled() -> Vec<(&'static str, String)> {
    odd_names().into_iter().map(|(what, name)| (what, spelling::text(name))).collect()
}

/// Performs every operation on groups with these names. `above` is the path of the open `parent`.
fn is_like_any_other<H: Host>(host: &mut H, above: &Path, parent: Dir, may_rename: bool) {
    let names = spelled();
    for (what, name) in &names {
        let made = host.mkdir(parent, name).unwrap_or_else(|error| panic!("{what}: {error}"));
        let path = below(above, name);
        assert_eq!(path, above.join(name), "{what}");
        for opened in [host.open_child(parent, name), host.open(&path)] {
            let opened = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(opened.inode, made.inode, "{what}");
            host.close(opened);
        }
        assert_eq!(host.read_file(&path.join("cgroup.procs")).unwrap(), "", "{what}");
        assert!(host.list(&path).unwrap().iter().any(|file| file == "cgroup.procs"), "{what}");
        // Error messages show the names, too.
        let error = host.write(made, "cgroup.procs", "x\u{1b}\u{202e}").unwrap_err();
        assert_eq!(hidden(&error.to_string()), None, "{what}: {error}");
        assert!(error.to_string().contains(&*text::visible(name)), "{what}: {error}");
        host.close(made);
    }
    let wanted: BTreeSet<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
    let children = host.children(parent).unwrap();
    assert_eq!(children.iter().map(String::as_str).collect::<BTreeSet<_>>(), wanted);
    let listed = host.list(above).unwrap();
    assert!(wanted.iter().all(|name| listed.iter().any(|one| one == name)));
    for (what, name) in &names {
        let dir = host.open_child(parent, name).unwrap();
        host.close(dir);
        if may_rename {
            host.rename(parent, name, dir.inode, "plain").unwrap_or_else(|error| panic!("{what}: {error}"));
            host.rename(parent, "plain", dir.inode, name).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        host.rmdir(parent, name, dir.inode).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(host.open_child(parent, name).unwrap_err().errno.name(), Some("ENOENT"), "{what}");
    }
    assert!(host.children(parent).unwrap().is_empty());
    // So deep that no system call accepts the whole path.
    let mut deep = vec![(host.mkdir(parent, &"d".repeat(3_000)).unwrap(), "d".repeat(3_000))];
    let mut path = above.join("d".repeat(3_000));
    for name in [spelling::text(vec![0xfe; 255]), "e".repeat(2_000), "f".to_owned()] {
        path = path.join(&name);
        deep.push((host.mkdir(deep[deep.len() - 1].0, &name).unwrap(), name));
        let opened = host.open(&path).unwrap();
        assert_eq!(opened.inode, deep[deep.len() - 1].0.inode);
        host.close(opened);
    }
    assert_eq!(host.open(&path.join("g")).unwrap_err().errno.name(), Some("ENOENT"));
    let mut above_them = deep.iter().map(|(dir, _)| *dir).rev().skip(1).chain([parent]);
    for (dir, name) in deep.iter().rev() {
        host.rmdir(above_them.next().unwrap(), name, dir.inode).unwrap();
        host.close(*dir);
    }
    // Names that no kernel accepts.
    for (name, errno) in [("a\nb", "EINVAL"), (&*"n".repeat(4_096), "ENAMETOOLONG")] {
        assert_eq!(host.mkdir(parent, name).unwrap_err().errno.name(), Some(errno), "{name:?}");
    }
    let too_long = spelling::text(vec![0xff; 4_096]);
    assert_eq!(host.mkdir(parent, &too_long).unwrap_err().errno.name(), Some("ENAMETOOLONG"));
}

#[test]
fn the_fake_takes_them() {
    for (fake, mount, v1) in [
        (FakeHost::v1(2, 1 << 30), "/sys/fs/cgroup/cpu", true),
        (FakeHost::v2(2, 1 << 30), "/sys/fs/cgroup", false),
    ] {
        let mut host = fake.another();
        let root = host.open(Path::new(mount)).unwrap();
        let parent = host.mkdir(root, "above").unwrap();
        is_like_any_other(&mut host, &Path::new(mount).join("above"), parent, v1);
    }
}

/// Scratch groups on this kernel, removed at the end: mount point, whether it is v1, root and group.
struct OnKernel {
    host: LinuxHost,
    name: String,
    groups: Vec<(PathBuf, bool, Dir, Dir)>,
}

impl OnKernel {
    fn new(test: &str) -> Option<OnKernel> {
        let mut host = LinuxHost::new();
        let name = format!("commensal-it-{test}-{}", std::process::id());
        let mounts = host.read_file(Path::new("/proc/mounts")).unwrap();
        let mut groups = Vec::new();
        for line in mounts.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let v1 = words[2] == "cgroup" && words[3].split(',').any(|one| one == "cpu");
            if !v1 && words[2] != "cgroup2" {
                continue;
            }
            let root = host.open(Path::new(words[1])).unwrap();
            if let Ok(group) = host.mkdir(root, &name) {
                groups.push((PathBuf::from(words[1]), v1, root, group));
            }
        }
        if groups.is_empty() {
            println!("skipped: {test}: no cgroup hierarchy can be written");
            return None;
        }
        Some(OnKernel { host, name, groups })
    }
}

impl Drop for OnKernel {
    fn drop(&mut self) {
        for (_, _, root, group) in std::mem::take(&mut self.groups) {
            remove_tree(&mut self.host, root, &self.name, group);
        }
    }
}

#[test]
fn the_kernel_takes_them() {
    let Some(mut kernel) = OnKernel::new("odd-names") else { return };
    for (mount, v1, _, group) in kernel.groups.clone() {
        is_like_any_other(&mut kernel.host, &mount.join(&kernel.name), group, v1);
    }
}

/// Groups that other programs created with such names: the host lists exactly these bytes, and its watches report them.
#[test]
fn the_bytes_of_others_are_found_and_watched() {
    let Some(mut kernel) = OnKernel::new("others-names") else { return };
    for (mount, _, _, group) in kernel.groups.clone() {
        let above = mount.join(&kernel.name);
        let watch = GroupWatch::new().unwrap();
        let number = watch.add(&above, For::Folders).unwrap();
        let (mut made, mut gone) = (BTreeSet::new(), BTreeSet::new());
        let all = odd_names();
        let wanted: BTreeSet<String> = spelled().into_iter().map(|(_, name)| name).collect();
        let paths: Vec<PathBuf> =
            all.iter().map(|(_, name)| above.join(std::ffi::OsString::from_vec(name.clone()))).collect();
        let look = |made: &mut BTreeSet<String>, gone: &mut BTreeSet<String>| {
            for seen in watch.seen().unwrap() {
                match seen {
                    FolderEvent::Made(of, name) if of == number => drop(made.insert(name)),
                    FolderEvent::Gone(of, name) if of == number => drop(gone.insert(name)),
                    other => panic!("{other:?}"),
                }
            }
        };
        for path in &paths {
            std::fs::create_dir(path).unwrap();
            look(&mut made, &mut gone);
        }
        assert_eq!(kernel.host.children(group).unwrap().into_iter().collect::<BTreeSet<_>>(), wanted);
        // A separate watch on each.
        for name in &wanted {
            watch.add(&above.join(name), For::Writes).unwrap();
        }
        until("all are told", || {
            look(&mut made, &mut gone);
            made == wanted
        });
        let second = GroupWatch::new().unwrap();
        let number_of_second = second.add(&above, For::Folders).unwrap();
        paths.iter().for_each(|path| std::fs::remove_dir(path).unwrap());
        until("all have gone", || {
            for seen in second.seen().unwrap() {
                if let FolderEvent::Gone(of, name) = seen
                    && of == number_of_second
                {
                    gone.insert(name);
                }
            }
            gone == wanted
        });
    }
}
