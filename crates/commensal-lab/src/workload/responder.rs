//! A minimal single-threaded HTTP server with configurable stalls, for comparisons of load generators.
//!
//! Every request gets the same response. A stall delays all responses, like a garbage collection or a throttled cgroup.
//! The server listens only on 127.0.0.1. A signal stops it.

use super::{announce, no_port, refuse};
use crate::error::LabError;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The response to every request.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n";
/// End of a request without a body.
const END: &[u8] = b"\r\n\r\n";
/// Identifier of the listening socket in the event queue; the identifiers of connections count from 0.
const LISTENER: u64 = u64::MAX;
/// Maximum size of unsent responses in bytes. The server disconnects a client that keeps sending requests without
/// reading responses.
const UNREAD: usize = 1 << 20;

/// Parameters of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponderOptions {
    /// TCP port on 127.0.0.1; 0 for any free port.
    pub port: u16,
    /// Length of every stall; zero if there are no stalls.
    pub stall: Duration,
    /// Period of the stalls. Each period ends with one stall.
    pub every: Duration,
}

/// Prints `listening 127.0.0.1:PORT` on standard output, and serves until the process dies.
///
/// # Errors
/// If the port cannot be opened, the line cannot be printed, or the event queue fails.
pub fn serve(options: ResponderOptions) -> Result<(), LabError> {
    let port = options.port;
    let refused = |error: io::Error| no_port(port, &error);
    if options.stall > options.every {
        let (value, reason) =
            (options.stall.as_millis() as u64, "a stall must be shorter than the interval between stalls");
        return Err(refuse("stall-ms", value, reason));
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    let addr = listener.local_addr().map_err(refused)?;
    announce(addr)?;
    let queue = epoll::create(CreateFlags::CLOEXEC).map_err(|e| refused(e.into()))?;
    epoll::add(&queue, &listener, EventData::new_u64(LISTENER), EventFlags::IN)
        .map_err(|e| refused(e.into()))?;
    Responder { options, listener, queue, conns: Vec::new(), start: Instant::now() }.run().map_err(refused)
}

struct Responder {
    options: ResponderOptions,
    listener: TcpListener,
    queue: OwnedFd,
    conns: Vec<Option<Conn>>,
    start: Instant,
}

struct Conn {
    stream: TcpStream,
    /// Number of bytes of [`END`] that the data read so far ends with.
    matched: usize,
    /// Response bytes that did not fit into the socket buffer.
    unsent: Vec<u8>,
}

impl Responder {
    fn run(mut self) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(256);
        let mut buffer = vec![0u8; 64 * 1024];
        loop {
            events.clear();
            let patience = Timespec { tv_sec: 1, tv_nsec: 0 };
            match epoll::wait(&self.queue, spare_capacity(&mut events), Some(&patience)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            for event in &events {
                self.stall();
                match event.data.u64() {
                    LISTENER => self.accept(),
                    at => self.converse(at as usize, &mut buffer),
                }
            }
        }
    }

    /// Sleeps until the end of the current stall, if there is one. A stall is the last part of every interval.
    fn stall(&self) {
        let (stall, every) = (self.options.stall.as_nanos(), self.options.every.as_nanos());
        if stall == 0 || every == 0 {
            return;
        }
        let left = every - self.start.elapsed().as_nanos() % every;
        if left <= stall {
            std::thread::sleep(Duration::from_nanos(u64::try_from(left).unwrap_or(0)));
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            let at = self.conns.iter().position(Option::is_none).unwrap_or(self.conns.len());
            let _ = stream.set_nodelay(true);
            let flags = EventFlags::IN | EventFlags::RDHUP;
            let ready = stream.set_nonblocking(true).is_ok()
                && epoll::add(&self.queue, &stream, EventData::new_u64(at as u64), flags).is_ok();
            if ready {
                if at == self.conns.len() {
                    self.conns.push(None);
                }
                self.conns[at] = Some(Conn { stream, matched: 0, unsent: Vec::new() });
            }
        }
    }

    fn converse(&mut self, at: usize, buffer: &mut [u8]) {
        let Some(Some(conn)) = self.conns.get_mut(at) else { return };
        let before = conn.unsent.is_empty();
        let alive = conn.exchange(buffer);
        let after = conn.unsent.is_empty();
        let mut keep = alive;
        if alive && before != after {
            let flags = EventFlags::IN | EventFlags::RDHUP;
            let flags = if after { flags } else { flags | EventFlags::OUT };
            keep = epoll::modify(&self.queue, &conn.stream, EventData::new_u64(at as u64), flags).is_ok();
        }
        if !keep {
            self.conns[at] = None;
        }
    }
}

impl Conn {
    /// Reads the available bytes and responds to every request that ends in them; returns whether the connection stays
    /// open.
    fn exchange(&mut self, buffer: &mut [u8]) -> bool {
        match self.stream.read(buffer) {
            Ok(0) => return false,
            Ok(n) => {
                for _ in 0..requests(&mut self.matched, &buffer[..n]) {
                    self.unsent.extend_from_slice(ANSWER);
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return self.unsent.len() < UNREAD,
                Err(_) => return false,
            }
        }
        true
    }
}

/// Returns the number of requests that end in these bytes.
fn requests(matched: &mut usize, bytes: &[u8]) -> usize {
    let mut count = 0;
    for byte in bytes {
        if *byte == END[*matched] {
            *matched += 1;
        } else {
            *matched = usize::from(*byte == END[0]);
        }
        if *matched == END.len() {
            *matched = 0;
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_however_they_are_cut() {
        let text = b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /\r\r\n\r\n";
        for cut in 0..=text.len() {
            let mut matched = 0;
            let (one, two) = text.split_at(cut);
            assert_eq!(requests(&mut matched, one) + requests(&mut matched, two), 2, "cut at {cut}");
        }
    }
}
