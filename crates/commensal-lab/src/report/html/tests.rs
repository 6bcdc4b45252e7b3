//! Tests of the page without a browser: required content, forbidden content, and size.

use super::html;
use crate::analysis::conclude;
use crate::fixture;
use crate::record::{Blamed, Block, Delays, Run, Tick, WaitByKind};

fn page(change: impl Fn(&mut Run)) -> String {
    let mut run = fixture::small_run();
    change(&mut run);
    conclude(&mut run);
    html(&run)
}

/// Returns a judged run with 40 rounds, six arms, and values for each second.
fn large() -> Run {
    let small = fixture::small_run();
    let mut run = fixture::bare_run(40);
    for extra in ["isolated:quota", "isolated:bvt"] {
        let arm = crate::record::Arm { name: extra.into(), ..run.arms[3].clone() };
        let blocks: Vec<Block> = run.blocks_of("isolated").cloned().collect();
        run.blocks.extend(blocks.into_iter().map(|block| Block { arm: extra.into(), ..block }));
        run.arms.push(arm);
    }
    run.blocks.sort_by_key(|block| block.round);
    for (i, block) in run.blocks.iter_mut().enumerate() {
        block.histograms.latency = small.blocks[i % small.blocks.len()].histograms.latency.clone();
        block.at_s = Some(i as f64 * 25.0);
        block.blame = Some(blamed());
        let tick = |t: u32| Tick {
            t_s: f64::from(t + 1),
            qps: Some(400.0 + f64::from(t)),
            p50_us: Some(500.0),
            p99_us: Some(900.0 + 13.7 * f64::from(t * t % 37)),
            ..Tick::default()
        };
        block.series = (0..20).map(tick).collect();
        block.notes = vec!["clock step of 3 ms removed".into()];
    }
    conclude(&mut run);
    run
}

fn blamed() -> Blamed {
    let wait_s =
        WaitByKind { offline: 0.4, peers: 0.1, other: 0.05, kernel: 0.02, nobody: 0.01, interrupts: 0.005 };
    Blamed {
        run_s: 6.0,
        wait_s,
        preemption: Delays::default(),
        wake_up: Delays::default(),
        missed_share: 0.0,
        hidden_s: None,
    }
}

#[test]
fn the_verdict_comes_first_and_the_raw_figures_last() {
    let text = page(|_| {});
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what}"));
    let order = [
        "<h1 class=\"PASS\">PASS</h1>",
        "With isolation your service",
        "<table class=\"main\" role",
        "id=\"ratios\"",
        "id=\"spectrum\"",
        "id=\"timeline\"",
        "id=\"cpu\"",
        "id=\"waits\"",
        "id=\"environment\"",
        "id=\"words\"",
        "id=\"blocks\"",
    ];
    assert!(order.map(at).is_sorted(), "{:?}", order.map(at));
    assert!(text.contains("<td>holds</td>"));
}

#[test]
fn nothing_is_loaded_and_nothing_runs() {
    let text = html(&large());
    for foreign in ["http:", "https:", "<script", "@import", "url(", "src="] {
        assert!(!text.contains(foreign), "{foreign}");
    }
}

#[test]
fn foreign_text_stays_text() {
    let evil = "</title><script>alert(1)</script>\"'&";
    let text = page(|run| {
        run.experiment = evil.into();
        run.started = evil.into();
        run.source = Some(evil.into());
        run.commands = vec![evil.into()];
        run.caveats = vec![evil.into()];
        run.tool.args = vec![evil.into()];
        run.machine.cpu = evil.into();
        run.machine.fingerprint = evil.into();
        run.blocks[0].notes = vec![evil.into()];
        run.blocks[1].valid = false;
        run.blocks[1].invalid_reason = Some(evil.into());
        for block in run.blocks.iter_mut().filter(|block| block.arm == "isolated") {
            block.arm = evil.into();
        }
        run.arms[3].name = evil.into();
        let policy = run.arms[3].policy.as_mut().unwrap();
        policy.weak = Some(evil.into());
        policy.driver = evil.into();
        for one in &mut policy.applied {
            (one.path, one.file, one.want) = (evil.into(), evil.into(), evil.into());
        }
    });
    assert!(!text.contains("<script") && !text.contains("\"'&"), "{text}");
    assert!(text.matches("&lt;script&gt;").count() > 20);
}

#[test]
fn missing_data_is_told_in_words() {
    let text = page(|run| {
        for block in &mut run.blocks {
            *block = Block {
                round: block.round,
                pos: block.pos,
                arm: block.arm.clone(),
                valid: true,
                ..Block::default()
            };
        }
    });
    assert!(!text.contains("<svg"), "{text}");
    assert_eq!(text.matches("<p class=\"absent\">").count(), 5, "{text}");
    for why in [
        "there are no pairs to show",
        "could not read CPU accounting",
        "No block has measurements of",
        "nothing to show over time",
    ] {
        assert!(text.contains(why), "{why}");
    }
}

#[test]
fn forty_rounds_of_six_arms_are_small_enough_and_the_same_twice() {
    let run = large();
    let text = html(&run);
    assert!(text.len() < 800_000, "{} bytes", text.len());
    assert_eq!(text, html(&run));
    assert!(text.contains("and 220 more in the record"));
    let again = Run::from_json(run.to_json().unwrap().as_bytes()).unwrap();
    assert_eq!(text, html(&again));
}

#[test]
fn no_figure_is_not_a_number() {
    let text = html(&large());
    for wrong in ["NaN", "inf\"", ">inf", "null"] {
        assert!(!text.contains(wrong), "{wrong}");
    }
}

/// Every record that can be read can also be rendered.
#[test]
fn mutated_records_are_drawn_or_refused() {
    let mut run = fixture::small_run();
    conclude(&mut run);
    for block in &mut run.blocks {
        (block.histograms.latency, block.at_s, block.blame) = (None, Some(1.0), Some(blamed()));
        block.percentiles_us = [(crate::record::Metric::P50, 500.0)].into();
        block.series = vec![Tick { t_s: 1.0, qps: Some(3.0), ..Tick::default() }; 2];
    }
    let text = run.to_json().unwrap();
    let mut rng = crate::rng::Rng::new(11);
    let mut survived = 0;
    for _ in 0..200 {
        let mut wild = text.clone().into_bytes();
        for _ in 0..=rng.below(2) {
            let at = rng.below(wild.len() as u64) as usize;
            wild[at] = b"0123456789-eE.\"{}[],:ntf\xff"[rng.below(25) as usize];
        }
        if let Ok(mut wild) = Run::from_json(&wild) {
            conclude(&mut wild);
            let text = html(&wild);
            assert!(text.ends_with("</html>\n") && !text.contains("NaN"));
            assert!(crate::report::junit(&wild, true).ends_with("</testsuites>\n"));
            assert!(!crate::report::compare(&run, &wild).text().is_empty());
            survived += 1;
        }
    }
    assert!(survived > 15, "only {survived} mutants loaded");
}

#[test]
fn extreme_numbers_are_drawn() {
    let text = page(|run| {
        for (i, block) in run.blocks.iter_mut().enumerate() {
            (block.load.offered_requests, block.measure_s, block.at_s) = (u64::MAX, f64::MAX, Some(f64::MAX));
            block.round = if block.round == 5 { u32::MAX } else { block.round };
            (block.load.achieved_per_s, block.cpu.online) = (Some([f64::MAX, 1e-300][i % 2]), Some(f64::MAX));
        }
    });
    assert!(text.contains("id=\"ratios\"") && !text.contains("NaN"));
}

#[test]
fn every_word_leads_to_its_meaning_and_every_meaning_is_led_to() {
    for text in [html(&large()), page(|_| {}), page(|run| run.blocks.truncate(4))] {
        let after = |mark: &str| -> std::collections::BTreeSet<String> {
            text.split(mark).skip(1).filter_map(|rest| Some(rest.split('"').next()?.to_owned())).collect()
        };
        let (links, targets) = (after("href=\"#word-"), after("<dt id=\"word-"));
        assert!(links.len() > 8, "{links:?}");
        assert_eq!(links, targets);
    }
}
