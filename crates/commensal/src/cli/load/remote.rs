//! Load from a second machine: starts `ssh HOST commensal lab load --json …` and reads its report.
//!
//! Authentication, keys and jump hosts are left to ssh and the user's configuration. The remote load stops, and reports
//! its results, when its standard input ends. So Ctrl-C on this machine, the exit of this program, or a lost connection
//! stop the load on the other machine.

use super::{LabLoad, Order};
use crate::cli::Spacing;
use crate::context::Context;
use anyhow::{Context as _, bail};
use commensal_core::errno::Errno;
use commensal_core::process::{Exit, Signal};
use commensal_host::{Child, Host, SpawnSpec, Stderr, Stdin, Stdout};
use commensal_lab::loadgen::{LoadReport, REPORT_SCHEMA};
use serde::Deserialize;
use std::fmt::Write as _;
use std::io::{PipeWriter, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// Maximum size of a report in bytes: three histograms and a line per second of a day.
const REPORT_BYTES: u64 = 64 << 20;
/// Maximum size in bytes of the error output that is kept.
const WORDS_BYTES: u64 = 64 << 10;
/// Timeout for ssh to connect and to return the report, in addition to the duration of the load.
const PATIENCE: Duration = Duration::from_secs(120);
/// Timeout for the error output of an ssh that has exited: a connection-sharing ssh process may keep the pipe open.
const WORDS_PATIENCE: Duration = Duration::from_secs(1);
/// Interval between checks of the stop flag.
const PAUSE: Duration = Duration::from_millis(50);
/// Exit status of ssh when ssh itself failed, not the remote command.
const SSH_FAILED: i32 = 255;
/// Exit status of a shell that did not find the program.
const NOT_FOUND: i32 = 127;
/// Advice when ssh itself failed: a part of ssh's message, and what to do about it.
const SSH_WAYS_OUT: [(&str, &str); 4] = [
    ("Could not resolve hostname", "check the name, or give it an address under Host in ~/.ssh/config"),
    ("Host key verification failed", "connect by hand once and accept the key of the host"),
    ("Permission denied", "use a key that needs no passphrase here, such as a key that ssh-agent holds"),
    ("", "ssh must log in without a prompt"),
];

/// Runs the load on the other machine and returns its report.
pub fn ask(
    context: &mut Context,
    (from, options): (&str, &LabLoad),
    order: &Order,
    stop: &AtomicBool,
) -> anyhow::Result<LoadReport> {
    if let Some(path) = &options.hdr {
        bail!(
            "--hdr {} would be a file on the machine that generates the load: use the complete histograms of --json \
             instead, or run `commensal lab load` there with --hdr and copy the file",
            path.display()
        );
    }
    let mut running = Running::start(context, from, &command(options))?;
    let exit = running.end(context, order, stop).with_context(|| format!("--from {from}"))?;
    let words = running.words.recv_timeout(WORDS_PATIENCE).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).trim().to_owned();
    // An exit status of 4 means that there is a report, and that it is marked as invalid.
    if !matches!(exit, Exit::Code(0 | 4)) {
        return Err(failed(from, exit, &words));
    }
    if !words.is_empty() {
        eprintln!("{words}");
    }
    let text = running.report.recv_timeout(PATIENCE).unwrap_or_default();
    read(from, &text)
}

/// The remote command line: all options that determine the load, so that the defaults of the remote version do not
/// matter.
fn command(options: &LabLoad) -> String {
    let time = |time: Duration| humantime::format_duration(time).to_string();
    let mut words: Vec<String> =
        ["commensal", "lab", "load", "--json", "--until-eof"].map(str::to_owned).to_vec();
    let mut add = |name: &str, value: String| words.push(format!("--{name}={value}"));
    if let Some(rate) = options.rate {
        add("rate", rate.to_string());
    }
    if let Some(concurrency) = options.closed {
        add("closed", concurrency.to_string());
    }
    if let Some((metric, latency_us)) = options.slo {
        add("slo", format!("{}={latency_us}us", metric.label()));
        add("window", time(options.window));
    }
    let arrival = match options.arrival {
        Spacing::Poisson => "poisson",
        Spacing::Constant => "constant",
    };
    add("for", time(options.r#for.unwrap_or(super::MEASURE)));
    add("warmup", time(options.warmup));
    add("connections", options.connections.to_string());
    add("arrival", arrival.to_owned());
    add("seed", options.seed.to_string());
    add("timeout", time(options.timeout));
    words.push(options.url.clone());
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a POSIX shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A running ssh.
struct Running {
    child: Child,
    /// Write end of ssh's standard input; the remote load runs while it is open.
    input: Option<PipeWriter>,
    report: Receiver<Vec<u8>>,
    words: Receiver<Vec<u8>>,
}

impl Running {
    fn start(context: &mut Context, from: &str, command: &str) -> anyhow::Result<Running> {
        let (input_end, input) = std::io::pipe()?;
        let (words, words_end) = std::io::pipe()?;
        let mut spec = SpawnSpec::new("ssh");
        spec.args = ["-o", "BatchMode=yes", "--", from, command].map(Into::into).to_vec();
        // This program handles Ctrl-C in a terminal. If ssh received it as well, ssh would exit, and the report would
        // be lost.
        spec.own_process_group = true;
        spec.die_with_parent = true;
        spec.stdin = Stdin::Fd(Arc::new(input_end.into()));
        spec.stdout = Stdout::Pipe;
        spec.stderr = Stderr::Fd(Arc::new(words_end.into()));
        let mut child = context.host.spawn(&spec).map_err(|error| match error.errno {
            Errno::ENOENT => {
                anyhow::anyhow!("--from needs ssh, and there is none in PATH: install OpenSSH's client")
            }
            _ => error.into(),
        })?;
        let output = child.stdout.take().context("the output of ssh cannot be read")?;
        Ok(Running {
            child,
            input: Some(input),
            report: gather(output, REPORT_BYTES),
            words: gather(words, WORDS_BYTES),
        })
    }

    /// Waits for ssh to exit, and stops the load once `stop` is set.
    fn end(&mut self, context: &mut Context, order: &Order, stop: &AtomicBool) -> anyhow::Result<Exit> {
        let spec = &order.spec;
        // The remote program sends one request before the load and may wait for one after it. Each may take the whole
        // timeout.
        let beside = spec.timeout * 2 + PATIENCE;
        let mut deadline = Instant::now() + spec.warmup + spec.measure + beside;
        loop {
            if let Some(exit) = self.child.try_wait()? {
                return Ok(exit);
            }
            if stop.load(Ordering::Relaxed) && self.input.take().is_some() {
                deadline = deadline.min(Instant::now() + beside);
            }
            if Instant::now() > deadline {
                context.host.signal(&self.child.process, Signal::KILL)?;
                self.child.wait()?;
                bail!("no report arrived in time: the connection hangs, or the other machine is busy");
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Reads to the end of the stream on a separate thread, and keeps at most `most` bytes.
fn gather(mut from: impl Read + Send + 'static, most: u64) -> Receiver<Vec<u8>> {
    let (send, all) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.by_ref().take(most).read_to_end(&mut bytes);
        let _ = send.send(bytes);
        // Discards the rest, so that the writer does not block.
        let _ = std::io::copy(&mut from, &mut std::io::sink());
    });
    all
}

/// Returns the error for a missing report.
fn failed(from: &str, exit: Exit, words: &str) -> anyhow::Error {
    let line = words.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    let mut text = String::new();
    let _ = match exit {
        Exit::Code(SSH_FAILED) => {
            let way_out =
                SSH_WAYS_OUT.iter().find(|(words, _)| line.contains(words)).map_or("", |(_, way)| way);
            write!(text, "ssh to {from} failed: {line}: try `ssh -o BatchMode=yes {from} true`: {way_out}")
        }
        Exit::Code(NOT_FOUND) => write!(
            text,
            "{from} finds no commensal: {line}: install the same version there, in a folder of the PATH that \
             `ssh {from} 'echo $PATH'` prints"
        ),
        Exit::Code(_) if line.contains("unexpected argument") || line.contains("unrecognized subcommand") => {
            write!(
                text,
                "{from} has another version of commensal: {line}: install the same one on both sides"
            )
        }
        Exit::Code(_) if !words.is_empty() => {
            write!(text, "{from}: {}", words.strip_prefix("commensal: ").unwrap_or(words))
        }
        Exit::Code(status) => {
            write!(text, "{from}: `commensal lab load` ended with status {status} and printed no error")
        }
        Exit::Signal(signal) => write!(text, "ssh to {from} was killed by signal {signal}"),
    };
    anyhow::Error::msg(text)
}

/// Parses the report in the remote program's output.
fn read(from: &str, printed: &[u8]) -> anyhow::Result<LoadReport> {
    #[derive(Deserialize)]
    struct Head {
        schema: String,
    }
    let Ok(Head { schema }) = serde_json::from_slice(printed) else {
        let begin: String = String::from_utf8_lossy(printed).chars().take(80).collect();
        bail!(
            "{from} printed no report but {begin:?}: if its shell prints this when it starts, send it to standard \
             error (`ssh {from} true` must print nothing)"
        );
    };
    let other = || format!("{from} has another version of commensal: install the same one on both sides");
    if schema != REPORT_SCHEMA {
        bail!(
            "{}: it prints reports of schema {schema:?}, and this version reads {REPORT_SCHEMA:?}",
            other()
        );
    }
    serde_json::from_slice(printed).with_context(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        load: LabLoad,
    }

    /// A shell splits the command line, and the remote parser gets the same options.
    #[test]
    fn the_other_side_gets_the_same_order() {
        let check = |args: &[&str]| {
            let here = Cli::try_parse_from([&["x"], args].concat()).unwrap().load;
            let text = command(&here);
            #[allow(clippy::disallowed_methods, reason = "a test asks the shell itself")]
            let output = std::process::Command::new("sh")
                .arg("-c")
                .arg(format!("printf '%s\\0' {text}"))
                .output()
                .unwrap();
            let words = String::from_utf8(output.stdout).unwrap();
            let words: Vec<&str> = words.trim_end_matches('\0').split('\0').collect();
            assert_eq!(words[..3], ["commensal", "lab", "load"], "{text}");
            let there =
                Cli::try_parse_from(&words[2..]).unwrap_or_else(|error| panic!("{text}: {error}")).load;
            assert!(there.json && there.until_eof);
            let (here, there) = (Order::new(&here).unwrap(), Order::new(&there).unwrap());
            assert_eq!((&here.url, here.slo, &here.spec), (&there.url, there.slo, &there.spec), "{text}");
        };
        check(&["http://127.0.0.1:1/", "--rate", "0.25"]);
        check(&["http://127.0.0.1:1/a'b?c=$(d)&e=`f`;g\\h\"*~!#", "--closed", "7", "--timeout", "1s 5ns"]);
        let all = "http://127.0.0.1:1/ --rate 123456.789 --for 90min --warmup 0s --connections 3 --arrival constant --seed \
                   18446744073709551615 --slo P99.9=1.5us --window 1h";
        check(&all.split(' ').collect::<Vec<_>>());
    }

    #[test]
    fn each_failure_has_a_way_out() {
        let check = |code: i32, words: &str, want: &[&str]| {
            let said = failed("u@h", Exit::Code(code), words).to_string();
            assert!(want.iter().all(|want| said.contains(want)), "{said}");
        };
        let trusted = "Host key verification failed.";
        check(255, trusted, &["ssh to u@h failed", trusted, "accept the key"]);
        check(255, "u@h: Permission denied (publickey).", &["Permission denied", "ssh-agent"]);
        check(
            255,
            "kex_exchange_identification: read: Connection reset",
            &["`ssh -o BatchMode=yes u@h true`"],
        );
        check(127, "sh: 1: commensal: not found", &["u@h finds no commensal", "install"]);
        check(2, "error: unexpected argument '--until-eof' found\n\nUsage: …", &["another version"]);
        check(2, "commensal: http://x/ cannot be measured", &["u@h: http://x/ cannot be measured"]);
        check(1, "", &["ended with status 1"]);
    }

    #[test]
    fn what_is_no_report_of_this_version_is_told() {
        let check = |printed: &str, want: &str| {
            let said = format!("{:#}", read("h", printed.as_bytes()).unwrap_err());
            assert!(said.contains(want), "{said}");
        };
        check("", "printed no report");
        check("Welcome!\n{}", "when it starts");
        check(r#"{"schema": "commensal.load/9"}"#, "reports of schema \"commensal.load/9\"");
        check(r#"{"schema": "commensal.load/1"}"#, "another version");
    }
}
