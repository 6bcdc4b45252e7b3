//! `lab load` end to end over loopback. Nothing here asserts a latency or a rate: only what is said, the exit status,
//! and that bad input ends with a way out.

use crate::load_from::Counting;
use crate::support::{Program, Server, text};
use commensal_testkit::{Signal, field_of_status, signal, unused_address};
use serde_json::Value;
use std::io::Write;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A measurement that ends: believed or not is the machine's affair.
const ENDS: [i32; 2] = [0, 4];

fn responder(program: &Program) -> Server {
    Server::start(program, &["workload", "responder"])
}

/// Runs `lab load` with these arguments; status, standard output, standard error.
fn load(program: &Program, args: &[&str]) -> (i32, String, String) {
    let args: Vec<&str> = ["lab", "load"].iter().chain(args).copied().collect();
    let output = program.run(&args);
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_report_says_what_was_asked_and_what_was_seen() {
    let program = Program::new("load");
    let server = responder(&program);
    let log = program.path("load.hdr");
    let args = [
        &server.url(),
        "--rate",
        "300",
        "--for",
        "1500ms",
        "--warmup",
        "200ms",
        "--connections",
        "4",
        "--slo",
        "p90=50ms",
        "--series",
        "--hdr",
        log.to_str().unwrap(),
    ];
    let (status, out, err) = load(&program, &args);
    assert!(ENDS.contains(&status), "{status} {out}{err}");
    for words in [
        "open loop, 300 requests/s, poisson, 4 connections, seed 1",
        "from the schedule",
        "from the send",
        "generator was late by",
        "no errors among",
        "objective P90 <= 50 ms: met in",
        "answered/s",
    ] {
        assert!(out.contains(words), "{words:?} is missing:\n{out}");
    }
    assert_eq!(status == 0, out.contains("\nVALID\n"), "{out}");
    assert_eq!(status == 4, out.contains("INVALID: do not use these figures"), "{out}");
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains(",HISTF")).count(), 2, "{log}");
}

#[test]
fn json_has_the_documented_keys_and_counts_that_add_up() {
    let program = Program::new("load-json");
    let server = responder(&program);
    for how in [["--rate", "200"], ["--closed", "2"]] {
        let url = server.url();
        let args = [&url, how[0], how[1], "--for", "1s", "--warmup", "100ms", "--json", "--slo", "p50=10ms"];
        let (status, out, err) = load(&program, &args);
        assert!(ENDS.contains(&status), "{out}{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        let keys: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = [
            "schema",
            "valid",
            "invalid_reasons",
            "caveats",
            "asked",
            "measured_s",
            "cut",
            "offered",
            "offered_per_s",
            "achieved_per_s",
            "sent",
            "completed",
            "errors",
            "error_kinds",
            "timeouts",
            "reconnects",
            "generator_cpu_s",
            "latency_us",
            "service_us",
            "lateness_us",
            "slo",
            "series",
            "hist",
            "service_hist",
            "lateness_hist",
        ];
        expected.sort_unstable();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected);
        assert_eq!(report["schema"], "commensal.load/1");
        assert_eq!(report["valid"], status == 0);
        let number = |key: &str| report[key].as_u64().unwrap();
        assert_eq!(number("offered"), number("completed") + number("errors") + number("timeouts"));
        let histogram = commensal_lab::record::decode_histogram(report["hist"].as_str().unwrap()).unwrap();
        assert_eq!(histogram.len(), number("completed") + number("timeouts"));
        let closed = how[0] == "--closed";
        assert_eq!(report["asked"]["rate_per_s"].is_null(), closed);
        assert_eq!(report["lateness_us"].is_null(), closed);
        let told = report["caveats"].to_string().contains("closed loop");
        assert_eq!(told, closed, "{}", report["caveats"]);
        assert_eq!(report["slo"]["seen"]["windows"], 1);
    }
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

/// One connection cannot carry the rate, whenever the server stalls: status 4, and no figure without the word.
#[test]
fn a_rate_that_is_not_reached_is_not_a_result() {
    let program = Program::new("load-slow");
    let server =
        Server::start(&program, &["workload", "responder", "--stall-ms", "900", "--stall-every-s", "1"]);
    let args = [&server.url(), "--rate", "200000", "--connections", "1", "--for", "1s", "--warmup", "0s"];
    let (status, out, err) = load(&program, &args);
    assert_eq!(status, 4, "{out}{err}");
    assert!(out.contains("INVALID: do not use these figures"), "{out}");
    assert!(out.contains("offered requests/s") || out.contains("the generator"), "{out}");
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
        let asked = Instant::now();
        let output = child.wait_with_output().unwrap();
        assert!(asked.elapsed() < Duration::from_secs(60), "an hour was asked for");
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

#[test]
fn the_knee_is_searched_step_by_step() {
    let program = Program::new("load-knee");
    // About 10 ms of CPU per request: a knee that is near, on any machine.
    let server = Server::start(&program, &["workload", "http", "--workers", "1"]);
    let url = format!("http://{}/cpu?cpu=1&count=3000000", server.addr);
    let (status, out, err) = load(&program, &[&url, "--find-knee", "--connections", "4"]);
    assert!([0, 2, 4].contains(&status), "{out}{err}");
    assert!(out.contains("achieved") && out.contains("keep"), "{out}{err}");
    assert_eq!(status == 2, err.contains("no knee was found"), "{out}{err}");
    assert!(status == 2 || out.contains("knee "), "{out}");
}
