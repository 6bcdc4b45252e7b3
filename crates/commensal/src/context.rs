//! State shared by all commands: the host, the state directory, and how groups become a plan.

use anyhow::{Context as _, anyhow, bail};
use commensal_core::actual::{ActualState, CgroupPath};
use commensal_core::config::Compiled;
use commensal_core::desired::DesiredState;
use commensal_core::errno::Errno;
use commensal_core::group::{GroupName, GroupSpec};
use commensal_core::member::EngineReport;
use commensal_core::spelling;
use commensal_core::text;
use commensal_host::{Host, LinuxHost, Lock, resolved};
use commensal_reconcile::agent_lock::running;
use commensal_reconcile::groups_file;
use commensal_reconcile::{Instance, Journal, Mastery, Outcome, PlanRequest, Planned, enforce};
use commensal_sensors::{Survey, containers, delegation, machine, mounts};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Default prefix of the names of commensal's own cgroups.
pub const PREFIX: &str = "commensal";
/// Timeout for another commensal process that is changing the machine.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// The host, the state directory and the global options. The host is this machine, except in tests.
#[derive(Debug)]
pub struct Context<H: Host = LinuxHost> {
    /// The machine.
    pub host: H,
    /// State directory.
    pub state_dir: PathBuf,
    /// Prefix of the names of commensal's own cgroups.
    pub prefix: String,
    /// Cgroup below which commensal's own cgroups are created, if the user chose one.
    pub cgroup_root: Option<CgroupPath>,
    /// Whether another commensal may manage cgroups on this machine at the same time.
    pub beside_others: bool,
    /// Containers that the container engines reported. `None` before [`Context::ask_engines`], or if no engine had to
    /// be asked.
    pub engines: Option<EngineReport>,
}

impl Context {
    /// Creates the context for this user on this machine.
    pub fn new(
        state_dir: Option<PathBuf>,
        prefix: String,
        cgroup_root: Option<&Path>,
    ) -> anyhow::Result<Context> {
        let host = LinuxHost::new();
        GroupName::new(&prefix).map_err(|message| anyhow!("--cgroup-prefix: {message}"))?;
        let state_dir = match state_dir {
            // The path has a single spelling, because it identifies this instance of commensal.
            Some(dir) => resolved(&dir),
            None => default_state_dir(host.euid())?,
        };
        let cgroup_root = cgroup_root.map(spelling::of_path);
        if let Some(root) =
            cgroup_root.as_ref().filter(|root| root.split('/').any(|name| [".", ".."].contains(&name)))
        {
            bail!(
                "--cgroup-root {root:?} contains \"..\" or \".\"; write the path from the root of the hierarchy"
            );
        }
        let cgroup_root = cgroup_root.map(|root| CgroupPath::new(&root));
        Ok(Context { host, state_dir, prefix, cgroup_root, beside_others: false, engines: None })
    }
}

impl<H: Host> Context<H> {
    /// The part of the context that the agent needs.
    pub fn instance(&self) -> Instance {
        let engine = std::env::var("DOCKER_HOST").ok();
        let cgroup_root = self.cgroup_root.clone();
        let beside_others = self.beside_others;
        let machine = Instance::of_machine(&self.state_dir, &self.prefix);
        Instance { cgroup_root, engine, beside_others, ..machine }
    }

    /// Whether the state directory is this user's default one.
    pub fn is_default_state(&self) -> bool {
        default_state_dir(self.host.euid()).is_ok_and(|dir| dir == self.state_dir)
    }

    /// Whether global options select another instance than the machine's, or this user's own one.
    pub fn has_options(&self) -> bool {
        self.command("") != "commensal "
    }

    /// The command line of another verb of this instance, with the global options given, for hints.
    pub fn command(&self, verb: &str) -> String {
        let mut words = "commensal".to_owned();
        if !self.is_default_state() {
            words += &format!(" --state-dir {}", text::shell(&self.state_dir.to_string_lossy()));
        }
        if self.prefix != PREFIX {
            words += &format!(" --cgroup-prefix {}", self.prefix);
        }
        if let Some(root) = &self.cgroup_root {
            words += &format!(" --cgroup-root {}", text::shell(root.as_str()));
        }
        if self.beside_others {
            words += " --beside-others";
        }
        format!("{words} {verb}")
    }

    /// Reads the groups of a file or of every `*.toml` of a folder. One error reports all mistakes.
    pub fn specs(&self, path: &Path) -> anyhow::Result<Vec<GroupSpec>> {
        Ok(self.compiled(path)?.groups)
    }

    /// Like [`Context::specs`], with the settings for the agent.
    pub fn compiled(&self, path: &Path) -> anyhow::Result<Compiled> {
        Ok(groups_file::compile(&groups_file::texts(&self.host, path)?)?)
    }

    /// Asks the container engines for the containers that these groups match. Called before a lock is taken, because
    /// engines may respond slowly.
    pub fn ask_engines(&mut self, specs: &[GroupSpec]) -> anyhow::Result<()> {
        let hierarchies = mounts::hierarchies(&mut self.host)?;
        let engine = self.instance().engine;
        self.engines = containers::find(&self.host, &hierarchies, specs, engine.as_deref());
        Ok(())
    }

    /// Resolves groups to the cgroups and processes that they have now, without a survey: nothing is tested on the
    /// machine. `found` contains its cgroups.
    pub fn members(&mut self, specs: &[GroupSpec], mut found: ActualState) -> anyhow::Result<DesiredState> {
        let instance = self.instance();
        let machine = machine::machine(&self.host)?;
        let mounted = mounts::hierarchies(&mut self.host)?;
        found.tenancy = delegation::look(&mut self.host, &mounted, instance.cgroup_root.as_ref());
        // Without rights to read the journals, nothing is known of processes that were moved.
        found.ours = instance.ours(&mut self.host, &found).unwrap_or_default();
        let hierarchies = found.hierarchies.clone();
        commensal_sensors::members(
            &self.host,
            &hierarchies,
            specs,
            None,
            instance.engine.as_deref(),
            &mut found,
        );
        Ok(instance.desired(&machine, &PlanRequest::all(specs), &found)?)
    }

    /// Surveys the machine and makes a plan.
    pub fn plan(&mut self, request: PlanRequest<'_>) -> anyhow::Result<Planned> {
        let survey = self.survey()?;
        self.plan_on(&survey, request)
    }

    /// Makes a plan for a machine that has been surveyed already.
    pub fn plan_on(&mut self, survey: &Survey, request: PlanRequest<'_>) -> anyhow::Result<Planned> {
        let (instance, kept) = (self.instance(), self.kept());
        let request = PlanRequest { kept, engines: self.engines.as_ref(), ..request };
        Ok(instance.plan(&mut self.host, survey, &request)?)
    }

    /// Makes a plan and carries it out.
    pub fn enforce(
        &mut self,
        request: PlanRequest<'_>,
        journal: &mut Journal,
    ) -> anyhow::Result<(Planned, Outcome)> {
        let (kept, instance) = (self.kept(), self.instance());
        let request = PlanRequest { kept, engines: self.engines.as_ref(), ..request };
        Ok(enforce(&instance, &mut self.host, &request, journal)?)
    }

    /// Surveys the machine, and tests in a scratch cgroup which knobs work. If a lock exists, the caller holds it.
    pub fn survey(&mut self) -> anyhow::Result<Survey> {
        Ok(self.instance().survey(&mut self.host)?)
    }

    /// Name of the scratch cgroup in which knobs are tested.
    pub fn probe_name(&self) -> String {
        self.instance().scratch
    }

    /// Name of the scratch cgroup of lab runs, which use another lock.
    pub fn lab_probe_name(&self) -> String {
        format!("{}-lab-probe", self.prefix)
    }

    /// Takes the lock for a read-only command; `None` if the state directory neither exists nor can be created.
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
        running(&mut self.host, &self.state_dir).is_ok_and(|agent| agent.is_some())
    }

    /// Refuses a command whose changes a running agent would revert immediately.
    pub fn without_agent(&mut self, instead: &str) -> anyhow::Result<()> {
        if let Some(pid) = running(&mut self.host, &self.state_dir)? {
            let process = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
            bail!("an agent manages the groups of this machine{process}; {instead}");
        }
        Ok(())
    }

    /// Refuses to change cgroups while another instance of commensal, with another state directory, manages them.
    /// Returns the machine-wide lock; `None` with --beside-others, or if a process without rights to cgroups holds the
    /// lock.
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
                    "another commensal manages the cgroups of this machine{who}\n  try: stop it, or use its state \
                     directory; or, if the two manage no cgroup in common, --beside-others"
                )
            }
        }
    }

    /// Refuses an output path that is not a regular file, or whose folder is not writable. Called before the work
    /// starts, so that the result of the work is not lost.
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

    /// Refuses a command that changes the machine if the state directory is on a read-only file system, where no original
    /// can be recorded. There, even the removal of a file that does not exist fails.
    pub fn can_record(&mut self) -> anyhow::Result<()> {
        let (host, dir) = (&mut self.host, &self.state_dir);
        match host.state_dir(dir).and_then(|()| host.state_remove(&dir.join(".none"))) {
            Err(error) if error.errno == Errno::EROFS => bail!(
                "the state directory {} is on a read-only file system, so what this would change could not be undone; \
                 nothing was changed\n  try: mount it writable, or choose another directory with --state-dir",
                dir.display()
            ),
            _ => Ok(()),
        }
    }

    /// Takes the lock for changing the machine. The lock is held until the returned value is dropped. Fails if another
    /// process holds the lock for 10 s.
    pub fn lock(&mut self) -> anyhow::Result<Lock> {
        let instance = self.instance();
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            if let Some(lock) = instance.try_lock(&mut self.host)? {
                return Ok(lock);
            }
            if Instant::now() > deadline {
                bail!(
                    "another commensal has been changing this machine for {} s (it holds {}): try again when it has \
                     finished",
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
        return Ok(resolved(Path::new("/var/lib/commensal")));
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    base.map(|base| resolved(&base.join("commensal")))
        .ok_or_else(|| anyhow!("neither XDG_STATE_HOME nor HOME is set: give --state-dir"))
}
