//! Resolves the targets named on the command line: finds the cgroups or processes that a name stands for.

use super::Blame;
use crate::context::Context;
use anyhow::{anyhow, bail};
use commensal_blame::names::{Asked, Cgroups, short};
use commensal_blame::{Subject, WaitProbe};
use commensal_core::actual::CgroupPath;
use commensal_core::group::Class;
use commensal_core::member::ProcessId;
use commensal_core::process::Stat;
use commensal_host::Host;
use commensal_reconcile::PlanRequest;
use commensal_sensors::machine;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Fields of `/proc/PID/stat`: the kernel's flags, and the number of threads.
const FLAGS: usize = 9;
const THREADS: usize = 20;
/// Flag of kernel threads (`PF_KTHREAD`, include/linux/sched.h).
const KERNEL_THREAD: u64 = 0x20_0000;

/// A target and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub name: String,
    pub subject: Subject,
}

/// The targets whose waits are measured, and those whose share of the waits has a budget.
#[derive(Debug, Default)]
pub struct Who {
    pub online: Vec<Named>,
    pub offline: Vec<Named>,
}

/// Reads the cgroups of this machine, and the names of their containers.
pub fn look(context: &mut Context) -> anyhow::Result<Option<Cgroups>> {
    let engine = std::env::var("DOCKER_HOST").ok();
    Ok(Cgroups::look(&mut context.host, engine.as_deref())?)
}

/// User names by UID, as far as /etc/passwd has them.
pub fn users(context: &Context) -> BTreeMap<u32, String> {
    let text = context.host.read_file(Path::new("/etc/passwd")).unwrap_or_default();
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        Some((fields.nth(1)?.parse().ok()?, name.to_owned()))
    };
    // If a UID has several names, the first one is used, as by `ls`.
    text.lines().rev().filter_map(user).collect()
}

/// Resolves all targets. By default these are the online groups of the groups file, against its offline groups.
pub fn find(context: &mut Context, cgroups: Option<&Cgroups>, options: &Blame) -> anyhow::Result<Who> {
    let mut who = Who::default();
    if options.target.is_empty() {
        for class in [Class::Online, Class::Offline] {
            let found = of_class(context, cgroups, options, class)?;
            match class {
                Class::Online => who.online = found,
                Class::Offline => who.offline = found,
            }
        }
        if who.online.is_empty() {
            bail!(
                "{} has no online group with a cgroup; name a unit, cgroup, process or container",
                options.config.display()
            );
        }
    }
    for text in &options.target {
        who.online.extend(one(context, cgroups, options, text)?);
    }
    for text in &options.against {
        who.offline.extend(one(context, cgroups, options, text)?);
    }
    if options.check && who.offline.is_empty() {
        bail!(
            "--check needs offline work with a budget: name it with --against, or in a group of the groups file"
        );
    }
    let both = who.offline.iter().find(|one| who.online.iter().any(|other| other.subject == one.subject));
    if let Some(both) = both {
        bail!("{} cannot wait for itself: it is named as target and in --against", both.name);
    }
    Ok(who)
}

fn one(
    context: &mut Context,
    cgroups: Option<&Cgroups>,
    options: &Blame,
    text: &str,
) -> anyhow::Result<Vec<Named>> {
    let asked = Asked::parse(text, cgroups.map(|found| found.mount.as_str()));
    if let Asked::Process(pid) = asked {
        return process(&context.host, pid).map(|one| vec![one]);
    }
    let cgroups = cgroups.ok_or_else(|| {
        anyhow!(
            "{text}: no cgroup hierarchy with the CPU controller is mounted here; name a process by its PID instead"
        )
    })?;
    let named = |path: &CgroupPath| cgroups.subject(path).map(|subject| Named { name: short(path), subject });
    match &asked {
        Asked::Cgroup(path) => match named(path) {
            Some(one) => Ok(vec![one]),
            None => bail!("there is no cgroup {path} in {}", cgroups.mount),
        },
        Asked::Unit(unit) => match cgroups.called(&asked).iter().find_map(named) {
            Some(one) => Ok(vec![Named { name: unit.clone(), ..one }]),
            None => bail!("unit {unit} has no cgroup in {}; is the unit running?", cgroups.mount),
        },
        Asked::Container(id) => match cgroups.called(&asked).as_slice() {
            [path] => Ok(named(path).into_iter().collect()),
            [] => bail!("container {id} has no cgroup in {}; is the container running?", cgroups.mount),
            several => bail!("the IDs of {} containers begin with {id}; give more digits", several.len()),
        },
        Asked::Name(name) => match cgroups.container_called(name) {
            Some(id) => match cgroups.called(&Asked::Container(id.to_owned())).iter().find_map(named) {
                Some(one) => Ok(vec![Named { name: name.clone(), ..one }]),
                None => bail!("container {name} runs, but its cgroup is not in {}", cgroups.mount),
            },
            None => group(context, cgroups, options, name),
        },
        Asked::Process(_) => unreachable!("handled above"),
    }
}

/// Resolves the PID of a process. The probe takes the PID for one of the PID namespace in which this program runs, so
/// /proc must show that namespace, too.
fn process(host: &dyn Host, pid: u32) -> anyhow::Result<Named> {
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

/// Whether all threads of the process have ended: if only the first one has, the process looks like a zombie, too.
fn is_zombie(stat: &Stat<'_>) -> bool {
    stat.has_ended() && stat.number(THREADS) == Some(1)
}

/// Whether this program runs in the first PID namespace of the machine. Only there is a PID of the probe one of /proc.
pub fn sees_every_process(context: &Context) -> bool {
    const FIRST: &str = "pid:[4026531836]";
    context.host.link(Path::new("/proc/self/ns/pid")).is_ok_and(|own| own == FIRST)
}

fn of_class(
    context: &mut Context,
    cgroups: Option<&Cgroups>,
    options: &Blame,
    class: Class,
) -> anyhow::Result<Vec<Named>> {
    let cgroups =
        cgroups.ok_or_else(|| anyhow!("no cgroup hierarchy with the CPU controller is mounted here"))?;
    members(context, cgroups, options, &|_, of| of == class)
}

/// Resolves a group of the groups file to its cgroups.
fn group(
    context: &mut Context,
    cgroups: &Cgroups,
    options: &Blame,
    name: &str,
) -> anyhow::Result<Vec<Named>> {
    let found = members(context, cgroups, options, &|group, _| group == name);
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => bail!(
            "{name} is not a process, cgroup, unit or container here, nor a group of {} that has a cgroup",
            options.config.display()
        ),
        Err(error) => Err(error.context(format!(
            "{name} is not a process, cgroup, unit or container here, and the groups file cannot be read"
        ))),
    }
}

/// Returns the cgroups of the groups that `wanted` selects, each with the name of its group.
fn members(
    context: &mut Context,
    cgroups: &Cgroups,
    options: &Blame,
    wanted: &dyn Fn(&str, Class) -> bool,
) -> anyhow::Result<Vec<Named>> {
    let specs = context.specs(&options.config)?;
    let machine = machine::machine(&context.host)?;
    let desired = context.instance().desired(&machine, &PlanRequest::all(&specs), &cgroups.found)?;
    let mut found = Vec::new();
    for group in desired.groups.iter().filter(|group| wanted(group.name.as_str(), group.class)) {
        let several = group.members.len() > 1;
        for member in &group.members {
            let Some(subject) = cgroups.subject(&member.path) else { continue };
            let name = match several {
                true => format!("{} {}", group.name, short(&member.path)),
                false => group.name.to_string(),
            };
            found.push(Named { name, subject });
        }
    }
    Ok(found)
}

/// The targets that have ended, with the time since the start of the measurement after which they did. `probe` knows it
/// of processes and their descendants; without it only the process itself counts.
pub fn ended(
    context: &mut Context,
    cgroups: Option<&Cgroups>,
    probe: Option<&WaitProbe>,
    subjects: &[Named],
    elapsed: Duration,
) -> BTreeMap<usize, Duration> {
    let mut ended = |(index, named): (usize, &Named)| {
        let here = match &named.subject {
            Subject::Processes(ids) => match probe {
                Some(probe) => return probe.ended(index).map(|after| (index, after)),
                None => ids.iter().any(|id| {
                    let stat = context.host.read_file(Path::new(&format!("/proc/{id}/stat")));
                    let stat = stat.unwrap_or_default();
                    let is = |stat: Stat<'_>| stat.start_ticks() == Some(id.start_ticks) && !is_zombie(&stat);
                    Stat::parse(&stat).is_some_and(is)
                }),
            },
            Subject::Cgroup(id) => cgroups.is_none_or(|cgroups| {
                let Some(path) = cgroups.path(*id) else { return true };
                let dir = context.host.open(&commensal_host::below(Path::new(&cgroups.mount), path.as_str()));
                dir.is_ok_and(|dir| {
                    context.host.close(dir);
                    dir.inode == *id
                })
            }),
        };
        (!here).then_some((index, elapsed))
    };
    subjects.iter().enumerate().filter_map(&mut ended).collect()
}
