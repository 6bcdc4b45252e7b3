//! Which remote stores queries may read.

use super::super::error::Error;

/// Port of a name node of HDFS whose address has none.
pub const HDFS_PORT: &str = ":8020";

/// Endpoints of remote stores that queries may read, as `scheme://host[:port]`. The default is none: otherwise clients
/// could make the server fetch from addresses that the clients cannot reach themselves.
#[derive(Debug, Clone, Default)]
pub struct Allowed(pub Vec<String>);

impl Allowed {
    /// Refuses an endpoint that is not allowed. `option` is the option that allows it.
    ///
    /// # Errors
    /// The endpoint is not allowed.
    pub fn check(&self, endpoint: &str, option: &str) -> Result<(), Error> {
        match self.0.iter().any(|allowed| plain(allowed) == plain(endpoint)) {
            true => Ok(()),
            false => Err(Error::Denied(format!(
                "this server does not read from {endpoint}: start it with {option} {endpoint}"
            ))),
        }
    }
}

/// Returns an endpoint without the parts that may be left out: a slash at its end, and the usual port of a name node.
#[must_use]
pub fn plain(endpoint: &str) -> &str {
    let endpoint = endpoint.trim_end_matches('/');
    let port = endpoint.starts_with("hdfs://").then(|| endpoint.strip_suffix(HDFS_PORT)).flatten();
    port.unwrap_or(endpoint)
}
