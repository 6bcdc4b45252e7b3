//! The report of a load generator run: one JSON document, and an HdrHistogram interval log.
//!
//! A request is due at its intended start, which the schedule determines. The measured window is the part of the run
//! whose requests count.

use super::spec::{LoadSpec, Mode};
use super::validity::{LoadBaseline, LoadEvidence, invalid_reasons};
use super::{Arrival, ErrorKinds, LoadResult};
use crate::error::LabError;
use crate::record::{
    LatencyHistogram, LoadFigures, LoadHistograms, Slo, SloSeen, Tick, new_histogram, percentile_us,
};
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// Value of the `schema` field.
pub const REPORT_SCHEMA: &str = "commensal.load/1";

/// The report of a finished run. A missing value is `None`, never 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Name of the schema; always [`REPORT_SCHEMA`].
    pub schema: String,
    /// Whether the measurement is valid; `invalid_reasons` is then empty.
    pub valid: bool,
    /// Why the measurement is invalid; each reason is a whole sentence.
    pub invalid_reasons: Vec<String>,
    /// Limitations of a valid measurement that a reader must know, such as a closed loop.
    pub caveats: Vec<String>,
    /// The parameters that the user requested.
    pub asked: Asked,
    /// Length of the measured window (seconds).
    pub measured_s: f64,
    /// Whether the user stopped the run before the end of the window.
    pub cut: bool,
    /// Requests offered (in a closed loop: sent) and their outcomes, under the JSON keys listed in `KEYS`.
    #[serde(flatten, with = "keys")]
    pub load: LoadFigures,
    /// Requests written to a connection.
    pub sent: u64,
    /// Requests answered with 2xx within the timeout.
    pub completed: u64,
    /// Number of errors by kind, and of socket errors by error number.
    pub error_kinds: ErrorKinds,
    /// Number of connections that the generator reopened.
    pub reconnects: u64,
    /// CPU time of the generator's thread within the window (seconds).
    pub generator_cpu_s: f64,
    /// Time from the intended start to the last byte of the response (µs).
    pub latency_us: Option<Spread>,
    /// Time from the actual send to the last byte of the response (µs).
    pub service_us: Option<Spread>,
    /// The generator's lateness, as in [`LoadResult::lateness`] (µs).
    pub lateness_us: Option<Spread>,
    /// How well the run met the service level objective, if the user gave an objective.
    pub slo: Option<SloAnswer>,
    /// Results of the window, second by second.
    pub series: Vec<Tick>,
    /// Encoded histograms of the three distributions above.
    #[serde(flatten)]
    pub histograms: LoadHistograms,
}

/// For each quantity, the JSON key in a report and the JSON key in the record of a lab run.
const KEYS: [(&str, &str); 3] =
    [("offered", "requests"), ("offered_per_s", "offered"), ("achieved_per_s", "achieved")];

/// Serialises and deserialises [`LoadFigures`] with the keys of a report.
mod keys {
    use super::{KEYS, LoadFigures};
    use serde::{Deserialize, Deserializer, Serializer, de, ser};
    use serde_json::{Map, Value};

    pub(super) fn serialize<S: Serializer>(figures: &LoadFigures, to: S) -> Result<S::Ok, S::Error> {
        let Value::Object(fields) = serde_json::to_value(figures).map_err(ser::Error::custom)? else {
            return Err(ser::Error::custom("the load figures must serialise as a JSON object"));
        };
        to.collect_map(fields.into_iter().map(|(key, value)| {
            let name = KEYS.iter().find(|(_, block)| *block == key).map(|(report, _)| (*report).to_owned());
            (name.unwrap_or(key), value)
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LoadFigures, D::Error> {
        let mut fields = Map::<String, Value>::deserialize(from)?;
        // An older record of a lab run may lack these counts. A report always has them, so a missing count is an error,
        // not 0.
        if let Some(missing) = ["errors", "timeouts"].into_iter().find(|key| !fields.contains_key(*key)) {
            return Err(de::Error::missing_field(missing));
        }
        let renamed = KEYS.map(|(report, block)| (report, block, fields.remove(report)));
        for (report, block, value) in renamed {
            fields.insert(block.to_owned(), value.ok_or_else(|| de::Error::missing_field(report))?);
        }
        serde_json::from_value(Value::Object(fields)).map_err(de::Error::custom)
    }
}

/// The parameters that the user requested for a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// URL that the generator requested.
    pub url: String,
    /// Requests per second; `None` in a closed loop.
    pub rate_per_s: Option<f64>,
    /// Distribution of the gaps between requests; `None` in a closed loop.
    pub arrival: Option<Arrival>,
    /// In a closed loop, the number of requests in flight; `None` in an open loop.
    pub closed: Option<usize>,
    /// Seed of the schedule.
    pub seed: u64,
    /// Number of connections.
    pub connections: usize,
    /// Duration of the load before the measured window (seconds).
    pub warmup_s: f64,
    /// Length of the measured window (seconds).
    pub measure_s: f64,
    /// Timeout of a request, counted from its intended start (seconds).
    pub timeout_s: f64,
}

/// Summary of a distribution (µs).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Number of values.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    #[serde(rename = "p99.9")]
    pub p999: f64,
    /// Maximum.
    pub max: f64,
}

/// A service level objective, and how well the run met it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SloAnswer {
    /// The objective.
    pub asked: Slo,
    /// How well the run met the objective.
    pub seen: SloSeen,
}

impl Asked {
    /// Returns the parameters of a spec.
    #[must_use]
    pub fn of(spec: &LoadSpec, url: &str) -> Self {
        let (open, closed) = match spec.mode {
            Mode::Open => (true, None),
            Mode::Closed { concurrency } => (false, Some(concurrency)),
        };
        Self {
            url: url.to_owned(),
            rate_per_s: open.then_some(spec.rate_per_s),
            arrival: open.then_some(spec.arrival),
            closed,
            seed: spec.seed,
            connections: spec.pool(),
            warmup_s: spec.warmup.as_secs_f64(),
            measure_s: spec.measure.as_secs_f64(),
            timeout_s: spec.timeout.as_secs_f64(),
        }
    }
}

impl Spread {
    /// Summarises a histogram; returns `None` if it is empty.
    #[must_use]
    pub fn of(histogram: &LatencyHistogram) -> Option<Self> {
        let at = |quantile| percentile_us(histogram, quantile);
        Some(Self {
            count: histogram.len(),
            mean: histogram.mean(),
            p50: at(0.5)?,
            p90: at(0.9)?,
            p99: at(0.99)?,
            p999: at(0.999)?,
            max: histogram.max() as f64,
        })
    }
}

impl LoadReport {
    /// Creates a report. Compares the result with limits that derive from the result itself, because the load of a
    /// single service has no baseline. Failed requests are part of the result and do not make it invalid.
    ///
    /// # Errors
    /// If a histogram cannot be encoded.
    pub fn new(spec: &LoadSpec, url: &str, result: &LoadResult, slo: Option<Slo>) -> Result<Self, LabError> {
        let evidence = LoadEvidence::of(result);
        let invalid_reasons = invalid_reasons(&evidence, &LoadBaseline::of(&evidence), false);
        let open = spec.mode == Mode::Open;
        let asked = Asked::of(spec, url);
        let mut caveats = Vec::new();
        if !open {
            caveats.push(
                "closed loop: no request is sent while the service stalls, so latencies understate stalls; use --rate \
                 (an open loop) to measure stalls"
                    .to_owned(),
            );
        }
        if result.cut {
            caveats.push(format!(
                "the run was stopped after {:.1} of {:.1} s",
                result.measured_s,
                spec.measure.as_secs_f64()
            ));
        }
        Ok(Self {
            schema: REPORT_SCHEMA.to_owned(),
            valid: invalid_reasons.is_empty(),
            invalid_reasons,
            caveats,
            asked,
            measured_s: result.measured_s,
            cut: result.cut,
            load: result.load,
            sent: result.sent,
            completed: result.completed,
            error_kinds: result.error_kinds.clone(),
            reconnects: result.reconnects,
            generator_cpu_s: result.generator_cpu_s,
            latency_us: Spread::of(&result.latency),
            service_us: Spread::of(&result.service),
            lateness_us: Spread::of(&result.lateness),
            slo: slo.map(|asked| SloAnswer { asked, seen: result.slo(&asked) }),
            series: result.ticks(),
            histograms: LoadHistograms::of(&result.latency, &result.service, &result.lateness)?,
        })
    }
}

/// Formats the latencies of each second (µs) as an HdrHistogram interval log (V2, compressed, base64), the format of
/// the HdrHistogram tools. `began` is the start of the measured window.
///
/// # Errors
/// The error message of the library.
pub fn interval_log(result: &LoadResult, began: SystemTime) -> Result<String, String> {
    let mut histogram = new_histogram().map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment(
        "[Latency from the intended start in microseconds, by the second in which a request was due]",
    );
    builder.with_start_time(began).with_base_time(began).with_max_value_divisor(1000.0);
    let mut log = builder.begin_log_with(&mut text, &mut serializer).map_err(|error| error.to_string())?;
    for (i, second) in result.series.seconds.iter().enumerate() {
        histogram.reset();
        second.add_to(&mut histogram);
        let begin = Duration::from_secs(i as u64);
        let length = (result.measured_s - begin.as_secs_f64()).clamp(0.0, 1.0);
        log.write_histogram(&histogram, begin, Duration::from_secs_f64(length), None)
            .map_err(|error| format!("{error:?}"))?;
    }
    String::from_utf8(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::{Second, SecondSeries};
    use base64::Engine as _;
    use commensal_core::errno::Errno;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    fn result() -> LoadResult {
        let seconds: Vec<Second> = (1..=3u32)
            .map(|i| Second { answered: 10, failed: 0, latency: vec![(100 * i, 9), (4_000 * i, 1)] })
            .collect();
        let mut latency = new_histogram().expect("bounds");
        seconds.iter().for_each(|second| second.add_to(&mut latency));
        LoadResult {
            load: LoadFigures {
                offered_per_s: Some(12.0),
                achieved_per_s: Some(11.0),
                offered_requests: 30,
                errors: 2,
                timeouts: 1,
                resent: 3,
            },
            sent: 30,
            completed: 30,
            error_kinds: ErrorKinds::default(),
            service: latency.clone(),
            lateness: latency.clone(),
            latency,
            measured_s: 2.5,
            generator_cpu_s: 0.1,
            reconnects: 0,
            closed: None,
            cut: false,
            series: SecondSeries { seconds, timeout_us: 5_000_000 },
        }
    }

    #[test]
    fn a_report_without_one_of_its_figures_is_refused() {
        let spec = LoadSpec::new(([127, 0, 0, 1], 1).into(), "/", 12.0, Duration::from_secs(2));
        let report = LoadReport::new(&spec, "http://127.0.0.1:1/", &result(), None).expect("a report");
        let whole = serde_json::to_value(&report).expect("JSON");
        assert_eq!(serde_json::from_value::<LoadReport>(whole.clone()).expect("it is whole"), report);
        for key in ["offered", "offered_per_s", "achieved_per_s", "errors", "timeouts"] {
            let mut without = whole.clone();
            without.as_object_mut().expect("an object").remove(key).expect("it is there");
            let error = serde_json::from_value::<LoadReport>(without).expect_err(key).to_string();
            assert!(error.contains(&format!("missing field `{key}`")), "{error}");
        }
    }

    #[test]
    fn the_interval_log_reads_back_as_the_whole() {
        let text =
            interval_log(&result(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000)).expect("a log");
        let mut whole = new_histogram().expect("bounds");
        let mut lengths = Vec::new();
        for entry in IntervalLogIterator::new(text.as_bytes()) {
            if let LogEntry::Interval(interval) = entry.expect("an entry") {
                let engine = base64::engine::general_purpose::STANDARD;
                let bytes = engine.decode(interval.encoded_histogram()).expect("base64");
                let one = Deserializer::new().deserialize::<u64, _>(&mut bytes.as_slice()).expect("V2");
                whole.add(one).expect("the same bounds");
                lengths.push(interval.duration().as_secs_f64());
            }
        }
        assert_eq!(whole, result().latency);
        assert_eq!(lengths, [1.0, 1.0, 0.5]);
        assert!(text.contains("StartTime: 1000") && text.contains("BaseTime: 1000"), "{text}");
    }

    #[test]
    fn a_report_survives_the_round_trip_and_judges_by_itself() {
        let addr = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let mut spec = LoadSpec::new(addr, "/", 12.0, Duration::from_secs(3));
        let slo = Slo { metric: crate::record::Metric::P50, latency_us: 250.0, window_s: 1.0 };
        let report = LoadReport::new(&spec, "http://x/", &result(), Some(slo)).expect("a report");
        let text = serde_json::to_string(&report).expect("JSON");
        assert_eq!(serde_json::from_str::<LoadReport>(&text).expect("JSON"), report);
        // A report uses the documented keys, and no other keys for these quantities.
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let figures = ["offered", "offered_per_s", "achieved_per_s", "errors", "timeouts"];
        assert_eq!(figures.map(|key| value[key].as_f64()), [30.0, 12.0, 11.0, 2.0, 1.0].map(Some));
        assert_eq!(value["resent"], 3);
        assert!(value["error_kinds"].get("socket_errors").is_none());
        assert!(["hist", "service_hist", "lateness_hist"].iter().all(|key| value[*key].is_string()));
        assert!(["requests", "achieved", "load", "latency"].iter().all(|key| value.get(key).is_none()));
        let without = text.replace("\"offered\":30,", "");
        assert!(without != text && serde_json::from_str::<LoadReport>(&without).is_err());
        let mut refused = result();
        refused.error_kinds.socket_errors.add(Errno::ECONNREFUSED);
        let refused = LoadReport::new(&spec, "http://x/", &refused, None).expect("a report");
        let value = serde_json::to_value(&refused).expect("JSON");
        assert_eq!(value["error_kinds"]["socket_errors"]["ECONNREFUSED"], 1);
        assert_eq!(serde_json::from_value::<LoadReport>(value).expect("JSON"), refused);
        // The P99 of the lateness is 12 ms.
        assert!(!report.valid && report.invalid_reasons.join(" ").contains("the generator was late"));
        let seen = report.slo.expect("asked for").seen;
        assert_eq!((seen.windows, seen.met), (3, 2));
        // The only window above 300 µs lasts half a second.
        assert!((seen.longest_miss_s - 0.5).abs() < 1e-9, "{seen:?}");
        spec.mode = Mode::Closed { concurrency: 3 };
        let closed = LoadReport::new(&spec, "http://x/", &LoadResult { closed: Some(3), ..result() }, None)
            .expect("a report");
        assert!(closed.caveats[0].contains("understate") && closed.asked.rate_per_s.is_none());
    }
}
