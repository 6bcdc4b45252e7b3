//! Commands about prepared statements. Queries are parsed when they are prepared; the text of other statements, such as
//! SET and SHOW, is kept, and gets the values when it is executed.

use super::answer::{CURSOR, Failure, LAST_ROW};
use super::connection::{Served, failure, malformed};
use super::packets::{PacketError, PayloadReader};
use super::rows::{self, Column, Ready, RowFormat};
use super::values::Placeholders;
use crate::engine::error::Error;
use crate::engine::execute::Rows;
use crate::engine::session::Reply;
use crate::engine::written;
use crate::statement::{self, PassedOn, Statement};
use std::io;

/// `CURSOR_TYPE_READ_ONLY`.
const READ_ONLY: u8 = 1;

/// A prepared statement.
pub(super) struct Prepared {
    what: What,
    placeholders: Placeholders,
    cursor: Option<Cursor>,
}

enum What {
    /// A statement for the query engine.
    Query(PassedOn),
    /// The text of another statement.
    Text(String),
}

/// The rows of an execution that the client has not fetched yet.
struct Cursor {
    rows: Rows,
    columns: Vec<Column>,
    ready: Option<Ready>,
    /// Number of rows of `ready` that were fetched.
    fetched: usize,
}

impl Prepared {
    /// Returns the length of the statement's text.
    fn length(&self) -> usize {
        match &self.what {
            What::Query(passed) => passed.text.len(),
            What::Text(text) => text.len(),
        }
    }

    /// Closes the cursor and drops the pieces of values.
    pub(super) fn reset(&mut self) {
        self.placeholders.reset();
        self.cursor = None;
    }
}

/// Returns the error for the number of a statement that was not prepared.
pub(super) fn unknown(id: u32, command: &str) -> Failure {
    let text = format!("Unknown prepared statement handler ({id}) given to {command}");
    Failure::new(1243, "HY000", text)
}

impl Served {
    /// Prepares a statement.
    pub(super) async fn prepare(&mut self, text: &[u8]) -> Result<(), Failure> {
        let text = self.text(text)?;
        let most = self.limits.statements;
        if self.statements.len() >= most {
            let text = format!("more than {most} prepared statements: close some");
            return Err(Failure::new(1461, "42000", text));
        }
        let kept: usize = self.statements.values().map(Prepared::length).sum();
        if kept + text.len() > self.limits.packet {
            let most = self.limits.packet;
            let text = format!("more than {most} bytes of prepared statements: close some");
            return Err(Failure::new(1461, "42000", text));
        }
        let statement = statement::parse(&self.session.in_mode(&text));
        let statement = statement.map_err(|error| Error::Syntax(error.to_string()));
        let (what, number, columns) = match statement.map_err(|error| failure(&error))? {
            Statement::PassedOn(passed) => {
                let prepared = self.session.prepare(&passed, Vec::new()).map_err(|error| failure(&error))?;
                let number = prepared.placeholders();
                if prepared.has_no_plan() {
                    (What::Text(text.into_owned()), number, Vec::new())
                } else {
                    let schema = self.session.columns(prepared).await.map_err(|error| failure(&error))?;
                    (What::Query(passed), number, rows::columns(&schema, self.results()))
                }
            }
            statement if statement.can_be_prepared() => {
                let number = statement::placeholders(&text).len();
                (What::Text(text.into_owned()), number, Vec::new())
            }
            _ => {
                let text = "This command is not supported in the prepared statement protocol yet";
                return Err(Failure::new(1295, "HY000", text));
            }
        };
        if u16::try_from(number).is_err() {
            return Err(Failure::new(1390, "HY000", "Prepared statement contains too many placeholders"));
        }
        self.last = self.last.wrapping_add(1).max(1);
        let placeholders: Vec<Column> = (0..number).map(|_| rows::placeholder()).collect();
        self.answers.prepared(self.last, &placeholders, &columns);
        let statement = Prepared { what, placeholders: Placeholders::new(number), cursor: None };
        self.statements.insert(self.last, statement);
        Ok(())
    }

    /// Executes a prepared statement.
    pub(super) async fn execute(&mut self, bytes: &[u8]) -> io::Result<Result<(), Failure>> {
        let mut bytes = PayloadReader(bytes);
        let Some(id) = bytes.u32() else { return Ok(Err(malformed())) };
        let letters = self.letters_of_client();
        let Some(statement) = self.statements.get_mut(&id) else {
            return Ok(Err(unknown(id, "mysqld_stmt_execute")));
        };
        // The iteration count, which follows the type of the cursor, is always 1.
        let kind = bytes.u8().filter(|_| bytes.take(4).is_some());
        let values = kind.and_then(|_| statement.placeholders.read(bytes, letters));
        statement.reset();
        let Some(values) = values else {
            return Ok(Err(Failure::new(1210, "HY000", "Incorrect arguments to mysqld_stmt_execute")));
        };
        let reply = match &statement.what {
            What::Query(passed) => match self.session.prepare(passed, values) {
                Ok(prepared) => self.session.run_whole(prepared).await,
                Err(error) => Err(error),
            },
            What::Text(text) => {
                let written: Result<Vec<String>, Error> = values.iter().map(written).collect();
                match written {
                    Ok(written) => self.session.execute(&statement::filled(text, &written)).await,
                    Err(error) => Err(error),
                }
            }
        };
        match reply {
            Ok(Reply::Rows(rows)) if kind.is_some_and(|kind| kind & READ_ONLY != 0) => {
                self.open(id, rows).await?;
            }
            reply => {
                self.answer(reply, RowFormat::Binary).await?;
            }
        }
        Ok(Ok(()))
    }

    /// Opens a cursor over rows, and tells the client only their columns. The query stays the connection's current one,
    /// so that it is listed and can be killed.
    async fn open(&mut self, id: u32, rows: Rows) -> io::Result<()> {
        self.show_status();
        let columns = rows::columns(&rows.schema, self.results());
        self.answers.cursor = CURSOR;
        self.answers.columns(&columns);
        if self.answers.is_without_eof() {
            self.answers.end();
        }
        self.answers.cursor = 0;
        if let Some(statement) = self.statements.get_mut(&id) {
            statement.cursor = Some(Cursor { rows, columns, ready: None, fetched: 0 });
        }
        self.send().await
    }

    /// Sends the next rows of a cursor.
    pub(super) async fn fetch(&mut self, bytes: &[u8]) -> io::Result<Result<(), Failure>> {
        let mut bytes = PayloadReader(bytes);
        let (Some(id), Some(mut wanted)) = (bytes.u32(), bytes.u32()) else { return Ok(Err(malformed())) };
        let letters = self.results();
        let Some(statement) = self.statements.get_mut(&id) else {
            return Ok(Err(unknown(id, "mysqld_stmt_fetch")));
        };
        let Some(mut cursor) = statement.cursor.take() else {
            let text = format!("The statement ({id}) has no open cursor.");
            return Ok(Err(Failure::new(1421, "HY000", text)));
        };
        self.session.connection().set_current(cursor.rows.query());
        let is_last = loop {
            let Some(ready) = cursor.ready.as_ref().filter(|ready| cursor.fetched < ready.rows) else {
                let batch = match cursor.rows.next().await {
                    Ok(Some(batch)) => batch,
                    Ok(None) => break true,
                    Err(error) => return Ok(Err(failure(&error))),
                };
                match Ready::new(&batch, &cursor.columns, letters) {
                    Ok(ready) => (cursor.ready, cursor.fetched) = (Some(ready), 0),
                    Err(error) => return Ok(Err(failure(&Error::Engine(error.to_string())))),
                }
                continue;
            };
            if wanted == 0 {
                break false;
            }
            self.answers.row(|to| ready.write(cursor.fetched, RowFormat::Binary, to));
            (cursor.fetched, wanted) = (cursor.fetched + 1, wanted - 1);
            if self.answers.is_full() {
                self.send().await?;
            }
        };
        self.show_status();
        self.answers.cursor = if is_last { LAST_ROW } else { CURSOR };
        self.answers.end();
        self.answers.cursor = 0;
        if let Some(statement) = self.statements.get_mut(&id).filter(|_| !is_last) {
            statement.cursor = Some(cursor);
        }
        Ok(Ok(()))
    }

    /// Stores a piece of a parameter value. The protocol has no response to this command, so the server closes the
    /// connection if the value is too large.
    pub(super) fn piece(&mut self, bytes: &[u8]) -> Result<(), PacketError> {
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
}
