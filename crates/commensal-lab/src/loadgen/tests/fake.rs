//! A misbehaving HTTP server for the generator's tests: one thread per connection, one closure per request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A valid response.
pub(super) const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The server's reaction to a request; the server calls the closure to choose it.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    /// Send these bytes and continue reading.
    Bytes(&'static [u8]),
    /// Send these bytes and close.
    Last(&'static [u8]),
    /// Send nothing and keep the connection.
    Silence,
}

pub(super) struct FakeServer {
    pub(super) addr: SocketAddr,
    /// Number of connections accepted so far.
    pub(super) accepted: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl FakeServer {
    /// Starts the server. `respond` is called on the connection's own thread with the number of the request, counted
    /// from 0 over all connections.
    pub(super) fn start(respond: impl Fn(u64) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("an address");
        let over = Arc::new(AtomicBool::new(false));
        let accepted = Arc::new(AtomicU64::new(0));
        let respond = Arc::new(respond);
        let requests = Arc::new(AtomicU64::new(0));
        let acceptor = std::thread::spawn({
            let (over, accepted) = (Arc::clone(&over), Arc::clone(&accepted));
            move || {
                for stream in listener.incoming() {
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                    accepted.fetch_add(1, Ordering::SeqCst);
                    let (respond, requests) = (Arc::clone(&respond), Arc::clone(&requests));
                    let stream = stream.expect("a connection");
                    std::thread::spawn(move || converse(stream, &*respond, &requests));
                }
            }
        });
        Self { addr, accepted, over, acceptor: Some(acceptor) }
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // Wakes the acceptor; the other threads exit when the generator has closed its connections.
        let _ = TcpStream::connect(self.addr);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn converse(mut stream: TcpStream, respond: &dyn Fn(u64) -> Reply, requests: &AtomicU64) {
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
    let mut held = Vec::new();
    let mut buffer = [0u8; 4096];
    loop {
        while !held.windows(4).any(|w| w == b"\r\n\r\n") {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(n) => held.extend_from_slice(&buffer[..n]),
            }
        }
        // The generator never sends a second request before the first one is answered.
        held.clear();
        let (bytes, last) = match respond(requests.fetch_add(1, Ordering::SeqCst)) {
            Reply::Bytes(bytes) => (bytes, false),
            Reply::Last(bytes) => (bytes, true),
            Reply::Silence => (&b""[..], false),
        };
        if stream.write_all(bytes).is_err() || last {
            return;
        }
    }
}
