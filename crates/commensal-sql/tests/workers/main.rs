//! Offline groups in worker processes, with the program `commensal` and the machine's own cgroups; here without the
//! program, and with it in `measure`.
#![allow(
    clippy::disallowed_methods,
    reason = "tests make data, start the program and look at the machine themselves"
)]
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]
#![allow(
    missing_docs,
    missing_debug_implementations,
    dead_code,
    reason = "helpers of these tests, shared with others"
)]

mod measure;
#[path = "../it/server/shared.rs"]
mod server;

use crate::server::fixture::Fixture;
use commensal_sql::engine::worker::Workers;
use commensal_sql::protocol::Limits;

// promise 46
#[test]
fn without_commensal_queries_run_in_the_server() {
    let workers = Workers {
        program: env!("CARGO_BIN_EXE_commensal-sql").into(),
        commensal: "/nowhere/commensal".into(),
        options: Vec::new(),
    };
    let fixture = Fixture::with(Limits::default(), |options| options.workers = Some(workers));
    fixture.hits("hits.parquet", 20_000);
    fixture.root().all(&["create workload group etl properties('class'='offline')"]);
    let mut client = fixture.root();
    client.all(&["set workload_group = 'etl'"]);
    assert_eq!(client.query("select count(*) from hits").cell(), "20000");
    let sql = "select worker from information_schema.workload_group_resource_usage where name = 'etl'";
    let text = fixture.root().query(sql).cell();
    assert!(text.starts_with("no worker: ") && text.contains("/nowhere/commensal"), "{text}");
}
