//! The audit log: one JSON line per action (write or decision); lines are appended and never changed. A full
//! `audit.log` is renamed to `audit.log.1`, so that the total size is bounded.
//!
//! The loop passes lines to a thread that writes them, because the disk may be slow, possibly because of offline work.
//! If the disk or the queue is full, lines are lost and counted. As soon as the log can be written again, a line in it
//! reports their number.

use crate::snapshot::Action;
use commensal_core::errno::Errno;
use commensal_host::{Host, HostError, LinuxHost};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Name of the log in the state directory.
const FILE: &str = "audit.log";
/// Maximum size of one of the two files in bytes: about 40,000 lines.
pub const MAX_BYTES: u64 = 8 << 20;
/// Maximum number of batches that wait for the disk; a tick writes one batch.
const BATCHES: usize = 256;

/// The log's file and its count of lost lines. Uses no threads.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    max_bytes: u64,
    len: u64,
    /// Number of lines lost since the start.
    lost: u64,
    /// Number of lost lines that no line in the log reports yet.
    untold: u64,
    refused: Option<HostError>,
}

impl AuditLog {
    /// Opens the log at `path`, in an existing directory, for appending. `max_bytes` is the limit of each of the two
    /// files.
    #[must_use]
    pub fn open(host: &mut dyn Host, path: &Path, max_bytes: u64) -> AuditLog {
        let (len, refused) = match host.state_read_within(path, max_bytes) {
            Ok(text) => (text.map_or(0, |text| text.len() as u64), None),
            // The next line begins a new file.
            Err(error) if error.errno == Errno::EFBIG => (max_bytes, None),
            Err(error) => (0, Some(error)),
        };
        AuditLog { path: path.to_owned(), max_bytes, len, lost: 0, untold: 0, refused }
    }

    /// Appends one line per action. A failed write leaves no partial line.
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

    /// The line that reports lost lines; empty if no line was lost.
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
                Err(error) if error.errno != Errno::ENOENT => return Err(error),
                _ => self.len = 0,
            }
        }
        host.state_append(&self.path, text)?;
        self.len += more;
        Ok(())
    }

    /// Number of lines lost since the start.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Why lines are being lost now, as a sentence for [`crate::snapshot::Snapshot::problems`]; `None` if no lines are
    /// being lost.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if self.untold == 0 {
            return None;
        }
        let because = match &self.refused {
            Some(error) if matches!(error.errno, Errno::ENOSPC | Errno::EDQUOT) => {
                format!("{error}; free some space there; the groups stay in force meanwhile")
            }
            Some(error) => format!("{error}; the groups stay in force meanwhile"),
            None => "lines come faster than the disk can write them".to_owned(),
        };
        Some(format!("the audit log {} has lost {} lines: {because}", self.path.display(), self.lost))
    }
}

fn line(action: &Action) -> String {
    // Serialising plain strings as JSON cannot fail.
    let mut text = commensal_core::text::json(action).unwrap_or_default();
    text.push('\n');
    text
}

/// The loop's handle to the writer thread.
#[derive(Debug)]
pub struct Audit {
    lines: Option<SyncSender<Vec<Action>>>,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of lines lost because the queue was full; the thread adds them to the log's count.
    dropped: AtomicU64,
    lost: AtomicU64,
    problem: Mutex<Option<String>>,
}

impl Audit {
    /// Starts the writer thread for the log in the state directory. If the host of the `agent` refuses state files that
    /// other users could have written, the thread's host refuses them as well: as root, the thread must not append to
    /// another user's file.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start_beside(agent: &dyn Host, state_dir: &Path) -> std::io::Result<Audit> {
        let mut host = LinuxHost::new();
        if agent.is_guarded() {
            host.guard_state(state_dir);
        }
        Audit::start(Box::new(host), &state_dir.join(FILE), MAX_BYTES)
    }

    /// Starts the writer thread, which uses `host`.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(host: Box<dyn Host + Send>, path: &Path, max_bytes: u64) -> std::io::Result<Audit> {
        let (lines, queue) = sync_channel(BATCHES);
        let state = Arc::new(State::default());
        let (shared, path) = (Arc::clone(&state), path.to_owned());
        let thread = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || keep(host, &path, max_bytes, &queue, &shared))?;
        Ok(Audit { lines: Some(lines), state, thread: Some(thread) })
    }

    /// Passes lines to the thread. Never blocks: if the queue is full, the lines are lost and counted.
    pub fn record(&self, actions: Vec<Action>) {
        let Some(lines) = self.lines.as_ref().filter(|_| !actions.is_empty()) else { return };
        if let Err(TrySendError::Full(actions) | TrySendError::Disconnected(actions)) =
            lines.try_send(actions)
        {
            self.state.dropped.fetch_add(actions.len() as u64, Ordering::Relaxed);
        }
    }

    /// Number of lines lost since the start, for [`crate::snapshot::Cost::audit_lost`].
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.state.lost.load(Ordering::Relaxed) + self.state.dropped.load(Ordering::Relaxed)
    }

    /// Why lines are being lost now; `None` if no lines are being lost.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let problem = self.state.problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let dropped = self.state.dropped.load(Ordering::Relaxed);
        problem.or_else(|| {
            (dropped > 0).then(|| format!("the audit log has lost {dropped} lines: its disk is too slow"))
        })
    }
}

impl Drop for Audit {
    /// Waits until the thread has written all lines in its queue.
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
        // Write all waiting batches with a single fsync.
        actions.extend(queue.try_iter().take(BATCHES).flatten());
        let dropped = state.dropped.load(Ordering::Relaxed);
        log.lose(dropped);
        log.append(host.as_mut(), &actions);
        // For a moment these lines count twice, which is better than not counting them.
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

    // promise 27
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
        // The newest lines, in order, without a gap.
        let mut all = lines(&mut host, "/state/audit.log.1");
        all.extend(lines(&mut host, PATH));
        assert_eq!(all, (1_080..1_095).map(action).collect::<Vec<_>>());
    }

    // promise 27
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

    // promise 27
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

    /// Tests each combination of owner, mode and place: the agent never writes a file or folder that other users could
    /// have written, and reports the reason.
    // promise 57
    #[test]
    fn nothing_is_written_to_what_others_could_have_written() {
        let [owners, modes] = [[0, 1_000, 65_534], [0o600, 0o664, 0o646]];
        for owner in owners {
            for mode in modes {
                for place in ["/state/audit.log", "/state", "/"] {
                    let mut host = host();
                    host.state_append(Path::new(PATH), "").unwrap();
                    // For a folder, the owner's permission to search it is required as well.
                    let mode = if place == PATH { mode } else { mode | 0o100 };
                    host.set_owner(place, owner, mode);
                    let what = format!("{place} of user {owner}, mode {mode:o}");
                    let mut log = AuditLog::open(&mut host, Path::new(PATH), MAX_BYTES);
                    log.append(&mut host, &[action(1), action(2)]);
                    let trusted = owner == 0 && mode & 0o022 == 0;
                    host.set_owner(place, 0, 0o700);
                    assert_eq!(lines(&mut host, PATH).len(), if trusted { 2 } else { 0 }, "{what}");
                    assert_eq!(log.lost(), if trusted { 0 } else { 2 }, "{what}");
                    let said = log.problem().unwrap_or_default();
                    let named = said.contains(&format!("{place}, which")) && said.contains("EPERM");
                    assert_eq!(named, !trusted, "{what}: {said}");
                    assert!(!said.contains("free some space"), "{what}: {said}");
                }
            }
        }
    }

    /// The log is written only if it is a regular file, like every other state file.
    // promise 57
    #[test]
    fn nothing_is_written_to_what_is_no_file() {
        for kind in ["a named pipe", "a symbolic link", "a directory", "a device", "a socket"] {
            let mut host = host();
            host.set_kind(PATH, kind);
            let mut log = AuditLog::open(&mut host, Path::new(PATH), MAX_BYTES);
            log.append(&mut host, &[action(1)]);
            let said = log.problem().unwrap_or_default();
            assert!(log.lost() == 1 && said.contains(kind), "{kind}: {said}");
        }
    }

    /// The thread's host refuses the same files as the agent's host.
    // promise 57
    #[test]
    fn the_thread_looks_at_the_owner_if_the_agent_does() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let mut guarded = LinuxHost::new();
        if guarded.euid() != 0 {
            println!("skipped: the_thread_looks_at_the_owner_if_the_agent_does: not root");
            return;
        }
        guarded.guard_state(&state);
        guarded.state_dir(&state).unwrap();
        let file = state.join(FILE);
        let read = || LinuxHost::new().state_read(&file).unwrap().unwrap_or_default();
        let written = |agent: &LinuxHost| {
            let before = read().len();
            Audit::start_beside(agent, &state).unwrap().record(vec![action(1)]);
            read().len() > before
        };
        assert!(written(&guarded), "a file of one's own");
        chown(&file, Some(65_534), None).unwrap();
        assert!(!written(&guarded), "a file of somebody else");
        assert!(written(&LinuxHost::new()), "--insecure-permissions goes on");
        chown(&file, Some(0), None).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(!written(&guarded), "a file that everybody may write");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!written(&guarded), "a folder that everybody may write");
        std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(written(&guarded));
    }

    /// A log above the maximum size is not read into memory; the next line begins a new file.
    // promise 27
    #[test]
    fn a_log_that_is_too_large_is_put_aside() {
        let mut host = host();
        let bound = 10 * line(&action(1)).len() as u64;
        host.state_append(Path::new(PATH), &line(&action(1)).repeat(100)).unwrap();
        let mut log = AuditLog::open(&mut host, Path::new(PATH), bound);
        log.append(&mut host, &[action(2)]);
        assert_eq!((lines(&mut host, PATH), log.lost()), (vec![action(2)], 0));
        assert_eq!(lines(&mut host, "/state/audit.log.1").len(), 100);
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

    /// While the disk hangs, the loop continues, and lines that do not fit into the queue are counted.
    // promise 27
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
