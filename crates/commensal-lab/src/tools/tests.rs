//! Tests the parsers with output of the real programs (`fixtures/tools`), with outputs that contain a program's known
//! errors, and with invalid input.

use super::work::{WorkKind, WorkReader};
use super::*;
use crate::record::Metric;
use crate::rng::Rng;

macro_rules! captured {
    ($name:literal) => {
        include_str!(concat!("../../../../fixtures/tools/", $name))
    };
}

const CAPTURED: [(Tool, &str); 13] = [
    (Tool::Wrk, captured!("wrk.txt")),
    (Tool::Wrk, captured!("wrk-errors.txt")),
    (Tool::Wrk, captured!("wrk-no-latency.txt")),
    (Tool::ClickhouseBenchmark, captured!("clickhouse.json")),
    (Tool::ClickhouseBenchmark, captured!("clickhouse.txt")),
    (Tool::ClickhouseBenchmark, captured!("clickhouse-intervals.txt")),
    (Tool::Pgbench, captured!("pgbench.txt")),
    (Tool::Pgbench, captured!("pgbench-log.txt")),
    (Tool::Pgbench, captured!("pgbench-rate.txt")),
    (Tool::RedisBenchmark, captured!("redis.txt")),
    (Tool::Fio, captured!("fio-lat.json")),
    (Tool::Fio, captured!("fio-clat.json")),
    (Tool::Fio, captured!("fio-plain.json")),
];

/// Parses a text and checks the result. Percentiles are in the order of `Metric`, in microseconds rounded to 0.1.
fn check(tool: Tool, text: &str, requests: u64, per_s: f64, expect: &[(Metric, f64)]) -> Reading {
    let reading = parse(tool, text, None).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(reading.requests, requests, "{tool}");
    assert!((reading.per_s - per_s).abs() < 0.01, "{tool}: {}", reading.per_s);
    let got: Vec<(Metric, f64)> =
        reading.percentiles_us.iter().map(|(metric, us)| (*metric, (us * 10.0).round() / 10.0)).collect();
    assert_eq!(got, expect, "{tool}");
    reading
}

fn refused(tool: Tool, text: &str, expect: &str) {
    let error = parse(tool, text, Some(4)).expect_err(text).to_string();
    assert!(error.contains(expect), "{error}\nwants {expect}");
}

fn has_note(reading: &Reading, words: &str) -> bool {
    reading.notes.iter().any(|note| note.contains(words))
}

use Metric::{P50, P75, P90, P95, P99, P999};

#[test]
fn wrk() {
    let percentiles = [(P50, 164.0), (P75, 835.0), (P90, 2830.0), (P99, 119_060.0)];
    let reading = check(Tool::Wrk, captured!("wrk.txt"), 57_527, 27_713.68, &percentiles);
    assert_eq!((reading.mean_us, reading.seconds, reading.errors), (Some(4370.0), Some(2.08), 0));
    assert!(has_note(&reading, "closed loop") && has_note(&reading, "adds samples"), "{:?}", reading.notes);
    assert!(
        has_note(
            &reading,
            "with 8 requests in flight at 27714 per second, a request takes 289 µs, but the mean latency is 4.37 ms"
        ),
        "{:?}",
        reading.notes
    );
    let reading = parse(Tool::Wrk, captured!("wrk-errors.txt"), None).unwrap();
    assert_eq!((reading.requests, reading.errors), (52_715, 52_715));
    let reading = parse(Tool::Wrk, captured!("wrk-no-latency.txt"), None).unwrap();
    assert!(reading.percentiles_us.is_empty() && has_note(&reading, "start it with --latency"));
    refused(Tool::Wrk, captured!("wrk-refused.txt"), "line 1 is \"unable to connect to 127.0.0.1:28080");
    let broken = captured!("wrk.txt").replace("2.83ms", "2.83parsecs");
    refused(Tool::Wrk, &broken, "line 9 is \"90%    2.83parsecs\"");
    let sockets = captured!("wrk.txt")
        .replace("Requests/sec", "  Socket errors: connect 1, read 2, write 0, timeout 4\nRequests/sec");
    assert_eq!(parse(Tool::Wrk, &sockets, None).unwrap().errors, 7);
}

#[test]
fn clickhouse_benchmark() {
    let json = [(P50, 13_318.2), (P90, 19_987.6), (P95, 21_666.6), (P99, 29_925.2), (P999, 42_309.9)];
    let reading = check(Tool::ClickhouseBenchmark, captured!("clickhouse.json"), 584, 290.155, &json);
    assert!(!has_note(&reading, "QPS"), "{:?}", reading.notes);
    let four = parse(Tool::ClickhouseBenchmark, captured!("clickhouse.json"), Some(4)).unwrap();
    assert_eq!(four, reading, "this version divides by real time");
    let text = [(P50, 13_000.0), (P90, 20_000.0), (P95, 22_000.0), (P99, 30_000.0), (P999, 42_000.0)];
    check(Tool::ClickhouseBenchmark, captured!("clickhouse.txt"), 584, 290.155, &text);
    let last = parse(Tool::ClickhouseBenchmark, captured!("clickhouse-intervals.txt"), Some(4)).unwrap();
    assert_eq!((last.requests, last.per_s), (598, 297.178));
    let recent = "localhost:9000, queries: 5947, errors: 3, QPS: 19.821, RPS: 198211.1, MiB/s: 1.5, result RPS: 1.0, \
                  result MiB/s: 1.0.\n\n0.000%\t\t0.401 sec.\t\n50.000%\t\t0.485 sec.\t\n99.000%\t\t0.874 sec.\t\n";
    let reading =
        check(Tool::ClickhouseBenchmark, recent, 5947, 19.821, &[(P50, 485_000.0), (P99, 874_000.0)]);
    assert_eq!(reading.errors, 3);
    let two = recent.replace("0.485 sec.", "0.485 sec.\t\t0.490 sec.");
    refused(Tool::ClickhouseBenchmark, &two, "one server");
}

/// Parses the output that the openEuler document prints: the throughput is in an object named after the server, the
/// percentiles are at the top level.
#[test]
fn the_old_json_divided_by_summed_time_and_is_corrected() {
    let percentiles = "\"query_time_percentiles\": {\"50\": 0.484905256, \"60\": 0.519641313, \"70\": 0.570876148, \
                       \"80\": 0.632544937, \"90\": 0.728295525, \"95\": 0.808700418, \"99\": 0.873945121}";
    let statistics = "\"statistics\": {\"QPS\": 1.8853412284364512}";
    let mixtures = [
        format!("{{\"localhost:9000\": {{{statistics}}}, {percentiles}}}"),
        format!("{{\"localhost:9000\": {{{statistics}, {percentiles}}}}}"),
        format!("{{{statistics}, {percentiles}}}"),
        format!("{{{statistics}, \"localhost:9000\": {{{percentiles}}}}}"),
    ];
    for text in &mixtures {
        let reading = parse(Tool::ClickhouseBenchmark, text, Some(10)).unwrap();
        assert!((reading.per_s - 18.853_412).abs() < 1e-3, "{}", reading.per_s);
        assert_eq!(reading.percentiles_us[&P99].round(), 873_945.0);
        let want = "at QPS 1.89 with 10 queries in flight, a query would take 5.30 s, but the percentiles give a mean of \
                    about 556 ms: the tool divided by the summed time of all queries; QPS was corrected to 18.9 (reported × 10), \
                    which agrees with Little's law within 15 %";
        assert_eq!(reading.notes[0], want);
        let unknown = parse(Tool::ClickhouseBenchmark, text, None).unwrap();
        assert!(unknown.per_s < 1.9 && has_note(&unknown, "equals one query per mean latency"));
        // Neither the printed value nor ten times the printed value obeys Little's law, so the parser corrects nothing.
        let neither = parse(Tool::ClickhouseBenchmark, &text.replace("1.885", "0.085"), Some(10)).unwrap();
        assert!(neither.per_s < 0.1 && has_note(&neither, "no correction is known"), "{:?}", neither.notes);
    }
    refused(
        Tool::ClickhouseBenchmark,
        &mixtures[0].replace("\"50\": 0.48", "\"50\": -0.48"),
        "percentiles as numbers",
    );
    refused(Tool::ClickhouseBenchmark, &mixtures[0][..100], "a whole JSON document");
    let two = format!("{{\"a\": {{{statistics}}}, \"b\": {{{statistics}}}, {percentiles}}}");
    refused(Tool::ClickhouseBenchmark, &two, "\"statistics\" of one server");
}

#[test]
fn pgbench() {
    let reading = check(Tool::Pgbench, captured!("pgbench.txt"), 34_500, 17_445.265, &[]);
    assert_eq!((reading.mean_us, reading.seconds), (Some(229.0), Some(2.0)));
    assert!(has_note(&reading, "only with --log") && !has_note(&reading, "Little"), "{:?}", reading.notes);
    let logged = parse(Tool::Pgbench, captured!("pgbench-log.txt"), None).unwrap();
    assert_eq!((logged.requests, logged.histogram.as_ref().unwrap().len()), (80, 80));
    let both = format!("{}{}", captured!("pgbench-log-summary.txt"), captured!("pgbench-log.txt"));
    let both = parse(Tool::Pgbench, &both, None).unwrap();
    assert_eq!((both.requests, both.per_s, both.mean_us), (80, 3825.188869, Some(523.0)));
    assert_eq!(both.percentiles_us, logged.percentiles_us);
    let rate = parse(Tool::Pgbench, captured!("pgbench-rate.txt"), None).unwrap();
    assert!(has_note(&rate, "scheduled start") && !has_note(&rate, "closed loop"), "{:?}", rate.notes);
    refused(Tool::Pgbench, captured!("pgbench-aggregated.txt"), "--aggregate-interval must not be used");
    refused(Tool::Pgbench, "0 199 2241 0 1175850568\n", "six columns; line 1 is \"0 199 2241 0 1175850568\"");
    let failed = "0 1 failed 0 1499414498 84905\n0 2 22 0 1499414498 85000\n";
    let failed = parse(Tool::Pgbench, failed, None).unwrap();
    assert_eq!((failed.requests, failed.errors), (2, 1));
}

#[test]
fn redis_benchmark() {
    let percentiles = [(P50, 71.0), (P95, 127.0), (P99, 199.0)];
    let reading = check(Tool::RedisBenchmark, captured!("redis.txt"), 0, 61_728.39, &percentiles);
    assert_eq!(reading.mean_us, Some(84.0));
    let over = reading.over(2.0);
    assert_eq!((over.requests, over.seconds), (123_457, Some(2.0)));
    refused(
        Tool::RedisBenchmark,
        captured!("redis-two.txt"),
        "the values of a single test (choose one with -t); line 3",
    );
    refused(Tool::RedisBenchmark, "\"GET\",\"1234.5\"\n", "version 6.2 or later");
}

#[test]
fn fio() {
    let reading = parse(Tool::Fio, captured!("fio-lat.json"), None).unwrap();
    assert_eq!((reading.requests, reading.histogram.as_ref().unwrap().len()), (45_968, 45_968));
    assert!((reading.per_s - (11_528.236 + 11_444.278)).abs() < 0.01, "{}", reading.per_s);
    assert!(!has_note(&reading, "excludes the time to submit"));
    let reading = parse(Tool::Fio, captured!("fio-clat.json"), None).unwrap();
    assert!(has_note(&reading, "excludes the time to submit"), "{:?}", reading.notes);
    assert!(reading.histogram.is_some());
    let reading = parse(Tool::Fio, captured!("fio-plain.json"), None).unwrap();
    assert!(reading.histogram.is_none() && reading.percentiles_us.len() >= 5, "{reading:?}");
    refused(Tool::Fio, &captured!("fio-plain.json").replace("\"total_ios\" : 1", "\"ios\" : 1"), "total_ios");
}

#[test]
fn json_lines() {
    let text = "hello\n{\"latency_us\": 100.9}\n{\"latency_us\": 300, \"error\": true}\n";
    let reading = parse(Tool::JsonLines, text, None).unwrap();
    assert_eq!((reading.requests, reading.errors, reading.per_s), (2, 1, 0.0));
    assert_eq!(reading.over(0.5).per_s, 4.0);
    let summary = "{\"qps\": 400.0, \"p50_us\": 490, \"p99_us\": 1210, \"requests\": 8000, \"seconds\": 20}";
    check(Tool::JsonLines, summary, 8000, 400.0, &[(P50, 490.0), (P99, 1210.0)]);
    let reading =
        parse(Tool::JsonLines, "{\"latency_us\": 100}\n{\"requests\": 1, \"seconds\": 2}", None).unwrap();
    assert_eq!((reading.per_s, reading.seconds), (0.5, Some(2.0)));
    refused(Tool::JsonLines, "{\"latency_us\": -1}", "line 1 is \"{\\\"latency_us\\\": -1}\"");
    refused(Tool::JsonLines, "{\"latency_us\": 1e300}", "a number of microseconds");
    refused(Tool::JsonLines, "{\"latency\": 1}", "latency_us of a request");
    refused(Tool::JsonLines, "{\"latency_us\": NaN}", "a JSON object on one line");
    refused(Tool::JsonLines, "{\"qps\": 5, \"p50_us\": 9, \"p99_us\": 3}", "percentiles in ascending order");
    refused(Tool::JsonLines, "{\"qps\": 1e200}", "numbers in a plausible range");
}

/// The HdrHistogram library writes the log, and the lab's parser reads the log.
#[test]
fn hdr_logs_in_every_unit() {
    use base64::Engine as _;
    use hdrhistogram::serialization::{Serializer, V2DeflateSerializer, V2Serializer};
    let mut ns = hdrhistogram::Histogram::<u64>::new_with_bounds(1, 3_600_000_000_000, 3).unwrap();
    let mut rng = Rng::new(5);
    for _ in 0..20_000 {
        ns.saturating_record(rng.exponential(900_000.0) as u64);
    }
    let coded = |bytes: Vec<u8>| base64::engine::general_purpose::STANDARD.encode(bytes);
    let (mut plain, mut deflated) = (Vec::new(), Vec::new());
    V2Serializer::new().serialize(&ns, &mut plain).unwrap();
    V2DeflateSerializer::new().serialize(&ns, &mut deflated).unwrap();
    let (plain, deflated) = (coded(plain), coded(deflated));
    assert!(plain.starts_with("HISTEw") && deflated.starts_with("HISTFAAA"));
    let log = format!(
        "#[Histogram log format version 1.3]\n\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\
         \"Interval_Compressed_Histogram\"\n0.125,1.000,2.0,{deflated}\nTag=b,1.125,1.000,2.0,{plain}\n"
    );
    let reading = parse(Tool::HdrLog(TimeUnit::Ns), &log, None).unwrap();
    assert_eq!((reading.requests, reading.seconds, reading.per_s), (40_000, Some(2.0), 20_000.0));
    for (metric, us) in &reading.percentiles_us {
        let exact = ns.value_at_quantile(metric.quantile().unwrap()) as f64 / 1e3;
        assert!((us - exact).abs() <= 1.0 + exact * 2e-3, "{metric:?}: {us} {exact}");
    }
    let as_us = parse(Tool::HdrLog(TimeUnit::Us), &log, None).unwrap();
    let ratio = as_us.percentiles_us[&P50] / reading.percentiles_us[&P50];
    assert!((ratio - 1000.0).abs() < 5.0, "{ratio}");
    let hdr = Tool::HdrLog(TimeUnit::Ns);
    refused(hdr, &log.replace(&deflated, &deflated[..deflated.len() / 2]), "line 3 is \"0.125");
    refused(hdr, "#[Histogram log format version 1.3]\n", "an interval");
    refused(hdr, "1.0,1.0,1.0,HISTIAAA\n", "HISTFAAA");
    refused(hdr, "NaN,1.0,1.0,HISTFAAA\n", "start and length");
    let mut rng = Rng::new(8);
    let good = base64::engine::general_purpose::STANDARD.decode(&plain).unwrap();
    for _ in 0..300 {
        let mut bytes = good.clone();
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] = rng.u64().to_be_bytes()[0];
        let _ = parse(hdr, &format!("0,1,1,{}", coded(bytes)), None);
    }
}

#[test]
fn littles_law_holds_within_five_per_cent() {
    assert_eq!(littles_law(10, 18.853, 530_417.0), Ok(()));
    assert_eq!(littles_law(10, 100.0, 104_000.0), Ok(()));
    assert!(littles_law(10, 100.0, 106_000.0).is_err());
    let note = littles_law(10, 1.885_341, 530_400.0).unwrap_err();
    assert!(note.contains("with 10 requests in flight at 1.89 per second, a request takes 5.30 s"), "{note}");
}

#[test]
fn names_lead_to_tools_and_back() {
    for (name, tool) in Tool::NAMES {
        assert_eq!(name.parse::<Tool>(), Ok(tool));
        assert_eq!(tool.to_string(), name);
    }
    assert!("ab".parse::<Tool>().unwrap_err().contains("clickhouse-benchmark, wrk"));
    for (name, kind, unit) in WorkKind::NAMES {
        assert_eq!(name.parse::<WorkKind>(), Ok(kind));
        assert_eq!((kind.to_string().as_str(), kind.unit()), (name, unit));
    }
}

/// No input makes a parser panic, and every accepted input yields values that a run can have.
// promise 36
#[test]
fn garbage_is_an_error_and_never_a_panic() {
    let junk = [
        "",
        "\n\n",
        "{",
        "{}",
        "[]",
        "null",
        "-1",
        "NaN",
        "1e999",
        "\u{0}\u{ffff}",
        "%",
        "{\"jobs\": 3}",
        ",,,",
        "QPS: ",
    ];
    let mut rng = Rng::new(2026);
    for (_, tool) in Tool::NAMES {
        for text in junk {
            assert!(parse(tool, text, Some(0)).is_err(), "{tool}: {text:?}");
        }
    }
    let hostile = [
        "-1",
        "NaN",
        "inf",
        "1e308",
        "99999999999999999999999",
        "",
        "0",
        "\u{2212}5",
        "%",
        "\n",
        "{",
        "\"",
        "µ",
    ];
    for (tool, text) in CAPTURED {
        for _ in 0..150 {
            let mut text = text.to_owned();
            if rng.below(2) == 0 {
                let cut = rng.below(text.len() as u64) as usize;
                text.truncate((0..=cut).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
            }
            for _ in 0..=rng.below(3) {
                let words: Vec<&str> = text.split_inclusive([' ', '\t', '\n', ',', ':']).collect();
                if words.is_empty() {
                    break;
                }
                let at = rng.below(words.len() as u64) as usize;
                let other = hostile[rng.below(hostile.len() as u64) as usize];
                text =
                    words.iter().enumerate().map(|(i, word)| if i == at { other } else { *word }).collect();
            }
            let Ok(reading) = parse(tool, &text, Some(8)) else { continue };
            assert!((0.0..=MAX_COUNT).contains(&reading.per_s), "{tool}: {}", reading.per_s);
            assert!(
                reading.percentiles_us.values().all(|us| (0.0..=MAX_US).contains(us)),
                "{tool}: {reading:?}"
            );
            assert!(reading.percentiles_us.values().is_sorted(), "{tool}: {reading:?}");
        }
    }
}

fn work(kind: WorkKind, text: &str, step: usize) -> (Option<f64>, Option<f64>) {
    let mut reader = WorkReader::new(kind);
    let mut rest = text;
    while !rest.is_empty() {
        let at = (step.min(rest.len())..).find(|at| rest.is_char_boundary(*at)).unwrap_or(rest.len());
        reader.feed(&rest[..at]);
        rest = &rest[at..];
    }
    (reader.total(), reader.per_s())
}

#[test]
fn work_is_counted_however_the_output_is_cut() {
    for step in [1, 7, 4096] {
        let brief = work(WorkKind::StressNg, captured!("stress-ng.txt"), step);
        assert_eq!(brief.0, Some(10_073.0));
        assert!((brief.1.unwrap() - 5011.9).abs() < 0.01);
        let yaml = work(WorkKind::StressNg, captured!("stress-ng.yaml"), step);
        assert_eq!(yaml.0, Some(10_073.0));
        assert!((yaml.1.unwrap() - 5011.9).abs() < 0.01);
        assert_eq!(work(WorkKind::Ffmpeg, captured!("ffmpeg.txt"), step), (Some(100.0), None));
        let twice = captured!("ffmpeg.txt").repeat(2);
        assert_eq!(work(WorkKind::Ffmpeg, &twice, step).0, Some(200.0), "a shell loop starts it again");
        assert_eq!(work(WorkKind::Lines, "a\nb\n\nc", step).0, Some(3.0));
        assert_eq!(work(WorkKind::CpuSeconds, "1\n2\n", step), (None, None));
    }
    assert_eq!(work(WorkKind::Lines, "", 1).0, Some(0.0));
    assert_eq!(work(WorkKind::Ffmpeg, "fps=3\nframe=-4\nframe=NaN\nframe=inf\n", 3).0, None);
    assert_eq!(work(WorkKind::StressNg, "stress-ng: metrc: [1] cpu -5 1 1 1 1 1\n", 3).0, None);
    assert_eq!(work(WorkKind::StressNg, &"x".repeat(100_000), 100_000).0, None);
    let mut rng = Rng::new(4);
    for kind in WorkKind::NAMES.map(|(_, kind, _)| kind) {
        let mut reader = WorkReader::new(kind);
        let mut before = 0.0;
        for _ in 0..2_000 {
            let pieces = [
                "frame=",
                "7",
                "\n",
                "progress=end",
                "bogo-ops: ",
                "1e300",
                "stress-ng: metrc: [1] ",
                " 3",
                "é",
            ];
            reader.feed(pieces[rng.below(pieces.len() as u64) as usize]);
            let total = reader.total().unwrap_or(0.0);
            assert!(total.is_finite() && total >= before, "{kind}: {total} after {before}");
            before = total;
        }
    }
}
