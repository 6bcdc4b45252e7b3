//! Compares commensal's load generator with others: the latencies that each reports for a service with stalls, and the
//! CPU time per request.
//!
//! The service is the built-in responder: one thread, a constant response, and stalls at known times. So the latencies
//! that a perfect observer would measure can be computed. The tools run in turn, several times, and medians are
//! printed.

use super::REPEATS;
use anyhow::{Context, bail};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Requests per second for tools that support a rate.
const RATE: u32 = 2_000;
const CONNECTIONS: u32 = 50;
const STALL_MS: u64 = 500;
const EVERY_S: u64 = 5;
/// Duration in s of a run against the service without stalls.
const FAST_S: u64 = 5;
/// Duration in s of a run against the stalling service: three stalls.
const STALLS_S: u64 = 15;
/// Rates at which the generator's own lateness is measured, in requests per second.
const LADDER: [u32; 3] = [10_000, 20_000, 50_000];
/// Goal for the generator's lateness in us.
const LATENESS_GOAL_US: f64 = 100.0;
const LADDER_S: u64 = 5;
const LADDER_REPEATS: usize = 5;

/// wrk script that prints: requests, duration of the run in us, then P50, P99 and P99.9 in us.
const WRK_SCRIPT: &str = r#"done = function(summary, latency, requests)
  io.write(string.format("said %d %d %f %f %f\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
"#;

/// A tool with a set of options.
struct Tool {
    name: &'static str,
    program: &'static str,
    /// Package that contains the tool.
    package: &'static str,
    paced: bool,
    args: fn(url: &str, seconds: u64, script: &Path) -> Vec<String>,
    read: fn(&str) -> Option<Said>,
}

/// Latencies in ms that a tool reported, with the numbers of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Said {
    per_s: f64,
    requests: f64,
    p50: f64,
    p99: f64,
    p999: Option<f64>,
}

const TOOLS: [Tool; 6] = [
    Tool {
        name: "commensal, from the schedule",
        program: "commensal",
        package: "built here",
        paced: true,
        args: |url, seconds, _| own(url, &["--rate", &RATE.to_string()], seconds),
        read: own_said,
    },
    Tool {
        name: "commensal --closed",
        program: "commensal",
        package: "built here",
        paced: false,
        args: |url, seconds, _| own(url, &["--closed", &CONNECTIONS.to_string()], seconds),
        read: own_said,
    },
    Tool {
        name: "wrk",
        program: "wrk",
        package: "Debian package wrk",
        paced: false,
        args: |url, seconds, script| {
            let words = format!("-t1 -c{CONNECTIONS} -d{seconds}s --latency -s {} {url}", script.display());
            words.split(' ').map(str::to_owned).collect()
        },
        read: wrk_said,
    },
    Tool {
        name: "hey -q",
        program: "hey",
        package: "Debian package hey",
        paced: true,
        args: |url, seconds, _| {
            let words = format!("-z {seconds}s -c {CONNECTIONS} -q {} {url}", RATE / CONNECTIONS);
            words.split(' ').map(str::to_owned).collect()
        },
        read: hey_said,
    },
    Tool {
        name: "oha -q",
        program: "oha",
        package: "cargo install oha",
        paced: true,
        args: |url, seconds, _| oha(url, seconds, ""),
        read: oha_said,
    },
    Tool {
        name: "oha -q --latency-correction",
        program: "oha",
        package: "cargo install oha",
        paced: true,
        args: |url, seconds, _| oha(url, seconds, " --latency-correction"),
        read: oha_said,
    },
];

fn own(url: &str, how: &[&str], seconds: u64) -> Vec<String> {
    let connections = CONNECTIONS.to_string();
    let length = format!("{seconds}s");
    let rest = ["--warmup", "0s", "--for", &length, "--connections", &connections, "--json"];
    let words = ["lab", "load", url].into_iter().chain(how.iter().copied()).chain(rest);
    words.map(str::to_owned).collect()
}

fn oha(url: &str, seconds: u64, more: &str) -> Vec<String> {
    let words = format!("--no-tui --output-format json -z {seconds}s -c {CONNECTIONS} -q {RATE}{more} {url}");
    words.split(' ').map(str::to_owned).collect()
}

fn own_said(text: &str) -> Option<Said> {
    let report: serde_json::Value = serde_json::from_str(text.get(..=text.rfind('}')?)?).ok()?;
    let ms = |key: &str| Some(report["latency_us"][key].as_f64()? / 1e3);
    Some(Said {
        per_s: report["achieved_per_s"].as_f64()?,
        requests: report["sent"].as_f64()?,
        p50: ms("p50")?,
        p99: ms("p99")?,
        p999: ms("p99.9"),
    })
}

fn wrk_said(text: &str) -> Option<Said> {
    let line = text.lines().find_map(|line| line.strip_prefix("said "))?;
    let said: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [requests, us, p50, p99, p999] = said[..] else { return None };
    let per_s = requests / (us / 1e6);
    Some(Said { per_s, requests, p50: p50 / 1e3, p99: p99 / 1e3, p999: Some(p999 / 1e3) })
}

fn hey_said(text: &str) -> Option<Said> {
    let after = |key: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(key))?;
        line.split_whitespace().find_map(|word| word.parse::<f64>().ok())
    };
    let requests = text.lines().find_map(|line| line.trim().strip_prefix("[200]"))?;
    let requests = requests.split_whitespace().next()?.parse().ok()?;
    let (per_s, p50, p99) = (after("Requests/sec:")?, after("50% in")? * 1e3, after("99% in")? * 1e3);
    Some(Said { per_s, requests, p50, p99, p999: None })
}

fn oha_said(text: &str) -> Option<Said> {
    let report: serde_json::Value = serde_json::from_str(text.get(..=text.rfind('}')?)?).ok()?;
    let ms = |key: &str| Some(report["latencyPercentiles"][key].as_f64()? * 1e3);
    let per_s = report["summary"]["requestsPerSec"].as_f64()?;
    let requests = report["statusCodeDistribution"]["200"].as_f64()?;
    Some(Said { per_s, requests, p50: ms("p50")?, p99: ms("p99")?, p999: ms("p99.9") })
}

/// Runs the comparison and prints it.
pub fn run() -> anyhow::Result<()> {
    let mut build = crate::tree::cargo();
    build.args(["build", "--release", "--quiet", "--package", "commensal"]);
    if !build.current_dir(crate::tree::root()).status()?.success() {
        bail!("commensal does not build");
    }
    let program = std::env::current_exe()?.with_file_name("commensal");
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("said.lua");
    std::fs::write(&script, WRK_SCRIPT)?;
    println!(
        "load generators: {CONNECTIONS} connections, {RATE} requests/s if the tool supports a rate, medians of \
         {REPEATS} runs\n"
    );
    compare(&program, &script, "a fast service", FAST_S, &[])?;
    let stalls = ["--stall-ms", &STALL_MS.to_string(), "--stall-every-s", &EVERY_S.to_string()];
    let what = format!("a service that stalls for {STALL_MS} ms every {EVERY_S} s");
    compare(&program, &script, &what, STALLS_S, &stalls)?;
    ladder(&program)
}

fn compare(program: &Path, script: &Path, what: &str, seconds: u64, stalls: &[&str]) -> anyhow::Result<()> {
    println!("{what}, {seconds} s per run; milliseconds");
    println!("| tool | requested/s | achieved/s | P50 | P99 | P99.9 | its CPU per request |");
    println!("|---|---|---|---|---|---|---|");
    let mut seen: Vec<Vec<(Said, f64)>> = TOOLS.iter().map(|_| Vec::new()).collect();
    let mut absent = [false; TOOLS.len()];
    for _ in 0..REPEATS {
        for (i, tool) in TOOLS.iter().enumerate() {
            // A new service each time, so that the stalls occur at the same times in every run.
            let service = Service::start(program, stalls)?;
            match once(program, tool, &service.url(), seconds, script)? {
                Some(one) => seen[i].push(one),
                None => absent[i] = true,
            }
        }
    }
    if !stalls.is_empty() {
        let at = |q: f64| observed_ms(q).map_or("as without".to_owned(), |ms| format!("{ms:.0}"));
        println!(
            "| a perfect observer (computed) | {RATE} | {RATE} | {} | {} | {} | |",
            at(0.5),
            at(0.99),
            at(0.999)
        );
    }
    for ((tool, seen), absent) in TOOLS.iter().zip(&seen).zip(absent) {
        if absent || seen.is_empty() {
            println!(
                "| {} | not measured: there is no {} ({}) | | | | | |",
                tool.name, tool.program, tool.package
            );
            continue;
        }
        let of = |pick: &dyn Fn(&(Said, f64)) -> f64| middle(seen.iter().map(pick).collect());
        let p999 = seen[0].0.p999.map(|_| of(&|(said, _)| said.p999.unwrap_or(f64::NAN)));
        println!(
            "| {} | {} | {:.0} | {:.2} | {:.2} | {} | {:.1} us |",
            tool.name,
            if tool.paced { RATE.to_string() } else { "as many as possible".to_owned() },
            of(&|(said, _)| said.per_s),
            of(&|(said, _)| said.p50),
            of(&|(said, _)| said.p99),
            p999.map_or("not told".to_owned(), |ms| format!("{ms:.2}")),
            of(&|(said, cpu_s)| cpu_s / said.requests.max(1.0) * 1e6)
        );
    }
    println!();
    Ok(())
}

/// Returns the latency in ms at a quantile, for requests that arrive at random and wait for the end of a stall. A
/// request that is due within a stall waits between 0 and the stall's whole length, uniformly distributed. `None` if
/// stalls do not affect this quantile.
fn observed_ms(quantile: f64) -> Option<f64> {
    let stalled = STALL_MS as f64 / (EVERY_S as f64 * 1e3);
    let beyond = (1.0 - quantile) / stalled;
    (beyond < 1.0).then_some(STALL_MS as f64 * (1.0 - beyond))
}

/// Runs a tool once; returns the latencies that it reports, and the CPU time that it used in s. `None` if the tool is
/// not installed.
fn once(
    program: &Path,
    tool: &Tool,
    url: &str,
    seconds: u64,
    script: &Path,
) -> anyhow::Result<Option<(Said, f64)>> {
    let path = if tool.program == "commensal" { program.to_owned() } else { PathBuf::from(tool.program) };
    if Command::new(&path).arg("--help").output().is_err() {
        return Ok(None);
    }
    let mut shell = Command::new("sh");
    // The shell prints the CPU time of its children.
    shell.args(["-c", "\"$@\"; times", "sh"]).arg(&path).args((tool.args)(url, seconds, script));
    let output = shell.stderr(Stdio::piped()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let what = || format!("{} said {text}{}", tool.name, String::from_utf8_lossy(&output.stderr));
    let said = (tool.read)(&text).with_context(what)?;
    let cpu_s = children_s(&text).with_context(what)?;
    Ok(Some((said, cpu_s)))
}

/// Parses user plus system time of the children in s from the last line of `times`: `0m1.20s 0m0.34s`.
fn children_s(text: &str) -> Option<f64> {
    let mut sum = 0.0;
    for word in text.lines().next_back()?.split_whitespace() {
        let (minutes, seconds) = word.strip_suffix('s')?.split_once('m')?;
        sum += minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?;
    }
    Some(sum)
}

/// Measures and prints the lateness of the generator itself, by rate.
fn ladder(program: &Path) -> anyhow::Result<()> {
    println!("how late the generator is, {LADDER_S} s per run, medians of {LADDER_REPEATS} runs");
    println!("| requested/s | achieved | lateness P50 | lateness P99 (worst run) | its CPU | believed | |");
    println!("|---|---|---|---|---|---|---|");
    for rate in LADDER {
        let mut rows: Vec<[f64; 4]> = Vec::new();
        let mut valid = 0;
        for _ in 0..LADDER_REPEATS {
            let service = Service::start(program, &[])?;
            let mut command = Command::new(program);
            command.args(["lab", "load", &service.url(), "--json", "--warmup", "1s", "--for"]);
            let output = command.arg(format!("{LADDER_S}s")).args(["--rate", &rate.to_string()]).output()?;
            let report: serde_json::Value = serde_json::from_slice(&output.stdout)
                .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
            let number = |value: &serde_json::Value| value.as_f64().unwrap_or(f64::NAN);
            valid += usize::from(report["valid"] == true);
            let lateness = &report["lateness_us"];
            let share = number(&report["achieved_per_s"]) / number(&report["offered_per_s"]) * 100.0;
            let cpu = number(&report["generator_cpu_s"]) / number(&report["measured_s"]) * 100.0;
            rows.push([share, number(&lateness["p50"]), number(&lateness["p99"]), cpu]);
        }
        let of = |i: usize| middle(rows.iter().map(|row| row[i]).collect());
        let worst = rows.iter().map(|row| row[2]).fold(0.0, f64::max);
        let verdict = if of(2) <= LATENESS_GOAL_US { "met" } else { "MISSED" };
        println!(
            "| {rate} | {:.1} % | {:.1} us | {:.0} us ({worst:.0}) | {:.0} % | {valid} of {LADDER_REPEATS} | goal \
             {LATENESS_GOAL_US} us {verdict} |",
            of(0),
            of(1),
            of(2),
            of(3)
        );
    }
    println!();
    Ok(())
}

fn middle(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The responder process, which is killed when this value is dropped.
struct Service {
    child: Child,
    addr: String,
}

impl Service {
    fn start(program: &Path, stalls: &[&str]) -> anyhow::Result<Service> {
        let mut command = Command::new(program);
        command.args(["workload", "responder"]).args(stalls).stdout(Stdio::piped());
        let child = command.spawn().context("start the responder")?;
        let mut service = Service { child, addr: String::new() };
        let mut line = String::new();
        let out = service.child.stdout.as_mut().context("no output")?;
        BufReader::new(out).read_line(&mut line)?;
        service.addr =
            line.trim().strip_prefix("listening ").context("the responder did not start")?.to_owned();
        Ok(service)
    }

    fn url(&self) -> String {
        format!("http://{}/", self.addr)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_understood() {
        let wrk = "Running 5s test\nsaid 10000 5000000 120.000000 900.000000 2000.000000\n";
        let said = Said { per_s: 2_000.0, requests: 10_000.0, p50: 0.12, p99: 0.9, p999: Some(2.0) };
        assert_eq!(wrk_said(wrk), Some(said));
        let hey = "  Requests/sec:\t2000.0\n\n  50% in 0.0005 secs\n  99% in 0.0020 secs\n\n  [200]\t10000 responses\n";
        let said = Said { per_s: 2_000.0, requests: 10_000.0, p50: 0.5, p99: 2.0, p999: None };
        assert_eq!(hey_said(hey), Some(said));
        let oha = r#"{"summary":{"requestsPerSec":2000.0},"statusCodeDistribution":{"200":10000},
            "latencyPercentiles":{"p50":0.0005,"p99":0.002,"p99.9":0.004}}"#;
        let said = Said { p999: Some(4.0), ..said };
        assert_eq!(oha_said(oha), Some(said));
        assert!(own_said("{}").is_none() && wrk_said("").is_none() && hey_said("").is_none());
        assert_eq!(children_s("text\n0m0.01s 0m0.00s\n1m1.20s 0m0.30s\n"), Some(61.5));
    }

    #[test]
    fn what_a_perfect_observer_sees() {
        // A tenth of the time is stalled, so the worst hundredth of all requests is the worst tenth of those in stalls.
        assert_eq!(observed_ms(0.5), None);
        assert!((observed_ms(0.99).unwrap_or_default() - 450.0).abs() < 1e-9);
        assert!((observed_ms(0.999).unwrap_or_default() - 495.0).abs() < 1e-9);
    }
}
