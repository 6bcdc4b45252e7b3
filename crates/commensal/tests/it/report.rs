//! `lab report` and `lab diff` of recorded runs.

use crate::support::Program;
use commensal_lab::analysis::conclude;
use commensal_lab::record::Run;
use std::path::PathBuf;

const CHARTS: [&str; 5] = ["ratios", "spectrum", "timeline", "cpu", "waits"];

fn recorded(name: &str) -> PathBuf {
    std::env::current_dir().unwrap().join("../../fixtures/runs").join(name)
}

fn read(name: &str) -> Run {
    let mut run = Run::from_json(&std::fs::read(recorded(name)).unwrap()).unwrap();
    conclude(&mut run);
    run
}

#[test]
fn a_recorded_run_in_every_form() {
    let program = Program::new("report");
    let file = recorded("quickstart-40-rounds.json");
    let file = file.to_str().unwrap();
    let (page, _) = program.expect(0, &["lab", "report", file, "--format", "html"]);
    assert!(page.starts_with("<!doctype html>") && page.len() < 600_000);
    program.expect(0, &["lab", "report", file, "--format", "html", "-o", "page.html"]);
    assert_eq!(std::fs::read_to_string(program.path("page.html")).unwrap(), page);
    let (markdown, _) = program.expect(0, &["lab", "report", file, "--format", "markdown", "--out", "-"]);
    assert!(markdown.lines().count() <= 40, "{markdown}");
    let (junit, _) = program.expect(0, &["lab", "report", file, "--format", "junit"]);
    assert!(junit.contains("tests=\"3\" failures=\"0\" errors=\"0\" skipped=\"0\""), "{junit}");
    // Identical arms that are not.
    let mut invalid = read("quickstart-6-rounds.json");
    for block in invalid.blocks.iter_mut().filter(|block| block.arm == "baseline2") {
        block.load.achieved_per_s = block.load.achieved_per_s.map(|per_s| per_s * 0.7);
    }
    std::fs::write(program.path("invalid.json"), invalid.to_json().unwrap()).unwrap();
    let args = ["lab", "report", "invalid.json", "--format", "junit", "--strict"];
    let (junit, _) = program.expect(0, &args);
    assert!(junit.contains("failures=\"3\""), "{junit}");
    // Who gates on the verdict asks for it.
    let (again, _) = program.expect(4, &[&args[..], &["--exit-verdict"]].concat());
    assert_eq!(again, junit);
}

#[test]
fn charts_become_files() {
    let program = Program::new("charts");
    let file = recorded("quickstart-6-rounds.json");
    let file = file.to_str().unwrap();
    let (_, told) = program.expect(0, &["lab", "report", file, "--format", "svg", "-o", "charts"]);
    assert!(told.contains("waits.svg: only words: No block has measurements of the wait probe"), "{told}");
    for chart in CHARTS {
        let svg = std::fs::read_to_string(program.path("charts").join(format!("{chart}.svg"))).unwrap();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{chart}");
    }
    let (svg, _) = program.expect(0, &["lab", "report", file, "--format", "svg", "--chart", "cpu"]);
    assert_eq!(svg, std::fs::read_to_string(program.path("charts/cpu.svg")).unwrap());
    let (_, told) = program.expect(2, &["lab", "report", file, "--format", "svg"]);
    assert!(told.contains("name a folder with --out"), "{told}");
    let (_, told) = program.expect(2, &["lab", "report", file, "--format", "svg", "--chart", "x"]);
    assert!(told.contains("there is no chart \"x\"; there are ratios"), "{told}");
    std::fs::write(program.path("no-folder"), "").unwrap();
    program.expect(2, &["lab", "report", file, "--format", "svg", "-o", "no-folder"]);
}

#[test]
fn two_records_are_compared() {
    let program = Program::new("diff");
    let (a, b) = (recorded("quickstart-6-rounds.json"), recorded("quickstart-40-rounds.json"));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    let (text, _) = program.expect(0, &["lab", "diff", a, b]);
    assert!(text.starts_with("A PASS, B PASS\n") && text.contains("isolated P99"), "{text}");
    let mut other = read("quickstart-40-rounds.json");
    (other.machine.fingerprint, other.machine.kernel) = ("sha256:other".into(), "6.18.99".into());
    std::fs::write(program.path("kernel.json"), other.to_json().unwrap()).unwrap();
    let (told, _) = program.expect(0, &["lab", "diff", a, "kernel.json"]);
    assert!(told.contains("the kernel is ") && told.contains("6.18.99"), "{told}");
    other.machine.cpu = "another one".into();
    std::fs::write(program.path("other.json"), other.to_json().unwrap()).unwrap();
    let (_, told) = program.expect(2, &["lab", "diff", a, "other.json"]);
    assert!(told.contains("different machines") && told.contains("--force"), "{told}");
    let (json, _) = program.expect(0, &["lab", "diff", a, "other.json", "--force", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["verdicts"][1], "PASS");
    assert!(json["rows"].as_array().unwrap().iter().any(|row| row["metric"] == "p99"), "{json}");
}
