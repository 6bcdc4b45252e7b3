//! State shared by all commands: the host, the state directory, and how groups become a plan.

use anyhow::{Context as _, anyhow, bail};
use commensal_agent::control::{SHARED_SOCKET, SOCKET};
use commensal_agent::groups_file::{self, Compiled};
use commensal_core::actual::CgroupPath;
use commensal_core::group::{GroupName, GroupSpec};
use commensal_host::{Host, LinuxHost, Lock};
use commensal_reconcile::{Instance, Journal, Mastery, Outcome, PlanRequest, Planned, enforce};
use commensal_sensors::containers::{self, Found};
use commensal_sensors::{Survey, mounts};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait for another commensal that is changing the machine.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// Host and state. The host is this machine, except in tests.
#[derive(Debug)]
pub struct Context<H: Host = LinuxHost> {
    /// The machine.
    pub host: H,
    /// State directory.
    pub state_dir: PathBuf,
    /// Prefix of the names of our own cgroups.
    pub prefix: String,
    /// Cgroup below which our own are created, if the user chose one.
    pub cgroup_root: Option<CgroupPath>,
    /// Whether another commensal may manage cgroups on this machine at the same time.
    pub beside_others: bool,
    /// Answers of container engines.
    pub engines: Option<Found>,
}

impl Context {
    /// The context for this user on this machine.
    pub fn new(
        state_dir: Option<PathBuf>,
        prefix: String,
        cgroup_root: Option<&str>,
    ) -> anyhow::Result<Context> {
        let host = LinuxHost::new();
        GroupName::new(&prefix).map_err(|message| anyhow!("--cgroup-prefix: {message}"))?;
        let state_dir = match state_dir {
            // Absolute, because the path distinguishes one commensal from another.
            Some(dir) => {
                std::path::absolute(&dir).with_context(|| format!("--state-dir {}", dir.display()))?
            }
            None => default_state_dir(host.euid())?,
        };
        let cgroup_root = cgroup_root.map(CgroupPath::new);
        Ok(Context { host, state_dir, prefix, cgroup_root, beside_others: false, engines: None })
    }
}

impl<H: Host> Context<H> {
    /// The part that the agent needs.
    pub fn instance(&self) -> Instance {
        let engine = std::env::var("DOCKER_HOST").ok();
        let cgroup_root = self.cgroup_root.clone();
        let beside_others = self.beside_others;
        let machine = Instance::of_machine(&self.state_dir, &self.prefix);
        Instance { cgroup_root, engine, beside_others, ..machine }
    }

    /// Whether nobody named another state directory than this user's own.
    pub fn is_default_state(&self) -> bool {
        default_state_dir(self.host.euid()).is_ok_and(|dir| dir == self.state_dir)
    }

    /// Where to ask for the agent: in the state directory, and for a user who has none of their own where the machine's is shared.
    pub fn agent_sockets(&self) -> Vec<PathBuf> {
        let mut sockets = vec![self.state_dir.join(SOCKET)];
        if self.host.euid() != 0 && self.is_default_state() {
            sockets.push(PathBuf::from(SHARED_SOCKET));
        }
        sockets
    }

    /// Reads the groups of a file or of every `*.toml` of a folder; all mistakes in one error.
    pub fn specs(&self, path: &Path) -> anyhow::Result<Vec<GroupSpec>> {
        Ok(self.compiled(path)?.groups)
    }

    /// The same with what is for the agent.
    pub fn compiled(&self, path: &Path) -> anyhow::Result<Compiled> {
        Ok(groups_file::compile(&groups_file::texts(&self.host, path)?)?)
    }

    /// Asks container engines for the containers that these groups match. Done before taking a lock, since engines may
    /// answer slowly.
    pub fn ask_engines(&mut self, specs: &[GroupSpec]) -> anyhow::Result<()> {
        let hierarchies = mounts::hierarchies(&mut self.host)?;
        let engine = self.instance().engine;
        self.engines = containers::find(&self.host, &hierarchies, specs, engine.as_deref());
        Ok(())
    }

    /// Surveys the machine and plans.
    pub fn plan(&mut self, request: PlanRequest<'_>) -> anyhow::Result<Planned> {
        let survey = self.survey()?;
        self.plan_on(&survey, request)
    }

    /// Plans for a machine that was looked at.
    pub fn plan_on(&mut self, survey: &Survey, request: PlanRequest<'_>) -> anyhow::Result<Planned> {
        let (instance, kept) = (self.instance(), self.kept());
        let request = PlanRequest { kept, engines: self.engines.as_ref(), ..request };
        Ok(instance.plan(&mut self.host, survey, &request)?)
    }

    /// Plans and executes the plan.
    pub fn enforce(
        &mut self,
        request: PlanRequest<'_>,
        journal: &mut Journal,
    ) -> anyhow::Result<(Planned, Outcome)> {
        let (kept, instance) = (self.kept(), self.instance());
        let request = PlanRequest { kept, engines: self.engines.as_ref(), ..request };
        Ok(enforce(&instance, &mut self.host, &request, journal)?)
    }

    /// Surveys the machine and tests what works in a scratch cgroup. The caller holds the lock, if there is one.
    pub fn survey(&mut self) -> anyhow::Result<Survey> {
        Ok(self.instance().survey(&mut self.host)?)
    }

    /// Name of the scratch cgroup in which knobs are tried.
    pub fn probe_name(&self) -> String {
        self.instance().scratch
    }

    /// The same for lab runs, which use another lock.
    pub fn lab_probe_name(&self) -> String {
        format!("{}-lab-probe", self.prefix)
    }

    /// The lock for read-only commands; `None` when this user has no state directory.
    pub fn lock_to_look(&mut self) -> anyhow::Result<Option<Lock>> {
        match self.host.state_dir(&self.state_dir) {
            Ok(()) => self.lock().map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Opens a journal: [`commensal_reconcile::journal::MACHINE`] or `RUN`.
    pub fn journal(&mut self, name: &str) -> anyhow::Result<Journal> {
        Ok(self.instance().journal(&mut self.host, name)?)
    }

    /// Whether an agent manages this machine's groups.
    fn kept(&mut self) -> bool {
        commensal_agent::agent::running(&mut self.host, &self.state_dir)
            .is_ok_and(|running| running.is_some())
    }

    /// Refuses commands whose changes an agent would revert at once.
    pub fn without_agent(&mut self, instead: &str) -> anyhow::Result<()> {
        if let Some(pid) = commensal_agent::agent::running(&mut self.host, &self.state_dir)? {
            let process = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
            bail!("an agent keeps the groups of this machine{process}; {instead}");
        }
        Ok(())
    }

    /// Refuses to change what another commensal with another state directory manages. The lock is held as long as the
    /// returned value.
    pub fn as_master(&mut self) -> anyhow::Result<Option<Lock>> {
        if self.beside_others {
            return Ok(None);
        }
        let instance = self.instance();
        match instance.be_master(&mut self.host)? {
            Mastery::Ours(lock) => Ok(Some(lock)),
            Mastery::Squatted(_) => Ok(None),
            Mastery::Others(master) => {
                let who = master.map(|master| format!(": {master}")).unwrap_or_default();
                bail!(
                    "another commensal keeps the cgroups of this machine{who}\n  try: stop it, or use its state directory; or, if \
                     their groups have nothing in common, --beside-others"
                )
            }
        }
    }

    /// Refuses an output path that is not a file, or whose folder is not writable: before the work, not after it.
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

    /// The lock for changing the machine, held as long as the returned value.
    pub fn lock(&mut self) -> anyhow::Result<Lock> {
        let instance = self.instance();
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            if let Some(lock) = instance.try_lock(&mut self.host)? {
                return Ok(lock);
            }
            if Instant::now() > deadline {
                bail!(
                    "another commensal has been changing this machine for {} s (it holds {})",
                    LOCK_PATIENCE.as_secs(),
                    self.state_dir.join("lock").display()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
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
