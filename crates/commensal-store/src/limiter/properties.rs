//! Properties of the limiter that hold for any sequence of calls.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// A call to a limiter.
#[derive(Debug, Clone)]
enum Act {
    Reserve {
        query: u64,
        bytes: u64,
    },
    /// Grants all reservations that are due.
    Grant,
    Cancel {
        which: usize,
    },
    /// Refunds a part of a payment, or makes an excess a debt.
    Settle {
        paid: u64,
        received: u64,
    },
    Rate(Option<u64>),
}

fn act(largest: u64) -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (0u64..5, 0..=largest).prop_map(|(query, bytes)| Act::Reserve { query, bytes }),
        4 => Just(Act::Grant),
        1 => any::<usize>().prop_map(|which| Act::Cancel { which }),
        1 => (0..=largest, 0..=largest).prop_map(|(paid, received)| Act::Settle { paid, received }),
    ]
}

/// Steps of the clock in nanoseconds: mostly small, sometimes 0, negative or several hours.
fn step() -> impl Strategy<Value = i64> {
    prop_oneof![
        6 => 0i64..20_000_000,
        2 => Just(0i64),
        1 => -5_000_000i64..0,
        1 => 0i64..10_000_000_000_000,
    ]
}

fn anything() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), Just(0), Just(1), Just(u64::MAX), 0u64..10_000_000]
}

proptest! {
    /// For any reservations, cancellations, refunds and clock steps: no window gets more than the rate, one burst (or
    /// one larger request), and the refunds within the window. The reservations of each query are served in order, and
    /// every waiting reservation is served.
    #[test]
    fn no_window_gets_more_and_nobody_is_forgotten(
        rate in 1u64..1_000_000_000, burst_ms in 0u64..50, quantum in 1u64..2_000_000,
        acts in prop::collection::vec((step(), act(3_000_000)), 1..150),
    ) {
        let shape = Shape { burst: Duration::from_millis(burst_ms), quantum };
        let mut limiter = Limiter::new(Some(BytesPerS(rate)), shape, 0);
        let (mut clock, mut seen, mut largest) = (0u64, 0u64, 0u64);
        // Time, granted bytes, refunded bytes.
        let mut log: Vec<(u64, u64, u64)> = Vec::new();
        let mut waiting: Vec<TicketId> = Vec::new();
        let mut last_of: HashMap<QueryId, TicketId> = HashMap::new();
        for (by, act) in acts {
            clock = clock.saturating_add_signed(by);
            if !matches!(act, Act::Cancel { .. }) {
                seen = seen.max(clock);
            }
            match act {
                Act::Reserve { query, bytes } => {
                    largest = largest.max(bytes);
                    match limiter.reserve(clock, QueryId(query), bytes) {
                        Ticket::Paid => log.push((seen, bytes, 0)),
                        Ticket::Waits { id, start_ns } => {
                            prop_assert!(start_ns >= seen);
                            waiting.push(id);
                        }
                    }
                }
                Act::Cancel { which } => {
                    if !waiting.is_empty() {
                        let id = waiting.remove(which % waiting.len());
                        prop_assert!(limiter.cancel(id));
                    }
                }
                Act::Settle { paid, received } => {
                    limiter.settle(clock, paid, received);
                    log.push((seen, 0, paid.saturating_sub(received)));
                }
                Act::Grant | Act::Rate(_) => while let Some(granted) = limiter.grant(clock) {
                    log.push((seen, granted.bytes, 0));
                    prop_assert!(waiting.contains(&granted.id));
                    waiting.retain(|id| *id != granted.id);
                    let before = last_of.insert(granted.query, granted.id);
                    prop_assert!(before.is_none_or(|before| before < granted.id), "overtaken in its line");
                },
            }
            prop_assert_eq!(limiter.waiting(), waiting.len());
        }
        let burst = u128::from(rate) * u128::from(burst_ms) / 1_000;
        for from in 0..log.len() {
            let (mut given, mut back) = (0u128, 0u128);
            for (at, gave, came_back) in &log[from..] {
                given += u128::from(*gave);
                back += u128::from(*came_back);
                let grown = u128::from(rate) * u128::from(at - log[from].0) / 1_000_000_000;
                let most = grown + burst.max(u128::from(largest)) + back + 2;
                prop_assert!(given <= most, "{given} given where {most} may be");
            }
        }
        // At each due time of the limiter, one more reservation is granted.
        for left in (0..waiting.len()).rev() {
            let due = limiter.due().expect("somebody waits");
            prop_assert!(limiter.grant(due).is_some());
            prop_assert_eq!(limiter.waiting(), left);
        }
    }

    /// While reservations wait, the full rate is used.
    #[test]
    fn it_is_work_conserving(
        rate in 1_000u64..1_000_000_000, burst_ms in 0u64..50,
        sizes in prop::collection::vec(1u64..3_000_000, 2..60),
    ) {
        let shape = Shape { burst: Duration::from_millis(burst_ms), quantum: 262_144 };
        let mut limiter = Limiter::new(Some(BytesPerS(rate)), shape, 0);
        let (mut given, mut last) = (0u128, 0);
        for (at, bytes) in sizes.iter().enumerate() {
            if limiter.reserve(0, QueryId(at as u64 % 3), *bytes) == Ticket::Paid {
                given += u128::from(*bytes);
            }
        }
        while let Some(due) = limiter.due() {
            prop_assert!(due >= last);
            last = due;
            given += u128::from(limiter.grant(due).unwrap().bytes);
        }
        let all: u64 = sizes.iter().sum();
        prop_assert_eq!(given, u128::from(all));
        // A full credit does not grow during the nanosecond by which a due time is rounded up.
        let rounding = sizes.len() as u128 * u128::from(rate).div_ceil(1_000_000_000);
        let could = u128::from(rate) * u128::from(last) / 1_000_000_000;
        prop_assert!(given + rounding + 1 >= could, "{given} given where {could} could be");
    }

    /// Queries that always have waiting reservations get equal shares, regardless of the number of their readers and
    /// the size of their reads.
    #[test]
    fn shares_are_fair(
        quantum in 1_000u64..1_000_000,
        queries in prop::collection::vec((2usize..20, 1u64..2_000_000), 2..6),
    ) {
        let shape = Shape { burst: Duration::from_millis(20), quantum };
        let mut limiter = Limiter::new(Some(BytesPerS(100_000_000)), shape, 0);
        limiter.reserve(0, QueryId(99), 2_000_000);
        for (query, (readers, bytes)) in queries.iter().enumerate() {
            for _ in 0..*readers {
                limiter.reserve(0, QueryId(query as u64), *bytes);
            }
        }
        let mut got = vec![0u64; queries.len()];
        for _ in 0..500 {
            let due = limiter.due().unwrap();
            let granted = limiter.grant(due).unwrap();
            let query = usize::try_from(granted.query.0).unwrap();
            got[query] += granted.bytes;
            // The query requests the same again: with two readers or more it always has a waiting reservation.
            limiter.reserve(due, granted.query, queries[query].1);
        }
        let alone: Vec<u64> = queries.iter().map(|(_, bytes)| *bytes).collect();
        let slack = 2 * quantum + 2 * alone.iter().max().unwrap();
        let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
        prop_assert!(most - least <= slack, "{got:?}, sizes {alone:?}, quantum {quantum}");
    }

    /// No input value causes a panic or an endless loop.
    #[test]
    fn nothing_overflows(
        rate in prop::option::of(anything()), burst_ns in anything(), quantum in anything(), start in anything(),
        acts in prop::collection::vec((anything(), prop_oneof![
            4 => (0u64..3, anything()).prop_map(|(query, bytes)| Act::Reserve { query, bytes }),
            2 => Just(Act::Grant),
            1 => (anything(), anything()).prop_map(|(paid, received)| Act::Settle { paid, received }),
            1 => prop::option::of(anything()).prop_map(Act::Rate),
        ]), 1..60),
    ) {
        let shape = Shape { burst: Duration::from_nanos(burst_ns).saturating_mul(1_000_000), quantum };
        let mut limiter = Limiter::new(rate.map(BytesPerS), shape, start);
        for (now, act) in acts {
            match act {
                Act::Reserve { query, bytes } => { limiter.reserve(now, QueryId(query), bytes); }
                Act::Settle { paid, received } => limiter.settle(now, paid, received),
                Act::Rate(rate) => limiter.set_rate(now, rate.map(BytesPerS)),
                Act::Grant | Act::Cancel { .. } => while limiter.grant(now).is_some() {},
            }
            limiter.due();
            prop_assert!(limiter.piece(now) <= now);
        }
        limiter.set_rate(0, None);
        while limiter.grant(0).is_some() {}
        prop_assert_eq!(limiter.waiting(), 0);
    }
}
