//! Unit tests of the limiter.

use super::*;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;
const SHAPE: Shape = Shape { burst: Duration::from_millis(20), quantum: MIB };
const A: QueryId = QueryId(1);
const B: QueryId = QueryId(2);

/// Creates a limiter of 100 MiB/s with no credit at time 0.
fn empty() -> Limiter {
    let mut limiter = Limiter::new(Some(BytesPerS(100 * MIB)), SHAPE, 0);
    assert_eq!(limiter.reserve(0, QueryId(0), 2 * MIB), Ticket::Paid);
    limiter
}

fn waits(ticket: Ticket) -> (TicketId, u64) {
    match ticket {
        Ticket::Waits { id, start_ns } => (id, start_ns),
        Ticket::Paid => panic!("paid at once"),
    }
}

/// Grants all waiting reservations, each when it is due; returns the time, query and bytes of each.
fn drain(limiter: &mut Limiter) -> Vec<(u64, QueryId, u64)> {
    let mut served = Vec::new();
    while let Some(due) = limiter.due() {
        if due > 0 {
            assert_eq!(limiter.grant(due - 1), None, "before its time");
        }
        let granted = limiter.grant(due).expect("its time has come");
        served.push((due, granted.query, granted.bytes));
    }
    served
}

#[test]
fn the_burst_then_the_rate() {
    let mut limiter = empty();
    let starts = [0; 3].map(|_| waits(limiter.reserve(0, A, MIB)).1);
    assert_eq!(starts, [10 * MS, 20 * MS, 30 * MS]);
    assert_eq!(drain(&mut limiter).iter().map(|served| served.0).collect::<Vec<_>>(), starts);
    // After a long idle time the credit is one burst.
    assert_eq!(limiter.reserve(9 * S, A, 2 * MIB), Ticket::Paid);
    assert_eq!(waits(limiter.reserve(9 * S, A, 1)).1, 9 * S + 10);
}

#[test]
fn no_limit_is_no_wait() {
    let mut limiter = Limiter::new(None, SHAPE, 0);
    for _ in 0..1_000 {
        assert_eq!(limiter.reserve(0, A, u64::MAX), Ticket::Paid);
    }
    limiter.settle(0, 0, u64::MAX);
    assert_eq!((limiter.due(), limiter.waiting(), limiter.piece(7 * MIB)), (None, 0, 7 * MIB));
}

#[test]
fn a_request_above_the_burst_goes_with_a_full_one_and_leaves_a_debt() {
    let mut limiter = empty();
    assert_eq!(waits(limiter.reserve(0, A, 100 * MIB)).1, 20 * MS);
    assert_eq!(drain(&mut limiter), [(20 * MS, A, 100 * MIB)]);
    assert_eq!(waits(limiter.reserve(20 * MS, A, MIB)).1, S + 10 * MS);
}

#[test]
fn what_was_not_read_goes_back_and_an_excess_is_owed() {
    let mut limiter = empty();
    limiter.settle(0, 2 * MIB, MIB);
    assert_eq!(limiter.reserve(0, A, MIB), Ticket::Paid);
    limiter.settle(0, MIB, 11 * MIB);
    assert_eq!(waits(limiter.reserve(0, A, MIB)).1, 110 * MS);
    // Refunds never raise the credit above one burst.
    let mut limiter = empty();
    limiter.settle(0, 500 * MIB, 0);
    assert_eq!(limiter.reserve(0, A, 2 * MIB), Ticket::Paid);
    assert_eq!(waits(limiter.reserve(0, A, MIB)).1, 10 * MS);
}

#[test]
fn a_new_rate_holds_for_old_debts() {
    for (rate, want_ns) in [(1_000, 11 * MS), (10, 1_100 * MS), (100, 110 * MS)] {
        let mut limiter = empty();
        limiter.settle(0, 0, 10 * MIB);
        waits(limiter.reserve(0, A, MIB));
        assert_eq!(limiter.due(), Some(110 * MS));
        limiter.set_rate(0, Some(BytesPerS(rate * MIB)));
        // At 10 MiB/s, 1 MiB is more than the burst of 20 ms, so a full burst is enough.
        let want_ns = if rate == 10 { 1_020 * MS } else { want_ns };
        assert_eq!(limiter.due(), Some(want_ns), "{rate} MiB/s");
    }
    let mut limiter = empty();
    limiter.settle(0, 0, 10 * MIB);
    waits(limiter.reserve(0, A, MIB));
    limiter.set_rate(0, None);
    assert_eq!(drain(&mut limiter), [(0, A, MIB)]);
    // When a limit is set again, the earlier debt is forgotten.
    limiter.set_rate(0, Some(BytesPerS(100 * MIB)));
    assert_eq!(limiter.reserve(0, A, MIB), Ticket::Paid);
}

#[test]
fn a_lower_rate_leaves_no_larger_burst() {
    let mut limiter = Limiter::new(Some(BytesPerS(100 * MIB)), SHAPE, 0);
    limiter.set_rate(0, Some(BytesPerS(50 * MIB)));
    assert_eq!(limiter.reserve(0, A, MIB), Ticket::Paid);
    assert_eq!(waits(limiter.reserve(0, A, MIB)).1, 20 * MS);
}

#[test]
fn cancelling_moves_the_others_up() {
    let mut limiter = empty();
    let first = waits(limiter.reserve(0, A, MIB)).0;
    let second = waits(limiter.reserve(0, A, 2 * MIB)).0;
    waits(limiter.reserve(0, A, MIB));
    assert!(limiter.cancel(second) && limiter.cancel(first));
    assert!(!limiter.cancel(first), "twice");
    assert_eq!(drain(&mut limiter), [(10 * MS, A, MIB)]);
    // A reservation that was granted can no longer be cancelled.
    let last = waits(limiter.reserve(10 * MS, B, MIB)).0;
    drain(&mut limiter);
    assert!(!limiter.cancel(last));
    assert_eq!((limiter.waiting(), limiter.due()), (0, None));
}

#[test]
fn queries_take_turns() {
    let mut limiter = empty();
    for _ in 0..6 {
        limiter.reserve(0, A, MIB);
    }
    limiter.reserve(0, B, MIB / 2);
    limiter.reserve(0, B, MIB / 2);
    limiter.reserve(0, B, MIB);
    let turns: Vec<u64> = drain(&mut limiter).iter().map(|(_, query, _)| query.0).collect();
    assert_eq!(turns, [1, 2, 2, 1, 2, 1, 1, 1, 1]);
}

/// The single reader requests again as soon as it is served; the 128 readers always wait.
#[test]
fn a_crowd_of_128_does_not_starve_one() {
    let mut limiter = empty();
    for _ in 0..128 {
        limiter.reserve(0, A, MIB);
    }
    limiter.reserve(0, B, MIB);
    let mut got = [0, 0, 0];
    for _ in 0..400 {
        let due = limiter.due().unwrap();
        let granted = limiter.grant(due).unwrap();
        got[usize::try_from(granted.query.0).unwrap()] += 1;
        limiter.reserve(due, granted.query, MIB);
    }
    assert_eq!(got, [0, 200, 200]);
}

/// An endless series of new queries makes one request each. An earlier, larger request needs three turns and gets them.
#[test]
fn newcomers_do_not_starve_a_large_request() {
    let mut limiter = empty();
    limiter.reserve(0, A, 3 * MIB);
    for newcomer in 10..15 {
        limiter.reserve(0, QueryId(newcomer), MIB);
    }
    let served = (0..40u64).position(|step| {
        let due = limiter.due().unwrap();
        let granted = limiter.grant(due).unwrap();
        limiter.reserve(due, QueryId(100 + step), MIB);
        granted.query == A
    });
    assert!(served.is_some_and(|after| after <= 15), "{served:?}");
}

#[test]
fn pieces_follow_the_rate() {
    let mut limiter = empty();
    for (rate, want) in [(1_000 * MIB, MIB), (100 * MIB, MIB), (10 * MIB, MIB / 10), (1, 4096)] {
        limiter.set_rate(0, Some(BytesPerS(rate)));
        assert_eq!(limiter.piece(MIB), want, "{rate} bytes/s");
    }
}

#[test]
fn a_clock_that_stands_or_goes_back_gives_nothing() {
    let mut limiter = Limiter::new(Some(BytesPerS(MIB)), SHAPE, S);
    let mut paid = 0;
    for now in [S, S, 0, S - 1, S] {
        paid += u64::from(limiter.reserve(now, A, 8_192) == Ticket::Paid);
        assert_eq!(limiter.grant(now), None);
    }
    // Two requests fit into the burst, which is 20 ms at 1 MiB/s.
    assert_eq!(paid, 2);
    assert!(limiter.due().unwrap() > S);
    limiter.set_rate(0, Some(BytesPerS(0)));
    assert_eq!(limiter.rate(), Some(BytesPerS(1)));
}
