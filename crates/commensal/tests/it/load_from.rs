//! `lab load --from`: what becomes of each way in which it may end. A program called `ssh` in front of PATH runs the command on this
//! machine.

use crate::support::{Program, text};
use commensal_testkit::{Signal, signal, until, unused_address};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A measurement that ends: believed or not is the machine's affair.
pub(crate) const ENDS: [i32; 2] = [0, 4];

/// Answers 200 to everything and counts; it ends with the test.
pub struct Counting {
    addr: SocketAddr,
    pub(crate) answered: Arc<AtomicU64>,
}

impl Counting {
    pub fn start() -> Counting {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (addr, answered) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
        let count = Arc::clone(&answered);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let count = Arc::clone(&count);
                std::thread::spawn(move || answer(stream, &count));
            }
        });
        Counting { addr, answered }
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.addr)
    }

    /// Waits until `more` requests than now were answered.
    pub fn until(&self, more: u64) {
        let most = self.answered.load(Ordering::Relaxed) + more;
        until("the load comes", || self.answered.load(Ordering::Relaxed) >= most);
    }
}

fn answer(mut stream: TcpStream, count: &AtomicU64) {
    let (mut seen, mut chunk) = (Vec::new(), [0u8; 4096]);
    while let Ok(n @ 1..) = stream.read(&mut chunk) {
        seen.extend_from_slice(&chunk[..n]);
        while let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") {
            seen.drain(..end + 4);
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Writes a program.
pub(crate) fn program_file(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A folder with `ssh`, and with `commensal` as the other side finds it.
pub(crate) fn bin(program: &Program, ssh: &str) -> PathBuf {
    let bin = program.path("bin");
    std::fs::create_dir(&bin).unwrap();
    program_file(&bin.join("ssh"), ssh);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_commensal"), bin.join("commensal")).unwrap();
    bin
}

/// Runs the command on this machine, unless the host is one that has a trouble. What it was asked lies beside it.
pub(crate) const FAKE_SSH: &str = r#"#!/bin/sh
printf '%s\n' "$@" >"$(dirname "$0")/asked"
case "$4" in
nowhere) echo "ssh: Could not resolve hostname nowhere: Name or service not known" >&2; exit 255 ;;
stranger) echo "Host key verification failed." >&2; exit 255 ;;
bare) PATH=/usr/bin:/bin ;;
older) echo "error: unexpected argument '--until-eof' found" >&2; exit 2 ;;
newer) echo '{"schema": "commensal.load/9"}'; exit 0 ;;
chatty) echo "Welcome!" ;;
dies) kill -TERM $$ ;;
esac
exec sh -c "$5"
"#;

pub(crate) fn load(program: &Program, bin: &Path, args: &[&str]) -> Command {
    let mut command =
        program.command(&[&["lab", "load", "--connections", "2", "--warmup", "0s"], args].concat());
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", bin.display()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn said(output: &Output) -> (i32, String, String) {
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Ends the program as Ctrl-C does; SIGTERM, because a shell without job control has its jobs ignore SIGINT.
pub(crate) fn stop(child: &Child) {
    assert!(signal(child.id(), Signal::TERM));
}

#[test]
fn each_trouble_of_ssh_and_of_the_other_side_is_a_sentence() {
    let program = Program::new("load-from-bad");
    let (bin, server) = (bin(&program, FAKE_SSH), Counting::start());
    let url = server.url();
    let check = |url: &str, from: &str, words: &[&str]| {
        let args = [url, "--rate", "10", "--for", "200ms", "--from", from];
        let (status, out, err) = said(&load(&program, &bin, &args).output().unwrap());
        assert_eq!((status, out.as_str()), (2, ""), "{from}: {err}");
        assert!(words.iter().all(|words| err.contains(words)), "{from}: {err}");
    };
    check(&url, "nowhere", &["ssh to nowhere failed", "Could not resolve", "check the name"]);
    check(&url, "stranger", &["Host key verification failed", "accept the key"]);
    check(&url, "bare", &["bare finds no commensal", "install the same version there"]);
    check(&url, "older", &["older has another version", "install the same one"]);
    check(&url, "newer", &["newer has another version", "commensal.load/9"]);
    check(&url, "chatty", &["printed no report", "Welcome!", "standard error"]);
    check(&url, "dies", &["killed by signal 15"]);
    // What the other side refuses is its own sentence.
    let free = unused_address();
    check(&format!("http://{free}/"), "user@host", &["user@host: http://", "and that the server runs"]);
    let mut command = load(&program, &bin, &[&url, "--rate", "10", "--from", "user@host"]);
    let (status, _, err) = said(&command.env("PATH", program.path("none")).output().unwrap());
    assert!(status == 2 && err.contains("install OpenSSH's client"), "{err}");
}

#[test]
fn ctrl_c_here_ends_the_load_there_and_gets_its_report() {
    let program = Program::new("load-from-stop");
    let (bin, server) = (bin(&program, FAKE_SSH), Counting::start());
    let url = server.url();
    let args = [&url, "--rate", "100", "--for", "1h", "--from", "user@host", "--json"];
    let child = load(&program, &bin, &args).spawn().unwrap();
    server.until(20);
    stop(&child);
    let (status, out, err) = said(&child.wait_with_output().unwrap());
    assert!(ENDS.contains(&status), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["cut"], true);
    assert!(report["caveats"].to_string().contains("stopped after"), "{}", report["caveats"]);
    assert!(report["completed"].as_u64().unwrap() > 0);
    // The same when the other side loses us, whatever becomes of ssh.
    let args = [&url, "--rate", "100", "--for", "1h", "--until-eof", "--json"];
    let mut child = load(&program, &bin, &args).stdin(Stdio::piped()).spawn().unwrap();
    server.until(20);
    drop(child.stdin.take());
    let (status, out, err) = said(&child.wait_with_output().unwrap());
    assert!(ENDS.contains(&status) && out.contains("\"cut\": true"), "{out}{err}");
}

mod measure {
    use super::*;

    #[test]
    fn the_report_comes_from_the_other_side_and_no_word_is_taken_apart() {
        let program = Program::new("load-from");
        let (bin, server) = (bin(&program, FAKE_SSH), Counting::start());
        let url = format!("{}a'b$(:>gone)?c=*&d=`:>gone`;:>gone", server.url());
        let args =
            [&url, "--rate", "50", "--for", "1s", "--seed", "7", "--slo", "p90=50ms", "--from", "user@host"];
        let (status, out, err) =
            said(&load(&program, &bin, &[&args[..], &["--json"]].concat()).output().unwrap());
        assert!(ENDS.contains(&status), "{out}{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        let asked = &report["asked"];
        assert_eq!((asked["seed"].as_u64(), asked["url"].as_str()), (Some(7), Some(url.as_str())));
        assert_eq!((asked["warmup_s"].as_f64(), asked["connections"].as_u64()), (Some(0.0), Some(2)));
        assert_eq!(
            (report["cut"].as_bool(), report["slo"]["seen"]["windows"].as_u64()),
            (Some(false), Some(1))
        );
        let histogram = commensal_lab::record::decode_histogram(report["hist"].as_str().unwrap()).unwrap();
        assert_eq!(
            histogram.len(),
            report["completed"].as_u64().unwrap() + report["timeouts"].as_u64().unwrap()
        );
        assert!(server.answered.load(Ordering::Relaxed) > 0 && !program.path("gone").exists());
        let asked = std::fs::read_to_string(bin.join("asked")).unwrap();
        assert!(asked.starts_with("-o\nBatchMode=yes\n--\nuser@host\ncommensal lab load --json"), "{asked}");
        // For people, in a closed loop as well.
        let args = [&server.url(), "--closed", "2", "--for", "500ms", "--series", "--from", "user@host"];
        let (status, out, err) = said(&load(&program, &bin, &args).output().unwrap());
        assert!(ENDS.contains(&status) && out.contains("closed loop, 2 connections"), "{out}{err}");
        assert!(out.contains("answered/s"), "{out}");
    }
}
