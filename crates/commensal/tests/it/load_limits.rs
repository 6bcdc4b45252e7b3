//! `lab load` against what can go wrong around it: no descriptors, no local ports, a service that ends every connection, a
//! service that stops in the middle. Each is named as what it is; none is a service that does not keep up.

use crate::support::{Program, text};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs its arguments.
const PLAIN: &str = "exec \"$@\"";

/// Runs its arguments with fewer descriptors than connections.
const FEW_DESCRIPTORS: &str = "ulimit -n 40; exec \"$@\"";

/// Runs its arguments with four local ports, next to a service: both need a network namespace of their own.
const FOUR_PORTS: &str = r#"
ip link set lo up || exit 77
echo '61000 61003' >/proc/sys/net/ipv4/ip_local_port_range || exit 77
"$1" workload responder --port 8080 >responder.txt &
server=$!
until grep -q listening responder.txt; do kill -0 $server || exit 78; done
"$@"
status=$?
kill $server
exit $status
"#;

/// Starts a server that says after each answer that it closes the connection. After `most` answers, it closes its port and all
/// connections. Returns its URL.
fn closing_server(most: u64) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let answers = Arc::new(AtomicU64::new(0));
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming().flatten() {
            if answers.load(Ordering::Relaxed) >= most {
                break;
            }
            held.extend(stream.try_clone());
            let answers = Arc::clone(&answers);
            std::thread::spawn(move || answer(stream, &answers));
        }
        drop(listener);
        held.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    });
    url
}

/// Answers one request.
fn answer(mut stream: TcpStream, answers: &AtomicU64) {
    let (mut seen, mut chunk) = (Vec::new(), [0_u8; 4096]);
    while !seen.ends_with(b"\r\n\r\n") {
        let Ok(read @ 1..) = stream.read(&mut chunk) else { return };
        seen.extend_from_slice(&chunk[..read]);
    }
    answers.fetch_add(1, Ordering::Relaxed);
    drop(stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"));
}

/// Runs `lab load` through a shell script, which gets the command as its arguments.
fn load(program: &Program, [namespace, script]: [&[&str]; 2], arguments: &[&str]) -> std::io::Result<Output> {
    let more = ["--for", "1s", "--warmup", "0s", "--json"];
    let run = program.command(&[&["lab", "load"], arguments, &more].concat());
    let shell = [namespace, &["sh", "-c"], script, &["sh"]].concat();
    Command::new(shell[0])
        .args(&shell[1..])
        .arg(run.get_program())
        .args(run.get_args())
        .current_dir(run.get_current_dir().unwrap())
        .output()
}

fn report(output: &Output) -> Value {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"))
}

// promise 36
#[test]
fn descriptors_that_run_out_are_the_generators_limit() {
    let program = Program::new("load-descriptors");
    let url = closing_server(u64::MAX);
    let arguments = [&url, "--rate", "200", "--connections", "100"];
    let output = load(&program, [&[], &[FEW_DESCRIPTORS]], &arguments).unwrap();
    let said = text(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(said.contains("the load generator ran out of file descriptors (EMFILE)"), "{said}");
    assert!(said.contains("ulimit -n") && !said.contains("keep up"), "{said}");
}

// promise 36
#[test]
fn local_ports_that_run_out_are_the_generators_limit() {
    let test = "local_ports_that_run_out_are_the_generators_limit";
    let program = Program::new("load-ports");
    let arguments = ["http://127.0.0.1:8080/", "--rate", "200", "--connections", "50"];
    let output = match load(&program, [&["unshare", "--net"], &[FOUR_PORTS]], &arguments) {
        Ok(output) => output,
        Err(error) => return println!("skipped: {test}: unshare: {error}"),
    };
    let said = text(&output.stderr);
    if output.status.code() == Some(77) || said.starts_with("unshare: ") {
        return println!("skipped: {test}: {}", said.trim());
    }
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(said.contains("the load generator ran out of local ports (EADDRNOTAVAIL)"), "{said}");
    assert!(said.contains("ip_local_port_range") && !said.contains("keep up"), "{said}");
}

// promise 36
#[test]
fn a_service_that_stops_is_named_as_not_there() {
    let program = Program::new("load-stops");
    let url = closing_server(20);
    let output = load(&program, [&[], &[PLAIN]], &[&url, "--rate", "200"]).unwrap();
    let report = report(&output);
    let reasons = report["invalid_reasons"].to_string();
    assert_eq!(report["valid"], false, "{report}");
    assert!(reasons.contains("could not be reached") && reasons.contains("ECONNREFUSED"), "{reasons}");
    assert!(!reasons.contains("keep up"), "{reasons}");
}

#[test]
fn a_service_that_ends_every_connection_is_no_failure() {
    let program = Program::new("load-closes");
    let url = closing_server(u64::MAX);
    let output = load(&program, [&[], &[PLAIN]], &[&url, "--rate", "100"]).unwrap();
    let report = report(&output);
    let kinds = report["error_kinds"].as_object().unwrap();
    assert!(kinds.values().all(|kind| kind.as_u64().is_none_or(|count| count == 0)), "{report}");
    let reasons = report["invalid_reasons"].to_string();
    assert!(!reasons.contains("error"), "{reasons}");
    assert!(report["reconnects"].as_u64().unwrap() >= report["completed"].as_u64().unwrap() / 2, "{report}");
}
