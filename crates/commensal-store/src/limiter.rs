//! The rate limiter for the reads of one workload group from one source (a disk or a remote store). A reader reserves
//! bytes before each read. The limiter decides when each waiting reservation is granted, and in which order.
//!
//! Bytes are reserved ("paid for") **before** they are read, so that readers that wake up together cannot all start at
//! the same time. (A limiter that charges afterwards was measured at 0 to 192 MiB/s with a limit of 100 MiB/s.) The
//! algorithm is the generic cell rate algorithm, implemented as a token bucket with exact integers: the credit grows at
//! the rate up to the burst, and a reservation is granted when the credit covers it. A negative credit is a debt. Debts
//! are kept in bytes, not in time, so that a new rate also applies to existing debts immediately.
//!
//! Waiting reservations are served by deficit round robin over the *queries* of the group (Shreedhar and Varghese,
//! 1995): a query with 128 readers gets the same share as one with a single reader that reads continuously.
//!
//! ```text
//! reserve ──► Paid                        the credit covers it and no reservation waits
//!        └──► Waits ──► grant(due) ──► paid, or cancel: nothing was taken, later ones move up
//! settle(paid, received)                  fewer bytes: the rest is refunded; more bytes: they become a debt
//! ```
//!
//! **Bound:** in any window of length T with a constant rate, at most `rate × T + max(burst, largest request)` bytes
//! are granted. **Work conserving:** the next waiting reservation is due at the latest when the credit reaches the
//! burst, so no credit is lost if grants are on time.
//!
//! The module reads no clock: callers pass times in nanoseconds of a monotonic clock. A time earlier than a previous
//! one counts as the latest time so far.

mod line;
mod windows;

use line::Lines;
use std::fmt;
use std::time::Duration;
pub use windows::Windows;

/// Units per byte: credit is counted in billionths of a byte, so that the product of a rate in bytes per second and a
/// time in nanoseconds is exact.
const UNIT: i128 = 1_000_000_000;
/// Maximum absolute value of credit and debt, far below an overflow of sums.
const MOST: i128 = i128::MAX / 4;
/// Lower bound that [`Limiter::piece`] applies at low rates, in bytes: one page.
const SMALLEST_PIECE: u64 = 4096;

/// A rate in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BytesPerS(pub u64);

impl fmt::Display for BytesPerS {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B/s", self.0)
    }
}

/// Identity of a query; the queries of a group get equal shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);

/// Identity of a waiting reservation. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(pub u64);

/// Result of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ticket {
    /// The read may begin now.
    Paid,
    /// The reservation waits for [`Limiter::grant`].
    Waits {
        /// Identity of the reservation.
        id: TicketId,
        /// Estimated start (ns), assuming that no other reservation arrives or is cancelled, that the rate stays the
        /// same, and that reservations are served in order of arrival.
        start_ns: u64,
    },
}

/// A reservation that was granted: its bytes are paid for, and the read may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Identity of the reservation.
    pub id: TicketId,
    /// The query that made the reservation.
    pub query: QueryId,
    /// Number of bytes.
    pub bytes: u64,
}

/// Parameters of a limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Maximum credit, expressed as time at the rate. Credit accumulates while nothing is read. A piece (the bytes of
    /// one reservation) is at most half of this maximum, or one page at very low rates. So the timer that grants
    /// reservations may be late by the time of the other half without loss of credit.
    pub burst: Duration,
    /// Bytes that one query may take per turn, or [`Limiter::piece`] if that is less. A larger request waits for
    /// several turns.
    pub quantum: u64,
}

/// The limiter of one group and one source.
#[derive(Debug)]
pub struct Limiter {
    rate: Option<BytesPerS>,
    shape: Shape,
    /// Available credit in billionths of a byte; negative for a debt.
    credit: i128,
    seen_ns: u64,
    lines: Lines,
}

impl Limiter {
    /// Creates a limiter with a full burst at `now_ns`. Without a rate, every reservation is granted immediately.
    #[must_use]
    pub fn new(rate: Option<BytesPerS>, shape: Shape, now_ns: u64) -> Limiter {
        let mut limiter = Limiter { rate: None, shape, credit: 0, seen_ns: now_ns, lines: Lines::default() };
        limiter.set_rate(now_ns, rate);
        limiter
    }

    /// Returns the current rate; `None` means no limit.
    #[must_use]
    pub fn rate(&self) -> Option<BytesPerS> {
        self.rate
    }

    /// Returns the number of waiting reservations.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lines.waiting()
    }

    /// Returns the best size of one reservation at this rate, in bytes: at most `preferred`, and at most half a burst
    /// or one page, whichever is larger. With this size, a timer may be late by half a burst without loss of credit,
    /// and the rate is even within short windows.
    #[must_use]
    pub fn piece(&self, preferred: u64) -> u64 {
        let half = self.burst_credit() / 2 / UNIT;
        let most = u64::try_from(half).unwrap_or(u64::MAX).max(SMALLEST_PIECE);
        if self.rate.is_some() { preferred.min(most) } else { preferred }
    }

    /// Reserves `bytes` for `query`. Reservations that already wait go first, even if the credit would cover this one.
    pub fn reserve(&mut self, now_ns: u64, query: QueryId, bytes: u64) -> Ticket {
        self.pass(now_ns);
        let idle = self.lines.waiting() == 0;
        if bytes == 0 || idle && (self.rate.is_none() || self.credit >= self.needed(bytes)) {
            self.take(bytes);
            return Ticket::Paid;
        }
        let before = i128::try_from(self.lines.bytes()).map_or(MOST, |bytes| bytes.saturating_mul(UNIT));
        let start_ns = self.when(before.saturating_add(self.needed(bytes)));
        Ticket::Waits { id: self.lines.join(query, bytes), start_ns }
    }

    /// Returns the time at which the next waiting reservation may start (ns): call [`Limiter::grant`] then. `None` if
    /// no reservation waits.
    pub fn due(&mut self) -> Option<u64> {
        let next = self.lines.next()?;
        Some(self.when(self.needed(next.bytes)))
    }

    /// Grants the next waiting reservation if it is due. Call this until it returns `None`.
    pub fn grant(&mut self, now_ns: u64) -> Option<Granted> {
        self.pass(now_ns);
        let next = self.lines.next()?;
        if self.rate.is_some() && self.credit < self.needed(next.bytes) {
            return None;
        }
        self.take(next.bytes);
        self.lines.serve();
        Some(next)
    }

    /// Cancels a waiting reservation; later reservations move up. Returns `false` if no reservation with this id waits.
    pub fn cancel(&mut self, id: TicketId) -> bool {
        self.lines.leave(id)
    }

    /// Corrects a payment of `paid` bytes to the `received` bytes: bytes that were not received are refunded, and bytes
    /// beyond the payment become a debt that delays later reads. A refund never raises the credit above one burst.
    pub fn settle(&mut self, now_ns: u64, paid: u64, received: u64) {
        self.pass(now_ns);
        if self.rate.is_some() {
            let back = (i128::from(paid) - i128::from(received)) * UNIT;
            self.credit = self.credit.saturating_add(back).clamp(-MOST, self.burst_credit());
        }
    }

    /// Changes the rate from `now_ns` on, also for debts and waiting reservations. `None` removes the limit and all
    /// debts. Call [`Limiter::due`] again afterwards.
    pub fn set_rate(&mut self, now_ns: u64, rate: Option<BytesPerS>) {
        self.pass(now_ns);
        let had_none = self.rate.is_none();
        // A rate of 0 would stop all reads; the smallest rate is one byte per second.
        self.rate = rate.map(|rate| BytesPerS(rate.0.max(1)));
        self.credit = match (self.rate, had_none) {
            (None, _) => 0,
            (Some(_), true) => self.burst_credit(),
            (Some(_), false) => self.credit.min(self.burst_credit()),
        };
        self.lines.set_quantum(self.piece(self.shape.quantum));
    }

    fn pass(&mut self, now_ns: u64) {
        let elapsed = now_ns.saturating_sub(self.seen_ns);
        self.seen_ns = self.seen_ns.max(now_ns);
        if let Some(rate) = self.rate {
            let gained = times(rate, elapsed);
            self.credit = self.credit.saturating_add(gained).min(self.burst_credit());
        }
    }

    fn take(&mut self, bytes: u64) {
        if self.rate.is_some() {
            self.credit = (self.credit - i128::from(bytes) * UNIT).max(-MOST);
        }
    }

    /// Returns the credit that a request needs: its size, or a full burst if the request is larger than the burst. A
    /// request larger than the burst leaves a debt.
    fn needed(&self, bytes: u64) -> i128 {
        (i128::from(bytes) * UNIT).min(self.burst_credit())
    }

    fn burst_credit(&self) -> i128 {
        let burst_ns = u64::try_from(self.shape.burst.as_nanos()).unwrap_or(u64::MAX);
        self.rate.map_or(0, |rate| times(rate, burst_ns))
    }

    /// Returns the time at which the credit will reach `wanted` (ns).
    fn when(&self, wanted: i128) -> u64 {
        let Some(rate) = self.rate else { return self.seen_ns };
        let missing = wanted.saturating_sub(self.credit).max(0).unsigned_abs();
        let wait_ns = missing.div_ceil(u128::from(rate.0));
        self.seen_ns.saturating_add(u64::try_from(wait_ns).unwrap_or(u64::MAX))
    }
}

/// Returns the credit that accumulates at a rate in `ns` nanoseconds, in billionths of a byte.
fn times(rate: BytesPerS, ns: u64) -> i128 {
    let product = u128::from(rate.0).saturating_mul(u128::from(ns));
    i128::try_from(product).map_or(MOST, |product| product.min(MOST))
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
