//! Parses the URLs that the generator supports: `http://host[:port][/path][?query]`.

use anyhow::{Context as _, anyhow, bail};
use std::net::{SocketAddr, ToSocketAddrs};

/// Destination and path of the requests.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// Host and port as written, used as the `Host` header.
    pub host: String,
    /// Path and query.
    pub path: String,
}

/// Parses a URL.
pub fn parse(url: &str) -> anyhow::Result<Target> {
    let way_out = "write it as http://HOST[:PORT][/PATH]";
    let Some((scheme, rest)) = url.split_once("://") else {
        bail!("{url:?} is not a URL: {way_out}");
    };
    match scheme.to_ascii_lowercase().as_str() {
        "http" => {}
        "https" => bail!(
            "{url:?}: https is not supported; measure the service's plain HTTP port, or the HTTP port behind the proxy \
             that terminates TLS"
        ),
        _ => bail!("{url:?}: the protocol {scheme} is not supported: {way_out}"),
    }
    let rest = rest.split('#').next().unwrap_or_default();
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(at);
    if host.is_empty() || host.starts_with(':') {
        bail!("{url:?} names no host: {way_out}");
    }
    if host.contains('@') {
        bail!("{url:?}: a user name in a URL is not supported: {way_out}");
    }
    if !rest.bytes().all(|b| b.is_ascii_graphic()) {
        bail!("{url:?}: a URL consists of printable ASCII without spaces; write other characters as %XX");
    }
    let path = match path.chars().next() {
        Some('/') => path.to_owned(),
        _ => format!("/{path}"),
    };
    Ok(Target { host: host.to_owned(), path })
}

impl Target {
    /// Resolves the address.
    pub fn resolve(&self) -> anyhow::Result<SocketAddr> {
        // A colon outside of brackets separates the port.
        let named = self.host.rfind(':').is_some_and(|at| !self.host[at..].contains(']'));
        let host = if named { self.host.clone() } else { format!("{}:80", self.host) };
        let mut found = host.to_socket_addrs().with_context(|| {
            format!(
                "{host:?} is not a host and a port that can be resolved: check the spelling, or give an IP address"
            )
        })?;
        found.next().ok_or_else(|| anyhow!("{host:?} has no address"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_can_be_loaded() {
        let check = |url: &str, host: &str, path: &str| {
            let expected = Target { host: host.to_owned(), path: path.to_owned() };
            assert_eq!(parse(url).unwrap(), expected, "{url}");
        };
        check("http://localhost", "localhost", "/");
        check("HTTP://localhost:8080", "localhost:8080", "/");
        check("http://127.0.0.1:1/a/b?c=d#part", "127.0.0.1:1", "/a/b?c=d");
        check("http://[::1]:80?x", "[::1]:80", "/?x");
        let addr = |url| parse(url).unwrap().resolve().unwrap().to_string();
        assert_eq!(addr("http://127.0.0.1"), "127.0.0.1:80");
        assert_eq!(addr("http://[::1]"), "[::1]:80");
        assert_eq!(addr("http://[::1]:8080/"), "[::1]:8080");
    }

    #[test]
    fn urls_that_cannot() {
        let check = |url: &str, words: &str| {
            let error = parse(url).map(|target| target.resolve()).map_or_else(Err, |found| found.map(|_| ()));
            let error = format!("{:#}", error.unwrap_err());
            assert!(error.contains(words), "{url}: {error}");
        };
        check("", "is not a URL");
        check("localhost:8080", "is not a URL");
        check("https://localhost/", "https is not supported");
        check("ftp://localhost/", "ftp is not supported");
        check("http://", "names no host");
        check("http://:80/", "names no host");
        check("http://user@localhost/", "a user name");
        check("http://localhost/a b", "printable ASCII");
        check("http://localhost:99999/", "is not a host and a port");
        check("http://[::1/", "is not a host and a port");
    }
}
