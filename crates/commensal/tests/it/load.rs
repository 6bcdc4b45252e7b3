//! `lab load` over loopback: what is told of bad input, and what a load that is ended reports.

use crate::load_from::Counting;
use crate::support::{Program, Server, text};
use commensal_testkit::{Signal, ended, field_of_status, signal, until, unused_address};
use serde_json::Value;
use std::io::Write;
use std::net::TcpListener;
use std::process::Stdio;

/// A measurement that ends: believed or not is the machine's affair.
pub(crate) const ENDS: [i32; 2] = [0, 4];

pub(crate) fn responder(program: &Program) -> Server {
    Server::start(program, &["workload", "responder"])
}

/// Runs `lab load` with these arguments; status, standard output, standard error.
pub(crate) fn load(program: &Program, args: &[&str]) -> (i32, String, String) {
    let args: Vec<&str> = ["lab", "load"].iter().chain(args).copied().collect();
    let output = program.run(&args);
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn bad_input_is_an_error_with_a_way_out() {
    let program = Program::new("load-bad");
    let server = responder(&program);
    let url = server.url();
    let check = |args: &[&str], words: &str| {
        let (status, out, err) = load(&program, args);
        assert_eq!((status, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(err.contains(words), "{args:?}: {err}");
    };
    for rate in ["0", "-5", "nan", "inf", "-inf", "1e9", "many", ""] {
        check(&[&url, &format!("--rate={rate}")], "above 0 and at most 1000000");
    }
    check(&[&url, "--rate", "10", "--for", "0s"], "it must be above 0");
    check(&[&url, "--rate", "10", "--for", "10"], "is not a time with a unit, such as 10s");
    check(&[&url, "--rate", "10", "--for", "3days"], "at most a day");
    check(&[&url, "--rate", "10", "--timeout", "0ms"], "it must be above 0");
    check(&[&url, "--rate", "10", "--connections", "0"], "must be 1 to 60000");
    check(&[&url, "--closed", "0"], "must be 1 to 60000");
    check(&[&url, "--rate", "10", "--slo", "p98=5ms"], "unknown metric; the choices are");
    check(
        &[&url, "--rate", "10", "--slo", "p99=5ms", "--window", "100ms"],
        "a window is a whole number of seconds",
    );
    check(&[&url, "--rate", "10", "--slo", "p99=9s"], "raise --timeout");
    check(&[&url, "--rate", "10", "--closed", "2"], "cannot be used with");
    check(&[&url], "--rate");
    check(&["--rate", "10"], "URL");
    check(&["https://localhost/", "--rate", "10"], "https is not supported");
    check(&["localhost:80", "--rate", "10"], "write it as http://");
    check(&["http://localhost:99999/", "--rate", "10"], "is not a host and a port");
    check(&[&url, "--rate", "10", "--hdr", "/no/such/folder/x"], "cannot be written");
    check(&[&url, "--rate", "10", "--from=-oProxyCommand=x"], "not a host that ssh accepts");
    check(
        &[&url, "--rate", "10", "--from", "h", "--hdr", "load.hdr"],
        "run `commensal lab load` there with --hdr",
    );
    let free = unused_address();
    check(&[&format!("http://{free}/"), "--rate", "10"], "and that the server runs");
}

#[test]
fn what_is_not_a_page_over_http_is_told_before_any_load() {
    let program = Program::new("load-other");
    for (says, words) in [
        ("SSH-2.0-OpenSSH_9.2\r\n", "the response is not HTTP/1.1"),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "status 404"),
        ("", "and that the server runs"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0u8; 1024];
            let _ = std::io::Read::read(&mut stream, &mut request);
            let _ = stream.write_all(says.as_bytes());
        });
        let (status, out, err) = load(&program, &[&url, "--rate", "10"]);
        server.join().unwrap();
        assert_eq!((status, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(words), "{err}");
    }
}

/// A shell without job control has its background jobs ignore SIGINT, and what is ignored stays ignored.
fn ignores_sigint() -> bool {
    let mask = field_of_status(std::process::id(), "SigIgn").unwrap();
    u64::from_str_radix(&mask, 16).unwrap() & 0b10 != 0
}

#[test]
fn ctrl_c_ends_and_reports_what_was_measured() {
    let program = Program::new("load-stop");
    let server = Counting::start();
    let url = server.url();
    for (warmup, reported, with) in
        [("0s", true, Signal::INT), ("0s", true, Signal::TERM), ("1h", false, Signal::INT)]
    {
        if with == Signal::INT && ignores_sigint() {
            println!("skipped: ctrl_c_ends_and_reports_what_was_measured: SIGINT is ignored here");
            continue;
        }
        let args = ["lab", "load", &url, "--rate", "100", "--for", "1h", "--warmup", warmup, "--json"];
        let child = program.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        server.until(20);
        assert!(signal(child.id(), with));
        // An hour was asked for.
        until("it ends", || ended(child.id()));
        let output = child.wait_with_output().unwrap();
        let (status, err) = (output.status.code().unwrap(), text(&output.stderr));
        if reported {
            assert!(ENDS.contains(&status), "{err}");
            let report: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
            assert_eq!(report["cut"], true);
            assert!(report["caveats"].to_string().contains("stopped after"), "{}", report["caveats"]);
            assert!(report["completed"].as_u64().unwrap() > 0);
        } else {
            assert_eq!(status, 2, "{err}");
            assert!(err.contains("stopped before the measured part began"), "{err}");
        }
    }
}
