//! Packets from a client: checks their numbers and sizes, and reads ahead while a query runs, so that the server
//! notices when the client disconnects.

use super::socket::Socket;
use std::io;
use std::sync::Arc;
use tokio::io::{self as streams, AsyncRead, AsyncReadExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// Number of bytes of a login packet that are kept. The connection attributes come last; the server does not use them.
const LOGIN: usize = 64 << 10;

/// Maximum payload of one packet of the protocol, in bytes.
const MAXIMUM: usize = (1 << 24) - 1;

/// Length of an `SSLRequest` (bytes): capability flags, maximum packet size, character set, 23 reserved bytes. No login
/// packet is shorter.
const SSL_REQUEST_LEN: usize = 32;

/// The reason why the server closes a connection.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// A packet is too large.
    #[error("a packet of {size} bytes, more than the limit of {limit}")]
    TooLarge {
        /// Size of the packet, in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A packet has an unexpected sequence number, or a command is empty.
    #[error("a packet out of order: number {0}")]
    OutOfOrder(u8),
    /// A login packet is malformed.
    #[error("a malformed login packet of {0} bytes")]
    NoLogin(usize),
    /// The client requests TLS but the server has no certificate.
    #[error("a request for TLS, but this server has no certificate")]
    NoTls,
    /// The TLS handshake failed.
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[source] io::Error),
    /// The socket failed.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// One packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The packet's sequence number.
    pub number: u8,
    /// The packet's payload.
    pub bytes: Vec<u8>,
}

impl Packet {
    /// Reads a packet with a payload of at most `limit` bytes; returns `None` at the end of the stream. Bytes of
    /// the payload after the first `keep` are read and dropped.
    async fn read(
        from: &mut (impl AsyncRead + Unpin),
        limit: usize,
        keep: usize,
    ) -> Result<Option<Packet>, PacketError> {
        let mut head = [0; 4];
        match from.read_exact(&mut head).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let [low, middle, high, number] = head;
        let size = usize::from(low) | usize::from(middle) << 8 | usize::from(high) << 16;
        if size > limit {
            return Err(PacketError::TooLarge { size, limit });
        }
        let mut bytes = vec![0; size.min(keep)];
        from.read_exact(&mut bytes).await?;
        let rest = (size - bytes.len()) as u64;
        if streams::copy(&mut from.take(rest), &mut streams::sink()).await? < rest {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(Some(Packet { number, bytes }))
    }

    /// Reads exactly one packet, an SSLRequest or a login, and not a byte more.
    ///
    /// # Errors
    /// The packet has an unexpected sequence number or is too short, or the client disconnects.
    pub async fn of_login(from: &mut (impl AsyncRead + Unpin), number: u8) -> Result<Packet, PacketError> {
        let packet = Packet::of_method(from, number).await?;
        if packet.bytes.len() < SSL_REQUEST_LEN {
            return Err(PacketError::NoLogin(packet.bytes.len()));
        }
        Ok(packet)
    }

    /// Reads the response to an AuthSwitchRequest.
    ///
    /// # Errors
    /// The packet has an unexpected sequence number, or the client disconnects.
    pub async fn of_method(from: &mut (impl AsyncRead + Unpin), number: u8) -> Result<Packet, PacketError> {
        match Packet::read(from, MAXIMUM, LOGIN).await? {
            Some(packet) if packet.number == number => Ok(packet),
            Some(packet) => Err(PacketError::OutOfOrder(packet.number)),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

/// The payload of a packet that was read ahead, and a permit for its bytes within the read-ahead limit.
pub type Ahead = (Vec<u8>, OwnedSemaphorePermit);

/// Reads commands from `from`, a stream over `socket`, and sends them to `to` until one of them is closed, then cancels
/// `gone`. Reads ahead of the command that runs, because only a read sees the end of the stream behind data that was sent
/// before: as many bytes as one packet may have. Clients rarely send anything before they have a response.
///
/// # Errors
/// The client violated the protocol, or the socket failed. `gone` is cancelled in this case, too.
pub async fn watch(
    mut from: impl AsyncRead + Unpin,
    socket: Socket,
    to: mpsc::UnboundedSender<Ahead>,
    limit: usize,
    gone: CancellationToken,
) -> Result<(), PacketError> {
    let _guard = gone.clone().drop_guard();
    let room = Arc::new(Semaphore::new(limit));
    loop {
        let packet = tokio::select! {
            packet = Packet::read(&mut from, limit, limit) => packet?,
            () = gone.cancelled() => return Ok(()),
        };
        let Some(Packet { number, bytes }) = packet else { return Ok(()) };
        // Every command has sequence number zero and is not empty.
        if number > 0 || bytes.is_empty() {
            return Err(PacketError::OutOfOrder(number));
        }
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let permit = tokio::select! {
            permit = Arc::clone(&room).acquire_many_owned(size) => permit.map_err(io::Error::other)?,
            () = gone.cancelled() => return Ok(()),
            // Nothing is read while the limit is reached, so no read notices that the client disconnects.
            () = socket.closed() => return Ok(()),
        };
        if to.send((bytes, permit)).is_err() {
            return Ok(());
        }
    }
}

/// Parses a payload from its start; every method returns `None` if the payload is too short.
#[derive(Debug, Clone, Copy)]
pub struct PayloadReader<'a>(pub &'a [u8]);

impl<'a> PayloadReader<'a> {
    /// Takes the next `size` bytes.
    pub fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    /// Takes an array of bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// Takes one byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Takes a two-byte integer.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Takes a four-byte integer.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Takes a string that is terminated by a zero byte, together with that byte.
    pub fn until_zero(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let taken = self.take(end)?;
        self.take(1)?;
        Some(taken)
    }

    /// Takes a string that is preceded by its length.
    pub fn with_length(&mut self) -> Option<&'a [u8]> {
        let more = match self.u8()? {
            size @ ..=0xfa => return self.take(usize::from(size)),
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            _ => return None,
        };
        let size = self.take(more)?.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        self.take(usize::try_from(size).ok()?)
    }
}
