//! The hidden verbs that the lab starts as child processes.

use super::WorkloadVerb;
use commensal_lab::workload::burn::{self, BurnOptions, CHUNK_ITERATIONS};
use commensal_lab::workload::http::{self, HttpOptions};

/// Runs a built-in workload until it is killed.
pub fn run(verb: &WorkloadVerb) -> anyhow::Result<u8> {
    match verb {
        WorkloadVerb::Http { port, workers } => http::serve(HttpOptions { port: *port, workers: *workers })?,
        WorkloadVerb::Burn { threads } => {
            let counter = Some(burn::stdin_counter()?);
            burn::run(BurnOptions {
                threads: *threads,
                chunk_iterations: CHUNK_ITERATIONS,
                duration: None,
                counter,
            })?;
        }
    }
    Ok(0)
}
