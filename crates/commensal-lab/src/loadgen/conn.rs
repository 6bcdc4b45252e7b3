//! One non-blocking connection: its socket, the request it carries, and the answer being read.
//!
//! It knows nothing of schedules or counts; the engine interprets outcomes.

use super::record::Failure;
use super::response::{Answer, Parser};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::net::{connect, recv, send, socket_with};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Data of a request in progress that is needed for accounting; times in nanoseconds since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// Tells this request from the next one on the same connection.
    pub(super) id: u64,
    pub(super) due_ns: u64,
    pub(super) sent_ns: u64,
}

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// No socket.
    Down,
    /// A TCP handshake is in progress.
    Connecting,
    /// Free since this time.
    Idle { since_ns: u64 },
    /// A request is in progress.
    Busy(Request),
}

/// Result of handling a readable or writable socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The answer is not complete.
    Waiting,
    /// The answer is complete.
    Answered(Answer),
    /// The connection cannot be used any more.
    Failed(Failure),
}

/// A slot of the pool. Its socket changes, its number does not.
#[derive(Debug)]
pub(super) struct Conn {
    slot: u32,
    /// Incremented for each socket of this slot, so that an event of an earlier socket is recognised.
    generation: u32,
    socket: Option<OwnedFd>,
    pub(super) state: State,
    /// Number of answers received on the current socket.
    pub(super) answers: u64,
    written: usize,
    parser: Parser,
}

impl Conn {
    pub(super) fn new(slot: u32) -> Self {
        let (generation, socket, answers, written) = (0, None, 0, 0);
        Self { slot, generation, socket, state: State::Down, answers, written, parser: Parser::default() }
    }

    /// The slot an event belongs to, and the generation it was meant for.
    pub(super) fn unpack(data: EventData) -> (usize, u32) {
        let data = data.u64();
        ((data & u64::from(u32::MAX)) as usize, (data >> 32) as u32)
    }

    /// Whether an event is for the socket now in the slot.
    pub(super) fn is_current(&self, generation: u32) -> bool {
        self.generation == generation && self.socket.is_some()
    }

    /// Starts to connect, replacing the previous socket.
    pub(super) fn open(&mut self, epoll: BorrowedFd<'_>, addr: &SocketAddr) -> io::Result<()> {
        self.close();
        let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, addr) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(e) => return Err(e.into()),
        }
        // A finished handshake is reported as writable, even if connect() succeeded at once.
        epoll::add(epoll, &socket, self.data(), EventFlags::OUT)?;
        self.socket = Some(socket);
        self.state = State::Connecting;
        Ok(())
    }

    /// Drops the socket, and with it its place in the event queue.
    pub(super) fn close(&mut self) {
        self.socket = None;
        self.state = State::Down;
        self.generation = self.generation.wrapping_add(1);
        self.parser = Parser::default();
        self.answers = 0;
    }

    /// The handshake ended: listen for answers from now on.
    pub(super) fn connected(&mut self, epoll: BorrowedFd<'_>, now_ns: u64) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(Errno::NOTCONN)?;
        sockopt::socket_error(socket)??;
        epoll::modify(epoll, socket, self.data(), EventFlags::IN | EventFlags::RDHUP)?;
        self.state = State::Idle { since_ns: now_ns };
        Ok(())
    }

    /// Sends a request on an idle connection.
    pub(super) fn start(&mut self, epoll: BorrowedFd<'_>, request: Request, text: &[u8]) -> Step {
        self.state = State::Busy(request);
        self.written = 0;
        let step = self.write(text);
        if step == Step::Waiting && self.written < text.len() {
            let wanted = EventFlags::IN | EventFlags::RDHUP | EventFlags::OUT;
            let asked = self.socket.as_ref().map(|socket| epoll::modify(epoll, socket, self.data(), wanted));
            if asked != Some(Ok(())) {
                return Step::Failed(Failure::Io);
            }
        }
        step
    }

    /// Handles a writable socket: sends the rest of a request.
    pub(super) fn resume(&mut self, epoll: BorrowedFd<'_>, text: &[u8]) -> Step {
        let step = self.write(text);
        if step == Step::Waiting && self.written == text.len() {
            let wanted = EventFlags::IN | EventFlags::RDHUP;
            let asked = self.socket.as_ref().map(|socket| epoll::modify(epoll, socket, self.data(), wanted));
            if asked != Some(Ok(())) {
                return Step::Failed(Failure::Io);
            }
        }
        step
    }

    fn write(&mut self, text: &[u8]) -> Step {
        let Some(socket) = &self.socket else { return Step::Failed(Failure::Io) };
        while self.written < text.len() {
            match send(socket, &text[self.written..], SendFlags::NOSIGNAL) {
                Ok(n) => self.written += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(e) => return Step::Failed(failure(e)),
            }
        }
        Step::Waiting
    }

    /// Handles a readable socket: reads the available part of the answer.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Step {
        let Some(socket) = &self.socket else { return Step::Failed(Failure::Io) };
        loop {
            let n = match recv(socket, &mut *buffer, RecvFlags::empty()) {
                Ok((_, 0)) => {
                    return match self.parser.end() {
                        Some(answer) => Step::Answered(answer),
                        None => Step::Failed(Failure::Closed),
                    };
                }
                Ok((_, n)) => n,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Step::Waiting,
                Err(e) => return Step::Failed(failure(e)),
            };
            match self.parser.feed(&buffer[..n]) {
                Ok(Some(answer)) => {
                    self.answers += 1;
                    return Step::Answered(answer);
                }
                // A full buffer means there may be more; otherwise the next event tells.
                Ok(None) if n == buffer.len() => {}
                Ok(None) => return Step::Waiting,
                Err(_) => return Step::Failed(Failure::Malformed),
            }
        }
    }

    fn data(&self) -> EventData {
        EventData::new_u64(u64::from(self.generation) << 32 | u64::from(self.slot))
    }
}

fn failure(e: Errno) -> Failure {
    match e {
        Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => Failure::Closed,
        _ => Failure::Io,
    }
}
