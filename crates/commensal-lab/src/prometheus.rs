//! A minimal Prometheus client: evaluates an instant query. The result must be one number, or no series.
//!
//! The client uses plain HTTP over one connection. It does not trust the response: it limits the response's time and
//! length, and accepts only the documented form (`GET /api/v1/query`, stable since Prometheus 2.0).

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
/// Maximum length of a response in bytes. A response with one number has about 200 bytes.
const LONGEST: usize = 1 << 20;
/// Maximum length of a query in bytes, since the query is part of the URL.
pub const LONGEST_QUERY: usize = 4_096;
/// Maximum number of series that an error message lists when a query returns several.
const NAMED: usize = 3;

/// URL of a server, such as `http://127.0.0.1:9090` or `http://host:9090/prometheus`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    host: String,
    port: u16,
    /// Path of the URL without a trailing slash.
    path: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        let text = text.trim();
        if text.starts_with("https://") {
            return Err("TLS is not supported; give the plain HTTP address of the server, such as http://127.0.0.1:9090"
                .to_owned());
        }
        let wanted = || "give an address such as http://127.0.0.1:9090".to_owned();
        let rest = text.strip_prefix("http://").ok_or_else(wanted)?;
        let (place, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if place.contains('@') {
            return Err(
                "the record would contain the user and password; give an address without them".to_owned()
            );
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace() || matches!(c, '?' | '#')) {
            return Err("the address must not contain spaces, ? or #".to_owned());
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

/// A failed query: the query, the server, the error, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Prometheus at {url}, query {query:?}: {why}; {way_out}")]
pub struct QueryError {
    /// URL of the server.
    pub url: String,
    /// The query.
    pub query: String,
    /// Description of the error.
    pub why: String,
    /// What to do about the error.
    pub way_out: &'static str,
}

/// Description of an error, and advice on what to do about the error.
type Wrong = (String, &'static str);

const IS_IT_THERE: &str = "check that the server runs and that the URL is right";
const IS_IT_PROMETHEUS: &str = "check that the URL is that of a Prometheus server";
const ASK_FOR_LESS: &str = "change the query to return less, such as one number with sum() or max()";

/// Evaluates a query at a point in time. Returns `None` when no series matches, or when the result is not a finite
/// number.
///
/// # Errors
/// Returns a [`QueryError`], after [`PATIENCE`] at the latest.
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

/// Percent-encodes everything but letters, digits and `-._~` (RFC 3986).
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

/// Status code of a response, target of the redirect if there is one, and body.
type Reply = (u16, Option<String>, Bytes);

/// Sends a request and waits for the complete response. The time limit `patience` includes name resolution.
fn get(url: &Url, target: &str, patience: Duration) -> Result<Reply, Wrong> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| unreachable(&error.to_string()))?;
    let reply = runtime.block_on(async { tokio::time::timeout(patience, exchange(url, target)).await });
    // If name resolution is still in progress, this call abandons it.
    runtime.shutdown_background();
    reply.unwrap_or_else(|_| {
        let why = format!("no complete response within {} s", patience.as_secs_f64());
        Err((why, "check that the server is not overloaded, or change the query to return less"))
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
    // Polling the connection transfers the bytes, but only the other future, `reply`, returns the response.
    tokio::pin!(reply, connection);
    tokio::select! {
        reply = &mut reply => reply,
        _ = &mut connection => reply.await,
    }
}

fn unreachable(why: &str) -> Wrong {
    (format!("the server cannot be reached: {why}"), IS_IT_THERE)
}

fn of_http(error: &hyper::Error) -> Wrong {
    match error.is_parse() {
        true => ("the response is not HTTP".to_owned(), IS_IT_PROMETHEUS),
        false => ("the response ended early".to_owned(), IS_IT_THERE),
    }
}

fn of_body(error: &(dyn Error + Send + Sync + 'static)) -> Wrong {
    if error.is::<LengthLimitError>() {
        return (format!("the response is longer than {} KiB", LONGEST >> 10), ASK_FOR_LESS);
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

/// Interprets a response: returns the number, `None` if no series matches, or the reason why the response is unusable.
fn answer(status: u16, redirect: Option<&str>, body: &[u8]) -> Result<Option<f64>, Wrong> {
    const MEND: &str = "correct the query, or check that the URL is that of a Prometheus server";
    let reply: Option<Said> = serde_json::from_slice(body).ok();
    match (status, &reply) {
        (300..=399, _) => {
            let to = redirect.map(|to| format!(" to {}", short(to))).unwrap_or_default();
            return Err((
                format!("the server redirects{to} (status {status})"),
                "give the address of the redirect as URL",
            ));
        }
        (200..=299, Some(reply)) if reply.status == "success" => {}
        (_, Some(Said { error: Some(error), .. })) => {
            return Err((format!("the server returned status {status}: {}", short(error)), MEND));
        }
        (200..=299, _) => {
            return Err(("the response is not that of the Prometheus API".to_owned(), IS_IT_PROMETHEUS));
        }
        _ => {
            let said = short(&String::from_utf8_lossy(body));
            let said = if said.is_empty() { String::new() } else { format!(": {said}") };
            return Err((format!("the server returned status {status}{said}"), MEND));
        }
    }
    let Some(data) = reply.and_then(|reply| reply.data) else {
        return Err(("the response has no data".to_owned(), IS_IT_PROMETHEUS));
    };
    let wrong = |_| ("the response is not that of the Prometheus API".to_owned(), IS_IT_PROMETHEUS);
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
                        "aggregate them to one number, such as with sum(), or select one with a label",
                    ));
                }
            }
        }
        other => {
            let why = format!("the result is a {} instead of one number", short(other));
            return Err((why, "query an instant value: rate(x[$window]) instead of x[$window]"));
        }
    };
    // Prometheus prints floats in Go's notation. +Inf and NaN cannot be used as measurements.
    match value.trim_start_matches('+').parse::<f64>() {
        Ok(number) => Ok(Some(number).filter(|number| number.is_finite())),
        Err(_) => Err((format!("{:?} is not a number", short(&value)), IS_IT_PROMETHEUS)),
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
    format!("the result has {} series instead of one: {}{more}", series.len(), names.join(", "))
}

/// Returns the text on one line, truncated to 300 characters.
fn short(text: &str) -> String {
    const MOST: usize = 300;
    let line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST).collect();
    if text.trim().chars().count() > MOST { format!("{line}…") } else { line }
}

#[cfg(test)]
mod tests;
