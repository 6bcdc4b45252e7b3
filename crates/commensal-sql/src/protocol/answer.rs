//! What a client is sent: packets with their numbers, words and rows.

use super::greeting::{AUTOCOMMIT, NO_EOF, Outgoing};
use super::rows::Column;
use std::io;
use tokio::io::AsyncWriteExt;

/// Length that says that the packet goes on in the next one.
const MORE: usize = 0x00ff_ffff;

/// Bytes that are gathered before they are sent.
const GATHERED: usize = 32 << 10;

/// `SERVER_MORE_RESULTS_EXISTS`.
const MORE_RESULTS: u16 = 8;

/// An error as a client gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// MySQL's number.
    pub code: u16,
    /// SQLSTATE.
    pub state: &'static str,
    /// What to do about it.
    pub text: String,
}

impl Failure {
    /// An error.
    pub fn new(code: u16, state: &'static str, text: impl Into<String>) -> Failure {
        Failure { code, state, text: text.into() }
    }
}

/// The answers of a connection.
pub struct Answers {
    to: Outgoing,
    gathered: Vec<u8>,
    number: u8,
    without_eof: bool,
    /// Statements are done as they come, as far as a client was told.
    pub autocommit: bool,
    /// Another result follows this one.
    pub more: bool,
}

/// A number in as many bytes as it needs.
pub fn length(to: &mut Vec<u8>, number: u64) {
    let bytes = number.to_le_bytes();
    match number {
        ..=0xfa => to.push(bytes[0]),
        0xfb..=0xffff => to.extend([&[0xfc], &bytes[..2]].concat()),
        0x1_0000..=0x00ff_ffff => to.extend([&[0xfd], &bytes[..3]].concat()),
        _ => to.extend([&[0xfe], &bytes[..]].concat()),
    }
}

/// Bytes with their length before them.
pub fn text(to: &mut Vec<u8>, bytes: &[u8]) {
    length(to, bytes.len() as u64);
    to.extend(bytes);
}

impl Answers {
    /// Answers to a client that can do this.
    #[must_use]
    pub fn new(to: Outgoing, capabilities: u32) -> Answers {
        let without_eof = capabilities & NO_EOF != 0;
        Answers { to, gathered: Vec::new(), number: 0, without_eof, autocommit: true, more: false }
    }

    /// The next packet answers one of this number.
    pub fn answer_to(&mut self, number: u8) {
        self.number = number.wrapping_add(1);
    }

    fn status(&self) -> [u8; 2] {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        (flag(self.autocommit, AUTOCOMMIT) | flag(self.more, MORE_RESULTS)).to_le_bytes()
    }

    /// One packet, or as many as it takes.
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
        // One that is full says that there is another, be it empty.
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

    /// The proof by `caching_sha2_password` is enough (`AuthMoreData`, `fast_auth_success`); stands before the answer.
    pub fn proven(&mut self) {
        self.packet(|to| to.extend([1, 3]));
    }

    /// Done.
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

    /// Not done.
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
        let status = self.status();
        self.packet(|to| {
            to.extend([0xfe, 0, 0]);
            to.extend(status);
        });
    }

    /// The columns of rows.
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

    /// A statement is prepared under this number.
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

    /// One row; nothing is sent yet.
    pub fn row(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        self.packet(fill);
    }

    /// Enough has been gathered.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.gathered.len() >= GATHERED
    }

    /// The end of rows, or of a list.
    pub fn end(&mut self) {
        if !self.without_eof {
            return self.eof();
        }
        let status = self.status();
        self.packet(|to| {
            to.extend([0xfe, 0, 0]);
            to.extend(status);
            to.extend([0, 0]);
        });
    }

    /// Sends what was gathered.
    ///
    /// # Errors
    /// The socket's.
    pub async fn send(&mut self) -> io::Result<()> {
        self.to.write_all(&self.gathered).await?;
        self.gathered.clear();
        self.gathered.shrink_to(GATHERED * 2);
        self.to.flush().await
    }

    /// Says that this is the end, so that nobody else can.
    ///
    /// # Errors
    /// The socket's.
    pub async fn close(&mut self) -> io::Result<()> {
        self.to.shutdown().await
    }
}
