//! One connection: greeting, login, statements.

use super::auth::{self, Access};
use super::greeting::{self, Greeted, Outgoing};
use super::packets;
use super::rows;
use super::{Limits, Terms};
use crate::engine::connections::Connection;
use crate::engine::error::Error;
use crate::engine::password::SALT;
use crate::engine::session::{Reply, Session};
use crate::engine::{Engine, Rows};
use crate::statement::{self, PassedOn, Statement};
use datafusion::common::ScalarValue;
use opensrv_mysql::{
    AsyncMysqlIntermediary, AsyncMysqlShim, Column, ErrorKind, InitWriter, OkResponse, ParamParser,
    QueryResultWriter, StatementMetaWriter, ValueInner,
};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// How long a client may take no byte of an answer.
const STALLED: Duration = Duration::from_secs(600);

/// How long a client may take to be told that the connection is closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// Tells a client that there are too many, and closes.
pub async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(&greeting::error(0, 1040, "08004", "Too many connections")).await?;
    stream.shutdown().await
}

/// Serves one client until it goes away or is told to.
pub async fn serve(terms: &Terms, stream: TcpStream, peer: SocketAddr, id: u32) -> io::Result<()> {
    let begun = Instant::now();
    // An address of IPv4 is one however the server listens.
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    stream.set_nodelay(true)?;
    let mut salt = [0; SALT];
    getrandom::fill(&mut salt).map_err(io::Error::other)?;
    // The salt is text on the wire: no zero, which ends it.
    salt.iter_mut().for_each(|byte| *byte = *byte % 126 + 1);
    let text = greeting::greeting(id, &salt, terms.tls.is_some());
    let greeted = greeting::greet(stream, &text, terms.tls.as_deref());
    let greeted = tokio::time::timeout(terms.limits.login, greeted).await.map_err(|_| no_login())?;
    let Greeted { from, mut to, login: packet, encrypted } = greeted.map_err(io::Error::other)?;
    if terms.tls_required && !encrypted && !peer.ip().is_loopback() {
        tracing::warn!(%peer, "refused: without TLS, from another machine");
        to.write_all(&greeting::error(packet.number + 1, 3159, "HY000", INSECURE)).await?;
        return to.shutdown().await;
    }
    let (inside, outside) = packets::pipe();
    let gone = CancellationToken::new();
    let login = Arc::new(Login { id, engine: Arc::clone(&terms.engine), session: OnceLock::new() });
    let (for_reset, for_shim) = (Arc::clone(&login), Arc::clone(&login));
    let reset = move || {
        if let Some((_, connection)) = for_reset.session.get() {
            connection.set_variables(Default::default());
        }
    };
    let watch = packets::watch(packet, from, outside, terms.limits.packet, gone.clone(), reset);
    let watcher = tokio::spawn(watch);
    let statements = HashMap::new();
    let shim = Shim { login: for_shim, peer, encrypted, salt, limits: terms.limits, statements, last: 0 };
    let mut to = Outgoing::new(to, text.len());
    let run = AsyncMysqlIntermediary::run_on(shim, inside, &mut to);
    let late = async {
        tokio::time::sleep(terms.limits.login.saturating_sub(begun.elapsed())).await;
        if login.session.get().is_some() {
            std::future::pending::<()>().await;
        }
    };
    let outcome = tokio::select! {
        outcome = run => outcome,
        () = login.told_to_close() => Ok(()),
        () = gone.cancelled() => Ok(()),
        () = late => Err(no_login()),
    };
    gone.cancel();
    let wrong = watcher.await;
    if let Ok(Err(error)) = wrong {
        tracing::info!(connection = id, %peer, "closed: {error}");
    }
    // TLS says that this is the end, so that nobody else can.
    let _ = tokio::time::timeout(FAREWELL, to.shutdown()).await;
    outcome
}

/// MySQL's text for 3159.
const INSECURE: &str =
    "Connections using insecure transport are prohibited while --require_secure_transport=ON.";

fn no_login() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no login")
}

/// Who has logged in on a connection; whatever happens, it is no longer listed when this is dropped.
struct Login {
    id: u32,
    engine: Arc<Engine>,
    session: OnceLock<(Session, Arc<Connection>)>,
}

impl Login {
    async fn told_to_close(&self) {
        loop {
            if let Some((_, connection)) = self.session.get() {
                return connection.close.cancelled().await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Login {
    fn drop(&mut self) {
        self.engine.connections.remove(self.id);
    }
}

struct Shim {
    login: Arc<Login>,
    peer: SocketAddr,
    encrypted: bool,
    salt: [u8; SALT],
    limits: Limits,
    statements: HashMap<u32, PassedOn>,
    last: u32,
}

/// The number of MySQL that an error has; Doris uses 1105 for most.
fn kind(error: &Error) -> ErrorKind {
    match error {
        Error::Syntax(_) => ErrorKind::ER_PARSE_ERROR,
        Error::Denied(_) => ErrorKind::ER_SPECIFIC_ACCESS_DENIED_ERROR,
        Error::Cancelled => ErrorKind::ER_QUERY_INTERRUPTED,
        Error::Unknown(text) if text.starts_with("Unknown database") => ErrorKind::ER_BAD_DB_ERROR,
        Error::Unknown(text) if text.starts_with("Unknown system variable") => {
            ErrorKind::ER_UNKNOWN_SYSTEM_VARIABLE
        }
        Error::Unknown(text) if text.starts_with("Unknown thread") => ErrorKind::ER_NO_SUCH_THREAD,
        _ => ErrorKind::ER_UNKNOWN_ERROR,
    }
}

async fn fail<W: AsyncWrite + Send + Unpin>(
    writer: QueryResultWriter<'_, W>,
    error: &Error,
) -> io::Result<()> {
    writer.error(kind(error), error.to_string().as_bytes()).await
}

/// Sends rows; a client that takes nothing for [`STALLED`] is given up.
async fn send<W: AsyncWrite + Send + Unpin>(
    writer: QueryResultWriter<'_, W>,
    mut all: Rows,
) -> io::Result<()> {
    let columns = rows::columns(&all.schema);
    let mut writer = writer.start(&columns).await?;
    loop {
        match all.next().await {
            Ok(Some(batch)) => {
                let write = rows::write(&mut writer, &batch);
                let stalled = |_| io::Error::new(io::ErrorKind::TimedOut, "the client takes no rows");
                tokio::time::timeout(STALLED, write).await.map_err(stalled)??;
            }
            Ok(None) => return writer.finish().await,
            Err(error) => return writer.finish_error(kind(&error), &error.to_string().into_bytes()).await,
        }
    }
}

impl Shim {
    fn session(&self) -> Option<&(Session, Arc<Connection>)> {
        self.login.session.get()
    }

    async fn answer<W: AsyncWrite + Send + Unpin>(
        &self,
        reply: Result<Reply, Error>,
        writer: QueryResultWriter<'_, W>,
    ) -> io::Result<()> {
        let sent = match reply {
            Ok(Reply::Rows(rows)) => send(writer, rows).await,
            Ok(Reply::Done { rows, warnings }) => {
                let number = u16::try_from(warnings.len()).unwrap_or(u16::MAX);
                let info = warnings.join("; ");
                writer
                    .completed(OkResponse {
                        affected_rows: rows,
                        warnings: number,
                        info,
                        ..OkResponse::default()
                    })
                    .await
            }
            Err(error) => fail(writer, &error).await,
        };
        if let Some((_, connection)) = self.session() {
            connection.set_current(None);
        }
        sent
    }
}

/// A value that a client sent for a placeholder.
fn value(sent: ValueInner<'_>) -> ScalarValue {
    match sent {
        ValueInner::NULL => ScalarValue::Null,
        ValueInner::Int(number) => ScalarValue::Int64(Some(number)),
        ValueInner::UInt(number) => ScalarValue::UInt64(Some(number)),
        ValueInner::Double(number) => ScalarValue::Float64(Some(number)),
        ValueInner::Bytes(bytes) => ScalarValue::Utf8(Some(String::from_utf8_lossy(bytes).into_owned())),
        ValueInner::Date(bytes) | ValueInner::Datetime(bytes) => ScalarValue::Utf8(date(bytes)),
        ValueInner::Time(bytes) => ScalarValue::Utf8(time(bytes)),
    }
}

/// A point in time in the binary protocol: year, month, day, and as much of the time as is not zero.
fn date(bytes: &[u8]) -> Option<String> {
    let at = |index: usize| bytes.get(index).copied().unwrap_or(0);
    let year = u16::from_le_bytes([at(0), at(1)]);
    let day = format!("{year:04}-{:02}-{:02}", at(2), at(3));
    let micros = u32::from_le_bytes([at(7), at(8), at(9), at(10)]);
    match bytes.len() {
        4 => Some(day),
        7 => Some(format!("{day} {:02}:{:02}:{:02}", at(4), at(5), at(6))),
        11 => Some(format!("{day} {:02}:{:02}:{:02}.{micros:06}", at(4), at(5), at(6))),
        _ => None,
    }
}

/// A time in the binary protocol: sign, days, hours, minutes, seconds.
fn time(bytes: &[u8]) -> Option<String> {
    let [negative, d0, d1, d2, d3, hours, minutes, seconds, ..] = bytes else {
        return bytes.is_empty().then(|| "00:00:00".to_owned());
    };
    let hours = u64::from(u32::from_le_bytes([*d0, *d1, *d2, *d3])) * 24 + u64::from(*hours);
    let sign = if *negative == 0 { "" } else { "-" };
    Some(format!("{sign}{hours:02}:{minutes:02}:{seconds:02}"))
}

#[async_trait::async_trait]
impl<W: AsyncWrite + Send + Unpin> AsyncMysqlShim<W> for Shim {
    type Error = io::Error;

    fn version(&self) -> String {
        crate::engine::variables::VERSION.to_owned()
    }

    fn connect_id(&self) -> u32 {
        self.login.id
    }

    fn salt(&self) -> [u8; SALT] {
        self.salt
    }

    async fn authenticate(&self, _plugin: &str, name: &[u8], salt: &[u8], sent: &[u8]) -> bool {
        let name = String::from_utf8_lossy(name);
        let from = auth::Origin { address: self.peer.ip(), encrypted: self.encrypted };
        match auth::decide(&self.login.engine, &name, from, salt, sent) {
            Access::As(user) => {
                let connection = Arc::new(Connection::new(self.login.id, user, &self.peer.ip().to_string()));
                self.login.engine.connections.add(&connection);
                let session = Session::new(&self.login.engine, &connection);
                self.login.session.set((session, connection)).is_ok()
            }
            Access::Refused(why) => {
                tracing::warn!(user = %name, peer = %self.peer, "refused: {why}");
                false
            }
        }
    }

    async fn on_prepare<'a>(&'a mut self, text: &'a str, info: StatementMetaWriter<'a, W>) -> io::Result<()> {
        let prepared = async {
            let (session, _) = self.session().ok_or_else(|| Error::Denied("not logged in".to_owned()))?;
            if self.statements.len() >= self.limits.statements {
                let most = self.limits.statements;
                return Err(Error::Rule(format!("more than {most} prepared statements: close some")));
            }
            let passed = match statement::parse(text).map_err(|error| Error::Syntax(error.to_string()))? {
                Statement::PassedOn(passed) => passed,
                _ => return Err(Error::Unsupported("only queries can be prepared".to_owned())),
            };
            let prepared = session.prepare(&passed)?;
            let placeholders = prepared.placeholders();
            let schema = session.columns(prepared).await?;
            Ok((passed, placeholders, rows::columns(&schema)))
        };
        match prepared.await {
            Ok((passed, placeholders, columns)) => {
                self.last = self.last.wrapping_add(1).max(1);
                self.statements.insert(self.last, passed);
                let values: Vec<Column> = (0..placeholders).map(|_| rows::placeholder()).collect();
                info.reply(self.last, values.iter(), columns.iter()).await
            }
            Err(error) => info.error(kind(&error), error.to_string().as_bytes()).await,
        }
    }

    async fn on_execute<'a>(
        &'a mut self,
        id: u32,
        values: ParamParser<'a>,
        writer: QueryResultWriter<'a, W>,
    ) -> io::Result<()> {
        let values: Vec<ScalarValue> =
            values.into_iter().map(|sent| value(sent.value.into_inner())).collect();
        let reply = async {
            let (session, _) = self.session().ok_or_else(|| Error::Denied("not logged in".to_owned()))?;
            let passed = self.statements.get(&id);
            let passed = passed.ok_or_else(|| Error::Unknown(format!("no prepared statement {id}")))?;
            session.run_whole(session.prepare(passed)?, values).await
        };
        let reply = reply.await;
        self.answer(reply, writer).await
    }

    async fn on_close<'a>(&'a mut self, id: u32)
    where
        W: 'async_trait,
    {
        self.statements.remove(&id);
    }

    async fn on_query<'a>(&'a mut self, text: &'a str, writer: QueryResultWriter<'a, W>) -> io::Result<()> {
        let reply = match self.session() {
            Some((session, _)) => session.execute(text).await,
            None => Err(Error::Denied("not logged in".to_owned())),
        };
        self.answer(reply, writer).await
    }

    async fn on_init<'a>(&'a mut self, database: &'a str, writer: InitWriter<'a, W>) -> io::Result<()> {
        let chosen = match self.session() {
            // What a client says who has chosen none.
            Some(_) if database.is_empty() => Ok(()),
            Some((session, _)) => session.choose(database),
            None => Err(Error::Denied("not logged in".to_owned())),
        };
        match chosen {
            Ok(()) => writer.ok().await,
            Err(error) => writer.error(kind(&error), error.to_string().as_bytes()).await,
        }
    }
}
