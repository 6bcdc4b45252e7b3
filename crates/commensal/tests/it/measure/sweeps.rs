//! Values of one thing as arms of one run, and gates on what Prometheus says: short real runs. Of what is measured only the
//! direction is asserted: offline work that may have more does more.

use crate::bad_input::assert_nothing_left;
use crate::support::{Program, can_write_cgroups, text};
use commensal_lab::record::{Block, Metric, Run};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Statuses that are a verdict.
const VERDICTS: [i32; 4] = [0, 1, 3, 4];

/// Runs `quickstart` by one round of short long blocks; standard output and error, and the record, which is as the schema says.
pub(crate) fn quick(program: &Program, args: &[&str]) -> (String, String, Run) {
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
