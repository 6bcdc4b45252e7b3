//! Tests of the documents' values, and of a run's tables in each layout. The expected values were typed in from an
//! independent computation.

#![allow(clippy::disallowed_methods, reason = "tests read and rewrite their golden page")]

use super::*;
use crate::analysis::conclude;
use crate::fixture;
use crate::format::delta_pct;
use crate::record::{Metric, Role};
use Metric::{P50, P75, P90, P95, P99, Qps};

/// The page of documents is generated: `UPDATE=1 cargo test -p commensal-lab style` rewrites the page.
const PAGE: &str = "../../docs/measurements/documents.md";

fn check(style: Style, arm: &str, expect: &[(Metric, &str)]) {
    let figures = document(style).unwrap().figures();
    let arm = figures.arms.iter().find(|a| a.name == arm).unwrap();
    let got: Vec<(Metric, &str)> =
        arm.changes.iter().map(|(metric, text)| (*metric, text.as_str())).collect();
    assert_eq!(got, expect, "{style} {}", arm.name);
}

// promise 40
#[test]
fn the_right_columns_of_all_documents() {
    let stressed =
        [(Qps, "−50.01 %"), (P50, "+73.33 %"), (P90, "+96.39 %"), (P95, "+80.23 %"), (P99, "+78.00 %")];
    check(Style::Openeuler, "ClickHouse + stress, no isolation", &stressed);
    let isolated = [(Qps, "−0.15 %"), (P50, "+0.17 %"), (P90, "+0.88 %"), (P95, "−0.57 %"), (P99, "+1.59 %")];
    check(Style::Openeuler, "ClickHouse + stress, isolated", &isolated);
    let colocated = [(P50, "−0.04 %"), (P90, "−0.12 %"), (P95, "−0.04 %"), (P99, "0.00 %")];
    check(Style::Alinux, "colocated", &colocated);
    let control = [(P50, "+9.87 %"), (P75, "+20.19 %"), (P90, "+29.50 %"), (P99, "+140.79 %")];
    check(Style::Plugsched, "control", &control);
    let experiment = [(P50, "+0.45 %"), (P75, "+4.97 %"), (P90, "+13.51 %"), (P99, "+24.65 %")];
    check(Style::Plugsched, "experiment", &experiment);
    let figures = document(Style::Plugsched).unwrap().figures();
    let cpu: Vec<Option<&str>> = figures.arms.iter().map(|arm| arm.cpu_change.as_deref()).collect();
    assert_eq!(cpu, [None, Some("+46.55 pp"), Some("+24.00 pp")]);
}

/// The numbers in the footnotes can be computed from the documents' values.
// promise 40
#[test]
fn footnotes_recompute() {
    let alinux = document(Style::Alinux).unwrap();
    let figures = alinux.figures();
    let [colocated, base] = &figures.arms[..] else { panic!("two arms") };
    let four = |metric: Metric| format!("{:.4}", delta_pct(colocated.values[&metric], base.values[&metric]));
    assert_eq!([P50, P90, P95, P99].map(four), ["-0.0447", "-0.1244", "-0.0421", "0.0000"]);
    let mean = |arm: &ArmFigures| arm.sum_s.unwrap() / arm.count.unwrap() as f64;
    assert_eq!(format!("{:.6} {:.6}", mean(base), mean(colocated)), "0.001564 0.001566");
    assert_eq!(format!("{:.3}", delta_pct(mean(colocated), mean(base))), "0.109");
    assert!((8.703_053_113 - 7.139_152_625 - base.sum_s.unwrap()).abs() < 1e-12);
    for (given, want) in [(1.65, "133.7"), (1.75, "147.9")] {
        assert_eq!(format!("{:.1}", delta_pct(given, 0.706)), want);
    }
    assert_eq!(format!("{:.1}", (49.15 - 25.15) / (71.7 - 25.15) * 100.0), "51.6");
    assert_eq!(format!("{:.1}", 10.0 / 1.885_341), "5.3");
}

// promise 40
#[test]
fn the_page_is_fresh() {
    let page = page();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let stored = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert_eq!(stored, page, "UPDATE=1 cargo test -p commensal-lab style rewrites it");
}

#[test]
fn names_lead_to_styles_and_back() {
    for (name, style) in Style::NAMES {
        assert_eq!((name.parse(), style.to_string().as_str()), (Ok(style), name));
        assert_eq!(document(style).is_some(), Style::DOCUMENTS.contains(&style));
    }
    assert!("arenadata".parse::<Style>().unwrap_err().contains("openeuler, alinux"));
}

fn concluded(change: impl Fn(&mut Run)) -> Run {
    let mut run = fixture::small_run();
    change(&mut run);
    conclude(&mut run);
    run
}

#[test]
fn a_run_in_the_openeuler_layout() {
    let text = styled(&concluded(|_| {}), Style::Openeuler);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("PASS: with isolation your service's median is at most"), "{text}");
    assert_eq!(lines[2], "| deployment | QPS | P50, s | P90, s | P99, s | P95, s |");
    assert!(lines[4].starts_with("| baseline (online alone) | 400.000 | 0.000"), "{text}");
    assert!(lines[5].starts_with("| contended (with offline work, no isolation) | 266.700 (−33"), "{text}");
    assert!(
        lines[6].starts_with("| isolated (with offline work, cpu.idle) | ")
            && lines[6].ends_with("| – | – |")
    );
    assert!(text.contains(
        "medians over valid blocks (baseline 6, baseline2 6, contended 6 and isolated 6) of 6 rounds"
    ));
    assert!(text.contains("- Noise floor, from two identical arms: QPS "), "{text}");
    assert!(text.contains("mixed two denominators"), "{text}");
}

#[test]
fn a_run_in_the_plugsched_layout() {
    let text = styled(&concluded(|_| {}), Style::Plugsched);
    assert!(text.contains("| ms | baseline | control | experiment |"), "{text}");
    let row = text.lines().find(|line| line.starts_with("| RT-P50 |")).unwrap();
    assert!(row.contains("| 0.50") && row.contains("(+50"), "{text}");
    assert!(text.contains("| RT-P99 | – | – | – |"), "{text}");
    let cpu = text.lines().find(|line| line.starts_with("| CPU% |")).unwrap();
    assert!(cpu.contains("| 17.5 % | 92.5 % (+75.0 pp)"), "{cpu}");
    let crashed = concluded(|run| {
        run.blocks.iter_mut().filter(|b| b.arm == "isolated").for_each(|b| b.online_crashed = true);
    });
    let text = styled(&crashed, Style::Plugsched);
    assert!(text.starts_with("BROKEN: ") && text.matches("| x |").count() == 4, "{text}");
}

#[test]
fn a_run_in_the_alinux_layout() {
    let text = styled(&concluded(|_| {}), Style::Alinux);
    let at = |needle: &str| text.find(needle).unwrap_or_else(|| panic!("{needle} in {text}"));
    let order = [
        at("{arm=\"contended\",quantile=\"0.5\"} 0.0007"),
        at("{arm=\"isolated\",quantile=\"0.9\"}"),
        at("{arm=\"baseline\",quantile=\"0.95\"} NaN"),
        at("http_response_time_count{arm=\"baseline\"} 6000"),
        at("interference P95: contended –, isolated –"),
    ];
    assert!(order.is_sorted(), "{text}");
    assert!(text.contains("http_response_time_sum{arm=\"baseline\"} 3."), "{text}");
    let alone = concluded(|run| {
        run.arms.retain(|arm| arm.role != Role::Contended);
        run.blocks.retain(|block| block.arm != "contended");
    });
    assert!(styled(&alone, Style::Alinux).contains("does not show the effect of a policy"));
}

#[test]
fn the_default_is_the_report_and_foreign_names_stay_in_their_cells() {
    let run = concluded(|run| {
        run.arms[3].name = "a|b\"".to_owned();
        for block in run.blocks.iter_mut().filter(|block| block.arm == "isolated") {
            block.arm = "a|b\"".to_owned();
        }
    });
    assert_eq!(styled(&run, Style::Default), markdown(&run));
    assert!(styled(&run, Style::Openeuler).contains("| a\\|b\" ("));
    assert!(styled(&run, Style::Alinux).contains("arm=\"a|b\\\"\""));
    let empty = Figures::of_run(&Run::default(), None);
    for style in Style::DOCUMENTS {
        assert!(!layout::table(style, &empty).is_empty());
    }
}
