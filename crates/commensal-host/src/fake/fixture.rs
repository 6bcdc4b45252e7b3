//! The plain files of a fake machine (`/proc`, `/sys`) and the text form of a whole machine.

use super::machine::{Group, Machine, VendorKernel};
use commensal_core::cpuset::CpuSet;
use commensal_core::knob::{Controller, Version};
use commensal_core::topology::Device;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A fixture line that is not `path<TAB>value`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not an absolute path, a tab and a value: {text:?}")]
pub struct FixtureError {
    /// Line, counted from 1.
    pub line: usize,
    /// The text of the line.
    pub text: String,
}

/// Returns name and text of each `fixtures/*.tree`. Tests run in the folder of their package.
pub(super) fn trees() -> std::io::Result<Vec<(String, String)>> {
    let mut trees = Vec::new();
    for entry in std::fs::read_dir("../../fixtures")? {
        let path = entry?.path();
        if let (Some("tree"), Some(name)) = (
            path.extension().and_then(|ending| ending.to_str()),
            path.file_stem().and_then(|stem| stem.to_str()),
        ) {
            trees.push((name.to_owned(), std::fs::read_to_string(&path)?));
        }
    }
    trees.sort();
    Ok(trees)
}

/// Adds the files that sensors read, consistent with the machine's CPUs and mounts.
pub(super) fn machine_files(machine: &mut Machine, memory_bytes: u64) {
    let mut files = cpu_files(&machine.kernel.cpus);
    files.extend(memory_files(memory_bytes));
    files.extend(mount_files(machine));
    let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    for resource in ["cpu", "io", "memory"] {
        files.push((format!("/proc/pressure/{resource}"), pressure.to_owned()));
    }
    for (path, text) in [
        ("/proc/sys/kernel/random/boot_id", "11111111-2222-4333-8444-555555555555\n"),
        ("/proc/sys/kernel/osrelease", "6.18.0\n"),
        ("/proc/sys/kernel/hostname", "fake\n"),
        ("/proc/sys/kernel/pid_max", "4194304\n"),
        ("/proc/version", "Linux version 6.18.0 (fake)\n"),
        ("/proc/uptime", "1000.00 1000.00\n"),
        ("/proc/loadavg", "0.00 0.00 0.00 1/100 50000\n"),
        ("/proc/diskstats", " 254       0 vda 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"),
        ("/sys/block/vda/size", "2097152\n"),
        ("/sys/block/vda/dev", "254:0\n"),
        ("/sys/block/vda/stat", "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"),
        ("/sys/block/vda/queue/rotational", "0\n"),
        ("/sys/block/vda/queue/scheduler", "[none] mq-deadline\n"),
    ] {
        files.push((path.to_owned(), text.to_owned()));
    }
    machine.plain.files.extend(files.into_iter().map(|(path, text)| (PathBuf::from(path), text)));
}

fn cpu_files(cpus: &CpuSet) -> Vec<(String, String)> {
    let mut stat = "cpu  0 0 0 0 0 0 0 0 0 0\n".to_owned();
    let mut info = String::new();
    let mut files = Vec::new();
    for cpu in cpus.iter() {
        // Writing to a String cannot fail.
        let _ = writeln!(stat, "cpu{cpu} 0 0 0 0 0 0 0 0 0 0");
        let _ = writeln!(info, "processor\t: {cpu}\nmodel name\t: Fake CPU\n");
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}");
        for (name, text) in [
            ("topology/core_id", cpu.to_string()),
            ("topology/physical_package_id", "0".to_owned()),
            ("topology/thread_siblings_list", cpu.to_string()),
            ("topology/core_cpus_list", cpu.to_string()),
            ("cache/index3/level", "3".to_owned()),
            ("cache/index3/type", "Unified".to_owned()),
            ("cache/index3/shared_cpu_list", cpus.to_string()),
        ] {
            files.push((format!("{folder}/{name}"), text + "\n"));
        }
    }
    stat.push_str("intr 0\nctxt 0\nbtime 1700000000\nprocesses 100\nprocs_running 1\nprocs_blocked 0\n");
    files.push(("/proc/stat".to_owned(), stat));
    files.push(("/proc/cpuinfo".to_owned(), info));
    for name in ["online", "possible", "present"] {
        files.push((format!("/sys/devices/system/cpu/{name}"), format!("{cpus}\n")));
    }
    files.push(("/sys/devices/system/node/online".to_owned(), "0\n".to_owned()));
    files.push(("/sys/devices/system/node/node0/cpulist".to_owned(), format!("{cpus}\n")));
    files
}

fn memory_files(bytes: u64) -> Vec<(String, String)> {
    let total = bytes / 1024;
    let rows = [
        ("MemTotal", total),
        ("MemFree", total / 2),
        ("MemAvailable", total / 4 * 3),
        ("Buffers", 0),
        ("Cached", total / 4),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Active(file)", total / 8),
        ("Inactive(file)", total / 8),
    ];
    let text: String = rows.iter().map(|(name, kib)| format!("{name}:{kib:>15} kB\n")).collect();
    let vmstat = "pgscan_kswapd 0\npgscan_direct 0\npgsteal_kswapd 0\npgsteal_direct 0\noom_kill 0\n";
    vec![("/proc/meminfo".to_owned(), text), ("/proc/vmstat".to_owned(), vmstat.to_owned())]
}

fn mount_files(machine: &Machine) -> Vec<(String, String)> {
    let mut mounts = "proc /proc proc rw 0 0\nsysfs /sys sysfs rw 0 0\n".to_owned();
    let mut info = "20 1 0:20 / /proc rw - proc proc rw\n21 1 0:21 / /sys rw - sysfs sysfs rw\n".to_owned();
    let mut table = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n".to_owned();
    for (index, tree) in machine.trees.iter().enumerate() {
        let mount = tree.mount.display();
        let names: Vec<&str> = tree.controllers.iter().map(|controller| controller.v1_name()).collect();
        let (kind, options) = match tree.version {
            Version::V1 => ("cgroup", format!("rw,{}", names.join(","))),
            Version::V2 => ("cgroup2", "rw".to_owned()),
        };
        let _ = writeln!(mounts, "{kind} {mount} {kind} {options} 0 0");
        let _ = writeln!(info, "{} 21 0:{} / {mount} rw - {kind} {kind} {options}", 30 + index, 30 + index);
        for name in names {
            let id = if tree.version == Version::V1 { index + 1 } else { 0 };
            let _ = writeln!(table, "{name}\t{id}\t1\t1");
        }
    }
    vec![
        ("/proc/mounts".to_owned(), mounts.clone()),
        ("/proc/self/mounts".to_owned(), mounts),
        ("/proc/self/mountinfo".to_owned(), info),
        ("/proc/cgroups".to_owned(), table),
        ("/proc/filesystems".to_owned(), "nodev\tcgroup\nnodev\tcgroup2\n".to_owned()),
    ]
}

fn unescaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        match (letter, letter == '\\') {
            (_, false) => text.push(letter),
            (_, true) => match letters.next() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some(other) => text.push(other),
                None => text.push('\\'),
            },
        }
    }
    text
}

/// Builds a machine from a fixture's text.
pub(super) fn read(text: &str) -> Result<Machine, FixtureError> {
    let mut files = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        let pair = line.split_once('\t').filter(|(path, _)| path.starts_with('/'));
        let (path, value) = pair.ok_or_else(|| FixtureError { line: index + 1, text: line.to_owned() })?;
        files.push((PathBuf::from(path), unescaped(value)));
    }
    let find = |wanted: &str| {
        files.iter().find(|(path, _)| path == Path::new(wanted)).map(|(_, text)| text.as_str())
    };
    let cpus = find("/sys/devices/system/cpu/online").and_then(|text| text.parse().ok());
    let nodes = find("/sys/devices/system/node/online").and_then(|text| text.parse().ok());
    let mut machine = Machine::new(cpus.unwrap_or_else(|| [0].into_iter().collect()));
    machine.kernel.nodes = nodes.unwrap_or_else(|| [0].into_iter().collect());
    let mounts = find("/proc/mounts").or_else(|| find("/proc/self/mounts")).unwrap_or_default().to_owned();
    for line in mounts.lines() {
        mount_line(&mut machine, line);
    }
    for (path, text) in files {
        if path.starts_with("/sys/block")
            && path.ends_with("dev")
            && let Ok(device) = text.parse::<Device>()
        {
            machine.kernel.devices.insert(device);
        }
        if let Some((group, attribute)) = path.to_str().and_then(|path| path.rsplit_once('@'))
            && attribute.contains('.')
            && let Ok(inode) = machine.group_at(Path::new(group))
            && let Ok(group) = machine.group_mut(inode)
        {
            group.attributes.insert(attribute.to_owned(), text);
            continue;
        }
        match machine.locate(&path) {
            Some((inode, left)) => add_group_file(&mut machine, inode, &left, &text),
            None => {
                machine.plain.files.insert(path, text);
            }
        }
    }
    learn_files(&mut machine);
    Ok(machine)
}

/// Learns from the fixture which files new groups get: those of its groups below the root. Files that only one vendor's
/// kernel has identify the vendor.
fn learn_files(machine: &mut Machine) {
    for index in 0..machine.trees.len() {
        let groups = machine.groups.values().filter(|group| group.tree == index && group.parent.is_some());
        let known: BTreeSet<String> = groups.flat_map(|group| group.files.keys().cloned()).collect();
        if known.contains("cpu.qos_level") {
            machine.kernel.vendor = Some(VendorKernel::OPENEULER);
        }
        if known.contains("cpu.bvt_warp_ns") {
            machine.kernel.vendor = Some(VendorKernel::ANOLIS);
        }
        if !known.is_empty() {
            machine.trees[index].known = Some(known);
        }
    }
    // A kernel with core scheduling reports how long SMT siblings were forced idle.
    let counts = |group: &Group| machine.text(group, "cpu.stat").contains("core_sched.force_idle_usec");
    if machine.groups.values().any(counts) {
        let siblings = Path::new("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list");
        let alone = machine.plain.files.get(siblings).is_none_or(|list| !list.contains([',', '-']));
        machine.kernel.core_sched = Some(!alone);
    }
}

fn mount_line(machine: &mut Machine, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, mount, kind, options, ..] = words.as_slice() else { return };
    match *kind {
        "cgroup2" => {
            machine.mount(mount, Version::V2, &Controller::ALL);
        }
        "cgroup" => {
            let named = options.split(',').filter_map(|name| Controller::from_name(name, Version::V1));
            machine.mount(mount, Version::V1, &named.collect::<Vec<_>>());
        }
        _ => {}
    }
}

/// Puts a file into its group, creating the groups on the path.
fn add_group_file(machine: &mut Machine, mut at: u64, left: &Path, text: &str) {
    let mut names: Vec<String> =
        left.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    let Some(file) = names.pop() else { return };
    for name in names {
        let Some(tree) = machine.groups.get(&at).map(|group| group.tree) else { return };
        let child = machine.new_inode();
        machine
            .groups
            .insert(child, Group { tree, name: name.clone(), parent: Some(at), ..Group::default() });
        if let Some(group) = machine.groups.get_mut(&at) {
            group.children.insert(name, child);
        }
        at = child;
    }
    let words = text.split_whitespace();
    match file.as_str() {
        // These files are computed from the machine's state.
        "cgroup.procs" => {
            for pid in words.filter_map(|word| word.parse().ok()) {
                if !machine.processes.contains_key(&pid) {
                    let roots = machine.roots();
                    machine.add(pid, roots, None);
                }
                machine.enter(at, pid);
            }
        }
        "cgroup.threads" | "tasks" => {}
        "cgroup.subtree_control" | "cgroup.controllers" => {
            let controllers = words.filter_map(|word| Controller::from_name(word, Version::V2));
            let controllers: Vec<Controller> = controllers.collect();
            if let Some(group) = machine.groups.get_mut(&at) {
                match (file.as_str(), group.parent) {
                    ("cgroup.subtree_control", _) => group.enabled = controllers.into_iter().collect(),
                    (_, None) => machine.trees[group.tree].controllers = controllers,
                    _ => {}
                }
            }
        }
        _ => return machine.store(at, &file, text.trim_end_matches('\n').to_owned()),
    }
    if let Some(group) = machine.groups.get_mut(&at) {
        group.files.insert(file, None);
    }
}
