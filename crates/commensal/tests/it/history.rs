//! `lab baseline`, `lab diff --baseline` and `lab history`, by the program itself and, with Python, against an independent reader.

use crate::support::Program;
use std::path::PathBuf;

/// Every record in the tree.
fn records() -> Vec<PathBuf> {
    let top = std::env::current_dir().unwrap().join("../..");
    let mut found = Vec::new();
    for folder in ["docs/measurements", "docs/results", "fixtures/runs"] {
        for file in std::fs::read_dir(top.join(folder)).unwrap().flatten() {
            if file.path().extension().is_some_and(|kind| kind == "json") {
                found.push(file.path().canonicalize().unwrap());
            }
        }
    }
    found.sort();
    found
}

fn recorded(name: &str) -> String {
    let found = records().into_iter().find(|path| path.ends_with(name)).unwrap();
    found.to_str().unwrap().to_owned()
}

#[test]
fn a_baseline_is_kept_and_compared_with() {
    let program = Program::new("baseline");
    let (six, forty) = (recorded("quickstart-6-rounds.json"), recorded("quickstart-40-rounds.json"));
    let (out, _) = program.expect(0, &["lab", "baseline", "list"]);
    assert!(out.contains("no baseline in") && out.contains("--save-baseline"), "{out}");
    let (_, told) = program.expect(0, &["lab", "baseline", "save", "main", &six]);
    assert!(told.contains("baselines/main.json"), "{told}");
    // A baseline is compared like a record: the same text as with the file that it was made of.
    let (by_name, _) = program.expect(0, &["lab", "diff", "--baseline", "main", &forty]);
    let (by_file, _) = program.expect(0, &["lab", "diff", &six, &forty]);
    assert_eq!(by_name, by_file);
    let (out, _) = program.expect(0, &["lab", "baseline", "list"]);
    for part in ["main", "quickstart", "kernel ", "commensal "] {
        assert!(out.contains(part), "{out}");
    }
    let (out, _) = program.expect(0, &["lab", "baseline", "show", "main"]);
    assert!(out.contains("sha256:") && out.contains("contended"), "{out}");
    let (_, told) = program.expect(0, &["lab", "baseline", "save", "main", &forty]);
    assert!(told.contains("in place of the run of"), "{told}");
    // What cannot be: a bad name, an unknown one, a file that is none, two sources, none.
    let (_, told) = program.expect(2, &["lab", "baseline", "save", "../x", &six]);
    assert!(told.contains("cannot name a baseline"), "{told}");
    let (_, told) = program.expect(2, &["lab", "run", "quickstart", "--save-baseline", "a/b"]);
    assert!(told.contains("cannot name a baseline"), "{told}");
    let (_, told) = program.expect(2, &["lab", "diff", "--baseline", "old", &six]);
    assert!(
        told.contains("there is no baseline \"old\"") && told.contains("saved baselines: main"),
        "{told}"
    );
    program.expect(2, &["lab", "diff", "--baseline", "main", &six, &forty]);
    program.expect(2, &["lab", "diff", &six]);
    let file = program.state().join("lab/baselines/main.json");
    std::fs::write(&file, "{").unwrap();
    let (_, told) = program.expect(2, &["lab", "diff", "--baseline", "main", &forty]);
    assert!(told.contains("main.json") && told.contains("lab baseline rm main"), "{told}");
    let (_, told) = program.expect(2, &["lab", "baseline", "list"]);
    assert!(told.contains("lab baseline rm main"), "{told}");
    program.expect(0, &["lab", "baseline", "rm", "main"]);
    program.expect(2, &["lab", "baseline", "rm", "main"]);
}

#[test]
fn the_history_reads_lines_and_records() {
    let program = Program::new("history");
    let (out, _) = program.expect(0, &["lab", "history"]);
    assert!(out.starts_with("the history is empty"), "{out}");
    let (_, told) = program.expect(2, &["lab", "history", "quickstart"]);
    assert!(told.contains("has no run of \"quickstart\"; it is empty"), "{told}");
    let all = records();
    let mut args = vec!["lab", "history", "--page", "history.html"];
    args.extend(all.iter().map(|path| path.to_str().unwrap()));
    std::fs::write(program.path("bad.json"), "{").unwrap();
    args.push("bad.json");
    let (out, _) = program.expect(0, &args);
    assert!(out.contains("bad.json is skipped") && out.contains("Welch"), "{out}");
    let page = std::fs::read_to_string(program.path("history.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg"));
    program.expect(2, &["lab", "history", "bad.json"]);
    program.expect(2, &["lab", "history", "--page", "/no/such/folder/x.html", all[0].to_str().unwrap()]);
}

mod external {
    use super::*;
    use crate::support::text;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// The figures of the history and its test of a difference, computed again by a reader that shares no code.
    // promise 40
    #[test]
    fn an_independent_reader_finds_the_same_figures() {
        let name = "an_independent_reader_finds_the_same_figures";
        if Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
            let program = Program::new("independent");
            // The same plan on another day: halves of a record are two runs that are compared.
            let whole = std::fs::read(recorded("quickstart-40-rounds.json")).unwrap();
            let mut files = records();
            for (at, (from, to)) in [(0, 20), (20, 40)].into_iter().enumerate() {
                let mut half = commensal_lab::record::Run::from_json(&whole).unwrap();
                half.blocks.retain(|block| (from..to).contains(&block.round));
                half.blocks.iter_mut().for_each(|block| block.round -= from);
                half.started = format!("2030-01-0{}T00:00:00Z", at + 1);
                let file = program.path(&format!("half-{at}.json"));
                std::fs::write(&file, half.to_json().unwrap()).unwrap();
                files.push(file);
            }
            let mut args = vec!["lab", "history", "--json"];
            args.extend(files.iter().map(|path| path.to_str().unwrap()));
            let (json, _) = program.expect(0, &args);
            let reader = "tests/it/history/independent.py";
            let mut python = Command::new("python3")
                .arg(reader)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            python.stdin.take().unwrap().write_all(json.as_bytes()).unwrap();
            let output = python.wait_with_output().unwrap();
            let said = text(&output.stdout);
            assert!(output.status.success(), "{said}");
            let numbers: Vec<u32> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            assert!(numbers[0] >= 60 && numbers[1] >= 3, "{said}");
            println!("{name}: {said}");
        } else {
            println!("skipped: {name}: no python3; apt-get install python3-minimal");
        }
    }
}
