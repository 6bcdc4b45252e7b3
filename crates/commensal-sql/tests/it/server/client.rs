//! The bench's MySQL client, and what only tests do with one: prepared statements, TLS, and what no client does, byte by byte.

#[path = "../../../src/bin/commensal-sql-bench/client.rs"]
#[allow(dead_code, reason = "some of it is for the bench alone")]
mod wire;

pub use wire::{CAPABILITIES, Client, ClientError, ssl_request};

use std::io::{BufReader, Error, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};
use wire::failure;

type Result<T> = std::result::Result<T, ClientError>;

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

/// A value for a placeholder, with its type.
#[derive(Debug, Clone, PartialEq)]
pub enum Parameter {
    Null,
    Whole(i64),
    Double(f64),
    Decimal(String),
    Text(String),
    Bytes(Vec<u8>),
}

/// `CLIENT_SSL`.
pub const SSL: u32 = 0x0000_0800;

/// An encrypted stream.
pub type Encrypted = StreamOwned<ClientConnection, TcpStream>;

impl Client {
    /// Logs in.
    pub fn login(address: SocketAddr, user: &str, password: &str, database: &str) -> Result<Client> {
        let mut client = Client::greet(address)?;
        client.log_in(1, CAPABILITIES, (user, password), database)?;
        Ok(client)
    }

    /// Logs in behind a handshake of TLS.
    pub fn encrypted(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        user: (&str, &str),
    ) -> Result<Client<Encrypted>> {
        let mut client = Client::greet(address)?;
        client.send(1, &tls_request())?;
        let name = address.ip().to_string().try_into().map_err(Error::other)?;
        let connection = ClientConnection::new(Arc::clone(config), name).map_err(Error::other)?;
        let stream = BufReader::new(StreamOwned::new(connection, client.stream.into_inner()));
        let mut client = Client { stream, id: client.id, salt: client.salt };
        client.log_in(2, CAPABILITIES | SSL, user, "")?;
        Ok(client)
    }

    /// Reads the server's greeting and says nothing; a silent server is given up before the runner ends the test.
    pub fn greet(address: SocketAddr) -> Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(240)))?;
        stream.set_nodelay(true)?;
        Client::over(stream)
    }
}

/// Payload of the SSLRequest packet, with which a client asks for TLS.
pub fn tls_request() -> Vec<u8> {
    ssl_request(CAPABILITIES | SSL)
}

/// An error of the server is an answer.
fn answered<T>(outcome: Result<T>) -> Result<std::result::Result<T, Answer>> {
    match outcome {
        Ok(done) => Ok(Ok(done)),
        Err(ClientError::Server { code, text }) => Ok(Err(Answer::Err(code, text))),
        Err(other) => Err(other),
    }
}

impl<S: Read + Write> Client<S> {
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
        let mut rows = Vec::new();
        Ok(match answered(self.read(&mut |row| rows.push(row)))? {
            Ok(Some(names)) => Answer::Rows(names, rows),
            Ok(None) => Answer::Ok,
            Err(refused) => refused,
        })
    }

    /// Prepares a statement: its number and how many values it takes.
    pub fn prepare(&mut self, sql: &str) -> Result<std::result::Result<(u32, usize), Answer>> {
        let mut packet = vec![0x16];
        packet.extend(sql.as_bytes());
        self.send(0, &packet)?;
        let answer = self.receive()?;
        if answer[0] == 0xff {
            return answered(Err(failure(&answer)));
        }
        let id = u32::from_le_bytes(answer[1..5].try_into().unwrap());
        let columns = u16::from_le_bytes([answer[5], answer[6]]);
        let values = u16::from_le_bytes([answer[7], answer[8]]);
        self.columns(u64::from(values))?;
        self.columns(u64::from(columns))?;
        Ok(Ok((id, usize::from(values))))
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
        let first = self.receive()?;
        match first[0] {
            0 => return Ok(Ok(0)),
            0xff => return answered(Err(failure(&first))),
            _ => {}
        }
        self.columns(u64::from(first[0]))?;
        let mut rows = 0;
        let read = self.packets(&mut |_| {
            rows += 1;
            Ok(())
        });
        answered(read.map(|()| rows))
    }
    /// Prepares a statement, executes it and closes it.
    pub fn prepared(&mut self, sql: &str, parameters: &[Parameter]) -> Answer {
        let id = match self.prepare(sql).unwrap() {
            Ok((id, count)) => {
                assert_eq!(count, parameters.len(), "{sql}");
                id
            }
            Err(refused) => return refused,
        };
        let answer = self.execute_with(id, parameters);
        self.send(0, &[&[0x19][..], &id.to_le_bytes()].concat()).unwrap();
        match answered(answer).unwrap() {
            Ok(answer) | Err(answer) => answer,
        }
    }

    fn execute_with(&mut self, id: u32, parameters: &[Parameter]) -> Result<Answer> {
        let mut packet = [&[0x17][..], &id.to_le_bytes(), &[0], &1_u32.to_le_bytes()].concat();
        let mut nulls = vec![0_u8; parameters.len().div_ceil(8)];
        let (mut types, mut values) = (Vec::new(), Vec::new());
        for (at, parameter) in parameters.iter().enumerate() {
            let text = |values: &mut Vec<u8>, text: &str| {
                values.push(u8::try_from(text.len()).unwrap());
                values.extend(text.as_bytes());
            };
            types.extend(match parameter {
                Parameter::Null => {
                    nulls[at / 8] |= 1 << (at % 8);
                    [6, 0]
                }
                Parameter::Whole(value) => {
                    values.extend(value.to_le_bytes());
                    [8, 0]
                }
                Parameter::Double(value) => {
                    values.extend(value.to_le_bytes());
                    [5, 0]
                }
                Parameter::Decimal(value) => {
                    text(&mut values, value);
                    [246, 0]
                }
                Parameter::Text(value) => {
                    text(&mut values, value);
                    [253, 0]
                }
                Parameter::Bytes(value) => {
                    values.push(u8::try_from(value.len()).unwrap());
                    values.extend(value);
                    [252, 0]
                }
            });
        }
        if !parameters.is_empty() {
            packet.extend([nulls, vec![1], types, values].concat());
        }
        self.send(0, &packet)?;
        let first = self.receive()?;
        match first[0] {
            0 => return Ok(Answer::Ok),
            0xff => return Err(failure(&first)),
            _ => {}
        }
        let mut columns = Vec::new();
        for _ in 0..first[0] {
            let definition = self.receive()?;
            // Type and flags stand before the number of decimals and two reserved bytes.
            let end = definition.len();
            columns.push((definition[end - 6], definition[end - 5] & 32 != 0));
        }
        self.receive()?;
        let mut rows = Vec::new();
        self.packets(&mut |packet| {
            rows.push(binary_row(packet, &columns));
            Ok(())
        })?;
        Ok(Answer::Rows(Vec::new(), rows))
    }
}

/// The cells of a row of a prepared statement, as texts, by their types and whether they have no sign.
fn binary_row(packet: &[u8], columns: &[(u8, bool)]) -> Vec<Option<String>> {
    let nulls = &packet[1..];
    let mut rest = &packet[1 + (columns.len() + 2).div_ceil(8)..];
    let mut take = |count: usize| {
        let (taken, left) = rest.split_at(count);
        rest = left;
        taken.to_vec()
    };
    let mut row = Vec::new();
    for (at, (kind, unsigned)) in columns.iter().enumerate() {
        if nulls[(at + 2) / 8] & 1 << ((at + 2) % 8) != 0 {
            row.push(None);
            continue;
        }
        let number = |bytes: Vec<u8>| {
            let is_negative = !unsigned && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
            let mut padded = [if is_negative { 0xff } else { 0 }; 16];
            padded[..bytes.len()].copy_from_slice(&bytes);
            i128::from_le_bytes(padded)
        };
        let part = |bytes: &[u8], from: usize, count: usize| {
            bytes
                .get(from..from + count)
                .map_or(0, |bytes| bytes.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)))
        };
        let fraction = |micros: u64| if micros == 0 { String::new() } else { format!(".{micros:06}") };
        row.push(Some(match kind {
            1 => number(take(1)).to_string(),
            2 => number(take(2)).to_string(),
            3 => number(take(4)).to_string(),
            8 => number(take(8)).to_string(),
            4 => f32::from_le_bytes(take(4).try_into().unwrap()).to_string(),
            5 => f64::from_le_bytes(take(8).try_into().unwrap()).to_string(),
            10 | 12 => {
                let count = take(1)[0];
                let of = take(count.into());
                let date = format!("{:04}-{:02}-{:02}", part(&of, 0, 2), part(&of, 2, 1), part(&of, 3, 1));
                let clock = [4, 5, 6].map(|at| format!("{:02}", part(&of, at, 1))).join(":");
                if *kind == 10 { date } else { format!("{date} {clock}{}", fraction(part(&of, 7, 4))) }
            }
            11 => {
                let count = take(1)[0];
                let of = take(count.into());
                let sign = if part(&of, 0, 1) == 1 { "-" } else { "" };
                let hours = part(&of, 1, 4) * 24 + part(&of, 5, 1);
                let [minutes, seconds] = [6, 7].map(|at| part(&of, at, 1));
                format!("{sign}{hours:02}:{minutes:02}:{seconds:02}{}", fraction(part(&of, 8, 4)))
            }
            _ => {
                let first = take(1)[0];
                let count = match first {
                    0xfc => part(&take(2), 0, 2),
                    0xfd => part(&take(3), 0, 3),
                    short => u64::from(short),
                };
                String::from_utf8_lossy(&take(usize::try_from(count).unwrap())).into_owned()
            }
        }));
    }
    row
}
