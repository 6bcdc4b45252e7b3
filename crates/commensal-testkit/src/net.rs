//! HTTP requests, and unused addresses.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

/// Sends one request without a body, and returns the whole response including its head. The server must close the
/// connection.
///
/// # Panics
/// Panics if the request cannot be sent or the response is not text.
pub fn http(mut stream: impl Read + Write, method: &str, path: &str) -> String {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request that can be sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Returns an address of this machine on which no process listens.
///
/// # Panics
/// Panics if no port is free.
#[must_use]
pub fn unused_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn a_request_is_answered_until_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut request = [0; 64];
            let length = stream.read(&mut request).expect("a request");
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nyes").expect("an answer");
            request[..length].starts_with(b"GET /a HTTP/1.1\r\n")
        });
        let answer = http(TcpStream::connect(address).expect("a connection"), "GET", "/a");
        assert!(answer.ends_with("\r\n\r\nyes") && server.join().expect("no panic"), "{answer}");
        assert!(TcpStream::connect(unused_address()).is_err());
    }
}
