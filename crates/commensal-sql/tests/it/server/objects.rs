//! `S3(...)` against stores that others wrote: s3s-fs in this process, which checks signatures, and moto.

use crate::server::client::{Answer, Client};
use crate::server::fixture::{Fixture, eventually, write_hits};
use commensal_sql::protocol::Limits;
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use std::net::{SocketAddr, TcpListener};
use tempfile::TempDir;

const KEY: &str = "commensal-key";
const SECRET: &str = "commensal-secret-0123456789";
const BUCKET: &str = "lake";
const ROWS: usize = 300_000;
const LINES: usize = 50_000;

/// A store on loopback.
struct Store {
    address: SocketAddr,
    /// Holds what the store keeps.
    _folder: TempDir,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Store {
    /// s3s-fs over a folder with the bucket in it; whoever asks has to sign.
    fn open() -> Store {
        let folder = tempfile::tempdir().unwrap();
        let bucket = folder.path().join(BUCKET);
        std::fs::create_dir_all(bucket.join("days")).unwrap();
        fill(|name| bucket.join(name));
        let mut builder = S3ServiceBuilder::new(FileSystem::new(folder.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = builder.build();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let answered = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service.clone());
                tokio::spawn(answered);
            }
        });
        Store { address, _folder: folder, runtime: Some(runtime) }
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// What every store holds: one Parquet file, and CSV files of two days.
fn fill(path: impl Fn(&str) -> std::path::PathBuf) {
    write_hits(&path("hits.parquet"), ROWS);
    for day in ["days/1.csv", "days/2 b.csv"] {
        let text: String = (0..LINES).map(|row| format!("{row},{day}\n")).collect();
        std::fs::write(path(day), text).unwrap();
    }
}

fn call(uri: &str, endpoint: &str, secret: &str, more: &str) -> String {
    format!(
        "S3(\"uri\" = \"{uri}\", \"s3.endpoint\" = \"{endpoint}\", \"s3.access_key\" = \"{KEY}\", \
         \"s3.secret_key\" = \"{secret}\", \"s3.region\" = \"us-east-1\", {more})"
    )
}

const CSV: &str = "\"format\" = \"csv\", \"column_separator\" = \",\"";
const PARQUET: &str = "\"format\" = \"parquet\"";

/// What holds for every store.
fn answers(client: &mut Client, endpoint: &str) {
    let hits = call(&format!("s3://{BUCKET}/hits.parquet"), endpoint, SECRET, PARQUET);
    let counted = client.query(&format!("select count(*), sum(id), count(distinct g) from {hits}")).rows();
    let sum = (ROWS * (ROWS - 1) / 2).to_string();
    assert_eq!(counted, [[ROWS.to_string(), sum, "1000".to_owned()]]);
    // The same object by its address in path style, and one whose name has to be written otherwise.
    let path = format!("{endpoint}/{BUCKET}/hits.parquet");
    let hits = call(&path, endpoint, SECRET, &format!("{PARQUET}, \"use_path_style\" = \"true\""));
    assert_eq!(client.query(&format!("select max(id) from {hits}")).cell(), (ROWS - 1).to_string());
    let one = call(&format!("s3://{BUCKET}/days/2 b.csv"), endpoint, SECRET, CSV);
    assert_eq!(client.query(&format!("select count(*) from {one}")).cell(), LINES.to_string());
    // Some objects by a pattern, as Doris has it.
    let all = call(&format!("s3://{BUCKET}/days/*.csv"), endpoint, SECRET, CSV);
    assert_eq!(client.query(&format!("select count(*) from {all}")).cell(), (2 * LINES).to_string());
    assert_eq!(client.query(&format!("desc function {all}")).rows().len(), 2);
    let absent = call(&format!("s3://{BUCKET}/absent.parquet"), endpoint, SECRET, PARQUET);
    let answer = client.query(&format!("select * from {absent}"));
    assert!(matches!(answer, Answer::Err(..)), "{answer:?}");
}

fn allowing(endpoint: String) -> Fixture {
    Fixture::with(Limits::default(), move |options| options.endpoints.0 = vec![endpoint])
}

// promise 51
#[test]
fn a_store_that_checks_signatures() {
    let store = Store::open();
    let fixture = allowing(store.endpoint());
    let mut client = fixture.root();
    answers(&mut client, &store.endpoint());
    // A wrong key, and none: the store refuses, and the sentence has no secret in it.
    let wrong =
        call(&format!("s3://{BUCKET}/hits.parquet"), &store.endpoint(), "another-secret-98765", PARQUET);
    let refused = client.query(&format!("select count(*) from {wrong}")).error();
    assert!(!refused.contains("another-secret") && !refused.contains(SECRET), "{refused}");
    let nobody = format!(
        "S3(\"uri\" = \"{}/{BUCKET}/hits.parquet\", \"use_path_style\" = \"true\", {PARQUET})",
        store.endpoint()
    );
    assert!(!client.query(&format!("select count(*) from {nobody}")).error().is_empty());
    eventually("nothing is left", || fixture.is_quiet());
}

// promise 51
#[test]
fn what_a_store_sends_is_what_is_counted() {
    let store = Store::open();
    let fixture = allowing(store.endpoint());
    let mut client = fixture.root();
    client.all(&["set dry_run_query = true"]);
    let hits = call(&format!("s3://{BUCKET}/hits.parquet"), &store.endpoint(), SECRET, PARQUET);
    let size = store._folder.path().join(BUCKET).join("hits.parquet").metadata().unwrap().len();
    let group = fixture.engine.groups()["normal"].clone();
    let read = |client: &mut Client, columns: &str| {
        let before = group.read_bytes().1;
        assert_eq!(client.query(&format!("select {columns} from {hits}")).cell(), ROWS.to_string());
        group.read_bytes().1 - before
    };
    let (all, one) = (read(&mut client, "*"), read(&mut client, "g"));
    println!("of {size} bytes: all columns {all}, one {one}");
    // The footer is read besides, once or twice.
    assert!(all as f64 > 0.9 * size as f64 && (all as f64) < 1.2 * size as f64, "{all} of {size}");
    // A column is read by ranges, and only they are paid.
    assert!(one < all / 4, "{one} of {all}");
}

mod external {
    use super::*;
    use crate::external::drivers::{kept, output};
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    /// The version that the tests were written with.
    const MOTO: &str = "moto[server]==5.2.5";

    /// moto's server, whose threads a signal ends.
    struct Moto(Child);

    impl Drop for Moto {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A request without a body in return: moto takes unsigned ones.
    fn put(address: SocketAddr, path: &str, body: &[u8]) {
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }

    fn moto(library: &Path, address: SocketAddr) -> Moto {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", library).env("PYTHONDONTWRITEBYTECODE", "1");
        python.args(["-c", "from moto.server import main; main()"]);
        python.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
        Moto(python.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    // promise 51
    #[test]
    fn another_store_gives_the_same_answers() {
        let test = "another_store_gives_the_same_answers";
        // It takes packages of 100 MB and half a minute.
        if std::env::var_os("COMMENSAL_MOTO").is_none() {
            return println!("skipped: {test}: long tier (COMMENSAL_MOTO is not set)");
        }
        let fetched = kept("moto-5.2.5", |folder| {
            let mut pip = Command::new("python3");
            pip.args(["-m", "pip", "install", "--quiet", "--timeout", "20", "--retries", "1", "--target"]);
            output(pip.arg(folder).arg(MOTO)).map(|_| ())
        });
        let library = match fetched {
            Ok(library) => library,
            Err(why) => return println!("skipped: {test}: no {MOTO}: {}", why.trim()),
        };
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut server = moto(&library, free);
        eventually("moto listens", || {
            assert!(server.0.try_wait().unwrap().is_none(), "moto has ended");
            TcpStream::connect(free).is_ok()
        });
        put(free, &format!("/{BUCKET}"), b"");
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("days")).unwrap();
        fill(|name| folder.path().join(name));
        for name in ["hits.parquet", "days/1.csv", "days/2 b.csv"] {
            let body = std::fs::read(folder.path().join(name)).unwrap();
            put(free, &format!("/{BUCKET}/{}", name.replace(' ', "%20")), &body);
        }
        let endpoint = format!("http://{free}");
        let fixture = allowing(endpoint.clone());
        answers(&mut fixture.root(), &endpoint);
    }
}
