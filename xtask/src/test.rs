//! The tests, by tier. The gate's tests are deterministic and need only cargo. The other tiers measure time or shares of a
//! CPU, need other programs, boot kernels in virtual machines, or draw new random events: what fails there is run again,
//! here and on the parent commit, and gets a name ([`crate::confirm`]).

use crate::artifact::{self, Artifact};
use crate::runner::config::DEFAULT;
use crate::tally::{Tally, running_release};
use crate::tree::{SQL, root, step};
use crate::{SKIPPED, confirm, devtools, features, runner, vm};
use anyhow::{Context, bail};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Run the deterministic tests of the default members on the running kernel, in some minutes; or another tier.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    tier: Tier,
    /// More rounds and cases, and the guests and soaks that take long.
    #[arg(long)]
    long: bool,
    /// Run only tests whose names contain one of these.
    filters: Vec<String>,
}

/// Which tests to run.
#[derive(Debug, Default, clap::Args)]
#[group(multiple = false)]
struct Tier {
    /// The deterministic tests of the packages that are no default members: the SQL engine, which takes a quarter of an hour
    /// to build, the scheduler and the development tools.
    #[arg(long)]
    workspace: bool,
    /// Tests that measure time, shares of a CPU or statistics.
    #[arg(long)]
    measure: bool,
    /// Tests that need other programs: a container engine, a browser, clients of databases.
    #[arg(long)]
    external: bool,
    /// Kernel tests in virtual machines.
    #[arg(long)]
    guests: bool,
    /// The chaos soak, with this seed of the random events, or a new one.
    #[arg(long, value_name = "SEED", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    chaos: Option<u64>,
    /// All tests of all tiers.
    #[arg(long)]
    all: bool,
}

/// The default members are built with the fake host, which only tests need.
const FAKE: [&str; 2] = ["--features", "commensal-host/fake"];
/// Runs the tests of `commensal-host` again, through the layer that injects faults in the chaos soak.
const WITH_FAULTS: [&str; 4] =
    ["--package", "commensal-host", "--features", "commensal-host/faults,commensal-host/fake"];
/// The first command in README.
const QUICKSTART: &str = "cargo run --release -- lab run quickstart";
/// Length of the chaos soak and of each soak in the long form.
const CHAOS: (&str, &str) = ("60s", "20m");

/// `cargo xtask test`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let (tier, filters) = (&args.tier, &args.filters);
    let tally = match tier {
        Tier { workspace: true, .. } => workspace(filters)?,
        Tier { measure: true, .. } => confirmed("measure", args)?,
        Tier { external: true, .. } => confirmed("external", args)?,
        Tier { guests: true, .. } => guests(args.long)?,
        Tier { chaos: Some(seed), .. } => chaos(*seed, args.long)?,
        Tier { all: true, .. } => everything(args)?,
        _ => gate(filters)?,
    };
    tally.print(started);
    tally.result()
}

/// Runs the deterministic tests of the default members.
pub fn gate(filters: &[String]) -> anyhow::Result<Tally> {
    step("tests of the default members");
    let tally = runner::run(&artifact::tests(&FAKE)?, DEFAULT, filters, &SEEDED)?;
    Ok(tally.on(&here(), None))
}

/// Runs the deterministic tests of all other packages.
pub fn workspace(filters: &[String]) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    let tools = ["--package", "xtask", "--package", "devtools"];
    let sched: &[&str] = match features::no_scheduler() {
        None => &["--package", "commensal-sched", "--package", "commensal-sched-bpf"],
        Some(why) => {
            tally.skip(format!("commensal-sched: {why}"));
            &[]
        }
    };
    let tools = [&tools, sched].concat();
    for (what, which) in [
        ("tests of the tools and the scheduler", &tools[..]),
        ("tests of the host with its fault layer", &WITH_FAULTS),
        ("tests of the SQL engine", &["--package", SQL]),
    ] {
        step(what);
        tally.add(runner::run(&artifact::tests(which)?, DEFAULT, filters, &SEEDED)?);
    }
    Ok(tally.on(&here(), None))
}

/// Runs the tests of a tier in all packages, and confirms each failure.
fn confirmed(profile: &str, args: &Args) -> anyhow::Result<Tally> {
    let variables: &[_] = if args.long { &LONG } else { &[] };
    let mut tally = Tally::default();
    for (what, which) in packages() {
        step(what);
        let programs = artifact::tests(&which)?;
        let mut ran = runner::run(&programs, profile, &args.filters, variables)?;
        confirm::failures(&mut ran, &programs, &which)?;
        tally.add(ran);
    }
    Ok(tally.on(&here(), None))
}

/// The packages whose tests are built together, with cargo's arguments.
fn packages() -> [(&'static str, Vec<&'static str>); 2] {
    let most =
        [&["--workspace", "--exclude", SQL], &features::OF_TESTS[..], features::without_scheduler()].concat();
    [("tests", most), ("tests of the SQL engine", vec!["--package", SQL])]
}

fn guests(long: bool) -> anyhow::Result<Tally> {
    step("kernels");
    vm::kernels(long)
}

/// Runs the chaos soak; a seed of 0 stands for a new one.
fn chaos(seed: u64, long: bool) -> anyhow::Result<Tally> {
    let new =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |now| now.as_secs());
    let seed = if seed == 0 { new() } else { seed }.to_string();
    let length = if long { CHAOS.1 } else { CHAOS.0 };
    step(&format!("chaos with seed {seed} for {length}"));
    let mut soak = vec!["soak", "--chaos", "--for", length, "--seed", &seed];
    if !long {
        soak.push("--quick");
    }
    let mut tally = Tally::default();
    soaked(&mut tally, "the chaos soak", &soak)?;
    Ok(tally)
}

fn soaked(tally: &mut Tally, what: &str, args: &[&str]) -> anyhow::Result<()> {
    let status = devtools::status(args)?;
    if status.code() == Some(i32::from(SKIPPED)) {
        tally.skip(format!("{what}: it cannot run on this machine"));
    } else {
        tally.test(what, status.success(), &[]);
    }
    Ok(())
}

/// Runs all tests of all tiers; with `--long` also those that take long.
fn everything(args: &Args) -> anyhow::Result<Tally> {
    let (long, filters) = (args.long, &args.filters);
    let mut tally = Tally::default();
    tally.add(gate(filters)?);
    tally.add(workspace(filters)?);
    for profile in ["measure", "external"] {
        tally.add(confirmed(profile, args)?);
    }
    // Every test was looked at in its own tier.
    tally.elsewhere = 0;
    if !filters.is_empty() {
        return Ok(tally);
    }
    step("`cargo run` starts the program commensal");
    runs_the_program()?;
    tally.add(chaos(1, long)?);
    tally.add(guests(long)?);
    if long {
        step("a soak of the agent");
        soaked(&mut tally, "the soak of the agent", &["soak", "--for", CHAOS.1])?;
        step("a whole quickstart");
        tally.long_run(quickstart()?);
    }
    Ok(tally)
}

/// All tests, for `cargo xtask ci --long`.
pub fn all_and_long() -> anyhow::Result<Tally> {
    everything(&Args { tier: Tier::default(), long: true, filters: Vec::new() })
}

/// The gate draws the same random numbers in every run; other tiers draw new ones.
const SEEDED: [(&str, &str); 1] = [("PROPTEST_RNG_SEED", "1")];
/// Environment variables with which the long form makes tests do more.
const LONG: [(&str, &str); 4] = [
    ("PROPTEST_CASES", "2000"),
    ("COMMENSAL_SCENARIOS", "6x2"),
    ("COMMENSAL_KILL_ROUNDS", "200"),
    ("COMMENSAL_MOTO", "1"),
];

fn here() -> String {
    format!("machine {}", running_release())
}

/// All test programs of the workspace whose tests' names contain one of the filters, with those names.
pub fn named(filters: &[String]) -> anyhow::Result<Vec<(Artifact, String)>> {
    let mut found = Vec::new();
    // The default members are built as the gate builds them; the SQL engine only if nothing is found before.
    let sets: [&[&str]; 3] = [&FAKE, &["--package", "xtask", "--package", "devtools"], &["--package", SQL]];
    for which in sets {
        for program in artifact::tests(which)? {
            for name in runner::names(&program)? {
                if filters.iter().any(|filter| name.contains(filter.as_str())) {
                    found.push((program.clone(), name));
                }
            }
        }
        if !found.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// Checks the command that README recommends first, `cargo run` at the top of the tree. The default members contain a
/// second program, so cargo needs a manifest entry to choose one. The command enables the same features as the tests,
/// so that cargo rebuilds as few dependencies as possible.
fn runs_the_program() -> anyhow::Result<()> {
    let mut command = crate::tree::cargo();
    command.args(["run", "--quiet"]).args(features::OF_TESTS).args(["--", "--version"]);
    let output = command.current_dir(root()).stderr(Stdio::inherit()).output().context("cargo run")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let wanted = concat!("commensal ", env!("CARGO_PKG_VERSION"), "\n");
    if !output.status.success() || said != wanted {
        bail!("`cargo run -- --version` at the top of the tree prints {said:?} instead of {wanted:?}");
    }
    print!("{said}");
    Ok(())
}

/// Runs README's first command, with more rounds and another record file, so that a user's record is kept.
fn quickstart() -> anyhow::Result<Option<i32>> {
    let mut command = crate::tree::cargo();
    command.args(QUICKSTART.split(' ').skip(1));
    command.args(["--rounds", "12", "--out"]).arg(root().join("target/run.json"));
    Ok(command.current_dir(root()).status()?.code())
}

/// Prints a duration in whole seconds or minutes.
pub fn spoken(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_line_asks_for_one_tier() {
        let read = |words: &[&str]| Line::try_parse_from([&["test"], words].concat()).map(|line| line.args);
        assert_eq!(read(&["--chaos", "lab::"]).unwrap().tier.chaos, Some(0));
        assert_eq!(read(&["--chaos=7"]).unwrap().tier.chaos, Some(7));
        assert_eq!(read(&["lab::", "--measure"]).unwrap().filters, ["lab::"]);
        assert!(read(&["--measure", "--external"]).is_err());
    }

    #[test]
    fn the_quickstart_is_the_one_that_readme_tells() {
        let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
        assert!(readme.lines().any(|line| line.starts_with(&format!("$ {QUICKSTART} "))));
        assert!(QUICKSTART.starts_with("cargo "));
    }
}
