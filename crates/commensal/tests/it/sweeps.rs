//! Values of one thing as arms of one run, and gates on what Prometheus says: short real runs. Of what is measured only the
//! direction is asserted: offline work that may have more does more.

use crate::bad_input::assert_nothing_left;
use crate::support::{Program, can_write_cgroups, text};
use commensal_lab::prometheus;
use commensal_lab::record::{Block, Metric, Run};
use commensal_testkit::{until, unused_address};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

/// Statuses that are a verdict.
const VERDICTS: [i32; 4] = [0, 1, 3, 4];

/// Runs `quickstart` by one round of short long blocks; standard output and error, and the record, which is as the schema says.
fn quick(program: &Program, args: &[&str]) -> (String, String, Run) {
    let mut all = vec!["lab", "run", "quickstart", "--rounds", "1"];
    all.extend(args);
    let output = program.run(&all);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(VERDICTS.contains(&output.status.code().unwrap()), "{args:?}\n{out}{err}");
    let record = std::fs::read_to_string(program.path("run.json")).unwrap();
    let schema: serde_json::Value = serde_json::from_str(&commensal_lab::record::json_schema()).unwrap();
    let value: serde_json::Value = serde_json::from_str(&record).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let problems: Vec<String> = schema.iter_errors(&value).map(|error| error.to_string()).collect();
    assert!(problems.is_empty(), "{problems:?}");
    (out, err, Run::from_json(record.as_bytes()).unwrap())
}

fn block<'a>(run: &'a Run, arm: &str) -> &'a Block {
    run.blocks.iter().find(|block| block.arm == arm).unwrap_or_else(|| panic!("no block of {arm}"))
}

// promise 40
#[test]
fn values_of_a_limit_are_arms_of_one_run() {
    let test = "values_of_a_limit_are_arms_of_one_run";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("vary");
    let (out, err, run) = quick(&program, &["--block", "1", "--vary", "cpu.max=90%,5%"]);
    if err.contains("isolated:cpu.max=5% is omitted") {
        println!("skipped: {test}: {err}");
        return;
    }
    let names: Vec<&str> = run.arms.iter().map(|arm| arm.name.as_str()).collect();
    assert_eq!(names, ["baseline", "baseline2", "contended", "isolated:cpu.max=5%", "isolated:cpu.max=90%"]);
    assert_eq!(run.blocks.len(), 5);
    for arm in &run.arms[3..] {
        let policy = arm.policy.as_ref().unwrap();
        assert!(policy.applied.iter().all(commensal_lab::record::Applied::holds), "{policy:?}");
        assert!(!policy.applied.is_empty(), "{policy:?}");
    }
    let [little, much] =
        ["5%", "90%"].map(|value| block(&run, &format!("isolated:cpu.max={value}")).work.offline);
    assert!(little.unwrap() < much.unwrap(), "{little:?} {much:?}");
    assert!(out.contains("harm over cpu.max\n") && out.contains("5 %"), "{out}");
    let page = std::fs::read_to_string(program.path("run.html")).unwrap();
    assert!(page.contains("Harm over cpu.max"));
    let file = program.path("run.json");
    let csv = program.run(&["lab", "report", file.to_str().unwrap(), "--format", "csv"]);
    assert!(text(&csv.stdout).lines().any(|line| line.ends_with(",90")), "{}", text(&csv.stdout));
    assert_nothing_left(&program.state());
}

// promise 40
#[test]
fn a_ramp_of_threads_is_arms_with_and_without_isolation() {
    if !can_write_cgroups("a_ramp_of_threads_is_arms_with_and_without_isolation") {
        return;
    }
    let program = Program::new("ramp");
    let (out, _, run) = quick(&program, &["--block", "1", "--ramp", "0,1,8"]);
    let offline: Vec<_> = run.arms.iter().map(|arm| arm.offline.as_deref().unwrap_or("-")).collect();
    assert_eq!(offline, ["-", "-", "cpu:1", "cpu:1", "cpu:8", "cpu:8"]);
    // Each thread always has a CPU or waits for one, however much of the CPUs others have: so one thread waits at most all the time,
    // and of eight all but one to a CPU wait all the time. What they get done says less: others may have the CPUs in one block.
    let [one, eight] = ["contended:1 thread", "contended:8 threads"].map(|arm| {
        let block = block(&run, arm);
        assert!(block.work.offline.unwrap() > 0.0, "{block:?}");
        block.cpu.offline.unwrap() + block.run_delay_s.offline.unwrap() / block.measure_s
    });
    assert!(2.0 * one < eight, "threads that run or wait: {one} {eight}");
    assert!(block(&run, "contended:1 thread").work.expected_cpus == Some(1.0));
    assert!(out.contains("harm over offline.threads without isolation\n"), "{out}");
    assert!(out.contains("harm over offline.threads with isolation\n"), "{out}");
    assert_nothing_left(&program.state());
}

#[test]
fn what_cannot_be_swept_or_asked_is_told_before_anything_starts() {
    let program = Program::new("refused");
    let gate = "--gate-query";
    for (args, words) in [
        (&["--vary", "cpu.mxa=1%,2%"][..], "did you mean \"cpu.max\"?"),
        (&["--vary", "cpu.max=20%,a lot"], "cpu.max=a lot"),
        (&["--ramp", "1"], "at least two values"),
        (&["--ramp", "1,2", "--vary", "cpu.max=1%,2%"], "cannot be used with"),
        (&[gate, "up"], "the form is NAME=QUERY"),
        (&[gate, "a=up", "--block", "10"], "a block of 10 s is shorter than 4 scrape intervals of 15 s"),
        (&[gate, "a=up", "--prometheus", "https://x", "--block", "60"], "TLS is not supported"),
        (
            &[gate, "a=up", "--prometheus", "http://127.0.0.1:1", "--block", "60"],
            "check that the server runs",
        ),
        (&["--prometheus", "http://x"], "--gate-query"),
    ] {
        let mut all = vec!["lab", "run", "quickstart"];
        all.extend(args);
        let (_, err) = program.expect(2, &all);
        assert!(err.contains(words), "{args:?}: {err}");
        assert!(!program.path("run.json").exists(), "{args:?}");
    }
    assert_nothing_left(&program.state());
}

/// A Prometheus that answers so many times with a number, and then not at all.
fn fake(answers: usize) -> (String, Arc<AtomicUsize>, impl FnOnce()) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, end, addr) = (Arc::clone(&asked), Arc::clone(&over), listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            if end.load(Ordering::SeqCst) {
                break;
            }
            let (mut request, mut byte) = (Vec::new(), [0]);
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
                request.push(byte[0]);
            }
            if count.fetch_add(1, Ordering::SeqCst) < answers {
                let body =
                    "{\"status\":\"success\",\"data\":{\"resultType\":\"scalar\",\"result\":[1,\"4.5\"]}}";
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(format!("{head}{body}").as_bytes());
            }
        }
    });
    let stop = move || {
        over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(addr));
        server.join().unwrap();
    };
    (url, asked, stop)
}

/// It answers before the run and for the first two blocks: the others have no value, and the run goes on to its end.
// promise 40
#[test]
fn a_server_that_dies_loses_values_and_not_the_run() {
    if !can_write_cgroups("a_server_that_dies_loses_values_and_not_the_run") {
        return;
    }
    let program = Program::new("dies");
    let (url, asked, stop) = fake(3);
    let gate = ["--gate-query", "p95 of checkout=x", "--prometheus", &url, "--scrape", "200ms"];
    let (out, _, run) = quick(&program, &[&["--block", "1"], &gate[..]].concat());
    stop();
    assert_eq!((run.blocks.len(), asked.load(Ordering::SeqCst)), (4, 5));
    let metric = Metric::query("p95 of checkout", false).unwrap();
    let values: Vec<_> = run.blocks.iter().map(|block| block.queried.get(&metric).copied()).collect();
    assert_eq!(values, [Some(4.5), Some(4.5), None, None]);
    assert!(out.contains("p95 of checkout"), "{out}");
    let said = run.blocks.iter().flat_map(|block| &block.notes).chain(&run.caveats);
    let told =
        |note: &&String| note.starts_with("p95 of checkout has no value: Prometheus at http://127.0.0.1:");
    assert!(said.filter(told).count() >= 1, "{:?}", run.caveats);
    assert_nothing_left(&program.state());
}

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
