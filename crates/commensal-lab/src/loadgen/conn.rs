//! One non-blocking connection of the load generator: its socket, the request in progress, and the response that the
//! generator is reading.
//!
//! A slot is a fixed place for one connection. The engine (`engine.rs`) decides when to send requests, and records
//! their outcomes.

use super::record::Failure;
use super::response::{Answer, Parser};
use commensal_core::errno;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::net::{connect, recv, send, socket_with};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Data about a request in progress, from which the engine computes latency. Times are in nanoseconds since the start
/// of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// Distinguishes this request from the next one on the same connection.
    pub(super) id: u64,
    pub(super) due_ns: u64,
    pub(super) sent_ns: u64,
}

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// There is no socket.
    Down,
    /// A TCP handshake is in progress.
    Connecting,
    /// A TCP handshake is in progress; the engine sends this request again as soon as it succeeds.
    Resending(Request),
    /// The connection has been idle since `since_ns`.
    Idle { since_ns: u64 },
    /// A request is in progress.
    Busy(Request),
}

impl State {
    /// Returns the request that has no outcome yet.
    pub(super) fn request(&self) -> Option<Request> {
        match self {
            State::Busy(request) | State::Resending(request) => Some(*request),
            State::Down | State::Connecting | State::Idle { .. } => None,
        }
    }
}

/// Result of handling a readable or writable socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The response is not complete yet.
    Waiting,
    /// The response is complete.
    Answered(Answer),
    /// The connection cannot be used any more.
    Failed(Failure),
}

/// One slot. The slot opens a new socket when the old one fails, but keeps its number.
#[derive(Debug)]
pub(super) struct Conn {
    slot: u32,
    /// Incremented whenever the slot closes its socket, so that the slot recognises events of an earlier socket.
    generation: u32,
    socket: Option<OwnedFd>,
    pub(super) state: State,
    /// Number of responses received on the current socket.
    pub(super) answers: u64,
    written: usize,
    /// Number of bytes received since the last request.
    pub(super) received: usize,
    parser: Parser,
}

impl Conn {
    pub(super) fn new(slot: u32) -> Self {
        Self {
            slot,
            generation: 0,
            socket: None,
            state: State::Down,
            answers: 0,
            written: 0,
            received: 0,
            parser: Parser::default(),
        }
    }

    /// Returns the slot that an event belongs to, and the slot's generation when it registered for the event.
    pub(super) fn unpack(data: EventData) -> (usize, u32) {
        let data = data.u64();
        ((data & u64::from(u32::MAX)) as usize, (data >> 32) as u32)
    }

    /// Whether an event belongs to the slot's current socket.
    pub(super) fn is_current(&self, generation: u32) -> bool {
        self.generation == generation && self.socket.is_some()
    }

    /// Starts to connect a new socket, which replaces the slot's previous socket.
    pub(super) fn open(&mut self, epoll: BorrowedFd<'_>, addr: &SocketAddr) -> Result<(), Errno> {
        self.close();
        let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, addr) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(e) => return Err(e),
        }
        // epoll reports a finished handshake as writable, even if connect() succeeded immediately.
        epoll::add(epoll, &socket, self.data(), EventFlags::OUT)?;
        self.socket = Some(socket);
        self.state = State::Connecting;
        Ok(())
    }

    /// Starts to connect a new socket, on which the engine sends the slot's request again.
    pub(super) fn reopen(
        &mut self,
        epoll: BorrowedFd<'_>,
        addr: &SocketAddr,
        request: Request,
    ) -> Result<(), Errno> {
        self.open(epoll, addr)?;
        self.state = State::Resending(request);
        Ok(())
    }

    /// Whether the request may be sent again after the server has ended its connection. It may if the connection was
    /// kept after an earlier response and no byte of this response has arrived: the server then ended a connection that
    /// it took for idle (RFC 9112, section 9.3.1). A request on a new connection may not, so a request is sent twice at
    /// most.
    pub(super) fn may_resend(&self) -> bool {
        self.answers > 0 && self.received == 0
    }

    /// Closes the socket, which also removes it from the epoll set.
    pub(super) fn close(&mut self) {
        self.socket = None;
        self.state = State::Down;
        self.generation = self.generation.wrapping_add(1);
        self.parser = Parser::default();
        self.answers = 0;
        self.received = 0;
    }

    /// Handles the end of the handshake: from now on, the connection waits for responses.
    pub(super) fn connected(&mut self, epoll: BorrowedFd<'_>, now_ns: u64) -> Result<(), Errno> {
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
        self.received = 0;
        let step = self.write(text);
        if step == Step::Waiting && self.written < text.len() {
            return self.wait_for(epoll, EventFlags::IN | EventFlags::RDHUP | EventFlags::OUT);
        }
        step
    }

    /// Handles a writable socket: sends the rest of the request.
    pub(super) fn resume(&mut self, epoll: BorrowedFd<'_>, text: &[u8]) -> Step {
        let step = self.write(text);
        if step == Step::Waiting && self.written == text.len() {
            return self.wait_for(epoll, EventFlags::IN | EventFlags::RDHUP);
        }
        step
    }

    /// Selects the events for which the connection waits.
    fn wait_for(&self, epoll: BorrowedFd<'_>, wanted: EventFlags) -> Step {
        let Some(socket) = &self.socket else { return Step::Failed(failure(Errno::NOTCONN)) };
        match epoll::modify(epoll, socket, self.data(), wanted) {
            Ok(()) => Step::Waiting,
            Err(e) => Step::Failed(failure(e)),
        }
    }

    fn write(&mut self, text: &[u8]) -> Step {
        let Some(socket) = &self.socket else { return Step::Failed(failure(Errno::NOTCONN)) };
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

    /// Handles a readable socket: reads the available part of the response.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Step {
        let Some(socket) = &self.socket else { return Step::Failed(failure(Errno::NOTCONN)) };
        loop {
            let n = match recv(socket, &mut *buffer, RecvFlags::empty()) {
                Ok((_, 0)) => {
                    return match self.parser.end() {
                        Some(answer) => Step::Answered(answer),
                        None => Step::Failed(Failure::Closed(None)),
                    };
                }
                Ok((_, n)) => n,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Step::Waiting,
                Err(e) => return Step::Failed(failure(e)),
            };
            self.received += n;
            match self.parser.feed(&buffer[..n]) {
                Ok(Some(answer)) => {
                    self.answers += 1;
                    return Step::Answered(answer);
                }
                // If the read filled the buffer, there may be more data; otherwise, epoll reports further data as a new
                // event.
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

/// Returns the failure of a request for which a call on its socket failed.
pub(super) fn failure(e: Errno) -> Failure {
    match e {
        Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => Failure::Closed(Some(number(e))),
        _ => Failure::Io(number(e)),
    }
}

/// Converts an error number of rustix to the type that has names.
pub(super) fn number(e: Errno) -> errno::Errno {
    errno::Errno(e.raw_os_error())
}
