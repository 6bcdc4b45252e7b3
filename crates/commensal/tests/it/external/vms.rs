//! VMs under QEMU: pinning of their vCPU threads, and cells that are VMs.

use crate::density::vms::Vm;
use crate::density::{LADDER_PATIENCE, PATIENCE, assert_nothing_left, attempts, file, ladder};
use crate::support::{Program, can_write_cgroups, cgroups_named};
use commensal_testkit::{field_of_status, holds_within, members, within_every};
use std::path::Path;
use std::time::Duration;

/// The CPUs that a thread may use.
fn allowed(tid: &str) -> String {
    tid.parse().ok().and_then(|tid| field_of_status(tid, "Cpus_allowed_list")).unwrap_or_default()
}

/// QEMU's vCPU threads: number of the vCPU, thread.
fn vcpus(pid: &str) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let one = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let vcpu = name.strip_prefix("CPU ")?.split('/').next()?.to_owned();
        Some((vcpu, task.file_name().to_string_lossy().into_owned()))
    };
    let mut found: Vec<(String, String)> = tasks.filter_map(one).collect();
    found.sort();
    found
}

/// QEMU without KVM and without a guest: its vCPU threads have their names all the same.
// promise 43
#[test]
fn vcpu_threads_of_qemu_are_pinned_by_their_names() {
    let test = "vcpu_threads_of_qemu_are_pinned_by_their_names";
    let cpus = std::thread::available_parallelism().unwrap().get();
    if cpus < 2 {
        println!("skipped: {test}: two vCPUs need two CPUs");
        return;
    }
    let program = Program::new("density-qemu");
    let Some(vm) = Vm::new(&format!("commensal-test-qemu-{}", std::process::id())) else {
        println!("skipped: {test}: no hierarchy with cpusets in which groups can be made");
        return;
    };
    let started = std::process::Command::new("qemu-system-x86_64")
        .args(["-S", "-display", "none", "-accel", "tcg,thread=multi", "-smp", "2", "-nodefaults"])
        .args(["-serial", "none", "-monitor", "none", "-name", "density,debug-threads=on"])
        .spawn();
    let mut qemu = match started {
        Ok(qemu) => qemu,
        Err(error) => {
            println!("skipped: {test}: qemu-system-x86_64 cannot be started: {error}");
            return;
        }
    };
    let pid = qemu.id().to_string();
    std::fs::write(vm.path.join("cgroup.procs"), &pid).unwrap();
    let mut found = String::new();
    holds_within(PATIENCE, || {
        found = crate::support::text(&program.run(&["density", "pin", &pid]).stdout);
        // Its threads come one after the other.
        found.contains(": 2 vCPU")
    });
    let threads = vcpus(&pid);
    let are = || threads.iter().map(|(_, tid)| allowed(tid)).collect::<Vec<_>>();
    let before = are();
    let output = program.run(&["density", "pin", &pid, "--apply"]);
    let applied = crate::support::text(&output.stdout) + &crate::support::text(&output.stderr);
    let pinned = are();
    // Applied twice, what was there first is still what is put back.
    program.run(&["density", "pin", &pid, "--apply"]);
    let (restored, _) = program.expect(0, &["restore"]);
    let after = are();
    let _ = qemu.kill();
    let _ = qemu.wait();
    assert!(
        found.contains(": 2 vCPU on CPUs 0")
            && found.contains(&format!("vCPU 0, thread {}: CPU 0", threads[0].1)),
        "{found}"
    );
    assert!(output.status.success(), "{applied}");
    assert_eq!((threads.len(), pinned[0].as_str()), (2, "0"), "{applied}");
    assert!(pinned[1] != pinned[0] && pinned[1].parse::<u32>().is_ok(), "{pinned:?}");
    assert_eq!(after, before, "{restored}");
    let (again, _) = program.expect(0, &["restore"]);
    assert!(again.contains("nothing"), "{again}");
}

/// A kernel for guests: this machine's, or one that the tests in VMs have fetched.
fn a_kernel() -> Option<std::path::PathBuf> {
    let folders = |path: std::path::PathBuf| {
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    let own = folders("/boot".into()).find(|path| path.to_string_lossy().contains("/vmlinuz-"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(std::path::PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache")))?;
    let fetched = || {
        let suites = folders(cache.join("commensal-vm/kernels"));
        suites.flat_map(folders).map(|tree| tree.join("vmlinuz")).find(|kernel| kernel.is_file())
    };
    own.or_else(fetched)
}

/// A ladder of VMs of two vCPU.
fn vms(accel: &str, kernel: &Path, cells: &str) -> String {
    format!(
        "repeats = 1\n[cell]\nbackend = \"qemu\"\naccel = \"{accel}\"\nkernel = {:?}\nvcpu = 2\nmemory = \"192 MiB\"\n\
         [ladder]\n{cells}\n[[load]]\nname = \"spin\"\nkind = \"spin\"\nwork = 20\nconcurrency = [2]\n\
         [limits]\ntimeout = \"100 s\"\n",
        kernel.display().to_string()
    )
}

/// Where KVM boots guests, what they count as steal is what their vCPU threads waited. Emulated ones show the rest: they
/// boot, work, report, have their vCPU threads on CPUs of their own, and end.
// promise 42
#[test]
fn cells_are_vms() {
    let test = "cells_are_vms";
    if !can_write_cgroups(test) {
        return;
    }
    let tools = ["qemu-system-x86_64", "busybox"];
    let missing = tools.iter().find(|tool| {
        std::process::Command::new(tool).arg("--help").stdout(std::process::Stdio::null()).status().is_err()
    });
    if let Some(missing) = missing {
        println!("skipped: {test}: {missing} cannot be started");
        return;
    }
    let Some(kernel) = a_kernel() else {
        println!("skipped: {test}: no kernel in /boot, and cargo xtask vm has fetched none");
        return;
    };
    let cpus = std::thread::available_parallelism().unwrap().get();
    if cpus < 2 {
        println!("skipped: {test}: VMs of two vCPU need two CPUs");
        return;
    }
    let program = Program::new("density-vms");
    let crowded = format!("cells = [1, {cpus}]");
    let path = file(&program, &vms("kvm", &kernel, &crowded).replace("work = 20", "work = 3000"));
    let output = program.run(&["density", "run", &path]);
    let said = crate::support::text(&output.stderr);
    if output.status.success() {
        // Twice as many vCPU as CPUs.
        let ladder = ladder(&program);
        let attempt = &attempts(&ladder, "spin", 2, &format!("N{cpus}"))[0];
        let (host, guest) = (attempt.steal_pct.unwrap(), attempt.guest_steal_pct.unwrap());
        assert!(
            host > 15.0 && (host - guest).abs() < 0.4 * host,
            "{host} % on the host, {guest} % in the guests"
        );
    } else {
        assert_eq!(output.status.code(), Some(2), "{said}");
        let why = said
            .split("KVM cannot boot a guest on this machine: ")
            .nth(1)
            .unwrap_or_else(|| panic!("{said}"));
        println!("skipped: {test} with KVM: {}", why.trim_end());
    }
    assert_nothing_left(&program);
    let path = file(&program, &vms("tcg", &kernel, "cells = [1]\npinned = [1]"));
    let mut run = program.command(&["density", "run", &path]).spawn().unwrap();
    let prefix = format!("commensal-density-{}", run.id());
    let mut pinned = None;
    within_every(Duration::from_millis(20), LADDER_PATIENCE, "the run has ended", || {
        // The vCPU threads of the cell that runs now.
        for group in cgroups_named(&prefix) {
            for pid in members(&group.join("cell-1")).into_iter().chain(members(&group)) {
                let threads: Vec<String> =
                    vcpus(&pid.to_string()).iter().map(|(_, tid)| allowed(tid)).collect();
                // A thread that has just ended is allowed nothing any more.
                if let [a, b] = &threads[..]
                    && a != b
                    && !a.is_empty()
                    && !b.is_empty()
                {
                    pinned = Some((pid.to_string(), threads));
                }
            }
        }
        run.try_wait().unwrap().is_some()
    });
    assert_eq!(run.wait().unwrap().code(), Some(0));
    let ladder = ladder(&program);
    for placement in ["N1", "N1 pinned"] {
        let attempt = &attempts(&ladder, "spin", 2, placement)[0];
        assert_eq!(attempt.vm_seconds.len(), 1, "{attempt:?}");
        assert!(attempt.usage_pct.is_some_and(|usage| usage > 5.0), "{attempt:?}");
        assert!(attempt.guest_steal_pct.is_some() && attempt.steal_pct.is_some(), "{attempt:?}");
    }
    assert!(ladder.notes.iter().any(|note| note.contains("emulated")), "{:?}", ladder.notes);
    let (pid, threads) = pinned.expect("vCPU threads were never kept to CPUs of their own");
    assert_eq!(threads[0], "0");
    assert!(!Path::new("/proc").join(&pid).exists(), "QEMU {pid} is still there");
    assert_nothing_left(&program);
}
