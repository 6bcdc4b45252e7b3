//! The program itself.

use crate::server::client::Client;
use crate::server::fixture::write_hits;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub struct Server(pub Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// Sockets and files that it has open.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.0.id())).unwrap().count()
    }

    pub fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap().count()
    }
}

fn start(data: &Path) -> (Server, SocketAddr) {
    start_with(data, &["--listen", "127.0.0.1:0"])
}

pub fn start_with(data: &Path, args: &[&str]) -> (Server, SocketAddr) {
    started(data, args, Stdio::inherit())
}

/// What it has to say goes into a file.
pub fn start_logged(data: &Path, log: &Path) -> (Server, SocketAddr) {
    started(data, &["--listen", "127.0.0.1:0"], std::fs::File::create(log).unwrap().into())
}

fn started(data: &Path, args: &[&str], log: Stdio) -> (Server, SocketAddr) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commensal-sql"));
    command.args(args).arg("--data").arg(data).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap().parse().unwrap();
    (Server(child), address)
}

#[test]
fn the_program_answers() {
    let folder = tempfile::tempdir().unwrap();
    write_hits(&folder.path().join("hits.parquet"), 1_234);
    let (_server, address) = start(folder.path());
    let mut client = Client::login(address, "root", "", "").unwrap();
    assert_eq!(client.query("select count(*) from hits").cell(), "1234");
}

#[test]
fn it_says_why_it_cannot_begin() {
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_commensal-sql"));
        let output = command.args(args).output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let missing = run(&["--data", "/nowhere/at/all", "--listen", "127.0.0.1:0"]);
    assert!(missing.contains("/nowhere/at/all") && missing.contains("--data"), "{missing}");
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let data = folder.path().to_str().unwrap();
    let text = run(&["--data", data, "--listen", &address]);
    assert!(text.contains(&address) && text.contains("--listen"), "{text}");
    for half in [&["--tls-cert", "c"][..], &["--tls-key", "k"], &["--require-tls"]] {
        let text = run(&[&["--data", data], half].concat());
        assert!(text.contains("--tls-"), "{text}");
    }
}

mod external {
    use super::*;

    /// Debian's own client, when it is there.
    #[test]
    fn a_stock_client_works() {
        let Some(program) =
            ["mariadb"].into_iter().find(|name| Command::new(name).arg("--version").output().is_ok())
        else {
            println!("skipped: a_stock_client_works: mariadb is not installed (package mariadb-client)");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        write_hits(&folder.path().join("hits.parquet"), 1_234);
        let (_server, address) = start(folder.path());
        let run = |sql: &str| {
            let mut command = Command::new(program);
            command.args([
                "--no-defaults",
                "--skip-ssl",
                "-h127.0.0.1",
                "-uroot",
                "-P",
                &address.port().to_string(),
                "-N",
                "-e",
                sql,
            ]);
            let output = command.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
            text.trim().to_owned()
        };
        assert_eq!(run("select count(*) from hits"), "1234");
        assert_eq!(
            run(
                "create workload group g2; alter workload group g2 properties('memory_limit'='0.5%'); select name from information_schema.workload_groups"
            ),
            "g2\nnormal"
        );
        assert_eq!(run("use information_schema; select count(*) from workload_group_resource_usage"), "2");
    }
}
