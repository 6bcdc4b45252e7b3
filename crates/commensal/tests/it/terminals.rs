//! `top` in terminals that go away, change their size, or are tiny.

use crate::seeing::agent;
use crate::support::Program;
use commensal_agent::fixture;
use commensal_testkit::{Terminal, cpu_time, until};
use std::process::Child;

fn ended(child: &mut Child) -> Option<i32> {
    child.try_wait().unwrap().map(|status| status.code().unwrap_or(-1))
}

/// `top` ends when its terminal goes: before and after the first screen, with keys unread, with help and a filter shown.
#[test]
fn it_ends_with_its_terminal() {
    let program = Program::new("hangup");
    let _agent = agent(&program, fixture::snapshot());
    for (seen, keys) in [
        (None, ""),
        (Some("GROUP"), ""),
        (Some("GROUP"), "cmdtpin"),
        (Some("GROUP"), "?"),
        (Some("GROUP"), "/et"),
    ] {
        let terminal = Terminal::new(80, 24);
        let mut child = terminal.start(&mut program.command(&["top"]));
        seen.into_iter().for_each(|text| drop(terminal.read_until(text)));
        terminal.write(keys);
        drop(terminal);
        let id = child.id();
        until(format_args!("it ends after {keys:?}, and used {:?}", cpu_time(id)), || {
            ended(&mut child).is_some()
        });
    }
}

/// The terminal changes its size to any other one, also to nothing, and `q` still ends it.
#[test]
fn it_fits_every_size() {
    let program = Program::new("sizes");
    let _agent = agent(&program, fixture::snapshot());
    let terminal = Terminal::new(40, 10);
    let mut child = terminal.start(&mut program.command(&["top"]));
    terminal.read_until("GROUP");
    for (columns, rows) in [(1, 1), (0, 0), (2, 200), (500, 1)] {
        terminal.resize(columns, rows);
        // A key is handled after the change that came before it.
        terminal.write("r");
        assert_eq!(ended(&mut child), None, "{columns} x {rows}");
    }
    terminal.resize(200, 50);
    terminal.read_until("space hold");
    terminal.write("q");
    until("it ends", || {
        terminal.drain();
        ended(&mut child).is_some()
    });
    assert_eq!(ended(&mut child), Some(0));
}
