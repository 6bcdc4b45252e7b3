//! A small client of the MySQL protocol that sends one text statement at a time. `bench` and `replay` access a server
//! through this client, so that they measure what users experience. The server's tests add functions to it.

use commensal_sql::engine::password::{self, Method};
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// `CLIENT_LONG_PASSWORD | CONNECT_WITH_DB | PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH`.
pub const CAPABILITIES: u32 = 0x0000_0001 | 0x0000_0008 | 0x0000_0200 | 0x0000_8000 | 0x0008_0000;

/// Payload length of a packet whose payload continues in the next packet.
const MORE: usize = 0x00ff_ffff;

/// The reason why a statement failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection failed, or was closed.
    #[error("the connection to the server failed")]
    Io(#[from] io::Error),
    /// The server refused or cancelled the statement.
    #[error("{text} (error {code})")]
    Server {
        /// MySQL's error number.
        code: u16,
        /// The server's error message.
        text: String,
    },
    /// The server's packet violates the MySQL protocol.
    #[error("the server's response violates the MySQL protocol: {0}")]
    Protocol(&'static str),
}

type Result<T> = std::result::Result<T, ClientError>;

/// A row; NULL is `None`.
pub type Row = Vec<Option<String>>;

/// A connection, over TCP or over a stream on top of it, such as TLS.
#[derive(Debug)]
pub struct Client<S = TcpStream> {
    /// The stream.
    pub stream: BufReader<S>,
    /// Number of the connection.
    pub id: u32,
    /// Random bytes from the server, from which the client computes the proof that it has the password.
    pub salt: Vec<u8>,
}

impl Client {
    /// Connects to a server and logs in.
    ///
    /// # Errors
    /// No server listens at the address, or the user or the password is wrong.
    pub fn connect(address: SocketAddr, user: &str, password: &str, database: &str) -> Result<Client> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
        stream.set_nodelay(true)?;
        let mut client = Client::over(stream)?;
        client.log_in(1, CAPABILITIES, (user, password), database)?;
        Ok(client)
    }

    /// Returns a handle that can close the connection from another thread.
    ///
    /// # Errors
    /// The descriptor cannot be duplicated.
    pub fn handle(&self) -> io::Result<TcpStream> {
        self.stream.get_ref().try_clone()
    }
}

impl<S: Read + Write> Client<S> {
    /// Reads the server's greeting without sending a response.
    ///
    /// # Errors
    /// The server refuses the connection.
    pub fn over(stream: S) -> Result<Client<S>> {
        let stream = BufReader::with_capacity(1 << 16, stream);
        let mut client = Client { stream, id: 0, salt: Vec::new() };
        let greeting = client.receive()?;
        if greeting.first() == Some(&0xff) {
            return Err(failure(&greeting));
        }
        (client.id, client.salt) = greeted(&greeting).ok_or(ClientError::Protocol("no greeting"))?;
        Ok(client)
    }

    /// Logs in: sends the handshake response with this sequence number and these capability flags.
    ///
    /// # Errors
    /// The user or the password is wrong.
    pub fn log_in(
        &mut self,
        number: u8,
        capabilities: u32,
        (user, password): (&str, &str),
        database: &str,
    ) -> Result<()> {
        let sent = password::response(Method::Native, password, &self.salt);
        let mut login = ssl_request(capabilities);
        login.extend(user.as_bytes());
        login.extend([0, sent.len() as u8]);
        login.extend(&sent);
        login.extend(database.as_bytes());
        login.extend(b"\0mysql_native_password\0");
        self.send(number, &login)?;
        match self.receive()? {
            answer if answer.first() == Some(&0) => Ok(()),
            answer if answer.first() == Some(&0xff) => Err(failure(&answer)),
            _ => Err(ClientError::Protocol("the server requests an unknown authentication method")),
        }
    }

    /// Sends a packet with this sequence number.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn send(&mut self, number: u8, packet: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(packet.len() + 4);
        bytes.extend(&(packet.len() as u32).to_le_bytes()[..3]);
        bytes.push(number);
        bytes.extend(packet);
        self.stream.get_mut().write_all(&bytes)
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut packet = Vec::new();
        loop {
            let mut head = [0; 4];
            self.stream.read_exact(&mut head)?;
            let size = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
            let before = packet.len();
            packet.resize(before + size, 0);
            self.stream.read_exact(&mut packet[before..])?;
            if size < MORE {
                return Ok(packet);
            }
        }
    }

    /// Sends a statement without waiting for its result.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn ask(&mut self, sql: &str) -> io::Result<()> {
        self.send(0, &[b"\x03", sql.as_bytes()].concat())
    }

    /// Reads a result, and calls `each` for each row. Returns the column names if the result has rows.
    ///
    /// # Errors
    /// The server refuses or cancels the statement, or the connection is closed.
    pub fn read(&mut self, each: &mut dyn FnMut(Row)) -> Result<Option<Vec<String>>> {
        let first = self.receive()?;
        let columns = match first.first() {
            Some(0) => return Ok(None),
            Some(0xff) => return Err(failure(&first)),
            _ => length(&mut first.as_slice())
                .ok_or(ClientError::Protocol("the number of columns is missing"))?,
        };
        let names = self.columns(columns)?;
        self.packets(&mut |packet| {
            each(cells(packet).ok_or(ClientError::Protocol("a row is incomplete"))?);
            Ok(())
        })?;
        Ok(Some(names))
    }

    /// Reads this number of column definitions and returns their names.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn columns(&mut self, number: u64) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for _ in 0..number {
            // Catalogue, database, table, the table's original name, the column's name.
            let name = cells(&self.receive()?).and_then(|cells| cells.into_iter().nth(4)?);
            names.push(name.ok_or(ClientError::Protocol("a column definition is incomplete"))?);
        }
        if number > 0 {
            self.receive()?;
        }
        Ok(names)
    }

    /// Reads row packets up to the end of the result.
    ///
    /// # Errors
    /// The server cancels the statement, or the connection is closed.
    pub fn packets(&mut self, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        loop {
            let packet = self.receive()?;
            match packet.first() {
                Some(0xfe) if packet.len() < 9 => return Ok(()),
                Some(0xff) => return Err(failure(&packet)),
                _ => each(&packet)?,
            }
        }
    }

    /// Runs a statement, and calls `each` for each row; returns the number of rows.
    ///
    /// # Errors
    /// The server refuses or cancels the statement, or the connection is closed.
    pub fn run(&mut self, sql: &str, each: &mut dyn FnMut(Row)) -> Result<u64> {
        self.ask(sql)?;
        let mut rows = 0;
        self.read(&mut |row| {
            rows += 1;
            each(row);
        })?;
        Ok(rows)
    }

    /// Runs a statement and returns all rows.
    ///
    /// # Errors
    /// The errors of [`Client::run`].
    pub fn fetch(&mut self, sql: &str) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        self.run(sql, &mut |row| rows.push(row))?;
        Ok(rows)
    }
}

/// Builds an SSLRequest, whose content is also the start of a login packet: capabilities, maximum packet size,
/// utf8_general_ci, 23 reserved bytes.
pub fn ssl_request(capabilities: u32) -> Vec<u8> {
    [&capabilities.to_le_bytes()[..], &0x0100_0000_u32.to_le_bytes(), &[0x21], &[0; 23]].concat()
}

/// Reads the connection number and the two parts of the salt from a greeting.
fn greeted(greeting: &[u8]) -> Option<(u32, Vec<u8>)> {
    let version = 1 + greeting.get(1..)?.iter().position(|byte| *byte == 0)? + 1;
    let id = greeting.get(version..version + 4)?.try_into().ok()?;
    let mut salt = greeting.get(version + 4..version + 12)?.to_vec();
    salt.extend(greeting.get(version + 31..version + 43)?);
    Some((u32::from_le_bytes(id), salt))
}

/// Decodes an error packet.
pub fn failure(packet: &[u8]) -> ClientError {
    let Some(&[_, low, high]) = packet.get(..3) else {
        return ClientError::Protocol("an error packet is incomplete");
    };
    let text = String::from_utf8_lossy(&packet[3..]);
    // Skips a hash sign and the five characters of SQLSTATE.
    let text = text.strip_prefix('#').and_then(|text| text.get(5..)).unwrap_or(&text);
    ClientError::Server { code: u16::from_le_bytes([low, high]), text: text.to_owned() }
}

/// Reads a length-encoded integer; `None` if it is malformed.
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
        assert_eq!(greeted(b"\x0a8.0\0"), None);
    }
}
