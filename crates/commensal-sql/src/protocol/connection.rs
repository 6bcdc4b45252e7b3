//! One connection: greeting, login, commands.

use super::answer::{Answers, Failure};
use super::auth::{self, Access, Origin};
use super::greeting::{self, Greeted, Incoming, MANY_STATEMENTS};
use super::packets::{self, Ahead, PacketError, PayloadReader};
use super::rows::{self, Column, Ready, RowFormat};
use super::socket::Socket;
use super::values::Placeholders;
use super::{Limits, Terms};
use crate::engine::Engine;
use crate::engine::connections::Connection;
use crate::engine::error::{Error, Problem};
use crate::engine::execute::Rows;
use crate::engine::password::{Method, SALT};
use crate::engine::session::{Reply, Session};
use crate::statement::{self, PassedOn, Statement};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Timeout after which a client that does not read its response is disconnected.
const STALLED: Duration = Duration::from_secs(600);

/// Timeout for sending a client the reason why its connection is closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// MySQL's message for error 3159.
const INSECURE: &str =
    "Connections using insecure transport are prohibited while --require_secure_transport=ON.";

/// Commands that are supported (`COM_*`).
mod command {
    pub const QUIT: u8 = 0x01;
    pub const INIT_DB: u8 = 0x02;
    pub const QUERY: u8 = 0x03;
    pub const FIELD_LIST: u8 = 0x04;
    pub const PROCESS_KILL: u8 = 0x0c;
    pub const PING: u8 = 0x0e;
    pub const STMT_PREPARE: u8 = 0x16;
    pub const STMT_EXECUTE: u8 = 0x17;
    pub const STMT_SEND_LONG_DATA: u8 = 0x18;
    pub const STMT_CLOSE: u8 = 0x19;
    pub const STMT_RESET: u8 = 0x1a;
    pub const SET_OPTION: u8 = 0x1b;
    pub const RESET_CONNECTION: u8 = 0x1f;
}

/// Reports to a client that there are too many connections, and closes the connection.
pub async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let text = b"\xff\x10\x04#08004Too many connections";
    stream.write_all(&[&[text.len() as u8, 0, 0, 0], text.as_slice()].concat()).await?;
    stream.shutdown().await
}

/// Serves one client until it disconnects or its connection is closed.
pub async fn serve(terms: &Terms, stream: TcpStream, peer: SocketAddr, id: u32) -> Result<(), PacketError> {
    // Converts IPv4-mapped addresses of an IPv6 socket to IPv4.
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let socket = Socket::new(stream, terms.limits.silence)?;
    let no_login = |_| io::Error::new(io::ErrorKind::TimedOut, "no login");
    let logged_in =
        timeout(terms.limits.login, log_in(terms, socket.clone(), peer, id)).await.map_err(no_login)??;
    let Some((mut served, from)) = logged_in else { return Ok(()) };
    let gone = CancellationToken::new();
    let close = served.connection.close.clone();
    let (ahead, packets) = mpsc::unbounded_channel();
    let watcher = tokio::spawn(packets::watch(from, socket, ahead, terms.limits.packet, gone.clone()));
    let outcome = tokio::select! {
        outcome = served.run(packets) => outcome,
        () = close.cancelled() => Ok(()),
        () = gone.cancelled() => Ok(()),
    };
    gone.cancel();
    let watched = watcher.await.unwrap_or(Ok(()));
    if let Err(PacketError::TooLarge { limit, .. }) = watched {
        let text = format!("Got a packet bigger than 'max_allowed_packet' bytes, which is {limit}");
        served.answers.answer_to(0);
        served.answers.failed(&Failure::new(1153, "08S01", text));
        let _ = timeout(FAREWELL, served.answers.send()).await;
    }
    let _ = timeout(FAREWELL, served.answers.close()).await;
    outcome?;
    watched
}

/// Greets a client and authenticates it. Returns `None` after a refusal, which is reported to the client.
async fn log_in(
    terms: &Terms,
    socket: Socket,
    peer: SocketAddr,
    id: u32,
) -> Result<Option<(Served, Incoming)>, PacketError> {
    let mut salt = [0; SALT];
    getrandom::fill(&mut salt).map_err(io::Error::other)?;
    // On the wire, the salt is terminated by a zero byte, so it must not contain one.
    salt.iter_mut().for_each(|byte| *byte = *byte % 126 + 1);
    let mut greeted = greeting::greet(socket, id, &salt, terms.tls.as_deref()).await?;
    let insecure = terms.tls_required && !greeted.encrypted && !peer.ip().is_loopback();
    let origin = Origin { address: peer.ip(), encrypted: greeted.encrypted };
    if !greeted.login.proven && !insecure {
        let method = auth::method(&terms.engine, &greeted.login.user, origin, greeted.login.method);
        greeting::prove(&mut greeted, method, &salt).await?;
    }
    let Greeted { from, to, login, .. } = greeted;
    let mut answers = Answers::new(to, login.capabilities);
    answers.answer_to(login.number);
    let access = match insecure {
        true => Access::Refused("without TLS, from another machine"),
        false => {
            let proof = (login.method, login.proof.as_slice());
            auth::decide(&terms.engine, &login.user, origin, proof, &salt)
        }
    };
    let user = match access {
        Access::As(user) => user,
        Access::Refused(why) => {
            tracing::warn!(user = %login.user, %peer, "refused: {why}");
            let using = if login.proof.len() <= 1 { "NO" } else { "YES" };
            let (name, host) = (&login.user, peer.ip());
            let text = format!("Access denied for user '{name}'@'{host}' (using password: {using})");
            answers.failed(&match insecure {
                true => Failure::new(3159, "HY000", INSECURE),
                false => Failure::new(1045, "28000", text),
            });
            answers.send().await?;
            answers.close().await?;
            return Ok(None);
        }
    };
    if login.method == Method::Sha2 && login.proof.len() > 1 {
        answers.proven();
    }
    let engine = Arc::clone(&terms.engine);
    let connection = Arc::new(Connection::new(id, user, &peer.ip().to_string()));
    let most = engine.with_catalog(|catalog| catalog.max_connections(&connection.user.name));
    if engine.connections.add(&connection, most).is_err() {
        tracing::warn!(user = %connection.user, %peer, "refused: max_user_connections");
        let name = &connection.user.name;
        let text = format!("User '{name}' has exceeded the 'max_user_connections' resource");
        answers.failed(&Failure::new(1226, "42000", text));
        answers.send().await?;
        answers.close().await?;
        return Ok(None);
    }
    let session = Session::new(&engine, &connection);
    let mut served = Served {
        _listed: Listed { engine, id },
        session,
        connection,
        answers,
        many: login.capabilities & MANY_STATEMENTS != 0,
        limits: terms.limits,
        statements: HashMap::new(),
        last: 0,
    };
    // An empty name means that the client did not choose a database.
    let chosen = if login.database.is_empty() { Ok(()) } else { served.session.choose(&login.database) };
    served.word(&chosen);
    served.send().await?;
    Ok(chosen.is_ok().then_some((served, from)))
}

/// Keeps a connection in the server's list until it is dropped.
struct Listed {
    engine: Arc<Engine>,
    id: u32,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.engine.connections.remove(self.id);
    }
}

/// A prepared statement.
struct Prepared {
    passed: PassedOn,
    placeholders: Placeholders,
}

struct Served {
    _listed: Listed,
    session: Session,
    connection: Arc<Connection>,
    answers: Answers,
    /// Whether one command may contain several statements.
    many: bool,
    limits: Limits,
    statements: HashMap<u32, Prepared>,
    last: u32,
}

/// Returns MySQL's error for an error of the engine. Like in Doris, its number is mostly 1105.
fn failure(error: &Error) -> Failure {
    let (code, state) = match error {
        Error::Syntax(_) => (1064, "42000"),
        Error::Denied(_) => (1227, "42000"),
        Error::NotOwner(_) => (1095, "HY000"),
        Error::ReadOnly => (1792, "25006"),
        Error::Unsupported(_) => (1235, "42000"),
        Error::Range(_) => (1690, "22003"),
        Error::Cancelled => (1317, "70100"),
        Error::ExecutionTime => (3024, "HY000"),
        Error::Name(problem, _) => match problem {
            Problem::Database => (1049, "42000"),
            Problem::Table => (1146, "42S02"),
            Problem::Column => (1054, "42S22"),
            Problem::Ambiguous => (1052, "23000"),
            Problem::Alias => (1066, "42000"),
            Problem::Function => (1305, "42000"),
            Problem::GroupFunction => (1111, "HY000"),
            Problem::Variable => (1193, "HY000"),
            Problem::Thread => (1094, "HY000"),
            Problem::SystemTable => (1109, "42S02"),
            Problem::Duplicate => (1060, "42S21"),
            Problem::Columns => (1241, "21000"),
            Problem::Rows => (1242, "21000"),
            Problem::Widths => (1222, "21000"),
            Problem::Parameters => (1582, "42000"),
        },
        _ => (1105, "HY000"),
    };
    Failure::new(code, state, error.to_string())
}

/// Returns the error for malformed parameters of a command.
fn malformed() -> Failure {
    Failure::new(1835, "HY000", "Malformed communication packet")
}

/// Returns a statement's text, or an error if it is not UTF-8.
fn utf8(bytes: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        Failure::new(1300, "HY000", format!("Invalid utf8mb4 character string: byte {at} of the statement"))
    })
}

impl Served {
    /// Executes commands and sends their responses, until the client sends no more.
    async fn run(&mut self, mut packets: UnboundedReceiver<Ahead>) -> Result<(), PacketError> {
        while let Some((bytes, _room)) = packets.recv().await {
            let Some((command, rest)) = bytes.split_first() else { return Ok(()) };
            self.answers.answer_to(0);
            match *command {
                command::QUIT => return Ok(()),
                command::STMT_SEND_LONG_DATA => self.piece(rest)?,
                command::STMT_CLOSE => {
                    if let Some(id) = PayloadReader(rest).u32() {
                        self.statements.remove(&id);
                    }
                }
                command => {
                    if let Err(failure) = self.command(command, rest).await? {
                        self.answers.failed(&failure);
                    }
                    self.send().await?;
                }
            }
        }
        Ok(())
    }

    async fn command(&mut self, command: u8, rest: &[u8]) -> io::Result<Result<(), Failure>> {
        match command {
            command::QUERY => return self.query(rest).await,
            command::STMT_PREPARE => return Ok(self.prepare(rest).await),
            command::STMT_EXECUTE => return self.execute(rest).await,
            command::INIT_DB => {
                let chosen = match utf8(rest) {
                    Ok(database) => self.session.choose(database),
                    Err(failure) => return Ok(Err(failure)),
                };
                self.word(&chosen);
            }
            command::PROCESS_KILL => {
                let Some(id) = PayloadReader(rest).u32() else { return Ok(Err(malformed())) };
                let reply = self.session.execute(&format!("KILL {id}")).await;
                self.word(&reply.map(|_| ()));
            }
            command::SET_OPTION => {
                // 0 is on, 1 is off.
                self.many = PayloadReader(rest).u16() == Some(0);
                self.answers.end();
            }
            // The list of column names, which clients use for completion, is always empty.
            command::FIELD_LIST => self.answers.end(),
            command::PING => self.answers.done(0, &[]),
            command::STMT_RESET => {
                let statement = PayloadReader(rest).u32().and_then(|id| self.statements.get_mut(&id));
                if let Some(statement) = statement {
                    statement.placeholders.reset();
                }
                self.answers.done(0, &[]);
            }
            command::RESET_CONNECTION => {
                self.connection.set_variables(Default::default());
                self.statements.clear();
                self.answers.done(0, &[]);
            }
            unknown => {
                let text = format!("Unknown command {unknown:#04x}");
                return Ok(Err(Failure::new(1047, "08S01", text)));
            }
        }
        Ok(Ok(()))
    }

    /// Sends success or an error.
    fn word(&mut self, outcome: &Result<(), Error>) {
        match outcome {
            Ok(()) => self.answers.done(0, &[]),
            Err(error) => self.answers.failed(&failure(error)),
        }
    }

    async fn send(&mut self) -> io::Result<()> {
        let stalled = |_| io::Error::new(io::ErrorKind::TimedOut, "the client does not read its rows");
        timeout(STALLED, self.answers.send()).await.map_err(stalled)?
    }

    async fn query(&mut self, text: &[u8]) -> io::Result<Result<(), Failure>> {
        let text = match utf8(text) {
            Ok(text) => text,
            Err(failure) => return Ok(Err(failure)),
        };
        let parts = if self.many { statement::split(text) } else { Vec::new() };
        let parts = if parts.len() > 1 { parts } else { vec![text] };
        for (at, part) in parts.iter().enumerate() {
            let reply = self.session.execute(part).await;
            self.answers.more = at + 1 < parts.len();
            if !self.answer(reply, RowFormat::Text).await? {
                break;
            }
        }
        Ok(Ok(()))
    }

    async fn prepare(&mut self, text: &[u8]) -> Result<(), Failure> {
        let text = utf8(text)?;
        let most = self.limits.statements;
        if self.statements.len() >= most {
            let text = format!("more than {most} prepared statements: close some");
            return Err(Failure::new(1461, "42000", text));
        }
        let statement = statement::parse(text).map_err(|error| Error::Syntax(error.to_string()));
        let Statement::PassedOn(passed) = statement.map_err(|error| failure(&error))? else {
            return Err(Failure::new(1295, "HY000", "only queries can be prepared"));
        };
        let prepared = self.session.prepare(&passed, Vec::new()).map_err(|error| failure(&error))?;
        let number = prepared.placeholders();
        if u16::try_from(number).is_err() {
            return Err(Failure::new(1390, "HY000", "Prepared statement contains too many placeholders"));
        }
        let schema = self.session.columns(prepared).await.map_err(|error| failure(&error))?;
        self.last = self.last.wrapping_add(1).max(1);
        let placeholders: Vec<Column> = (0..number).map(|_| rows::placeholder()).collect();
        self.answers.prepared(self.last, &placeholders, &rows::columns(&schema));
        let statement = Prepared { passed, placeholders: Placeholders::new(number) };
        self.statements.insert(self.last, statement);
        Ok(())
    }

    async fn execute(&mut self, bytes: &[u8]) -> io::Result<Result<(), Failure>> {
        let mut bytes = PayloadReader(bytes);
        let Some(id) = bytes.u32() else { return Ok(Err(malformed())) };
        let Some(statement) = self.statements.get_mut(&id) else {
            let text = format!("Unknown prepared statement handler ({id}) given to mysqld_stmt_execute");
            return Ok(Err(Failure::new(1243, "HY000", text)));
        };
        // Skips the cursor type (cursors are not supported) and the iteration count (always 1).
        let values = bytes.take(5).and_then(|_| statement.placeholders.read(bytes));
        statement.placeholders.reset();
        let Some(values) = values else {
            return Ok(Err(Failure::new(1210, "HY000", "Incorrect arguments to mysqld_stmt_execute")));
        };
        let reply = match self.session.prepare(&statement.passed, values) {
            Ok(prepared) => self.session.run_whole(prepared).await,
            Err(error) => Err(error),
        };
        self.answer(reply, RowFormat::Binary).await?;
        Ok(Ok(()))
    }

    /// Stores a piece of a parameter value. The protocol has no response to this command, so the server closes the
    /// connection if the value is too large.
    fn piece(&mut self, bytes: &[u8]) -> Result<(), PacketError> {
        let mut bytes = PayloadReader(bytes);
        let (Some(id), Some(at)) = (bytes.u32(), bytes.u16()) else { return Ok(()) };
        let (kept, limit) = (
            self.statements.values().map(|statement| statement.placeholders.kept()).sum::<usize>(),
            self.limits.packet,
        );
        let size = kept + bytes.0.len();
        if size > limit {
            return Err(PacketError::TooLarge { size, limit });
        }
        let statement = self.statements.get_mut(&id);
        if let Some(statement) = statement.filter(|kept| usize::from(at) < kept.placeholders.number) {
            statement.placeholders.piece(at, bytes.0);
        }
        Ok(())
    }

    /// Sends the result of a statement; returns whether the statement succeeded.
    async fn answer(&mut self, reply: Result<Reply, Error>, way: RowFormat) -> io::Result<bool> {
        let autocommit = self.connection.variables().get("autocommit");
        self.answers.autocommit =
            autocommit.is_none_or(|value| ["1", "on", "true"].contains(&value.to_lowercase().as_str()));
        let done = match reply {
            Ok(Reply::Rows(rows)) => self.rows(rows, way).await?,
            Ok(Reply::Done { rows, warnings }) => {
                self.answers.done(rows, &warnings);
                Ok(())
            }
            Err(error) => Err(failure(&error)),
        };
        if let Err(failure) = &done {
            self.answers.failed(failure);
        }
        self.send().await?;
        self.answers.more = false;
        self.connection.set_current(None);
        Ok(done.is_ok())
    }

    async fn rows(&mut self, mut all: Rows, way: RowFormat) -> io::Result<Result<(), Failure>> {
        self.answers.columns(&rows::columns(&all.schema));
        loop {
            let batch = match all.next().await {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    self.answers.end();
                    return Ok(Ok(()));
                }
                Err(error) => return Ok(Err(failure(&error))),
            };
            let ready = match Ready::new(&batch) {
                Ok(ready) => ready,
                Err(error) => return Ok(Err(failure(&Error::Engine(error.to_string())))),
            };
            for row in 0..ready.rows {
                self.answers.row(|to| ready.write(row, way, to));
                if self.answers.is_full() {
                    self.send().await?;
                }
            }
        }
    }
}
