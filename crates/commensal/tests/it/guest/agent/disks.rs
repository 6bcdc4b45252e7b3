//! Rates of a real disk, from what online work waits for it. Only in a virtual machine, whose disks are there for tests.

use crate::agent::{Agent, Theirs, cleaned, until};
use crate::support::{Program, can_write_cgroups, cpu_mount};
use commensal_testkit::{Signal, members, signal_group};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What limits the group's reading, bytes per second.
fn read_limit(group: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(group.join("io.max")).ok()?;
    let limits = text.split_whitespace().filter_map(|word| word.strip_prefix("rbps="));
    limits.filter_map(|limit| limit.parse().ok()).min()
}

/// A process that reads a disk all the time, past the page cache.
struct Reader(Child);

impl Reader {
    fn start(mut command: Command, shell: &str) -> Reader {
        command.args(["sh", "-c", shell]).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Reader(command.spawn().unwrap())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // With the dd that it has started.
        signal_group(self.0.id(), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Online work that waits for the disk while offline work reads: offline is cut, given back, and left as it was. The online side
/// is made to wait by a rate of its own, so that nothing depends on how fast this disk is.
// promise 25
#[test]
fn offline_reading_is_cut_while_online_work_waits_for_disks() {
    let test = "offline_reading_is_cut_while_online_work_waits_for_disks";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("disks");
    let web = Theirs::new(&program, "web");
    if !["io.max", "io.pressure", "cpu.max"].iter().all(|file| web.cpu.join(file).exists()) {
        println!("skipped: {test}: it needs cgroup v2 with the io controller and pressure");
        return;
    }
    if std::env::var_os("COMMENSAL_VM").is_none() {
        println!("skipped: {test}: it reads a whole disk all the time, which only the VM harness gives away");
        return;
    }
    let groups = program.groups(&format!(
        "[agent]\nio = true\n[group.etl]\nclass = \"offline\"\n\
         [group.web]\nclass = \"online\"\nmatch = [{{ cgroup = \"/{}\" }}]\n",
        web.name
    ));
    let agent = Agent::start(&program, &groups, &["--on-exit", "restore"]);
    let etl = cpu_mount().join(format!("{}-offline/etl", program.prefix));
    until("the group is there", || etl.exists());
    let disk =
        commensal_sensors::machine::machine(&commensal_host::LinuxHost::new()).unwrap().disks.remove(0);
    let reading = |block: &str| {
        let path = Path::new("/dev").join(&disk.name);
        format!("while :; do dd if={} of=/dev/null bs={block} iflag=direct || exit; done", path.display())
    };
    let mut run = program.command(&["run", "-g", "etl", "-c", groups.to_str().unwrap(), "--"]);
    run.stdin(Stdio::null());
    let offline = Reader::start(run, &reading("128k"));
    std::fs::write(web.cpu.join("io.max"), format!("{} riops=20", disk.device)).unwrap();
    let enters = format!("echo $$ >{}/cgroup.procs; {}", web.cpu.display(), reading("4k"));
    let mut online = Some(Reader::start(Command::new("env"), &enters));
    until("offline work is cut", || read_limit(&etl).is_some());
    let (explained, _) = program.expect(0, &["explain", "etl"]);
    assert!(explained.contains("io.read on") && explained.contains("severity"), "{explained}");
    let least = std::cell::Cell::new(u64::MAX);
    // Who reads all the time ends, and with it the waits.
    online.take();
    until("offline work has its disk again", || match read_limit(&etl) {
        Some(limit) => {
            least.set(least.get().min(limit));
            limit > least.get()
        }
        None => true,
    });
    assert_eq!(read_limit(&web.cpu), None, "online work is never limited");
    drop(offline);
    // A group with somebody inside stays, with its limits: who was killed while reading takes a moment to go.
    until("nobody is left inside", || members(&etl).is_empty());
    assert_eq!(agent.end(Signal::TERM), Some(0));
    until("nothing is limited", || {
        read_limit(&etl).is_none() || {
            println!("{test}: {}", crate::support::text(&program.run(&["restore"]).stdout));
            false
        }
    });
    cleaned(&program);
}
