//! Options of `lab baseline` and `lab history`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `commensal lab baseline`.
#[derive(Debug, Args)]
pub struct LabBaseline {
    /// The subcommand.
    #[command(subcommand)]
    pub verb: BaselineVerb,
}

/// `commensal lab baseline …`.
#[derive(Debug, Subcommand)]
pub enum BaselineVerb {
    /// List the baselines.
    ///
    /// Example: commensal lab baseline list
    ///
    /// Exit status 0: all can be read; 2: one cannot be read.
    List,
    /// Show the run of a baseline.
    ///
    /// Example: commensal lab baseline show main
    Show {
        /// Name of the baseline.
        name: String,
    },
    /// Store a recorded run under a name, replacing an existing one.
    ///
    /// Example: commensal lab baseline save main run.json
    Save {
        /// Name of the baseline: letters, digits, dots, dashes and underscores.
        name: String,
        /// A run.json.
        file: PathBuf,
    },
    /// Remove a baseline.
    ///
    /// Example: commensal lab baseline rm main
    Rm {
        /// Name of the baseline.
        name: String,
    },
}

/// `commensal lab history`.
#[derive(Debug, Args)]
pub struct LabHistory {
    /// Experiments whose runs to show, or records (run.json) instead of the history [default: all runs in the history].
    #[arg(value_name = "EXPERIMENT|FILE")]
    pub what: Vec<String>,

    /// Also write a page with charts.
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
