//! `S3(...)`: parses the properties of Doris' table function, and opens the store.

use super::data::{Format, TableSource};
use super::error::Error;
use super::rewrite::Call;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{ClientOptions, RetryConfig};
use std::collections::BTreeMap;
use std::time::Duration;
use url::Url;

/// Timeout for establishing a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum number of retries of a failed request. The total retry time is limited, too, because a user waits.
const RETRIES: usize = 4;
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

/// Endpoints of remote stores that queries may read, as `scheme://host[:port]`. The default is none: otherwise clients
/// could make the server fetch from addresses that the clients cannot reach themselves.
#[derive(Debug, Clone, Default)]
pub struct Allowed(pub Vec<String>);

/// A remote store that a statement reads from.
#[derive(Debug)]
pub struct Remote {
    /// Name of the store: endpoint and bucket.
    pub name: String,
    /// The store.
    pub store: AmazonS3,
    /// The source to read in the store, under the host `host`.
    pub place: TableSource,
}

struct Address {
    endpoint: String,
    bucket: String,
    key: String,
}

/// Parses an address in one of three forms: `s3://bucket/key` with a separate endpoint, `https://host/bucket/key` in
/// path style, and otherwise `https://bucket.host/key`.
fn address(uri: &str, endpoint: Option<&str>, path_style: bool) -> Result<Address, Error> {
    let bad = || {
        Error::Rule(format!("{uri:?} is not an address: write s3://bucket/key or https://host/bucket/key"))
    };
    let url = Url::parse(uri).map_err(|_| bad())?;
    let host = url.host_str().ok_or_else(bad)?;
    let path = url.path().trim_start_matches('/').to_owned();
    let port = url.port().map_or(String::new(), |port| format!(":{port}"));
    let address = match (url.scheme(), path_style) {
        ("s3", _) => {
            let endpoint = endpoint.ok_or_else(|| Error::Rule("s3:// needs \"s3.endpoint\"".to_owned()))?;
            let scheme = if endpoint.contains("://") { "" } else { "https://" };
            let endpoint = format!("{scheme}{}", endpoint.trim_end_matches('/'));
            Address { endpoint, bucket: host.to_owned(), key: path }
        }
        (scheme @ ("http" | "https"), true) => {
            let (bucket, key) = path.split_once('/').ok_or_else(bad)?;
            let endpoint = format!("{scheme}://{host}{port}");
            Address { endpoint, bucket: bucket.to_owned(), key: key.to_owned() }
        }
        (scheme @ ("http" | "https"), false) => {
            let (bucket, host) = host.split_once('.').ok_or_else(bad)?;
            Address { endpoint: format!("{scheme}://{host}{port}"), bucket: bucket.to_owned(), key: path }
        }
        _ => return Err(bad()),
    };
    if address.bucket.is_empty() || address.key.is_empty() {
        return Err(bad());
    }
    Ok(address)
}

/// Parses the property `"format"` and the separator; `None` without the property.
///
/// # Errors
/// The format is not supported.
pub fn format(properties: &BTreeMap<String, String>) -> Result<Option<Format>, Error> {
    let Some(name) = properties.get("format") else { return Ok(None) };
    let separator = match properties.get("column_separator").map(String::as_str) {
        None | Some("\\t" | "\t") => b'\t',
        Some(text) => match text.as_bytes() {
            [byte] => *byte,
            _ => {
                return Err(Error::Rule(format!("\"column_separator\" must be one character, not {text:?}")));
            }
        },
    };
    match name.to_ascii_lowercase().as_str() {
        "parquet" => Ok(Some(Format::Parquet)),
        "json" => Ok(Some(Format::Json)),
        // Doris' default separator is a tab, even for "csv".
        "csv" => Ok(Some(Format::Separated { separator, header: false })),
        "csv_with_names" => Ok(Some(Format::Separated { separator, header: true })),
        other => Err(Error::Rule(format!(
            "format {other:?} is not supported: use parquet, csv, csv_with_names or json"
        ))),
    }
}

impl Remote {
    /// Opens the store that a call refers to. The caller registers it under the host `host`.
    ///
    /// # Errors
    /// A property is missing or invalid, or the endpoint is not allowed.
    pub fn new(call: &Call, host: &str, allowed: &Allowed) -> Result<Remote, Error> {
        let of =
            |names: &[&str]| names.iter().find_map(|name| call.properties.get(*name)).map(String::as_str);
        let uri = of(&["uri"]).ok_or_else(|| Error::Rule("S3(...) needs \"uri\"".to_owned()))?;
        let path_style = of(&["use_path_style", "s3.use_path_style"]).is_some_and(|style| style == "true");
        let address = address(uri, of(&["s3.endpoint", "endpoint"]), path_style)?;
        if !allowed.0.iter().any(|endpoint| endpoint.trim_end_matches('/') == address.endpoint) {
            return Err(Error::Denied(format!(
                "this server does not read from {}: start it with --s3-endpoint {}",
                address.endpoint, address.endpoint
            )));
        }
        // Requests have no timeout, because the read rate of the group may slow a request down for any time. The
        // session's time limit ends the query.
        let client = ClientOptions::new()
            .with_timeout_disabled()
            .with_connect_timeout(CONNECT)
            .with_allow_http(address.endpoint.starts_with("http://"));
        let retry =
            RetryConfig { max_retries: RETRIES, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::new()
            .with_client_options(client)
            .with_retry(retry)
            .with_endpoint(&address.endpoint)
            .with_bucket_name(&address.bucket)
            .with_region(of(&["s3.region", "region"]).unwrap_or("us-east-1"))
            .with_virtual_hosted_style_request(false);
        match (of(&["s3.access_key", "access_key"]), of(&["s3.secret_key", "secret_key"])) {
            (Some(id), Some(secret)) if !id.is_empty() => {
                builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            }
            _ => builder = builder.with_skip_signature(true),
        }
        if let Some(token) = of(&["s3.session_token", "session_token"]) {
            builder = builder.with_token(token);
        }
        let store = builder.build().map_err(|error| Error::Engine(error.to_string()))?;
        let ending = Format::ENDINGS.into_iter().find(|(ending, _)| address.key.ends_with(ending));
        let Some(format) = format(&call.properties)?.or(ending.map(|(_, format)| format)) else {
            return Err(Error::Rule("S3(...) needs \"format\"".to_owned()));
        };
        let place =
            TableSource { url: format!("s3://{host}/{}", address.key), format, ending: String::new() };
        Ok(Remote { name: format!("{}/{}", address.endpoint, address.bucket), store, place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let of = |uri: &str, endpoint: Option<&str>, path: bool| {
            address(uri, endpoint, path).map(|found| (found.endpoint, found.bucket, found.key))
        };
        let is = |endpoint: &str, bucket: &str, key: &str| {
            Ok((endpoint.to_owned(), bucket.to_owned(), key.to_owned()))
        };
        assert_eq!(
            of("http://127.0.0.1:9000/b/d/k.tsv", None, true),
            is("http://127.0.0.1:9000", "b", "d/k.tsv")
        );
        assert_eq!(of("https://b.s3.eu.example/k", None, false), is("https://s3.eu.example", "b", "k"));
        assert_eq!(of("s3://b/d/k", Some("e.example"), false), is("https://e.example", "b", "d/k"));
        for bad in ["", "k", "ftp://a.b/c/d", "https://host/only", "file:///etc/passwd"] {
            assert!(of(bad, Some("e"), true).is_err(), "{bad}");
        }
    }

    // promise 50
    #[test]
    fn only_what_is_allowed() {
        let call = Call {
            name: "s3".to_owned(),
            properties: [
                ("uri", "http://169.254.169.254/latest/meta"),
                ("use_path_style", "true"),
                ("format", "csv"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        };
        let error = Remote::new(&call, "0", &Allowed::default()).unwrap_err();
        assert!(matches!(&error, Error::Denied(text) if text.contains("--s3-endpoint")), "{error}");
        assert!(Remote::new(&call, "0", &Allowed(vec!["http://169.254.169.254".to_owned()])).is_ok());
    }
}
