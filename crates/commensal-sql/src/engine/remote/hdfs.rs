//! `HDFS(...)`: where a call reads and as whom, by Doris' properties, and the connections to name nodes.

use super::super::error::Error;
use super::super::rewrite::Call;
use super::allowed::{Allowed, HDFS_PORT, plain};
use hdfs_native::{Client, ClientBuilder, HdfsError};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::runtime::Handle;
use url::Url;

/// Beginnings of the names of properties that the client of HDFS gets.
const PASSED: [&str; 3] = ["dfs.", "hadoop.rpc.", "hadoop.security."];

/// Beginning of the properties, one for each name service, that would replace checked addresses by what their names
/// resolve to.
const RESOLVE: &str = "dfs.client.failover.resolve-needed";

/// How long a data node may be silent, in milliseconds, before the client reads another replica.
const SILENCE: &str = "dfs.client.socket-timeout";

/// Longest silence that a statement may allow, in milliseconds. Without a limit, each read of a data node that hangs
/// would leave a connection behind.
const MOST_SILENCE: u64 = 90_000;

/// Properties of the client that a statement may set to other values.
const DEFAULTS: [(&str, &str); 3] = [
    (SILENCE, "20000"),
    // The pauses between attempts double. With Hadoop's own values, a refused connection is an error after minutes.
    ("dfs.client.failover.max.attempts", "3"),
    ("dfs.client.failover.sleep.base.millis", "200"),
];

const AUTHENTICATION: &str = "hadoop.security.authentication";

/// Maximum number of connections that a group keeps; all are dropped when there are more.
const MOST_CLIENTS: usize = 100;

/// A name node or name service, and whom a connection to it stands for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cluster {
    /// `hdfs://host:port`, or `hdfs://host` for a name service or the usual port.
    endpoint: String,
    /// The user, of whom HDFS demands no proof; `None` with Kerberos.
    user: Option<String>,
    principal: Option<String>,
    keytab: Option<String>,
    config: BTreeMap<String, String>,
}

impl Cluster {
    fn connect(&self, endpoint: &str) -> Result<Client, HdfsError> {
        let builder = ClientBuilder::new().with_url(endpoint).with_config(self.config.clone());
        // The tasks that receive data run on the group's threads, where their CPU time is charged.
        let mut builder = builder.with_io_runtime(Handle::current());
        if let Some(user) = &self.user {
            builder = builder.with_user(user);
        }
        if let Some(principal) = &self.principal {
            builder = builder.with_kerberos_principal(principal);
        }
        if let Some(keytab) = &self.keytab {
            builder = builder.with_kerberos_keytab(keytab);
        }
        builder.build()
    }

    fn client(&self) -> Result<Client, Error> {
        let client = match self.connect(&self.endpoint) {
            // Neither the statement nor the server's Hadoop configuration knows a name service of this name.
            Err(HdfsError::InvalidArgument(_)) => self.connect(&format!("{}{HDFS_PORT}", self.endpoint)),
            client => client,
        };
        client.map_err(|error| Error::Rule(format!("cannot use {}: {error}", self.endpoint)))
    }
}

/// The connections of a group to name nodes. They are kept because a connection stays open as long as its name node does
/// not close it: with one for each statement, a name node that hangs would use up the server's descriptors.
#[derive(Debug, Default)]
pub struct Clients(Mutex<BTreeMap<Cluster, Client>>);

impl Clients {
    /// Returns the client for a cluster, on one of the group's threads. It connects when it is first used.
    ///
    /// # Errors
    /// The properties do not give a name node.
    pub fn of(&self, cluster: &Cluster) -> Result<Client, Error> {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(cluster) {
            return Ok(client.clone());
        }
        let client = cluster.client()?;
        if clients.len() >= MOST_CLIENTS {
            clients.clear();
        }
        clients.insert(cluster.clone(), client.clone());
        Ok(client)
    }
}

/// Finds the cluster that a call refers to. Returns the name under which its reads are limited, the cluster, and the path
/// to read, without the slash at its beginning.
///
/// # Errors
/// A property is missing or invalid, or an endpoint is not allowed.
pub fn find(call: &Call, allowed: &Allowed) -> Result<(String, Cluster, String), Error> {
    let (host, port, path) = address(call)?;
    let endpoint = format!("hdfs://{host}{}", port.map_or(String::new(), |port| format!(":{port}")));
    let mut config: BTreeMap<String, String> =
        DEFAULTS.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let passed = |key: &str| !key.starts_with(RESOLVE) && PASSED.iter().any(|start| key.starts_with(start));
    let given = call.properties.iter().filter(|(key, _)| passed(key));
    config.extend(given.map(|(key, value)| (key.clone(), value.clone())));
    let silence = config.get(SILENCE).and_then(|limit| limit.parse::<u64>().ok());
    if !silence.is_some_and(|limit| (1..=MOST_SILENCE).contains(&limit)) {
        return Err(Error::Rule(format!("\"{SILENCE}\" must be from 1 to {MOST_SILENCE} milliseconds")));
    }

    for (_, node) in config.iter().filter(|(key, _)| key.starts_with("dfs.namenode.rpc-address.")) {
        allowed.check(&format!("hdfs://{node}"), "--hdfs-endpoint")?;
    }
    let nodes = if port.is_none() { name_nodes(&config, &host) } else { None };
    // A statement chooses the name of its name service, so that the reads are limited by the name of a name node.
    let name = match nodes.and_then(|nodes| nodes.into_iter().min()) {
        Some(node) => format!("hdfs://{node}"),
        None => {
            allowed.check(&endpoint, "--hdfs-endpoint")?;
            endpoint.clone()
        }
    };
    let Identity { user, principal, keytab } = identity(call)?;
    // Always given: if the server's Hadoop configuration demanded Kerberos, the server's own ticket would speak for
    // any user.
    let kind = if user.is_some() { "simple" } else { "kerberos" };
    config.insert(AUTHENTICATION.to_owned(), kind.to_owned());
    Ok((plain(&name).to_owned(), Cluster { endpoint, user, principal, keytab, config }, path))
}

/// Parses `"uri"`, and `"fs.defaultFS"` if the former has no name node, to host, port and path.
fn address(call: &Call) -> Result<(String, Option<u16>, String), Error> {
    let uri = call.get(&["uri"]).ok_or_else(|| Error::Rule("HDFS(...) needs \"uri\"".to_owned()))?;
    let bad = || Error::Rule(format!("{uri:?} is not an address: write hdfs://namenode:8020/path"));
    // A query and a fragment would be parts of a file's name that nobody reads.
    let is_plain = |url: &Url| url.scheme() == "hdfs" && url.query().is_none() && url.fragment().is_none();
    let parse = |text: &str| Url::parse(text).ok().filter(is_plain);
    let url =
        if uri.starts_with('/') { parse(&format!("hdfs://{uri}")) } else { parse(uri) }.ok_or_else(bad)?;
    let path = url.path().trim_start_matches('/').to_owned();
    let has_host = |url: &Url| url.host_str().is_some_and(|host| !host.is_empty());
    let default = call.get(&["fs.defaultFS"]).and_then(parse);
    let Some(node) = Some(url).filter(has_host).or_else(|| default.filter(has_host)) else {
        return Err(Error::Rule(format!(
            "{uri:?} has no name node: write hdfs://namenode:8020/path, or add \"fs.defaultFS\""
        )));
    };
    if path.is_empty() {
        return Err(bad());
    }
    Ok((node.host_str().unwrap_or_default().to_owned(), node.port(), path))
}

/// Returns the addresses of the name nodes of a service if the properties give all of them.
fn name_nodes<'a>(config: &'a BTreeMap<String, String>, service: &str) -> Option<Vec<&'a str>> {
    let names = config.get(&format!("dfs.ha.namenodes.{service}"))?;
    let address = |name: &str| config.get(&format!("dfs.namenode.rpc-address.{service}.{name}"));
    names.split(',').map(|name| address(name).map(String::as_str)).collect()
}

/// Who reads.
#[derive(Default)]
struct Identity {
    user: Option<String>,
    principal: Option<String>,
    keytab: Option<String>,
}

/// Returns the user, or the principal and the keytab. With Kerberos and without a principal, the server's own ticket
/// counts.
fn identity(call: &Call) -> Result<Identity, Error> {
    let of = |name: &str| call.get(&[name]).filter(|value| !value.is_empty()).map(str::to_owned);
    match of(AUTHENTICATION).map(|kind| kind.to_lowercase()).as_deref() {
        Some("kerberos") => {
            let (principal, keytab) = (of("hadoop.kerberos.principal"), of("hadoop.kerberos.keytab"));
            if principal.is_none() && keytab.is_some() {
                return Err(Error::Rule(
                    "\"hadoop.kerberos.keytab\" needs \"hadoop.kerberos.principal\"".to_owned(),
                ));
            }
            Ok(Identity { user: None, principal, keytab })
        }
        None | Some("simple") => match of("hadoop.username") {
            Some(user) => Ok(Identity { user: Some(user), ..Identity::default() }),
            None => Err(Error::Rule("HDFS(...) needs \"hadoop.username\"".to_owned())),
        },
        Some(other) => Err(Error::Rule(format!(
            "\"{AUTHENTICATION}\" = {other:?} is not supported: use simple or kerberos"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URI: (&str, &str) = ("URI", "hdfs://nn:9000/t/k.csv");
    const USER: (&str, &str) = ("hadoop.username", "ann");

    fn call(properties: &[(&str, &str)]) -> Call {
        let properties = properties.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Call { name: "hdfs".to_owned(), properties: properties.collect() }
    }

    fn allowed(endpoints: &[&str]) -> Allowed {
        Allowed(endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect())
    }

    fn found(properties: &[(&str, &str)], endpoints: &[&str]) -> Result<(String, Cluster, String), String> {
        find(&call(properties), &allowed(endpoints)).map_err(|error| error.to_string())
    }

    #[test]
    fn properties_become_a_cluster() {
        let (name, cluster, path) = found(&[URI, USER], &["hdfs://nn:9000"]).unwrap();
        assert_eq!((name.as_str(), path.as_str()), ("hdfs://nn:9000", "t/k.csv"));
        assert_eq!((cluster.endpoint.as_str(), cluster.user.as_deref()), ("hdfs://nn:9000", Some("ann")));
        assert_eq!(cluster.config["dfs.client.socket-timeout"], "20000");
        // Not what the server's Hadoop configuration says, nor another spelling that the client takes for Kerberos.
        assert_eq!(cluster.config[AUTHENTICATION], "simple");
        let (_, cluster, _) = found(&[URI, USER, (AUTHENTICATION, "SIMPLE")], &["hdfs://nn:9000"]).unwrap();
        assert_eq!(cluster.config[AUTHENTICATION], "simple");
        // The usual port may be left out, in the statement and in the option.
        for uri in ["hdfs://nn/t/", "hdfs://nn:8020/t/"] {
            for endpoint in ["hdfs://nn", "hdfs://nn:8020/"] {
                let (name, _, path) = found(&[("uri", uri), USER], &[endpoint]).unwrap();
                assert_eq!((name.as_str(), path.as_str()), ("hdfs://nn", "t/"));
            }
        }
        for uri in ["/t/k.csv", "hdfs:///t/k.csv"] {
            let properties = [("uri", uri), ("fs.defaultFS", "hdfs://nn:9000"), USER];
            assert_eq!(found(&properties, &["hdfs://nn:9000"]).unwrap().0, "hdfs://nn:9000");
        }
        let properties = [
            URI,
            ("hadoop.security.authentication", "Kerberos"),
            ("hadoop.kerberos.principal", "ann@X"),
            ("hadoop.kerberos.keytab", "/k"),
            ("dfs.client.socket-timeout", "5000"),
        ];
        let (_, cluster, _) = found(&properties, &["hdfs://nn:9000"]).unwrap();
        assert_eq!((cluster.user, cluster.principal.as_deref()), (None, Some("ann@X")));
        assert_eq!(cluster.keytab.as_deref(), Some("/k"));
        assert_eq!(cluster.config[AUTHENTICATION], "kerberos");
        assert_eq!(cluster.config["dfs.client.socket-timeout"], "5000");
    }

    // promise 50
    #[test]
    fn a_name_service_is_its_name_nodes() {
        let service = |name: &str| {
            let properties = [
                ("uri".to_owned(), format!("hdfs://{name}/t/k.csv")),
                ("hadoop.username".to_owned(), "ann".to_owned()),
                (format!("dfs.ha.namenodes.{name}"), "N1,n2".to_owned()),
                (format!("dfs.namenode.rpc-address.{name}.N1"), "b:8020".to_owned()),
                (format!("dfs.namenode.rpc-address.{name}.n2"), "a:8020".to_owned()),
                (format!("{RESOLVE}.{name}"), "true".to_owned()),
            ];
            let call = Call { name: "hdfs".to_owned(), properties: properties.into() };
            find(&call, &allowed(&["hdfs://a", "hdfs://b"]))
        };
        // Whatever the service is called, the reads are limited together.
        for name in ["one", "Two"] {
            let (limited, cluster, _) = service(name).unwrap();
            assert_eq!(limited, "hdfs://a");
            assert_eq!(cluster.endpoint, format!("hdfs://{name}"));
            assert!(!cluster.config.keys().any(|key| key.starts_with(RESOLVE)));
        }
        let node = "dfs.namenode.rpc-address.ns.n1";
        let uri = ("uri", "hdfs://ns/t/k.csv");
        let names = ("dfs.ha.namenodes.ns", "n1");
        // A name service of the server's own configuration is allowed by its name.
        assert!(found(&[uri, USER], &["hdfs://ns"]).is_ok());
        for properties in
            [&[uri, USER, names][..], &[uri, USER, names, (node, "evil:1")], &[uri, USER, (node, "evil:1")]]
        {
            let text = found(properties, &["hdfs://other"]).unwrap_err();
            assert!(text.contains("--hdfs-endpoint hdfs://"), "{text}");
        }
        assert!(found(&[uri, USER, names, (node, "evil:1")], &["hdfs://ns"]).is_err());
    }

    #[test]
    fn what_is_refused() {
        let kerberos = (AUTHENTICATION, "kerberos");
        for (properties, part) in [
            (&[USER][..], "needs \"uri\""),
            (&[URI], "needs \"hadoop.username\""),
            (&[URI, ("hadoop.username", "")], "needs \"hadoop.username\""),
            (&[("uri", "hdfs:///t/k.csv"), USER], "has no name node"),
            (&[("uri", "/t/k.csv"), USER], "has no name node"),
            (&[("uri", "/t/k.csv"), USER, ("fs.defaultFS", "file:///")], "has no name node"),
            (&[("uri", "t/k.csv"), USER], "is not an address"),
            (&[("uri", "hdfs://nn:9000"), USER], "is not an address"),
            (&[("uri", "hdfs://nn:99999/t"), USER], "is not an address"),
            (&[("uri", "viewfs://nn:9000/t"), USER], "is not an address"),
            (&[("uri", "hdfs://nn:9000/t/a?.csv"), USER], "is not an address"),
            (&[("uri", "hdfs://nn:9000/t/a#1.csv"), USER], "is not an address"),
            (&[URI, USER, (SILENCE, "0")], "must be from 1 to"),
            (&[URI, USER, (SILENCE, "20s")], "must be from 1 to"),
            (&[("uri", "file:///etc/passwd"), USER], "is not an address"),
            (&[URI, (AUTHENTICATION, "token"), USER], "use simple or kerberos"),
            (&[URI, kerberos, ("hadoop.kerberos.keytab", "/k")], "hadoop.kerberos.principal"),
        ] {
            let text = found(properties, &["hdfs://nn:9000"]).unwrap_err();
            assert!(text.contains(part), "{properties:?}: {text}");
        }
        let text = found(&[URI, USER], &["hdfs://nn"]).unwrap_err();
        assert!(text.contains("start it with --hdfs-endpoint hdfs://nn:9000"), "{text}");
    }
}
