//! `status`, `explain` and `top` of the program, against an agent's control socket in this process.

use crate::support::{Program, text};
use commensal_agent::control::{Control, SOCKET, commands};
use commensal_agent::explain::Explained;
use commensal_agent::fixture;
use commensal_agent::publish::Published;
use commensal_agent::snapshot::Snapshot;
use commensal_host::{LinuxHost, Waker};
use std::sync::Arc;

/// A control socket in the program's state directory, which shows `snapshot`.
fn agent(program: &Program, snapshot: Snapshot) -> Control {
    std::fs::create_dir_all(program.state()).unwrap();
    let published = Arc::new(Published::new());
    published.publish(Arc::new(snapshot));
    let socket = program.state().join(SOCKET);
    Control::start(&mut LinuxHost::new(), &socket, None, None, published, commands(Waker::new().unwrap()).0)
        .unwrap()
}

#[test]
fn the_verbs_show_what_the_agent_says() {
    let program = Program::new("seeing");
    let agent = agent(&program, fixture::snapshot());
    // Not all that was asked for is in force.
    let (out, err) = program.expect(1, &["status"]);
    assert!(out.contains("generation 3") && out.contains("problems") && err.is_empty(), "{out}{err}");
    let (out, _) = program.expect(1, &["status", "--json"]);
    assert_eq!(serde_json::from_str::<Snapshot>(&out).unwrap(), fixture::snapshot());
    let (out, _) = program.expect(0, &["explain", "etl"]);
    assert!(out.contains("min(8 CPUs * 80 % / 100 - 2.2 CPUs - 0.11 CPUs, 3 CPUs + 1 CPUs)"), "{out}");
    let (out, _) = program.expect(0, &["explain", "etl", "--json"]);
    assert_eq!(serde_json::from_str::<Explained>(&out).unwrap().group, "etl");
    let (_, err) = program.expect(2, &["explain", "elt"]);
    assert!(err.contains("no group is called \"elt\"") && err.contains("web, etl, report"), "{err}");
    program.expect(2, &["explain", "../snapshot"]);
    // A pipe gets text, with and without being asked.
    for args in [&["top", "--once"] as &[&str], &["top"]] {
        let (out, _) = program.expect(0, args);
        assert!(out.contains("GROUP") && out.contains("etl") && !out.contains('\u{1b}'), "{out}");
        assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    }
    drop(agent);
    let well = Snapshot {
        lease: None,
        unmet: Vec::new(),
        problems: Vec::new(),
        config: Default::default(),
        ..fixture::snapshot()
    };
    let _agent = self::agent(&program, well);
    program.expect(0, &["status"]);
}

// promise 28
#[test]
fn a_plan_shows_what_the_agent_may_write() {
    let program = Program::new("seeing-reach");
    let plan = |agent: &str| {
        let text =
            format!("[agent]\n{agent}\n[group.web]\nclass = \"online\"\n[group.etl]\nclass = \"offline\"\n");
        let groups = program.groups(&text);
        let of = |more: &[&str]| {
            let output = program.run(&[&["plan", "-c", groups.to_str().unwrap()], more].concat());
            self::text(&output.stdout)
        };
        (of(&[]), of(&["--json"]))
    };
    let (text, json) = plan("headroom = \"quota\"");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rows = json["agent"].as_array().unwrap();
    if rows.is_empty() {
        println!("skipped: this machine has no cgroup with the cpu controller");
        return;
    }
    let quota = rows.iter().find(|row| row["controller"] == "suppress").unwrap();
    assert!(quota["to"].as_f64() > quota["from"].as_f64() && quota["group"] == "etl", "{quota}");
    assert!(text.contains("while `commensal agent` runs, it may also write"), "{text}");
    assert!(text.contains("`[agent] headroom = \"off\"` turns it off"), "{text}");
    let (text, _) = plan("headroom = \"off\"");
    assert!(!text.contains("suppress"), "{text}");
}

// promise 28
#[test]
fn without_an_agent_the_way_out_is_told() {
    let program = Program::new("seeing-none");
    for args in [&["status"] as &[&str], &["explain", "etl"], &["top"], &["top", "--once"]] {
        let (out, err) = program.expect(2, args);
        assert!(
            out.is_empty() && err.contains("no agent answers") && err.contains("commensal agent"),
            "{out}{err}"
        );
        assert!(!err.contains("according to"), "{err}");
    }
    // A dead one's socket is no agent; what is in force by `apply` is told.
    drop(agent(&program, fixture::snapshot()));
    if crate::support::can_write_cgroups("without_an_agent_the_way_out_is_told") {
        let groups = program.groups("[group.etl]\nclass = \"offline\"\n");
        program.expect(0, &["apply", "-c", groups.to_str().unwrap()]);
        let (_, err) = program.expect(2, &["status"]);
        assert!(err.contains("no agent answers") && err.contains("according to machine.journal"), "{err}");
    }
}

/// The live screen on a terminal: it comes, takes keys and a new size, and leaves the terminal as it was.
#[test]
fn top_on_a_terminal() {
    let program = Program::new("seeing-top");
    let _agent = agent(&program, fixture::snapshot());
    let script = r#"
import fcntl, os, pty, select, signal, struct, sys, termios, time
def size(fd, rows, columns): fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))
pid, fd = pty.fork()
if pid == 0:
    os.environ['TERM'] = 'xterm'
    os.execv(sys.argv[1], sys.argv[1:])
size(fd, 24, 80)
seen = b''
def until(part, again=b''):
    global seen
    seen, end, last = b'', time.time() + 60, time.time()
    while part not in seen:
        if time.time() > end: sys.exit('no %r in %r' % (part, seen))
        if select.select([fd], [], [], 1)[0]:
            try: seen += os.read(fd, 65536)
            except OSError: sys.exit('ended: %r' % seen)
        if again and part not in seen and time.time() > last + 1:
            os.write(fd, again)
            last = time.time()
def press(key, part):
    os.write(fd, key)
    until(part, key if key == b'q' else b'')
until(b'GROUP')
press(b'?', b'help')
press(b'?', b'PSI:')
press(b'n', b'name')
size(fd, 40, 120)
os.kill(pid, signal.SIGWINCH)
until(b'GROUP')
# crossterm can keep a key that comes with a signal until the next one: as a person would, again.
press(b'q', b'\x1b[?1049l')
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"#;
    let mut command = std::process::Command::new("python3");
    command.args(["-c", script]).arg(env!("CARGO_BIN_EXE_commensal"));
    command.args(["--state-dir", program.state().to_str().unwrap(), "top"]);
    match command.output() {
        Ok(output) => assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr)),
        Err(error) => println!("skipped: top_on_a_terminal: no python3 to make a terminal: {error}"),
    }
}
