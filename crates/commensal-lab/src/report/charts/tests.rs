//! Tests that every chart has marks if there is data, and a text if there is no data.

use super::*;
use crate::analysis::conclude;
use crate::fixture;
use crate::record::{Blamed, Delays, Tick, WaitByKind};

fn with_waits() -> Run {
    let mut run = fixture::small_run();
    for block in &mut run.blocks {
        let wait_s = WaitByKind { offline: 0.3, peers: 0.1, ..WaitByKind::default() };
        let (preemption, wake_up) = (Delays::default(), Delays::default());
        block.blame =
            Some(Blamed { run_s: 6.0, wait_s, preemption, wake_up, missed_share: 0.0, hidden_s: None });
    }
    conclude(&mut run);
    run
}

fn marks(svg: &str) -> usize {
    svg.matches("class=\"d ").count()
}

#[test]
fn every_chart_of_a_small_run_has_marks() {
    let run = with_waits();
    let all = charts(&run);
    assert_eq!(
        all.iter().map(|chart| chart.name).collect::<Vec<_>>(),
        ["ratios", "spectrum", "timeline", "cpu", "waits"]
    );
    for chart in &all {
        assert_eq!(chart.missing, None, "{}", chart.name);
        assert!(marks(&chart.svg) > 0, "{}: {}", chart.name, chart.svg);
        assert!(chart.svg.starts_with("<svg xmlns=\"") && chart.svg.contains("<title id"), "{}", chart.svg);
        assert!(!chart.svg.contains("var("), "{}", chart.name);
    }
    // One mark for each of three gates, three arms and six rounds.
    assert_eq!(marks(&all[0].svg), 54);
    assert_eq!(marks(&all[1].svg), 4);
    assert_eq!(all, charts(&run));
}

#[test]
fn both_widths_show_the_same_data() {
    let run = with_waits();
    let seen = DecodedRun::of(&run);
    for kind in KINDS {
        let (wide, narrow, caption) = kind.embedded(&seen).unwrap();
        assert_eq!(marks(&wide), marks(&narrow), "{}", kind.name);
        assert!(!caption.is_empty() && wide.contains("<desc"), "{}", kind.name);
        assert!(wide.contains("role=\"img\"") && wide.contains(&format!("id=\"{}-w-t\"", kind.name)));
    }
}

#[test]
fn seconds_take_the_place_of_blocks() {
    let mut run = with_waits();
    for (i, block) in run.blocks.iter_mut().enumerate() {
        block.at_s = Some(25.0 * i as f64);
        let tick = |t_s| Tick { t_s, qps: Some(400.0), p99_us: Some(900.0 * t_s), ..Tick::default() };
        block.series = (1..=20).map(|second| tick(f64::from(second))).collect();
    }
    let svg = &charts(&run)[2].svg;
    assert!(svg.matches("<polyline class=\"d curve").count() >= run.blocks.len(), "{svg}");
    assert!(svg.contains(" min</text>"), "{svg}");
}

#[test]
fn a_run_without_data_has_words() {
    let mut run = with_waits();
    run.blocks.retain(|block| block.round == 0);
    for block in &mut run.blocks {
        (block.histograms.latency, block.load.achieved_per_s, block.blame) = (None, None, None);
        block.cpu = crate::record::CpuUse::default();
    }
    conclude(&mut run);
    for chart in charts(&run) {
        let why = chart.missing.unwrap();
        assert!(why.len() > 30 && marks(&chart.svg) == 0, "{}: {why}", chart.name);
        assert!(chart.svg.contains(&escape(why.split_whitespace().next().unwrap())));
    }
}

#[test]
fn one_round_and_wild_values_are_drawn() {
    let mut run = fixture::bare_run(1);
    for (i, block) in run.blocks.iter_mut().enumerate() {
        block.load.achieved_per_s = Some([f64::NAN, 1e-9, 1e12, f64::INFINITY][i % 4]);
        block.cpu.online = Some([f64::NAN, -1.0, 1e9, 0.0][i % 4]);
        block.at_s = Some([f64::NAN, 0.0, 0.0, 1e300][i % 4]);
    }
    conclude(&mut run);
    for chart in charts(&run) {
        assert!(!chart.svg.contains("NaN") && !chart.svg.contains("inf"), "{}", chart.svg);
    }
}

#[test]
fn colours_of_arms_stay_in_the_palette() {
    let mut run = fixture::small_run();
    let isolated = run.arms[3].clone();
    run.arms.extend((0..6).map(|i| crate::record::Arm { name: format!("i{i}"), ..isolated.clone() }));
    let seen = DecodedRun::of(&run);
    let colours: Vec<usize> = run.arms.iter().map(|arm| seen.colour(&arm.name)).collect();
    assert_eq!(colours, [0, 1, 2, 3, 4, 5, 6, 3, 4, 5]);
}
