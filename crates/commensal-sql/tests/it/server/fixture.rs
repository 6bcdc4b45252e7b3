//! A server in this process with data made on the spot.

use crate::server::client::{Answer, Client};
use commensal_sql::engine::{Allowed, Engine, Options};
use commensal_sql::protocol::{Limits, Server, Tls};
use commensal_testkit::within;
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A server with a data folder of its own.
pub struct Fixture {
    pub address: SocketAddr,
    pub engine: Arc<Engine>,
    pub folder: TempDir,
    runtime: Option<Runtime>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// CPUs that the servers of tests count with, whatever the machine has.
pub const CPUS: usize = 2;

/// A statement that runs until it is told to end.
pub const ENDLESS: &str =
    "select count(*) from hits a, hits b, hits c where a.url < b.url and b.url < c.url and a.g + b.g = c.g";

/// Memory that percents are of.
pub const MEMORY: u64 = 4 << 30;

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::with(Limits::default(), |_| {})
    }

    pub fn with(limits: Limits, change: impl FnOnce(&mut Options)) -> Fixture {
        Fixture::made(limits, change, |server| server)
    }

    /// With TLS for those who want it.
    pub fn encrypting(limits: Limits, tls: Tls) -> Fixture {
        Fixture::made(limits, |_| {}, |server| server.with_tls(Arc::new(tls), false))
    }

    fn made(
        limits: Limits,
        change: impl FnOnce(&mut Options),
        finish: impl FnOnce(Server) -> Server,
    ) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        let mut options = Options {
            data: folder.path().join("data"),
            state: Some(folder.path().join("state")),
            writable: false,
            groups: None,
            spill: folder.path().to_owned(),
            endpoints: Allowed::default(),
            memory: Some(MEMORY),
            cpus: CPUS,
            workers: None,
        };
        change(&mut options);
        Fixture::start(folder, options, limits, finish)
    }

    fn start(
        folder: TempDir,
        options: Options,
        limits: Limits,
        finish: impl FnOnce(Server) -> Server,
    ) -> Fixture {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_stack_size(8 << 20)
            .enable_all()
            .build()
            .unwrap();
        let (engine, server) = runtime.block_on(async {
            let engine = Engine::open(options).unwrap();
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            (Arc::clone(&engine), Server::bind(any, engine, limits).await.unwrap())
        });
        let address = server.address().unwrap();
        let server = finish(server);
        runtime.spawn(async move { server.run().await });
        Fixture { address, engine, folder, runtime: Some(runtime) }
    }

    /// The same data and state with a new server.
    pub fn again(mut self) -> Fixture {
        let options = self.engine.options.clone();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(60));
        }
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        Fixture::start(folder, options, Limits::default(), |server| server)
    }

    pub fn data(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    pub fn csv(&self, name: &str, text: &str) {
        std::fs::write(self.data().join(name), text).unwrap();
    }

    /// A table with columns `id` (0 to rows - 1), `g` (1000 values) and `url` (about 40 letters, mostly distinct).
    pub fn hits(&self, name: &str, rows: usize) {
        write_hits(&self.data().join(name), rows);
    }

    /// ClickBench's table, made up.
    pub fn clickbench(&self, rows: u64) {
        bench(&["generate", "--rows", &rows.to_string(), "--out", self.data().to_str().unwrap()]);
    }

    pub fn root(&self) -> Client {
        Client::login(self.address, "root", "", "").unwrap()
    }

    /// Nothing runs, waits or holds anything any more.
    pub fn is_quiet(&self) -> bool {
        let groups = self.engine.groups();
        let idle = groups.values().all(|group| group.queue.lengths() == (0, 0) && group.memory.used() == 0);
        idle && self.engine.queries.all().is_empty()
    }
}

/// What `commensal-sql-bench` prints.
fn bench(arguments: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_commensal-sql-bench")).args(arguments).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// The statements of ClickBench's query shapes, in their order.
pub fn shapes() -> Vec<String> {
    let text = bench(&["queries", "--sql"]);
    let statements = text.trim().split("\n\n").map(|shape| shape.split_once('\n').unwrap().1);
    statements.map(|sql| sql.trim_end_matches(';').to_owned()).collect()
}

pub fn write_hits(path: &Path, rows: usize) {
    let batch = |from: usize, to: usize| {
        let ids = from as i64..to as i64;
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(Int64Array::from_iter_values(ids.clone()))),
            ("g", Arc::new(Int64Array::from_iter_values(ids.clone().map(|id| id % 1_000)))),
            (
                "url",
                Arc::new(StringArray::from_iter_values(ids.map(|id| {
                    format!("https://example.org/{:016x}/{id}", id.wrapping_mul(0x1E37_79B9_7F4A_7C15))
                }))),
            ),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(100_000)).build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch(0, 0).schema(), Some(properties)).unwrap();
    for from in (0..rows).step_by(100_000) {
        writer.write(&batch(from, rows.min(from + 100_000))).unwrap();
    }
    writer.close().unwrap();
}

/// Waits until it is so, with a limit that only a hang reaches, and before the runner ends the test without a word.
pub fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    within(Duration::from_secs(240), what, is_so);
}

/// Runs a statement on a connection of its own.
pub fn beside(address: SocketAddr, setup: &[&str], sql: &str) -> std::thread::JoinHandle<Answer> {
    let setup: Vec<String> = setup.iter().map(|sql| (*sql).to_owned()).collect();
    let sql = sql.to_owned();
    std::thread::spawn(move || {
        let mut client = Client::login(address, "root", "", "").unwrap();
        setup.iter().for_each(|sql| assert!(!matches!(client.query(sql), Answer::Err(..)), "{sql}"));
        client.query(&sql)
    })
}
