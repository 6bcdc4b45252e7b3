//! The rate limiter of a group's reads: each read is paid for in advance; the limiter decides the order and the time.
//!
//! A reservation is made **before** the bytes move, so that readers that wake together cannot all pass at once (as with
//! a limiter that charges afterwards: at a limit of 100 MiB/s one was measured at 0 to 192 MiB/s). It is the generic
//! cell rate algorithm, kept as a credit in exact integers: the credit grows with the rate up to the burst, a
//! reservation is granted when the credit covers it, and debts are in bytes, not in time, so that a new rate applies to
//! old debts at once.
//!
//! Waiting reservations are served by deficit round robin over the *queries* of the group (Shreedhar and Varghese,
//! 1995): a query with 128 readers gets as much as one with a single reader that keeps asking.
//!
//! ```text
//! reserve ──► Paid                        the credit covers it and nobody waits
//!        └──► Waits ──► grant(due) ──► paid, or cancel: nothing was taken, those behind move up
//! settle(paid, received)                  less came: the rest goes back; more came: it is owed
//! ```
//!
//! **Bound:** in any window of length T, with the rate unchanged, at most `rate × T + max(burst, largest request)`
//! bytes are granted. **Work conserving:** while a reservation waits, the credit never stays at the burst.
//!
//! Pure: times are nanoseconds of a monotonic clock; if a clock goes back, time stands still until it has caught up.

mod line;
mod windows;

use line::Lines;
use std::fmt;
use std::time::Duration;
pub use windows::Windows;

/// Units per byte: credit is counted in billionths of a byte, so that a rate in bytes per second times nanoseconds is
/// exact.
const UNIT: i128 = 1_000_000_000;
/// Bound of credit and debt, far below an overflow of sums.
const MOST: i128 = i128::MAX / 4;
/// Smallest piece, however low the rate: a page.
const SMALLEST_PIECE: u64 = 4096;

/// A rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BytesPerS(pub u64);

impl fmt::Display for BytesPerS {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B/s", self.0)
    }
}

/// Identity of a query of the group; queries get equal shares.
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
        /// Its identity.
        id: TicketId,
        /// When it would begin if no other reservation came, none was cancelled, the rate stayed and service were first
        /// come, first served.
        start_ns: u64,
    },
}

/// A reservation that was granted: its read may begin, and is paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Identity of the reservation.
    pub id: TicketId,
    /// The query that made it.
    pub query: QueryId,
    /// Number of bytes.
    pub bytes: u64,
}

/// Parameters of a limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Credit that accumulates while there are no reads, as time at the rate. Also how late a timer may be without
    /// loss.
    pub burst: Duration,
    /// Bytes that one query may take per turn, or less where [`Limiter::piece`] is less; a larger request waits for
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
    /// A limiter with a full burst at `now_ns`; without a rate every reservation is granted at once.
    #[must_use]
    pub fn new(rate: Option<BytesPerS>, shape: Shape, now_ns: u64) -> Limiter {
        let mut limiter = Limiter { rate: None, shape, credit: 0, seen_ns: now_ns, lines: Lines::default() };
        limiter.set_rate(now_ns, rate);
        limiter
    }

    /// The current rate.
    #[must_use]
    pub fn rate(&self) -> Option<BytesPerS> {
        self.rate
    }

    /// Number of waiting reservations.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lines.waiting()
    }

    /// The best size of one reservation at this rate, at most `preferred` bytes: at most half a burst, so that a timer
    /// may be late by the other half and short windows stay even at low rates.
    #[must_use]
    pub fn piece(&self, preferred: u64) -> u64 {
        let half = self.burst_credit() / 2 / UNIT;
        let most = u64::try_from(half).unwrap_or(u64::MAX).max(SMALLEST_PIECE);
        if self.rate.is_some() { preferred.min(most) } else { preferred }
    }

    /// Reserves `bytes` for `query`. Waiting reservations go first, whatever the credit.
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

    /// When the next waiting reservation may begin: call [`Limiter::grant`] then. `None` if none waits.
    pub fn due(&mut self) -> Option<u64> {
        let next = self.lines.next()?;
        Some(self.when(self.needed(next.bytes)))
    }

    /// Grants the next waiting reservation, if it is due. To be called until it returns `None`.
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

    /// Cancels a waiting reservation; those behind it move up. `false` if it is not (or no longer) waiting.
    pub fn cancel(&mut self, id: TicketId) -> bool {
        self.lines.leave(id)
    }

    /// Settles the bytes `paid` for with those `received`: the difference is refunded, or becomes a debt that makes the
    /// next reads wait. A refund never raises the credit above one burst.
    pub fn settle(&mut self, now_ns: u64, paid: u64, received: u64) {
        self.pass(now_ns);
        if self.rate.is_some() {
            let back = (i128::from(paid) - i128::from(received)) * UNIT;
            self.credit = self.credit.saturating_add(back).clamp(-MOST, self.burst_credit());
        }
    }

    /// Changes the rate from `now_ns` on, for debts and waiting reservations too; `None` means no limit, and debts are
    /// forgotten. Call [`Limiter::due`] again afterwards.
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

    /// The credit that a request needs: its size, or a full burst if it is larger than the burst (it then causes a
    /// debt).
    fn needed(&self, bytes: u64) -> i128 {
        (i128::from(bytes) * UNIT).min(self.burst_credit())
    }

    fn burst_credit(&self) -> i128 {
        let burst_ns = u64::try_from(self.shape.burst.as_nanos()).unwrap_or(u64::MAX);
        self.rate.map_or(0, |rate| times(rate, burst_ns))
    }

    /// When the credit will reach `wanted`.
    fn when(&self, wanted: i128) -> u64 {
        let Some(rate) = self.rate else { return self.seen_ns };
        let missing = wanted.saturating_sub(self.credit).max(0).unsigned_abs();
        let wait_ns = missing.div_ceil(u128::from(rate.0));
        self.seen_ns.saturating_add(u64::try_from(wait_ns).unwrap_or(u64::MAX))
    }
}

/// The credit that a rate gives in `ns` nanoseconds, in billionths of a byte.
fn times(rate: BytesPerS, ns: u64) -> i128 {
    let product = u128::from(rate.0).saturating_mul(u128::from(ns));
    i128::try_from(product).map_or(MOST, |product| product.min(MOST))
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
