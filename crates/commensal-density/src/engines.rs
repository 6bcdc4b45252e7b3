//! TPC-DS in a cell, which stands for a VM: the commands that start a database engine, and the paths of the files that
//! the commands need.

use crate::experiment::{Cell, Tpcds};
use commensal_host::SpawnSpec;
use std::path::{Path, PathBuf};

/// The Python script that downloads the engine, generates the data, and runs as the client of a cell.
pub const SCRIPT: &str = include_str!("tpcds.py");

/// Returns the path of the script.
#[must_use]
pub fn script(data_dir: &Path) -> PathBuf {
    data_dir.join("tpcds.py")
}

/// Returns the path of the Python interpreter in the environment that `density prepare` creates.
#[must_use]
pub fn python(data_dir: &Path) -> PathBuf {
    data_dir.join("python/bin/python")
}

/// Returns the path of the database for a scale factor (in thousandths).
#[must_use]
pub fn database(data_dir: &Path, scale_milli: u32) -> PathBuf {
    data_dir.join(format!("tpcds-{scale_milli}.duckdb"))
}

/// Returns the folder for spill files of engines.
#[must_use]
pub fn scratch(data_dir: &Path) -> PathBuf {
    data_dir.join("cells")
}

/// Returns the path of the file that describes the queries on a database. For PostgreSQL, the file lists only the
/// queries that PostgreSQL can run.
#[must_use]
pub fn facts(data_dir: &Path, scale_milli: u32, postgres: bool) -> PathBuf {
    let engine = if postgres { ".postgres" } else { "" };
    data_dir.join(format!("tpcds-{scale_milli}.duckdb{engine}.json"))
}

/// Returns the number of queries of a session, from the content of the file at [`facts`]; `None` when the content
/// cannot be parsed.
#[must_use]
pub fn queries(facts: &str, lite: bool) -> Option<u32> {
    let facts: serde_json::Value = serde_json::from_str(facts).ok()?;
    let count = if lite { facts["lite"].as_array()?.len() } else { facts["queries"].as_object()?.len() };
    u32::try_from(count).ok()
}

/// Returns the command that starts an engine process and its client. The engine uses `vcpu` threads for `sessions`
/// sessions.
#[must_use]
pub fn cell(data_dir: &Path, engine: &str, tpcds: Tpcds, (cell, sessions): (&Cell, u32)) -> SpawnSpec {
    let mut spec = SpawnSpec::new(python(data_dir))
        .arg(script(data_dir))
        .arg(engine)
        .arg("--database")
        .arg(database(data_dir, tpcds.scale_milli))
        .arg("--threads")
        .arg(cell.vcpu.to_string())
        .arg("--sessions")
        .arg(sessions.to_string());
    if let Some(memory) = cell.memory {
        spec = spec.arg("--memory").arg(memory.0.to_string());
    }
    if tpcds.lite {
        spec = spec.arg("--lite");
    }
    if tpcds.cold {
        spec = spec.arg("--cold");
    }
    spec
}

/// Returns the command that removes the database copies of killed cells.
#[must_use]
pub fn sweep(data_dir: &Path, scale_milli: u32) -> SpawnSpec {
    SpawnSpec::new(python(data_dir))
        .arg(script(data_dir))
        .arg("sweep")
        .arg("--database")
        .arg(database(data_dir, scale_milli))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_counted_as_prepared() {
        let facts = "{\"lite\": [1, 2], \"queries\": {\"1\": {}, \"2\": {}, \"3\": {}}}";
        assert_eq!((queries(facts, true), queries(facts, false)), (Some(2), Some(3)));
        assert_eq!(queries("{}", true), None);
    }
}
