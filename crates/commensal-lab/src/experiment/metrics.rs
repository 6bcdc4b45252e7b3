//! Metrics from Prometheus queries, given as `[[metric]]` in an experiment file or as `--gate-query` on the command
//! line. A run evaluates each query for every block, that is, for one measurement of one condition.

use super::Experiment;
use super::values::{percent, seconds};
use crate::prometheus::{LONGEST_QUERY, Url};
use crate::record::{Design, Metric, Query};
use commensal_core::toml_reader::{FileKey, Kind, Reader, Section, is, key, needed};

/// Default URL of the Prometheus server.
pub const URL: &str = "http://127.0.0.1:9090";
/// Default scrape interval, as in Prometheus' example configuration.
pub const SCRAPE: &str = "15s";
/// Maximum number of queries in an experiment, because each query may take seconds after every block.
const MOST: usize = 8;
/// Minimum number of scrapes within a block. A rate needs two scrapes, and the first and the last scrape may be at the
/// edges of the block.
const SCRAPES: f64 = 4.0;

/// The keys of a `[[metric]]` table.
pub(super) const KEYS: &[FileKey] = &[
    needed("name", Kind::AnyText),
    needed("query", Kind::Checked(query)),
    key("url", Kind::Checked(is::<Url>)),
    key("better", Kind::Checked(|text| better(text).map(drop))),
    key("threshold", Kind::Quantity(|text| percent(text).map(drop))),
    key("scrape", Kind::Quantity(|text| scrape(text).map(drop))),
    key("gate", Kind::Flag),
];

/// Adds the metrics of an experiment file to the design; reports mistakes with line and column.
pub(super) fn of_file(all: &[Section], design: &mut Design, reader: &mut Reader) {
    for one in all {
        let (Some(name), Some(query)) = (one.text("name"), one.text("query")) else { continue };
        let more = one.with("better", better).unwrap_or(false);
        let added = Metric::query(name, more).and_then(|metric| {
            let query = Query {
                metric,
                query: query.trim().to_owned(),
                url: one.text("url").unwrap_or(URL).to_owned(),
                scrape_s: scrape(one.text("scrape").unwrap_or(SCRAPE))?,
            };
            add(design, query, one.flag("gate") != Some(false)).map(|()| metric)
        });
        match added {
            Ok(metric) => {
                let threshold = one.with("threshold", percent);
                design.threshold_overrides_pct.extend(threshold.map(|pct| (metric, pct)));
            }
            Err(why) => reader.note(one.at("name"), format!("metric.name = {name:?}: {why}")),
        }
    }
}

/// Adds the metrics of the command line to the design: `NAME=QUERY` if lower values are better, `higher:NAME=QUERY` if
/// higher values are better.
pub(super) fn of_flags(given: &[String], url: &str, every: &str, design: &mut Design) -> Result<(), String> {
    url.parse::<Url>().map_err(|why| format!("--prometheus {url}: {why}"))?;
    let scrape_s = scrape(every).map_err(|why| format!("--scrape {every}: {why}"))?;
    for text in given {
        let failed = |why: String| format!("--gate-query {text}: {why}");
        let (name, asked) =
            text.split_once('=').ok_or_else(|| failed("the form is NAME=QUERY".to_owned()))?;
        let (name, more) = match name.split_once(':') {
            Some(("higher", name)) => (name, true),
            Some(("lower", name)) => (name, false),
            _ => (name, false),
        };
        query(asked).map_err(failed)?;
        let metric = Metric::query(name, more).map_err(failed)?;
        let one = Query { metric, query: asked.trim().to_owned(), url: url.to_owned(), scrape_s };
        add(design, one, true).map_err(failed)?;
    }
    Ok(())
}

fn add(design: &mut Design, query: Query, gate: bool) -> Result<(), String> {
    if design.queries.iter().any(|known| known.metric.label() == query.metric.label()) {
        return Err("another metric has this name".to_owned());
    }
    if design.queries.len() >= MOST {
        return Err(format!("an experiment can have at most {MOST} queries"));
    }
    design.gates.extend(gate.then_some(query.metric));
    design.queries.push(query);
    Ok(())
}

fn better(text: &str) -> Result<bool, String> {
    match text.trim() {
        "lower" => Ok(false),
        "higher" => Ok(true),
        _ => Err("the choices are \"lower\" and \"higher\"".to_owned()),
    }
}

fn scrape(text: &str) -> Result<f64, String> {
    match seconds(text)? {
        time if (0.1..=3_600.0).contains(&time) => Ok(time),
        _ => Err("must be 0.1 s to 3600 s".to_owned()),
    }
}

fn query(text: &str) -> Result<(), String> {
    match text.trim().len() {
        0 => Err("the query is empty".to_owned()),
        1..=LONGEST_QUERY => Ok(()),
        _ => Err(format!("the query is longer than {LONGEST_QUERY} bytes")),
    }
}

impl Experiment {
    /// Returns why a run cannot evaluate the Prometheus queries in blocks of this design; `None` if it can.
    #[must_use]
    pub fn unasked(&self) -> Option<String> {
        let design = &self.design;
        let first = design.queries.first()?.metric.label();
        if design.windows.is_some() {
            return Some(format!(
                "metric {first:?}: short windows are shorter than Prometheus' scrape interval; use long blocks, such as \
                 --rounds 12 --block 60"
            ));
        }
        let short = design.queries.iter().find(|query| design.block_s < SCRAPES * query.scrape_s)?;
        Some(format!(
            "metric {:?}: a block of {} s is shorter than {SCRAPES} scrape intervals of {} s, which a rate needs; make blocks {} s long, \
             or give the server's actual scrape interval (scrape = \"1 s\", --scrape 1s)",
            short.metric.label(),
            design.block_s,
            short.scrape_s,
            SCRAPES * short.scrape_s
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Overrides, parse};
    use super::*;

    const FILE: &str = r#"arms = ["baseline", "baseline2", "contended", "isolated"]
[design]
block = "60 s"
[[metric]]
name = "p95 of checkout"
query = "histogram_quantile(0.95, rate(x[$window]))"
threshold = "10 %"
[[metric]]
name = "hits"
query = "rate(hits[$window])"
url = "http://prom:9090"
better = "higher"
scrape = "5 s"
gate = false
"#;

    #[test]
    fn metrics_of_a_file_take_part() {
        let design = parse("x", FILE).unwrap().design;
        let (p95, hits) =
            (Metric::query("p95 of checkout", false).unwrap(), Metric::query("hits", true).unwrap());
        assert_eq!(design.gates, [Metric::P50, Metric::P90, Metric::Qps, p95]);
        assert_eq!((design.threshold_of(p95), design.threshold_of(hits)), (10.0, 5.0));
        let seen: Vec<_> =
            design.queries.iter().map(|one| (one.metric, one.url.as_str(), one.scrape_s)).collect();
        assert_eq!(seen, [(p95, URL, 15.0), (hits, "http://prom:9090", 5.0)]);
        assert!(design.metrics().ends_with(&[p95, hits]));
    }

    /// Each case replaces one line of a valid file: it has the line's number, the new line, and the expected message.
    #[test]
    fn mistakes_of_a_file() {
        for (line, text, words) in [
            (5, "name = \"\"", "x:5:8: metric.name = \"\": the name must have 1 to 60"),
            (5, "name = \"p99\"", "x:5:8: metric.name = \"p99\": this is the name of a built-in metric"),
            (6, "query =   \"\"", "x:6:11: metric.query = \"\": the query is empty"),
            (7, "threshold = \"10\"", "x:7:13: metric.threshold = \"10\": give a percentage"),
            (7, "thresold = \"10 %\"", "unknown key \"metric.thresold\"; did you mean \"metric.threshold\"?"),
            (9, "name = \"p95 of checkout\"", "x:9:8: metric.name = \"p95 of checkout\": another metric"),
            (11, "url = \"https://x\"", "x:11:7: metric.url = \"https://x\": TLS"),
            (11, "url = \"prom\"", "give an address such as http://127.0.0.1:9090"),
            (12, "better = \"up\"", "x:12:10: metric.better = \"up\": the choices are \"lower\" and"),
            (13, "scrape = \"0 s\"", "x:13:10: metric.scrape = \"0 s\": must be 0.1 s"),
            (14, "gate = \"no\"", "x:14:8: metric.gate must be true or false"),
        ] {
            let mut lines: Vec<&str> = FILE.lines().collect();
            lines[line - 1] = text;
            let said = parse("x", &lines.join("\n")).unwrap_err().to_string();
            assert!(said.contains(words), "{text}: {said}");
        }
        // The parser reports all mistakes together.
        let all =
            FILE.replace("\"10 %\"", "\"x\"").replace("\"higher\"", "\"x\"").replace("\"5 s\"", "\"x\"");
        let said = parse("x", &all).unwrap_err().to_string();
        assert!(
            ["threshold", "better", "scrape"].iter().all(|key| said.contains(&format!("metric.{key}"))),
            "{said}"
        );
    }

    #[test]
    fn gates_of_the_command_line() {
        let apply = |queries: &[&str], block_s, change: &dyn Fn(&mut Overrides)| {
            let mut overrides = Overrides { block_s: Some(block_s), ..Overrides::default() };
            overrides.gate_queries = queries.iter().map(|&text| text.to_owned()).collect();
            change(&mut overrides);
            let mut experiment = super::super::shipped(super::super::QUICKSTART).unwrap().unwrap();
            overrides.apply(&mut experiment).map(|()| experiment.design)
        };
        let design = apply(&["wait=sum(x{a=\"b\"})", "higher:hits=rate(y[$window])"], 60.0, &|_| ()).unwrap();
        assert_eq!(design.queries[0].query, "sum(x{a=\"b\"})");
        assert!(!design.queries[0].metric.more_is_better() && design.queries[1].metric.more_is_better());
        assert_eq!(design.gates.len(), 5);
        let fails = |queries: &[&str], block_s, change: &dyn Fn(&mut Overrides), words: &str| {
            let said = apply(queries, block_s, change).unwrap_err();
            assert!(said.contains(words), "{said}");
        };
        fails(&["wait"], 60.0, &|_| (), "--gate-query wait: the form is NAME=QUERY");
        fails(&["wait= "], 60.0, &|_| (), "the query is empty");
        fails(&["=x"], 60.0, &|_| (), "the name must have 1 to");
        fails(&["a=x", "a=y"], 60.0, &|_| (), "another metric has this name");
        fails(&["a=x"; 1], 60.0, &|one| one.prometheus = Some("ftp://x".to_owned()), "--prometheus ftp://x");
        fails(&["a=x"; 1], 60.0, &|one| one.scrape = Some("never".to_owned()), "--scrape never");
        fails(
            &["a=x"],
            59.0,
            &|_| (),
            "a block of 59 s is shorter than 4 scrape intervals of 15 s, which a rate needs; make blocks 60 s",
        );
        assert!(apply(&["a=x"], 2.0, &|one| one.scrape = Some("500ms".to_owned())).is_ok());
        let nine: Vec<String> = (0..9).map(|number| format!("q{number}=x")).collect();
        fails(&nine.iter().map(String::as_str).collect::<Vec<_>>(), 60.0, &|_| (), "at most 8");
        // A query needs long blocks; the options reject a query together with a request for short windows.
        for within in [None, Some(std::time::Duration::from_secs(60))] {
            let overrides =
                Overrides { gate_queries: vec!["a=x".to_owned()], within, ..Overrides::default() };
            let mut experiment = super::super::shipped(super::super::QUICKSTART).unwrap().unwrap();
            let said = overrides.apply(&mut experiment).unwrap_err();
            assert!(said.contains("long blocks") || said.contains("4 scrape"), "{said}");
        }
    }
}
