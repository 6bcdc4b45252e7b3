//! SQL under workload groups: statements and what they change.
//!
//! ```text
//! text ── statement ──► Statement ── catalog ──► groups, policies, users ──► groups.d and the SQL engine's own file
//!             └── PassedOn (queries, untouched)      └── property: both vocabularies, validated
//! ```
//!
//! Nothing here opens a file, reads a clock or knows of a query engine.
#![forbid(unsafe_code)]

pub mod catalog;
pub mod property;
pub mod statement;
