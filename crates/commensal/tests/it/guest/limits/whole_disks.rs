//! Rates and weights of whole disks, which only the VM harness gives away.

use crate::limits::{Running, Scene};
use crate::measure::limits::disk::{
    BLOCK, MIB, RATES, READ_MIB_S, WARM_UP, WRITE_MIB_S, check, fast_targets, most, rates, reading, writing,
};
use commensal_core::knob::Controller;
use commensal_core::topology::Device;
use commensal_testkit::alone;
use std::path::PathBuf;

/// cgroup v1 takes the first line of a write and drops the others without a word: each disk has to have its own.
// promise 6
#[test]
fn rates_hold_on_each_of_several_disks() {
    let test = "rates_hold_on_each_of_several_disks";
    let _alone = alone();
    let Some(scene) = Scene::new(test) else { return };
    if scene.machine().disks.len() < 2 || std::env::var_os("COMMENSAL_VM").is_none() {
        println!("skipped: {test}: it writes to two whole disks, which only the VM harness gives away");
        return;
    }
    let Some(targets) = fast_targets(test, &scene) else { return };
    let groups = scene.program.groups(&format!("[group.etl]\nclass = \"online\"\n{RATES}"));
    let readers: Vec<_> =
        targets.iter().map(|target| scene.start("etl", &groups, &reading(target, BLOCK))).collect();
    let writers: Vec<_> =
        targets.iter().map(|target| scene.start("etl", &groups, &writing(target))).collect();
    let all: Vec<&Running> = readers.iter().chain(&writers).collect();
    let rates = most(&all);
    drop((readers, writers));
    for (index, target) in targets.iter().enumerate() {
        let name = &target.disk.name;
        check(&format!("{test}: {name} read"), rates[index].0 / MIB, READ_MIB_S, "MiB/s");
        check(&format!("{test}: {name} written"), rates[targets.len() + index].1 / MIB, WRITE_MIB_S, "MiB/s");
    }
}

/// A disk as io.cost shall see it: 50 MiB/s and 1000 operations per second, which is less than it has. Weights count
/// once the disk is as busy as the model says that it can be. The kernel's own model is of another disk: a guest's
/// reaches it with requests of 128 KiB (154 and 19 MiB/s on Linux 7.2) and not with those of 8 KiB (27 and 27).
const MODEL: &str = "ctrl=user model=linear rbps=52428800 rseqiops=1000 rrandiops=1000 wbps=52428800 wseqiops=1000 wrandiops=1000";

const GOALS: &str = "ctrl=user rpct=95.00 rlat=5000 wpct=95.00 wlat=5000 min=50.00 max=100.00";

/// Eight to one by weight; each has one request at a time, which costs the larger side of what it may have.
const SHARE_RATIO_AT_LEAST: f64 = 2.0;

/// Tells io.cost what a disk can do, as its administrator would; in the end the kernel's own figures count again.
struct Known(PathBuf, Device);

impl Known {
    fn tell(&self, model: &str, goals: &str) -> std::io::Result<()> {
        let write = |file: &str, text: &str| std::fs::write(self.0.join(file), format!("{} {text}", self.1));
        write("io.cost.model", model).and(write("io.cost.qos", goals))
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let _ = self.tell("ctrl=auto", "ctrl=auto");
    }
}

// promise 6
#[test]
fn weights_divide_a_disk() {
    let test = "weights_divide_a_disk";
    let _alone = alone();
    let Some(scene) = Scene::new(test) else { return };
    if std::env::var_os("COMMENSAL_VM").is_none() {
        println!(
            "skipped: {test}: it turns io.cost on for a whole disk, which only the VM harness gives away"
        );
        return;
    }
    let Some(targets) = fast_targets(test, &scene) else { return };
    let target = &targets[0];
    let device = target.disk.device;
    let group = |name: &str, weight: u32| {
        format!(
            "[group.{name}]\nclass = \"online\"\nio.weight = {weight}\nio.cost = true\nio.devices = [\"{device}\"]\n"
        )
    };
    let groups = scene.program.groups(&(group("heavy", 800) + &group("light", 100)));
    if let Some(unmet) = scene.unmet(&groups) {
        println!("skipped: {test}: {unmet}");
        return;
    }
    let known = Known(scene.mount(Controller::Io), device);
    known.tell(MODEL, GOALS).unwrap();
    let both = ["heavy", "light"].map(|group| scene.start(group, &groups, &reading(target, BLOCK)));
    std::thread::sleep(WARM_UP);
    let [heavy, light] = rates(&both.each_ref())[..] else { unreachable!("two were started") };
    drop(both);
    let (heavy, light) = (heavy.0 / MIB, light.0 / MIB);
    println!("{test}: {heavy:.1} : {light:.1} MiB/s = {:.2}", heavy / light);
    assert!(heavy >= SHARE_RATIO_AT_LEAST * light, "{heavy:.1} : {light:.1} MiB/s");
}
