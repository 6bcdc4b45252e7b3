//! The answers of a real MariaDB, from Debian's packages, beside ours: each pair of operators, on values of each kind.

use crate::external::drivers::{kept, output};
use crate::server::client::{Answer, Client};
use crate::server::fixture::Fixture;
use crate::server::process::Server;
use commensal_testkit::{PATIENCE, holds_within, unused_address};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The server, and the libraries that a small Debian does not have.
const PACKAGES: [&str; 4] = ["mariadb-server-core", "liburing2", "libaio1", "libnuma1"];

/// A server with an empty data folder; everybody may log in.
pub(super) struct Mariadb {
    _server: Server,
    _folder: TempDir,
    pub(super) address: SocketAddr,
}

pub(super) fn fetched() -> Result<PathBuf, String> {
    kept("mariadb-server-core", |folder| {
        output(Command::new("apt-get").arg("download").args(PACKAGES).current_dir(folder))?;
        let files = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
        let packages: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
        for package in packages {
            output(Command::new("dpkg-deb").arg("-x").arg(package).arg(folder))?;
        }
        Ok(())
    })
}

impl Mariadb {
    pub(super) fn start(root: &Path) -> Result<Mariadb, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let address = unused_address();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let mut command = Command::new(root.join("usr/sbin/mariadbd"));
        command.env("LD_LIBRARY_PATH", root.join("usr/lib/x86_64-linux-gnu"));
        command.arg("--no-defaults").arg(format!("--datadir={}", path("")));
        command.arg(format!("--lc-messages-dir={}", root.join("usr/share/mysql").display()));
        command.arg(format!("--socket={}", path("socket"))).arg(format!("--pid-file={}", path("pid")));
        command.arg(format!("--port={}", address.port())).arg("--bind-address=127.0.0.1");
        command.args([
            "--skip-grant-tables",
            "--loose-skip-innodb",
            "--default-storage-engine=Aria",
            "--user=root",
        ]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut server = Server(child.map_err(|error| error.to_string())?);
        let mut ended = false;
        holds_within(PATIENCE, || {
            ended = server.0.try_wait().is_ok_and(|status| status.is_some());
            ended || Client::login(address, "root", "", "").is_ok()
        });
        match ended {
            true => Err("mariadbd does not start".to_owned()),
            false => Ok(Mariadb { _server: server, _folder: folder, address }),
        }
    }
}

const OPERATORS: [&str; 25] = [
    "^", "*", "/", "DIV", "%", "MOD", "-", "+", "<<", ">>", "&", "|", "=", "<=>", ">=", ">", "<=", "<", "<>",
    "!=", "AND", "&&", "XOR", "OR", "||",
];

/// Whether two values are the same number. A quotient of integers is a DOUBLE here, as in Doris; MySQL's has four
/// decimals.
fn is_same(theirs: &str, ours: &str) -> bool {
    let (Ok(theirs), Ok(ours)) = (theirs.parse::<f64>(), ours.parse::<f64>()) else { return theirs == ours };
    (theirs - ours).abs() <= 1e-4 * theirs.abs().max(1.0)
}

// promise 51
#[test]
fn operators_have_mariadbs_values() {
    let mariadb = match fetched().and_then(|root| Mariadb::start(&root)) {
        Ok(mariadb) => mariadb,
        Err(why) => return println!("skipped: operators_have_mariadbs_values: {}", why.trim()),
    };
    let fixture = Fixture::new();
    fixture.csv("t.csv", "i,j,z,f,b\n7,2,0,2.5,true\n3,5,0,0.5,false\n,,,,\n");
    let mut theirs = Client::login(mariadb.address, "root", "", "").unwrap();
    theirs.all(&[
        "create database d",
        "use d",
        "create table t (i bigint, j bigint, z bigint, f double, b boolean)",
        "insert into t values (7, 2, 0, 2.5, true), (3, 5, 0, 0.5, false), (null, null, null, null, null)",
    ]);
    let mut ours = fixture.root();
    let (mut same, mut refused_there, mut unsigned, mut wrong) = (0, 0, 0, Vec::new());
    for one in OPERATORS {
        for other in OPERATORS {
            for operands in [["i", "j", "3"], ["j", "2", "z"], ["b", "1", "f"], ["5", "i", "j"]] {
                let [a, b, c] = operands;
                let sql = format!("select {a} {one} {b} {other} {c} as x from t order by i");
                let (Answer::Rows(_, want), got) = (theirs.query(&sql), ours.query(&sql)) else {
                    // A result that is out of range.
                    refused_there += 1;
                    continue;
                };
                // A negative number as 64 bits: MySQL goes on with an unsigned number, Doris with a signed one.
                if want
                    .iter()
                    .flatten()
                    .flatten()
                    .any(|want| want.parse::<f64>().is_ok_and(|want| want > 1e17))
                {
                    unsigned += 1;
                    continue;
                }
                let is_right = match &got {
                    Answer::Rows(_, got) => {
                        want.iter().zip(got).all(|(want, got)| match (&want[0], &got[0]) {
                            (Some(want), Some(got)) => is_same(want, got),
                            (want, got) => want == got,
                        })
                    }
                    // A shift by a fraction.
                    Answer::Err(1235, why) => why.contains("a shift by Float64 is not supported"),
                    _ => false,
                };
                match is_right {
                    true => same += 1,
                    false => wrong.push(format!("{sql}: {want:?} there, {got:?} here")),
                }
            }
        }
    }
    println!("{same} the same, {refused_there} out of range there, {unsigned} unsigned there");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
