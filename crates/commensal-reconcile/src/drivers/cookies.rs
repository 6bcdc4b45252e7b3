//! Core scheduling: gives the same cookie to every thread of a group, including threads that start meanwhile. The
//! kernel lets only threads with the same cookie share a core at the same time.
//!
//! A new thread inherits the cookie of the thread that starts it, so only a thread without the cookie can start another
//! thread without it. This module gives the cookie to all threads that lack it, and reads the thread lists again until
//! a complete pass finds no such thread.

use crate::hand::is_gone;
use commensal_core::errno::Errno;
use commensal_host::{Cookie, Dir, Host, HostError};
use std::collections::BTreeMap;

/// Maximum number of passes: only a fork bomb of threads without cookies needs more.
const LOOKS: u32 = 100;

/// Gives all threads in and below the group the same cookie: the most common cookie among them, or a new one.
///
/// # Errors
/// Returns an error when the kernel refuses, or threads start faster than they can get the cookie.
pub(crate) fn give(host: &mut dyn Host, group: Dir) -> Result<(), HostError> {
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
pub(crate) fn take(host: &mut dyn Host, group: Dir) -> Result<(), HostError> {
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
pub(crate) fn any(host: &mut dyn Host, group: Dir) -> bool {
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
