//! Tests of the Prometheus client, with a server that sends every kind of invalid response.

use super::*;
use std::io::{Read, Write};
use std::net::TcpListener;

/// What the server does after it has read the request.
#[derive(Clone)]
enum Does {
    /// Sends these bytes and closes the connection.
    Sends(Vec<u8>),
    /// Sends these bytes and keeps the connection open.
    Keeps(Vec<u8>),
    /// Sends nothing.
    Waits,
    /// Sends one byte at a time, for ever.
    Drips,
    /// Sends data without end.
    Floods,
}

/// How long the client waits for a response that comes.
const LONG: Duration = Duration::from_secs(60);
/// How long the client waits for a response that never comes.
const SHORT: Duration = Duration::from_millis(500);

/// Queries a server with this behaviour; returns the result, and the request that the server received.
fn asked(does: Does, query: &str) -> (Result<Option<f64>, QueryError>, String) {
    asked_within(LONG, does, query)
}

fn asked_within(patience: Duration, does: Does, query: &str) -> (Result<Option<f64>, QueryError>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url: Url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
            request.push(byte[0]);
        }
        match does {
            Does::Sends(bytes) => drop(stream.write_all(&bytes)),
            Does::Keeps(bytes) => {
                let _ = stream.write_all(&bytes);
                // Blocks until the client closes the connection.
                let _ = stream.read(&mut byte);
            }
            Does::Waits => drop(stream.read(&mut byte)),
            Does::Drips => {
                let _ = stream.set_read_timeout(Some(Duration::from_millis(5)));
                // The pause between two bytes ends early when the client closes the connection.
                while stream.write_all(b"H").is_ok() && !matches!(stream.read(&mut byte), Ok(0)) {}
            }
            Does::Floods => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                while stream.write_all(&[b' '; 4096]).is_ok() {}
            }
        }
        String::from_utf8(request).unwrap()
    });
    let got = ask_within(&url, query, UNIX_EPOCH + Duration::from_millis(1_700_000_000_250), patience);
    (got, server.join().unwrap())
}

fn http(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn ok(data: &str) -> Vec<u8> {
    http("200 OK", "", &format!("{{\"status\":\"success\",\"data\":{data}}}"))
}

fn vector(result: &str) -> String {
    format!("{{\"resultType\":\"vector\",\"result\":[{result}]}}")
}

#[test]
fn one_number_or_none() {
    let one = |value: &str| {
        vector(&format!("{{\"metric\":{{\"a\":\"b\"}},\"value\":[1700000000.25,\"{value}\"]}}"))
    };
    let scalar = "{\"resultType\":\"scalar\",\"result\":[1,\"2.5\"]}".to_owned();
    for (data, want) in [
        (one("0.125"), Some(0.125)),
        (one("1e+06"), Some(1e6)),
        (one("0"), Some(0.0)),
        (one("-3"), Some(-3.0)),
        (scalar, Some(2.5)),
        (one("NaN"), None),
        (one("+Inf"), None),
        (one("-Inf"), None),
        (vector(""), None),
    ] {
        assert_eq!(asked(Does::Sends(ok(&data)), "up").0, Ok(want), "{data}");
        // The client does not wait until the server closes the connection.
        assert_eq!(asked(Does::Keeps(ok(&data)), "up").0, Ok(want), "{data}");
    }
    let body = format!("{{\"status\":\"success\",\"data\":{}}}", one("7"));
    let (left, right) = body.split_at(20);
    let chunks = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{left}\r\n{:x}\r\n{right}\r\n0\r\n\r\n",
        left.len(),
        right.len()
    );
    assert_eq!(asked(Does::Keeps(chunks.clone().into_bytes()), "up").0, Ok(Some(7.0)));
    assert_eq!(
        asked(Does::Sends(format!("HTTP/1.0 200 OK\r\n\r\n{body}").into_bytes()), "up").0,
        Ok(Some(7.0))
    );
    // The client ignores warnings from Prometheus.
    let warned =
        http("200 OK", "", &format!("{{\"status\":\"success\",\"warnings\":[\"w\"],\"data\":{}}}", one("7")));
    assert_eq!(asked(Does::Sends(warned), "up").0, Ok(Some(7.0)));
    // A truncated chunked response must not be accepted as complete.
    for cut in 0..chunks.len() - 5 {
        assert!(asked(Does::Sends(chunks.as_bytes()[..cut].to_vec()), "up").0.is_err(), "{cut}");
    }
}

#[test]
fn the_question() {
    let query = "histogram_quantile(0.95, rate(x{a=\"b&c\"}[20s])) + é";
    let (_, request) = asked(Does::Sends(ok(&vector(""))), query);
    let want = "GET /api/v1/query?query=histogram_quantile%280.95%2C%20rate%28x%7Ba%3D%22b%26c%22%7D%5B20s%5D%29%29%20%2B%20\
                %C3%A9&time=1700000000.250 HTTP/1.1\r\n";
    assert!(request.starts_with(want), "{request}");
    assert!(request.to_lowercase().contains("\r\nconnection: close\r\n"), "{request}");
}

/// Combines every status code with every body. Only a success returns a number; each error describes the response and
/// what to do about it.
// promise 40
#[test]
fn bad_replies() {
    let good =
        format!("{{\"status\":\"success\",\"data\":{}}}", vector("{\"metric\":{},\"value\":[1,\"5\"]}"));
    let two = vector(
        "{\"metric\":{\"pod\":\"a\"},\"value\":[1,\"1\"]},{\"metric\":{\"pod\":\"b\"},\"value\":[1,\"2\"]},\
         {\"metric\":{},\"value\":[1,\"1\"]},{\"metric\":{},\"value\":[1,\"2\"]}",
    );
    let success = |data: &str| format!("{{\"status\":\"success\",\"data\":{data}}}");
    let bodies: [(String, &str); 14] = [
        (good, ""),
        (String::new(), ""),
        ("<html>log in</html>".to_owned(), ""),
        (
            "{\"status\":\"error\",\"errorType\":\"bad_data\",\"error\":\"parse error: unexpected <eof>\"}"
                .to_owned(),
            "parse error: unexpected <eof>",
        ),
        ("{\"status\":\"success\"}".to_owned(), "no data"),
        ("{\"status\":\"success\",\"data\":null}".to_owned(), "no data"),
        (
            "{\"status\":\"success\",\"data\":{\"resultType\":\"vector\"}}".to_owned(),
            "not that of the Prometheus API",
        ),
        (success("{\"resultType\":\"matrix\",\"result\":[]}"), "a matrix instead of one number"),
        (success("{\"resultType\":\"string\",\"result\":[1,\"x\"]}"), "a string instead"),
        (success(&vector("{\"metric\":{},\"value\":[1,\"five\"]}")), "\"five\" is not a number"),
        (success(&vector("{\"metric\":{},\"value\":1}")), "not that of the Prometheus API"),
        (success(&two), "4 series instead of one: {pod=\"a\"}, {pod=\"b\"}, {} and 1 more"),
        ("[".repeat(10_000), "not that of the Prometheus API"),
        ("\u{0}\u{1b}[2J".to_owned(), ""),
    ];
    for status in [
        "200 OK",
        "204 No Content",
        "302 Found",
        "400 Bad Request",
        "401 Unauthorized",
        "404 Not Found",
        "422 X",
        "503 Y",
    ] {
        for (at, (body, words)) in bodies.iter().enumerate() {
            let code: u16 = status[..3].parse().unwrap();
            let headers = if code == 302 { "Location: http://elsewhere:9/\r\n" } else { "" };
            let got = asked(Does::Sends(http(status, headers, body)), "up").0;
            if at == 0 && code == 200 {
                assert_eq!(got, Ok(Some(5.0)), "{status}");
                continue;
            }
            let said = got.unwrap_err().to_string();
            assert!(
                said.starts_with("Prometheus at http://127.0.0.1:") && said.contains(", query \"up\": "),
                "{said}"
            );
            assert!(said.contains("; ") && !said.chars().any(char::is_control) && said.len() < 700, "{said}");
            match code {
                302 => assert!(said.contains("redirects to http://elsewhere:9/"), "{said}"),
                // By definition, a response with this status code has no body, even if the server sends one.
                204 => assert!(said.contains("not that of the Prometheus API"), "{body}: {said}"),
                200..=299 => assert!(said.contains(words), "{status} {body}: {said}"),
                _ => assert!(said.contains(&format!("status {code}")), "{said}"),
            }
            if at == 3 && !matches!(code, 204 | 302) {
                assert!(said.contains(words), "{said}");
            }
        }
    }
}

// promise 40
#[test]
fn bad_servers() {
    for (patience, does, words) in [
        (LONG, Does::Sends(Vec::new()), "ended early"),
        (LONG, Does::Sends(b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{".to_vec()), "ended early"),
        (
            LONG,
            Does::Sends(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx".to_vec(),
            ),
            "ended early",
        ),
        (LONG, Does::Sends(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()), "is not HTTP"),
        (SHORT, Does::Waits, "no complete response within 0.5 s"),
        (SHORT, Does::Keeps(b"HTTP/1.1 200 OK\r\n".to_vec()), "no complete response within"),
        (SHORT, Does::Drips, "is not HTTP"),
        (LONG, Does::Floods, "longer than 1024 KiB"),
    ] {
        let said = asked_within(patience, does, "up").0.unwrap_err().to_string();
        let drips = words == "is not HTTP" && said.contains("no complete response");
        assert!(said.contains(words) || drips, "{words}: {said}");
    }
    // No server listens on this port any more.
    let gone = commensal_testkit::unused_address();
    let said = ask(&format!("http://{gone}").parse().unwrap(), "up", UNIX_EPOCH).unwrap_err().to_string();
    assert!(said.contains("cannot be reached") && said.contains("check that the server runs"), "{said}");
}

#[test]
fn addresses() {
    for (text, want) in [
        ("http://127.0.0.1:9090", "http://127.0.0.1:9090"),
        ("http://prom/", "http://prom:80"),
        ("http://[::1]:9090/a/b/", "http://[::1]:9090/a/b"),
        ("http://[::1]", "http://[::1]:80"),
        (" http://h:1/prometheus/api/v1/query ", "http://h:1/prometheus"),
    ] {
        assert_eq!(text.parse::<Url>().map(|url| url.to_string()), Ok(want.to_owned()), "{text}");
    }
    for (text, words) in [
        ("", "such as"),
        ("127.0.0.1:9090", "such as"),
        ("https://prom:9090", "TLS"),
        ("http://:9090", "such as"),
        ("http://h:0", "such as"),
        ("http://h:99999", "such as"),
        ("http://me:secret@h:9", "password"),
        ("http://h:9/?x=1", "must not contain spaces"),
        ("http://h:9/a b", "must not contain spaces"),
    ] {
        let said = text.parse::<Url>().unwrap_err();
        assert!(said.contains(words), "{text}: {said}");
    }
}
