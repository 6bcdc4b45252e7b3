//! Pinning of the cgroups of VMs.

use crate::support::{Program, can_write_cgroups};
use commensal_testkit::removed_within;
use std::path::Path;
use std::time::Duration;

/// A cgroup of the test's own in the hierarchy with cpusets, with a process in it.
pub(crate) struct Vm {
    pub(crate) path: std::path::PathBuf,
    child: std::process::Child,
}

impl Vm {
    pub(crate) fn new(name: &str) -> Option<Vm> {
        let mut host = commensal_host::LinuxHost::new();
        let hierarchies = commensal_sensors::mounts::hierarchies(&mut host).unwrap();
        let cpuset = commensal_core::knob::Controller::Cpuset;
        let mount = hierarchies.iter().find(|one| one.controllers.contains(&cpuset))?.mount.clone();
        let path = Path::new(&mount).join(name);
        std::fs::create_dir(&path).ok()?;
        for file in ["cpuset.cpus", "cpuset.mems"] {
            // cgroup v1 lets nobody into a group without CPUs and nodes.
            let all = std::fs::read_to_string(Path::new(&mount).join(file)).ok();
            if let Some(all) = all {
                std::fs::write(path.join(file), all.trim()).unwrap();
            }
        }
        let child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        std::fs::write(path.join("cgroup.procs"), child.id().to_string()).unwrap();
        Some(Vm { path, child })
    }

    fn cpus(&self) -> String {
        std::fs::read_to_string(self.path.join("cpuset.cpus")).unwrap().trim().to_owned()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        removed_within(Duration::from_secs(10), &self.path);
    }
}

// promise 43
#[test]
fn pinning_keeps_a_cgroup_to_whole_cores_and_is_taken_back() {
    let test = "pinning_keeps_a_cgroup_to_whole_cores_and_is_taken_back";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("density-pin");
    let name = format!("commensal-test-pin-{}", std::process::id());
    let Some(vm) = Vm::new(&name) else {
        println!("skipped: {test}: no hierarchy with cpusets in which groups can be made");
        return;
    };
    let before = vm.cpus();
    let target = format!("/{name}:1");
    let (out, _) = program.expect(0, &["density", "pin", &target, "--libvirt"]);
    assert!(
        out.contains(&format!("/{name}: 1 vCPU on CPUs 0")) && out.contains("<vcpupin vcpu='0' cpuset='0'/>"),
        "{out}"
    );
    assert_eq!(vm.cpus(), before, "without --apply nothing changes");
    program.expect(0, &["density", "pin", &target, "--apply"]);
    let whole =
        std::fs::read_to_string("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").unwrap();
    assert_eq!(vm.cpus(), whole.trim());
    program.expect(0, &["restore"]);
    assert_eq!(vm.cpus(), before);
    let check = |args: &[&str], want: &str| {
        let (_, err) = program.expect(2, &[&["density", "pin"], args].concat());
        assert!(err.contains(want), "{want}: {err}");
    };
    check(&[&format!("/{name}:100000")], "are left; pin fewer VMs");
    check(&[&format!("/{name}:0")], "both numbers must be 1 or more");
    check(&[&target, &target], "holds two of the VMs");
    check(&["db-1"], "such as /machine/db-1:4");
    check(&[&vm.child.id().to_string()], "has no threads with the names of vCPUs");
}
