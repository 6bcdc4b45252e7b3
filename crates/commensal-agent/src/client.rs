//! Client of the agent's control socket. One request per connection, with the host's limits on size and time.

use crate::control::Refusal;
use commensal_core::errno::Errno;
use commensal_host::{Host, HostError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Timeout of requests that do not need the loop: the agent answers them from a separate thread.
const PATIENCE: Duration = Duration::from_secs(5);
/// Timeout of orders, which the loop carries out and which may have to wait for it; longer than the agent's own
/// timeout.
const ORDER_PATIENCE: Duration = Duration::from_secs(12);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens on the socket.
    #[error(
        "no agent answers at {}: start one with `commensal agent -c /etc/commensal/groups.d` (as a service: `systemctl \
         start commensal-agent`), or name its --state-dir",
        .0.display()
    )]
    NoAgent(PathBuf),
    /// It belongs to somebody else.
    #[error(
        "the agent at {} belongs to another user: ask as that user, for example with sudo, or be in the group that its socket is \
         shared with", .0.display()
    )]
    NotYours(PathBuf),
    /// Who listens is neither this user nor root.
    #[error(
        "what answers there is not asked, because it may be anybody's; remove it, or name another --state-dir"
    )]
    NotBelieved(#[source] HostError),
    /// It listens and says nothing.
    #[error(
        "the agent at {} does not answer: it hangs or was stopped; `systemctl restart commensal-agent` starts it anew, and the \
         guard acts when its lease ends",
        .0.display()
    )]
    Silent(PathBuf),
    /// Another system error.
    #[error("the agent cannot be asked")]
    Host(#[source] HostError),
    /// The agent refused the request.
    #[error("{error}{}", way_out(.try_this))]
    Refused {
        /// HTTP status code.
        status: u16,
        /// What is wrong.
        error: String,
        /// What to do about it; may be empty.
        try_this: String,
    },
    /// The response is not that of an agent.
    #[error("what answers at {} is not this version's agent ({because}): restart it after an upgrade", .socket.display())]
    Strange {
        /// The socket.
        socket: PathBuf,
        /// What is wrong with the response.
        because: String,
    },
}

fn way_out(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("; {text}") }
}

/// A response, with the age of its data.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer<T> {
    /// The parsed body.
    pub body: T,
    /// Time since the loop produced the data; zero if the agent does not report it.
    pub age: Duration,
}

/// `GET path`, with a JSON answer.
///
/// # Errors
/// [`ClientError`], in words for users.
pub fn get<T: DeserializeOwned>(
    host: &dyn Host,
    socket: &Path,
    path: &str,
) -> Result<Answer<T>, ClientError> {
    ask(host, socket, "GET", path, "")
}

/// The first of these sockets where an agent is, and what it says to `GET path`; the first one's error where none is.
///
/// # Errors
/// [`ClientError`], in words for users.
pub fn find<'s, T: DeserializeOwned>(
    host: &dyn Host,
    sockets: &'s [PathBuf],
    path: &str,
) -> Result<(&'s Path, Answer<T>), ClientError> {
    first(sockets, |socket| get(host, socket, path))
}

/// The same with `POST path`.
///
/// # Errors
/// [`ClientError`], in words for users.
pub fn find_post<T: DeserializeOwned>(
    host: &dyn Host,
    sockets: &[PathBuf],
    path: &str,
) -> Result<Answer<T>, ClientError> {
    first(sockets, |socket| post(host, socket, path)).map(|(_, answer)| answer)
}

fn first<T>(
    sockets: &[PathBuf],
    mut ask: impl FnMut(&Path) -> Result<Answer<T>, ClientError>,
) -> Result<(&Path, Answer<T>), ClientError> {
    let mut absent = None;
    for socket in sockets {
        match ask(socket) {
            Ok(answer) => return Ok((socket, answer)),
            Err(error @ ClientError::NoAgent(_)) => absent = absent.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Err(absent.unwrap_or_else(|| ClientError::NoAgent(PathBuf::new())))
}

/// `POST path` without a body.
///
/// # Errors
/// [`ClientError`], in words for users.
pub fn post<T: DeserializeOwned>(
    host: &dyn Host,
    socket: &Path,
    path: &str,
) -> Result<Answer<T>, ClientError> {
    ask(host, socket, "POST", path, "")
}

/// `POST path` with a body of JSON.
///
/// # Errors
/// [`ClientError`], in words for users.
pub fn post_json<T: DeserializeOwned>(
    host: &dyn Host,
    socket: &Path,
    path: &str,
    body: &impl Serialize,
) -> Result<Answer<T>, ClientError> {
    // Plain data always becomes JSON.
    ask(host, socket, "POST", path, &commensal_core::text::json(body).unwrap_or_default())
}

fn ask<T: DeserializeOwned>(
    host: &dyn Host,
    socket: &Path,
    method: &str,
    path: &str,
    body: &str,
) -> Result<Answer<T>, ClientError> {
    let length = match method {
        "POST" => format!("Content-Length: {}\r\n", body.len()),
        _ => String::new(),
    };
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: agent\r\n{length}Connection: close\r\n\r\n{body}");
    let patience = if method == "POST" { ORDER_PATIENCE } else { PATIENCE };
    let text = host.ask_own(socket, &request, patience).map_err(|error| match error.errno {
        _ if error.is_disbelief() => ClientError::NotBelieved(error),
        Errno::ENOENT | Errno::ECONNREFUSED => ClientError::NoAgent(socket.to_owned()),
        Errno::EACCES | Errno::EPERM => ClientError::NotYours(socket.to_owned()),
        Errno::ETIMEDOUT => ClientError::Silent(socket.to_owned()),
        _ => ClientError::Host(error),
    })?;
    if text.is_empty() {
        // The agent closes the connection of other users.
        return Err(ClientError::NotYours(socket.to_owned()));
    }
    let strange = |because: String| ClientError::Strange { socket: socket.to_owned(), because };
    let (status, age, body) = parts(&text).map_err(strange)?;
    if status != 200 {
        let Refusal { error, try_this } =
            serde_json::from_str(body).map_err(|error| strange(format!("status {status}, {error}")))?;
        return Err(ClientError::Refused { status, error, try_this });
    }
    let body = serde_json::from_str(body).map_err(|error| strange(error.to_string()))?;
    Ok(Answer { body, age })
}

/// Status, age and body of a whole response.
fn parts(text: &str) -> Result<(u16, Duration, &str), String> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) =
        response.parse(text.as_bytes()).map_err(|error| error.to_string())?
    else {
        return Err("the answer breaks off".to_owned());
    };
    let body = text.get(head..).unwrap_or_default();
    let header = |name: &str| -> Option<&str> {
        let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    if header("content-length").and_then(|length| length.parse().ok()) != Some(body.len()) {
        return Err("the answer breaks off".to_owned());
    }
    let age = header(crate::control::AGE)
        .and_then(|ms| ms.parse().ok())
        .map_or(Duration::ZERO, Duration::from_millis);
    Ok((response.code.unwrap_or_default(), age, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_break_off() {
        let whole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Commensal-Age-Ms: 1500\r\n\r\n{}";
        assert_eq!(parts(whole), Ok((200, Duration::from_millis(1_500), "{}")));
        for end in 0..whole.len() {
            assert!(parts(&whole[..end]).is_err(), "{:?}", &whole[..end]);
        }
        assert!(parts("SSH-2.0-OpenSSH_9.2\r\n").is_err());
    }
}
