//! Client of the agent's control socket. One request per connection; the host limits size and time.

use crate::control::Refusal;
use commensal_core::errno::Errno;
use commensal_host::{Host, HostError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Timeout of GET requests, which a separate thread of the agent answers.
const PATIENCE: Duration = Duration::from_secs(5);
/// Timeout of commands, which may have to wait for the agent's loop; longer than the agent's own timeout.
const ORDER_PATIENCE: Duration = Duration::from_secs(12);

/// Why a request to the agent failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens on the socket.
    #[error(
        "no agent answers at {}: start one with `commensal agent -c /etc/commensal/groups.d` (as a service: `systemctl \
         start commensal-agent`), or name its --state-dir",
        .0.display()
    )]
    NoAgent(PathBuf),
    /// The socket belongs to another user, or the agent closed the connection because this user has no access.
    #[error(
        "the agent at {} belongs to another user: run this command as that user, for example with sudo, or join the group that its socket is shared with", .0.display()
    )]
    NotYours(PathBuf),
    /// The listening process belongs neither to this user nor to root.
    #[error(
        "the program that listens there is not trusted, because any user could have started it; remove the socket, or name another --state-dir"
    )]
    NotBelieved(#[source] HostError),
    /// The agent accepts the connection but does not respond.
    #[error(
        "the agent at {} does not respond: it hangs or was stopped; `systemctl restart commensal-agent` restarts it, and the guard acts when its lease ends",
        .0.display()
    )]
    Silent(PathBuf),
    /// A system call failed for another reason.
    #[error("the agent cannot be reached")]
    Host(#[source] HostError),
    /// The agent refused the request.
    #[error("{error}{}", way_out(.try_this))]
    Refused {
        /// HTTP status code of the response.
        status: u16,
        /// The error message.
        error: String,
        /// A suggested remedy; may be empty.
        try_this: String,
    },
    /// The response does not have the form that an agent of this version sends.
    #[error("the program that listens at {} is not an agent of this version ({because}): restart the agent after an upgrade", .socket.display())]
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

/// Sends `GET path`, and parses the JSON body of the response.
///
/// # Errors
/// Returns a [`ClientError`], whose message is for users.
pub fn get<T: DeserializeOwned>(
    host: &dyn Host,
    socket: &Path,
    path: &str,
) -> Result<Answer<T>, ClientError> {
    get_within(host, socket, path, PATIENCE)
}

/// Like [`get`], with another timeout.
pub(crate) fn get_within<T: DeserializeOwned>(
    host: &dyn Host,
    socket: &Path,
    path: &str,
    patience: Duration,
) -> Result<Answer<T>, ClientError> {
    ask(host, socket, "GET", path, "", patience)
}

/// Sends `GET path` to the first of these sockets that an agent listens on; returns the socket and the response. If
/// there is no agent, the error is that of the first socket.
///
/// # Errors
/// Returns a [`ClientError`], whose message is for users.
pub fn find<'s, T: DeserializeOwned>(
    host: &dyn Host,
    sockets: &'s [PathBuf],
    path: &str,
) -> Result<(&'s Path, Answer<T>), ClientError> {
    first(sockets, |socket| get(host, socket, path))
}

/// Sends `POST path` to the first of these sockets that an agent listens on.
///
/// # Errors
/// Returns a [`ClientError`], whose message is for users.
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

/// Sends `POST path` without a body.
///
/// # Errors
/// Returns a [`ClientError`], whose message is for users.
pub fn post<T: DeserializeOwned>(
    host: &dyn Host,
    socket: &Path,
    path: &str,
) -> Result<Answer<T>, ClientError> {
    ask(host, socket, "POST", path, "", ORDER_PATIENCE)
}

/// Sends `POST path` with a JSON body.
///
/// # Errors
/// Returns a [`ClientError`], whose message is for users.
pub fn post_json<T: DeserializeOwned>(
    host: &dyn Host,
    socket: &Path,
    path: &str,
    body: &impl Serialize,
) -> Result<Answer<T>, ClientError> {
    // Plain data can always be serialised.
    let body = commensal_core::text::json(body).unwrap_or_default();
    ask(host, socket, "POST", path, &body, ORDER_PATIENCE)
}

fn ask<T: DeserializeOwned>(
    host: &dyn Host,
    socket: &Path,
    method: &str,
    path: &str,
    body: &str,
    patience: Duration,
) -> Result<Answer<T>, ClientError> {
    let length = match method {
        "POST" => format!("Content-Length: {}\r\n", body.len()),
        _ => String::new(),
    };
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: agent\r\n{length}Connection: close\r\n\r\n{body}");
    let text = host.ask_own(socket, &request, patience).map_err(|error| match error.errno {
        _ if error.is_disbelief() => ClientError::NotBelieved(error),
        Errno::ENOENT | Errno::ECONNREFUSED => ClientError::NoAgent(socket.to_owned()),
        Errno::EACCES | Errno::EPERM => ClientError::NotYours(socket.to_owned()),
        Errno::ETIMEDOUT => ClientError::Silent(socket.to_owned()),
        _ => ClientError::Host(error),
    })?;
    if text.is_empty() {
        // The agent closes connections of other users without a response.
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

/// Splits a complete response into status, age of the data, and body.
fn parts(text: &str) -> Result<(u16, Duration, &str), String> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) =
        response.parse(text.as_bytes()).map_err(|error| error.to_string())?
    else {
        return Err("the response is incomplete".to_owned());
    };
    let body = text.get(head..).unwrap_or_default();
    let header = |name: &str| -> Option<&str> {
        let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    if header("content-length").and_then(|length| length.parse().ok()) != Some(body.len()) {
        return Err("the response is incomplete".to_owned());
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
