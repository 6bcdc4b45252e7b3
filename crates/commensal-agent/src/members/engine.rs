//! Follows the containers of an engine by its events.

use super::{Change, Lost, PATIENCE, Reports, pause, wanted};
use commensal_core::errno::Errno;
use commensal_host::{HostError, LinuxHost, Stream};
use commensal_sensors::containers::{Container, inspected, listed, request};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Events of containers only: `filters={"type":["container"]}`.
const EVENTS: &str = "/events?filters=%7B%22type%22%3A%5B%22container%22%5D%7D";
/// Back-off before the first reconnection, and maximum back-off.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Timeout for sending a request to an engine.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum length of an event's line in bytes; a longer one is an error and ends the connection.
const LONGEST_LINE: usize = 1 << 20;

/// An event. Docker and Podman repeat the action and the container in `status` and `id`.
#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "Action", default)]
    action: String,
    #[serde(rename = "Actor", default)]
    actor: Actor,
}

#[derive(Debug, Default, Deserialize)]
struct Actor {
    #[serde(rename = "ID", default)]
    id: String,
}

/// Follows the engine until `stop` is set.
pub(super) fn follow(socket: &Path, reports: &Reports, stop: &AtomicBool) {
    let host = LinuxHost::new();
    let mut wait = BACK_OFF.0;
    let mut told: Option<Lost> = None;
    while wanted(stop) {
        let why = match session(&host, socket, reports, stop, &mut told) {
            Ok(()) => return,
            Err(why) => why,
        };
        let came_back = told.is_none();
        // The same problem is reported only once.
        if told.as_ref() != Some(&why) {
            let lost = Change::EngineLost { socket: socket.to_owned(), why: why.clone() };
            if !reports.send(lost) {
                return;
            }
            told = Some(why);
        }
        wait = if came_back { BACK_OFF.0 } else { (wait * 2).min(BACK_OFF.1) };
        pause(stop, wait);
    }
}

/// Uses one connection: subscribes to events, lists all running containers, then processes the events. Returns `Ok`
/// when `stop` is set or the reader of the reports no longer exists.
fn session(
    host: &LinuxHost,
    socket: &Path,
    reports: &Reports,
    stop: &AtomicBool,
    told: &mut Option<Lost>,
) -> Result<(), Lost> {
    let absent = |error: HostError| Lost { absent: error.errno == Errno::ENOENT, ..Lost::from(error) };
    let mut stream = Stream::open(socket, &request(EVENTS), CONNECT_PATIENCE).map_err(absent)?;
    let mut running = all(host, socket)?;
    if told.take().is_some() && !reports.send(Change::EngineBack { socket: socket.to_owned() }) {
        return Ok(());
    }
    let send = |running: &BTreeMap<String, Container>| {
        let (socket, running) = (socket.to_owned(), running.values().cloned().collect());
        reports.send(Change::Containers { socket, running })
    };
    if !send(&running) {
        return Ok(());
    }
    let mut lines = Lines::default();
    while wanted(stop) {
        let bytes = match stream.read(PATIENCE)? {
            None => continue,
            Some(bytes) if bytes.is_empty() => return Err("the engine has closed the connection".into()),
            Some(bytes) => bytes,
        };
        let mut changed = false;
        for event in lines.events(&bytes)? {
            changed |= heed(host, socket, &event, &mut running)?;
        }
        if changed && !send(&running) {
            return Ok(());
        }
    }
    Ok(())
}

impl<T: ToString> From<T> for Lost {
    fn from(why: T) -> Lost {
        Lost { because: why.to_string(), absent: false }
    }
}

/// Lists all running containers with their processes.
fn all(host: &LinuxHost, socket: &Path) -> Result<BTreeMap<String, Container>, HostError> {
    let mut running = BTreeMap::new();
    for one in listed(host, socket)? {
        if let Some(one) = inspected(host, socket, &one.id)? {
            running.insert(one.id.clone(), one);
        }
    }
    Ok(running)
}

/// Processes an event; returns whether the set of running containers has changed.
fn heed(
    host: &LinuxHost,
    socket: &Path,
    event: &Event,
    running: &mut BTreeMap<String, Container>,
) -> Result<bool, HostError> {
    let id = &event.actor.id;
    match event.action.as_str() {
        "start" | "restart" | "rename" => {
            let now = inspected(host, socket, id)?;
            let before = match now.clone() {
                Some(now) => running.insert(id.clone(), now),
                None => running.remove(id),
            };
            Ok(before != now)
        }
        "die" | "destroy" => Ok(running.remove(id).is_some()),
        _ => Ok(false),
    }
}

/// Splits the response into events: after the head, one object per line.
#[derive(Debug, Default)]
struct Lines {
    pending: Vec<u8>,
    past_head: bool,
}

impl Lines {
    fn events(&mut self, bytes: &[u8]) -> Result<Vec<Event>, String> {
        self.pending.extend_from_slice(bytes);
        if !self.past_head {
            let Some(end) = self.pending.windows(4).position(|four| four == b"\r\n\r\n") else {
                return self.too_long().map(|()| Vec::new());
            };
            let head: Vec<u8> = self.pending.drain(..end + 4).collect();
            let head = String::from_utf8_lossy(&head);
            let status = head.split_whitespace().nth(1).unwrap_or_default();
            if status != "200" {
                return Err(format!("the engine refuses to send events (status {status})"));
            }
            self.past_head = true;
        }
        let mut events = Vec::new();
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            // A line that is not an event (a keep-alive, an unknown kind) has no information about containers.
            events.extend(serde_json::from_slice::<Event>(&line).ok());
        }
        self.too_long()?;
        Ok(events)
    }

    fn too_long(&self) -> Result<(), String> {
        match self.pending.len() > LONGEST_LINE {
            true => Err("the engine's events cannot be parsed".to_owned()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_however_they_are_cut() {
        let text = "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n\
                    {\"Action\":\"start\",\"Actor\":{\"ID\":\"a\"}}\n\n{\"other\":1}\n{\"Action\":\"die\",\"Actor\":{\"ID\":\"b\"}}\n{\"Act";
        for size in [1, 2, 7, 64, 4096] {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                found.extend(lines.events(chunk).unwrap());
            }
            let found: Vec<(String, String)> = found
                .into_iter()
                .map(|one| (one.action, one.actor.id))
                .filter(|(what, _)| !what.is_empty())
                .collect();
            assert_eq!(found, [("start".into(), "a".into()), ("die".into(), "b".into())], "{size}");
        }
        assert!(Lines::default().events(b"HTTP/1.0 500 No\r\n\r\n").is_err());
        assert!(Lines::default().events(&vec![b'x'; LONGEST_LINE + 1]).is_err());
    }
}
