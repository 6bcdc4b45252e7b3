//! What governance costs: ClickBench's 43 query shapes on this engine, under limits that do not bind, beside bare DataFusion
//! with the same settings in the same process, in turns.
//!
//! ```text
//! commensal-sql-bench generate --rows 1000000 --out DATA
//! cargo run --release -p commensal-sql --example cost -- DATA [ROUNDS [QUERY...]]
//! ```
//!
//! Times are wall-clock from the statement to the last batch, without the MySQL protocol, and with a warm page cache. The ratio
//! of a query is that of its two medians; the two orders of a pair alternate. A machine with other load widens both.
#![allow(clippy::print_stdout, reason = "it prints a table")]

#[path = "../src/bin/commensal-sql-bench/queries.rs"]
#[allow(dead_code, reason = "one by its number is for the program that has them")]
mod queries;

use anyhow::{Context, bail};
use commensal_sql::engine::connections::Connection;
use commensal_sql::engine::session::{Reply, Session};
use commensal_sql::engine::{Allowed, Engine, Options};
use commensal_sql::statement::UserName;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use futures::StreamExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SETUP: [&str; 2] = [
    "create workload group governed properties('memory_limit'='8GB', 'enable_memory_overcommit'='false', \
     'read_bytes_per_second'='1099511627776', 'max_concurrency'='10', 'max_queue_size'='10', 'queue_timeout'='60000')",
    "set workload_group = 'governed'",
];

fn main() -> anyhow::Result<()> {
    // As the server does; it is for both.
    commensal_host::keep_memory();
    let mut arguments = std::env::args().skip(1);
    let data: PathBuf = arguments.next().context("say where the data is")?.into();
    let rounds: usize = arguments.next().map_or(Ok(7), |rounds| rounds.parse())?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_stack_size(8 << 20)
        .enable_all()
        .build()?;
    let only = arguments.map(|number| number.parse()).collect::<Result<Vec<usize>, _>>()?;
    runtime.block_on(compare(&data, rounds, threads, &only))
}

async fn compare(data: &Path, rounds: usize, threads: usize, only: &[usize]) -> anyhow::Result<()> {
    let bare = bare(data, threads).await?;
    let governed = governed(data, threads).await?;
    println!("| query | bare, ms | governed, ms | ratio |\n|---|---|---|---|");
    let mut ratios = Vec::new();
    let wanted = |number: usize| only.is_empty() || only.contains(&number);
    for shape in queries::shapes().into_iter().filter(|shape| wanted(shape.number)) {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        // The first pair fills caches.
        for round in 0..=rounds {
            let (mut one, mut other) = (Duration::ZERO, Duration::ZERO);
            for turn in [round % 2, (round + 1) % 2] {
                if turn == 0 {
                    one = time_bare(&bare, shape.sql).await?;
                } else {
                    other = time_governed(&governed, shape.sql).await?;
                }
            }
            if round > 0 {
                without.push(one.as_secs_f64() * 1e3);
                with.push(other.as_secs_f64() * 1e3);
            }
        }
        let (without, with) = (median(&mut without), median(&mut with));
        ratios.push(with / without);
        println!("| {} | {without:.1} | {with:.1} | {:.3} |", shape.number, with / without);
    }
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let count = ratios.len();
    println!(
        "\nmedian ratio {:.3}, geometric mean {mean:.3}, of {count} queries, {rounds} pairs each",
        median(&mut ratios)
    );
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

async fn bare(data: &Path, threads: usize) -> anyhow::Result<SessionContext> {
    let config = SessionConfig::new()
        .with_target_partitions(threads)
        .set_str("datafusion.sql_parser.dialect", "mysql")
        .set_bool("datafusion.sql_parser.enable_ident_normalization", false);
    let context = SessionContext::new_with_config(config);
    let table = data.join("hits.parquet");
    let table = table.to_str().context("a path in UTF-8")?;
    context.register_parquet("hits", table, ParquetReadOptions::default()).await?;
    Ok(context)
}

async fn governed(data: &Path, threads: usize) -> anyhow::Result<Session> {
    let engine = Engine::open(Options {
        data: data.to_owned(),
        writable: false,
        state: None,
        groups: None,
        spill: std::env::temp_dir(),
        endpoints: Allowed::default(),
        memory: None,
        cpus: threads,
        workers: None,
    })?;
    let ticking = Arc::clone(&engine);
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(commensal_sql::engine::TICK);
        loop {
            tick.tick().await;
            ticking.tick();
        }
    });
    let connection = Arc::new(Connection::new(1, UserName::anywhere("root"), "127.0.0.1", None));
    let added = engine.connections.add(&connection, None);
    added.map_err(|there| anyhow::anyhow!("{there} connections are there already"))?;
    let session = Session::new(&engine, &connection);
    for statement in SETUP {
        session.execute(statement).await?;
    }
    Ok(session)
}

async fn time_bare(context: &SessionContext, sql: &str) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let sql = sql.to_owned();
    let context = context.clone();
    // In a task of the runtime, as the other one.
    let task = tokio::spawn(async move {
        let mut stream = context.sql(&sql).await?.execute_stream().await?;
        while let Some(batch) = stream.next().await {
            std::hint::black_box(batch?);
        }
        Ok::<_, anyhow::Error>(())
    });
    task.await??;
    Ok(begun.elapsed())
}

async fn time_governed(session: &Session, sql: &str) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let Reply::Rows(mut rows) = session.execute(sql).await? else { bail!("{sql} gave no rows") };
    while let Some(batch) = rows.next().await? {
        std::hint::black_box(batch);
    }
    Ok(begun.elapsed())
}
