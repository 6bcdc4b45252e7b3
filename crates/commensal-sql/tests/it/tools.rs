//! `commensal-sql-bench`: load on a server, the list of queries, the replay.
#![allow(
    clippy::disallowed_methods,
    reason = "tests make data, start the program and look at the machine themselves"
)]
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]

use crate::server::fixture::{Fixture, shapes};
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_commensal-sql-bench")).args(arguments).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn queries_are_listed_and_printed() {
    let list = out(&run(&["queries"]));
    assert_eq!(list.lines().count(), 43);
    assert!(list.starts_with(" 1  rows\n"), "{list}");
    assert_eq!(shapes().len(), 43);
    let one = out(&run(&["queries", "29"]));
    assert_eq!(one, format!("{};\n", shapes()[28]));
    assert!(one.starts_with("SELECT REGEXP_REPLACE(Referer"), "{one}");
    for number in ["0", "44"] {
        let refused = run(&["queries", number]);
        assert!(!refused.status.success() && said(&refused).contains("from 1 to 43"), "{}", said(&refused));
    }
}

/// The server's program says where these verbs are.
#[test]
fn verbs_of_the_bench_are_named_by_the_server() {
    for verb in ["generate", "queries", "bench", "replay"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_commensal-sql"));
        let refused = command.args([verb, "--data", "/nowhere"]).output().unwrap();
        assert_eq!((refused.status.code(), out(&refused)), (Some(2), String::new()), "{verb}");
        let text = said(&refused);
        assert!(
            text.contains(&format!("`commensal-sql-bench {verb}`")) && text.lines().count() == 1,
            "{text}"
        );
    }
}

#[test]
fn load_says_why_it_cannot_begin() {
    let fixture = Fixture::new();
    let address = fixture.address.to_string();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let free = taken.local_addr().unwrap().to_string();
    drop(taken);
    for (arguments, what) in [
        (vec!["replay", "--data", "d", "--repeats", "0"], "--repeats"),
        (vec!["bench", "--connect", &free], free.as_str()),
        (vec!["bench", "--connect", &address, "--user", "nobody"], "nobody"),
        (vec!["bench", "--connect", &address, "--query", "44"], "44"),
        (vec!["bench", "--connect", &address, "--seconds", "0"], "--seconds"),
        (vec!["bench", "--connect", &address, "--clients", "0"], "--clients"),
        (vec!["bench", "--connect", "here"], "here"),
    ] {
        let refused = run(&arguments);
        assert!(
            !refused.status.success() && said(&refused).contains(what),
            "{arguments:?}: {}",
            said(&refused)
        );
    }
}

mod measure {
    use super::*;

    /// What the lab reads: a line for each statement, and a summary.
    #[test]
    fn load_is_told_line_by_line() {
        let fixture = Fixture::new();
        fixture.hits("hits.parquet", 1_000);
        fixture
            .root()
            .all(&["create workload group g2 properties('max_concurrency'='1', 'max_queue_size'='9')"]);
        let address = fixture.address.to_string();
        let asked = ["bench", "--connect", &address, "--clients", "3", "--seconds", "0.7", "--group", "g2"];
        let good = run(&[&asked[..], &["--json", "--sql", "select count(*) from hits"]].concat());
        assert!(good.status.success(), "{}", said(&good));
        let text = out(&good);
        let (summary, lines): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.contains("\"requests\""));
        assert!(lines.len() > 3, "{text}");
        assert!(
            lines.iter().all(|line| line.starts_with("{\"latency_us\": ") && line.ends_with('}')),
            "{text}"
        );
        let all = format!("{{\"requests\": {}, \"errors\": 0, \"seconds\": ", lines.len());
        assert!(summary.len() == 1 && summary[0].starts_with(&all), "{summary:?}");
        assert!(summary[0].ends_with("\"concurrency\": 3}"), "{summary:?}");

        let bad = run(&[&asked[..], &["--sql", "select nothing from hits"]].concat());
        assert!(bad.status.success(), "{}", said(&bad));
        assert!(
            out(&bad).starts_with("0 finished and ") && out(&bad).contains("first error: "),
            "{}",
            out(&bad)
        );
        crate::server::fixture::eventually("nothing is left", || fixture.is_quiet());
    }

    /// All of the document, with a small table; some minutes, so only in the long tier.
    // promise 45
    #[test]
    fn the_document_is_replayed() {
        if std::env::var_os("COMMENSAL_KILL_ROUNDS").is_none() {
            println!("skipped: the_document_is_replayed: takes minutes (cargo xtask ci --long)");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let arguments = [
            "replay",
            "--rows",
            "200000",
            "--seconds",
            "5",
            "--queries",
            "6",
            "--data",
            data.to_str().unwrap(),
        ];
        let done = run(&arguments);
        assert!(done.status.success(), "{}", said(&done));
        let text = out(&done);
        println!("{text}");
        for table in ["## Memory", "## CPU", "## Local reads", "## Remote reads", "## Short queries"] {
            assert!(text.contains(table), "{text}");
        }
        // The rows with a queue: everything succeeds.
        let queued: Vec<&str> =
            text.lines().filter(|line| line.contains(": hard limit and queue | ")).collect();
        assert!(queued.len() == 2 && queued.iter().all(|line| line.contains("| 6 | 0 |")), "{queued:?}");
        // The same as figures, for programs, twice.
        let data = folder.path().join("again");
        let arguments =
            ["replay", "--json", "--repeats", "2", "--rows", "50000", "--seconds", "3", "--queries", "4"];
        let done = run(&[&arguments[..], &["--data", data.to_str().unwrap()]].concat());
        assert!(done.status.success(), "{}", said(&done));
        let figures: Vec<serde_json::Value> =
            out(&done).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |table: &str, row: &str, column: &str| {
            let found =
                figures.iter().filter(|f| f["table"] == table && f["row"] == row && f["column"] == column);
            let found: Vec<&serde_json::Value> = found.collect();
            assert!(found.len() == 2 && found[0]["repeat"] == 1 && found[1]["repeat"] == 2, "{found:?}");
            found[1]["value"].as_f64().unwrap_or_else(|| panic!("{table}: {row}: {column}"))
        };
        assert_eq!(of("Memory", "join: hard limit and queue", "finished"), 4.0);
        let limited = of("CPU", "CPU: hard limit", "shown, %");
        assert!((5.0..15.0).contains(&limited), "{limited} of 10 %");
        assert!(of("Local reads", "local reads: limit", "MiB/s") > 0.0);
    }
}
