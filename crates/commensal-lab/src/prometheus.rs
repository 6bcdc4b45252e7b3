//! A minimal Prometheus client: an instant query that returns one number, or none.
//!
//! Plain HTTP over one connection. The response is not trusted: it has a deadline and a maximum length, and must have
//! the documented form (`GET /api/v1/query`, stable since Prometheus 2.0).

use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONNECTION, HOST, LOCATION};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpStream;

/// Timeout of a query.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum length of a response, bytes: one number takes 200.
const LONGEST: usize = 1 << 20;
/// Maximum length of a query, bytes: it is part of the URL.
pub const LONGEST_QUERY: usize = 4_096;
/// Maximum number of series that a message names.
const NAMED: usize = 3;

/// URL of a server, such as `http://127.0.0.1:9090` or `http://host:9090/prometheus`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    host: String,
    port: u16,
    /// Path without a trailing slash.
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

/// Why a query failed: query, server, error, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Prometheus at {url}, asked {query:?}: {why}; {way_out}")]
pub struct QueryError {
    /// The server.
    pub url: String,
    /// The query.
    pub query: String,
    /// The error.
    pub why: String,
    /// What to do.
    pub way_out: &'static str,
}

/// An error, and what to do.
type Wrong = (String, &'static str);

const IS_IT_THERE: &str = "see that it runs and that url names it";
const IS_IT_PROMETHEUS: &str = "see that url names a Prometheus server";
const ASK_FOR_LESS: &str = "ask for less, such as one number by sum() or max()";

/// Evaluates a query at a moment. `None` when no series matches, or the result is not a finite number.
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
    get(url, &target, patience)
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

/// Status, target of a redirect, and body.
type Reply = (u16, Option<String>, Bytes);

/// Sends a request, and waits at most `patience` for the complete response, including name resolution.
fn get(url: &Url, target: &str, patience: Duration) -> Result<Reply, Wrong> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| unreachable(&error.to_string()))?;
    let reply = runtime.block_on(async { tokio::time::timeout(patience, exchange(url, target)).await });
    // A name resolution that is still in progress is abandoned.
    runtime.shutdown_background();
    reply.unwrap_or_else(|_| {
        let why = format!("no whole reply within {} s", patience.as_secs_f64());
        Err((why, "see that it is not overloaded, or ask for less"))
    })
}

async fn exchange(url: &Url, target: &str) -> Result<Reply, Wrong> {
    let host = url.host.trim_start_matches('[').trim_end_matches(']');
    let stream =
        TcpStream::connect((host, url.port)).await.map_err(|error| unreachable(&error.to_string()))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| of_http(&error))?;
    let request = Request::get(target)
        .header(HOST, format!("{}:{}", url.host, url.port))
        .header(ACCEPT, "application/json")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| unreachable(&error.to_string()))?;
    let reply = async {
        let response = sender.send_request(request).await.map_err(|error| of_http(&error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, LONGEST).collect().await.map_err(|error| of_body(error.as_ref()))?;
        let to = head.headers.get(LOCATION).map(|to| String::from_utf8_lossy(to.as_bytes()).into_owned());
        Ok((head.status.as_u16(), to, body.to_bytes()))
    };
    // The connection transfers the bytes; the response tells the outcome.
    tokio::pin!(reply, connection);
    tokio::select! {
        reply = &mut reply => reply,
        _ = &mut connection => reply.await,
    }
}

fn unreachable(why: &str) -> Wrong {
    (format!("it cannot be reached: {why}"), IS_IT_THERE)
}

fn of_http(error: &hyper::Error) -> Wrong {
    match error.is_parse() {
        true => ("the reply is no HTTP".to_owned(), IS_IT_PROMETHEUS),
        false => ("the reply ended early".to_owned(), IS_IT_THERE),
    }
}

fn of_body(error: &(dyn Error + Send + Sync + 'static)) -> Wrong {
    if error.is::<LengthLimitError>() {
        return (format!("a reply longer than {} KiB", LONGEST >> 10), ASK_FOR_LESS);
    }
    error.downcast_ref::<hyper::Error>().map_or_else(|| unreachable(&error.to_string()), of_http)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Said {
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

/// Interprets a response.
fn answer(status: u16, redirect: Option<&str>, body: &[u8]) -> Result<Option<f64>, Wrong> {
    const MEND: &str = "mend the query, or see that url names a Prometheus server";
    let reply: Option<Said> = serde_json::from_slice(body).ok();
    match (status, &reply) {
        (300..=399, _) => {
            let to = redirect.map(|to| format!(" to {}", short(to))).unwrap_or_default();
            return Err((
                format!("a redirect{to} (status {status})"),
                "name the address that it leads to as url",
            ));
        }
        (200..=299, Some(reply)) if reply.status == "success" => {}
        (_, Some(Said { error: Some(error), .. })) => {
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
    // Go's notation of floats; +Inf and NaN are not values of a block.
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

/// The first words of a server's message, on one line.
fn short(text: &str) -> String {
    const MOST: usize = 300;
    let line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST).collect();
    if text.trim().chars().count() > MOST { format!("{line}…") } else { line }
}

#[cfg(test)]
mod tests;
