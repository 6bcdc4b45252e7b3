//! What every verb needs: the host, where state is kept, and how groups become a plan.

use anyhow::{Context as _, anyhow, bail};
use commensal_core::actual::{ActualState, CgroupPath};
use commensal_core::config::{self, ConfigError};
use commensal_core::desired::{DesiredState, ResolveOptions, resolve};
use commensal_core::group::{GroupName, GroupSpec};
use commensal_core::plan::{Plan, plan};
use commensal_drivers::journal::{self, Journal, Owner};
use commensal_host::{Host, LinuxHost, Lock};
use commensal_sensors::{Survey, machine, survey};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait for another commensal that is changing the machine.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// Host and state.
#[derive(Debug)]
pub struct Context {
    /// The machine.
    pub host: LinuxHost,
    /// State directory.
    pub state_dir: PathBuf,
    /// First part of the names of our own cgroups.
    pub prefix: String,
    /// Below which cgroup our own go, if the user insists.
    pub cgroup_root: Option<CgroupPath>,
}

/// Groups, machine and plan, resolved against each other.
#[derive(Debug)]
pub struct Planned {
    /// The machine's cgroups now.
    pub actual: ActualState,
    /// What is wanted.
    pub desired: DesiredState,
    /// What to do.
    pub plan: Plan,
    /// Why groups of our own cannot be made, if they cannot.
    pub obstacle: Option<String>,
}

impl Context {
    /// For this user on this machine.
    pub fn new(
        state_dir: Option<PathBuf>,
        prefix: String,
        cgroup_root: Option<&str>,
    ) -> anyhow::Result<Context> {
        let host = LinuxHost::new();
        GroupName::new(&prefix).map_err(|message| anyhow!("--cgroup-prefix: {message}"))?;
        let state_dir = match state_dir {
            Some(dir) => dir,
            None => default_state_dir(host.euid())?,
        };
        let cgroup_root = cgroup_root.map(CgroupPath::new);
        Ok(Context { host, state_dir, prefix, cgroup_root })
    }

    /// Reads the groups of a file or of every `*.toml` of a folder; all mistakes in one error.
    pub fn specs(&self, path: &Path) -> anyhow::Result<Vec<GroupSpec>> {
        let files = match self.host.list(path) {
            Ok(names) => {
                let toml = names.iter().filter(|name| name.ends_with(".toml"));
                let files: Vec<PathBuf> = toml.map(|name| path.join(name)).collect();
                if files.is_empty() {
                    bail!("{} has no *.toml file; write one, or name a file with --config", path.display());
                }
                files
            }
            Err(_) => vec![path.to_owned()],
        };
        let mut specs = Vec::new();
        let mut errors = Vec::new();
        for file in files {
            let text = self
                .host
                .read_file(&file)
                .with_context(|| format!("cannot read the groups in {} (see --config)", file.display()))?;
            match config::parse(&file.display().to_string(), &text) {
                Ok(mut groups) => specs.append(&mut groups),
                Err(mut wrong) => errors.append(&mut wrong),
            }
        }
        if errors.is_empty() { Ok(specs) } else { Err(mistakes(&errors)) }
    }

    /// Looks at the machine and plans.
    pub fn plan(&mut self, specs: &[GroupSpec], own: BTreeSet<GroupName>) -> anyhow::Result<Planned> {
        let survey = self.survey()?;
        let mut found = survey.tree(&mut self.host)?;
        let boot_id = self.boot_id();
        found.ours = journal::ours(&mut self.host, &self.state_dir, journal::MACHINE, &boot_id, &found)?;
        let of_run = journal::ours(&mut self.host, &self.state_dir, journal::RUN, &boot_id, &found)?;
        found.ours.created.extend(of_run.created);
        let engine = std::env::var("DOCKER_HOST").ok();
        survey.members(&self.host, specs, engine.as_deref(), &mut found);
        let options = ResolveOptions { prefix: self.prefix.clone(), alone: !own.is_empty(), own };
        let desired =
            resolve(specs, &survey.machine, &found, &options).map_err(|errors| mistakes(&errors))?;
        survey.fill(&mut self.host, &desired, &mut found);
        let plan = plan(&desired, &found, &survey.caps);
        tracing::debug!(steps = plan.steps.len(), unmet = plan.unmet.len(), "planned");
        let cpu = found.hierarchy_of(commensal_core::knob::Controller::Cpu);
        let own = found.own_obstacle.clone().filter(|_| cpu.is_none_or(|cpu| !found.own_possible(cpu)));
        let obstacle = survey.caps.cgroup_obstacle.or(own);
        Ok(Planned { actual: found, desired, plan, obstacle })
    }

    /// The machine and what works on it, by trying in a scratch group. The caller holds the lock, if there can be one.
    pub fn survey(&mut self) -> anyhow::Result<Survey> {
        let name = self.probe_name();
        Ok(survey(&mut self.host, &name, self.cgroup_root.as_ref())?)
    }

    /// Name of the scratch group in which knobs are tried.
    pub fn probe_name(&self) -> String {
        format!("{}-probe", self.prefix)
    }

    /// The same for lab runs, which have a lock of their own.
    pub fn lab_probe_name(&self) -> String {
        format!("{}-lab-probe", self.prefix)
    }

    /// The lock for verbs that only look: without a state directory of one's own there is none to share.
    pub fn lock_to_look(&mut self) -> anyhow::Result<Option<Lock>> {
        match self.host.state_dir(&self.state_dir) {
            Ok(()) => self.lock().map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Moves this process out of a delegated group that is to give controllers to its children.
    pub fn step_aside(&mut self, planned: &Planned, journal: &mut Journal) -> anyhow::Result<()> {
        let name = planned.desired.aside.name().to_owned();
        commensal_drivers::step_aside(&mut self.host, &planned.plan.steps, &planned.actual, &name, journal)?;
        Ok(())
    }

    /// Random number of this boot.
    pub fn boot_id(&self) -> String {
        machine::boot_id(&self.host).unwrap_or_default()
    }

    /// Opens a journal: [`journal::MACHINE`] or [`journal::RUN`].
    pub fn journal(&mut self, name: &str) -> anyhow::Result<Journal> {
        let pid = std::process::id();
        let start_ticks = self.host.process(pid)?.start_ticks;
        let owner = Owner { kind: name.to_owned(), pid, start_ticks, boot_id: self.boot_id() };
        Ok(Journal::open(&mut self.host, &self.state_dir, name, owner)?)
    }

    /// Refuses a target that is not a file, or a folder that cannot be written: before the work, not after it.
    pub fn writable(&mut self, out: &Path) -> anyhow::Result<()> {
        let cannot = || format!("{} cannot be written", out.display());
        if let Ok(kind) = out.metadata()
            && !kind.is_file()
        {
            bail!("{}: it is not a regular file", cannot());
        }
        let name = out.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let try_out = out.with_file_name(format!(".{name}.{}.try", std::process::id()));
        self.host.state_replace(&try_out, "").with_context(cannot)?;
        self.host.state_remove(&try_out).with_context(cannot)
    }

    /// One at a time changes the machine; the lock ends with the returned value or with the process.
    pub fn lock(&mut self) -> anyhow::Result<Lock> {
        self.host.state_dir(&self.state_dir)?;
        let path = self.state_dir.join("lock");
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            if let Some(lock) = self.host.state_lock(&path)? {
                return Ok(lock);
            }
            if Instant::now() > deadline {
                bail!(
                    "another commensal has been changing this machine for {} s (it holds {})",
                    LOCK_PATIENCE.as_secs(),
                    path.display()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn mistakes(errors: &[ConfigError]) -> anyhow::Error {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    anyhow!("{}", lines.join("\n"))
}

fn default_state_dir(euid: u32) -> anyhow::Result<PathBuf> {
    if euid == 0 {
        return Ok(PathBuf::from("/var/lib/commensal"));
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    base.map(|base| base.join("commensal"))
        .ok_or_else(|| anyhow!("neither XDG_STATE_HOME nor HOME is set: give --state-dir"))
}
