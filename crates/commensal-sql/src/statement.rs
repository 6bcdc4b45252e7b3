//! Text to statements: what Apache Doris has for workload groups, policies, users and session variables.
//!
//! The grammar follows Doris' `DorisParser.g4` (4.x) and takes the spelling of 2.1 as well. Words of the language are
//! matched without regard to case, names may be plain, in backticks or quoted. Everything that is not ours is handed
//! on as [`PassedOn`], with the text as it was written. No input makes this panic, and no message repeats what stands
//! in quotes, because that may be a password.

mod access;
mod cursor;
mod groups;
mod redact;
mod session;
mod split;

use cursor::Cursor;
use std::collections::BTreeMap;
use std::fmt;

pub use redact::redacted;
pub use split::split;

/// Properties as written: key in lower case, value as text without quotes.
pub type Properties = BTreeMap<String, String>;

/// Why a text is no statement: where, what was expected, and what stands there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("syntax error at line {line}, column {column}: {problem}")]
pub struct SyntaxError {
    /// Line from 1.
    pub line: u64,
    /// Column from 1, in characters.
    pub column: u64,
    /// What is wrong.
    pub problem: String,
}

/// One statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// Only blanks and comments.
    Empty,
    /// `CREATE WORKLOAD GROUP [IF NOT EXISTS] name [FOR compute_group] [PROPERTIES(…)]`.
    CreateGroup {
        /// The new group.
        group: GroupRef,
        /// No error when it is there.
        if_not_exists: bool,
        /// What it shall have.
        properties: Properties,
    },
    /// `ALTER WORKLOAD GROUP name [FOR compute_group] PROPERTIES(…)`.
    AlterGroup {
        /// Which.
        group: GroupRef,
        /// What changes; the rest stays.
        properties: Properties,
    },
    /// `DROP WORKLOAD GROUP [IF EXISTS] name [FOR compute_group]`.
    DropGroup {
        /// Which.
        group: GroupRef,
        /// No error when it is not there.
        if_exists: bool,
    },
    /// `SHOW WORKLOAD GROUPS [LIKE 'pattern']`.
    ShowGroups {
        /// SQL pattern for the name.
        like: Option<String>,
    },
    /// `CREATE WORKLOAD [SCHEDULE] POLICY …`.
    CreatePolicy(NewPolicy),
    /// `ALTER WORKLOAD [SCHEDULE] POLICY name PROPERTIES(…)`.
    AlterPolicy {
        /// Which.
        name: String,
        /// What changes.
        properties: Properties,
    },
    /// `DROP WORKLOAD [SCHEDULE] POLICY [IF EXISTS] name`.
    DropPolicy {
        /// Which.
        name: String,
        /// No error when it is not there.
        if_exists: bool,
    },
    /// `SHOW WORKLOAD [SCHEDULE] POLICY`, which Doris 2.1 had.
    ShowPolicies,
    /// `GRANT …` and `REVOKE …`.
    Grant(Grant),
    /// `SHOW [ALL] GRANTS [FOR user]`.
    ShowGrants {
        /// Of every user.
        all: bool,
        /// Of this one; nobody named is who asks.
        user: Option<UserName>,
    },
    /// `CREATE USER …`, `ALTER USER …`.
    User(UserChange),
    /// `DROP USER [IF EXISTS] user`.
    DropUser {
        /// Whom.
        user: UserName,
        /// No error when there is none.
        if_exists: bool,
    },
    /// `SET PASSWORD [FOR user] = …`.
    SetPassword {
        /// Whose; nobody named is who asks.
        user: Option<UserName>,
        /// The new one.
        password: Secret,
    },
    /// `CREATE ROLE [IF NOT EXISTS] name`.
    CreateRole {
        /// Its name.
        name: String,
        /// No error when it is there.
        if_not_exists: bool,
    },
    /// `DROP ROLE [IF EXISTS] name`.
    DropRole {
        /// Its name.
        name: String,
        /// No error when it is not there.
        if_exists: bool,
    },
    /// `SET PROPERTY [FOR 'user'] 'key' = 'value', …`.
    SetProperty {
        /// Whose, without a host; nobody named is who asks.
        user: Option<String>,
        /// What changes.
        properties: Properties,
    },
    /// `SHOW PROPERTY [FOR 'user'] [LIKE 'pattern']`.
    ShowProperty {
        /// Whose; nobody named is who asks.
        user: Option<String>,
        /// SQL pattern for the key.
        like: Option<String>,
    },
    /// `SET a = 1, @@session.b = 'x'`, `SET NAMES x`.
    Set(Vec<Assignment>),
    /// `SET [SESSION|GLOBAL] TRANSACTION …`: clients send it; there is nothing to set.
    SetTransaction,
    /// `UNSET VARIABLE name` and `UNSET VARIABLE ALL` (no name).
    UnsetVariable(Option<String>),
    /// `SHOW [GLOBAL|SESSION] VARIABLES [LIKE 'pattern']`.
    ShowVariables {
        /// SQL pattern for the name.
        like: Option<String>,
    },
    /// `ADMIN SET [ALL] FRONTEND[S] CONFIG ("key" = "value")`.
    AdminSetConfig(Properties),
    /// `ADMIN SHOW FRONTEND CONFIG [LIKE 'pattern']`.
    AdminShowConfig {
        /// SQL pattern for the key.
        like: Option<String>,
    },
    /// `KILL [QUERY|CONNECTION] id`.
    Kill(Kill),
    /// `SHOW WARNINGS`: of the statement before.
    ShowWarnings,
    /// `SHOW [FULL] PROCESSLIST`.
    ShowProcesslist {
        /// Whole texts.
        full: bool,
    },
    /// Anything else, for the query engine.
    PassedOn(PassedOn),
}

/// A group as a statement names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRef {
    /// Its name.
    pub name: String,
    /// The compute group named with `FOR`.
    pub compute_group: Option<String>,
}

/// `CREATE WORKLOAD POLICY`, not yet judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPolicy {
    /// Its name.
    pub name: String,
    /// No error when it is there.
    pub if_not_exists: bool,
    /// All must hold: metric, operator, value.
    pub conditions: Vec<ConditionText>,
    /// What happens then: action, argument.
    pub actions: Vec<ActionText>,
    /// Enabled, priority, group.
    pub properties: Properties,
}

/// A condition as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionText {
    /// The metric's name.
    pub metric: String,
    /// `>`, `>=`, `<`, `<=` or `=`.
    pub operator: &'static str,
    /// What it is compared with.
    pub value: String,
}

/// An action as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionText {
    /// The action's name.
    pub action: String,
    /// Its argument.
    pub argument: Option<String>,
}

/// Who logs in from where. Doris' default host is every host, `%`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserName {
    /// Name.
    pub name: String,
    /// Host pattern.
    pub host: String,
}

impl UserName {
    /// This name from every host.
    #[must_use]
    pub fn anywhere(name: &str) -> UserName {
        UserName { name: name.to_owned(), host: "%".to_owned() }
    }
}

/// As Doris shows it: `'u'@'%'`.
impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'@'{}'", self.name, self.host)
    }
}

/// Who is given something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grantee {
    /// A user.
    User(UserName),
    /// A role.
    Role(String),
}

/// `GRANT` or `REVOKE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// `REVOKE`.
    pub revoke: bool,
    /// What.
    pub what: Granted,
    /// To whom, or from whom.
    pub grantee: Grantee,
}

/// What is granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Granted {
    /// Use of a workload group, or of all (`%`).
    Group(String),
    /// Privileges (in upper case) on `catalog.database.table`, `*` for all.
    Objects {
        /// Such as `SELECT_PRIV`.
        privileges: Vec<String>,
        /// Three parts.
        object: [String; 3],
    },
    /// Roles, to a user.
    Roles(Vec<String>),
}

/// `CREATE USER` and `ALTER USER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserChange {
    /// Whom.
    pub user: UserName,
    /// `CREATE`, not `ALTER`.
    pub create: bool,
    /// `IF NOT EXISTS` of `CREATE`, `IF EXISTS` of `ALTER`.
    pub lenient: bool,
    /// The password; none written leaves it as it is, or empty.
    pub password: Option<Secret>,
    /// `DEFAULT ROLE`.
    pub role: Option<String>,
    /// `REQUIRE SSL`, or `NONE`.
    pub tls: Option<bool>,
}

/// A password as written in a statement. Neither is ever printed.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The password itself.
    Plain(String),
    /// Its hash, as `mysql_native_password` has it.
    Hash(String),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// One session variable that is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// `GLOBAL`.
    pub global: bool,
    /// Name in lower case; `@x` is a user's variable.
    pub name: String,
    /// Its new value.
    pub value: Value,
}

/// A value that a session variable is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text, a number or a word, without quotes.
    Text(String),
    /// `DEFAULT`.
    Default,
    /// Anything else, as written.
    Expression(String),
}

/// `KILL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kill {
    /// The query that runs on a connection.
    Query(u64),
    /// The query with this id.
    QueryId(String),
    /// The connection with what runs on it; plain `KILL` means this.
    Connection(u64),
}

/// A statement for the query engine.
#[derive(Clone, PartialEq, Eq)]
pub struct PassedOn {
    /// Its text as written, without blanks and semicolons at the end.
    pub text: String,
    /// What `/*+SET_VAR(…)*/` hints of its selects set for this statement, in their order.
    pub variables: Vec<Assignment>,
}

/// Without the text, in which there may be keys to object stores.
impl fmt::Debug for PassedOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PassedOn({} bytes, {:?})", self.text.len(), self.variables)
    }
}

/// Reads one statement; a semicolon at its end is allowed.
///
/// # Errors
/// [`SyntaxError`] with the place, when a statement of ours is not written as it has to be, when quotes or comments
/// do not end, and when there is more than one statement ([`split`] takes them apart).
pub fn parse(text: &str) -> Result<Statement, SyntaxError> {
    let parts = split(text);
    let Some(first) = parts.first() else { return Ok(Statement::Empty) };
    if let Some(second) = parts.get(1) {
        let (line, column) = split::position(text, second);
        return Err(SyntaxError { line, column, problem: "expected the end of the statement".to_owned() });
    }
    let (line, column) = split::position(text, first);
    one(first).map_err(|error| SyntaxError {
        line: error.line + line - 1,
        column: if error.line == 1 { error.column + column - 1 } else { error.column },
        problem: error.problem,
    })
}

fn one(text: &str) -> Result<Statement, SyntaxError> {
    let mut cursor = Cursor::new(text)?;
    if cursor.at_end() {
        return Ok(Statement::Empty);
    }
    for grammar in [groups::statement, access::statement, session::statement] {
        if let Some(statement) = grammar(&mut cursor)? {
            cursor.end()?;
            return Ok(statement);
        }
    }
    let variables = session::hints(&cursor)?;
    Ok(Statement::PassedOn(PassedOn { text: text.to_owned(), variables }))
}
