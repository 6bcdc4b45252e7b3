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
}
