//! The 43 query shapes of ClickBench on the generated table.

use crate::server::client::Answer;
use crate::server::fixture::{Fixture, eventually, shapes};

const ROWS: u64 = 60_000;

#[test]
fn all_of_them_run_and_have_rows() {
    let fixture = Fixture::new();
    fixture.clickbench(ROWS);
    let mut client = fixture.root();
    let mut answers = Vec::new();
    let shapes = shapes();
    for sql in &shapes {
        let answer = client.query(sql);
        let Answer::Rows(_, rows) = &answer else { panic!("{sql}: {answer:?}") };
        assert!(!rows.is_empty(), "no rows: {sql}");
        answers.push(answer.rows());
    }
    let number = |shape: usize| answers[shape - 1][0][0].parse::<f64>().unwrap();
    assert_eq!(number(1), ROWS as f64);
    assert!(number(2) > 0.0 && number(2) < number(1) / 10.0);
    assert_eq!(answers[6], [["2013-07-01", "2013-07-31"]]);
    assert!(shapes[19].ends_with(&format!("UserID = {}", answers[19][0][0])), "{:?}", answers[19]);
    assert!(number(21) > 0.0);
    // The document's query: domains, without "www.", and not the text "\1".
    let domains = &answers[28];
    assert!(
        domains.iter().all(|row| row[0].ends_with(".example") && !row[0].starts_with("www.")),
        "{domains:?}"
    );
    assert_eq!(answers[29][0].len(), 90);
    assert_eq!(answers[23][0].len(), 105);
    eventually("nothing is left", || fixture.is_quiet());
}

// promise 46
#[test]
fn reads_are_listed_by_device() {
    use std::os::unix::fs::MetadataExt;
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 100_000);
    let mut root = fixture.root();
    let limit = 2 << 20;
    root.all(&[&format!("create workload group r properties('read_bytes_per_second'='{limit}')")]);
    let mut client = fixture.root();
    client.all(&["set workload_group = 'r'", "set dry_run_query = true", "select url from hits"]);
    let rows = root
        .query(
            "select kind, source, limit_bytes_per_second, read_bytes, requests, waits, wait_time_ms, waiting \
             from information_schema.workload_group_reads where name = 'r'",
        )
        .rows();
    let device = std::fs::metadata(fixture.data()).unwrap().dev();
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0][..3], ["local", device.as_str(), &limit.to_string()], "{rows:?}");
    let figure = |at: usize| rows[0][at].parse::<u64>().unwrap();
    let (read, _) = fixture.engine.groups()["r"].read_bytes();
    assert_eq!(figure(3), read);
    assert!(figure(3) > limit && figure(4) > 0, "{rows:?}");
    // More than a second's worth was read, so somebody has waited, and nobody does any more.
    assert!(figure(5) > 0 && figure(6) > 0 && figure(7) == 0, "{rows:?}");
}
