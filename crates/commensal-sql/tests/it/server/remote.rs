//! `S3(...)`: a store on loopback that answers as S3 does, or does not; `HDFS(...)`: a name node that does not.

use crate::server::client::Answer;
use crate::server::fixture::{Fixture, eventually};
use commensal_sql::protocol::Limits;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A bucket `b` with one object for each way of answering.
struct Bucket {
    address: String,
    object: Arc<Object>,
}

/// What is in the object, and how many of its readers are stuck.
struct Object {
    bytes: Vec<u8>,
    stuck: AtomicUsize,
}

/// What is in the object, and how it is given.
fn respond(object: &Object, stream: &mut TcpStream, method: &str, path: &str, range: Option<(usize, usize)>) {
    let body = object.bytes.as_slice();
    let (status, part) = match (path, range) {
        ("/b/denied.csv", _) => ("403 Forbidden", &b"<Error><Code>AccessDenied</Code></Error>"[..]),
        ("/b/k.csv" | "/b/cut.csv" | "/b/stuck.csv", None) => ("200 OK", body),
        ("/b/k.csv" | "/b/cut.csv" | "/b/stuck.csv", Some((from, to))) => {
            ("206 Partial Content", &body[from.min(body.len())..to.min(body.len() - 1) + 1])
        }
        _ => ("404 Not Found", &b"<Error><Code>NoSuchKey</Code></Error>"[..]),
    };
    let place = match range.filter(|_| status.starts_with("206")) {
        Some((from, _)) => {
            format!("Content-Range: bytes {from}-{}/{}\r\n", from + part.len() - 1, body.len())
        }
        None => String::new(),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{place}ETag: \"1\"\r\n\
         Last-Modified: Sun, 22 Nov 2026 12:00:00 GMT\r\nConnection: keep-alive\r\n\r\n",
        part.len()
    );
    stream.write_all(head.as_bytes()).ok();
    if method == "HEAD" {
        return;
    }
    match path {
        // Half of it, and then the end.
        "/b/cut.csv" => {
            stream.write_all(&part[..part.len() / 2]).ok();
            stream.shutdown(std::net::Shutdown::Both).ok();
        }
        "/b/stuck.csv" => {
            stream.write_all(&part[..part.len() / 2]).ok();
            object.stuck.fetch_add(1, Relaxed);
            // Until the other side has had enough.
            let _ = stream.read(&mut [0; 1]).unwrap_or(0);
        }
        _ => {
            stream.write_all(part).ok();
        }
    }
}

impl Bucket {
    fn open(bytes: Vec<u8>) -> Bucket {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let object = Arc::new(Object { bytes, stuck: AtomicUsize::new(0) });
        let shared = Arc::clone(&object);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let object = Arc::clone(&shared);
                std::thread::spawn(move || serve(&object, stream));
            }
        });
        Bucket { address, object }
    }

    fn call(&self, key: &str) -> String {
        format!(
            "s3(\"URI\" = \"{}/b/{key}\", \"use_path_style\" = \"true\", \"format\" = \"csv\", \
             \"column_separator\" = \",\")",
            self.address
        )
    }
}

fn serve(object: &Object, mut stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut request = String::new();
        if lines.read_line(&mut request).unwrap_or(0) == 0 {
            return;
        }
        let mut range = None;
        loop {
            let mut line = String::new();
            lines.read_line(&mut line).ok();
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some((from, to)) =
                line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-'))
            {
                range = Some((from.parse().unwrap_or(0), to.parse().unwrap_or(usize::MAX / 2)));
            }
        }
        let mut words = request.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        respond(object, &mut stream, method, path, range);
    }
}

fn fixture(bucket: &Bucket) -> Fixture {
    let address = bucket.address.clone();
    Fixture::with(Limits::default(), move |options| options.endpoints.0 = vec![address])
}

#[test]
fn a_store_that_fails_is_an_error_of_one_query() {
    let bucket = Bucket::open((0..50_000).flat_map(|row| format!("{row},x\n").into_bytes()).collect());
    let fixture = fixture(&bucket);
    let mut client = fixture.root();
    for key in ["denied.csv", "missing.csv"] {
        let answer = client.query(&format!("select * from {}", bucket.call(key)));
        assert!(matches!(answer, Answer::Err(..)), "{key}: {answer:?}");
    }
    // One that never comes to an end is left when its user has had enough.
    client.ask(&format!("select count(*) from {}", bucket.call("stuck.csv"))).unwrap();
    eventually("it runs", || fixture.engine.queries.all().iter().any(|query| query.timing.begun().is_some()));
    eventually("it is stuck", || bucket.object.stuck.load(Relaxed) > 0);
    fixture.root().all(&[&format!("kill query {}", client.id)]);
    assert_eq!(client.answer().unwrap().error(), "query is cancelled");
    eventually("nothing is left", || fixture.is_quiet());
    assert_eq!(client.query("select 1").cell(), "1");
}

#[test]
fn half_an_object_is_no_result() {
    let bucket = Bucket::open((0..50_000).flat_map(|row| format!("{row},x\n").into_bytes()).collect());
    let fixture = fixture(&bucket);
    let mut client = fixture.root();
    // The client of the store asks again a few times before it gives up.
    client.all(&["set query_timeout = 5"]);
    let answer = client.query(&format!("select count(*) from {}", bucket.call("cut.csv")));
    assert!(matches!(answer, Answer::Err(..)), "{answer:?}");
}

/// Reads what a client has sent to a name node, up to the name of a call.
fn asked(stream: &mut TcpStream, call: &str) {
    let mut sent = Vec::new();
    while !sent.windows(call.len()).any(|part| part == call.as_bytes()) {
        let mut part = [0; 4096];
        let size = stream.read(&mut part).unwrap();
        assert!(size > 0, "no {call} in {}", String::from_utf8_lossy(&sent));
        sent.extend_from_slice(&part[..size]);
    }
}

#[test]
fn a_name_node_that_never_answers_has_one_connection() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("hdfs://{}", silent.local_addr().unwrap());
    let options = endpoint.clone();
    let fixture = Fixture::with(Limits::default(), move |given| given.endpoints.0 = vec![options]);
    let call = format!("hdfs(\"uri\" = \"{endpoint}/t/k.csv\", \"hadoop.username\" = \"ann\")");
    let mut client = fixture.root();
    let mut connection = None;
    for _ in 0..3 {
        client.ask(&format!("select * from {call}")).unwrap();
        asked(connection.get_or_insert_with(|| silent.accept().unwrap().0), "getFileInfo");
        fixture.root().all(&[&format!("kill query {}", client.id)]);
        assert_eq!(client.answer().unwrap().error(), "query is cancelled");
    }
    silent.set_nonblocking(true).unwrap();
    assert!(silent.accept().is_err(), "a statement has opened another connection");
    eventually("nothing is left", || fixture.is_quiet());
}

mod measure {
    use super::*;
    use std::time::Instant;

    // promise 46
    #[test]
    fn objects_are_read_at_the_groups_rate() {
        let rows = 300_000;
        let text: String = (0..rows).map(|row| format!("{row},abcdefghijklmnopqrstuvwxyz,{row}\n")).collect();
        let size = text.len();
        let bucket = Bucket::open(text.into_bytes());
        let fixture = fixture(&bucket);
        let mut client = fixture.root();
        assert_eq!(
            client.query(&format!("select count(*) from {}", bucket.call("k.csv"))).cell(),
            rows.to_string()
        );
        let described = client.query(&format!("desc function {}", bucket.call("k.csv"))).rows();
        assert_eq!(described.len(), 3, "{described:?}");
        let rate = 4 << 20;
        client.all(&[
            &format!("alter workload group normal properties('remote_read_bytes_per_second'='{rate}')"),
            "set dry_run_query = true",
        ]);
        let group = fixture.engine.groups()["normal"].clone();
        let (before, begun) = (group.read_bytes().1, Instant::now());
        assert_eq!(client.query(&format!("select * from {}", bucket.call("k.csv"))).cell(), rows.to_string());
        let (bytes, seconds) = (group.read_bytes().1 - before, begun.elapsed().as_secs_f64());
        println!("{:.1} MiB in {seconds:.2} s at 4 MiB/s", bytes as f64 / 1048576.0);
        assert!(bytes >= size as u64, "{bytes} of {size}");
        // A second's allowance for what socket buffers and the burst take in at once.
        assert!((bytes as f64 - f64::from(rate)) / seconds < f64::from(rate) * 1.1);
    }
}
