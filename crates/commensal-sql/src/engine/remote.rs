//! Table functions that read remote stores, `S3(...)` and `HDFS(...)`: the properties that both have, and which stores
//! may be read.

mod allowed;
mod hdfs;
mod hdfs_store;
mod s3;

pub use allowed::Allowed;
pub use hdfs::Clients;

use super::data::{Format, TableSource};
use super::error::Error;
use super::rewrite::Call;
use commensal_store::Query as Reader;
use hdfs::Cluster;
use hdfs_store::HdfsStore;
use object_store::ObjectStore;
use object_store::aws::AmazonS3;
use std::sync::Arc;

/// A remote store that a statement reads from.
#[derive(Debug)]
pub struct Remote {
    /// Name of the store, under which its reads are limited and counted.
    pub name: String,
    /// The store.
    pub store: Unopened,
    /// The source to read in the store, under the host `host`.
    pub place: TableSource,
}

/// A store for whose reads no query pays yet.
#[derive(Debug)]
pub enum Unopened {
    /// A bucket.
    S3(Box<AmazonS3>),
    /// A name node or a name service.
    Hdfs(Cluster),
}

impl Remote {
    /// Finds the store that a call refers to. The caller registers it under the host `host`.
    ///
    /// # Errors
    /// A property is missing or invalid, or the endpoint is not allowed.
    pub fn new(call: &Call, host: &str, allowed: &Allowed) -> Result<Remote, Error> {
        let (name, store, path) = if call.name == "s3" {
            let (name, store, key) = s3::open(call, allowed)?;
            (name, Unopened::S3(Box::new(store)), key)
        } else {
            let (name, cluster, path) = hdfs::find(call, allowed)?;
            (name, Unopened::Hdfs(cluster), path)
        };
        let ending = Format::ENDINGS.into_iter().find(|(ending, _)| path.ends_with(ending));
        let Some(format) = format(call)?.or(ending.map(|(_, format)| format)) else {
            return Err(Error::Rule(format!("{}(...) needs \"format\"", call.name.to_uppercase())));
        };
        let url = format!("{}://{host}/{path}", call.name);
        let place = TableSource { url, format, ending: String::new(), partitions: Vec::new() };
        Ok(Remote { name, store, place: partitioned(place, call) })
    }
}

impl Unopened {
    /// Opens the store for a query whose reads `reader` pays for, through one of the group's `clients`.
    ///
    /// # Errors
    /// The properties do not give a name node.
    pub fn open(self, clients: &Clients, reader: Reader) -> Result<Arc<dyn ObjectStore>, Error> {
        Ok(match self {
            Unopened::S3(store) => Arc::new(*store),
            Unopened::Hdfs(cluster) => Arc::new(HdfsStore::new(clients.of(&cluster)?, reader)),
        })
    }
}

/// Adds the columns of `"path_partition_keys"`, whose values are in the names of folders.
pub fn partitioned(place: TableSource, call: &Call) -> TableSource {
    let keys = call.get(&["path_partition_keys"]).unwrap_or_default().split(',').map(str::trim);
    TableSource { partitions: keys.filter(|key| !key.is_empty()).map(str::to_owned).collect(), ..place }
}

/// Parses the property `"format"` and the separator; `None` without the property.
///
/// # Errors
/// The format is not supported.
pub fn format(call: &Call) -> Result<Option<Format>, Error> {
    let Some(name) = call.get(&["format"]) else { return Ok(None) };
    let separator = match call.get(&["column_separator"]) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
