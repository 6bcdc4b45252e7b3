//! A barrier over all cells (cgroups or VMs that work together), with UDP datagrams, acknowledgements and retries, like
//! Greenplum's interconnect over UDP. A cell that has finished a step notifies every other cell, and resends each
//! notification until the other cell acknowledges it. Every 100 unacknowledged resends in a row count as one warning,
//! as in Arenadata's article.

use super::CellOptions;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Number of resends in a row that count as one warning.
pub const WARN_AFTER: u32 = 100;

/// Message kind: the sender has finished a step.
const REACHED: u8 = 0;
/// Message kind: acknowledges [`REACHED`].
const KNOWN: u8 = 1;
/// Size of a datagram in bytes: kind, cell, session and step.
const SIZE: usize = 11;

/// A datagram without an acknowledgement so far.
#[derive(Debug)]
struct Open {
    sent: Instant,
    retries: u32,
}

/// The barrier of one cell.
#[derive(Debug)]
pub struct Barrier {
    socket: UdpSocket,
    peers: Vec<(u16, SocketAddr)>,
    cell: u16,
    timeout: Duration,
    /// Cells that have finished a step, including this cell, by session and step.
    reached: BTreeMap<(u32, u32), BTreeSet<u16>>,
    /// Unacknowledged datagrams by session, step and peer.
    open: BTreeMap<(u32, u32, u16), Open>,
    /// Last completed step of each session. Late datagrams about completed steps are only acknowledged.
    over: BTreeMap<u32, u32>,
    /// Warnings so far.
    pub warnings: u64,
    /// Resends so far.
    pub retries: u64,
}

impl Barrier {
    pub fn new(socket: UdpSocket, ports: &[u16], options: CellOptions) -> Barrier {
        let peer = |(index, port): (usize, &u16)| {
            let index = u16::try_from(index).unwrap_or(u16::MAX);
            (index != options.cell).then(|| (index, SocketAddr::from((Ipv4Addr::LOCALHOST, *port))))
        };
        Barrier {
            socket,
            peers: ports.iter().enumerate().filter_map(peer).collect(),
            cell: options.cell,
            timeout: options.timeout,
            reached: BTreeMap::new(),
            open: BTreeMap::new(),
            over: BTreeMap::new(),
            warnings: 0,
            retries: 0,
        }
    }

    /// Records that this cell has finished a step of a session, and notifies the other cells.
    pub fn arrive(&mut self, session: u32, step: u32) {
        self.reached.entry((session, step)).or_default().insert(self.cell);
        let sent = Instant::now();
        for index in 0..self.peers.len() {
            let (peer, to) = self.peers[index];
            self.send(REACHED, session, step, to);
            self.open.insert((session, step, peer), Open { sent, retries: 0 });
        }
    }

    fn send(&self, kind: u8, session: u32, step: u32, to: SocketAddr) {
        let mut bytes = [0; SIZE];
        bytes[0] = kind;
        bytes[1..3].copy_from_slice(&self.cell.to_le_bytes());
        bytes[3..7].copy_from_slice(&session.to_le_bytes());
        bytes[7..].copy_from_slice(&step.to_le_bytes());
        // A failed send is treated like a lost datagram: it is resent.
        let _ = self.socket.send_to(&bytes, to);
    }

    /// Reads datagrams, resends unacknowledged datagrams, and returns the (session, step) pairs whose barrier is now
    /// complete.
    pub fn serve(&mut self, now: Instant) -> Vec<(u32, u32)> {
        let mut bytes = [0; 64];
        while let Ok((SIZE, from)) = self.socket.recv_from(&mut bytes) {
            let number =
                |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            let (cell, session, step) = (u16::from_le_bytes([bytes[1], bytes[2]]), number(3), number(7));
            if !self.peers.contains(&(cell, from)) {
                continue;
            }
            if bytes[0] == KNOWN {
                self.open.remove(&(session, step, cell));
                continue;
            }
            self.send(KNOWN, session, step, from);
            if self.over.get(&session).is_none_or(|over| step > *over) {
                self.reached.entry((session, step)).or_default().insert(cell);
            }
        }
        self.repeat(now);
        self.passed()
    }

    fn repeat(&mut self, now: Instant) {
        let late = |open: &Open| now.saturating_duration_since(open.sent) >= self.timeout;
        let due: Vec<(u32, u32, u16)> =
            self.open.iter().filter(|(_, open)| late(open)).map(|(key, _)| *key).collect();
        for (session, step, peer) in due {
            let Some((_, to)) = self.peers.iter().find(|(index, _)| *index == peer).copied() else {
                continue;
            };
            self.send(REACHED, session, step, to);
            self.retries += 1;
            if let Some(open) = self.open.get_mut(&(session, step, peer)) {
                open.sent = now;
                open.retries += 1;
                if open.retries.is_multiple_of(WARN_AFTER) {
                    self.warnings += 1;
                }
            }
        }
    }

    fn passed(&mut self) -> Vec<(u32, u32)> {
        let all = self.peers.len() + 1;
        let acknowledged = |session: u32, step: u32| {
            self.open.range((session, step, 0)..=(session, step, u16::MAX)).next().is_none()
        };
        let passed: Vec<(u32, u32)> = self
            .reached
            .iter()
            .filter(|((session, step), cells)| cells.len() == all && acknowledged(*session, *step))
            .map(|(key, _)| *key)
            .collect();
        for (session, step) in &passed {
            self.reached.remove(&(*session, *step));
            self.over.insert(*session, *step);
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> [Barrier; 2] {
        let sockets = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let ports: Vec<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        let mut cell = 0;
        sockets.map(|socket| {
            socket.set_nonblocking(true).unwrap();
            let timeout = Duration::from_millis(20);
            let options =
                CellOptions { barrier: true, stream: None, vcpu: 1, sessions: 1, work: 1, cell, timeout };
            cell += 1;
            Barrier::new(socket, &ports, options)
        })
    }

    #[test]
    fn nobody_passes_before_all_have_arrived() {
        let [mut a, mut b] = two();
        let now = Instant::now();
        a.arrive(0, 0);
        assert!(a.serve(now).is_empty() && b.serve(now).is_empty());
        assert!(a.serve(now).is_empty(), "b has not arrived");
        b.arrive(0, 0);
        let mut passed = (false, false);
        for _ in 0..1000 {
            passed.0 |= a.serve(now) == [(0, 0)];
            passed.1 |= b.serve(now) == [(0, 0)];
        }
        assert_eq!(passed, (true, true));
        assert_eq!((a.retries, a.warnings), (0, 0));
    }

    #[test]
    fn what_is_not_answered_is_repeated_and_counted() {
        let [mut a, b] = two();
        a.arrive(3, 7);
        let mut now = Instant::now();
        // The other side never reads its datagrams: 250 timeouts cause 250 resends and two warnings.
        for _ in 0..250 {
            now += Duration::from_millis(21);
            assert!(a.serve(now).is_empty());
        }
        assert_eq!((a.retries, a.warnings), (250, 2));
        drop(b);
    }

    #[test]
    fn datagrams_of_strangers_and_repeats_change_nothing() {
        let [mut a, mut b] = two();
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut forged = [0; SIZE];
        forged[1] = 1;
        stranger.send_to(&forged, a.socket.local_addr().unwrap()).unwrap();
        a.arrive(0, 0);
        let now = Instant::now();
        for _ in 0..100 {
            assert!(a.serve(now).is_empty());
        }
        b.arrive(0, 0);
        let both = |a: &mut Barrier, b: &mut Barrier| {
            (0..1000).flat_map(|_| [a.serve(now), b.serve(now)].concat()).count()
        };
        assert_eq!(both(&mut a, &mut b), 2);
        // A late duplicate is acknowledged, and does not complete the barrier again.
        b.send(REACHED, 0, 0, a.socket.local_addr().unwrap());
        assert_eq!(both(&mut a, &mut b), 0);
    }
}
