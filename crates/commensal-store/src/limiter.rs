//! The rate limiter of a group's reads: who pays before it reads, in whose turn, and when that is.
//!
//! A reservation is made **before** the bytes move, so that readers that wake together cannot all pass at once (which is
//! what a limiter does that charges afterwards: at a limit of 100 MiB/s one was measured at 0 to 192 MiB/s). It is the
//! generic cell rate algorithm, kept as a credit in exact integers: the credit grows with the rate up to the burst, a
//! reservation is given when the credit covers it, and what is owed is owed in bytes, not in time, so that a new rate
//! holds at once for old debts.
//!
//! Those that wait are served by deficit round robin over the *queries* of the group (Shreedhar and Varghese, 1995): a
//! query with 128 readers gets as much as one with a single reader that keeps asking.
//!
//! ```text
//! reserve ──► Paid                        the credit covers it and nobody waits
//!        └──► Waits ──► grant(due) ──► paid, or cancel: nothing was taken, those behind move up
//! settle(paid, received)                  less came: the rest goes back; more came: it is owed
//! ```
//!
//! **Bound:** in any window of length T, with the rate unchanged, at most `rate × T + max(burst, largest request)` bytes
//! are given. **Work conserving:** while somebody waits, the credit is never left at the burst.
//!
//! Pure: times are nanoseconds of any clock that does not go back; one that does stands still until it has caught up.

mod line;
mod windows;

use line::Lines;
use std::fmt;
use std::time::Duration;
pub use windows::Windows;

/// Billionths of a byte in a byte: with them a rate in bytes per second times nanoseconds is exact.
const UNIT: i128 = 1_000_000_000;
/// Bound of credit and debt, far from where sums overflow.
const MOST: i128 = i128::MAX / 4;
/// No piece is smaller, however low the rate: a page.
const SMALLEST_PIECE: u64 = 4096;

/// A rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BytesPerS(pub u64);

impl fmt::Display for BytesPerS {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B/s", self.0)
    }
}

/// Which query of the group asks; queries get equal shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);

/// One reservation that waits. Never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(pub u64);

/// What a reservation became.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ticket {
    /// It may begin now.
    Paid,
    /// It waits for [`Limiter::grant`].
    Waits {
        /// To recognise it by.
        id: TicketId,
        /// When it would begin if nobody came, cancelled or changed the rate, and lines were first come, first served.
        start_ns: u64,
    },
}

/// One whose turn came: it may begin, and has paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Which reservation.
    pub id: TicketId,
    /// Whose.
    pub query: QueryId,
    /// How much.
    pub bytes: u64,
}

/// How a limiter shapes what it gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// How much may be saved up while nobody asks, as time at the rate. It also is how late a timer may be without loss.
    pub burst: Duration,
    /// What one query may take in one turn, in bytes, less where [`Limiter::piece`] is less; a request may be larger and
    /// then waits some turns.
    pub quantum: u64,
}

/// The limiter of one group and one source.
#[derive(Debug)]
pub struct Limiter {
    rate: Option<BytesPerS>,
    shape: Shape,
    /// Billionths of a byte that may be taken; below 0, owed.
    credit: i128,
    seen_ns: u64,
    lines: Lines,
}

impl Limiter {
    /// A limiter with a full burst at `now_ns`; without a rate it gives everything at once.
    #[must_use]
    pub fn new(rate: Option<BytesPerS>, shape: Shape, now_ns: u64) -> Limiter {
        let mut limiter = Limiter { rate: None, shape, credit: 0, seen_ns: now_ns, lines: Lines::default() };
        limiter.set_rate(now_ns, rate);
        limiter
    }

    /// The rate in force.
    #[must_use]
    pub fn rate(&self) -> Option<BytesPerS> {
        self.rate
    }

    /// How many reservations wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lines.waiting()
    }

    /// How large one reservation should be at this rate, of `preferred` bytes: not above half a burst, so that a timer
    /// may be late by the other half and short windows stay even at low rates.
    #[must_use]
    pub fn piece(&self, preferred: u64) -> u64 {
        let half = self.burst_credit() / 2 / UNIT;
        let most = u64::try_from(half).unwrap_or(u64::MAX).max(SMALLEST_PIECE);
        if self.rate.is_some() { preferred.min(most) } else { preferred }
    }

    /// Reserves `bytes` for `query`. Those that wait already go first, whatever the credit.
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

    /// When the next of those that wait may begin: call [`Limiter::grant`] then. `None`: nobody waits.
    pub fn due(&mut self) -> Option<u64> {
        let next = self.lines.next()?;
        Some(self.when(self.needed(next.bytes)))
    }

    /// Gives to the next of those that wait, if its time has come. To be called until it answers `None`.
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

    /// Takes a reservation back that still waits; those behind it move up. `false`: it does not wait (any more).
    pub fn cancel(&mut self, id: TicketId) -> bool {
        self.lines.leave(id)
    }

    /// Squares what was `paid` for with what was `received`, both in bytes: the rest goes back, an excess is owed and
    /// makes the next ones wait. What goes back never makes more than one burst.
    pub fn settle(&mut self, now_ns: u64, paid: u64, received: u64) {
        self.pass(now_ns);
        if self.rate.is_some() {
            let back = (i128::from(paid) - i128::from(received)) * UNIT;
            self.credit = self.credit.saturating_add(back).clamp(-MOST, self.burst_credit());
        }
    }

    /// Another rate from `now_ns` on, for debts and waiting ones too; `None`: no limit, and what is owed is forgotten.
    /// Ask for [`Limiter::due`] again afterwards.
    pub fn set_rate(&mut self, now_ns: u64, rate: Option<BytesPerS>) {
        self.pass(now_ns);
        let had_none = self.rate.is_none();
        // A rate of 0 would be no rate but a stop; the smallest rate is one byte per second.
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

    /// The credit that a request needs: its own size, but one larger than the burst goes with a full burst, into debt.
    fn needed(&self, bytes: u64) -> i128 {
        (i128::from(bytes) * UNIT).min(self.burst_credit())
    }

    fn burst_credit(&self) -> i128 {
        let burst_ns = u64::try_from(self.shape.burst.as_nanos()).unwrap_or(u64::MAX);
        self.rate.map_or(0, |rate| times(rate, burst_ns))
    }

    /// When the credit will be `wanted`.
    fn when(&self, wanted: i128) -> u64 {
        let Some(rate) = self.rate else { return self.seen_ns };
        let missing = wanted.saturating_sub(self.credit).max(0).unsigned_abs();
        let wait_ns = missing.div_ceil(u128::from(rate.0));
        self.seen_ns.saturating_add(u64::try_from(wait_ns).unwrap_or(u64::MAX))
    }
}

/// What a rate gives in `ns` nanoseconds, in billionths of a byte.
fn times(rate: BytesPerS, ns: u64) -> i128 {
    let product = u128::from(rate.0).saturating_mul(u128::from(ns));
    i128::try_from(product).map_or(MOST, |product| product.min(MOST))
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
