//! How to run an experiment, and what is told of it meanwhile.

use super::beside::Beside;
use crate::record::{KnownHarm, Run};
use crate::site::Testbed;
use std::path::PathBuf;

/// Options of a run on this machine.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// This program: its hidden verbs are the built-in workloads.
    pub program: PathBuf,
    /// Where the journal is.
    pub state_dir: PathBuf,
    /// Name of the scratch group in which knobs are tried before the run.
    pub probe_name: String,
    /// Cgroup below which the run's cgroups are created, if the user chose one.
    pub cgroup_root: Option<commensal_core::actual::CgroupPath>,
    /// Port of the service; 0 is any free one.
    pub port: u16,
    /// Whether the wait probe is used.
    pub blame: bool,
    /// Command line, for the record.
    pub args: Vec<String>,
    /// Version, for the record.
    pub version: String,
    /// Versions of the programs of the experiment, for the record.
    pub programs: Vec<(String, String)>,
    /// Record of an interrupted run of this experiment, to be continued.
    pub earlier: Option<Run>,
    /// Arms of short windows in which the built-in service adds a known delay.
    pub harms: Vec<KnownHarm>,
    /// A process outside the experiment that runs as long as the run does.
    pub beside: Option<Beside>,
}

/// Progress, for display and for saving the record as the run goes on.
#[derive(Debug)]
pub enum Event<'a> {
    /// The testbed is ready; it also tells what was cleaned up.
    Ready(&'a Testbed),
    /// A block begins.
    Block {
        /// Blocks done.
        done: usize,
        /// Blocks in all.
        total: usize,
        /// Round from 1.
        round: u32,
    },
    /// A block is recorded.
    Recorded(&'a Run),
    /// The highest rate that the service sustains alone was measured: requests per second.
    Knee(f64),
    /// The run is over, whatever the outcome; lists what it created and could not remove, which `commensal restore`
    /// will retry.
    Closed(&'a [String]),
}
