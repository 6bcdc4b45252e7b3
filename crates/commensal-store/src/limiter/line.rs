//! Waiting reservations: one queue per query, and deficit round robin between the queues. In each turn a query may take
//! a fixed number of bytes, the quantum. If its next reservation is larger, the query keeps the unused bytes for its
//! next turn (the deficit).

use super::{Granted, QueryId, TicketId};
use std::collections::{HashMap, VecDeque};

/// One query's queue.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<(TicketId, u64)>,
    /// Bytes that the query may still take in this turn. They include the rest of earlier turns that was too small for
    /// the query's next reservation.
    deficit: u128,
    /// Whether the quantum of the current turn has been added to the deficit.
    in_turn: bool,
}

/// All queues. Only queries with waiting reservations have a queue. A query that waits again joins the end of the ring
/// with a deficit of 0.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Bytes per turn; always above 0.
    quantum: u128,
    /// Queries in the order of their turns, the current one first.
    ring: VecDeque<QueryId>,
    lines: HashMap<QueryId, Line>,
    whose: HashMap<TicketId, QueryId>,
    bytes: u128,
    tickets: u64,
}

impl Lines {
    /// Sets the bytes that a query may take per turn, from the next turn on.
    pub(super) fn set_quantum(&mut self, bytes: u64) {
        self.quantum = u128::from(bytes.max(1));
    }

    pub(super) fn waiting(&self) -> usize {
        self.whose.len()
    }

    /// Returns the total bytes of all waiting reservations.
    pub(super) fn bytes(&self) -> u128 {
        self.bytes
    }

    pub(super) fn join(&mut self, query: QueryId, bytes: u64) -> TicketId {
        let id = TicketId(self.tickets);
        self.tickets += 1;
        let line = self.lines.entry(query).or_default();
        if line.waiting.is_empty() {
            self.ring.push_back(query);
        }
        line.waiting.push_back((id, bytes));
        self.whose.insert(id, query);
        self.bytes += u128::from(bytes);
        id
    }

    /// Returns the reservation to serve next. The result stays the same until that reservation is served or cancelled.
    pub(super) fn next(&mut self) -> Option<Granted> {
        let mut passed_over = 0;
        loop {
            let query = *self.ring.front()?;
            let line = self.lines.get_mut(&query)?;
            let &(id, bytes) = line.waiting.front()?;
            if !line.in_turn {
                line.in_turn = true;
                line.deficit += self.quantum;
            }
            if u128::from(bytes) <= line.deficit {
                return Some(Granted { id, query, bytes });
            }
            line.in_turn = false;
            self.ring.rotate_left(1);
            passed_over += 1;
            if passed_over == self.ring.len() {
                passed_over = 0;
                self.skip_rounds();
            }
        }
    }

    /// Skips rounds in which no query can be served, by arithmetic. Otherwise a huge request would need one iteration
    /// per quantum.
    fn skip_rounds(&mut self) {
        let quantum = self.quantum;
        let missing = self.lines.values().filter_map(|line| {
            let (_, bytes) = line.waiting.front()?;
            Some(u128::from(*bytes).saturating_sub(line.deficit).div_ceil(quantum))
        });
        let rounds = missing.min().unwrap_or(0).saturating_sub(1);
        for line in self.lines.values_mut() {
            line.deficit += rounds * quantum;
        }
    }

    /// Removes the reservation that [`Lines::next`] returns, because it was granted.
    pub(super) fn serve(&mut self) {
        let Some(Granted { id, query, bytes }) = self.next() else { return };
        if let Some(line) = self.lines.get_mut(&query) {
            line.deficit = line.deficit.saturating_sub(u128::from(bytes));
        }
        self.leave(id);
    }

    pub(super) fn leave(&mut self, id: TicketId) -> bool {
        let Some(query) = self.whose.remove(&id) else { return false };
        let Some(line) = self.lines.get_mut(&query) else { return false };
        if let Some(at) = line.waiting.iter().position(|(other, _)| *other == id)
            && let Some((_, bytes)) = line.waiting.remove(at)
        {
            self.bytes -= u128::from(bytes);
        }
        if line.waiting.is_empty() {
            self.lines.remove(&query);
            self.ring.retain(|other| *other != query);
        }
        true
    }
}
