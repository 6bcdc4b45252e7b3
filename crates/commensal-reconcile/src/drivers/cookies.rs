//! Core scheduling: gives one cookie to every thread of a group, including threads that start meanwhile.
//!
//! A new thread inherits the cookie of the thread that started it, so a thread without the cookie can only come from
//! another such thread. Every thread without the cookie gets it, and the lists are read again until a complete pass
//! finds none.

use commensal_core::errno::Errno;
use commensal_host::{Cookie, Dir, Host, HostError};
use std::collections::BTreeMap;

/// Maximum number of passes: only a fork bomb of threads without cookies needs more.
const LOOKS: u32 = 100;

/// Gives all threads in and below the group one cookie: the most common one that they have, or a new one.
///
/// # Errors
/// When the kernel refuses, or threads start faster than they can get the cookie.
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
            // The thread to copy from has exited.
            Err(error) if error.errno == Errno::ESRCH => {}
            other => other?,
        }
    }
    Err(restless())
}

/// Takes away the cookies of all threads in and below the group.
///
/// # Errors
/// As [`give`].
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

/// Whether a thread of the group or below it has a cookie, as far as that can be read.
pub(crate) fn any(host: &mut dyn Host, group: Dir) -> bool {
    threads(host, group).is_ok_and(|found| found.iter().any(|(_, cookie)| *cookie != 0))
}

fn restless() -> HostError {
    let object = "a group whose threads appear faster than they get a core-scheduling cookie".to_owned();
    HostError { operation: "finish", object, value: None, errno: Errno::EBUSY }
}

/// Threads in and below the group, with their cookies. A thread that exited meanwhile is left out.
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
            Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ENODEV) => {}
            below => found.extend(below?),
        }
    }
    Ok(found)
}
