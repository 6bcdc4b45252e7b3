//! The server's side of the MySQL protocol. It authenticates clients, reads packets within limits, passes statements to
//! a session, and sends the results to the client.
//!
//! ```text
//! greeting ─ tls ─ auth ──► connection: command ──► Session ──► answer: status messages, rows
//! packets, read ahead ─────────┘  │ letters                           └ days
//!                                 └ prepared: values of placeholders
//! ```
//! A client proves its password by `mysql_native_password` or `caching_sha2_password`, with random bytes (a salt) for
//! each connection. The server also reads packets while a query runs, so that it notices when the client disconnects.

mod answer;
mod auth;
mod connection;
mod days;
mod greeting;
mod letters;
mod packets;
mod prepared;
mod rows;
mod socket;
mod tls;
mod values;

pub use auth::{Access, Origin, decide};
pub use tls::{Tls, TlsError};

use crate::engine::Engine;
use packets::PacketError;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Limits of connections.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of connections at the same time.
    pub connections: usize,
    /// Maximum size of a packet from a client, in bytes.
    pub packet: usize,
    /// Maximum number of prepared statements per connection.
    pub statements: usize,
    /// Timeout of a login, including the TLS handshake.
    pub login: Duration,
    /// Time after which a connection ends whose client's machine does not answer keep-alive probes.
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 500,
            packet: 64 << 20,
            statements: 1_000,
            login: Duration::from_secs(10),
            silence: Duration::from_secs(30),
        }
    }
}

/// State shared by all connections of a server.
#[derive(Debug)]
struct Terms {
    engine: Arc<Engine>,
    limits: Limits,
    tls: Option<Arc<Tls>>,
    /// Whether clients on other machines must use TLS.
    tls_required: bool,
}

/// A listening server.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    terms: Arc<Terms>,
    open: Arc<AtomicUsize>,
    numbers: AtomicU32,
}

impl Server {
    /// Listens at an address.
    ///
    /// # Errors
    /// The address is in use, or is not an address of this machine.
    pub async fn bind(address: SocketAddr, engine: Arc<Engine>, limits: Limits) -> std::io::Result<Server> {
        let listener = TcpListener::bind(address).await?;
        let terms = Arc::new(Terms { engine, limits, tls: None, tls_required: false });
        Ok(Server { listener, terms, open: Arc::default(), numbers: AtomicU32::new(1) })
    }

    /// Offers TLS to clients. If `required`, the server refuses connections from other machines without TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: Arc<Tls>, required: bool) -> Server {
        let Terms { ref engine, limits, .. } = *self.terms;
        let engine = Arc::clone(engine);
        self.terms = Arc::new(Terms { engine, limits, tls: Some(tls), tls_required: required });
        self
    }

    /// Returns the address that the server listens on.
    ///
    /// # Errors
    /// The socket was closed.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts connections until the future is dropped.
    ///
    /// # Errors
    /// The listening socket failed; otherwise this never returns.
    pub async fn run(&self) -> std::io::Result<()> {
        let engine = Arc::clone(&self.terms.engine);
        let ticker = tokio::spawn(async move {
            let mut tick = tokio::time::interval(crate::engine::TICK);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                engine.tick();
            }
        });
        let ticker = AbortOnDrop(ticker);
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => self.serve(stream, peer),
                // No file descriptor is free, or the client has already disconnected: retry a little later.
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            let _ = &ticker;
        }
    }

    fn serve(&self, stream: TcpStream, peer: SocketAddr) {
        let open = Open::new(&self.open);
        let full = open.number > self.terms.limits.connections;
        let id = self.numbers.fetch_add(1, Relaxed);
        let terms = Arc::clone(&self.terms);
        tokio::spawn(async move {
            let _open = open;
            let outcome = match full {
                true => connection::refuse(stream).await.map_err(PacketError::from),
                false => connection::serve(&terms, stream, peer, id).await,
            };
            match outcome {
                Ok(()) => {}
                Err(PacketError::Socket(error)) => tracing::debug!(connection = id, %peer, "closed: {error}"),
                Err(error) => tracing::info!(connection = id, %peer, "closed: {error}"),
            }
        });
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Counts a connection as open until it is dropped.
struct Open {
    all: Arc<AtomicUsize>,
    number: usize,
}

impl Open {
    fn new(all: &Arc<AtomicUsize>) -> Open {
        Open { all: Arc::clone(all), number: all.fetch_add(1, Relaxed) + 1 }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Relaxed);
    }
}
