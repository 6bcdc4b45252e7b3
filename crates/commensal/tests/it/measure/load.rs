//! `lab load` end to end over loopback, for some seconds. Nothing here asserts a latency or a rate: only what is said, and the exit
//! status.

use crate::load::{ENDS, load, responder};
use crate::support::{Program, Server};
use serde_json::Value;

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
            "resent",
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
