//! The beginning of a connection, up to the packet that names the user: the greeting, and encryption if the client wants it.
//!
//! ```text
//! server   greeting (0)                                      answer (number of the login + 1)
//! client               login (1)
//!                      or: wish (1), handshake of TLS, login (2)
//! ```
//! `opensrv-mysql` writes a greeting of its own, which knows of no TLS; [`Outgoing`] keeps it back.

use super::packets::{self, Packet, PacketError};
use super::tls::Tls;
use crate::engine::password::SALT;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::net::TcpStream;

/// `CLIENT_SSL`.
const SSL: u32 = 0x0000_0800;

/// `CLIENT_LONG_PASSWORD | CONNECT_WITH_DB | PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH |
/// PLUGIN_AUTH_LENENC_CLIENT_DATA | DEPRECATE_EOF`: what `opensrv-mysql` can do.
const CAPABILITIES: u32 = 0x0128_8209;

/// utf8mb4_general_ci.
const COLLATION: u8 = 45;

/// `SERVER_STATUS_AUTOCOMMIT`.
const STATUS: u16 = 2;

/// A connection whose client has said who it is.
pub struct Greeted {
    /// What it sends from now on.
    pub from: Box<dyn AsyncRead + Send + Unpin>,
    /// What it is sent.
    pub to: Box<dyn AsyncWrite + Send + Unpin>,
    /// What it has said.
    pub login: Packet,
    /// Nobody between can read it.
    pub encrypted: bool,
}

/// The greeting, with its head (`HandshakeV10` of the protocol).
#[must_use]
pub fn greeting(id: u32, salt: &[u8; SALT], tls: bool) -> Vec<u8> {
    let capabilities = (CAPABILITIES | if tls { SSL } else { 0 }).to_le_bytes();
    let mut packet = vec![0, 0, 0, 0, 10];
    packet.extend(crate::engine::variables::VERSION.as_bytes());
    packet.push(0);
    packet.extend(id.to_le_bytes());
    packet.extend(&salt[..8]);
    packet.push(0);
    packet.extend(&capabilities[..2]);
    packet.push(COLLATION);
    packet.extend(STATUS.to_le_bytes());
    packet.extend(&capabilities[2..]);
    packet.push(SALT as u8 + 1);
    packet.extend([0; 10]);
    packet.extend(&salt[8..]);
    packet.extend(b"\0mysql_native_password\0");
    packet[0] = (packet.len() - 4) as u8;
    packet
}

/// Greets a client and waits for its name, behind a handshake of TLS if it wants that.
///
/// # Errors
/// It goes away, says something else, or the handshake fails.
pub async fn greet(mut stream: TcpStream, text: &[u8], tls: Option<&Tls>) -> Result<Greeted, PacketError> {
    stream.write_all(text).await?;
    let first = packets::first(&mut stream, 1).await?;
    let Some(tls) = tls.filter(|_| wants(&first) & SSL != 0) else {
        let (from, to) = stream.into_split();
        return Ok(Greeted { from: Box::new(from), to: Box::new(to), login: first, encrypted: false });
    };
    // The wish was read to its last byte and no further: nothing that came unencrypted is taken for encrypted.
    let mut stream = tls.accept(stream).await.map_err(PacketError::Handshake)?;
    let mut login = packets::first(&mut stream, 2).await?;
    let without = wants(&login) & !SSL;
    login.bytes[..4].copy_from_slice(&without.to_le_bytes());
    let (from, to) = tokio::io::split(stream);
    Ok(Greeted { from: Box::new(from), to: Box::new(to), login, encrypted: true })
}

/// What a client says that it can do; [`packets::first`] gives no packet that is too short.
fn wants(login: &Packet) -> u32 {
    login.bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// An error of the server before anybody has logged in.
#[must_use]
pub fn error(number: u8, code: u16, state: &str, text: &str) -> Vec<u8> {
    let size = (1 + 2 + 1 + state.len() + text.len()) as u32;
    let mut packet = size.to_le_bytes()[..3].to_vec();
    packet.extend([number, 0xff]);
    packet.extend(code.to_le_bytes());
    packet.push(b'#');
    packet.extend(state.as_bytes());
    packet.extend(text.as_bytes());
    packet
}

/// The way to a client, without what it has got already.
pub struct Outgoing {
    to: BufWriter<Box<dyn AsyncWrite + Send + Unpin>>,
    skip: usize,
}

impl Outgoing {
    /// The first `skip` bytes are not sent.
    #[must_use]
    pub fn new(to: Box<dyn AsyncWrite + Send + Unpin>, skip: usize) -> Outgoing {
        Outgoing { to: BufWriter::new(to), skip }
    }
}

impl AsyncWrite for Outgoing {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let skipped = self.skip.min(bytes.len());
        if skipped > 0 {
            self.skip -= skipped;
            return Poll::Ready(Ok(skipped));
        }
        Pin::new(&mut self.to).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.skip > 0 {
            let first = parts.iter().find(|part| !part.is_empty()).map_or(&[][..], |part| part);
            return self.poll_write(context, first);
        }
        Pin::new(&mut self.to).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.to.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.to).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.to).poll_shutdown(context)
    }
}
