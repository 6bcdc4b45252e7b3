//! Ctrl-C and SIGTERM as a flag, and the signals that `run` forwards.

use commensal_host::Host;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A flag set by SIGINT, SIGTERM and SIGHUP. A second signal ends the program at once: the journal is on disk and child
/// workloads die with it. Signals that the parent ignores (nohup) stay ignored.
pub fn stop_flag(host: &dyn Host) -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in not_ignored(host, &[SIGINT, SIGTERM, SIGHUP]) {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Those of `signals` that the parent did not set to ignored (nohup, a background job of a script). Ignored ones stay
/// so, for this program and for a command, which inherits that. Must be called before any handler is registered.
pub fn not_ignored(host: &dyn Host, signals: &[i32]) -> Vec<i32> {
    let status = host.read_file(Path::new("/proc/self/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    signals.iter().copied().filter(|signal| mask >> (signal - 1) & 1 == 0).collect()
}
