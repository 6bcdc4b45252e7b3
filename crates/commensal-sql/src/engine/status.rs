//! Status variables, which SHOW STATUS and two tables of `information_schema` show. Clients look at a few: whether the
//! connection is encrypted, how many connections there are, and how long the server has been running.

use super::Engine;
use super::connections::Connection;
use std::sync::atomic::Ordering::Relaxed;

/// Variables that are always zero here.
const ZEROS: [&str; 26] = [
    "Aborted_clients",
    "Aborted_connects",
    "Bytes_received",
    "Bytes_sent",
    "Com_delete",
    "Com_insert",
    "Com_select",
    "Com_update",
    "Created_tmp_disk_tables",
    "Created_tmp_files",
    "Created_tmp_tables",
    "Handler_read_first",
    "Handler_read_rnd_next",
    "Innodb_buffer_pool_pages_total",
    "Innodb_row_lock_waits",
    "Key_reads",
    "Last_query_cost",
    "Open_files",
    "Open_tables",
    "Opened_tables",
    "Select_full_join",
    "Select_scan",
    "Slow_queries",
    "Sort_rows",
    "Table_locks_waited",
    "Threads_cached",
];

/// Returns name and value of each variable, sorted. Without a connection, those of a session are empty.
#[must_use]
pub fn all(engine: &Engine, connection: Option<&Connection>) -> Vec<(String, String)> {
    let connections = &engine.connections;
    let (open, uptime) = (connections.all().len(), connections.begun.elapsed().as_secs());
    let commands = connections.commands.load(Relaxed).to_string();
    let encrypted = connection.and_then(|connection| connection.encrypted.clone());
    let (version, cipher) = encrypted.unwrap_or_default();
    let known = [
        ("Connections", connections.opened.load(Relaxed).to_string()),
        ("Max_used_connections", open.to_string()),
        ("Queries", commands.clone()),
        ("Questions", commands),
        ("Ssl_cipher", cipher),
        ("Ssl_version", version),
        ("Threads_connected", open.to_string()),
        ("Threads_running", engine.queries.all().len().max(1).to_string()),
        ("Uptime", uptime.to_string()),
        ("Uptime_since_flush_status", uptime.to_string()),
    ];
    let mut all: Vec<(String, String)> = known.map(|(name, value)| (name.to_owned(), value)).to_vec();
    all.extend(ZEROS.map(|name| (name.to_owned(), "0".to_owned())));
    all.sort();
    all
}
