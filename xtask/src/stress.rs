//! `cargo xtask stress`: runs tests many times beside work that takes the CPUs away from them. A test of the gate has to
//! survive it; most tests that fail once in a hundred runs fail here within minutes.

use crate::noise::{Kind, Noise};
use crate::runner::{self, ledger};
use crate::{interrupt, test};
use anyhow::bail;
use std::collections::BTreeMap;
use std::time::Instant;

/// Options of the stress command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run the tests whose names contain one of these.
    #[arg(required = true)]
    tests: Vec<String>,
    /// Number of runs of each test.
    #[arg(long, default_value_t = 50)]
    times: usize,
    /// What runs beside the tests: busy:N is N spinners at normal weight, steal:MS takes all CPUs away for that time of
    /// every second (as root).
    #[arg(long, value_name = "KIND:AMOUNT", value_delimiter = ',', default_value = "busy:2,steal:350")]
    beside: Vec<Kind>,
}

/// Runs the tests, and fails if one of them failed once.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let tests = test::named(&args.tests)?;
    if tests.is_empty() {
        bail!("no test has a name that contains {}", args.tests.join(" or "));
    }
    interrupt::watch()?;
    let noise = Noise::start(&args.beside)?;
    let (begun, stolen) = (Instant::now(), ledger::stolen());
    let (mut passed, mut failed) = (0, 0);
    println!("{} tests, {} runs each", tests.len(), args.times);
    for (program, name) in &tests {
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        let started = Instant::now();
        for _ in 0..args.times {
            if interrupt::interrupted() {
                bail!("interrupted");
            }
            if let Some(why) = runner::once(program, name)? {
                *reasons.entry(why).or_default() += 1;
            }
        }
        let count: usize = reasons.values().sum();
        let survived = args.times - count;
        let took = test::spoken(started.elapsed());
        println!("{survived} of {} passed in {took}: {} {name}", args.times, program.package);
        for (why, count) in reasons {
            println!("    {count} times: {why}");
        }
        if count == 0 { passed += 1 } else { failed += 1 }
    }
    drop(noise);
    let per_second = (ledger::stolen() - stolen) * 1e3 / begun.elapsed().as_secs_f64();
    println!("the hypervisor took {per_second:.0} ms per second meanwhile");
    println!("{passed} passed, {failed} failed, 0 skipped");
    if failed > 0 {
        bail!("{failed} tests did not survive");
    }
    Ok(())
}
