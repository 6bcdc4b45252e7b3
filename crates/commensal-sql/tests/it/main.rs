//! Statements from their text to the catalogue and its files, by way of what Apache Doris' own suites and document 002
//! print. The statements and the texts that Doris answers with are Doris'; the tests are ours.

mod access;
mod document;
mod external;
mod fuzz;
mod groups;
mod hits;
mod measure;
mod policies;
mod server;
mod statements;
mod store;
mod tools;

use commensal_sql::catalog::{Catalog, Done, PasswordHash};
use commensal_sql::statement::{Statement, UserName, parse, split};
use proptest::test_runner::{Config as ProptestConfig, RngSeed};

/// A catalogue and who asks.
struct World {
    catalog: Catalog,
    user: UserName,
}

/// Not a hash, only something of a hash's shape that depends on the password.
fn hash(password: &str) -> PasswordHash {
    let sum = password.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    PasswordHash::new(&format!("*{sum:040x}")).expect("forty digits")
}

impl World {
    fn new() -> World {
        World { catalog: Catalog::default(), user: UserName::anywhere("root") }
    }

    /// Runs every statement of a text; the text of the first error, or nothing.
    fn run(&mut self, text: &str) -> Result<Done, String> {
        let mut last = Done::default();
        for part in split(text) {
            let statement = parse(part).map_err(|error| error.to_string())?;
            let done = self.catalog.execute(&statement, &self.user, &hash);
            last = done.map_err(|error| error.to_string())?.unwrap_or_default();
        }
        Ok(last)
    }

    /// Runs what must succeed.
    #[track_caller]
    fn ok(&mut self, text: &str) -> Done {
        self.run(text).unwrap_or_else(|error| panic!("{text}\n  -> {error}"))
    }

    /// Runs what must be refused with a text that begins like this.
    #[track_caller]
    fn refused(&mut self, text: &str, want: &str) {
        let before = self.catalog.clone();
        match self.run(text) {
            Ok(_) => panic!("{text}\n  was carried out, and should say: {want}"),
            Err(error) => assert!(error.starts_with(want), "{text}\n  says: {error}\n  want: {want}"),
        }
        assert!(self.catalog == before, "{text}\n  was refused and changed something");
    }

    /// The same questions as somebody else.
    fn as_user(&mut self, name: &str) -> &mut World {
        self.user = UserName::anywhere(name);
        self
    }
}

/// Parses what must be a statement.
#[track_caller]
fn parsed(text: &str) -> Statement {
    parse(text).unwrap_or_else(|error| panic!("{text}\n  -> {error}"))
}

/// So many cases, the same ones every time; others, and perhaps more, when `PROPTEST_CASES` is set.
fn cases(usual: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let is_long = std::env::var_os("PROPTEST_CASES").is_some();
    let rng_seed = if is_long { asked.rng_seed } else { RngSeed::Fixed(1) };
    ProptestConfig { cases: asked.cases.max(usual), failure_persistence: None, rng_seed, ..asked }
}
