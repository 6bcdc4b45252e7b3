//! Helpers: cgroups of this machine.

use commensal_core::knob::Controller;
use commensal_host::LinuxHost;
use commensal_sensors::{mounts, survey};
use std::path::{Path, PathBuf};

/// Whether cgroups can be made on this machine; prints the skip otherwise.
pub fn can_write_cgroups(test: &str) -> bool {
    let scratch = format!("commensal-probe-{}-{test}", std::process::id());
    let found = survey(&mut LinuxHost::new(), &scratch, None).unwrap();
    match found.caps.cgroup_obstacle.as_ref().or(found.tenancy.obstacle.as_ref()) {
        None => true,
        Some(obstacle) => {
            println!("skipped: {test}: {obstacle}");
            false
        }
    }
}

/// A cgroup in every hierarchy, removed at the end.
pub struct Made {
    pub all: Vec<PathBuf>,
    /// Where the cpu controller has it.
    pub cpu: PathBuf,
}

impl Made {
    pub fn new(name: &str) -> Made {
        let name = format!("commensal-test-{}-{name}", std::process::id());
        let hierarchies = mounts::hierarchies(&mut LinuxHost::new()).unwrap();
        let path = |mount: &str| Path::new(mount).join(&name);
        let cpu = hierarchies.iter().find(|one| one.controllers.contains(&Controller::Cpu)).unwrap();
        let made =
            Made { all: hierarchies.iter().map(|one| path(&one.mount)).collect(), cpu: path(&cpu.mount) };
        made.all.iter().for_each(|path| std::fs::create_dir(path).unwrap());
        made
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.all {
            let _ = std::fs::remove_dir(path);
        }
    }
}
