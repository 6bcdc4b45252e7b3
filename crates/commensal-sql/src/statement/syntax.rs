//! Syntax tree of statements: the parser creates these types; the catalogue and the engine execute them.

use std::collections::BTreeMap;
use std::fmt;

/// Properties as written in a statement: keys in lower case, values as strings without quotes.
pub type Properties = BTreeMap<String, String>;

/// A syntax error: its position, what was expected, and what was found.
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
        /// `IF NOT EXISTS`: no error when the group exists.
        if_not_exists: bool,
        /// Properties of the new group.
        properties: Properties,
    },
    /// `ALTER WORKLOAD GROUP name [FOR compute_group] PROPERTIES(…)`.
    AlterGroup {
        /// The group to change.
        group: GroupRef,
        /// The properties to change; all others keep their values.
        properties: Properties,
    },
    /// `DROP WORKLOAD GROUP [IF EXISTS] name [FOR compute_group]`.
    DropGroup {
        /// The group to drop.
        group: GroupRef,
        /// `IF EXISTS`: no error when the group does not exist.
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
        /// The policy to change.
        name: String,
        /// The properties to change.
        properties: Properties,
    },
    /// `DROP WORKLOAD [SCHEDULE] POLICY [IF EXISTS] name`.
    DropPolicy {
        /// The policy to drop.
        name: String,
        /// `IF EXISTS`: no error when the policy does not exist.
        if_exists: bool,
    },
    /// `SHOW WORKLOAD [SCHEDULE] POLICY`, which Doris 2.1 had.
    ShowPolicies,
    /// `GRANT …` and `REVOKE …`.
    Grant(Grant),
    /// `SHOW [ALL] GRANTS [FOR user]`.
    ShowGrants {
        /// `ALL`: grants of every user.
        all: bool,
        /// The user whose grants are shown; `None` is the current user.
        user: Option<UserName>,
    },
    /// `CREATE USER …`, `ALTER USER …`.
    User(UserChange),
    /// `DROP USER [IF EXISTS] user`.
    DropUser {
        /// The user to drop.
        user: UserName,
        /// `IF EXISTS`: no error when the user does not exist.
        if_exists: bool,
    },
    /// `SET PASSWORD [FOR user] = …`.
    SetPassword {
        /// The user whose password is set; `None` is the current user.
        user: Option<UserName>,
        /// The new password.
        password: Secret,
    },
    /// `CREATE ROLE [IF NOT EXISTS] name`.
    CreateRole {
        /// Name of the role.
        name: String,
        /// `IF NOT EXISTS`: no error when the role exists.
        if_not_exists: bool,
    },
    /// `DROP ROLE [IF EXISTS] name`.
    DropRole {
        /// Name of the role.
        name: String,
        /// `IF EXISTS`: no error when the role does not exist.
        if_exists: bool,
    },
    /// `SET PROPERTY [FOR 'user'] 'key' = 'value', …`.
    SetProperty {
        /// The user, without a host; `None` is the current user.
        user: Option<String>,
        /// The properties to change.
        properties: Properties,
    },
    /// `SHOW PROPERTY [FOR 'user'] [LIKE 'pattern']`.
    ShowProperty {
        /// The user; `None` is the current user.
        user: Option<String>,
        /// SQL pattern for the key.
        like: Option<String>,
    },
    /// `SET a = 1, @@session.b = 'x', NAMES x`, `SET SESSION TRANSACTION …`.
    Set(Vec<Assignment>),
    /// `SET TRANSACTION …`, for the next transaction only: accepted because clients send it, without effect.
    SetTransaction,
    /// `UNSET VARIABLE name` and `UNSET VARIABLE ALL` (no name).
    UnsetVariable(Option<String>),
    /// `SHOW [GLOBAL|SESSION] VARIABLES [LIKE 'pattern' | WHERE condition]`.
    ShowVariables {
        /// SQL pattern for the name.
        like: Option<String>,
        /// Condition on the columns, as written.
        condition: Option<String>,
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
    /// `PREPARE name FROM 'text'`, where the text may be that of a user variable.
    Prepare {
        /// Name of the statement.
        name: String,
        /// The text, or a variable with the text.
        text: Value,
    },
    /// `EXECUTE name [USING @a, …]`.
    Execute {
        /// Name of the statement.
        name: String,
        /// Variables with the values of its placeholders.
        values: Vec<String>,
    },
    /// `DEALLOCATE PREPARE name`, `DROP PREPARE name`.
    Deallocate(String),
    /// `DO …`, as a query whose rows are dropped.
    Do(PassedOn),
    /// `FLUSH …`, without effect: nothing is kept that the files do not have.
    Flush,
    /// `SHOW CREATE DATABASE name`.
    ShowCreateDatabase(String),
    /// `SHOW WARNINGS`: the warnings of the previous statement.
    ShowWarnings,
    /// `SHOW COUNT(*) WARNINGS` and `SHOW COUNT(*) ERRORS`, with the variable that has the number.
    ShowCount(&'static str),
    /// `SHOW [FULL] PROCESSLIST`.
    ShowProcesslist {
        /// `FULL`: shows statements untruncated.
        full: bool,
    },
    /// Any other statement, which the query engine executes.
    PassedOn(PassedOn),
}

impl Statement {
    /// Whether clients may prepare this statement, which the query engine does not execute.
    #[must_use]
    pub fn can_be_prepared(&self) -> bool {
        matches!(
            self,
            Statement::Set(_)
                | Statement::SetTransaction
                | Statement::Kill(_)
                | Statement::ShowGroups { .. }
                | Statement::ShowPolicies
                | Statement::ShowGrants { .. }
                | Statement::ShowProperty { .. }
                | Statement::ShowVariables { .. }
                | Statement::Do(_)
                | Statement::Flush
                | Statement::ShowCreateDatabase(_)
                | Statement::ShowCount(_)
                | Statement::ShowWarnings
                | Statement::ShowProcesslist { .. }
        )
    }
}

/// A reference to a group in a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRef {
    /// The group's name.
    pub name: String,
    /// The compute group named with `FOR`.
    pub compute_group: Option<String>,
}

/// `CREATE WORKLOAD POLICY` as parsed, before validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPolicy {
    /// The policy's name.
    pub name: String,
    /// `IF NOT EXISTS`: no error when the policy exists.
    pub if_not_exists: bool,
    /// Conditions (metric, operator, value), all of which must be met.
    pub conditions: Vec<ConditionText>,
    /// Actions to execute when the conditions are met, with their arguments.
    pub actions: Vec<ActionText>,
    /// Properties: enabled, priority, group.
    pub properties: Properties,
}

/// A condition as written in a statement, before validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionText {
    /// The metric's name.
    pub metric: String,
    /// `>`, `>=`, `<`, `<=` or `=`.
    pub operator: &'static str,
    /// The value that the metric is compared with.
    pub value: String,
}

/// An action as written in a statement, before validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionText {
    /// The action's name.
    pub action: String,
    /// Its argument.
    pub argument: Option<String>,
}

/// A user's name, and the host that the user logs in from. The default host is `%`, every host, as in Doris.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserName {
    /// Name.
    pub name: String,
    /// Host pattern.
    pub host: String,
}

impl UserName {
    /// Returns the user with this name on every host.
    #[must_use]
    pub fn anywhere(name: &str) -> UserName {
        UserName { name: name.to_owned(), host: "%".to_owned() }
    }
}

/// Formats the user like Doris: `'u'@'%'`.
impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'@'{}'", self.name, self.host)
    }
}

/// The user or role that receives or loses a privilege.
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
    /// Whether this is `REVOKE`, not `GRANT`.
    pub revoke: bool,
    /// The group, privileges or roles that are granted or revoked.
    pub what: Granted,
    /// The user or role that receives or loses the grant.
    pub grantee: Grantee,
}

/// The kind of grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Granted {
    /// Use of a workload group, or of all groups (`%`).
    Group(String),
    /// Privileges (in upper case) on `catalog.database.table`, `*` for all.
    Objects {
        /// Names of privileges such as `SELECT_PRIV`.
        privileges: Vec<String>,
        /// Catalog, database and table.
        object: [String; 3],
    },
    /// Roles, which are granted to a user.
    Roles(Vec<String>),
}

/// `CREATE USER` and `ALTER USER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserChange {
    /// The user.
    pub user: UserName,
    /// Whether this is `CREATE`, not `ALTER`.
    pub create: bool,
    /// `IF NOT EXISTS` of `CREATE`, `IF EXISTS` of `ALTER`.
    pub lenient: bool,
    /// The password; `None` leaves an existing user's password unchanged, and gives a new user an empty one.
    pub password: Option<Secret>,
    /// `DEFAULT ROLE`.
    pub role: Option<String>,
    /// `REQUIRE SSL`, or `NONE`.
    pub tls: Option<bool>,
}

/// A password as written in a statement. The password is never printed, and neither is its hash.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The password itself.
    Plain(String),
    /// The password's hash, in the form of `mysql_native_password`.
    Hash(String),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// An assignment to one session variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// `GLOBAL`.
    pub global: bool,
    /// Name in lower case; `@x` is a user-defined variable.
    pub name: String,
    /// The new value.
    pub value: Value,
}

/// A value that is assigned to a session variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A string, a number or a word, without quotes.
    Text(String),
    /// `DEFAULT`.
    Default,
    /// Any other expression, as written.
    Expression(String),
}

/// `KILL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kill {
    /// The query that currently runs on this connection.
    Query(u64),
    /// The query with this id.
    QueryId(String),
    /// The connection, with the query that runs on it; `KILL` without a keyword means this.
    Connection(u64),
}

/// A statement for the query engine.
#[derive(Clone, PartialEq, Eq)]
pub struct PassedOn {
    /// The statement as written, without whitespace and semicolons at the end.
    pub text: String,
    /// Assignments from `/*+SET_VAR(…)*/` hints of the statement's selects, in order; they apply to this statement
    /// only.
    pub variables: Vec<Assignment>,
}

/// Omits the statement's text, because it may contain object store keys.
impl fmt::Debug for PassedOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PassedOn({} bytes, {:?})", self.text.len(), self.variables)
    }
}
