//! Tests the server over real loopback connections.

use super::*;
use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;

/// Starts a server on a free port; its thread runs until the test process exits.
fn start() -> SocketAddr {
    let server = HttpServer::bind(HttpOptions { port: 0, workers: 2 }).expect("a free port");
    let addr = server.addr();
    std::thread::spawn(move || server.run());
    addr
}

/// Sends one request on a new connection; returns status and body.
fn ask(addr: SocketAddr, method: &str, target: &str) -> (u16, String) {
    let stream = TcpStream::connect(addr).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
    let text = commensal_testkit::http(stream, method, target);
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    (status, body.to_owned())
}

/// Returns the value of a metric in Prometheus text.
fn sample(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn every_route_answers() {
    let addr = start();
    assert_eq!(ask(addr, "GET", "/healthz"), (200, "ok\n".into()));
    assert_eq!(ask(addr, "GET", "/cpu?cpu=1&count=1000"), (200, format!("{:016x}\n", burn(1000))));
    assert_eq!(ask(addr, "GET", "/cpu?count=7&cpu=3&other=x").0, 200);
    assert_eq!(ask(addr, "GET", "/cpu?cpu=64&count=0").0, 200);
    assert_eq!(ask(addr, "GET", "/metrics").0, 200);
    assert_eq!(ask(addr, "POST", "/reset").0, 200);
    // The server computed three requests and delayed none of them.
    let (status, told) = ask(addr, "POST", "/slow?before=7&after=0");
    assert!(status == 200 && told.starts_with("requests 3 added_ns 0 over 0 "), "{told}");
    for wrong in ["", "?before=1", "?after=1", "?before=x&after=0", "?before=0&after=2000000000"] {
        assert_eq!(ask(addr, "POST", &format!("/slow{wrong}")).0, 400, "{wrong}");
    }
    assert_eq!(ask(addr, "GET", "/slow?before=1&after=0").0, 404);
    assert_eq!(ask(addr, "GET", "/").0, 404);
    assert_eq!(ask(addr, "POST", "/cpu?cpu=1&count=1").0, 404);
    assert_eq!(ask(addr, "GET", "/reset").0, 404);
}

#[test]
fn bad_input_is_refused_with_the_reason() {
    let addr = start();
    let check = |target: &str, word: &str| {
        let (status, body) = ask(addr, "GET", target);
        assert_eq!(status, 400, "{target}");
        assert!(body.contains(word), "{target}: {body}");
    };
    check("/cpu", "cpu is missing");
    check("/cpu?cpu=1", "count is missing");
    check("/cpu?count=1", "cpu is missing");
    check("/cpu?cpu=one&count=1", "\"one\"");
    check("/cpu?cpu=1&count=", "\"\"");
    check("/cpu?cpu=1&count=-5", "\"-5\"");
    check("/cpu?cpu=0&count=1", "cpu = 0");
    check("/cpu?cpu=65&count=1", "cpu = 65");
    check("/cpu?cpu=1&count=10000000001", "count = 10000000001");
    check("/cpu?cpu=1&count=99999999999999999999999", "not a number");
}

#[test]
fn metrics_parse_and_count_exactly_what_was_sent() {
    let addr = start();
    let text = ask(addr, "GET", "/metrics").1;
    assert!(sample(&text, "http_response_time{path=\"/cpu\",quantile=\"0.5\"}").expect("a sample").is_nan());
    for _ in 0..20 {
        assert_eq!(ask(addr, "GET", "/cpu?cpu=1&count=20000").0, 200);
    }
    for _ in 0..3 {
        assert_eq!(ask(addr, "GET", "/cpu?cpu=0&count=1").0, 400);
    }
    let text = ask(addr, "GET", "/metrics").1;
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("name and value");
        assert!(name.contains("path=\"") || name.contains("code=\""), "{line}");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    assert_eq!(sample(&text, "http_response_time_count{path=\"/cpu\"}"), Some(20.0));
    assert_eq!(sample(&text, "http_requests_total{path=\"/cpu\",code=\"200\"}"), Some(20.0));
    assert_eq!(sample(&text, "http_requests_total{path=\"/cpu\",code=\"400\"}"), Some(3.0));
    let quantile = |q: &str| {
        sample(&text, &format!("http_response_time{{path=\"/cpu\",quantile=\"{q}\"}}")).expect("a quantile")
    };
    let seen: Vec<f64> = ["0.5", "0.9", "0.95", "0.99"].map(quantile).to_vec();
    assert!(seen[0] > 0.0 && seen.is_sorted(), "{seen:?}");
    let sum = sample(&text, "http_response_time_sum{path=\"/cpu\"}").expect("a sum");
    assert!(sum >= seen[0] * 9.0 && sum <= seen[3] * 21.0, "sum {sum} with quantiles {seen:?}");

    ask(addr, "POST", "/reset");
    let text = ask(addr, "GET", "/metrics").1;
    assert_eq!(sample(&text, "http_response_time_count{path=\"/cpu\"}"), Some(0.0));
    assert_eq!(sample(&text, "http_requests_total{path=\"/cpu\",code=\"200\"}"), None);
}

#[test]
fn one_connection_carries_many_requests() {
    let addr = start();
    let stream = TcpStream::connect(addr).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
    let mut reader = BufReader::new(stream.try_clone().expect("clone"));
    let mut writer = stream;
    for _ in 0..3 {
        write!(writer, "GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n").expect("send");
        let mut line = String::new();
        while line != "ok\n" {
            line.clear();
            assert!(reader.read_line(&mut line).expect("a line") > 0, "closed");
        }
    }
}

#[test]
fn a_busy_port_names_itself_and_the_way_out() {
    let first = HttpServer::bind(HttpOptions { port: 0, workers: 1 }).expect("a free port");
    let port = first.addr().port();
    let error = HttpServer::bind(HttpOptions { port, workers: 1 }).expect_err("busy");
    let text = error.to_string();
    assert!(text.contains(&port.to_string()) && text.contains("0 selects any free port"), "{text}");
    assert!(HttpServer::bind(HttpOptions { port: 0, workers: 0 }).is_err());
}
