//! A flag that Ctrl-C and SIGTERM set, and the signals that `run` forwards.

use commensal_host::Host;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Returns a flag that SIGINT, SIGTERM and SIGHUP set. A second signal terminates the program immediately: the journal
/// is on disk, and child workloads die with the program. Signals that were ignored at start (nohup) stay ignored.
pub fn stop_flag(host: &dyn Host) -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in not_ignored(host, &[SIGINT, SIGTERM, SIGHUP]) {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Returns the signals among `signals` that were not ignored when this program started. Signals that were ignored
/// (nohup, a background job of a script) stay ignored for this program, and for a command that it starts and that
/// inherits this. Must be called before any handler is registered.
pub fn not_ignored(host: &dyn Host, signals: &[i32]) -> Vec<i32> {
    let status = host.read_file(Path::new("/proc/self/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    signals.iter().copied().filter(|signal| mask >> (signal - 1) & 1 == 0).collect()
}
