//! Finds processes by PID or by name.

use super::target::Named;
use anyhow::bail;
use commensal_blame::Subject;
use commensal_core::member::ProcessId;
use commensal_core::process::Stat;
use commensal_host::Host;
use std::path::Path;

/// Fields of `/proc/PID/stat`: the kernel's flags, and the number of threads.
const FLAGS: usize = 9;
const THREADS: usize = 20;
/// Flag of kernel threads (`PF_KTHREAD`, include/linux/sched.h).
const KERNEL_THREAD: u64 = 0x20_0000;
/// Length to which the kernel shortens the name of a process (`TASK_COMM_LEN` without the terminating 0).
const COMM: usize = 15;

/// Resolves the PID of a process, which is a target with all its descendants.
pub fn numbered(host: &dyn Host, pid: u32) -> anyhow::Result<Named> {
    // The probe takes the PID for one of the PID namespace in which this program runs.
    if host.link(Path::new("/proc/self")).ok().as_deref() != Some(&std::process::id().to_string()) {
        bail!(
            "process {pid} cannot be told apart: /proc shows the processes of another PID namespace than the one that \
             commensal runs in; mount its own (mount -t proc proc /proc), or name a cgroup"
        );
    }
    let read = |file: &str| host.read_file(Path::new(&format!("/proc/{pid}/{file}")));
    let (Ok(stat), Ok(status)) = (read("stat"), read("status")) else { bail!("there is no process {pid}") };
    let comm = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')).map_or("", |(comm, _)| comm);
    let name = format!("{comm} ({pid})");
    let Some((stat, start_ticks)) =
        Stat::parse(&stat).and_then(|stat| stat.start_ticks().map(|ticks| (stat, ticks)))
    else {
        bail!("/proc/{pid}/stat cannot be understood");
    };
    let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:")).map_or("", str::trim);
    if leader != pid.to_string() {
        bail!("{name} is a thread of process {leader}; name the process");
    }
    if stat.number::<u64>(FLAGS).is_some_and(|flags| flags & KERNEL_THREAD != 0) {
        bail!("{name} is a kernel thread; blame measures user processes");
    }
    if is_zombie(&stat) {
        bail!("{name} has ended already");
    }
    Ok(Named { name, subject: Subject::Processes(vec![ProcessId { pid, start_ticks }]) })
}

/// Resolves a process name: all processes of that name, as one target. `None` if there is none.
pub fn called(host: &dyn Host, name: &str) -> anyhow::Result<Option<Named>> {
    let mut ids = Vec::new();
    let numbers = host.list(Path::new("/proc")).unwrap_or_default();
    for pid in numbers.iter().filter_map(|number| number.parse::<u32>().ok()) {
        if pid != std::process::id()
            && has_name(host, pid, name)
            && let Ok(Named { subject: Subject::Processes(found), .. }) = numbered(host, pid)
        {
            ids.extend(found);
        }
    }
    let named = |name| Named { name, subject: Subject::Processes(ids.clone()) };
    Ok(match ids.as_slice() {
        [] => None,
        [one] => Some(named(format!("{name} ({one})"))),
        several => Some(named(format!("{name} ({} processes)", several.len()))),
    })
}

/// Whether a process has this name. The kernel's name is short, so the rest of a longer one is that of the program.
fn has_name(host: &dyn Host, pid: u32, name: &str) -> bool {
    let read = |file: &str| host.read_file(Path::new(&format!("/proc/{pid}/{file}"))).unwrap_or_default();
    let comm = read("comm");
    let comm = comm.trim_end_matches('\n');
    if name.len() <= COMM || comm.len() < COMM {
        return comm == name;
    }
    let program = || read("cmdline").split('\0').next().map(|path| path.rsplit('/').next() == Some(name));
    name.starts_with(comm) && program() == Some(true)
}

/// Whether the process that was named still lives.
pub fn lives(host: &dyn Host, id: &ProcessId) -> bool {
    let stat = host.read_file(Path::new(&format!("/proc/{id}/stat"))).unwrap_or_default();
    let is = |stat: Stat<'_>| stat.start_ticks() == Some(id.start_ticks) && !is_zombie(&stat);
    Stat::parse(&stat).is_some_and(is)
}

/// Whether all threads of the process have ended: if only the first one has, the process looks like a zombie, too.
fn is_zombie(stat: &Stat<'_>) -> bool {
    stat.has_ended() && stat.number(THREADS) == Some(1)
}
