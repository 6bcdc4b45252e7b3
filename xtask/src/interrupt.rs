//! Signals that stop xtask. After such a signal, xtask first terminates its child processes and removes temporary
//! files.

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Whether a stop signal arrived since [`watch`].
static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Installs the handlers: from now on a stop signal only sets the flag and does not terminate xtask immediately.
pub fn watch() -> anyhow::Result<()> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("cannot watch for signals")?;
    }
    Ok(())
}

/// Whether a stop signal has arrived.
pub fn interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}
