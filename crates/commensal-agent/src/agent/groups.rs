//! The groups in force. The agent reads them from the groups files, reads these again after a change, and saves the
//! groups for its next start.

use super::ticks::time_of_day;
use crate::error::AgentError;
use crate::snapshot;
use commensal_core::config::{Compiled, Texts};
use commensal_host::Host;
use commensal_reconcile::groups_file::{self, Changes};
use commensal_reconcile::{PlanRequest, Reconciler, in_words};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Minimum interval between two reads of the inotify watch on the groups files: other programs may write in that
/// directory all the time.
const LOOKS_APART: Duration = Duration::from_millis(200);
/// Interval at which groups files are read although they are watched: the watch reports neither changes of permissions
/// nor changes that other machines make on a network file system.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// The groups in force and their files.
pub(super) struct Groups {
    texts: Texts,
    /// The watch on the files; without it, the files are read in every tick.
    changes: Option<Changes>,
    pub compiled: Compiled,
    pub state: snapshot::Config,
    /// When the watch was last read.
    looked: Instant,
    /// Whether the watch has reported a change that was not read yet.
    written: bool,
    /// When the files were last read.
    read: Option<Instant>,
    /// Texts that were rejected, so that they are not compiled again.
    refused: Option<Texts>,
    /// Whether `texts` have been saved to disk, for a start with invalid groups files.
    kept: bool,
}

impl Groups {
    /// The groups to start with: those of the configuration or, if that is invalid, the last valid ones.
    ///
    /// # Errors
    /// Returns an error if the configuration is invalid and no valid groups were saved.
    pub fn first(host: &mut dyn Host, state_dir: &Path, config: &Path) -> Result<Groups, AgentError> {
        let loaded = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let mut state =
            snapshot::Config { path: config.display().to_string(), generation: 1, loaded, error: None };
        // Watch before reading, so that no later change is missed.
        let (changes, looked) = (Changes::of(host, config), Instant::now());
        let read =
            groups_file::texts(host, config).and_then(|texts| Ok((groups_file::compile(&texts)?, texts)));
        match read {
            Ok((compiled, texts)) => Ok(Groups {
                texts,
                changes,
                compiled,
                state,
                refused: None,
                kept: false,
                looked,
                written: false,
                read: Some(looked),
            }),
            Err(error) => {
                let Some(texts) = groups_file::saved(host, state_dir)? else { return Err(error.into()) };
                let compiled = groups_file::compile(&texts)?;
                state.error = Some(in_words(&error));
                Ok(Groups {
                    texts,
                    changes,
                    compiled,
                    state,
                    refused: None,
                    kept: true,
                    looked,
                    written: false,
                    read: None,
                })
            }
        }
    }

    /// The watch on the files, and the time until it may be read again.
    pub fn watched(&self) -> (Option<&Changes>, Duration) {
        let pause = LOOKS_APART.saturating_sub(self.looked.elapsed());
        (self.changes.as_ref().filter(|_| pause.is_zero()), pause)
    }

    /// Notes that the watch was read, and whether it reported a change.
    pub fn looked(&mut self, written: bool) {
        self.looked = Instant::now();
        self.written |= written;
    }

    /// Puts changed groups files in force, either completely or not at all. Returns whether they are in force.
    pub fn reload(
        &mut self,
        host: &mut dyn Host,
        reconciler: &Reconciler,
        config: &Path,
        forced: bool,
    ) -> bool {
        let fresh = self.read.is_some_and(|read| read.elapsed() < READ_AGAIN);
        let watched = self.changes.is_some() && self.state.error.is_none();
        self.written |= self.changes.as_ref().is_some_and(Changes::any);
        if watched && fresh && !forced && !std::mem::take(&mut self.written) {
            return false;
        }
        self.read = Some(Instant::now());
        let texts = match groups_file::texts(host, config) {
            Ok(texts) => texts,
            Err(error) => {
                self.state.error = Some(in_words(&error));
                // If the texts that were rejected before return, report their errors again.
                self.refused = None;
                return false;
            }
        };
        if texts == self.texts {
            (self.state.error, self.refused) = (None, None);
            return false;
        }
        if self.refused.as_ref() == Some(&texts) && !forced {
            return false;
        }
        let fits = groups_file::compile(&texts).map_err(|error| error.to_string()).and_then(|compiled| {
            let request = PlanRequest::all(&compiled.groups);
            reconciler
                .instance
                .plan(host, &reconciler.survey, &request)
                .map_err(|error| error.to_string())?;
            Ok(compiled)
        });
        match fits {
            Ok(compiled) => {
                (self.compiled, self.texts) = (compiled, texts);
                (self.refused, self.kept) = (None, false);
                self.state.generation += 1;
                self.state.loaded = time_of_day();
                self.state.error = None;
                true
            }
            Err(error) => {
                self.state.error = Some(error);
                self.refused = Some(texts);
                false
            }
        }
    }

    /// Saves the groups in force, for the next start of an agent.
    pub fn save(&mut self, host: &mut dyn Host, state_dir: &Path, problems: &mut Vec<String>) {
        if self.kept {
            return;
        }
        match groups_file::save(host, state_dir, &self.texts) {
            Ok(()) => self.kept = true,
            Err(error) => {
                problems.push(format!(
                    "cannot save the groups in force for the next start of the agent: {error}"
                ));
            }
        }
    }
}
