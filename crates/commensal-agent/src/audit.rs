//! The audit log: one line of JSON per write and decision, appended and never changed. `audit.log` is renamed to
//! `audit.log.1` when it is full, so both together are bounded.
//!
//! The loop hands lines over to a thread that writes them, because the disk may be slow, possibly because of offline
//! work. Lines that are lost because the disk or the queue is full are counted, and reported in the log itself once it
//! accepts lines again.

use crate::snapshot::Action;
use commensal_host::{Host, HostError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Bytes of one file: about 40,000 lines. Two of them are kept.
pub const MAX_BYTES: u64 = 8 << 20;
/// Maximum number of batches (ticks) that wait for the disk.
const BATCHES: usize = 256;

/// The log's file and its count of lost lines. Independent of threads.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    max_bytes: u64,
    len: u64,
    /// Lines lost since the start, and those of them not yet reported in the log.
    lost: u64,
    untold: u64,
    refused: Option<HostError>,
}

impl AuditLog {
    /// Opens the log at `path`, in an existing directory, to append to it. `max_bytes` is the limit of each of the two
    /// files.
    #[must_use]
    pub fn open(host: &mut dyn Host, path: &Path, max_bytes: u64) -> AuditLog {
        let (text, refused) = match host.state_read(path) {
            Ok(text) => (text.unwrap_or_default(), None),
            Err(error) => (String::new(), Some(error)),
        };
        AuditLog { path: path.to_owned(), max_bytes, len: text.len() as u64, lost: 0, untold: 0, refused }
    }

    /// Appends one line per action; lines that the disk refuses leave no partial line behind.
    pub fn append(&mut self, host: &mut dyn Host, actions: &[Action]) {
        let mut rest = actions;
        while let Some(first) = rest.first() {
            let mut text = self.told(first);
            let mut taken = 0;
            for action in rest {
                let line = line(action);
                if taken > 0 && (text.len() + line.len()) as u64 > self.max_bytes {
                    break;
                }
                text += &line;
                taken += 1;
            }
            match self.write(host, &text) {
                Ok(()) => (self.untold, self.refused) = (0, None),
                Err(error) => {
                    self.refused = Some(error);
                    self.lose(rest.len() as u64);
                    return;
                }
            }
            rest = &rest[taken..];
        }
    }

    /// The line that reports lost lines.
    fn told(&self, next: &Action) -> String {
        if self.untold == 0 {
            return String::new();
        }
        let because = self.refused.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
        line(&Action {
            at: next.at.clone(),
            what: "audit log".to_owned(),
            why: format!("{} lines before this one were lost{because}", self.untold),
            ..Action::default()
        })
    }

    /// Counts lines that were lost before they reached the log.
    pub fn lose(&mut self, lines: u64) {
        self.lost += lines;
        self.untold += lines;
    }

    fn write(&mut self, host: &mut dyn Host, text: &str) -> Result<(), HostError> {
        let more = text.len() as u64;
        if self.len > 0 && self.len + more > self.max_bytes {
            let mut old = self.path.clone().into_os_string();
            old.push(".1");
            match host.state_rename(&self.path, Path::new(&old)) {
                // The file was removed by another program: start a new one.
                Err(error) if error.errno != commensal_core::errno::Errno::ENOENT => return Err(error),
                _ => self.len = 0,
            }
        }
        host.state_append(&self.path, text)?;
        self.len += more;
        Ok(())
    }

    /// Lines lost since the start.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Why lines are being lost now, as a sentence for [`crate::snapshot::Snapshot::problems`].
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if self.untold == 0 {
            return None;
        }
        let because = match &self.refused {
            Some(error) => format!("{error}; make room there, the groups stay in force meanwhile"),
            None => "the disk is slower than what is decided".to_owned(),
        };
        Some(format!("the audit log {} has lost {} lines: {because}", self.path.display(), self.lost))
    }
}

fn line(action: &Action) -> String {
    // Plain strings cannot fail to become JSON.
    let mut text = commensal_core::text::json(action).unwrap_or_default();
    text.push('\n');
    text
}

/// The writer thread, and the loop's handle to it.
#[derive(Debug)]
pub struct Audit {
    lines: Option<SyncSender<Vec<Action>>>,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// Lines lost because the queue was full; the thread adds them to the log's count.
    dropped: AtomicU64,
    lost: AtomicU64,
    problem: Mutex<Option<String>>,
}

impl Audit {
    /// Starts the thread with a separate host.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(host: Box<dyn Host + Send>, path: &Path, max_bytes: u64) -> std::io::Result<Audit> {
        let (lines, queue) = sync_channel(BATCHES);
        let state = Arc::new(State::default());
        let (shared, path) = (Arc::clone(&state), path.to_owned());
        let thread = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || keep(host, &path, max_bytes, &queue, &shared))?;
        Ok(Audit { lines: Some(lines), state, thread: Some(thread) })
    }

    /// Hands lines over. Never blocks: when too many wait for the disk, these are lost and counted.
    pub fn record(&self, actions: Vec<Action>) {
        let Some(lines) = self.lines.as_ref().filter(|_| !actions.is_empty()) else { return };
        if let Err(TrySendError::Full(actions) | TrySendError::Disconnected(actions)) =
            lines.try_send(actions)
        {
            self.state.dropped.fetch_add(actions.len() as u64, Ordering::Relaxed);
        }
    }

    /// Lines lost since the start, for [`crate::snapshot::Cost::audit_lost`].
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.state.lost.load(Ordering::Relaxed) + self.state.dropped.load(Ordering::Relaxed)
    }

    /// Why lines are being lost now.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let problem = self.state.problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let dropped = self.state.dropped.load(Ordering::Relaxed);
        problem.or_else(|| {
            (dropped > 0).then(|| format!("the audit log has lost {dropped} lines: its disk takes too long"))
        })
    }
}

impl Drop for Audit {
    /// Waits until all lines that were handed over are on disk.
    fn drop(&mut self) {
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn keep(
    mut host: Box<dyn Host + Send>,
    path: &Path,
    max_bytes: u64,
    queue: &Receiver<Vec<Action>>,
    state: &State,
) {
    let mut log = AuditLog::open(host.as_mut(), path, max_bytes);
    while let Ok(mut actions) = queue.recv() {
        // One fsync for everything that waits.
        actions.extend(queue.try_iter().take(BATCHES).flatten());
        let dropped = state.dropped.load(Ordering::Relaxed);
        log.lose(dropped);
        log.append(host.as_mut(), &actions);
        // Better counted twice for a moment than not at all.
        state.lost.store(log.lost(), Ordering::Relaxed);
        state.dropped.fetch_sub(dropped, Ordering::Relaxed);
        *state.problem.lock().unwrap_or_else(PoisonError::into_inner) = log.problem();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    const PATH: &str = "/state/audit.log";

    fn action(n: u32) -> Action {
        Action {
            at: "2026-11-22T06:00:00Z".to_owned(),
            group: Some("etl".to_owned()),
            what: "/etl cpu.max".to_owned(),
            old: Some("max".to_owned()),
            new: Some(n.to_string()),
            why: "online needs \"more\"\nnow".to_owned(),
            reason: None,
        }
    }

    fn host() -> FakeHost {
        let mut host = FakeHost::v2(2, 1 << 30);
        host.state_dir(Path::new("/state")).unwrap();
        host
    }

    fn lines(host: &mut FakeHost, path: &str) -> Vec<Action> {
        let text = host.state_read(Path::new(path)).unwrap().unwrap_or_default();
        assert!(text.is_empty() || text.ends_with('\n'), "{text}");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_line_per_action_goes_on_after_a_restart() {
        let mut host = host();
        AuditLog::open(&mut host, Path::new(PATH), MAX_BYTES).append(&mut host, &[action(1), action(2)]);
        AuditLog::open(&mut host, Path::new(PATH), MAX_BYTES).append(&mut host, &[action(3)]);
        assert_eq!(lines(&mut host, PATH), [action(1), action(2), action(3)]);
    }

    // promise 34
    #[test]
    fn both_files_stay_within_their_bound() {
        let mut host = host();
        let (one, bound) = (line(&action(1_000)).len() as u64, 10 * line(&action(1_000)).len() as u64);
        let mut log = AuditLog::open(&mut host, Path::new(PATH), bound);
        for n in 1_000..1_095 {
            log.append(&mut host, &[action(n)]);
            for path in [PATH, "/state/audit.log.1"] {
                let len = host.state_read(Path::new(path)).unwrap().unwrap_or_default().len() as u64;
                assert!(len <= bound, "{path}: {len}");
            }
        }
        assert_eq!((log.len, log.lost()), (5 * one, 0));
        // The newest ones, in order, without a gap.
        let mut all = lines(&mut host, "/state/audit.log.1");
        all.extend(lines(&mut host, PATH));
        assert_eq!(all, (1_080..1_095).map(action).collect::<Vec<_>>());
    }

    // promise 34
    #[test]
    fn one_batch_can_be_more_than_a_file() {
        let mut host = host();
        let bound = 10 * line(&action(1_000)).len() as u64;
        let mut log = AuditLog::open(&mut host, Path::new(PATH), bound);
        log.append(&mut host, &(1_000..1_025).map(action).collect::<Vec<_>>());
        let mut all = lines(&mut host, "/state/audit.log.1");
        all.extend(lines(&mut host, PATH));
        assert_eq!(all, (1_010..1_025).map(action).collect::<Vec<_>>());
    }

    // promise 34
    #[test]
    fn a_full_disk_loses_lines_and_tells() {
        let mut host = host();
        let mut log = AuditLog::open(&mut host, Path::new(PATH), MAX_BYTES);
        log.append(&mut host, &[action(1)]);
        host.state_full(true);
        log.append(&mut host, &[action(2), action(3)]);
        log.append(&mut host, &[action(4)]);
        assert_eq!(log.lost(), 3);
        let told = log.problem().unwrap();
        assert!(told.contains("lost 3 lines") && told.contains("no space left"), "{told}");
        host.state_full(false);
        log.append(&mut host, &[action(5)]);
        assert_eq!((log.lost(), log.problem()), (3, None));
        let all = lines(&mut host, PATH);
        assert_eq!((&all[0], &all[2]), (&action(1), &action(5)));
        assert!(all[1].why.starts_with("3 lines before this one were lost"), "{all:?}");
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn the_thread_writes_all_that_was_handed_over() {
        let host = host();
        let audit = Audit::start(Box::new(host.another()), Path::new(PATH), MAX_BYTES).unwrap();
        for n in 0..100 {
            audit.record(vec![action(n)]);
        }
        drop(audit);
        assert_eq!(lines(&mut host.another(), PATH), (0..100).map(action).collect::<Vec<_>>());
    }

    /// The disk hangs: the loop goes on, and lines that do not fit into the queue are counted.
    // promise 34
    #[test]
    fn a_disk_that_hangs_never_stops_the_loop() {
        let (lines, queue) = sync_channel(BATCHES);
        let audit = Audit { lines: Some(lines), state: Arc::default(), thread: None };
        for n in 0..1_000 {
            audit.record(vec![action(n), action(n)]);
        }
        assert_eq!(audit.lost(), 2 * (1_000 - BATCHES as u64));
        assert!(audit.problem().unwrap().contains("1488 lines"));
        // The disk works again.
        let (state, host) = (Arc::clone(&audit.state), host());
        drop(audit);
        keep(Box::new(host.another()), Path::new(PATH), MAX_BYTES, &queue, &state);
        let all = self::lines(&mut host.another(), PATH);
        assert_eq!(all.len(), 1 + 2 * BATCHES);
        assert!(all[0].why.starts_with("1488 lines before this one were lost"), "{:?}", all[0]);
        assert_eq!(state.lost.load(Ordering::Relaxed), 1_488);
        assert_eq!(state.problem.lock().unwrap().as_deref(), None);
    }
}
