//! The command line of commensal. It makes no decisions: specs come from files, plans from `commensal-core`, writes go
//! through `commensal-reconcile`, experiments through `commensal-lab`.
//!
//! This is a library so that `xtask gen` can derive man pages and completions from the same definition.
#![forbid(unsafe_code)]

#[macro_use]
mod output;
pub mod cli;
mod context;
pub mod ledger;
mod signals;
