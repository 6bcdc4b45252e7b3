//! Random events around an agent: cgroups and processes appear and disappear, files change, and another program writes.

use crate::stage::{self, Stage};
use commensal_lab::rng::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};

/// Cgroups that exist throughout.
pub const ONLINE: [&str; 2] = ["on/a", "on/b"];
pub const OFFLINE: [&str; 2] = ["off/a", "off/b"];
/// Maximum number of temporary objects (such as cgroups and processes) of each kind.
const MOST: usize = 12;
/// Values of the agent's setting `headroom`, used in random order.
const HEADROOMS: [&str; 4] = ["target", "frame", "quota", "off"];

/// A temporary cgroup and its processes.
struct Extra {
    path: String,
    tenant: Child,
}

/// Random events. Their order depends only on the seed.
pub struct Churn {
    pub stage: Stage,
    pub seed: u64,
    /// Number of events of each kind.
    pub counts: BTreeMap<&'static str, u64>,
    /// Whether this program also writes to the files that the agent manages.
    pub meddles: bool,
    /// Additional lines for the online group, and additional groups.
    pub more: (String, String),
    rng: Rng,
    made: u32,
    extra: Vec<Extra>,
    matched: Vec<Child>,
    jobs: Vec<Child>,
    load: Option<Child>,
}

impl Churn {
    /// Creates the cgroups that exist throughout.
    pub fn new(stage: Stage, seed: u64) -> anyhow::Result<Churn> {
        for path in ["on", "off"].iter().chain(&ONLINE).chain(&OFFLINE) {
            stage.make(path)?;
        }
        let churn = Churn {
            stage,
            seed,
            counts: BTreeMap::new(),
            meddles: true,
            more: (String::new(), String::new()),
            rng: Rng::new(seed),
            made: 0,
            extra: Vec::new(),
            matched: Vec::new(),
            jobs: Vec::new(),
            load: None,
        };
        churn.stage.groups(&churn.config("target", 50))?;
        Ok(churn)
    }

    /// Returns a random number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.rng.u64() % end
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Number of cgroups.
    pub fn groups(&self) -> usize {
        ONLINE.len() + OFFLINE.len() + self.extra.len()
    }

    fn config(&self, headroom: &str, percent: u64) -> String {
        let (top, token) = (&self.stage.top, self.token());
        let (online, others) = &self.more;
        format!(
            "[agent]\nheadroom = \"{headroom}\"\n\
             [group.web]\nclass = \"online\"\ntarget-wakeup-p99 = \"200 us\"\n{online}match = [{{ cgroup = \"/{top}/on/*\" }}]\n\
             [group.slice]\nclass = \"offline\"\nmatch = [{{ cgroup = \"/{top}/off\" }}]\n\
             [group.batch]\nclass = \"offline\"\ncpu.max = \"{percent} %\"\nmemory.max = \"512 MiB\"\npids.max = 300\n\
             match = [{{ cgroup = \"/{top}/off/*\" }}]\n\
             [group.etl]\nclass = \"offline\"\ncpu.max = \"{percent} %\"\nqueue = {{ max-concurrency = 2, max-size = 10 }}\n\
             [group.found]\nclass = \"offline\"\npids.max = 200\nmatch = [{{ process = {{ cmdline = \"{token}\" }} }}]\n{others}"
        )
    }

    /// A unique sleep time that identifies a process.
    fn token(&self) -> String {
        format!("3600.{}", std::process::id())
    }

    /// Carries out one random event, or none.
    pub fn step(&mut self) -> anyhow::Result<()> {
        self.reap();
        match self.below(24) {
            0 | 1 => self.come("on")?,
            2 | 3 => self.come("off")?,
            4..=6 => self.go(),
            7 | 8 => self.process_comes()?,
            9 | 10 => self.process_goes(),
            11 => self.reload()?,
            12 => {
                self.count("broken groups files");
                let broken = format!("{}[group.bad]\nclas = 1\n", self.config("off", 10));
                self.stage.groups(&broken)?;
            }
            13 if self.meddles => self.meddle(),
            14 | 15 => self.load()?,
            16 | 17 => self.queue()?,
            _ => {}
        }
        Ok(())
    }

    /// Removes everything temporary, and returns the rest to the state at the start.
    pub fn rest(&mut self) -> anyhow::Result<()> {
        while !self.extra.is_empty() {
            self.go();
        }
        for child in self.matched.iter_mut().chain(&mut self.load) {
            stage::end(child);
        }
        (self.load, self.matched) = (None, Vec::new());
        for job in &mut self.jobs {
            // `run` forwards the signal.
            stage::signal(job.id(), "TERM");
            let _ = job.wait();
        }
        self.jobs.clear();
        self.stage.groups(&self.config("target", 50))
    }

    fn reap(&mut self) {
        let ended = |child: &mut Child| matches!(child.try_wait(), Ok(Some(_)));
        self.jobs.retain_mut(|job| !ended(job));
        self.matched.retain_mut(|child| !ended(child));
    }

    fn come(&mut self, side: &str) -> anyhow::Result<()> {
        if self.extra.len() >= MOST {
            return Ok(());
        }
        self.made += 1;
        self.make(format!("{side}/x{}", self.made))
    }

    /// Removes a temporary cgroup and creates another of the same name.
    pub fn remake(&mut self) -> anyhow::Result<()> {
        let names: Vec<String> = self.extra.iter().map(|one| one.path.clone()).collect();
        self.go();
        let gone = |path: &&String| !self.extra.iter().any(|one| one.path == **path);
        match names.iter().find(gone) {
            Some(path) => self.make(path.clone()),
            None => Ok(()),
        }
    }

    /// Kills a process of a temporary cgroup; the cgroup stays.
    pub fn kill_member(&mut self) {
        if !self.extra.is_empty() {
            let one = self.rng.u64() as usize % self.extra.len();
            stage::end(&mut self.extra[one].tenant);
        }
    }

    fn make(&mut self, path: String) -> anyhow::Result<()> {
        self.count("cgroups came");
        self.stage.make(&path)?;
        let tenant = self.stage.start(&path, "exec sleep 3600")?;
        self.extra.push(Extra { path, tenant });
        Ok(())
    }

    fn go(&mut self) {
        if self.extra.is_empty() {
            return;
        }
        self.count("cgroups went");
        let one = self.rng.u64() as usize % self.extra.len();
        let mut gone = self.extra.swap_remove(one);
        stage::end(&mut gone.tenant);
        for _ in 0..100 {
            if self.stage.remove(&gone.path) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn process_comes(&mut self) -> anyhow::Result<()> {
        if self.matched.len() < MOST {
            self.count("processes came");
            self.matched.push(self.stage.start("", &format!("exec sleep {}", self.token()))?);
        }
        Ok(())
    }

    fn process_goes(&mut self) {
        if !self.matched.is_empty() {
            self.count("processes went");
            let one = self.rng.u64() as usize % self.matched.len();
            stage::end(&mut self.matched.swap_remove(one));
        }
    }

    /// Writes a groups file with other settings.
    pub fn reload(&mut self) -> anyhow::Result<()> {
        self.count("groups files changed");
        let headroom = HEADROOMS[self.rng.u64() as usize % HEADROOMS.len()];
        let percent = 20 + self.below(60);
        self.stage.groups(&self.config(headroom, percent))
    }

    /// Writes, like another program, to the cgroups that the agent manages.
    fn meddle(&mut self) {
        self.count("values written by another program");
        let path = OFFLINE[self.rng.u64() as usize % OFFLINE.len()];
        let values = [("cpu.cfs_quota_us", "-1"), ("cpu.max", "max"), ("pids.max", "max")];
        for (file, value) in values {
            if let Some(file) = self.stage.file(path, file) {
                // The kernel may refuse the write, because the agent writes to the file as well.
                let _ = std::fs::write(file, value);
            }
        }
    }

    /// Starts or stops offline load.
    fn load(&mut self) -> anyhow::Result<()> {
        match self.load.take() {
            Some(mut load) => stage::end(&mut load),
            None => {
                self.count("offline load started");
                self.load = Some(self.stage.start("off/a", "exec nice sh -c 'while :; do :; done'")?);
            }
        }
        Ok(())
    }

    fn queue(&mut self) -> anyhow::Result<()> {
        if self.jobs.len() >= MOST {
            return Ok(());
        }
        self.count("commands queued");
        let config = self.stage.config().display().to_string();
        let seconds = format!("{}", 1 + self.below(6));
        let mut run = self.stage.command(&["run", "-g", "etl", "-c", &config, "--", "sleep", &seconds]);
        self.jobs.push(run.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        Ok(())
    }

    /// Returns an online cgroup that has any limit.
    pub fn limited(&self) -> Option<String> {
        let extra = self.extra.iter().map(|one| one.path.as_str()).filter(|path| path.starts_with("on/"));
        type Free = (&'static str, fn(&str) -> bool);
        let free: [Free; 6] = [
            ("cpu.cfs_quota_us", |text| text == "-1"),
            ("cpu.max", |text| text.starts_with("max")),
            ("memory.limit_in_bytes", |text| text.len() > 15),
            ("memory.max", |text| text == "max"),
            ("pids.max", |text| text == "max"),
            ("freezer.state", |text| text == "THAWED"),
        ];
        let limited = |path: &str| {
            let all = self.stage.file("", "cpuset.cpus").and_then(read);
            let cpus = self.stage.file(path, "cpuset.cpus").and_then(read);
            if cpus != all {
                return Some(format!("{path} has CPUs {cpus:?} of {all:?}"));
            }
            let held = free.iter().filter_map(|(file, is_free)| {
                let text = read(self.stage.file(path, file)?)?;
                (!is_free(&text)).then(|| format!("{path} has {file} {text}"))
            });
            held.into_iter().next()
        };
        ONLINE.into_iter().chain(extra).find_map(limited)
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        let extra = self.extra.iter_mut().map(|one| &mut one.tenant);
        for child in extra.chain(&mut self.matched).chain(&mut self.jobs).chain(&mut self.load) {
            stage::end(child);
        }
    }
}

fn read(file: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}
