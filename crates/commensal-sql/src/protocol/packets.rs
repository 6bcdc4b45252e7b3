//! Packets from a client: unpacks them, checks their numbers and sizes, and reads ahead while a query runs, so that the
//! server notices when the client disconnects.

use super::socket::Socket;
use flate2::read::ZlibDecoder;
use std::io::{self, Read};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// Number of bytes of a login packet that are kept. The connection attributes come last; the server does not use them.
const LOGIN: usize = 64 << 10;

/// Maximum payload of one packet of the protocol, in bytes.
const MAXIMUM: usize = (1 << 24) - 1;

/// Bytes that a payload takes beside its own, while it waits for the command before it.
const OVERHEAD: usize = 128;

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

/// Returns a length of three bytes.
fn size([low, middle, high]: [u8; 3]) -> usize {
    usize::from(low) | usize::from(middle) << 8 | usize::from(high) << 16
}

/// A stream of packets, which may be compressed (`CLIENT_COMPRESS`): the stream then consists of compressed packets, each
/// with a piece of the stream of packets.
#[derive(Debug)]
pub struct Source<R> {
    from: R,
    compressed: bool,
    /// Sequence number of the last compressed packet.
    number: Option<u8>,
    /// Content of the last compressed packet, and how much of it was read.
    piece: Vec<u8>,
    taken: usize,
}

impl<R: AsyncRead + Unpin> Source<R> {
    /// Creates the stream of packets over a stream of bytes.
    pub fn new(from: R, compressed: bool) -> Source<R> {
        Source { from, compressed, number: None, piece: Vec::new(), taken: 0 }
    }

    /// Reads as many bytes as `to` has.
    async fn exact(&mut self, mut to: &mut [u8]) -> io::Result<()> {
        if !self.compressed {
            return self.from.read_exact(to).await.map(|_| ());
        }
        while !to.is_empty() {
            let rest = self.piece.get(self.taken..).unwrap_or_default();
            if rest.is_empty() {
                self.unpack().await?;
                continue;
            }
            let size = rest.len().min(to.len());
            let (now, later) = std::mem::take(&mut to).split_at_mut(size);
            now.copy_from_slice(&rest[..size]);
            (to, self.taken) = (later, self.taken + size);
        }
        Ok(())
    }

    /// Reads bytes and drops them.
    async fn skip(&mut self, mut size: usize) -> io::Result<()> {
        let mut dropped = [0; 4_096];
        while size > 0 {
            let now = size.min(dropped.len());
            self.exact(&mut dropped[..now]).await?;
            size -= now;
        }
        Ok(())
    }

    /// Reads the next compressed packet.
    async fn unpack(&mut self) -> io::Result<()> {
        // The next packet may be long in coming, and nothing is kept meanwhile.
        (self.piece, self.taken) = (Vec::new(), 0);
        let mut head = [0; 7];
        self.from.read_exact(&mut head).await?;
        let [p0, p1, p2, number, u0, u1, u2] = head;
        let (packed, unpacked) = (size([p0, p1, p2]), size([u0, u1, u2]));
        let mut bytes = vec![0; packed];
        self.from.read_exact(&mut bytes).await?;
        // A length of zero means that the content is not compressed.
        if unpacked > 0 {
            let mut content = Vec::new();
            // One byte more than announced is enough to see that the content is too long.
            ZlibDecoder::new(bytes.as_slice()).take(unpacked as u64 + 1).read_to_end(&mut content)?;
            if content.len() != unpacked {
                let text = "a compressed packet has another length than announced";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            bytes = content;
        }
        (self.number, self.piece) = (Some(number), bytes);
        Ok(())
    }
}

/// A payload: one packet, or several if it is too long for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The sequence number of the first packet.
    pub first: u8,
    /// The sequence number of the last packet. If packets are compressed, that of the last compressed packet, which the
    /// response continues.
    pub number: u8,
    /// The payload.
    pub bytes: Vec<u8>,
}

impl Packet {
    /// Reads a payload of at most `limit` bytes; returns `None` at the end of the stream. Bytes of the payload after the
    /// first `keep` are read and dropped.
    async fn read(
        from: &mut Source<impl AsyncRead + Unpin>,
        limit: usize,
        keep: usize,
    ) -> Result<Option<Packet>, PacketError> {
        let (mut bytes, mut total, mut first) = (Vec::new(), 0, None);
        let mut expected = None;
        loop {
            let mut head = [0; 4];
            match from.exact(&mut head).await {
                Ok(()) => {}
                Err(error) if total == 0 && error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            let [low, middle, high, number] = head;
            // As in MySQL, the numbers within compressed packets do not matter.
            if !from.compressed && expected.is_some_and(|expected| number != expected) {
                return Err(PacketError::OutOfOrder(number));
            }
            let first = *first.get_or_insert(number);
            let part = size([low, middle, high]);
            total += part;
            if total > limit {
                return Err(PacketError::TooLarge { size: total, limit });
            }
            let start = bytes.len();
            bytes.resize(start + part.min(keep - start), 0);
            from.exact(bytes.get_mut(start..).unwrap_or_default()).await?;
            from.skip(part - (bytes.len() - start)).await?;
            if part < MAXIMUM {
                return Ok(Some(Packet { first, number: from.number.unwrap_or(number), bytes }));
            }
            expected = Some(number.wrapping_add(1));
        }
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
        match Packet::read(&mut Source::new(from, false), MAXIMUM, LOGIN).await? {
            Some(packet) if packet.first == number => Ok(packet),
            Some(packet) => Err(PacketError::OutOfOrder(packet.first)),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

/// A payload that was read ahead, and a permit for its bytes within the read-ahead limit.
pub type Ahead = (Packet, OwnedSemaphorePermit);

/// Reads commands from `from`, a stream over `socket`, and sends them to `to` until one of them is closed, then cancels
/// `gone`. Reads ahead of the command that runs, because only a read sees the end of the stream behind data that was sent
/// before: as many bytes as one packet may have. Clients rarely send anything before they have a response.
///
/// # Errors
/// The client violated the protocol, or the socket failed. `gone` is cancelled in this case, too.
pub async fn watch(
    mut from: Source<impl AsyncRead + Unpin>,
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
        let Some(packet) = packet else { return Ok(()) };
        let size = u32::try_from((packet.bytes.len() + OVERHEAD).min(limit)).unwrap_or(u32::MAX);
        let permit = tokio::select! {
            permit = Arc::clone(&room).acquire_many_owned(size) => permit.map_err(io::Error::other)?,
            () = gone.cancelled() => return Ok(()),
            // Nothing is read while the limit is reached, so no read notices that the client disconnects.
            () = socket.closed() => return Ok(()),
        };
        if to.send((packet, permit)).is_err() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use std::io::Write;

    /// Builds a compressed packet that announces this length of its content.
    fn packed(number: u8, content: &[u8], announced: usize) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        let packed = encoder.finish().unwrap();
        let head = [&packed.len().to_le_bytes()[..3], &[number], &announced.to_le_bytes()[..3]].concat();
        [head, packed].concat()
    }

    #[tokio::test]
    async fn payloads_in_several_packets() {
        let long = vec![b'x'; MAXIMUM];
        let stream = |number: u8, rest: &[u8]| {
            [&[0xff, 0xff, 0xff, 0xff][..], &long, &[rest.len() as u8, 0, 0, number], rest].concat()
        };
        // After the number 255 comes the number 0. The last packet may be empty.
        for rest in [&b""[..], b"rest"] {
            let bytes = stream(0, rest);
            let read = Packet::read(&mut Source::new(bytes.as_slice(), false), 1 << 25, 1 << 25).await;
            let Packet { first, number, bytes } = read.unwrap().unwrap();
            assert_eq!((first, number, bytes.len()), (255, 0, MAXIMUM + rest.len()));
        }
        let bytes = stream(1, b"rest");
        let read = Packet::read(&mut Source::new(bytes.as_slice(), false), 1 << 25, 1 << 25).await;
        assert!(matches!(read, Err(PacketError::OutOfOrder(1))));
        let read = Packet::read(&mut Source::new(bytes.as_slice(), false), MAXIMUM - 1, MAXIMUM).await;
        assert!(matches!(read, Err(PacketError::TooLarge { size: MAXIMUM, .. })));
    }

    #[tokio::test]
    async fn payloads_in_compressed_packets() {
        // Two payloads in three pieces, the last of which is not compressed.
        let stream = [&[3, 0, 0, 0][..], b"abc", &[1, 0, 0, 0], b"d"].concat();
        let plain = [&[3, 0, 0, 2, 0, 0, 0][..], &stream[9..]].concat();
        let bytes = [packed(0, &stream[..5], 5), packed(1, &stream[5..9], 4), plain].concat();
        let mut source = Source::new(bytes.as_slice(), true);
        for (number, text) in [(1, b"abc".to_vec()), (2, b"d".to_vec())] {
            let packet = Packet::read(&mut source, 100, 100).await.unwrap();
            assert_eq!(packet, Some(Packet { first: 0, number, bytes: text }));
        }
        assert_eq!(Packet::read(&mut source, 100, 100).await.unwrap(), None);
        // Content that is longer or shorter than announced.
        for announced in [1, 100_001] {
            let bytes = packed(0, &[0; 100_000], announced);
            let read = Packet::read(&mut Source::new(bytes.as_slice(), true), 1 << 20, 1 << 20).await;
            assert!(matches!(read, Err(PacketError::Socket(_))), "{announced}");
        }
    }
}
