//! A SQL server with workload groups, for any MySQL client.
//!
//! ```text
//! protocol ── Session ─┬─ statement ──► Statement ── catalog ──► groups, policies, users ──► groups.d and a file of SQL's own
//!                      │      │              property: both vocabularies, validated                  │
//!                      │      └── PassedOn (queries, untouched)                                       ▼
//!                      └─ engine: queue, memory, CPU, reads of each group ◄────────────────── groups in force
//! ```
//!
//! `statement`, `catalog` and `property` open no files, read no clocks and do not use the query engine.
#![forbid(unsafe_code)]

pub mod catalog;
pub mod engine;
pub mod property;
pub mod protocol;
pub mod statement;
