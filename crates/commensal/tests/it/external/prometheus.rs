//! A gate on what a real Prometheus says.

use crate::bad_input::assert_nothing_left;
use crate::measure::sweeps::quick;
use crate::support::{Program, can_write_cgroups};
use commensal_lab::prometheus;
use commensal_lab::record::Metric;
use commensal_testkit::{until, unused_address};
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

/// A Prometheus of this machine that scrapes one port; ended when it is dropped.
struct Server {
    child: Child,
    url: String,
    _dir: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn prometheus_for(port: u16, every: &str) -> Result<Server, String> {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: {every}, scrape_timeout: {every}}}\nscrape_configs:\n- job_name: lab\n  static_configs:\n  - targets: ['127.0.0.1:{port}']\n"
    );
    std::fs::write(&config, text).unwrap();
    let own = unused_address().port();
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{own}"))
        .arg("--log.level=error")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("prometheus: {error}; apt-get install prometheus"))?;
    let server = Server { child, url: format!("http://127.0.0.1:{own}"), _dir: dir };
    let url = server.url.parse().unwrap();
    // It begins to scrape some seconds after it begins to answer.
    until("it answers", || matches!(prometheus::ask(&url, "up", SystemTime::now()), Ok(Some(_))));
    Ok(server)
}

/// A real Prometheus counts at the service what the lab's own generator counts: requests per second.
// promise 40
#[test]
fn a_real_prometheus_says_what_the_lab_counts() {
    let test = "a_real_prometheus_says_what_the_lab_counts";
    if !can_write_cgroups(test) {
        return;
    }
    let port = unused_address().port();
    let server = match prometheus_for(port, "500ms") {
        Ok(server) => server,
        Err(why) => {
            println!("skipped: {test}: {why}");
            return;
        }
    };
    // What it refuses is told with its own words, before the first block.
    let program = Program::new("prometheus");
    let refused = |query: &str| {
        let gate = format!("x={query}");
        let args =
            ["lab", "run", "quickstart", "--block", "60", "--gate-query", &gate, "--prometheus", &server.url];
        program.expect(2, &args).1
    };
    let said = refused("rate(up[$window]");
    assert!(
        said.contains("the server returned status 400") && said.contains("unclosed left parenthesis"),
        "{said}"
    );
    let said = refused("up[$window]");
    assert!(said.contains("a matrix instead of one number"), "{said}");
    let rate = "answered=sum(rate(http_requests_total{path=\"/cpu\"}[$window]))";
    let cpu = "mean=sum(rate(http_response_time_sum[$window]))/sum(rate(http_response_time_count[$window]))";
    let (out, _, run) = quick(
        &program,
        &[
            "--arms",
            "baseline,baseline2",
            "--block",
            "8",
            "--port",
            &port.to_string(),
            "--gate-query",
            &format!("higher:{rate}"),
            "--gate-query",
            cpu,
            "--gate-query",
            "gone=absent_over_time(http_requests_total[$window])",
            "--prometheus",
            &server.url,
            "--scrape",
            "500ms",
        ],
    );
    let metric = |name, more| Metric::query(name, more).unwrap();
    for block in &run.blocks {
        let answered = block.queried[&metric("answered", true)];
        let own = block.load.achieved_per_s.unwrap();
        // Its rate is extrapolated from scrapes that lie up to an interval inside the block.
        assert!((answered / own - 1.0).abs() < 0.15, "{answered} {own}");
        println!("{}: Prometheus {answered:.1} requests/s, the lab {own:.1}", block.arm);
        let mean = block.queried[&metric("mean", false)];
        assert!(mean > 0.0 && mean < 1.0, "{mean}");
        assert!(!block.queried.contains_key(&metric("gone", false)));
    }
    assert!(out.contains("gone has no value in 2 of 2 blocks"), "{out}");
    assert_nothing_left(&program.state());
}
