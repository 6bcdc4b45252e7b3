//! A terminal for a child process.

use crate::wait::PATIENCE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

/// A pseudoterminal. It hangs up when this value is dropped, as when a connection over ssh breaks.
#[derive(Debug)]
pub struct Terminal {
    master: File,
    slave: PathBuf,
}

impl Terminal {
    /// Creates a terminal of this size.
    ///
    /// # Panics
    /// Panics if the machine gives none.
    #[must_use]
    pub fn new(columns: u16, rows: u16) -> Terminal {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).expect("a terminal for this user");
        unlockpt(&master).expect("an unlocked terminal");
        let slave = ptsname(&master, Vec::new()).expect("a terminal with a name");
        let slave = Path::new(std::ffi::OsStr::from_bytes(slave.as_bytes())).to_owned();
        let terminal = Terminal { master: File::from(master), slave };
        terminal.resize(columns, rows);
        terminal
    }

    /// Changes the size.
    ///
    /// # Panics
    /// Panics if the terminal has gone.
    pub fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).expect("a size");
    }

    /// Starts a command with this terminal as its standard input, output and error. It is not its controlling terminal,
    /// so the command gets no signal when it hangs up.
    ///
    /// # Panics
    /// Panics if the command cannot be started.
    pub fn start(&self, command: &mut Command) -> Child {
        let flags = OFlags::NOCTTY.bits().cast_signed();
        let open = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(&self.slave)
                .expect("the slave")
        };
        command.stdin(open()).stdout(open()).stderr(open()).spawn().expect("a command")
    }

    /// Types keys.
    ///
    /// # Panics
    /// Panics if the terminal has gone.
    pub fn write(&self, keys: &str) {
        (&self.master).write_all(keys.as_bytes()).expect("a terminal");
    }

    /// Whether the command has written something, at the latest after `time`.
    fn is_readable(&self, time: Duration) -> bool {
        let mut asked = [PollFd::new(&self.master, PollFlags::IN)];
        let time = Timespec::try_from(time).expect("a time");
        poll(&mut asked, Some(&time)).is_ok_and(|ready| ready > 0)
    }

    /// Forgets what the command has written so far, so that it can write on.
    pub fn drain(&self) {
        let mut bytes = [0; 4096];
        while self.is_readable(Duration::ZERO)
            && (&self.master).read(&mut bytes).is_ok_and(|length| length > 0)
        {}
    }

    /// Reads what the command has written until it contains `text`; returns everything that was read.
    ///
    /// # Panics
    /// Panics if the command ends before, or writes nothing for [`PATIENCE`].
    pub fn read_until(&self, text: &str) -> String {
        let (mut seen, mut bytes) = (String::new(), [0; 4096]);
        while !seen.contains(text) {
            assert!(self.is_readable(PATIENCE), "it does not write {text:?}: {seen}");
            let length = (&self.master).read(&mut bytes).unwrap_or(0);
            assert!(length > 0, "it ended before it wrote {text:?}: {seen}");
            seen += &String::from_utf8_lossy(&bytes[..length]);
        }
        seen
    }
}
