//! One connection: greeting, login, commands.

use super::answer::{Answers, Failure};
use super::auth::{self, Access, Origin};
use super::greeting::{self, COMPRESS, Greeted, Incoming, MANY_STATEMENTS};
use super::letters::Letters;
use super::packets::{self, Ahead, Packet, PacketError, PayloadReader, Source};
use super::prepared::{self, Prepared};
use super::rows::{self, Ready, RowFormat};
use super::socket::Socket;
use super::{Limits, Terms};
use crate::engine::Engine;
use crate::engine::connections::Connection;
use crate::engine::error::{Error, Problem};
use crate::engine::execute::Rows;
use crate::engine::password::Method;
use crate::engine::session::{Reply, Session};
use crate::statement;
use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
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
    pub const REFRESH: u8 = 0x07;
    pub const STATISTICS: u8 = 0x09;
    pub const PROCESS_INFO: u8 = 0x0a;
    pub const PROCESS_KILL: u8 = 0x0c;
    pub const DEBUG: u8 = 0x0d;
    pub const PING: u8 = 0x0e;
    pub const CHANGE_USER: u8 = 0x11;
    pub const STMT_PREPARE: u8 = 0x16;
    pub const STMT_EXECUTE: u8 = 0x17;
    pub const STMT_SEND_LONG_DATA: u8 = 0x18;
    pub const STMT_CLOSE: u8 = 0x19;
    pub const STMT_RESET: u8 = 0x1a;
    pub const SET_OPTION: u8 = 0x1b;
    pub const STMT_FETCH: u8 = 0x1c;
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
    let close = served.session.connection().close.clone();
    let (ahead, packets) = mpsc::unbounded_channel();
    let from = Source::new(from, served.compressed);
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
    let salt = greeting::salt()?;
    let mut greeted = greeting::greet(socket, id, &salt, terms.tls.as_deref()).await?;
    let insecure = terms.tls_required && greeted.encrypted.is_none() && !peer.ip().is_loopback();
    let origin = Origin { address: peer.ip(), encrypted: greeted.encrypted.is_some() };
    if !greeted.login.proven && !insecure {
        let method = auth::method(&terms.engine, &greeted.login.user, origin, greeted.login.method);
        greeting::prove(&mut greeted, method, &salt).await?;
    }
    let Greeted { from, to, login, encrypted } = greeted;
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
            let text = denied(&login.user, origin, &login.proof);
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
    let connection = Connection::new(id, user, &peer.ip().to_string(), encrypted);
    let letters = greeting::letters(login.collation);
    let session = match admit(&engine, connection, letters) {
        Ok(session) => session,
        Err(failure) => {
            tracing::warn!(user = %login.user, %peer, "refused: {}", failure.text);
            answers.failed(&failure);
            answers.send().await?;
            answers.close().await?;
            return Ok(None);
        }
    };
    let mut served = Served {
        _listed: Listed { engine: Arc::clone(&engine), id },
        engine,
        session,
        origin,
        letters,
        answers,
        many: login.capabilities & MANY_STATEMENTS != 0,
        compressed: login.capabilities & COMPRESS != 0,
        limits: terms.limits,
        statements: HashMap::new(),
        last: 0,
    };
    // An empty name means that the client did not choose a database.
    let chosen = if login.database.is_empty() { Ok(()) } else { served.session.choose(&login.database) };
    served.word(&chosen);
    served.send().await?;
    if served.compressed {
        served.answers.compress();
    }
    Ok(chosen.is_ok().then_some((served, from)))
}

/// Returns the text of error 1045.
fn denied(user: &str, origin: Origin, proof: &[u8]) -> String {
    let using = if proof.len() <= 1 { "NO" } else { "YES" };
    format!("Access denied for user '{user}'@'{}' (using password: {using})", origin.address)
}

/// Adds a connection to the server's list, unless its user has too many, and creates its session.
fn admit(engine: &Arc<Engine>, connection: Connection, letters: &str) -> Result<Session, Failure> {
    let connection = Arc::new(connection);
    let most = engine.with_catalog(|catalog| catalog.max_connections(&connection.user.name));
    if engine.connections.add(&connection, most).is_err() {
        let name = &connection.user.name;
        let text = format!("User '{name}' has exceeded the 'max_user_connections' resource");
        return Err(Failure::new(1226, "42000", text));
    }
    let session = Session::new(engine, &connection);
    session.reset(letters);
    Ok(session)
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

/// The state of one connection.
pub(super) struct Served {
    _listed: Listed,
    engine: Arc<Engine>,
    pub(super) session: Session,
    origin: Origin,
    /// The client's initial character set.
    letters: &'static str,
    pub(super) answers: Answers,
    /// Whether one command may contain several statements.
    many: bool,
    /// Whether packets are compressed.
    compressed: bool,
    pub(super) limits: Limits,
    pub(super) statements: HashMap<u32, Prepared>,
    /// Number of the last statement that was prepared.
    pub(super) last: u32,
}

/// Returns MySQL's error for an error of the engine. Like in Doris, its number is mostly 1105.
pub(super) fn failure(error: &Error) -> Failure {
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
            Problem::Handler => (1243, "HY000"),
            Problem::Arguments => (1210, "HY000"),
            Problem::Empty => (1065, "42000"),
            Problem::Letters => (1115, "42000"),
            Problem::Value => (1231, "42000"),
            Problem::Fixed => (1238, "HY000"),
            Problem::Dropped => (1051, "42S02"),
            Problem::Precision => (1426, "42000"),
            Problem::JsonText => (3141, "22032"),
            Problem::JsonKey => (3158, "22032"),
            Problem::JsonPath => (3143, "42000"),
            Problem::JsonWildcard => (3149, "42000"),
            Problem::Grant => (1141, "42000"),
            Problem::Ungrouped => (1055, "42000"),
            Problem::Mixed => (1140, "42000"),
            Problem::Unselected => (3065, "HY000"),
            Problem::Pattern => (1139, "42000"),
            Problem::Collation => (1273, "HY000"),
        },
        _ => (1105, "HY000"),
    };
    Failure::new(code, state, error.to_string())
}

/// Returns the error for malformed parameters of a command.
pub(super) fn malformed() -> Failure {
    Failure::new(1835, "HY000", "Malformed communication packet")
}

impl Served {
    /// Executes commands and sends their responses, until the client sends no more.
    async fn run(&mut self, mut packets: UnboundedReceiver<Ahead>) -> Result<(), PacketError> {
        while let Some((Packet { first, number, bytes }, _room)) = packets.recv().await {
            // Every command has sequence number zero and is not empty.
            let command = bytes.split_first().filter(|_| first == 0 || self.compressed);
            let Some((command, rest)) = command else { return Err(PacketError::OutOfOrder(first)) };
            self.answers.answer_to(number);
            self.engine.connections.commands.fetch_add(1, Relaxed);
            match *command {
                command::QUIT => return Ok(()),
                command::CHANGE_USER => {
                    if !self.change_user(rest, &mut packets).await? {
                        return Ok(());
                    }
                }
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
            command::STMT_FETCH => return self.fetch(rest).await,
            command::INIT_DB => {
                let chosen = match self.text(rest) {
                    Ok(database) => self.session.choose(&database),
                    Err(failure) => return Ok(Err(failure)),
                };
                self.word(&chosen);
            }
            command::PROCESS_KILL => {
                let Some(id) = PayloadReader(rest).u32() else { return Ok(Err(malformed())) };
                let reply = self.session.execute(&format!("KILL {id}")).await;
                self.word(&reply.map(|_| ()));
            }
            command::PROCESS_INFO => {
                let reply = self.session.execute("SHOW PROCESSLIST").await;
                self.answer(reply, RowFormat::Text).await?;
            }
            command::STATISTICS => {
                let statistics = self.engine.connections.statistics();
                self.answers.text(&statistics);
            }
            // Where a server writes to its log, and what it keeps open: nothing of it is here.
            command::DEBUG => self.answers.end(),
            command::REFRESH => self.answers.done(0, &[]),
            command::SET_OPTION => {
                // 0 is on, 1 is off.
                self.many = PayloadReader(rest).u16() == Some(0);
                self.answers.end();
            }
            // The list of column names, which clients use for completion, is always empty.
            command::FIELD_LIST => self.answers.end(),
            command::PING => self.answers.done(0, &[]),
            command::STMT_RESET => {
                let Some(id) = PayloadReader(rest).u32() else { return Ok(Err(malformed())) };
                let Some(statement) = self.statements.get_mut(&id) else {
                    return Ok(Err(prepared::unknown(id, "mysqld_stmt_reset")));
                };
                statement.reset();
                self.answers.done(0, &[]);
            }
            command::RESET_CONNECTION => {
                self.session.reset(self.letters);
                self.statements.clear();
                self.show_status();
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

    /// Changes the user, and resets the connection. Returns whether the new user is admitted; if not, the connection
    /// ends, so that nobody can try many passwords over it.
    async fn change_user(
        &mut self,
        bytes: &[u8],
        packets: &mut UnboundedReceiver<Ahead>,
    ) -> Result<bool, PacketError> {
        let Some(login) = greeting::read_change(bytes) else {
            self.answers.failed(&malformed());
            self.send().await?;
            return Ok(false);
        };
        let salt = greeting::salt()?;
        let method = auth::method(&self.engine, &login.user, self.origin, login.method);
        self.answers.prove(method.name(), &salt);
        self.send().await?;
        let Ok(Some((Packet { first, number, bytes: proof }, _room))) =
            timeout(self.limits.login, packets.recv()).await
        else {
            return Ok(false);
        };
        // The command has the number 0, and the request for the proof the number 1.
        if first != 2 && !self.compressed {
            return Err(PacketError::OutOfOrder(first));
        }
        self.answers.answer_to(number);
        let access = auth::decide(&self.engine, &login.user, self.origin, (method, proof.as_slice()), &salt);
        let admitted = match access {
            Access::As(user) => {
                let connection = self.session.connection().of(user);
                self.engine.connections.remove(connection.id);
                self.letters = greeting::letters(login.collation);
                admit(&self.engine, connection, self.letters)
            }
            Access::Refused(why) => {
                tracing::warn!(user = %login.user, peer = %self.origin.address, "refused: {why}");
                Err(Failure::new(1045, "28000", denied(&login.user, self.origin, &proof)))
            }
        };
        let chosen = match admitted {
            Ok(session) => {
                self.session = session;
                self.statements.clear();
                match login.database.as_str() {
                    "" => Ok(()),
                    database => self.session.choose(database).map_err(|error| failure(&error)),
                }
            }
            Err(failure) => Err(failure),
        };
        self.show_status();
        match &chosen {
            Ok(()) if method == Method::Sha2 && proof.len() > 1 => {
                self.answers.proven();
                self.answers.done(0, &[]);
            }
            Ok(()) => self.answers.done(0, &[]),
            Err(failure) => self.answers.failed(failure),
        }
        self.send().await?;
        Ok(chosen.is_ok())
    }

    /// Returns a statement's text, or an error if it is not in the client's character set.
    pub(super) fn text<'t>(&self, bytes: &'t [u8]) -> Result<Cow<'t, str>, Failure> {
        self.letters_of_client().statement(bytes).map_err(|at| {
            let text = format!("Invalid utf8mb4 character string: byte {at} of the statement");
            Failure::new(1300, "HY000", text)
        })
    }

    /// Returns the character set of statements.
    pub(super) fn letters_of_client(&self) -> Letters {
        Letters::named(self.session.connection().variables().get("character_set_client"))
    }

    /// Returns the character set of results.
    pub(super) fn results(&self) -> Letters {
        Letters::named(self.session.connection().variables().get("character_set_results"))
    }

    /// Stores the session's state for the next response.
    pub(super) fn show_status(&mut self) {
        let connection = self.session.connection();
        let autocommit = connection.variables().get("autocommit");
        self.answers.autocommit =
            autocommit.is_none_or(|value| ["1", "on", "true"].contains(&value.to_lowercase().as_str()));
        self.answers.in_transaction = connection.in_transaction();
        self.answers.warnings = connection.warnings().len();
    }

    pub(super) async fn send(&mut self) -> io::Result<()> {
        let stalled = |_| io::Error::new(io::ErrorKind::TimedOut, "the client does not read its rows");
        timeout(STALLED, self.answers.send()).await.map_err(stalled)?
    }

    async fn query(&mut self, text: &[u8]) -> io::Result<Result<(), Failure>> {
        let text = match self.text(text) {
            Ok(text) => text,
            Err(failure) => return Ok(Err(failure)),
        };
        let parts = if self.many { statement::split(&text) } else { Vec::new() };
        let parts = if parts.len() > 1 { parts } else { vec![&*text] };
        for (at, part) in parts.iter().enumerate() {
            let reply = self.session.execute(part).await;
            self.answers.more = at + 1 < parts.len();
            if !self.answer(reply, RowFormat::Text).await? {
                break;
            }
        }
        Ok(Ok(()))
    }

    /// Sends the result of a statement; returns whether the statement succeeded.
    pub(super) async fn answer(&mut self, reply: Result<Reply, Error>, way: RowFormat) -> io::Result<bool> {
        self.show_status();
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
        self.session.connection().set_current(None);
        Ok(done.is_ok())
    }

    async fn rows(&mut self, mut all: Rows, way: RowFormat) -> io::Result<Result<(), Failure>> {
        let letters = self.results();
        let columns = rows::columns(&all.schema, letters);
        self.answers.columns(&columns);
        let mut sent = 0;
        loop {
            let batch = match all.next().await {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    self.session.connection().set_rows_sent(sent);
                    self.answers.end();
                    return Ok(Ok(()));
                }
                Err(error) => return Ok(Err(failure(&error))),
            };
            let ready = match Ready::new(&batch, &columns, letters) {
                Ok(ready) => ready,
                Err(error) => return Ok(Err(failure(&Error::Engine(error.to_string())))),
            };
            sent += ready.rows;
            for row in 0..ready.rows {
                self.answers.row(|to| ready.write(row, way, to));
                if self.answers.is_full() {
                    self.send().await?;
                }
            }
        }
    }
}
