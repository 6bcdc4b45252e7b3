//! Reports of the recorded runs: as files, and as pages in a browser at the widths of a desk and of a phone, light and dark.

mod browser;

use crate::support::Program;
use browser::Browser;
use commensal_lab::analysis::conclude;
use commensal_lab::record::{Arm, Blamed, Block, Delays, Run, Tick, WaitByKind};
use commensal_lab::report;
use std::path::PathBuf;

const CHARTS: [&str; 5] = ["ratios", "spectrum", "timeline", "cpu", "waits"];

fn recorded(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/measurements")).join(name)
}

fn read(name: &str) -> Run {
    let mut run = Run::from_json(&std::fs::read(recorded(name)).unwrap()).unwrap();
    conclude(&mut run);
    run
}

/// A run with everything that a record can hold, and with names that are too long and not meant well.
fn rich() -> Run {
    let mut run = read("quickstart-6-rounds.json");
    for extra in ["isolated:quota-of-half-the-machine & <b>more</b>", "isolated:bvt"] {
        let arm = Arm { name: extra.into(), ..run.arms[3].clone() };
        let blocks: Vec<Block> = run.blocks_of("isolated").cloned().collect();
        run.blocks.extend(blocks.into_iter().map(|block| Block { arm: extra.into(), ..block }));
        run.arms.push(arm);
    }
    run.blocks.sort_by_key(|block| block.round);
    let wait_s =
        WaitByKind { offline: 0.9, peers: 0.1, other: 0.05, kernel: 0.02, nobody: 0.01, interrupts: 0.005 };
    for (i, block) in run.blocks.iter_mut().enumerate() {
        block.at_s = Some(i as f64 * 6.5);
        let preemption = Delays { count: 10, p50_us: Some(20.0), p99_us: Some(90.0) };
        block.blame =
            Some(Blamed { run_s: 1.5, wait_s, preemption, wake_up: Delays::default(), missed_share: 0.0 });
        let tick = |second: u32| Tick {
            t_s: f64::from(second),
            qps: Some(2_000.0 + f64::from(second * 37 % 11)),
            p99_us: Some(700.0 + f64::from(second * 173 % 400)),
            ..Tick::default()
        };
        block.series = (1..=5).map(tick).collect();
        block.notes = vec!["a note of one block".into()];
    }
    run.experiment = "a name that is long enough to be cut somewhere & holds <tags>".repeat(3);
    run.caveats = vec!["closed loop: latencies understate stalls".into()];
    run.source = Some("[experiment]\nname = \"x\"\n".into());
    run.commands =
        vec!["/usr/bin/a-service --with-an-option-that-is-very-long=".to_owned() + &"x".repeat(300)];
    conclude(&mut run);
    run
}

// promise 49
#[test]
fn pages_are_whole_at_every_width_and_in_both_schemes() {
    let name = "pages_are_whole_at_every_width_and_in_both_schemes";
    let Some(mut browser) = Browser::start(name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let bare = {
        let mut run = read("quickstart-6-rounds.json");
        for block in &mut run.blocks {
            (block.histograms.latency, block.load.achieved_per_s, block.cpu) =
                (None, None, Default::default());
        }
        conclude(&mut run);
        run
    };
    let invalid = {
        let mut run = read("quickstart-40-rounds.json");
        for block in run.blocks.iter_mut().filter(|block| block.arm == "baseline2") {
            block.load.achieved_per_s = block.load.achieved_per_s.map(|per_s| per_s * 0.7);
        }
        conclude(&mut run);
        run
    };
    let runs = [
        ("forty", read("quickstart-40-rounds.json"), 4),
        ("rich", rich(), 5),
        ("windows", read("quickstart.json"), 5),
        ("arms", read("../results/2026-11-24-http-vs-stress-ng.json"), 5),
        ("bare", bare, 0),
        ("invalid", invalid, 4),
    ];
    for (name, run, pictures) in &runs {
        let file = folder.path().join(format!("{name}.html"));
        std::fs::write(&file, report::html(run)).unwrap();
        let mut wide = Vec::new();
        for (width, scheme) in
            [(1440, "light"), (1440, "dark"), (768, "light"), (360, "light"), (360, "dark")]
        {
            browser.emulate(width, scheme);
            browser.open(&file);
            browser.check(&format!("{name} {width} {scheme}"), *pictures, Some(scheme));
            let seen = browser.figures();
            if width == 1440 {
                wide = seen;
            } else {
                assert_eq!(seen, wide, "{name} {width}: not the figures of the wide page");
            }
            if *pictures > 0 {
                let told = browser.told_on_touch();
                assert!(told.starts_with("visible ") && told.len() > 15, "{name} {width}: {told}");
            }
        }
    }
    browser.emulate(1280, "light");
    for chart in report::charts(&runs[1].1) {
        let file = folder.path().join(format!("{}.svg", chart.name));
        std::fs::write(&file, &chart.svg).unwrap();
        browser.open(&file);
        browser.check(chart.name, 1, None);
    }
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
    assert!(told.contains("waits.svg: only words: No block was judged"), "{told}");
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
