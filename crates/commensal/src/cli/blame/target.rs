//! Resolves the targets named on the command line: finds the cgroups and processes that a name stands for.

use super::Blame;
use crate::cli::agent;
use crate::context::Context;
use anyhow::{anyhow, bail};
use commensal_blame::names::{Asked, Cgroups, short};
use commensal_blame::{Subject, WaitProbe};
use commensal_core::actual::CgroupPath;
use commensal_core::group::Class;
use commensal_core::member::ProcessId;
use commensal_core::text::visible;
use commensal_host::{Host, below};
use commensal_sensors::processes::{called, lives, numbered, places};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The groups file if neither an option nor a running agent names one.
const GROUPS: &str = "/etc/commensal/groups.d";

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
    /// Offline groups of the groups file beside targets that were named. They have no budget, but are called by what they are.
    pub known_offline: Vec<Named>,
}

/// What a name can stand for. If it stands for several things of which one contains the others, the first of them
/// in this order counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Group,
    Container,
    Unit,
    Cgroup,
    Process,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Group, Kind::Container, Kind::Unit, Kind::Cgroup, Kind::Process];

    /// The kinds that a name without a kind can have, and the name.
    fn of(text: &str) -> (Vec<Kind>, &str) {
        if let Some((kind, name)) = text.split_once(':')
            && let Some(index) = Kind::ALL.iter().position(|one| one.to_string() == kind)
        {
            return (vec![Kind::ALL[index]], name);
        }
        const UNITS: [&str; 3] = [".service", ".slice", ".scope"];
        let kinds = match text {
            _ if text.parse::<u32>().is_ok() => vec![Kind::Process],
            _ if text.contains('/') => vec![Kind::Cgroup],
            _ if UNITS.iter().any(|ending| text.ends_with(ending)) => vec![Kind::Unit],
            _ => Kind::ALL.to_vec(),
        };
        (kinds, text)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Group => "group",
            Kind::Container => "container",
            Kind::Unit => "unit",
            Kind::Cgroup => "cgroup",
            Kind::Process => "process",
        })
    }
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
    let config = options
        .config
        .clone()
        .or_else(|| agent::groups_file(context))
        .unwrap_or_else(|| PathBuf::from(GROUPS));
    let mut names = Names { context, cgroups, config, groups: None };
    let mut who = Who::default();
    if options.target.is_empty() {
        who.online = names.groups(&|_, class| class == Class::Online)?;
        who.offline = names.groups(&|_, class| class == Class::Offline)?;
        if who.online.is_empty() {
            bail!(
                "{} has no online group with a cgroup or process; name a unit, cgroup, process or container",
                names.config.display()
            );
        }
    }
    for text in &options.target {
        who.online.extend(names.one(text)?);
    }
    for text in &options.against {
        who.offline.extend(names.one(text)?);
    }
    if options.check && who.offline.is_empty() {
        bail!(
            "--check needs offline work with a budget: name it with --against, or in a group of the groups file"
        );
    }
    let both = who.offline.iter().find(|one| who.online.iter().any(|other| overlap(one, other)));
    if let Some(both) = both {
        bail!("{} cannot wait for itself: it is named as target and in --against", both.name);
    }
    if !options.target.is_empty() && options.against.is_empty() {
        // Without a groups file there are none.
        let mut known = names.groups(&|_, class| class == Class::Offline).unwrap_or_default();
        let inside = |one: &Named, other: &Named| {
            names.contains(std::slice::from_ref(one), std::slice::from_ref(other))
        };
        known.retain(|one| !who.online.iter().any(|other| inside(one, other) || inside(other, one)));
        who.known_offline = known;
    }
    Ok(who)
}

/// Whether two targets have a process or a cgroup in common.
fn overlap(one: &Named, other: &Named) -> bool {
    match (&one.subject, &other.subject) {
        (Subject::Processes(these), Subject::Processes(those)) => these.iter().any(|id| those.contains(id)),
        (these, those) => these == those,
    }
}

/// What names stand for on this machine.
struct Names<'a> {
    context: &'a mut Context,
    cgroups: Option<&'a Cgroups>,
    config: PathBuf,
    /// The members of each group of the groups file, once they have been looked for.
    groups: Option<Vec<(String, Class, Vec<Named>)>>,
}

impl Names<'_> {
    /// Resolves a name to the one thing that it stands for.
    fn one(&mut self, text: &str) -> anyhow::Result<Vec<Named>> {
        let (kinds, name) = Kind::of(text);
        if let [kind] = kinds.as_slice() {
            let found = self.of_kind(*kind, name)?;
            return found.ok_or_else(|| self.nothing(*kind, name));
        }
        let mut found = Vec::new();
        let mut obstacles = String::new();
        for kind in &kinds {
            match self.of_kind(*kind, name) {
                Ok(Some(named)) => found.push((*kind, named)),
                Ok(None) => {}
                Err(error) => obstacles += &format!("\n  {kind}: {error:#}"),
            }
        }
        let mut index = 0;
        while index < found.len() {
            let inner = &found[index].1;
            let is_outer = |other: usize| other != index && self.contains(&found[other].1, inner);
            // Of two that contain each other, the first stays.
            let outer = (0..found.len()).find(|other| {
                is_outer(*other) && (*other < index || !self.contains(inner, &found[*other].1))
            });
            if outer.is_some() {
                found.remove(index);
            } else {
                index += 1;
            }
        }
        match found.as_mut_slice() {
            [] => bail!(
                "{name} is not a process, cgroup, unit or container here, nor a group of {} with members{obstacles}",
                self.config.display()
            ),
            [(_, one)] => Ok(std::mem::take(one)),
            several => {
                let mut words = format!("{} is {} things here; say which:", visible(name), several.len());
                for (kind, named) in several {
                    let all: Vec<_> = named.iter().map(|one| visible(&one.name)).collect();
                    words += &format!("\n  {kind}:{}  {}", visible(name), all.join(", "));
                }
                bail!(words)
            }
        }
    }

    /// What a name of this kind stands for; `None` if there is no such thing.
    fn of_kind(&mut self, kind: Kind, name: &str) -> anyhow::Result<Option<Vec<Named>>> {
        if kind == Kind::Process {
            return Ok(self.process(name)?.map(|one| vec![one]));
        }
        if kind == Kind::Group {
            let found = self.groups(&|group, _| group == name)?;
            return Ok(Some(found).filter(|found| !found.is_empty()));
        }
        let cgroups = self.cgroups.ok_or_else(|| {
            anyhow!("no cgroup hierarchy with the CPU controller is mounted here; name a process instead")
        })?;
        let named =
            |path: &CgroupPath| cgroups.subject(path).map(|subject| Named { name: short(path), subject });
        let called = |name: &str, asked: &Asked| {
            let first = cgroups.called(asked).iter().find_map(named);
            first.map(|one| vec![Named { name: name.to_owned(), ..one }])
        };
        Ok(match kind {
            Kind::Unit if name.contains('.') => called(name, &Asked::Unit(name.to_owned())),
            Kind::Unit => {
                let unit = format!("{name}.service");
                called(&unit, &Asked::Unit(unit.clone()))
            }
            Kind::Cgroup if name.contains('/') => {
                let below = name.strip_prefix(&cgroups.mount).unwrap_or(name);
                named(&CgroupPath::new(below)).map(|one| vec![one])
            }
            Kind::Cgroup => match cgroups.called(&Asked::Unit(name.to_owned())).as_slice() {
                [] => None,
                [path] => named(path).map(|one| vec![one]),
                several => {
                    let all: Vec<String> = several.iter().map(ToString::to_string).collect();
                    bail!("{} cgroups have this name; give the path of one: {}", all.len(), all.join(", "))
                }
            },
            _ => match cgroups.container_called(name).map(str::to_owned) {
                Some(id) => match called(name, &Asked::Container(id)) {
                    None => bail!("container {name} runs, but its cgroup is not in {}", cgroups.mount),
                    found => found,
                },
                None if name.len() >= 12 && name.chars().all(|c| c.is_ascii_hexdigit()) => {
                    let id = Asked::Container(name.to_ascii_lowercase());
                    match cgroups.called(&id).as_slice() {
                        [path] => named(path).map(|one| vec![one]),
                        [] => None,
                        several => {
                            bail!(
                                "the IDs of {} containers begin with {name}; give more digits",
                                several.len()
                            )
                        }
                    }
                }
                None => None,
            },
        })
    }

    /// The process with a PID, or all processes of a name, as one target with all their descendants.
    fn process(&self, name: &str) -> anyhow::Result<Option<Named>> {
        let host = &self.context.host;
        if let Ok(pid) = name.parse::<u32>() {
            // The probe takes the PID for one of the PID namespace in which this program runs.
            if host.link(Path::new("/proc/self")).ok().as_deref() != Some(&std::process::id().to_string()) {
                bail!(
                    "process {pid} cannot be told apart: /proc shows the processes of another PID namespace than the one \
                     that commensal runs in; mount its own (mount -t proc proc /proc), or name a cgroup"
                );
            }
            let (name, id) = numbered(host, pid)?;
            return Ok(Some(Named { name, subject: Subject::Processes(vec![id]) }));
        }
        let ids = called(host, name);
        let name = match ids.as_slice() {
            [] => return Ok(None),
            [one] => format!("{name} ({one})"),
            several => format!("{name} ({} processes)", several.len()),
        };
        Ok(Some(Named { name, subject: Subject::Processes(ids) }))
    }

    /// The error if a name has one kind only, and there is no such thing.
    fn nothing(&self, kind: Kind, name: &str) -> anyhow::Error {
        let mount = self.cgroups.map_or("/sys/fs/cgroup", |cgroups| cgroups.mount.as_str());
        match kind {
            Kind::Unit => anyhow!("unit {name} has no cgroup in {mount}; is the unit running?"),
            Kind::Container => {
                anyhow!("container {name} has no cgroup in {mount}; is the container running?")
            }
            Kind::Cgroup => anyhow!("there is no cgroup {name} in {mount}"),
            Kind::Process => anyhow!("there is no process with the name {name}"),
            Kind::Group => anyhow!("{} has no group {name} with a cgroup or process", self.config.display()),
        }
    }

    /// Whether all of the targets `inner` are inside of the targets `outer`.
    fn contains(&self, outer: &[Named], inner: &[Named]) -> bool {
        inner.iter().all(|one| match &one.subject {
            Subject::Cgroups(ids) => ids.iter().all(|id| {
                let path = self.cgroups.and_then(|cgroups| cgroups.path(*id));
                path.is_some_and(|path| self.has_cgroup(outer, path))
            }),
            Subject::Processes(ids) => ids.iter().all(|id| self.has_process(outer, id)),
        })
    }

    fn has_cgroup(&self, outer: &[Named], path: &CgroupPath) -> bool {
        let Some(cgroups) = self.cgroups else { return false };
        let mut all = outer.iter().flat_map(|one| one.subject.cgroups());
        all.any(|id| cgroups.path(*id).is_some_and(|other| other.contains(path)))
    }

    fn has_process(&self, outer: &[Named], id: &ProcessId) -> bool {
        let Some(cgroups) = self.cgroups else { return false };
        let file = PathBuf::from(format!("/proc/{id}/cgroup"));
        let place = places(&self.context.host, &file, &cgroups.found.hierarchies);
        place.values().any(|path| self.has_cgroup(outer, path))
            || outer.iter().any(|one| matches!(&one.subject, Subject::Processes(ids) if ids.contains(id)))
    }

    /// Returns the members of the groups that `wanted` selects: cgroups, and processes that are not in the group's cgroup
    /// yet. They are those that a plan of the groups file finds.
    fn groups(&mut self, wanted: &dyn Fn(&str, Class) -> bool) -> anyhow::Result<Vec<Named>> {
        if self.groups.is_none() {
            let cgroups = self
                .cgroups
                .ok_or_else(|| anyhow!("no cgroup hierarchy with the CPU controller is mounted here"))?;
            let specs = self.context.specs(&self.config)?;
            let desired = self.context.members(&specs, cgroups.found.clone())?;
            let members = desired.groups.into_iter().map(|group| {
                let paths = group.members.iter().map(|member| &member.path);
                let named =
                    |path: &CgroupPath| Some(Named { name: short(path), subject: cgroups.subject(path)? });
                let mut found: Vec<Named> = paths.filter_map(named).collect();
                let ids = group.processes.iter().map(|process| process.id);
                let ids: Vec<ProcessId> = ids.filter(|id| !self.has_process(&found, id)).collect();
                if !ids.is_empty() {
                    let name = match ids.as_slice() {
                        [one] => format!("process {one}"),
                        several => format!("{} processes", several.len()),
                    };
                    found.push(Named { name, subject: Subject::Processes(ids) });
                }
                if let [one] = found.as_mut_slice() {
                    one.name = group.name.to_string();
                } else {
                    found.iter_mut().for_each(|one| one.name = format!("{} {}", group.name, one.name));
                }
                (group.name.to_string(), group.class, found)
            });
            self.groups = Some(members.collect());
        }
        let all = self.groups.iter().flatten();
        Ok(all
            .filter(|(name, class, _)| wanted(name, *class))
            .flat_map(|(_, _, named)| named.clone())
            .collect())
    }
}

/// Whether this program runs in the first PID namespace of the machine. Only there is a PID of the probe one of /proc.
pub fn sees_every_process(context: &Context) -> bool {
    const FIRST: &str = "pid:[4026531836]";
    context.host.link(Path::new("/proc/self/ns/pid")).is_ok_and(|own| own == FIRST)
}

/// The targets that have ended, with the time since the start of the measurement after which they did. `probe` knows it
/// of processes and their descendants; without it only the process itself counts. A cgroup that was renamed is the same,
/// and gets its new path in `cgroups`.
pub fn ended(
    context: &mut Context,
    cgroups: &mut Option<Cgroups>,
    probe: Option<&WaitProbe>,
    subjects: &[Named],
    (mut ended, elapsed): (BTreeMap<usize, Duration>, Duration),
) -> BTreeMap<usize, Duration> {
    for (index, named) in subjects.iter().enumerate() {
        if ended.contains_key(&index) {
            continue;
        }
        let after = match (&named.subject, probe) {
            (Subject::Processes(_), Some(probe)) => probe.ended(index),
            (Subject::Processes(ids), None) => {
                Some(elapsed).filter(|_| !ids.iter().any(|id| lives(&context.host, id)))
            }
            (Subject::Cgroups(ids), _) => {
                Some(elapsed).filter(|_| !ids.iter().any(|id| exists(context, cgroups, *id)))
            }
        };
        ended.extend(after.map(|after| (index, after)));
    }
    ended
}

/// Whether a cgroup still exists.
fn exists(context: &mut Context, cgroups: &mut Option<Cgroups>, id: u64) -> bool {
    let Some(before) = cgroups else { return true };
    if inode(context, before, id).is_none_or(|found| found == Some(id)) {
        return true;
    }
    // In cgroup v1 a cgroup can be renamed.
    let Ok(Some(now)) = look(context) else { return false };
    let renamed = now.path(id).is_some();
    if renamed {
        before.learn(&now);
    }
    renamed
}

/// The targets among these in whose place there is another one now: a unit or container that was started again.
pub fn replaced(
    context: &mut Context,
    cgroups: Option<&Cgroups>,
    subjects: &[Named],
    ended: impl Iterator<Item = usize>,
) -> BTreeSet<usize> {
    let mut ended = ended.peekable();
    let Some(before) = cgroups.filter(|_| ended.peek().is_some()) else { return BTreeSet::new() };
    let Ok(Some(later)) = look(context) else { return BTreeSet::new() };
    let is_replaced =
        |index: &usize| subjects[*index].subject.cgroups().iter().any(|id| before.is_replaced(*id, &later));
    ended.filter(is_replaced).collect()
}

/// The ID of the cgroup that has the path of this one now, if there is one. `None` if the path is unknown.
fn inode(context: &mut Context, cgroups: &Cgroups, id: u64) -> Option<Option<u64>> {
    let dir = below(Path::new(&cgroups.mount), cgroups.path(id)?.as_str());
    let found = context.host.open(&dir).ok().map(|dir| {
        context.host.close(dir);
        dir.inode
    });
    Some(found)
}
