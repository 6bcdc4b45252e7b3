//! The hidden commands that the lab starts as child processes.

use super::args::WorkloadVerb;
use crate::context::Context;
use commensal_density::work::CellOptions;
use commensal_host::LinuxHost;
use commensal_lab::site::keep_watch;
use commensal_lab::workload::antagonist::{self, AntagonistOptions};
use commensal_lab::workload::burn::{self, BurnOptions, CHUNK_ITERATIONS};
use commensal_lab::workload::http::{self, HttpOptions};
use commensal_lab::workload::pulse::{self, PulseOptions};
use commensal_lab::workload::responder::{self, ResponderOptions};
use commensal_lab::workload::steal;
use signal_hook::consts::SIGTERM;
use signal_hook::flag::register_conditional_shutdown;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Thaws the cgroups that a killed lab run left frozen.
pub fn thaw_guard(context: &mut Context) -> anyhow::Result<u8> {
    keep_watch(&mut context.host, &context.state_dir, &mut std::io::stdin())?;
    Ok(0)
}

/// Runs a built-in workload until it is killed.
pub fn run(verb: &WorkloadVerb) -> anyhow::Result<u8> {
    match verb {
        WorkloadVerb::Http { port, workers } => http::serve(HttpOptions { port: *port, workers: *workers })?,
        WorkloadVerb::Responder { port, stall_ms, stall_every_s } => {
            responder::serve(ResponderOptions {
                port: *port,
                stall: Duration::from_millis(*stall_ms),
                every: Duration::from_secs(*stall_every_s),
            })?;
        }
        WorkloadVerb::Antagonist { kind, threads, size, dir, seconds } => {
            antagonist::run(AntagonistOptions {
                kind: *kind,
                threads: *threads,
                size: *size,
                dir: dir.clone(),
                duration: seconds.map(Duration::from_secs),
                counter: Some(burn::stdin_counter()?),
            })?;
        }
        WorkloadVerb::Cell { barrier, stream, cell, vcpu, sessions, work, timeout_ms } => {
            commensal_density::work::run(CellOptions {
                barrier: *barrier,
                stream: *stream,
                cell: *cell,
                vcpu: *vcpu,
                sessions: *sessions,
                work: *work,
                timeout: Duration::from_millis(*timeout_ms),
            })?;
        }
        WorkloadVerb::ThawGuard => anyhow::bail!("thaw-guard needs a state directory"),
        WorkloadVerb::Burn { threads, handle_sigterm } => {
            if *handle_sigterm {
                register_conditional_shutdown(SIGTERM, 0, Arc::new(AtomicBool::new(true)))?;
            }
            let counter = Some(burn::stdin_counter()?);
            burn::run(BurnOptions {
                threads: *threads,
                chunk_iterations: CHUNK_ITERATIONS,
                duration: None,
                counter,
            })?;
        }
        WorkloadVerb::Steal { ms_per_s, seed } => {
            steal::run(*ms_per_s, *seed, &|| Box::new(LinuxHost::new()))?;
        }
        WorkloadVerb::Pulse { threads, period_us, work_us, seed, seconds } => {
            pulse::run(PulseOptions {
                threads: *threads,
                period: Duration::from_micros(*period_us),
                work: Duration::from_micros(*work_us),
                seed: *seed,
                duration: seconds.map(Duration::from_secs),
            })?;
        }
    }
    Ok(0)
}
