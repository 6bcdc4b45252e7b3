//! Packets from a client: their numbers and sizes are checked, and they are read ahead while a query runs, which is how
//! a disconnected client is noticed.

use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// Bytes that are read ahead while a client waits for a response; clients rarely send anything then.
const AHEAD: usize = 64 << 10;

/// Maximum size of a login packet, in bytes.
const LOGIN: usize = 64 << 10;

/// Length of an `SSLRequest`: capability flags, maximum packet size, character set, 23 reserved bytes. No login packet is shorter.
const SSL_REQUEST_LEN: usize = 32;

/// Why the server closes a connection.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// A packet is too large.
    #[error("a packet of {size} bytes, more than {limit}")]
    TooLarge {
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// An unexpected sequence number or an empty command.
    #[error("a packet out of order: number {0}")]
    OutOfOrder(u8),
    /// A malformed login packet.
    #[error("a login of {0} bytes that is none")]
    NoLogin(usize),
    /// The client requests TLS but the server has no certificate.
    #[error("TLS, which this server has no certificate for")]
    NoTls,
    /// The TLS handshake failed.
    #[error("the handshake of TLS failed: {0}")]
    Handshake(#[source] io::Error),
    /// The socket failed.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// One packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Its sequence number.
    pub number: u8,
    /// Its payload.
    pub bytes: Vec<u8>,
}

impl Packet {
    /// Reads a packet of at most `limit` bytes; `None` at the end.
    async fn read(from: &mut (impl AsyncRead + Unpin), limit: usize) -> Result<Option<Packet>, PacketError> {
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
        let mut bytes = vec![0; size];
        from.read_exact(&mut bytes).await?;
        Ok(Some(Packet { number, bytes }))
    }

    /// Reads an SSLRequest or a login packet, and not a byte more.
    ///
    /// # Errors
    /// The packet has another sequence number, is too short, or never arrives.
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
    /// The packet has another sequence number, or never arrives.
    pub async fn of_method(from: &mut (impl AsyncRead + Unpin), number: u8) -> Result<Packet, PacketError> {
        match Packet::read(from, LOGIN).await? {
            Some(packet) if packet.number == number => Ok(packet),
            Some(packet) => Err(PacketError::OutOfOrder(packet.number)),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

/// A packet read ahead, and its permit within the read-ahead limit.
pub type Ahead = (Vec<u8>, OwnedSemaphorePermit);

/// Reads commands from `from` and passes them to `to` until either closes, then cancels `gone`.
///
/// # Errors
/// The client violated the protocol. `gone` is cancelled then as well.
pub async fn watch(
    mut from: impl AsyncRead + Unpin,
    to: mpsc::UnboundedSender<Ahead>,
    limit: usize,
    gone: CancellationToken,
) -> Result<(), PacketError> {
    let _guard = gone.clone().drop_guard();
    let room = Arc::new(Semaphore::new(AHEAD));
    loop {
        let packet = tokio::select! {
            packet = Packet::read(&mut from, limit) => packet?,
            () = gone.cancelled() => return Ok(()),
        };
        let Some(Packet { number, bytes }) = packet else { return Ok(()) };
        // Every command has sequence number zero and is not empty.
        if number > 0 || bytes.is_empty() {
            return Err(PacketError::OutOfOrder(number));
        }
        let size = u32::try_from(bytes.len().min(AHEAD)).unwrap_or(u32::MAX);
        let permit = tokio::select! {
            permit = Arc::clone(&room).acquire_many_owned(size) => permit.map_err(io::Error::other)?,
            () = gone.cancelled() => return Ok(()),
        };
        if to.send((bytes, permit)).is_err() {
            return Ok(());
        }
    }
}

/// Parses a payload from its beginning; every method returns `None` when the payload is too short.
#[derive(Debug, Clone, Copy)]
pub struct PayloadReader<'a>(pub &'a [u8]);

impl<'a> PayloadReader<'a> {
    /// Takes this number of bytes.
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

    /// Takes a text that ends with a zero byte, and the zero byte.
    pub fn until_zero(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let taken = self.take(end)?;
        self.take(1)?;
        Some(taken)
    }

    /// Takes a text preceded by its length.
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
