//! The options of a run, and the events that a run reports.
//!
//! A run compares arms, that is, conditions such as the service alone or next to offline work. A block measures one arm
//! once; a round measures every arm once. The record is the file with the results of a run.

use super::neighbour::Neighbour;
use crate::record::{KnownHarm, Run};
use crate::site::Testbed;
use std::path::PathBuf;
use std::time::Duration;

/// Options of a run on this machine.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Path of this program, which also contains the built-in workloads as hidden subcommands.
    pub program: PathBuf,
    /// Directory that holds the journal (the original values for the undo), the lock and the run's own files.
    pub state_dir: PathBuf,
    /// Name of the temporary cgroup in which the run tries control files before it starts.
    pub probe_name: String,
    /// Cgroup in which the run creates its cgroups, if the user chose one.
    pub cgroup_root: Option<commensal_core::actual::CgroupPath>,
    /// Port of the service; 0 for any free port.
    pub port: u16,
    /// Whether to attach the BPF probe that measures how long the service waited for a CPU, and which programs ran
    /// meanwhile.
    pub blame: bool,
    /// The command line, stored in the record.
    pub args: Vec<String>,
    /// The version of commensal, stored in the record.
    pub version: String,
    /// Names and versions of the experiment's programs, stored in the record.
    pub programs: Vec<(String, String)>,
    /// The record of an interrupted run of this experiment, which this run continues.
    pub earlier: Option<Run>,
    /// Arms in which the built-in service delays its responses by a known time; such arms need short windows.
    pub harms: Vec<KnownHarm>,
    /// A process outside the experiment that runs on the machine during the run.
    pub beside: Option<Neighbour>,
}

/// Progress events, with which the caller shows progress and saves the record during the run.
#[derive(Debug)]
pub enum Event<'a> {
    /// The cgroups of the run are ready; [`Testbed::cleaned`] lists the changes of earlier, killed runs that this run
    /// has undone.
    Ready(&'a Testbed),
    /// A block starts; in a run with short windows, a round starts.
    Block {
        /// Number of finished blocks (or rounds).
        done: usize,
        /// Total number of blocks (or rounds).
        total: usize,
        /// Number of the round, starting at 1.
        round: u32,
        /// How long the run still takes by its plan, if it keeps one up to date.
        left: Option<Duration>,
    },
    /// The run has recorded a block.
    Recorded(&'a Run),
    /// The run has measured the highest rate that the service sustains alone (requests per second).
    Knee(f64),
    /// The run has finished, successfully or not. Lists what the run created and could not remove; `commensal restore`
    /// retries the removal.
    Closed(&'a [String]),
}
