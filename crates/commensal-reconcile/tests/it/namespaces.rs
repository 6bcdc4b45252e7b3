//! A cgroup namespace of commensal's own below the host's mounts: processes are moved in all hierarchies or in none.

use crate::members::{MEDIA, make, settled, start};
use crate::support::restored;
use commensal_host::fake::FakeHost;
use commensal_host::{Exit, Host};
use std::collections::BTreeMap;
use std::path::PathBuf;

const MEMORY: u64 = 8 << 30;

fn machines() -> [(&'static str, FakeHost); 3] {
    [
        ("v1", FakeHost::v1(2, MEMORY)),
        ("v1, co-mounted", FakeHost::v1_comounted(2, MEMORY)),
        ("hybrid", FakeHost::hybrid(2, MEMORY)),
    ]
}

/// The cgroups of every process, from outside all namespaces.
fn places(fake: &FakeHost) -> BTreeMap<u32, Vec<PathBuf>> {
    let alive = fake.processes().into_iter().filter(|process| process.exit.is_none());
    alive.map(|process| (process.pid, process.groups)).collect()
}

/// Puts this process into the cgroup of this path in the first `count` hierarchies.
fn enter(fake: &FakeHost, mounts: &[PathBuf], count: usize, path: &str) {
    for mount in mounts.iter().take(count) {
        fake.move_process(std::process::id(), commensal_host::below(mount, path));
    }
}

/// For each kind of machine, each depth of the namespace's root, in all hierarchies or in some, and each place of the
/// process: it is moved in all hierarchies and comes back from within and from outside the namespace. Where commensal has
/// left the root of its namespace since, either that holds, or nothing at all is written.
// promises 12, 13, 26
#[test]
fn a_process_outside_the_namespace_is_moved_whole() {
    for root in ["/ns", "/docker/ns"] {
        for below in ["", "/inner", "/../left"] {
            for victim in ["/victim", "/ns", "/docker/ns/inner", "/docker", "/"] {
                for outside in [false, true] {
                    for (kind, fake) in machines() {
                        let count = fake
                            .another()
                            .read_file(std::path::Path::new("/proc/self/cgroup"))
                            .unwrap()
                            .lines()
                            .count();
                        for within in [count, 2] {
                            tried(&fake.copy(), (kind, root, below, victim), (within, outside));
                        }
                    }
                }
            }
        }
    }
}

fn tried(
    fake: &FakeHost,
    (kind, root, below, victim): (&str, &str, &str, &str),
    (within, outside): (usize, bool),
) {
    let what = format!(
        "{kind}, namespace {root}, commensal in {root}{below}, process in {victim}, in {within} hierarchies"
    );
    for path in ["/ns/inner", "/docker/ns/inner", "/left", "/docker/left", "/victim"] {
        make(fake, path);
    }
    let mounts = crate::members::mounts(fake);
    let pid = start(fake, victim, "/usr/bin/ffmpeg", 1);
    enter(fake, &mounts, within, root);
    fake.unshare_cgroups();
    let now = match below.strip_prefix("/../") {
        Some(left) => format!("{}/{left}", root.rsplit_once('/').unwrap().0),
        None => format!("{root}{below}"),
    };
    enter(fake, &mounts, within, &now);
    let (before, home) = (fake.snapshot(), places(fake));
    let mut host = fake.another();
    let (plan, stayed) = settled(&mut host, MEDIA);
    assert_eq!(stayed, [""; 0], "{what}");
    let there: Vec<String> = places(fake)[&pid].iter().map(|path| path.display().to_string()).collect();
    let moved = there.iter().filter(|path| path.ends_with("/commensal-offline/media")).count();
    if moved == 0 {
        assert!(below.starts_with("/.."), "{what}: {:?} {:?}", plan.unmet, there);
        assert_eq!((fake.snapshot(), places(fake)), (before, home), "{what}");
        assert!(
            plan.unmet.iter().any(|one| one.because.contains("cgroup namespace")),
            "{what}: {:?}",
            plan.unmet
        );
        return;
    }
    // Groups of cpuset are made only where a group needs one.
    let without = there.iter().filter(|path| path.starts_with("/sys/fs/cgroup/cpuset/")).count();
    let bare = there.iter().filter(|path| path.starts_with("/sys/fs/cgroup/unified")).count();
    assert_eq!(moved, mounts.len() - without - bare, "{what}: {there:?}");
    if outside {
        fake.leave_namespace();
    }
    let back = restored(&mut host);
    assert!(back.failed.is_empty() && back.left.is_empty(), "{what}: {back:?}");
    assert_eq!((fake.snapshot(), places(fake)), (before, home), "{what}");
    fake.end(pid, Exit::Code(0));
}
