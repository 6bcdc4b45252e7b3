//! Texts that nobody meant: they are refused, or handed on, and never make anything fall over.

use crate::{World, cases};
use commensal_sql::statement::{Statement, parse, split};
use proptest::prelude::*;

/// Statements to start from.
const SEEDS: [&str; 16] = [
    "create workload group if not exists g1 for cg properties('cpu_share'='1024', \"memory_limit\"='0.5%')",
    "alter workload group g2 properties('cpu_hard_limit'='10%');",
    "drop workload group if exists `g`",
    "create workload policy p conditions(query_time > 1, username='u') actions(set_session_variable 'a=b') properties('enabled'='true')",
    "GRANT USAGE_PRIV ON WORKLOAD GROUP 'g1' TO 'u'@'%'",
    "revoke select_priv on *.*.* from role r",
    "create user if not exists 'u'@'10.%' identified by 'x' default role 'r'",
    "set @@session.workload_group = 'a', global b = concat('x', (1)), c = -1",
    "set property for 'u' 'default_workload_group' = 'g'",
    "ADMIN SET FRONTEND CONFIG (\"enable_cpu_hard_limit\" = \"true\")",
    "select /*+SET_VAR(workload_group=g1, a='b')*/ * from t -- end\n where a like '%;%'",
    "kill query '4a-7'; show full processlist",
    "show workload groups like 'a%'",
    "/*!50110 set a = 1 */",
    "// comment\nset dry_run_query = true;",
    "set transaction isolation level read committed, read only",
];

/// What a statement is told apart by, so that a mutation stays close to one.
const PIECES: [&str; 24] = [
    "'",
    "\"",
    "`",
    "(",
    ")",
    ",",
    ";",
    "=",
    "@",
    "@@",
    "%",
    "*",
    ".",
    "-",
    "--",
    "/*",
    "*/",
    "/*+",
    "\\",
    "\n",
    "é",
    "workload",
    "properties",
    "0x",
];

/// Everything that reads texts; what it says has a place.
fn read(text: &str) {
    for part in split(text) {
        assert!(!part.is_empty() && text.contains(part));
        let _ = parse(part);
    }
    match parse(text) {
        Err(error) => assert!(error.line >= 1 && error.column >= 1, "{error}"),
        // Marks of comments that are executed become spaces.
        Ok(Statement::PassedOn(passed)) => assert!(text.contains(&passed.text) || text.contains("/*!")),
        Ok(_) => {}
    }
}

proptest! {
    #![proptest_config(cases(2_000))]

    // promise 45
    #[test]
    fn any_text(text in any::<String>()) {
        read(&text);
    }

    // promise 45
    #[test]
    fn any_pieces(pieces in prop::collection::vec((0usize..PIECES.len(), "[a-z0-9 ]{0,4}"), 0..30)) {
        let text: String = pieces.into_iter().map(|(piece, word)| format!("{}{word}", PIECES[piece])).collect();
        read(&text);
    }

    // promise 45
    #[test]
    fn mutated_statements(seed in 0usize..SEEDS.len(), edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..3, 0usize..PIECES.len()), 1..5)) {
        let mut text: Vec<char> = SEEDS[seed].chars().collect();
        for (place, kind, piece) in edits {
            let at = place.index(text.len().max(1)).min(text.len());
            match kind {
                0 if at < text.len() => { text.remove(at); }
                1 => text.truncate(at),
                _ => { text.splice(at..at, PIECES[piece].chars()); }
            }
        }
        let text: String = text.into_iter().collect();
        read(&text);
        // A refused statement changes nothing, whatever it is.
        let mut world = World::new();
        let before = world.catalog.clone();
        if split(&text).len() == 1 && world.run(&text).is_err() {
            prop_assert!(world.catalog == before);
        }
    }
}

// promise 45
#[test]
fn deep_and_long_texts() {
    for text in [
        "(".repeat(100_000),
        format!("set a = {}1{}", "(".repeat(50_000), ")".repeat(50_000)),
        format!("create workload group {}", "x".repeat(1_000_000)),
        format!("create workload group g properties({})", "'a'='1',".repeat(10_000)),
        "select /*+".repeat(10_000),
        "/*".repeat(100_000),
        "/*!".repeat(100_000),
        format!("select 1{}", " + 1".repeat(100_000)),
        format!("select 1{}", " union select 1".repeat(100_000)),
        format!("show charset where {}1", "1 + ".repeat(100_000)),
        format!("set {}@a = 1", "@a = 1, ".repeat(100_000)),
    ] {
        read(&text);
    }
    let mut world = World::new();
    world.refused(&format!("create workload group {}", "x".repeat(65)), "group name");
}
