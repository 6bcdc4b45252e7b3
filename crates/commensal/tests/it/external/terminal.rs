//! `top` on a terminal, which Python makes.

use crate::seeing::agent;
use crate::support::{Program, text};
use commensal_agent::fixture;

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
