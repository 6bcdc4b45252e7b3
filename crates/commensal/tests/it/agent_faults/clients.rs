//! Clients of the control socket that ask and never read.

use super::{asked, nothing_left};
use crate::agent::{Agent, Theirs, limited, until};
use crate::support::{Program, can_write_cgroups};
use commensal_agent::control::SOCKET;
use commensal_testkit::Signal;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;

const CLIENTS: usize = 64;
const QUESTION: &[u8] = b"GET /v1/snapshot HTTP/1.1\r\nHost: agent\r\n\r\n";

// promise 19
#[test]
fn clients_that_never_read() {
    let test = "clients_that_never_read";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("mute");
    let groups = program.groups(&format!(
        "[group.theirs]\nclass = \"offline\"\ncpu.max = \"0.5 cores\"\nmatch = [{{ cgroup = \"/{}-batch-*\" }}]\n",
        program.prefix
    ));
    let first = Theirs::new(&program, "batch-first");
    let mut agent = Agent::start(&program, &groups, &[]);
    until("the group is limited", || limited(&first.cpu));
    let before = asked(&program).ticks;
    let (mut clients, mut sent) = (Vec::new(), 0);
    for _ in 0..CLIENTS {
        let mut client = UnixStream::connect(program.state().join(SOCKET)).unwrap();
        client.set_nonblocking(true).unwrap();
        // As many questions as the socket takes.
        loop {
            match client.write(QUESTION) {
                Ok(bytes) => sent += bytes,
                Err(error) => {
                    let kinds = [ErrorKind::WouldBlock, ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
                    assert!(kinds.contains(&error.kind()), "{error}");
                    break;
                }
            }
        }
        clients.push(client);
    }
    let mut more = Vec::new();
    for number in 0..10 {
        let theirs = Theirs::new(&program, &format!("batch-{number}"));
        until("a new group is limited", || limited(&theirs.cpu));
        more.push(theirs);
    }
    assert!(agent.child.try_wait().unwrap().is_none(), "{}", agent.said());
    drop(clients);
    until("it answers", || super::snapshot(&program).is_some());
    let after = asked(&program);
    println!(
        "{test}: {CLIENTS} clients, {sent} bytes of questions, {} ticks meanwhile",
        after.ticks - before
    );
    // A tick may limit several of them.
    assert!(after.ticks > before && after.problems.is_empty(), "{after:?}");
    assert_eq!(agent.end(Signal::TERM), Some(0));
    program.expect(0, &["restore"]);
    drop((first, more));
    nothing_left(&program);
}
