//! A small client of the MySQL protocol: text statements, one at a time. `bench` and `replay` speak to a server through
//! it, so that what they measure is what a user gets.

use crate::engine::password::{self, Method};
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// `CLIENT_LONG_PASSWORD | CONNECT_WITH_DB | PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH`.
const CAPABILITIES: u32 = 0x0000_0001 | 0x0000_0008 | 0x0000_0200 | 0x0000_8000 | 0x0008_0000;

/// Length that says that the packet goes on in the next one.
const MORE: usize = 0x00ff_ffff;

/// Why a statement has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection failed, or was closed.
    #[error("the connection to the server failed")]
    Io(#[from] io::Error),
    /// The server refused or ended it.
    #[error("{text} (error {code})")]
    Server {
        /// MySQL's number.
        code: u16,
        /// The server's words.
        text: String,
    },
    /// What the server sent is no MySQL.
    #[error("the server's answer is not of the MySQL protocol: {0}")]
    Protocol(&'static str),
}

type Result<T> = std::result::Result<T, ClientError>;

/// A row; NULL is `None`.
pub type Row = Vec<Option<String>>;

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
    number: u8,
}

impl Client {
    /// Logs in.
    ///
    /// # Errors
    /// Nobody listens there, or the user or the password is wrong.
    pub fn connect(address: SocketAddr, user: &str, password: &str, database: &str) -> Result<Client> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
        stream.set_nodelay(true)?;
        let mut client = Client { stream: BufReader::with_capacity(1 << 16, stream), number: 0 };
        let greeting = client.receive()?;
        if greeting.first() == Some(&0xff) {
            return Err(failure(&greeting));
        }
        let salt = salt(&greeting).ok_or(ClientError::Protocol("no greeting"))?;
        let sent = password::response(Method::Native, password, &salt);
        let mut login = Vec::with_capacity(128);
        login.extend(CAPABILITIES.to_le_bytes());
        login.extend(0x0100_0000_u32.to_le_bytes());
        // utf8_general_ci.
        login.push(0x21);
        login.extend([0; 23]);
        login.extend(user.as_bytes());
        login.extend([0, sent.len() as u8]);
        login.extend(&sent);
        login.extend(database.as_bytes());
        login.extend(b"\0mysql_native_password\0");
        client.send(&login)?;
        match client.receive()? {
            answer if answer.first() == Some(&0) => Ok(client),
            answer if answer.first() == Some(&0xff) => Err(failure(&answer)),
            _ => Err(ClientError::Protocol("another way to log in is asked for")),
        }
    }

    /// A handle that can close the connection from another thread.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn handle(&self) -> io::Result<TcpStream> {
        self.stream.get_ref().try_clone()
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(packet.len() + 4);
        bytes.extend(&(packet.len() as u32).to_le_bytes()[..3]);
        bytes.push(self.number);
        bytes.extend(packet);
        self.stream.get_mut().write_all(&bytes)
    }

    fn receive(&mut self) -> Result<Vec<u8>> {
        let mut packet = Vec::new();
        loop {
            let mut head = [0; 4];
            self.stream.read_exact(&mut head)?;
            let size = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
            self.number = head[3].wrapping_add(1);
            let before = packet.len();
            packet.resize(before + size, 0);
            self.stream.read_exact(&mut packet[before..])?;
            if size < MORE {
                return Ok(packet);
            }
        }
    }

    /// Runs a statement and hands over each row; the number of rows.
    ///
    /// # Errors
    /// The server refuses or ends it, or is gone.
    pub fn run(&mut self, sql: &str, each: &mut dyn FnMut(Row)) -> Result<u64> {
        self.number = 0;
        self.send(&[b"\x03", sql.as_bytes()].concat())?;
        let first = self.receive()?;
        let columns = match first.first() {
            Some(0) => return Ok(0),
            Some(0xff) => return Err(failure(&first)),
            _ => length(&mut first.as_slice()).ok_or(ClientError::Protocol("no number of columns"))?,
        };
        for _ in 0..=columns {
            self.receive()?;
        }
        let mut rows = 0;
        loop {
            let packet = self.receive()?;
            match packet.first() {
                Some(0xfe) if packet.len() < 9 => return Ok(rows),
                Some(0xff) => return Err(failure(&packet)),
                _ => {
                    rows += 1;
                    each(cells(&packet).ok_or(ClientError::Protocol("half a row"))?);
                }
            }
        }
    }

    /// Runs a statement; all of its rows.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub fn query(&mut self, sql: &str) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        self.run(sql, &mut |row| rows.push(row))?;
        Ok(rows)
    }
}

/// The two parts of the salt.
fn salt(greeting: &[u8]) -> Option<Vec<u8>> {
    let after = 1 + greeting.get(1..)?.iter().position(|byte| *byte == 0)? + 1 + 4;
    let mut salt = greeting.get(after..after + 8)?.to_vec();
    salt.extend(greeting.get(after + 27..after + 39)?);
    Some(salt)
}

fn failure(packet: &[u8]) -> ClientError {
    let Some(&[_, low, high]) = packet.get(..3) else { return ClientError::Protocol("half an error") };
    let text = String::from_utf8_lossy(&packet[3..]);
    // A hash mark and five letters of SQLSTATE.
    let text = text.strip_prefix('#').and_then(|text| text.get(5..)).unwrap_or(&text);
    ClientError::Server { code: u16::from_le_bytes([low, high]), text: text.to_owned() }
}

/// A number with its length before it; `None` is no number.
fn length(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first()?;
    let more = match first {
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        _ => 0,
    };
    let (number, rest) = rest.split_at_checked(more)?;
    *bytes = rest;
    let value = number.iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
    Some(if more == 0 { u64::from(*first) } else { value })
}

fn cells(mut packet: &[u8]) -> Option<Row> {
    let mut row = Vec::new();
    while !packet.is_empty() {
        if packet[0] == 0xfb {
            row.push(None);
            packet = &packet[1..];
            continue;
        }
        let size = usize::try_from(length(&mut packet)?).ok()?;
        let (cell, rest) = packet.split_at_checked(size)?;
        row.push(Some(String::from_utf8_lossy(cell).into_owned()));
        packet = rest;
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_taken_apart() {
        let long = "x".repeat(300);
        let packet = [&[1, b'a', 0xfb, 0xfc, 44, 1], long.as_bytes(), &[0]].concat();
        let row = cells(&packet).unwrap();
        assert_eq!(row, [Some("a".to_owned()), None, Some(long), Some(String::new())]);
        for broken in [&[5, b'a'][..], &[0xfc, 1], &[0xfe, 255, 255, 255, 255, 255, 255, 255, 255]] {
            assert_eq!(cells(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn errors_lose_their_sqlstate() {
        let error = failure(b"\xff\x25\x05#70100query is cancelled");
        assert!(
            matches!(&error, ClientError::Server { code: 1317, text } if text == "query is cancelled"),
            "{error}"
        );
        assert!(matches!(failure(b"\xff"), ClientError::Protocol(_)));
        assert_eq!(salt(b"\x0a8.0\0"), None);
    }
}
