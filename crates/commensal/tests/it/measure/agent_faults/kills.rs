//! kill -9 of the agent, of its guard and of both, at random, while members come and go and the headroom changes.

use crate::agent::{Agent, ETL, PATIENCE, Theirs, cpus, limited, own, until};
use crate::agent_faults::{Watched, guards, nothing_left, processes, set, settings};
use crate::support::{Program, can_write_cgroups};
use commensal_core::cpuset::CpuSet;
use commensal_testkit::{Dice, Signal, cgroups_of, holds_within, signal};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// In the usual check; `cargo xtask ci --long` asks for 200.
const ROUNDS: usize = 8;

const PLACES: usize = 4;

/// Offline work in a cgroup that somebody else made, with settings of its own.
struct Batch {
    theirs: Theirs,
    before: BTreeMap<PathBuf, String>,
}

impl Batch {
    fn new(program: &Program, place: usize) -> Batch {
        let theirs = Theirs::new(program, &format!("batch-{place}"));
        assert!(set(&theirs, "cpu.shares", "777") || set(&theirs, "cpu.weight", "77"));
        if !set(&theirs, "cpu.cfs_quota_us", "93000") {
            assert!(set(&theirs, "cpu.max", "93000 100000"));
        }
        set(&theirs, "pids.max", "4321");
        let before = settings(&theirs);
        Batch { theirs, before }
    }

    fn quota(&self) -> String {
        let read = |file: &str| std::fs::read_to_string(self.theirs.cpu.join(file));
        let text = read("cpu.cfs_quota_us").or_else(|_| read("cpu.max")).unwrap();
        text.split_whitespace().next().unwrap_or_default().to_owned()
    }
}

/// A process that a group matches by its program.
struct Sleeper(Child);

impl Sleeper {
    fn new(exe: &Path) -> Sleeper {
        Sleeper(Command::new(exe).arg("600").stdin(Stdio::null()).spawn().unwrap())
    }

    fn places(&self) -> BTreeSet<String> {
        cgroups_of(self.0.id())
    }

    fn inside(&self, program: &Program) -> bool {
        let own = format!("/{}-offline/media", program.prefix);
        self.places().iter().any(|line| line.ends_with(&own))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One of three configurations, written whole.
fn write(program: &Program, groups: &Path, which: usize, sleeper: &Path, web: &Theirs) -> &'static str {
    let (headroom, cores, quota) =
        [("target", "0.5 cores", "50000"), ("frame", "0.3 cores", "30000"), ("off", "0.4 cores", "40000")]
            [which];
    let text = format!(
        "[agent]\nheadroom = \"{headroom}\"\n{ETL}\
         [group.web]\nclass = \"online\"\nmatch = [{{ cgroup = \"/{}\" }}]\n\
         [group.batch]\nclass = \"offline\"\ncpu.max = \"{cores}\"\npids.max = 99\n\
         match = [{{ cgroup = \"/{}-batch-*\" }}]\n\
         [group.media]\nclass = \"offline\"\nmatch = [{{ process = {{ exe = \"{}\" }} }}]\n",
        web.name,
        program.prefix,
        sleeper.display()
    );
    let aside = groups.with_extension("new");
    std::fs::write(&aside, text).unwrap();
    std::fs::rename(aside, groups).unwrap();
    quota
}

/// Whether offline work of ours is kept to fewer CPUs than there are, where that can be.
fn shut(program: &Program) -> bool {
    let Some((all, now)) = cpus(program, "etl") else { return true };
    let (Ok(all), Ok(now)) = (all.parse::<CpuSet>(), now.parse::<CpuSet>()) else { return false };
    all.len() < 2 || (!now.is_empty() && now.is_subset(&all) && now != all)
}

/// What has to be in force.
struct Wanted<'a> {
    batches: &'a [Option<Batch>],
    quota: &'a str,
    sleepers: &'a [Sleeper],
    /// Whether offline work is kept to a frame.
    frame: bool,
}

/// Waits until everything is in force.
fn converged(program: &Program, agent: &Agent, wanted: &Wanted<'_>) {
    let Wanted { batches, quota, sleepers, frame } = wanted;
    let mut missing = String::new();
    let is_done = holds_within(PATIENCE, || {
        let wrong = batches.iter().flatten().find(|batch| batch.quota() != *quota);
        let wrong = wrong.map(|batch| (&batch.theirs.name, batch.quota()));
        let outside = sleepers.iter().filter(|sleeper| !sleeper.inside(program)).count();
        let (etl, frame) = (limited(&own(program, "etl")), !frame || shut(program));
        missing = format!(
            "quota {wrong:?} instead of {quota}, {outside} processes outside, etl limited {etl}, frame shut {frame}"
        );
        wrong.is_none() && outside == 0 && etl && frame
    });
    assert!(is_done, "{missing}: {}", agent.said());
}

// promise 21
#[test]
fn random_kills_of_agent_and_guard() {
    let test = "random_kills_of_agent_and_guard";
    if !can_write_cgroups(test) {
        return;
    }
    let rounds = std::env::var("COMMENSAL_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds = rounds.unwrap_or(ROUNDS);
    let program = Program::new("kills");
    let web = Theirs::new(&program, "web");
    let watched = Watched::over(&web);
    let exe = program.path("sleeper");
    std::fs::copy("/bin/sleep", &exe).unwrap();
    let groups = program.path("groups.toml");
    let mut batches: Vec<Option<Batch>> = (0..PLACES).map(|_| None).collect();
    let mut sleepers: Vec<Sleeper> = Vec::new();
    let home = Sleeper::new(Path::new("/bin/sleep")).places();
    let (mut dice, mut killed) = (Dice::new(31), [0; 3]);
    for round in 0..rounds {
        let place = dice.below(PLACES);
        batches[place] = match batches[place].take() {
            Some(_) => None,
            None => Some(Batch::new(&program, place)),
        };
        match dice.below(3) {
            0 if sleepers.len() < 4 => sleepers.push(Sleeper::new(&exe)),
            1 => drop(sleepers.pop()),
            _ => {}
        }
        let which = dice.below(3);
        let quota = write(&program, &groups, which, &exe, &web);
        let mut agent = Agent::start(&program, &groups, &["--lease", "5s"]);
        // At any moment of the start, or some time after everything is in force, which the next one has to find then.
        if dice.below(3) == 0 && round + 1 < rounds {
            std::thread::sleep(Duration::from_millis(dice.below(400) as u64));
        } else {
            let wanted = Wanted { batches: &batches, quota, sleepers: &sleepers, frame: which == 1 };
            converged(&program, &agent, &wanted);
            std::thread::sleep(Duration::from_millis(dice.below(120) as u64));
        }
        let who = dice.below(3);
        killed[who] += 1;
        if who > 0 {
            for pid in guards(&program) {
                signal(pid, Signal::KILL);
            }
        }
        if who == 1 {
            // The agent goes on, with another guard.
            until("another guard", || {
                guards(&program).len() == 1 || agent.child.try_wait().unwrap().is_some()
            });
            std::thread::sleep(Duration::from_millis(dice.below(200) as u64));
        }
        let _ = agent.child.kill();
        let _ = agent.child.wait();
        until("agent and guard have ended", || processes(&program).is_empty());
    }
    println!("{test}: {rounds} rounds: {} agents, {} guards, {} both", killed[0], killed[1], killed[2]);
    // The last of them left everything in force or in its safe state.
    let (out, _) = program.expect(0, &["restore"]);
    for batch in batches.iter().flatten() {
        assert_eq!(settings(&batch.theirs), batch.before, "{out}");
    }
    for sleeper in &sleepers {
        assert_eq!(sleeper.places(), home, "{out}");
    }
    watched.end();
    drop((batches, sleepers, web));
    nothing_left(&program);
}
