//! One question to a Prometheus server: an instant query that gives one number, or none.
//!
//! Plain HTTP over one connection, and nothing of a reply is trusted: it has a deadline and a greatest length, and must be what
//! the API documents (`GET /api/v1/query`, stable since Prometheus 2.0).

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long one question may take.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Longest reply, bytes: one number takes 200.
const LONGEST: u64 = 1 << 20;
/// Longest query, bytes: it goes into the address.
pub const LONGEST_QUERY: usize = 4_096;
/// Series that are named in a message.
const NAMED: usize = 3;

/// Where a server is, such as `http://127.0.0.1:9090` or `http://host:9090/prometheus`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    host: String,
    port: u16,
    /// Without a slash at its end.
    path: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        let text = text.trim();
        if text.starts_with("https://") {
            return Err("TLS is not spoken; name the server's plain address, such as http://127.0.0.1:9090"
                .to_owned());
        }
        let wanted = || "an address such as http://127.0.0.1:9090 is needed".to_owned();
        let rest = text.strip_prefix("http://").ok_or_else(wanted)?;
        let (place, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if place.contains('@') {
            return Err(
                "a user and a password would be kept in the record; name an address without them".to_owned()
            );
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace() || matches!(c, '?' | '#')) {
            return Err("it may have neither spaces nor ? nor #".to_owned());
        }
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| wanted())?),
            _ => (place, 80),
        };
        if host.is_empty() || port == 0 {
            return Err(wanted());
        }
        let path = path.trim_end_matches('/').trim_end_matches("/api/v1/query").to_owned();
        Ok(Url { host: host.to_owned(), port, path })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}{}", self.host, self.port, self.path)
    }
}

/// Why a question has no answer: what was asked of whom, what came, and the way out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Prometheus at {url}, asked {query:?}: {why}; {way_out}")]
pub struct QueryError {
    /// The server.
    pub url: String,
    /// The query.
    pub query: String,
    /// What came.
    pub why: String,
    /// What to do.
    pub way_out: &'static str,
}

/// What came instead of an answer, and what to do.
type Wrong = (String, &'static str);

const IS_IT_THERE: &str = "see that it runs and that url names it";
const IS_IT_PROMETHEUS: &str = "see that url names a Prometheus server";
const ASK_FOR_LESS: &str = "ask for less, such as one number by sum() or max()";

/// Asks what a query came to at a moment. `None`: no series matches then, or the answer is no finite number.
///
/// # Errors
/// [`QueryError`], within [`PATIENCE`].
pub fn ask(url: &Url, query: &str, at: SystemTime) -> Result<Option<f64>, QueryError> {
    ask_within(url, query, at, PATIENCE)
}

fn ask_within(url: &Url, query: &str, at: SystemTime, patience: Duration) -> Result<Option<f64>, QueryError> {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let target =
        format!("{}/api/v1/query?query={}&time={:.3}", url.path, encoded(query), since.as_secs_f64());
    get(url, &target, Instant::now() + patience)
        .map_err(|error| of_connection(&error, patience))
        .and_then(|bytes| reply(&bytes))
        .and_then(|(status, to, body)| answer(status, to.as_deref(), &body))
        .map_err(|(why, way_out)| QueryError { url: url.to_string(), query: query.to_owned(), why, way_out })
}

/// Percent-encoding of everything but letters, digits and `-._~` (RFC 3986).
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

fn of_connection(error: &io::Error, patience: Duration) -> Wrong {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => (
            format!("no whole reply within {} s", patience.as_secs_f64()),
            "see that it is not overloaded, or ask for less",
        ),
        io::ErrorKind::FileTooLarge => (format!("a reply longer than {} KiB", LONGEST >> 10), ASK_FOR_LESS),
        _ => (format!("it cannot be reached: {error}"), IS_IT_THERE),
    }
}

/// Everything that the server sends until it ends the connection.
fn get(url: &Url, target: &str, deadline: Instant) -> io::Result<Vec<u8>> {
    let left = || {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut)) } else { Ok(left) }
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    let host = url.host.trim_start_matches('[').trim_end_matches(']');
    let mut stream = None;
    for addr in (host, url.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, left()?) {
            Ok(connected) => {
                stream = Some(connected);
                break;
            }
            Err(error) => last = error,
        }
    }
    let Some(mut stream) = stream else { return Err(last) };
    stream.set_write_timeout(Some(left()?))?;
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: {}:{}\r\nAccept: application/json\r\nConnection: close\r\n\r\n",
        url.host, url.port
    );
    stream.write_all(request.as_bytes())?;
    let (mut bytes, mut piece) = (Vec::new(), [0; 16 << 10]);
    loop {
        stream.set_read_timeout(Some(left()?))?;
        let read = match stream.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // A server that resets after its reply has replied.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !bytes.is_empty() => {
                return Ok(bytes);
            }
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(&piece[..read]);
        if bytes.len() as u64 > LONGEST {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        if complete(&bytes) {
            return Ok(bytes);
        }
    }
}

/// Whether the bytes are a whole reply, of a server that keeps the connection although it was asked not to.
fn complete(bytes: &[u8]) -> bool {
    reply(bytes).is_ok_and(|_| {
        let head = String::from_utf8_lossy(bytes).to_ascii_lowercase();
        let head = head.split("\r\n\r\n").next().unwrap_or_default().to_owned();
        head.contains("\r\ncontent-length:") || head.contains("\r\ntransfer-encoding:")
    })
}

/// Status, the place that a redirect names, and body.
fn reply(bytes: &[u8]) -> Result<(u16, Option<String>, Vec<u8>), Wrong> {
    let not_http = || ("the reply is no HTTP".to_owned(), IS_IT_PROMETHEUS);
    let early = || ("the reply ended early".to_owned(), IS_IT_THERE);
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut headers);
    let start = match head.parse(bytes) {
        Ok(httparse::Status::Complete(start)) => start,
        Ok(httparse::Status::Partial) => return Err(early()),
        Err(_) => return Err(not_http()),
    };
    let header = |name: &str| {
        let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| String::from_utf8_lossy(header.value).trim().to_owned())
    };
    let rest = &bytes[start..];
    let chunked = header("transfer-encoding").is_some_and(|how| how.to_ascii_lowercase().contains("chunked"));
    let body = match header("content-length").and_then(|text| text.parse::<usize>().ok()) {
        _ if chunked => dechunked(rest).ok_or_else(early)?,
        Some(length) => rest.get(..length).ok_or_else(early)?.to_vec(),
        None => rest.to_vec(),
    };
    Ok((head.code.ok_or_else(not_http)?, header("location"), body))
}

/// The body of a chunked reply; `None` while its end is missing.
fn dechunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let Ok(httparse::Status::Complete((start, size))) = httparse::parse_chunk_size(rest) else {
            return None;
        };
        let size = usize::try_from(size).ok()?;
        if size == 0 {
            return Some(body);
        }
        let end = start.checked_add(size)?;
        body.extend_from_slice(rest.get(start..end)?);
        rest = rest.get(end.checked_add(2)?..)?;
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reply {
    status: String,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: Value,
}

#[derive(Deserialize)]
struct Series {
    #[serde(default)]
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

/// What a reply says.
fn answer(status: u16, redirect: Option<&str>, body: &[u8]) -> Result<Option<f64>, Wrong> {
    const MEND: &str = "mend the query, or see that url names a Prometheus server";
    let reply: Option<Reply> = serde_json::from_slice(body).ok();
    match (status, &reply) {
        (300..=399, _) => {
            let to = redirect.map(|to| format!(" to {}", short(to))).unwrap_or_default();
            return Err((
                format!("a redirect{to} (status {status})"),
                "name the address that it leads to as url",
            ));
        }
        (200..=299, Some(reply)) if reply.status == "success" => {}
        (_, Some(Reply { error: Some(error), .. })) => {
            return Err((format!("refused with status {status}: {}", short(error)), MEND));
        }
        (200..=299, _) => return Err(("the reply is not that of the API".to_owned(), IS_IT_PROMETHEUS)),
        _ => {
            let said = short(&String::from_utf8_lossy(body));
            let said = if said.is_empty() { String::new() } else { format!(": {said}") };
            return Err((format!("status {status}{said}"), MEND));
        }
    }
    let Some(data) = reply.and_then(|reply| reply.data) else {
        return Err(("the reply has no data".to_owned(), IS_IT_PROMETHEUS));
    };
    let wrong = |_| ("the reply is not that of the API".to_owned(), IS_IT_PROMETHEUS);
    let value = match data.result_type.as_str() {
        "scalar" => serde_json::from_value::<(f64, String)>(data.result).map_err(wrong)?.1,
        "vector" => {
            let mut series: Vec<Series> = serde_json::from_value(data.result).map_err(wrong)?;
            match (series.len(), series.pop()) {
                (1, Some(one)) => one.value.1,
                (_, None) => return Ok(None),
                (_, Some(last)) => {
                    series.push(last);
                    return Err((
                        several(&series),
                        "make one number of them, such as by sum(), or name a label",
                    ));
                }
            }
        }
        other => {
            let why = format!("a {} instead of one number", short(other));
            return Err((why, "ask for an instant value: rate(x[$window]) and not x[$window]"));
        }
    };
    // Go's spelling of floats, of which +Inf and NaN are no values of a block.
    match value.trim_start_matches('+').parse::<f64>() {
        Ok(number) => Ok(Some(number).filter(|number| number.is_finite())),
        Err(_) => Err((format!("{:?} is no number", short(&value)), IS_IT_PROMETHEUS)),
    }
}

fn several(series: &[Series]) -> String {
    let name = |one: &Series| {
        let labels: Vec<String> = one.metric.iter().map(|(key, value)| format!("{key}={value:?}")).collect();
        short(&format!("{{{}}}", labels.join(", ")))
    };
    let names: Vec<String> = series.iter().take(NAMED).map(name).collect();
    let more = series.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} series instead of one: {}{more}", series.len(), names.join(", "))
}

/// The first words of what somebody else said, in one line.
fn short(text: &str) -> String {
    const MOST: usize = 300;
    let line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST).collect();
    if text.trim().chars().count() > MOST { format!("{line}…") } else { line }
}

#[cfg(test)]
mod tests;
