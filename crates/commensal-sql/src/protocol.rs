//! The server's side of the MySQL protocol: who may connect, packets within limits, statements in and rows out.
//!
//! ```text
//! greeting ─ tls ─ auth ──► connection: command ──► Session ──► answer: words, rows
//! packets, read ahead ─────────┘  └ values of prepared statements     └ days
//! ```
//! Passwords are proven by `mysql_native_password` or `caching_sha2_password`, with a salt of its own for each connection. A
//! client that goes away while its query runs is noticed, since packets are read meanwhile.

mod answer;
mod auth;
mod connection;
mod days;
mod greeting;
mod packets;
mod rows;
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

/// What connections are held to.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at the same time.
    pub connections: usize,
    /// Bytes of a packet that a client sends.
    pub packet: usize,
    /// Prepared statements of a connection.
    pub statements: usize,
    /// How long a login may take, with the handshake of TLS.
    pub login: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { connections: 500, packet: 4 << 20, statements: 1_000, login: Duration::from_secs(10) }
    }
}

/// What all connections of a server share.
#[derive(Debug)]
struct Terms {
    engine: Arc<Engine>,
    limits: Limits,
    tls: Option<Arc<Tls>>,
    /// Who comes from another machine has to encrypt.
    tls_required: bool,
}

/// A server that listens.
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
    /// Somebody else does, or the address is not this machine's.
    pub async fn bind(address: SocketAddr, engine: Arc<Engine>, limits: Limits) -> std::io::Result<Server> {
        let listener = TcpListener::bind(address).await?;
        let terms = Arc::new(Terms { engine, limits, tls: None, tls_required: false });
        Ok(Server { listener, terms, open: Arc::default(), numbers: AtomicU32::new(1) })
    }

    /// Offers TLS to clients; with `required`, those of other machines are refused without it.
    #[must_use]
    pub fn with_tls(mut self, tls: Arc<Tls>, required: bool) -> Server {
        let Terms { ref engine, limits, .. } = *self.terms;
        let engine = Arc::clone(engine);
        self.terms = Arc::new(Terms { engine, limits, tls: Some(tls), tls_required: required });
        self
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Takes connections until it is dropped.
    ///
    /// # Errors
    /// Never ends by itself but when the socket fails.
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
                // Out of descriptors, or a client that was gone already: others may have more luck a little later.
                Err(error) => {
                    tracing::warn!("cannot take a connection: {error}");
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

/// One of the connections that are open.
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
