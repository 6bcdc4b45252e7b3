//! `commensal-sql-bench generate`: files that are whole or not there.
#![allow(
    clippy::disallowed_methods,
    reason = "tests make data, start the program and look at the machine themselves"
)]
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::concat_batches;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::path::Path;
use std::process::{Command, Output};

fn generate(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commensal-sql-bench"));
    command.arg("generate").arg("--out").arg(folder).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn read(path: &Path) -> (usize, RecordBatch) {
    let builder = ParquetRecordBatchReaderBuilder::try_new(std::fs::File::open(path).unwrap()).unwrap();
    let groups = builder.metadata().num_row_groups();
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
    (groups, concat_batches(&batches[0].schema(), &batches).unwrap())
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn files_hold_as_many_rows_as_were_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("data");
    let done = generate(&out, &["--rows", "20000", "--seed", "5"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(said(&done), "", "no progress bar without a terminal");
    let (groups, whole) = read(&out.join("hits.parquet"));
    assert!(groups > 1, "{groups} row group");
    assert_eq!(whole.num_rows(), 20_000);

    let done = generate(&out.join("x/hits"), &["--rows", "20000", "--seed", "5", "--files", "3"]);
    assert!(done.status.success(), "{}", said(&done));
    let parts: Vec<RecordBatch> =
        (0..3).map(|file| read(&out.join(format!("x/hits/hits_{file}.parquet"))).1).collect();
    assert!(parts.iter().all(|part| part.num_rows() > 6_000), "all files have their part");
    assert_eq!(concat_batches(&whole.schema(), &parts).unwrap(), whole);

    let done = generate(&out, &["--rows", "100", "--format", "csv"]);
    assert!(done.status.success(), "{}", said(&done));
    let text = std::fs::read_to_string(out.join("hits.csv")).unwrap();
    assert_eq!(text.lines().count(), 101);
    assert!(text.starts_with("WatchID,JavaEnable,Title,"), "{}", &text[..80]);
    assert!(text.lines().nth(1).unwrap().contains(",2013-07-"), "{:?}", text.lines().nth(1));
}

#[test]
fn a_file_that_is_there_stays() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hits.parquet");
    std::fs::write(&file, "mine").unwrap();
    let refused = generate(folder.path(), &["--rows", "10"]);
    assert!(!refused.status.success());
    assert!(
        said(&refused).contains("hits.parquet already exists") && said(&refused).contains("--force"),
        "{}",
        said(&refused)
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    let done = generate(folder.path(), &["--rows", "10", "--force"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(read(&file).1.num_rows(), 10);
    assert_eq!(names(folder.path()), ["hits.parquet"]);
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("data");
    for (arguments, what) in [
        (&["--rows", "0"][..], "--rows"),
        (&["--rows", "-5"], "-5"),
        (&["--rows", "many"], "many"),
        (&["--rows", "10", "--files", "0"], "--files"),
        (&["--rows", "10", "--format", "orc"], "orc"),
        (&[], "--rows"),
    ] {
        let refused = generate(&out, arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(said(&refused).contains(what), "{arguments:?}: {}", said(&refused));
    }
    assert!(!out.exists());
    std::fs::write(&out, "a file").unwrap();
    let refused = generate(&out, &["--rows", "10"]);
    assert!(!refused.status.success() && said(&refused).contains("--out"), "{}", said(&refused));
}

/// Runs `generate` where no more than a megabyte can be written, in each format; nothing may be left of it.
fn without_room(folder: &Path, script: &str) {
    for format in ["parquet", "csv"] {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh", env!("CARGO_BIN_EXE_commensal-sql-bench"), format]).arg(folder);
        let failed = shell.output().unwrap();
        let text = said(&failed);
        assert!(!failed.status.success(), "{format}: {text}");
        assert!(
            text.contains(&format!("hits.{format}; the incomplete file was removed"))
                && text.contains("--rows"),
            "{format}: {text}"
        );
        assert_eq!(String::from_utf8_lossy(&failed.stdout), "", "{format}: something is left: {text}");
    }
}

#[test]
fn what_does_not_fit_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let run = "\"$1\" generate --rows 100000 --format \"$2\" --out \"$3\"; s=$?; ls -A \"$3\"; exit $s";
    // A file that may not grow, which the kernel says with EFBIG.
    without_room(folder.path(), &format!("trap '' XFSZ; ulimit -f 1000; {run}"));
    assert!(names(folder.path()).is_empty());
    // A disk that is full, in a mount namespace of its own.
    let mount = "mount -t tmpfs -o size=1m none \"$3\"";
    let probe =
        Command::new("unshare").args(["-m", "sh", "-c", mount, "sh", "", ""]).arg(folder.path()).output();
    if !probe.as_ref().is_ok_and(|output| output.status.success()) {
        println!("skipped: what_does_not_fit_is_removed: no tmpfs can be mounted here: {probe:?}");
        return;
    }
    let script = format!("exec unshare -m sh -c '{mount} && {run}' \"$0\" \"$@\"");
    without_room(folder.path(), &script);
}
