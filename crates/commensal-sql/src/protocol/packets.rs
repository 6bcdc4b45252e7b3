//! The way of a client's packets to the protocol: counted, held to limits, and watched for the end of the connection while
//! nobody reads, which is how a query whose client went away is noticed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio_util::sync::CancellationToken;

/// Bytes that are taken from a client while it waits for an answer; it has nothing to say then.
const AHEAD: usize = 64 << 10;

/// Bytes of a packet of a login.
const LOGIN: usize = 64 << 10;

/// `COM_STMT_SEND_LONG_DATA`: pieces that the protocol keeps until the statement is executed.
const LONG_DATA: u8 = 0x18;
/// `COM_STMT_EXECUTE`.
const EXECUTE: u8 = 0x17;
/// `COM_STMT_RESET`: there is nothing to reset but what [`LONG_DATA`] has sent, which the next one replaces.
const RESET: u8 = 0x1a;
/// `COM_RESET_CONNECTION`.
const RESET_CONNECTION: u8 = 0x1f;

/// What clients may send: the commands that are answered here. Others would be answered OK without being done.
const COMMANDS: [u8; 11] = [
    0x01, // QUIT
    0x02, // INIT_DB
    0x03, // QUERY
    0x04, // FIELD_LIST
    0x0e, // PING
    0x16, // STMT_PREPARE
    EXECUTE,
    LONG_DATA,
    0x19, // STMT_CLOSE
    RESET,
    RESET_CONNECTION,
];

/// The packet that names the user is the first of a login; the answer to a change of the method is two further.
const REST_OF_LOGIN: u8 = 2;

/// Bytes of the wish for TLS, which a login has at least: what the client can do, its largest packet, its letters, nothing.
const WISH: usize = 32;

/// One packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Its number in the exchange.
    pub number: u8,
    /// What it says.
    pub bytes: Vec<u8>,
}

impl Packet {
    /// As it is on the wire.
    fn head(&self) -> [u8; 4] {
        let [low, middle, high, ..] = self.bytes.len().to_le_bytes();
        [low, middle, high, self.number]
    }
}

/// Why a connection is closed from this side.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// Too large.
    #[error("a packet of {size} bytes, more than {limit}")]
    TooLarge {
        /// Its size.
        size: usize,
        /// What is allowed.
        limit: usize,
    },
    /// Not what the protocol has.
    #[error("a packet out of order: number {0}")]
    OutOfOrder(u8),
    /// A login that is none.
    #[error("a login of {0} bytes")]
    NoLogin(usize),
    /// TLS.
    #[error("the handshake of TLS failed: {0}")]
    Handshake(#[source] io::Error),
    /// A command that is not known here.
    #[error("command {0:#04x} is not known here")]
    Unknown(u8),
    /// The socket.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// Reads a packet into `packet`; whether there was one.
async fn read(
    from: &mut (impl AsyncRead + Unpin),
    packet: &mut Packet,
    limit: usize,
) -> Result<bool, PacketError> {
    let mut head = [0; 4];
    match from.read_exact(&mut head).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    let [low, middle, high, number] = head;
    let size = usize::from(low) | usize::from(middle) << 8 | usize::from(high) << 16;
    if size > limit {
        return Err(PacketError::TooLarge { size, limit });
    }
    packet.number = number;
    packet.bytes.resize(size, 0);
    from.read_exact(&mut packet.bytes).await?;
    Ok(true)
}

/// Reads the packet of this number with which a client wishes for TLS or says who it is, and not a byte more.
///
/// # Errors
/// It is another one, is too short for either, or never comes.
pub async fn first(from: &mut (impl AsyncRead + Unpin), number: u8) -> Result<Packet, PacketError> {
    let mut packet = Packet { number: 0, bytes: Vec::new() };
    if !read(from, &mut packet, LOGIN).await? {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    match packet {
        Packet { number: other, .. } if other != number => Err(PacketError::OutOfOrder(other)),
        Packet { bytes, .. } if bytes.len() < WISH => Err(PacketError::NoLogin(bytes.len())),
        login => Ok(login),
    }
}

/// Hands `login` on to `to`, then reads packets from `from` and hands those on until the end of either, then cancels
/// `gone`. Calls `reset` when the client wants its session as it was in the beginning.
///
/// # Errors
/// What the client did wrong. `gone` is cancelled then as well.
pub async fn watch(
    login: Packet,
    mut from: impl AsyncRead + Unpin,
    mut to: DuplexStream,
    limit: usize,
    gone: CancellationToken,
    reset: impl Fn(),
) -> Result<(), PacketError> {
    let _guard = gone.clone().drop_guard();
    let (mut logging_in, mut kept) = (true, 0);
    let last_of_login = login.number + REST_OF_LOGIN;
    let mut packet = login;
    loop {
        to.write_all(&packet.head()).await?;
        to.write_all(&packet.bytes).await?;
        let limit = if logging_in { limit.min(LOGIN) } else { limit };
        let read = tokio::select! {
            read = read(&mut from, &mut packet, limit) => read?,
            () = gone.cancelled() => return Ok(()),
        };
        if !read {
            return Ok(());
        }
        // Every command begins at zero.
        let Packet { number, bytes } = &mut packet;
        if *number > last_of_login || *number > 0 && !logging_in {
            return Err(PacketError::OutOfOrder(*number));
        }
        if *number == 0 {
            logging_in = false;
            let command = bytes.first().copied().ok_or(PacketError::OutOfOrder(0))?;
            match command {
                LONG_DATA => kept += bytes.len(),
                EXECUTE | RESET => kept = 0,
                RESET_CONNECTION => reset(),
                known if COMMANDS.contains(&known) => {}
                unknown => return Err(PacketError::Unknown(unknown)),
            }
            if kept > limit {
                return Err(PacketError::TooLarge { size: kept, limit });
            }
        }
    }
}

/// A pipe of [`AHEAD`] bytes for [`watch`].
pub fn pipe() -> (OneByOne, DuplexStream) {
    let (inside, outside) = tokio::io::duplex(AHEAD);
    (OneByOne { pipe: inside, head: Vec::new(), left: 0 }, outside)
}

/// Gives bytes to the protocol up to the end of a packet and no further at once: when `opensrv-mysql` 0.7.0 finds more
/// than one packet in its buffer, it frees the buffer of the one that it goes on to look at (`PacketReader::next_async`;
/// seen to end the process).
#[derive(Debug)]
pub struct OneByOne {
    pipe: DuplexStream,
    /// What has come of the next packet's head.
    head: Vec<u8>,
    /// Bytes of the packet that are still to come after its head.
    left: usize,
}

impl AsyncRead for OneByOne {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let most = if this.left > 0 { this.left } else { 4 - this.head.len() };
        let mut bytes = [0; 4_096];
        let size = most.min(buffer.remaining()).min(bytes.len());
        let mut part = ReadBuf::new(&mut bytes[..size]);
        ready!(Pin::new(&mut this.pipe).poll_read(context, &mut part))?;
        let read = part.filled();
        buffer.put_slice(read);
        if this.left > 0 {
            this.left -= read.len();
        } else {
            this.head.extend_from_slice(read);
            if let [low, middle, high, _] = this.head[..] {
                this.left = usize::from(low) | usize::from(middle) << 8 | usize::from(high) << 16;
                this.head.clear();
            }
        }
        Poll::Ready(Ok(()))
    }
}
