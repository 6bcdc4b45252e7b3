//! Parses an HTTP/1.1 response piece by piece: its status, its end, and whether the client can reuse the connection.
//!
//! The parser skips the body, and supports only responses to GET requests.

/// Maximum length of a head (bytes).
const HEAD_MAX: usize = 64 * 1024;
/// Maximum number of header fields.
const FIELDS_MAX: usize = 100;
/// Maximum length of a chunk size line or trailer line (bytes).
const LINE_MAX: usize = 8 * 1024;

/// The bytes are not a valid HTTP/1 response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// A response that the parser has read completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    /// Status code.
    pub(super) status: u16,
    /// Whether the client can send another request on the connection. The client cannot after `Connection: close`,
    /// after a body that ends only when the peer closes the connection, or if there were bytes beyond the end of the
    /// response.
    pub(super) reusable: bool,
}

/// Parses consecutive responses; after each [`Answer`], the parser expects the next response.
#[derive(Debug, Default)]
pub(super) struct Parser {
    stage: Stage,
    /// The part of the head or of the line that has arrived so far.
    held: Vec<u8>,
    status: u16,
    keep_alive: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Head,
    /// In a body of known length; the value is the number of bytes left.
    Length(u64),
    /// In the line before a chunk, which states the chunk's size.
    ChunkSize,
    /// In a chunk; the value is the number of bytes left, including the line end.
    ChunkData(u64),
    /// In the lines after the last chunk, which an empty line terminates.
    Trailer,
    UntilClose,
}

impl Parser {
    /// Parses the next bytes; returns the response as soon as it is complete, otherwise `None`.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Result<Option<Answer>, Malformed> {
        while !bytes.is_empty() {
            let complete = match self.stage {
                Stage::Head => self.head(&mut bytes)?,
                Stage::Length(left) => {
                    let left = left - skip(&mut bytes, left);
                    self.stage = Stage::Length(left);
                    left == 0
                }
                Stage::ChunkSize => {
                    self.chunk_size(&mut bytes)?;
                    false
                }
                Stage::ChunkData(left) => {
                    self.chunk_data(&mut bytes, left)?;
                    false
                }
                Stage::Trailer => self.line(&mut bytes)?.is_some_and(|line| line.is_empty()),
                Stage::UntilClose => {
                    bytes = &[];
                    false
                }
            };
            if complete {
                let answer = Answer { status: self.status, reusable: self.keep_alive && bytes.is_empty() };
                *self = Self { held: std::mem::take(&mut self.held), ..Self::default() };
                self.held.clear();
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    /// Handles the end of the connection. A body without a stated length is then complete. Otherwise returns `None`,
    /// because the peer closed the connection within the response.
    pub(super) fn end(&mut self) -> Option<Answer> {
        let whole = self.stage == Stage::UntilClose;
        let answer = Answer { status: self.status, reusable: false };
        *self = Self::default();
        whole.then_some(answer)
    }

    /// Parses the head. Returns true if the response has no body, so that it is complete.
    fn head(&mut self, bytes: &mut &[u8]) -> Result<bool, Malformed> {
        self.held.extend_from_slice(bytes);
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let length = match response.parse(&self.held).map_err(|_| Malformed)? {
            httparse::Status::Partial if self.held.len() > HEAD_MAX => return Err(Malformed),
            httparse::Status::Partial => {
                *bytes = &[];
                return Ok(false);
            }
            httparse::Status::Complete(n) => n,
        };
        self.status = response.code.ok_or(Malformed)?;
        self.keep_alive = response.version == Some(1);
        let mut content_length = None;
        let mut transfer_encoding = None;
        for field in response.headers.iter() {
            if field.name.eq_ignore_ascii_case("content-length") {
                let value = decimal(field.value)?;
                if content_length.is_some_and(|known| known != value) {
                    return Err(Malformed);
                }
                content_length = Some(value);
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                let last = field.value.rsplit(|b| *b == b',').next().unwrap_or_default();
                transfer_encoding = Some(last.trim_ascii().eq_ignore_ascii_case(b"chunked"));
            } else if field.name.eq_ignore_ascii_case("connection") {
                for token in field.value.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
                    if token.eq_ignore_ascii_case(b"close") {
                        self.keep_alive = false;
                    } else if token.eq_ignore_ascii_case(b"keep-alive") && response.version == Some(0) {
                        self.keep_alive = true;
                    }
                }
            }
        }
        // The bytes after the head are from the last piece, because the head was incomplete before that piece.
        let rest = self.held.len() - length;
        *bytes = &bytes[bytes.len() - rest..];
        self.held.clear();
        self.stage = match (self.status, transfer_encoding, content_length) {
            (100..=199, ..) => Stage::Head,
            (204 | 304, ..) | (_, None, Some(0)) => return Ok(true),
            (_, Some(true), _) => Stage::ChunkSize,
            (_, None, Some(n)) => Stage::Length(n),
            (_, Some(false), _) | (_, None, None) => Stage::UntilClose,
        };
        Ok(false)
    }

    fn chunk_size(&mut self, bytes: &mut &[u8]) -> Result<(), Malformed> {
        let Some(line) = self.line(bytes)? else { return Ok(()) };
        let digits = line.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
        let digits = std::str::from_utf8(digits).map_err(|_| Malformed)?;
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(Malformed);
        }
        self.stage = match u64::from_str_radix(digits, 16).map_err(|_| Malformed)? {
            0 => Stage::Trailer,
            n => Stage::ChunkData(n.checked_add(2).ok_or(Malformed)?),
        };
        Ok(())
    }

    fn chunk_data(&mut self, bytes: &mut &[u8], left: u64) -> Result<(), Malformed> {
        if left > 2 {
            self.stage = Stage::ChunkData(left - skip(bytes, left - 2));
            return Ok(());
        }
        let expected = if left == 2 { b'\r' } else { b'\n' };
        if bytes.first() != Some(&expected) {
            return Err(Malformed);
        }
        *bytes = &bytes[1..];
        self.stage = if left == 2 { Stage::ChunkData(1) } else { Stage::ChunkSize };
        Ok(())
    }

    /// Moves bytes up to a line end into `held`; returns the line without its line end once it is complete.
    fn line(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
        let end = bytes.iter().position(|b| *b == b'\n');
        let (now, rest) = bytes.split_at(end.map_or(bytes.len(), |i| i + 1));
        self.held.extend_from_slice(now);
        *bytes = rest;
        if self.held.len() > LINE_MAX {
            return Err(Malformed);
        }
        if end.is_none() {
            return Ok(None);
        }
        let line = self.held.strip_suffix(b"\r\n").ok_or(Malformed)?.to_vec();
        self.held.clear();
        Ok(Some(line))
    }
}

/// Drops up to `most` bytes from the front of `bytes`; returns the number of bytes dropped.
fn skip(bytes: &mut &[u8], most: u64) -> u64 {
    let n = usize::try_from(most).unwrap_or(usize::MAX).min(bytes.len());
    *bytes = &bytes[n..];
    n as u64
}

fn decimal(value: &[u8]) -> Result<u64, Malformed> {
    let text = std::str::from_utf8(value.trim_ascii()).map_err(|_| Malformed)?;
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Malformed);
    }
    text.parse().map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses all pieces; returns the outcome, if necessary after the peer closes the connection.
    fn read(pieces: &[&[u8]]) -> Result<Option<Answer>, Malformed> {
        let mut parser = Parser::default();
        for (i, piece) in pieces.iter().enumerate() {
            if let Some(answer) = parser.feed(piece)? {
                let left = pieces[i + 1..].iter().any(|p| !p.is_empty());
                return Ok(Some(Answer { reusable: answer.reusable && !left, ..answer }));
            }
        }
        Ok(parser.end())
    }

    /// Checks that the outcome is the same for the whole text, for the text cut in two at every byte, and byte by byte.
    fn check(text: &str, expected: Result<Option<Answer>, Malformed>) {
        let bytes = text.as_bytes();
        assert_eq!(read(&[bytes]), expected, "whole: {text:?}");
        for cut in 0..=bytes.len() {
            assert_eq!(read(&[&bytes[..cut], &bytes[cut..]]), expected, "cut at {cut}: {text:?}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(&single), expected, "byte by byte: {text:?}");
    }

    fn answer(status: u16, reusable: bool) -> Result<Option<Answer>, Malformed> {
        Ok(Some(Answer { status, reusable }))
    }

    #[test]
    fn bodies_of_every_kind() {
        check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", answer(200, true));
        check("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", answer(200, true));
        check("HTTP/1.1 204 No Content\r\n\r\n", answer(204, true));
        check("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", answer(304, true));
        check("HTTP/1.1 200 OK\r\n\r\nuntil the close", answer(200, false));
        check(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
            answer(200, true),
        );
        check("HTTP/1.1 503 Busy\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nno", answer(503, true));
    }

    #[test]
    fn chunked_bodies() {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        check(&format!("{head}5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n"), answer(200, true));
        check(&format!("{head}0\r\nDigest: x\r\n\r\n"), answer(200, true));
        check(&format!("{head}5\r\nhelloXX0\r\n\r\n"), Err(Malformed));
        check(&format!("{head}5g\r\nhello\r\n"), Err(Malformed));
        check(&format!("{head}ffffffffffffffff\r\n"), Err(Malformed));
        check(&format!("{head}5\r\nhel"), Ok(None));
    }

    #[test]
    fn the_connection_header_decides_reuse() {
        check("HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 1\r\n\r\nx", answer(200, false));
        check("HTTP/1.1 200 OK\r\nConnection: foo, close\r\nContent-Length: 1\r\n\r\nx", answer(200, false));
        check("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", answer(200, false));
        check("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx", answer(200, true));
        check("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxEXTRA", answer(200, false));
    }

    #[test]
    fn what_is_not_http() {
        check("", Ok(None));
        check("HTTP/1.1 200 OK\r\nContent-Le", Ok(None));
        check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", Ok(None));
        check("SSH-2.0-OpenSSH_9.2\r\n", Err(Malformed));
        check("HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello", Err(Malformed));
        check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", Err(Malformed));
        let mut parser = Parser::default();
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "a".repeat(HEAD_MAX));
        assert_eq!(parser.feed(endless.as_bytes()), Err(Malformed));
    }

    #[test]
    fn one_parser_reads_many_responses() {
        let mut parser = Parser::default();
        for status in [200, 404, 200] {
            let text = format!("HTTP/1.1 {status} X\r\nContent-Length: 3\r\n\r\nabc");
            assert_eq!(parser.feed(text.as_bytes()), answer(status, true));
        }
    }
}
