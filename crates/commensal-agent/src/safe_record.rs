//! The record of the last time that the machine was put into its safe state. It is kept in the state directory, and the
//! next agent shows it.

use crate::snapshot::LastSafeState;
use commensal_core::text;
use commensal_host::Host;
use commensal_reconcile::SafeState;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Name of the record in the state directory.
pub const FILE: &str = "safe-state.last";
/// Maximum number of failures that are recorded with a message.
const TOLD: usize = 20;
/// Maximum size of the record in bytes: far more than [`TOLD`] messages need.
const MOST_BYTES: u64 = 1 << 20;

/// Records the result and the reason. If the state directory cannot be written, there is no record; the calling program
/// prints failures as well.
pub fn record(host: &mut dyn Host, state_dir: &Path, why: &str, took: Duration, state: &SafeState) {
    let last = LastSafeState {
        at: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
        why: why.to_owned(),
        took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        held: state.held,
        failures: state.failed.len(),
        failed: state.failed.iter().take(TOLD).cloned().collect(),
    };
    let _ = text::json(&last).map(|text| host.state_replace(&state_dir.join(FILE), &text));
}

/// Reads the record; `None` if there is none or it is invalid.
pub fn read(host: &mut dyn Host, state_dir: &Path) -> Option<LastSafeState> {
    let text = host.state_read_within(&state_dir.join(FILE), MOST_BYTES).ok()??;
    let last: LastSafeState = serde_json::from_str(&text).ok()?;
    Some(last).filter(|last| !last.at.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::errno::Errno;
    use commensal_host::fake::FakeHost;

    #[test]
    fn a_record_is_read_back_and_anything_else_is_none() {
        let (mut host, dir) = (FakeHost::v1(4, 1 << 30), Path::new("/run/commensal"));
        assert_eq!(read(&mut host, dir), None);
        host.state_dir(dir).unwrap();
        let failed: Vec<String> = (0..30).map(|n| format!("cpu:/etl cpu.shares {n}: EIO")).collect();
        let state = SafeState { held: 7, written: 3, failed };
        record(&mut host, dir, "the agent died", Duration::from_millis(12), &state);
        let last = read(&mut host, dir).unwrap();
        assert_eq!((last.why.as_str(), last.took_ms, last.held), ("the agent died", 12, 7));
        assert_eq!((last.failures, last.failed.len()), (30, TOLD));
        host.fail_write(1, Errno::ENOSPC);
        record(&mut host, dir, "the agent ended", Duration::ZERO, &SafeState::default());
        assert_eq!(read(&mut host, dir).unwrap(), last, "a full disk loses no record");
        host.set_size(dir.join(FILE), MOST_BYTES + 1);
        assert_eq!(read(&mut host, dir), None, "too large");
        host.set_size(dir.join(FILE), MOST_BYTES);
        assert_eq!(read(&mut host, dir).unwrap(), last);
        for text in ["", "{", "[]", "\u{0}"] {
            host.state_replace(&dir.join(FILE), text).unwrap();
            assert_eq!(read(&mut host, dir), None, "{text:?}");
        }
    }
}
