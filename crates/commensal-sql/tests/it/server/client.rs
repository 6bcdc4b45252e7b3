//! A MySQL client that does what the tests need, byte by byte: so that they can also do what no client does.

use commensal_sql::engine::password::{self, Method};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

/// `CLIENT_PROTOCOL_41 | CONNECT_WITH_DB | SECURE_CONNECTION | PLUGIN_AUTH | LONG_PASSWORD`.
const CAPABILITIES: u32 = 0x0000_0200 | 0x0000_0008 | 0x0000_8000 | 0x0008_0000 | 0x0000_0001;

/// What the server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Ok,
    /// Names of columns, and rows of texts.
    Rows(Vec<String>, Vec<Vec<Option<String>>>),
    /// Number and text.
    Err(u16, String),
}

impl Answer {
    /// The rows; NULL is `NULL`.
    pub fn rows(&self) -> Vec<Vec<String>> {
        match self {
            Answer::Rows(_, rows) => rows
                .iter()
                .map(|row| row.iter().map(|cell| cell.clone().unwrap_or_else(|| "NULL".to_owned())).collect())
                .collect(),
            other => panic!("no rows: {other:?}"),
        }
    }

    /// The only cell.
    pub fn cell(&self) -> String {
        let rows = self.rows();
        assert_eq!((rows.len(), rows.first().map_or(0, Vec::len)), (1, 1), "{self:?}");
        rows[0][0].clone()
    }

    /// The text of an error.
    pub fn error(&self) -> String {
        match self {
            Answer::Err(_, text) => text.clone(),
            other => panic!("no error: {other:?}"),
        }
    }
}

/// `CLIENT_SSL`.
pub const SSL: u32 = 0x0000_0800;

/// An encrypted stream.
pub type Encrypted = StreamOwned<ClientConnection, TcpStream>;

/// A connection.
#[derive(Debug)]
pub struct Client<S = TcpStream> {
    pub stream: S,
    pub id: u32,
    pub salt: Vec<u8>,
}

impl Client {
    /// Logs in.
    pub fn login(address: SocketAddr, user: &str, password: &str, database: &str) -> Result<Client> {
        let mut client = Client::greet(address)?;
        client.say_who(1, 0, (user, password), database)?;
        Ok(client)
    }

    /// Logs in behind a handshake of TLS.
    pub fn encrypted(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        user: (&str, &str),
    ) -> Result<Client<Encrypted>> {
        let mut client = Client::greet(address)?;
        client.send(1, &wish())?;
        let name = address.ip().to_string().try_into().map_err(Error::other)?;
        let connection = ClientConnection::new(Arc::clone(config), name).map_err(Error::other)?;
        let stream = StreamOwned::new(connection, client.stream);
        let mut client = Client { stream, id: client.id, salt: client.salt };
        client.say_who(2, SSL, user, "")?;
        Ok(client)
    }

    /// Reads the server's greeting and says nothing.
    pub fn greet(address: SocketAddr) -> Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(600)))?;
        stream.set_nodelay(true)?;
        let mut client = Client { stream, id: 0, salt: Vec::new() };
        let (_, greeting) = client.receive()?;
        if greeting.first() == Some(&0xff) {
            return Err(Error::new(ErrorKind::ConnectionRefused, format!("{:?}", failure(&greeting))));
        }
        let end = 1 + greeting[1..].iter().position(|byte| *byte == 0).unwrap();
        client.id = u32::from_le_bytes(greeting[end + 1..end + 5].try_into().unwrap());
        client.salt.extend(&greeting[end + 5..end + 13]);
        client.salt.extend(&greeting[end + 32..end + 44]);
        Ok(client)
    }
}

/// What a client says that wants TLS.
pub fn wish() -> Vec<u8> {
    [&(CAPABILITIES | SSL).to_le_bytes()[..], &0x0100_0000_u32.to_le_bytes(), &[0x21], &[0; 23]].concat()
}

impl<S: Read + Write> Client<S> {
    fn say_who(&mut self, number: u8, more: u32, user: (&str, &str), database: &str) -> Result<()> {
        let mut login = Vec::new();
        login.extend((CAPABILITIES | more).to_le_bytes());
        login.extend(0x0100_0000_u32.to_le_bytes());
        login.push(0x21);
        login.extend([0; 23]);
        login.extend(user.0.as_bytes());
        login.push(0);
        let sent = password::response(Method::Native, user.1, &self.salt);
        login.push(sent.len() as u8);
        login.extend(&sent);
        login.extend(database.as_bytes());
        login.push(0);
        login.extend(b"mysql_native_password\0");
        self.send(number, &login)?;
        let (_, answer) = self.receive()?;
        match answer.first() {
            Some(0) => Ok(()),
            _ => Err(Error::new(ErrorKind::PermissionDenied, format!("{:?}", failure(&answer)))),
        }
    }

    pub fn send(&mut self, number: u8, packet: &[u8]) -> Result<()> {
        let size = packet.len() as u32;
        let mut bytes = size.to_le_bytes()[..3].to_vec();
        bytes.push(number);
        bytes.extend(packet);
        self.stream.write_all(&bytes)
    }

    pub fn receive(&mut self) -> Result<(u8, Vec<u8>)> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head)?;
        let mut packet = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
        self.stream.read_exact(&mut packet)?;
        Ok((head[3], packet))
    }

    /// Sends a statement and does not wait.
    pub fn ask(&mut self, sql: &str) -> Result<()> {
        let mut packet = vec![3];
        packet.extend(sql.as_bytes());
        self.send(0, &packet)
    }

    /// Runs a statement.
    pub fn query(&mut self, sql: &str) -> Answer {
        self.ask(sql).unwrap();
        self.answer().unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Runs statements that have to work.
    pub fn all(&mut self, statements: &[&str]) {
        for sql in statements {
            let answer = self.query(sql);
            assert!(!matches!(answer, Answer::Err(..)), "{sql}: {answer:?}");
        }
    }

    /// Reads an answer.
    pub fn answer(&mut self) -> Result<Answer> {
        let (_, first) = self.receive()?;
        match first[0] {
            0 => return Ok(Answer::Ok),
            0xff => return Ok(failure(&first)),
            _ => {}
        }
        let names = self.columns(first[0] as usize)?;
        let mut rows = Vec::new();
        loop {
            let (_, packet) = self.receive()?;
            match packet[0] {
                0xfe if packet.len() < 9 => return Ok(Answer::Rows(names, rows)),
                0xff => return Ok(failure(&packet)),
                _ => rows.push(cells(&packet)),
            }
        }
    }

    fn columns(&mut self, number: usize) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for _ in 0..number {
            let (_, packet) = self.receive()?;
            // Catalogue, schema, table, original table, name.
            names.push(cells(&packet)[4].clone().unwrap_or_default());
        }
        if number > 0 {
            self.receive()?;
        }
        Ok(names)
    }

    /// Prepares a statement: its number and how many values it takes.
    pub fn prepare(&mut self, sql: &str) -> Result<std::result::Result<(u32, usize), Answer>> {
        let mut packet = vec![0x16];
        packet.extend(sql.as_bytes());
        self.send(0, &packet)?;
        let (_, answer) = self.receive()?;
        if answer[0] == 0xff {
            return Ok(Err(failure(&answer)));
        }
        let id = u32::from_le_bytes(answer[1..5].try_into().unwrap());
        let columns = u16::from_le_bytes([answer[5], answer[6]]) as usize;
        let values = u16::from_le_bytes([answer[7], answer[8]]) as usize;
        self.columns(values)?;
        self.columns(columns)?;
        Ok(Ok((id, values)))
    }

    /// Executes a prepared statement with texts for its values; the answer is the number of rows.
    pub fn execute(&mut self, id: u32, values: &[&str]) -> Result<std::result::Result<usize, Answer>> {
        let mut packet = vec![0x17];
        packet.extend(id.to_le_bytes());
        packet.push(0);
        packet.extend(1_u32.to_le_bytes());
        if !values.is_empty() {
            packet.extend(vec![0; values.len().div_ceil(8)]);
            packet.push(1);
            values.iter().for_each(|_| packet.extend([0xfd, 0]));
            for value in values {
                packet.push(value.len() as u8);
                packet.extend(value.as_bytes());
            }
        }
        self.send(0, &packet)?;
        let (_, first) = self.receive()?;
        match first[0] {
            0 => return Ok(Ok(0)),
            0xff => return Ok(Err(failure(&first))),
            _ => {}
        }
        self.columns(first[0] as usize)?;
        let mut rows = 0;
        loop {
            let (_, packet) = self.receive()?;
            match packet[0] {
                0xfe if packet.len() < 9 => return Ok(Ok(rows)),
                0xff => return Ok(Err(failure(&packet))),
                _ => rows += 1,
            }
        }
    }
}

fn failure(packet: &[u8]) -> Answer {
    let number = u16::from_le_bytes([packet[1], packet[2]]);
    let text = String::from_utf8_lossy(packet.get(9..).unwrap_or_default()).into_owned();
    Answer::Err(number, text)
}

/// Texts with their lengths before them.
fn cells(mut packet: &[u8]) -> Vec<Option<String>> {
    let mut cells = Vec::new();
    while let Some((first, rest)) = packet.split_first() {
        let (size, rest) = match first {
            0xfb => {
                cells.push(None);
                packet = rest;
                continue;
            }
            0xfc => (u16::from_le_bytes([rest[0], rest[1]]) as usize, &rest[2..]),
            0xfd => (u32::from_le_bytes([rest[0], rest[1], rest[2], 0]) as usize, &rest[3..]),
            size => (*size as usize, rest),
        };
        if size > rest.len() {
            break;
        }
        cells.push(Some(String::from_utf8_lossy(&rest[..size]).into_owned()));
        packet = &rest[size..];
    }
    cells
}
