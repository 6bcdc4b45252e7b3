//! Pages and pictures of recorded runs in a browser, at the widths of a desk and of a phone, light and dark.

mod browser;

use browser::Browser;
use commensal_lab::analysis::conclude;
use commensal_lab::record::{Arm, Blamed, Block, Delays, Run, Tick, WaitByKind};
use commensal_lab::report;
use std::path::Path;

/// Reads a record; the path is relative to the top of the tree.
fn read(path: &str) -> Run {
    let file = Path::new("../..").join(path);
    let mut run = Run::from_json(&std::fs::read(file).unwrap()).unwrap();
    conclude(&mut run);
    run
}

/// A run with everything that a record can hold, and with names that are too long and not meant well.
fn rich() -> Run {
    let mut run = read("fixtures/runs/quickstart-6-rounds.json");
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
        block.blame = Some(Blamed {
            run_s: 1.5,
            wait_s,
            preemption,
            wake_up: Delays::default(),
            missed_share: 0.0,
            hidden_s: None,
        });
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

// promise 40
#[test]
fn pages_are_whole_at_every_width_and_in_both_schemes() {
    let name = "pages_are_whole_at_every_width_and_in_both_schemes";
    let Some(mut browser) = Browser::start(name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let bare = {
        let mut run = read("fixtures/runs/quickstart-6-rounds.json");
        for block in &mut run.blocks {
            (block.histograms.latency, block.load.achieved_per_s, block.cpu) =
                (None, None, Default::default());
        }
        conclude(&mut run);
        run
    };
    let invalid = {
        let mut run = read("fixtures/runs/quickstart-40-rounds.json");
        for block in run.blocks.iter_mut().filter(|block| block.arm == "baseline2") {
            block.load.achieved_per_s = block.load.achieved_per_s.map(|per_s| per_s * 0.7);
        }
        conclude(&mut run);
        run
    };
    let runs = [
        ("forty", read("fixtures/runs/quickstart-40-rounds.json"), 4),
        ("rich", rich(), 5),
        ("windows", read("docs/measurements/quickstart.json"), 5),
        ("arms", read("docs/results/2026-11-24-http-vs-stress-ng.json"), 5),
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
