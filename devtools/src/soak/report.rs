//! The report and the record of a chaos soak.

use super::chaos::Chaos;
use super::options::Args;
use anyhow::Context;
use std::io::Write;
use std::time::Duration;

/// Statistics of a chaos soak.
#[derive(Debug, Default)]
pub struct Figures {
    pub rounds: u64,
    /// Number of agents started.
    pub agents: u64,
    /// Number of started agents that did not reach their first tick because of a full disk or a failed call.
    pub not_started: u64,
    pub restores: u64,
    /// Number of calms at whose end the agent reported why the groups file was not in force.
    pub waited: u64,
    /// Time in s from each death of the agent to the safe state.
    pub safe: Vec<f64>,
    calm: Vec<f64>,
}

impl Figures {
    pub fn safe(&mut self, took: Duration) {
        self.safe.push(took.as_secs_f64());
    }

    pub fn calmed(&mut self, took: Duration) {
        self.calm.push(took.as_secs_f64());
    }

    pub fn longest_safe_s(&self) -> Option<f64> {
        self.safe.iter().copied().max_by(f64::total_cmp)
    }

    pub fn longest_calm_s(&self) -> Option<f64> {
        self.calm.iter().copied().max_by(f64::total_cmp)
    }
}

/// Prints the report and writes the record.
pub fn print(chaos: &Chaos, args: &Args) -> anyhow::Result<()> {
    let figures = &chaos.figures;
    println!("\n{:.1} minutes of chaos, seed {}, {} rounds", chaos.at() / 60.0, chaos.seed, figures.rounds);
    println!("events");
    for (what, count) in &chaos.churn.counts {
        println!("{count:>8} {what}");
    }
    println!("injected faults of calls");
    for (what, count) in &chaos.with.faults() {
        println!("{count:>8} {what}");
    }
    chaos.with.skipped.iter().for_each(|why| println!("skipped: {why}"));
    println!(
        "{:>8} agents started, {} of them ended before the groups were in force (disk full or read-only, calls that \
         fail)",
        figures.agents, figures.not_started
    );
    println!(
        "{:>8} safe states after the agent's death, the longest {:.2} s",
        figures.safe.len(),
        figures.longest_safe_s().unwrap_or_default()
    );
    println!("{:>8} restores compared with the start", figures.restores);
    println!(
        "{:>8} calms waited for a refused step; the longest time until the groups file was in force {:.1} s",
        figures.waited,
        figures.longest_calm_s().unwrap_or_default()
    );
    println!("{:>8} checks of every invariant", chaos.holds.checks);
    println!("{:>8} violations", chaos.violations.len());
    for one in &chaos.violations {
        println!("{:>8.1} s, seed {}: {}: {}", one.at_s, chaos.seed, one.invariant, one.what);
        one.faults.iter().for_each(|fault| println!("           fault before: {fault}"));
    }
    if let Some(path) = &args.record {
        let mut file = std::fs::File::create(path).context("cannot create the record file")?;
        writeln!(file, "{}", chaos.summary())?;
    }
    Ok(())
}
