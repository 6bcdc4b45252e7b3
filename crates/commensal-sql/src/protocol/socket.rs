//! A client's TCP socket. The task that reads commands, the one that sends responses and the one that waits for the
//! client's end share it, also below TLS.

use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use rustix::net::{Shutdown, shutdown};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// Number of unanswered keep-alive probes after which the kernel ends the connection.
const PROBES: u32 = 3;

/// A socket, shared by its clones.
#[derive(Debug, Clone)]
pub struct Socket(Arc<TcpStream>);

impl Socket {
    /// Prepares an accepted socket. The kernel ends the connection when the client's machine has been silent for
    /// `silence`: it is off, or a router between the two has forgotten the connection.
    ///
    /// # Errors
    /// The client has already disconnected.
    pub fn new(stream: TcpStream, silence: Duration) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        // Half of the time without a probe, then the probes. The kernel counts in whole seconds.
        let second = Duration::from_secs(1);
        set_tcp_keepidle(&stream, (silence / 2).max(second))?;
        set_tcp_keepintvl(&stream, (silence / 2 / PROBES).max(second))?;
        set_tcp_keepcnt(&stream, PROBES)?;
        set_socket_keepalive(&stream, true)?;
        Ok(Socket(Arc::new(stream)))
    }

    /// Waits until the client has closed the connection or reset it, or the kernel has ended it. Data that nobody has
    /// read yet does not hide the end, as it does from a reader.
    pub async fn closed(&self) {
        // The end of the stream is reported with any readiness. There is no urgent data in MySQL's protocol, so this
        // waits for the end only.
        let _ = self.0.ready(Interest::PRIORITY).await;
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read_buf(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(|_| ())),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(&*self.0, Shutdown::Write).map_err(io::Error::from))
    }
}
