//! Core scheduling: gives the same cookie to every thread of a group, including threads that start meanwhile. The
//! kernel lets only threads with the same cookie share a core at the same time.
//!
//! A new thread inherits the cookie of the thread that starts it, so only a thread without the cookie can start another
//! thread without it. This module gives the cookie to all threads that lack it, and reads the thread lists again until
//! a complete pass finds no such thread.

use super::kind::{Facts, Kind, Rank};
use crate::drivers::apply::{Refusal, Work, host_error};
use crate::hand::is_gone;
use crate::journal::{Cookied, Mounts, Record, Target, fits};
use crate::restore::{Left, Undo, Undone, proof, target};
use commensal_core::actual::{ActualState, CgroupRef, Ours};
use commensal_core::errno::Errno;
use commensal_host::{Cookie, Dir, Host, HostError};
use std::collections::BTreeMap;

/// Maximum number of passes: only a fork bomb of threads without cookies needs more.
const LOOKS: u32 = 100;

impl Work<'_> {
    /// Returns the record that the threads of a group get a cookie; `None` if the group no longer exists.
    pub(super) fn cookied(&mut self, place: &CgroupRef) -> Option<Record> {
        let dir = self.dir(place).ok()?;
        Some(Record::Cookied(Cookied(self.target(place, dir))))
    }

    /// Gives the threads of a group a cookie, or removes their cookies.
    pub(super) fn cookie(&mut self, place: &CgroupRef, gives: bool) -> Result<(), Refusal> {
        let dir = self.dir(place)?;
        let done = if gives { give(self.host, dir) } else { take(self.host, dir) };
        done.map_err(|error| host_error(error, None))
    }
}

impl Kind for Cookied {
    fn facts(&self) -> Facts<'_> {
        Facts { rank: Rank::Values, group: Some(&self.0), proof: true }
    }

    fn words(&self) -> String {
        format!("threads of {} got a core-scheduling cookie", self.0.shown())
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        fits::place(&self.0)
    }

    fn mark(&self) -> Option<(&Target, String)> {
        Some((&self.0, "cookied".to_owned()))
    }

    fn claim(&self, actual: &ActualState, ours: &mut Ours) {
        ours.cookies.extend(self.0.find(actual));
    }

    fn undo(&self, host: &mut dyn Host, undo: &mut Undo<'_>) -> Undone {
        let Some(dir) = target::open(host, &self.0)? else { return Ok(None) };
        let taken = self.take(host, undo, dir);
        host.close(dir);
        taken
    }
}

impl Cookied {
    fn take(&self, host: &mut dyn Host, undo: &Undo<'_>, dir: Dir) -> Undone {
        let shown = self.0.shown();
        let what = format!("threads of {shown} keep their core-scheduling cookie");
        match proof::of_change(host, undo.owners, dir, &Record::Cookied(self.clone()), &what) {
            // commensal was killed between the record and its mark, before it gave any cookie.
            Err(Left::Denied(_)) if !any(host, dir) => return Ok(None),
            proof => proof?,
        }
        let taken = take(host, dir);
        // A missing group gives the same error numbers as a kernel without core scheduling or SMT.
        let gone = matches!(&taken, Err(error) if is_gone(error)) && !any(host, dir);
        match taken {
            Ok(()) => Ok(Some(format!("threads of {shown} have no core-scheduling cookie any more"))),
            Err(_) if gone => Ok(None),
            Err(error) => Err(Left::Failed(error)),
        }
    }
}

/// Gives all threads in and below the group the same cookie: the most common cookie among them, or a new one.
///
/// # Errors
/// Returns an error when the kernel refuses, or threads start faster than they can get the cookie.
fn give(host: &mut dyn Host, group: Dir) -> Result<(), HostError> {
    for _ in 0..LOOKS {
        let found = threads(host, group)?;
        let mut count: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
        for (tid, cookie) in found.iter().filter(|(_, cookie)| *cookie != 0) {
            count.entry(*cookie).or_insert((0, *tid)).0 += 1;
        }
        let common =
            count.iter().max_by_key(|(_, (number, _))| *number).map(|(cookie, (_, tid))| (*cookie, *tid));
        let without: Vec<u32> = match common {
            Some((common, _)) => {
                found.iter().filter(|(_, cookie)| *cookie != common).map(|(tid, _)| *tid).collect()
            }
            None => found.iter().map(|(tid, _)| *tid).collect(),
        };
        if without.is_empty() {
            return Ok(());
        }
        let cookie = common.map_or(Cookie::New, |(_, tid)| Cookie::Of(tid));
        match host.share_cookie(cookie, &without) {
            // The thread whose cookie is copied has exited.
            Err(error) if error.errno == Errno::ESRCH => {}
            other => other?,
        }
    }
    Err(restless())
}

/// Removes the cookies of all threads in and below the group.
///
/// # Errors
/// Returns the same errors as [`give`].
fn take(host: &mut dyn Host, group: Dir) -> Result<(), HostError> {
    for _ in 0..LOOKS {
        let with = threads(host, group)?.into_iter().filter(|(_, cookie)| *cookie != 0);
        let with: Vec<u32> = with.map(|(tid, _)| tid).collect();
        if with.is_empty() {
            return Ok(());
        }
        host.share_cookie(Cookie::None, &with)?;
    }
    Err(restless())
}

/// Whether a thread in or below the group has a cookie; `false` if the cookies cannot be read.
fn any(host: &mut dyn Host, group: Dir) -> bool {
    threads(host, group).is_ok_and(|found| found.iter().any(|(_, cookie)| *cookie != 0))
}

fn restless() -> HostError {
    let object = "a group whose threads appear faster than they get a core-scheduling cookie".to_owned();
    HostError { operation: "finish", object, value: None, errno: Errno::EBUSY }
}

/// Returns the threads in and below the group with their cookies, without threads that have exited meanwhile.
fn threads(host: &mut dyn Host, group: Dir) -> Result<Vec<(u32, u64)>, HostError> {
    let mut found = Vec::new();
    // Only cgroup v1 has `tasks`.
    let text = host.read(group, "tasks").or_else(|_| host.read(group, "cgroup.threads"))?;
    for tid in text.split_whitespace().filter_map(|tid| tid.parse().ok()) {
        match host.cookie(tid) {
            Ok(cookie) => found.push((tid, cookie)),
            Err(error) if error.errno == Errno::ESRCH => {}
            Err(error) => return Err(error),
        }
    }
    for name in host.children(group)? {
        let Ok(child) = host.open_child(group, &name) else { continue };
        let below = threads(host, child);
        host.close(child);
        match below {
            Err(error) if is_gone(&error) => {}
            below => found.extend(below?),
        }
    }
    Ok(found)
}
