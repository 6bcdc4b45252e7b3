//! `lab calibrate` on the running machine. Directions only: a harm of nothing is not called one, a gross harm does not pass; the
//! record is whole, goes on after Ctrl-C, and its statistics are computed again by others.

use crate::bad_input::assert_nothing_left;
use crate::support::{Program, Server, can_write_cgroups, cgroups_named, text};
use commensal_lab::calibrate::Calibration;
use commensal_lab::record::Verdict;
use commensal_lab::record::decode_histogram;
use commensal_testkit::{Signal, http, signal, until};
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

/// Six rounds of four arms, the least there can be: half a minute.
const SHORT: [&str; 6] = ["lab", "calibrate", "--for", "1s", "--harm", "0,60"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SHORT.iter().copied().chain(more.iter().copied()).collect()
}

fn record(path: &Path) -> Calibration {
    Calibration::from_json(&std::fs::read_to_string(path).unwrap()).unwrap()
}

// promise 35
#[test]
fn a_known_harm_is_found_and_none_is_not_and_an_interrupted_calibration_goes_on() {
    if !can_write_cgroups("a_known_harm_is_found_and_none_is_not_and_an_interrupted_calibration_goes_on") {
        return;
    }
    let program = Program::new("calibrate");
    let output = program.run(&with(&["--runs", "1", "--beside", "busy:0.1"]));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    // The goals may not hold beside other tests; trouble is something else.
    assert!([Some(0), Some(1)].contains(&output.status.code()), "{out}{err}");
    assert!(out.contains("+0 %") && out.contains("+60 %") && out.contains("neighbour: busy:0.1"), "{out}");
    let file = program.path("calibration.json");
    let first = record(&file);
    let done = &first.runs[0];
    assert_eq!(done.answers.len(), 2);
    let [none, gross] = &done.answers[..] else { panic!("{:?}", done.answers) };
    assert!(!matches!(none.verdict, Verdict::Fail), "{none:?}");
    assert!(gross.verdict != Verdict::Pass, "{gross:?}");
    assert!(gross.counted_us.unwrap() >= gross.asked_us && gross.asked_us > 0.0, "{gross:?}");
    // Other work may run between the two times that are taken.
    assert!(none.counted_us.unwrap() < gross.asked_us / 10.0, "{none:?}, {gross:?}");
    assert!(none.asked_us.abs() < f64::EPSILON, "{none:?}");
    for answer in &done.answers {
        assert_eq!(answer.gates.len(), 2, "{answer:?}");
        assert!(
            answer.gates.iter().all(|gate| gate.ci95.is_none() || gate.one_sided.is_some()),
            "{answer:?}"
        );
    }
    // Each arm has a block in every round, with every latency.
    assert_eq!(done.blocks.len(), 4 * done.rounds as usize);
    for block in &done.blocks {
        assert!(decode_histogram(block.hist.as_deref().unwrap()).unwrap().len() > 100, "{block:?}");
    }
    assert_nothing_left(&program.state());
    recomputed(&first, &program);

    // Interrupted in its second run: the first is kept, and nothing is left.
    let child = program
        .command(&with(&["--runs", "2", "--beside", "busy:0.1"]))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let groups = format!("commensal-lab-{}-", child.id());
    until("the run begins", || !cgroups_named(&groups).is_empty());
    assert!(signal(child.id(), Signal::INT));
    let output = child.wait_with_output().unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("1 of 2 runs are in") && err.contains("stopped before its end"), "{err}");
    assert!(cgroups_named(&groups).is_empty(), "{err}");
    assert_nothing_left(&program.state());
    assert_eq!(record(&file), first);

    // What is there is told again, in each form, and is no other calibration's.
    let status = i32::from(!commensal_lab::calibrate::summarise(&first).holds());
    let one = ["--runs", "1", "--beside", "busy:0.1"];
    let (again, err) = program.expect(status, &with(&one));
    assert_eq!(again, out);
    assert!(err.is_empty(), "{err}");
    let (marked, _) = program.expect(status, &with(&[&one[..], &["--markdown"]].concat()));
    assert!(marked.contains("| harm | answers |"), "{marked}");
    let (json, _) = program.expect(status, &with(&[&one[..], &["--json"]].concat()));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["rows"].as_array().map(Vec::len), Some(2));
    let (_, err) = program.expect(2, &with(&["--runs", "1"]));
    assert!(err.contains("(--beside) was busy:0.1, but the options request none"), "{err}");
}

/// Median, percentiles, Hodges-Lehmann estimate and bounds by numpy's and scipy's own procedures, from the latencies.
fn recomputed(record: &Calibration, program: &Program) {
    let test = "statistics by scipy";
    let found = Command::new("python3").args(["-c", "import scipy, numpy"]).output();
    if !found.is_ok_and(|found| found.status.success()) {
        println!("skipped: {test}: no python3 with scipy");
        return;
    }
    let done = &record.runs[0];
    let mut latencies = String::new();
    for block in &done.blocks {
        let histogram = decode_histogram(block.hist.as_deref().unwrap()).unwrap();
        for one in histogram.iter_recorded() {
            let (us, count) = (one.value_iterated_to(), one.count_since_last_iteration());
            writeln!(latencies, "{},{},{us},{count}", block.arm, block.round).unwrap();
        }
    }
    std::fs::write(program.path("latencies.csv"), latencies).unwrap();
    std::fs::write(program.path("done.json"), serde_json::to_string(done).unwrap()).unwrap();
    let mut python = Command::new("python3");
    let output = python.args(["-c", RECOMPUTED]).current_dir(program.dir.path()).output().unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let compared: u32 = text(&output.stdout).trim().parse().unwrap();
    if compared == 0 {
        println!("skipped: {test}: other work disturbed a round of each harm");
    }
}

/// The bounds are those shifts at which scipy's exact test changes its mind.
const RECOMPUTED: &str = r#"
import json, itertools
import numpy as np
from scipy.stats import wilcoxon

done = json.load(open("done.json"))
latencies = {}
for line in open("latencies.csv"):
    arm, number, us, count = line.rsplit(",", 3)
    latencies.setdefault((arm, int(number)), []).append((int(us), int(count)))

def nearest_rank(arm, number, p):
    values = np.repeat(*np.array(latencies[arm, number]).T)
    return float(np.percentile(values, p, method="inverted_cdf"))

seen = {}
for block in done["blocks"]:
    for key, p in (("p50_us", 50), ("p90_us", 90)):
        if block[key] is not None:
            mine = nearest_rank(block["arm"], block["round"], p)
            assert abs(mine - block[key]) <= max(1.0, 0.001 * mine), (block["arm"], block["round"], key, mine, block[key])
            seen[block["arm"], block["round"], key] = block[key]

def p_value(x, shift, side):
    return wilcoxon(x - shift, alternative=side, method="exact").pvalue

compared = 0
for answer in done["answers"]:
    for gate in answer["gates"]:
        key = gate["metric"] + "_us"
        arm = answer["harm"]["arm"]
        rounds = [n for n in range(answer["rounds"]) if (arm, n, key) in seen and ("baseline", n, key) in seen]
        x = np.array([np.log(seen[arm, n, key] / seen["baseline", n, key]) for n in rounds])
        # Which of the disturbed rounds an answer rests on is not on record.
        if len(x) < answer["rounds"]:
            continue
        walsh = [(x[i] + x[j]) / 2 for i, j in itertools.combinations_with_replacement(range(len(x)), 2)]
        estimate = 100 * np.expm1(np.median(walsh))
        assert abs(estimate - gate["harm_pct"]) < 1e-6, (arm, key, estimate, gate)
        for bounds, level in ((gate["ci95"], 0.025), (gate["one_sided"], answer["level"])):
            if bounds is None:
                continue
            lo, hi = np.log1p(np.array(bounds) / 100)
            hair = 1e-7
            assert p_value(x, lo - hair, "greater") <= level, (arm, key, "lo", bounds, level)
            assert p_value(x, lo + hair, "greater") > level, (arm, key, "lo", bounds, level)
            assert p_value(x, hi + hair, "less") <= level, (arm, key, "hi", bounds, level)
            assert p_value(x, hi - hair, "less") > level, (arm, key, "hi", bounds, level)
            compared += 1
print(compared)
"#;

/// Median time of some requests to a service, by a client of nobody's lab.
const ASKED: &str = r#"
import http.client, statistics, sys, time
port, path = int(sys.argv[1]), "/cpu?cpu=1&count=1000"
def order(before, after):
    c = http.client.HTTPConnection("127.0.0.1", port)
    c.request("POST", f"/slow?before={before}&after={after}")
    assert c.getresponse().status == 200
def ask():
    c = http.client.HTTPConnection("127.0.0.1", port)
    c.connect()
    took = []
    for _ in range(60):
        time.sleep(0.006)
        began = time.perf_counter()
        c.request("GET", path)
        c.getresponse().read()
        took.append(time.perf_counter() - began)
    return statistics.median(took)
added = 0.004
differences = []
for _ in range(5):
    order(0, int(added * 1e9))
    alone = ask()
    order(int(added * 1e9), 0)
    differences.append(ask() - alone)
print(statistics.median(differences) / added)
"#;

/// The harm is there, seen by a client that knows nothing of it: its own clock, another language's HTTP.
// promise 35
#[test]
fn another_client_sees_the_harm() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: another_client_sees_the_harm: no python3");
        return;
    }
    let program = Program::new("client");
    let service = Server::start(&program, &["workload", "http", "--port", "0", "--workers", "2"]);
    let addr: SocketAddr = service.addr.parse().unwrap();
    let python = Command::new("python3").args(["-c", ASKED]).arg(addr.port().to_string()).output().unwrap();
    let told = http(TcpStream::connect(addr).unwrap(), "POST", "/slow?before=0&after=0");
    assert!(python.status.success(), "{}", text(&python.stderr));
    let seen: f64 = text(&python.stdout).trim().parse().unwrap();
    // Of what was added; other tests have the CPUs as well.
    assert!((0.7..1.5).contains(&seen), "{seen} times what was added");
    // The service counts the same: 600 requests, half of them 4 ms later.
    let body = told.split_once("\r\n\r\n").unwrap().1;
    let counted: Vec<u64> = body.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(counted[0] == 600 && counted[1] >= 300 * 4_000_000, "{body}");
}
