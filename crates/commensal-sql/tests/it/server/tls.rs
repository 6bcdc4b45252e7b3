//! Encryption: a stock client, logins and results behind it, and what clients do wrong with it.

use crate::server::client::{Answer, Client, tls_request};
use crate::server::fixture::eventually;
use crate::server::process::{Server, start_with};
use commensal_testkit::throughout;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore};

/// Files of a certificate for this machine, its key, and who signed it.
pub struct Pair {
    folder: PathBuf,
}

impl Pair {
    pub fn write(folder: &Path) -> Pair {
        let mut signer = CertificateParams::new(Vec::new()).unwrap();
        signer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let signer = CertifiedIssuer::self_signed(signer, KeyPair::generate().unwrap()).unwrap();
        let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        names.extend(other_address().map(|address| address.to_string()));
        let key = KeyPair::generate().unwrap();
        let mut leaf = CertificateParams::new(names).unwrap();
        leaf.distinguished_name.push(DnType::CommonName, "server");
        let leaf = leaf.signed_by(&key, &signer).unwrap();
        let pair = Pair { folder: folder.to_owned() };
        std::fs::write(pair.file("ca.pem"), signer.pem()).unwrap();
        std::fs::write(pair.file("cert.pem"), leaf.pem()).unwrap();
        std::fs::write(pair.file("key.pem"), key.serialize_pem()).unwrap();
        pair
    }

    pub fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Trusts who signed it.
    pub fn client(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.file("ca.pem")).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
    }
}

/// An address of this machine that is not the loopback's.
fn other_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Sends nothing: only asks which way it would go.
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_loopback())
}

pub struct World {
    pub server: Server,
    pub address: SocketAddr,
    pub pair: Pair,
    pub folder: TempDir,
}

/// A server with TLS, a user `jack` with the password `geheim`, and one `sly` who needs TLS.
pub fn world(listen: &str, more: &[&str]) -> World {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let pair = Pair::write(folder.path());
    let (cert, key) = (pair.file("cert.pem"), pair.file("key.pem"));
    let args = [&["--listen", listen, "--tls-cert", &cert, "--tls-key", &key], more].concat();
    let (server, mut address) = start_with(&data, &args);
    address.set_ip([127, 0, 0, 1].into());
    Client::login(address, "root", "", "").unwrap().all(&[
        "create user jack identified by 'geheim'",
        "create user sly identified by 'geheim' require ssl",
        "grant select_priv on *.*.* to jack",
        "grant select_priv on *.*.* to sly",
    ]);
    World { server, address, pair, folder }
}

// promise 50
#[test]
fn from_other_machines_only_encrypted() {
    let Some(other) = other_address() else {
        println!(
            "skipped: from_other_machines_only_encrypted: this machine has no address but the loopback's"
        );
        return;
    };
    let world = world("0.0.0.0:0", &["--require-tls"]);
    let there = SocketAddr::new(other, world.address.port());
    let refused = Client::login(there, "jack", "geheim", "").unwrap_err().to_string();
    assert!(refused.contains("3159") && refused.contains("insecure transport"), "{refused}");
    let config = world.pair.client();
    let mut client = Client::encrypted(there, &config, ("jack", "geheim")).unwrap();
    assert_eq!(client.query("select 1").cell(), "1");
    // From here both.
    for user in ["jack", "sly"] {
        let mut client = Client::encrypted(world.address, &config, (user, "geheim")).unwrap();
        assert_eq!(client.query("select 1").cell(), "1");
    }
    assert!(Client::login(world.address, "jack", "geheim", "").is_ok());
    assert!(Client::login(world.address, "sly", "geheim", "").is_err());
    // Nobody without a password, encrypted or not.
    assert!(Client::encrypted(there, &config, ("root", "")).is_err());
}

/// The bytes with which a handshake begins.
fn hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut connection = ClientConnection::new(Arc::clone(config), "localhost".try_into().unwrap()).unwrap();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

// promise 50
#[test]
fn broken_handshakes_end_their_connection_and_nothing_else() {
    let world = world("127.0.0.1:0", &[]);
    let mut witness = Client::login(world.address, "root", "", "").unwrap();
    let before = world.server.descriptors();
    let hello = hello(&world.pair.client());
    let asking = || {
        let mut client = Client::greet(world.address).unwrap();
        client.send(1, &tls_request()).unwrap();
        client
    };
    // Cut at every place up to its name, then here and there.
    for end in (0..64).chain((64..hello.len()).step_by(41)) {
        let mut client = asking();
        client.stream.get_mut().write_all(&hello[..end]).unwrap();
    }
    let random: Vec<u8> = (0..5_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let login = [&[60, 0, 0, 2][..], &[0; 60]].concat();
    let too_late = [&hello[..], b"\x08\x00\x00\x00\x03select"].concat();
    for (why, bytes) in [
        ("zeros", vec![0; 500]),
        ("random bytes", random),
        ("a login in the clear", login),
        ("a packet behind the hello", too_late),
        ("a record of 64 KiB", vec![22, 3, 1, 0xff, 0xff]),
    ] {
        let mut client = asking();
        client.stream.get_mut().write_all(&bytes).ok();
        client.stream.get_ref().shutdown(std::net::Shutdown::Write).ok();
        // An alert, perhaps, and the end.
        let mut rest = Vec::new();
        client.stream.read_to_end(&mut rest).ok();
        assert!(rest.first().is_none_or(|first| [21, 22].contains(first)), "{why}: {rest:?}");
    }
    // A request that is too short, and one out of order.
    for (number, bytes) in [(1, &tls_request()[..31]), (3, &tls_request())] {
        let mut client = Client::greet(world.address).unwrap();
        client.send(number, bytes).unwrap();
        assert!(client.receive().is_err());
    }
    // Twice encrypted is once too often, and somebody may leave at any time.
    let config = world.pair.client();
    for _ in 0..20 {
        drop(Client::encrypted(world.address, &config, ("jack", "geheim")).unwrap());
    }
    assert_eq!(witness.query("select 1").cell(), "1");
    eventually("nothing is left open", || world.server.descriptors() <= before);
}

// promise 50
#[test]
fn a_stalled_handshake_has_an_end() {
    use crate::server::fixture::Fixture;
    use commensal_sql::protocol::{Limits, Tls};
    let folder = tempfile::tempdir().unwrap();
    let pair = Pair::write(folder.path());
    let tls = Tls::open(Path::new(&pair.file("cert.pem")), Path::new(&pair.file("key.pem"))).unwrap();
    let limits = Limits { login: Duration::from_secs(10), ..Limits::default() };
    let fixture = Fixture::encrypting(limits, tls);
    let mut logged_in = Client::encrypted(fixture.address, &pair.client(), ("root", "")).unwrap();
    let hello = hello(&pair.client());
    let silent = Client::greet(fixture.address).unwrap();
    let mut asked = Client::greet(fixture.address).unwrap();
    asked.send(1, &tls_request()).unwrap();
    let mut begins = Client::greet(fixture.address).unwrap();
    begins.send(1, &tls_request()).unwrap();
    begins.stream.get_mut().write_all(&hello[..hello.len() / 2]).unwrap();
    let mut half = Client::greet(fixture.address).unwrap();
    half.stream.get_mut().write_all(&[50, 0, 0, 1, 0]).unwrap();
    for (why, mut client) in [("silent", silent), ("asked", asked), ("begins", begins), ("half", half)] {
        // Without the limit this would end with the client's own of four minutes, as another kind of error.
        let mut rest = Vec::new();
        let ended = client.stream.read_to_end(&mut rest);
        assert!(ended.is_ok() || ended.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset, "{why}");
    }
    assert_eq!(logged_in.query("select 1").cell(), "1", "who has logged in stays");
}

// promise 50
#[test]
fn the_certificate_is_read_again() {
    let mut world = world("127.0.0.1:0", &[]);
    let before = world.pair.client();
    let mut old = Client::encrypted(world.address, &before, ("jack", "geheim")).unwrap();
    world.pair = Pair::write(world.folder.path());
    let after = world.pair.client();
    assert!(Client::encrypted(world.address, &after, ("jack", "geheim")).is_err(), "not read yet");
    let pid = rustix::process::Pid::from_child(&world.server.0);
    let hang_up = || rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    hang_up();
    let logs_in = |config| Client::encrypted(world.address, config, ("jack", "geheim")).is_ok();
    eventually("it is", || logs_in(&after));
    assert!(!logs_in(&before));
    assert_eq!(old.query("select 1").cell(), "1", "connections go on");
    // One that cannot be used changes nothing.
    std::fs::write(world.pair.file("cert.pem"), "nothing").unwrap();
    hang_up();
    throughout(Duration::from_millis(300), "nobody logs in any more", || logs_in(&after));
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    std::fs::create_dir(&one).unwrap();
    std::fs::create_dir(&other).unwrap();
    let (one, other) = (Pair::write(&one), Pair::write(&other));
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (empty, garbage) = (file("empty", ""), file("garbage", "-----BEGIN CERTIFICATE-----\nx\n"));
    let secret =
        file("secret", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMA==\n-----END ENCRYPTED PRIVATE KEY-----\n");
    let (cert, key) = (one.file("cert.pem"), one.file("key.pem"));
    for (cert, key, want) in [
        ("/nowhere/cert.pem", key.as_str(), "/nowhere/cert.pem"),
        (&cert, "/nowhere/key.pem", "/nowhere/key.pem"),
        (&cert, &other.file("key.pem"), "does not belong to the first certificate"),
        (&empty, &key, "there is no certificate in"),
        (&garbage, &key, "there is no certificate in"),
        (&key, &key, "there is no certificate in"),
        (&cert, &cert, "there is no private key in"),
        (&cert, &secret, "no passphrase"),
        ("/proc", &key, "/proc"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_commensal-sql"));
        command.args(["--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--data"]);
        let output = command.arg(folder.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(want), "{cert} {key}: {text}");
        assert!(!text.contains("PRIVATE KEY-"), "{text}");
    }
}

/// Without a certificate a request for TLS ends the connection.
#[test]
fn no_certificate_no_encryption() {
    let fixture = crate::server::fixture::Fixture::new();
    let mut client = Client::greet(fixture.address).unwrap();
    client.send(1, &tls_request()).unwrap();
    assert!(client.receive().is_err());
    let answer = fixture.root().query("select 1");
    assert!(matches!(answer, Answer::Rows(..)), "{answer:?}");
}

mod external {
    use super::*;
    use crate::server::fixture::write_hits;

    /// Debian's own client; what it printed, or complained about.
    fn mariadb(world: &World, args: &[&str], sql: &str) -> Result<String, String> {
        let mut command = Command::new("mariadb");
        let port = world.address.port().to_string();
        command
            .args(["--no-defaults", "-h127.0.0.1", "-P", &port, "-N", "--quick"])
            .args(args)
            .args(["-e", sql]);
        let output = command.output().unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    // promise 50
    #[test]
    fn a_stock_client_encrypts() {
        if Command::new("mariadb").arg("--version").output().is_err() {
            println!("skipped: a_stock_client_encrypts: mariadb is not installed (package mariadb-client)");
            return;
        }
        let world = world("127.0.0.1:0", &[]);
        write_hits(&world.folder.path().join("data/hits.parquet"), 200_000);
        let trusted = format!("--ssl-ca={}", world.pair.file("ca.pem"));
        let sly = ["-usly", "-pgeheim", "--ssl", "--ssl-verify-server-cert", &trusted];
        for version in ["--tls-version=TLSv1.2", "--tls-version=TLSv1.3"] {
            let shown =
                mariadb(&world, &[&sly[..], &[version]].concat(), "select count(*) from hits; \\s").unwrap();
            assert!(shown.starts_with("200000\n") && shown.contains("Cipher in use is"), "{shown}");
        }
        // About ten megabytes, and every byte of them the same as without.
        let sql = "select id, g, url from hits order by id";
        let encrypted = mariadb(&world, &sly, sql).unwrap();
        let plain = mariadb(&world, &["-ujack", "-pgeheim", "--skip-ssl"], sql).unwrap();
        assert_eq!(encrypted.lines().count(), 200_000);
        assert!(encrypted == plain, "{} and {} bytes", encrypted.len(), plain.len());
        for (why, args) in [
            ("a wrong password", &["-usly", "-pGeheim", "--ssl", &trusted][..]),
            ("no TLS, where the user needs it", &["-usly", "-pgeheim", "--skip-ssl"]),
        ] {
            let refused = mariadb(&world, args, "select 1").unwrap_err();
            assert!(refused.contains("Access denied"), "{why}: {refused}");
        }
        let other = tempfile::tempdir().unwrap();
        let stranger = format!("--ssl-ca={}", Pair::write(other.path()).file("ca.pem"));
        let args = ["-usly", "-pgeheim", "--ssl", "--ssl-verify-server-cert", &stranger];
        let refused = mariadb(&world, &args, "select 1").unwrap_err();
        assert!(refused.contains("certificate"), "{refused}");
    }
}
