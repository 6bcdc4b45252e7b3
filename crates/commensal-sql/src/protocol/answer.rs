//! Responses to a client: packets with their sequence numbers, status messages and rows.

use super::greeting::{AUTOCOMMIT, NO_EOF, Outgoing};
use super::rows::Column;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::{self, Write};
use tokio::io::AsyncWriteExt;

/// Payload length which means that the payload continues in the next packet.
const MORE: usize = 0x00ff_ffff;

/// Number of buffered bytes above which the buffer is sent.
const GATHERED: usize = 32 << 10;

/// Packets shorter than this are not compressed, as in MySQL (bytes).
const WORTHWHILE: usize = 50;

/// Status flags: `SERVER_STATUS_IN_TRANS`, `SERVER_MORE_RESULTS_EXISTS`, `SERVER_STATUS_CURSOR_EXISTS` and
/// `SERVER_STATUS_LAST_ROW_SENT`.
const IN_TRANSACTION: u16 = 1;
const MORE_RESULTS: u16 = 8;
pub const CURSOR: u16 = 64;
pub const LAST_ROW: u16 = 128;

/// An error response of the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// MySQL's error number.
    pub code: u16,
    /// SQLSTATE.
    pub state: &'static str,
    /// The message.
    pub text: String,
}

impl Failure {
    /// Creates an error response.
    pub fn new(code: u16, state: &'static str, text: impl Into<String>) -> Failure {
        Failure { code, state, text: text.into() }
    }
}

/// Sends the responses of a connection.
pub struct Answers {
    to: Outgoing,
    gathered: Vec<u8>,
    number: u8,
    /// The sequence number of the next compressed packet; `None` if packets are not compressed.
    packed: Option<u8>,
    without_eof: bool,
    /// The autocommit flag reported to the client.
    pub autocommit: bool,
    /// Whether the client is told that a transaction is open.
    pub in_transaction: bool,
    /// Number of warnings reported at the end of rows.
    pub warnings: usize,
    /// Flags of the cursor that the current response is about.
    pub cursor: u16,
    /// Whether another result follows the current one.
    pub more: bool,
}

/// Writes a length-encoded integer.
pub fn length(to: &mut Vec<u8>, number: u64) {
    let bytes = number.to_le_bytes();
    match number {
        ..=0xfa => to.push(bytes[0]),
        0xfb..=0xffff => to.extend([&[0xfc], &bytes[..2]].concat()),
        0x1_0000..=0x00ff_ffff => to.extend([&[0xfd], &bytes[..3]].concat()),
        _ => to.extend([&[0xfe], &bytes[..]].concat()),
    }
}

/// Writes bytes, preceded by their number.
pub fn text(to: &mut Vec<u8>, bytes: &[u8]) {
    length(to, bytes.len() as u64);
    to.extend(bytes);
}

/// Builds a compressed packet.
fn packed(piece: &[u8], number: u8) -> io::Result<Vec<u8>> {
    let three = |size: usize| size.to_le_bytes().into_iter().take(3);
    let mut content = piece.to_vec();
    let mut unpacked = 0;
    if piece.len() >= WORTHWHILE {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(piece)?;
        let shorter = encoder.finish()?;
        if shorter.len() < piece.len() {
            (content, unpacked) = (shorter, piece.len());
        }
    }
    Ok(three(content.len()).chain([number]).chain(three(unpacked)).chain(content).collect())
}

impl Answers {
    /// Creates the responses for a client with these capabilities.
    #[must_use]
    pub fn new(to: Outgoing, capabilities: u32) -> Answers {
        let without_eof = capabilities & NO_EOF != 0;
        Answers {
            to,
            gathered: Vec::new(),
            number: 0,
            packed: None,
            without_eof,
            autocommit: true,
            in_transaction: false,
            warnings: 0,
            cursor: 0,
            more: false,
        }
    }

    /// Compresses all packets from now on.
    pub fn compress(&mut self) {
        self.packed = Some(0);
    }

    /// Sets the sequence number of the next response, which answers a packet with the sequence number `number`.
    pub fn answer_to(&mut self, number: u8) {
        self.number = number.wrapping_add(1);
        self.packed = self.packed.map(|_| self.number);
    }

    fn status(&self) -> [u8; 2] {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let session = flag(self.autocommit, AUTOCOMMIT) | flag(self.in_transaction, IN_TRANSACTION);
        (session | flag(self.more, MORE_RESULTS) | self.cursor).to_le_bytes()
    }

    fn warning_count(&self) -> [u8; 2] {
        u16::try_from(self.warnings).unwrap_or(u16::MAX).to_le_bytes()
    }

    /// Writes one packet, or several if the payload is too long for one.
    fn packet(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.gathered.len();
        self.gathered.extend([0; 4]);
        fill(&mut self.gathered);
        let size = self.gathered.len() - start - 4;
        if size < MORE {
            let head = self.head(size);
            self.gathered[start..start + 4].copy_from_slice(&head);
            return;
        }
        let long = self.gathered.split_off(start + 4);
        self.gathered.truncate(start);
        // After a packet of maximum length another packet must follow, which may be empty.
        for part in long.chunks(MORE).chain((size.is_multiple_of(MORE)).then_some(&[][..])) {
            let head = self.head(part.len());
            self.gathered.extend(head);
            self.gathered.extend(part);
        }
    }

    fn head(&mut self, size: usize) -> [u8; 4] {
        let [low, middle, high, ..] = size.to_le_bytes();
        let number = self.number;
        self.number = number.wrapping_add(1);
        [low, middle, high, number]
    }

    /// Reports that the server accepts the client's `caching_sha2_password` proof (`AuthMoreData`,
    /// `fast_auth_success`). This packet is sent before the OK packet.
    pub fn proven(&mut self) {
        self.packet(|to| to.extend([1, 3]));
    }

    /// Writes an OK packet.
    pub fn done(&mut self, rows: u64, warnings: &[String]) {
        let status = self.status();
        self.packet(|to| {
            to.push(0);
            length(to, rows);
            to.push(0);
            to.extend(status);
            to.extend(u16::try_from(warnings.len()).unwrap_or(u16::MAX).to_le_bytes());
            if !warnings.is_empty() {
                text(to, warnings.join("; ").as_bytes());
            }
        });
    }

    /// Writes an error packet.
    pub fn failed(&mut self, failure: &Failure) {
        self.packet(|to| {
            to.push(0xff);
            to.extend(failure.code.to_le_bytes());
            to.push(b'#');
            to.extend(failure.state.as_bytes());
            to.extend(failure.text.as_bytes());
        });
    }

    fn eof(&mut self) {
        let (status, warnings) = (self.status(), self.warning_count());
        self.packet(|to| {
            to.push(0xfe);
            to.extend(warnings);
            to.extend(status);
        });
    }

    /// Writes a packet that consists of text.
    pub fn text(&mut self, text: &str) {
        self.packet(|to| to.extend(text.as_bytes()));
    }

    /// Requests a proof of the password by this method (`AuthSwitchRequest`).
    pub fn prove(&mut self, method: &str, salt: &[u8]) {
        self.packet(|to| to.extend([&[0xfe], method.as_bytes(), &[0], salt, &[0]].concat()));
    }

    /// Writes the column definitions of a result.
    pub fn columns(&mut self, columns: &[Column]) {
        self.packet(|to| length(to, columns.len() as u64));
        self.definitions(columns);
    }

    fn definitions(&mut self, columns: &[Column]) {
        for column in columns {
            self.packet(|to| column.define(to));
        }
        if !self.without_eof && !columns.is_empty() {
            self.eof();
        }
    }

    /// Reports that a statement was prepared, with its number.
    pub fn prepared(&mut self, id: u32, placeholders: &[Column], columns: &[Column]) {
        let count = |columns: &[Column]| u16::try_from(columns.len()).unwrap_or(u16::MAX).to_le_bytes();
        self.packet(|to| {
            to.push(0);
            to.extend(id.to_le_bytes());
            to.extend(count(columns));
            to.extend(count(placeholders));
            to.extend([0; 3]);
        });
        self.definitions(placeholders);
        self.definitions(columns);
    }

    /// Writes one row to the buffer; nothing is sent yet.
    pub fn row(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        self.packet(fill);
    }

    /// Whether the end of column definitions is not marked.
    #[must_use]
    pub fn is_without_eof(&self) -> bool {
        self.without_eof
    }

    /// Whether the buffer holds so many bytes that it should be sent.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.gathered.len() >= GATHERED
    }

    /// Marks the end of the rows, or of a list of definitions.
    pub fn end(&mut self) {
        if !self.without_eof {
            return self.eof();
        }
        let (status, warnings) = (self.status(), self.warning_count());
        self.packet(|to| {
            to.extend([0xfe, 0, 0]);
            to.extend(status);
            to.extend(warnings);
        });
    }

    /// Sends the buffered bytes.
    ///
    /// # Errors
    /// An I/O error of the socket.
    pub async fn send(&mut self) -> io::Result<()> {
        match &mut self.packed {
            None => self.to.write_all(&self.gathered).await?,
            Some(number) => {
                for piece in self.gathered.chunks(MORE) {
                    self.to.write_all(&packed(piece, *number)?).await?;
                    *number = number.wrapping_add(1);
                }
            }
        }
        self.gathered.clear();
        self.gathered.shrink_to(GATHERED * 2);
        self.to.flush().await
    }

    /// Ends the stream with a TLS close notification, so that the client can detect truncation by a third party.
    ///
    /// # Errors
    /// An I/O error of the socket.
    pub async fn close(&mut self) -> io::Result<()> {
        self.to.shutdown().await
    }
}
