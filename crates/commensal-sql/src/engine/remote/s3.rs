//! `S3(...)`: where a call reads, and the store that it opens.

use super::super::error::Error;
use super::super::rewrite::Call;
use super::allowed::Allowed;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{ClientOptions, RetryConfig};
use std::time::Duration;
use url::Url;

/// Timeout for establishing a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum number of retries of a failed request. The total retry time is limited, too, because a user waits.
const RETRIES: usize = 4;
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

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

/// Opens the store that a call refers to. Returns the store's name (endpoint and bucket), the store, and the key to read.
///
/// # Errors
/// A property is missing or invalid, or the endpoint is not allowed.
pub fn open(call: &Call, allowed: &Allowed) -> Result<(String, AmazonS3, String), Error> {
    let uri = call.get(&["uri"]).ok_or_else(|| Error::Rule("S3(...) needs \"uri\"".to_owned()))?;
    let path_style = call.get(&["use_path_style", "s3.use_path_style"]).is_some_and(|style| style == "true");
    let Address { endpoint, bucket, key } = address(uri, call.get(&["s3.endpoint", "endpoint"]), path_style)?;
    allowed.check(&endpoint, "--s3-endpoint")?;
    // Requests have no timeout, because the read rate of the group may slow a request down for any time. The
    // session's time limit ends the query.
    let client = ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT)
        .with_allow_http(endpoint.starts_with("http://"));
    let retry = RetryConfig { max_retries: RETRIES, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
    let mut builder = AmazonS3Builder::new()
        .with_client_options(client)
        .with_retry(retry)
        .with_endpoint(&endpoint)
        .with_bucket_name(&bucket)
        .with_region(call.get(&["s3.region", "region"]).unwrap_or("us-east-1"))
        .with_virtual_hosted_style_request(false);
    match (call.get(&["s3.access_key", "access_key"]), call.get(&["s3.secret_key", "secret_key"])) {
        (Some(id), Some(secret)) if !id.is_empty() => {
            builder = builder.with_access_key_id(id).with_secret_access_key(secret);
        }
        _ => builder = builder.with_skip_signature(true),
    }
    if let Some(token) = call.get(&["s3.session_token", "session_token"]) {
        builder = builder.with_token(token);
    }
    let store = builder.build().map_err(|error| Error::Engine(error.to_string()))?;
    Ok((format!("{endpoint}/{bucket}"), store, key))
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
}
