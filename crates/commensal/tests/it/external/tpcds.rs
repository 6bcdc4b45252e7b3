//! `commensal density` with the engines of TPC-DS, which it fetches.

use crate::density::{assert_nothing_left, file, ladder};
use crate::support::{Program, can_write_cgroups};
use commensal_density::record::FailureKind;
use std::path::Path;

/// TPC-DS itself: what `prepare` gets, and a ladder of both engines upon it.
#[test]
fn tpcds_runs_in_cells() {
    let test = "tpcds_runs_in_cells";
    if std::env::var_os("COMMENSAL_KILL_ROUNDS").is_none() {
        println!("skipped: {test}: it fetches an engine and takes minutes (cargo xtask ci --long)");
        return;
    }
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("density-tpcds");
    let postgres = Path::new("/usr/lib/postgresql").exists();
    let prepare: &[&str] = if postgres {
        &["density", "prepare", "--scale", "0.01", "--postgres"]
    } else {
        &["density", "prepare", "--scale", "0.01"]
    };
    let output = program.run(prepare);
    if !output.status.success() {
        println!("skipped: {test}: {}", crate::support::text(&output.stderr));
        return;
    }
    // A copy of a cluster whose cell was killed.
    let copies = Path::new("/var/tmp").join(format!(
        "commensal-density-{}/cells",
        commensal_host::Host::euid(&commensal_host::LinuxHost::new())
    ));
    let left = copies.join("99999999");
    if postgres {
        let owned = std::process::Command::new("install")
            .args(["-d", "-o", "postgres", "-g", "postgres", "-m", "700"])
            .args([&copies, &left])
            .status();
        assert!(owned.unwrap().success());
    }
    for engine in if postgres { &["duckdb", "postgres"][..] } else { &["duckdb"] } {
        let text = format!(
            "repeats = 1\n[cell]\nvcpu = 1\nmemory = \"1 GiB\"\nquota = true\n[ladder]\ncells = [1, 2]\n[[load]]\nname = \"Lite\"\n\
             kind = \"{engine}\"\nscale = 0.01\nconcurrency = [1, 2]\n[[load]]\nname = \"Full\"\nkind = \"{engine}\"\n\
             queries = \"full\"\ncold = true\nscale = 0.01\nconcurrency = [1]\n[limits]\ntimeout = \"10 min\"\n"
        );
        program.expect(0, &["density", "run", &file(&program, &text)]);
        let ladder = ladder(&program);
        assert_eq!(ladder.test("Lite").unwrap().work, 51.0);
        // Every query gave its result in every cell: others would have failed the rung.
        let results = ladder.results.keys().filter(|key| key.starts_with("Full ")).count();
        assert_eq!(results as f64, ladder.test("Full").unwrap().work, "{engine}");
        // Connections last, so what a cell's threads do is seen.
        let unseen = ladder.rungs.iter().flat_map(|rung| &rung.attempts).filter_map(|one| one.unseen_pct);
        let unseen: Vec<f64> = unseen.collect();
        assert!(!unseen.is_empty() && unseen.iter().all(|pct| *pct < 15.0), "{engine}: {unseen:?}");
    }
    assert!(!postgres || !left.exists(), "{} is still there", left.display());
    // In a tenth of the memory it fails, and says why.
    let text = "repeats = 1\n[cell]\nvcpu = 1\nmemory = \"96 MiB\"\n[ladder]\ncells = [1]\n[[load]]\nname = \"Full\"\n\
                kind = \"duckdb\"\nqueries = \"full\"\nscale = 0.1\nconcurrency = [1]\n";
    program.expect(0, &["density", "prepare", "--scale", "0.1"]);
    program.expect(1, &["density", "run", &file(&program, text)]);
    let failure = ladder(&program).rungs[0].attempts[0].failure.clone().unwrap();
    assert_eq!(failure.kind, FailureKind::OutOfMemory, "{failure:?}");
    assert_nothing_left(&program);
}
