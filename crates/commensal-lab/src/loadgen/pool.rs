//! The connections of the load generator. The pool knows which connections are free, and when to reopen a broken
//! connection. A slot is a fixed place for one connection.

use super::conn::{Conn, Request, State};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

/// Delay before a slot reconnects if its last connection received no response. The delay keeps the generator from
/// flooding a server that refuses or closes connections immediately.
const RETRY_NS: u64 = 10_000_000;

/// A fixed number of slots, each with at most one connection to the server.
#[derive(Debug)]
pub(super) struct Pool {
    addr: SocketAddr,
    pub(super) conns: Vec<Conn>,
    /// Slots with an idle connection; the connection of the first slot has been idle longest.
    free: VecDeque<usize>,
    /// Each entry is a time (ns) and the slot that may reconnect at that time.
    retries: VecDeque<(u64, usize)>,
    /// Why attempts to open a connection failed, for each attempt since the engine last took these errors.
    pub(super) connect_errors: Vec<Errno>,
}

impl Pool {
    pub(super) fn new(addr: SocketAddr, slots: usize) -> Self {
        Self {
            addr,
            // validate() limits the number of connections to far below u32::MAX.
            conns: (0..slots).map(|slot| Conn::new(slot as u32)).collect(),
            free: VecDeque::with_capacity(slots),
            retries: VecDeque::new(),
            connect_errors: Vec::new(),
        }
    }

    /// Whether any slot has a TCP handshake in progress.
    pub(super) fn is_connecting(&self) -> bool {
        self.conns.iter().any(|conn| conn.state == State::Connecting)
    }

    /// Resets the times in the slots, because the clock starts again at 0.
    pub(super) fn restart(&mut self) {
        for conn in &mut self.conns {
            if let State::Idle { since_ns } = &mut conn.state {
                *since_ns = 0;
            }
        }
        for (at_ns, _) in &mut self.retries {
            *at_ns = 0;
        }
    }

    /// Number of idle connections.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes the slot whose connection has been idle longest.
    pub(super) fn take_free(&mut self) -> Option<usize> {
        self.free.pop_front()
    }

    /// Makes the idle connection of a slot available for requests.
    pub(super) fn set_free(&mut self, slot: usize) {
        self.free.push_back(slot);
    }

    /// Makes the connection of a slot unavailable for requests.
    pub(super) fn withdraw(&mut self, slot: usize) {
        self.free.retain(|free| *free != slot);
    }

    /// Whether the connection of a slot was idle at `due_ns`.
    pub(super) fn was_idle(&self, slot: usize, due_ns: u64) -> bool {
        matches!(self.conns[slot].state, State::Idle { since_ns } if since_ns <= due_ns)
    }

    /// Opens the connection of a slot.
    pub(super) fn open(&mut self, slot: usize, epoll: BorrowedFd<'_>, now_ns: u64) {
        if let Err(error) = self.conns[slot].open(epoll, &self.addr) {
            self.connect_failed(slot, error, now_ns);
        }
    }

    /// Closes the connection of a slot that could not be opened; the slot retries after a delay.
    pub(super) fn connect_failed(&mut self, slot: usize, error: Errno, now_ns: u64) {
        self.connect_errors.push(error);
        self.conns[slot].close();
        self.retries.push_back((now_ns + RETRY_NS, slot));
    }

    /// Closes a connection and reopens its slot: immediately if the connection had received a response, otherwise after
    /// a delay.
    pub(super) fn replace(&mut self, slot: usize, epoll: BorrowedFd<'_>, now_ns: u64) {
        let useful = self.conns[slot].answers > 0;
        self.conns[slot].close();
        if useful {
            self.open(slot, epoll, now_ns);
        } else {
            self.retries.push_back((now_ns + RETRY_NS, slot));
        }
    }

    /// Closes a connection that the server has ended, and opens another one on which its request is sent again.
    pub(super) fn reopen(
        &mut self,
        slot: usize,
        epoll: BorrowedFd<'_>,
        request: Request,
    ) -> Result<(), Errno> {
        self.conns[slot].reopen(epoll, &self.addr, request)
    }

    /// Opens the connections of all slots whose delay is over.
    pub(super) fn reconnect(&mut self, epoll: BorrowedFd<'_>, now_ns: u64) {
        while let Some(&(_, slot)) = self.retries.front().filter(|(at_ns, _)| *at_ns <= now_ns) {
            self.retries.pop_front();
            self.open(slot, epoll, now_ns);
        }
    }

    /// Returns the time at which the next slot may reconnect (ns); `None` if no slot waits.
    pub(super) fn next_retry_ns(&self) -> Option<u64> {
        self.retries.front().map(|(at_ns, _)| *at_ns)
    }
}
