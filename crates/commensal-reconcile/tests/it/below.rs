//! What programs make below the cgroups that commensal has made for them.

use crate::crash::{MachineState, see};
use crate::support::{STATE, specs};
use crate::ways_home::machines;
use commensal_core::knob::Version;
use commensal_host::Host;
use commensal_host::fake::{FakeHost, FakeLooks};
use commensal_reconcile::{Instance, PlanRequest, Restored, enforce, journal, restore_own};
use std::path::{Path, PathBuf};

const GROUP: &str = "[group.etl]\nclass = \"offline\"\npids.max = 100\nmemory.max = \"1 GiB\"\n";

/// Whose cgroup it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Lab,
    Run,
    Apply,
}

impl Owner {
    fn journal(self) -> &'static str {
        match self {
            Owner::Lab => "lab-7",
            Owner::Run => journal::RUN,
            Owner::Apply => journal::MACHINE,
        }
    }

    fn instance(self) -> Instance {
        Instance { journals: vec![self.journal().to_owned()], ..Instance::new(Path::new(STATE)) }
    }

    /// Makes the group; returns its cgroup in each hierarchy, with the version.
    fn make(self, fake: &FakeHost) -> Vec<(Version, PathBuf)> {
        let (mut host, instance, specs) = (fake.another(), self.instance(), specs(GROUP));
        let own = specs.iter().map(|spec| spec.name.clone()).collect();
        let request = match self {
            Owner::Lab => PlanRequest::beside(&specs),
            Owner::Run => PlanRequest::with_own(&specs, &own),
            Owner::Apply => PlanRequest::all(&specs),
        };
        let mut journal = instance.open_journal(&mut host).unwrap();
        let (_, outcome) = enforce(&instance, &mut host, &request, &mut journal).unwrap();
        assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
        let all = commensal_sensors::mounts::hierarchies(&mut host).unwrap();
        let places =
            all.into_iter().map(|one| (one.version, Path::new(&one.mount).join("commensal-offline/etl")));
        places.filter(|(_, place)| host.open(place).is_ok()).collect()
    }

    fn restore(self, fake: &FakeHost) -> Restored {
        let mut host = fake.another();
        match self {
            Owner::Apply => self.instance().restore(&mut host, &[]).unwrap(),
            _ => restore_own(&mut host, Path::new(STATE), self.journal()).unwrap(),
        }
    }
}

/// What is in a cgroup below the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Nothing,
    /// A process, in this cgroup of every hierarchy.
    Process,
    /// A process, in this cgroup of one hierarchy and in the group itself in the others.
    InOne,
}

#[derive(Debug)]
struct Case {
    kind: &'static str,
    owner: Owner,
    depth: usize,
    content: Content,
    frozen: bool,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, _) in machines() {
        for owner in [Owner::Lab, Owner::Run, Owner::Apply] {
            for depth in 0..3 {
                for content in [Content::Nothing, Content::Process, Content::InOne] {
                    let frozen = if content == Content::Nothing { &[false][..] } else { &[false, true] };
                    let of = |frozen: &bool| Case { kind, owner, depth, content, frozen: *frozen };
                    cases.extend(frozen.iter().map(of));
                }
            }
        }
    }
    cases
}

/// Makes cgroups of `depth` below each place, and a process in them; freezes the last of them. Returns the cgroup with the
/// process.
fn fill(fake: &FakeHost, places: &[(Version, PathBuf)], case: &Case) -> Option<(u32, PathBuf)> {
    let mut host = fake.another();
    let inner: Vec<PathBuf> = places
        .iter()
        .map(|(_, place)| {
            ["inner", "most"].into_iter().take(case.depth).fold(place.clone(), |above, name| {
                let dir = host.open(&above).unwrap();
                host.mkdir(dir, name).unwrap();
                above.join(name)
            })
        })
        .collect();
    let freezes = |place: &PathBuf| [place.join("freezer.state"), place.join("cgroup.freeze")];
    let one = inner.iter().position(|place| freezes(place).iter().any(|file| host.read_file(file).is_ok()));
    let one = one.unwrap_or(0);
    let at = |(index, (_, group)): (usize, &(Version, PathBuf))| {
        let is_inner = case.content == Content::Process || index == one;
        let place = if is_inner { &inner[index] } else { group };
        place.to_string_lossy().into_owned()
    };
    let groups: Vec<String> = places.iter().enumerate().map(at).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let pid = (case.content != Content::Nothing).then(|| fake.add_process(&groups))?;
    fake.set_looks(pid, FakeLooks { exe: "/bin/sleep".to_owned(), uid: 1000, ..FakeLooks::default() });
    if case.frozen {
        let dir = host.open(&inner[one]).unwrap();
        let frozen =
            host.write(dir, "freezer.state", "FROZEN").or_else(|_| host.write(dir, "cgroup.freeze", "1"));
        frozen.unwrap();
    }
    Some((pid, inner[one].clone()))
}

fn lives(fake: &FakeHost, pid: u32) -> bool {
    fake.processes().iter().any(|one| one.pid == pid && one.exit.is_none())
}

fn check(case: &Case, before: &MachineState, fake: &FakeHost) {
    let places = case.owner.make(fake);
    let filled = fill(fake, &places, case);
    let back = case.owner.restore(fake);
    let about = format!("{case:?}: {back:?}");
    let goes = match case.owner {
        Owner::Lab => true,
        Owner::Run => filled.is_none(),
        Owner::Apply => filled.is_none() && case.depth == 0,
    };
    assert!(back.failed.is_empty(), "{about}");
    if goes {
        assert!(back.left.is_empty(), "{about}");
        assert!(filled.is_none_or(|(pid, _)| !lives(fake, pid)), "{about}");
        assert!(see(fake) == *before, "{about}");
        return;
    }
    // One cause is told once, by the group and what is in it.
    let [line] = &back.left[..] else { panic!("{about}") };
    assert!(line.contains("commensal-offline/etl was left"), "{about}");
    match filled {
        Some((pid, place)) => {
            assert!(lives(fake, pid), "{about}");
            assert!(line.contains(&format!("process {pid} (")) && line.contains("user 1000"), "{about}");
            let by = format!("frozen by {}", place.display());
            // What commensal leaves in use it thaws.
            assert_eq!(line.contains(&by), case.frozen && case.depth > 0, "{about}");
            fake.end(pid, commensal_host::Exit::Code(0));
        }
        None => assert!(
            places.iter().any(|(_, place)| line.contains(&*place.join("inner").to_string_lossy())),
            "{about}"
        ),
    }
    // Once it is gone, so is the group.
    let mut host = fake.another();
    for (_, place) in &places {
        for path in ["inner/most", "inner"] {
            let path = place.join(path);
            let (above, name) = (path.parent().unwrap(), path.file_name().unwrap().to_string_lossy());
            if let (Ok(dir), Ok(above)) = (host.open(&path), host.open(above)) {
                host.rmdir(above, &name, dir.inode).unwrap();
            }
        }
    }
    let back = case.owner.restore(fake);
    assert!(back.left.is_empty() && back.failed.is_empty(), "{case:?}: {back:?}");
    assert!(see(fake) == *before, "{case:?}");
}

/// Kinds of machines x owners x depth x contents x frozen or not.
// promise 34
// promise 14
#[test]
fn what_is_below_goes_or_is_named() {
    let mut tried = 0;
    for case in cases() {
        let (_, fake) = machines().into_iter().find(|(kind, _)| *kind == case.kind).unwrap();
        let before = see(&fake);
        check(&case, &before, &fake);
        tried += 1;
    }
    println!("{tried} cases");
}
