//! `lab load --from` over a real sshd on loopback.

use crate::load_from::{Counting, ENDS, bin, load, program_file, said, stop};
use crate::support::{Program, text};
use commensal_testkit::{told, until, until_still, unused_address};
use serde_json::Value;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A real sshd with keys, configuration and port of its own.
struct Sshd {
    child: Child,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first of these programs that is there.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

impl Sshd {
    /// Starts it, and gives a client that knows it as `host` and nothing else; or why that cannot be.
    fn start(program: &Program) -> Result<(Sshd, String), String> {
        let there = |name: &str| find(name).ok_or(format!("there is no {name}"));
        let (sshd, ssh, keygen) = (there("sshd")?, there("ssh")?, there("ssh-keygen")?);
        let dir = program.dir.path().display();
        for key in ["host_key", "user_key"] {
            let made = Command::new(&keygen)
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(program.path(key))
                .status()
                .unwrap();
            assert!(made.success());
        }
        let port = unused_address().port();
        let config = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {dir}/host_key\nPidFile none\nAuthorizedKeysFile {dir}/user_key.pub\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n\
             SetEnv PATH={dir}/bin:/usr/bin:/bin\n"
        );
        std::fs::write(program.path("sshd_config"), config).unwrap();
        let log = std::fs::File::create(program.path("sshd.log")).unwrap();
        let mut command = Command::new(sshd);
        command.args(["-D", "-e", "-f"]).arg(program.path("sshd_config")).stderr(log);
        let mut sshd = Sshd { child: command.stdin(Stdio::null()).spawn().unwrap() };
        let said = || std::fs::read_to_string(program.path("sshd.log")).unwrap().trim().to_owned();
        let mut ended = false;
        until(told(said), || {
            ended = sshd.child.try_wait().unwrap().is_some();
            ended || TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        if ended {
            return Err(format!("sshd does not run here: {}", said()));
        }
        let known = std::fs::read_to_string(program.path("host_key.pub")).unwrap();
        std::fs::write(program.path("known_hosts"), format!("[127.0.0.1]:{port} {known}")).unwrap();
        let config = format!(
            "Host host\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {dir}/user_key\n  IdentitiesOnly yes\n\
             Host *\n  UserKnownHostsFile {dir}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
        );
        std::fs::write(program.path("ssh_config"), config).unwrap();
        let client = format!("#!/bin/sh\nexec {} -F {dir}/ssh_config \"$@\"\n", ssh.display());
        let tried = program.path("try");
        program_file(&tried, &client);
        let tried = Command::new(tried).args(["-o", "BatchMode=yes", "host", "true"]).output().unwrap();
        match tried.status.success() {
            true => Ok((sshd, client)),
            false => Err(format!("sshd lets nobody in here: {} {}", text(&tried.stderr).trim(), said())),
        }
    }
}

#[test]
fn over_a_real_ssh() {
    let program = Program::new("load-from-ssh");
    let (_sshd, client) = match Sshd::start(&program) {
        Ok(started) => started,
        Err(why) => {
            println!("skipped: over_a_real_ssh: {why}");
            return;
        }
    };
    let (bin, server) = (bin(&program, &client), Counting::start());
    let url = format!("{}it's?a=$b", server.url());
    let args = [&url, "--rate", "100", "--for", "1h", "--json", "--from", "host"];
    let child = load(&program, &bin, &args).spawn().unwrap();
    server.until(20);
    stop(&child);
    let (status, out, err) = said(&child.wait_with_output().unwrap());
    assert!(ENDS.contains(&status), "{out}{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((report["cut"].as_bool(), report["asked"]["url"].as_str()), (Some(true), Some(url.as_str())));
    // Killed, we take ssh with us, and the load there ends.
    let mut child = load(&program, &bin, &args).spawn().unwrap();
    server.until(20);
    child.kill().unwrap();
    child.wait().unwrap();
    let answered = || server.answered.load(Ordering::Relaxed);
    until_still(Duration::from_millis(500), "the number of requests", answered);
    let check = |from: &str, words: &[&str]| {
        let args = [&url, "--rate", "10", "--for", "200ms", "--from", from];
        let (status, out, err) = said(&load(&program, &bin, &args).output().unwrap());
        assert_eq!((status, out.as_str()), (2, ""), "{from}: {err}");
        assert!(words.iter().all(|words| err.contains(words)), "{from}: {err}");
    };
    check("nobody-is-called-so.invalid", &["Could not resolve hostname", "check the name"]);
    std::fs::write(program.path("known_hosts"), "").unwrap();
    check("host", &["Host key verification failed", "accept the key"]);
}
