//! Tests of the memory accounting of groups.

use super::*;
use crate::engine::group::Group;
use crate::engine::pool::QueryPool;
use crate::engine::query::Identity;
use crate::engine::settings::Settings;
use crate::engine::terms::QueryLimits;
use crate::property::SlotPolicy;
use crate::statement::UserName;
use commensal_testkit::until;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};

const MIB: usize = 1 << 20;

fn hard(mib: usize) -> Rules {
    Rules { limit: Some(mib * MIB), hard: true, low_watermark: 100, ..Rules::NONE }
}

fn group(rules: Rules) -> Arc<Group> {
    Group::new(7, "g2", Settings { memory: rules, ..Settings::default() }, 1).unwrap()
}

struct Running {
    query: Arc<Query>,
    reservation: MemoryReservation,
}

fn begin(group: &Arc<Group>, slots: u32, can_spill: bool) -> Running {
    let identity = Identity::new(1, UserName::anywhere("root"), String::new());
    let query = Query::new(
        identity,
        QueryLimits { slots, memory: None, timeout: None, execution: None, slow_after: None },
        group.accounts(),
    );
    group.memory.join(&query);
    let pool: Arc<dyn MemoryPool> = Arc::new(QueryPool::new(&query));
    let reservation = MemoryConsumer::new("test").with_can_spill(can_spill).register(&pool);
    Running { query, reservation }
}

// promise 46
#[tokio::test]
async fn one_victim_and_the_others_go_on() {
    let group = group(hard(900));
    let queries: Vec<Running> = (0..3).map(|_| begin(&group, 1, false)).collect();
    for running in &queries {
        running.reservation.try_grow(300 * MIB).unwrap();
    }
    // 10 MiB are missing, so one victim is enough. The request is granted immediately, within the slack.
    let asked = queries[0].reservation.try_grow(10 * MIB);
    let ended: Vec<usize> = (0..3).filter(|at| queries[*at].query.ended().is_some()).collect();
    assert_eq!(ended.len(), 1, "{ended:?}");
    let victim = ended[0];
    assert_eq!(asked.is_ok(), victim != 0);
    // While the victim frees its memory, no other query is cancelled for requests that this memory will satisfy.
    let other = (0..3).find(|at| *at != victim).unwrap();
    let _ = queries[other].reservation.try_grow(10 * MIB);
    assert_eq!(queries.iter().filter(|running| running.query.ended().is_some()).count(), 1);
    let Some(Error::Memory(text)) = queries[victim].query.ended() else { panic!("no text") };
    for part in [
        "[MEM_LIMIT_EXCEEDED]GC wg for hard limit, wg id:7, name:g2, used:900.00 MB, limit:900.00 MB",
        &format!("<Query#Id={}> consumption 3", queries[victim].query.identity.id),
        "top holders: ",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(text.matches("<Query#Id=").count(), 4, "the victim and the three largest: {text}");
    assert!(!text.contains("process memory"), "{text}");
    drop(queries);
    assert_eq!(group.memory.used(), 0);
}

#[tokio::test]
async fn who_can_spill_is_told_to_before_anybody_ends() {
    let group = group(hard(100));
    let running = begin(&group, 1, true);
    running.reservation.try_grow(80 * MIB).unwrap();
    let text = running.reservation.try_grow(10 * MIB).unwrap_err().to_string();
    assert!(text.contains("the operator must spill") && text.contains("80.00 MB of 100.00 MB"), "{text}");
    assert!(running.query.ended().is_none());
    running.reservation.free();
    running.reservation.try_grow(80 * MIB).unwrap();
    let alone = begin(&group, 1, false);
    alone.reservation.try_grow(15 * MIB).unwrap();
    assert!(alone.query.ended().is_none() && running.query.ended().is_none());
}

// promise 46
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_spill_has_the_others_spill() {
    let group = group(hard(100));
    let running = begin(&group, 1, true);
    running.reservation.try_grow(80 * MIB).unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(QueryPool::new(&running.query));
    let fixed = MemoryConsumer::new("merge").with_can_spill(false).register(&pool);
    fixed.try_grow(19 * MIB).unwrap();
    // A sort requests a little memory repeatedly, spills when a request is refused, and continues.
    let sort = tokio::task::spawn_blocking(move || {
        until("a request is refused", || {
            let granted = running.reservation.try_grow(1).is_ok();
            if granted {
                running.reservation.shrink(1);
            }
            !granted
        });
        running.reservation.free();
        running
    });
    let merge = tokio::task::spawn_blocking(move || (fixed.try_grow(20 * MIB), fixed)).await.unwrap();
    merge.0.unwrap();
    let running = sort.await.unwrap();
    assert!(running.query.ended().is_none());
    // No operator waits for others to spill any more.
    running.reservation.try_grow(5 * MIB).unwrap();
    running.reservation.try_grow(5 * MIB).unwrap();
}

#[tokio::test]
async fn more_than_the_limit_at_once_says_so() {
    let group = group(hard(100));
    let running = begin(&group, 1, false);
    let text = running.reservation.try_grow(200 * MIB).unwrap_err().to_string();
    assert!(text.contains("asks for 200.00 MB") && text.contains("100.00 MB of 100.00 MB left"), "{text}");
    assert_eq!(group.memory.used(), 0);
}

#[tokio::test]
async fn memory_by_slots() {
    let group = group(Rules { slots: SlotPolicy::Fixed, all_slots: 4, ..hard(400) });
    let running = begin(&group, 2, true);
    // Two of four slots, of 85 % of the limit.
    running.reservation.try_grow(169 * MIB).unwrap();
    assert!(running.reservation.try_grow(2 * MIB).is_err());
    group.memory.set_rules(Rules { slots: SlotPolicy::Dynamic, ..hard(400) });
    running.reservation.try_grow(100 * MIB).unwrap();
    let _other = begin(&group, 2, true);
    assert!(running.reservation.try_grow(MIB).is_err(), "half of it belongs to the other now");
}

#[tokio::test]
async fn a_soft_limit_matters_while_the_process_is_short() {
    let soft = |mib: usize| group(Rules { hard: false, ..hard(mib) });
    let groups = [soft(100), soft(100), group(Rules::NONE)];
    let queries: Vec<Running> =
        [0, 0, 1, 2].into_iter().map(|at: usize| begin(&groups[at], 1, false)).collect();
    for (running, mib) in queries.iter().zip([300, 200, 150, 500]) {
        running.reservation.try_grow(mib * MIB).unwrap();
    }
    let memories: Vec<Arc<GroupMemory>> = groups.iter().map(|group| Arc::clone(&group.memory)).collect();
    assert!(reclaim(&memories, 1_150 * MIB).is_empty(), "the process has enough");
    // 150 MiB are missing. The excesses are 400, 50 and 0 MiB, so the first group must free 133 MiB and the second one
    // 17 MiB.
    let victims = reclaim(&memories, 1_000 * MIB);
    let ids: Vec<u64> = victims.iter().map(|victim| victim.query.identity.number).collect();
    assert_eq!(
        ids,
        [queries[1].query.identity.number, queries[2].query.identity.number],
        "the smallest that is enough"
    );
    assert!(victims[0].text.contains("soft limit") && victims[0].text.contains("exceed limit 1000.00 MB"));
    assert!(reclaim(&memories, 1_000 * MIB).is_empty(), "what dies is on its way back");
}

#[tokio::test]
async fn an_account_moves_with_all_it_holds() {
    let (one, other) = (group(hard(500)), Group::new(8, "other", Settings::default(), 1).unwrap());
    let running = begin(&one, 1, false);
    running.reservation.try_grow(100 * MIB).unwrap();
    running.query.move_to(&other.accounts());
    assert_eq!((one.memory.used(), other.memory.used()), (0, 100 * MIB));
    running.reservation.try_grow(50 * MIB).unwrap();
    running.reservation.shrink(120 * MIB);
    assert_eq!((one.memory.used(), other.memory.used()), (0, 30 * MIB));
    drop(running);
    assert_eq!(other.memory.used(), 0);
}

#[test]
fn bytes_are_readable() {
    for (bytes, want) in [(0, "0 B"), (1_023, "1023 B"), (1_500_000, "1.43 MB"), (1_814_400_000, "1.69 GB")] {
        assert_eq!(readable(bytes), want);
    }
}

/// A request waits five seconds for the memory of a victim.
mod measure {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_asks_waits_for_the_victims_memory() {
        let group = group(hard(1_000));
        let large = begin(&group, 1, false);
        large.reservation.try_grow(700 * MIB).unwrap();
        let small = begin(&group, 1, false);
        small.reservation.try_grow(200 * MIB).unwrap();
        let (memory, is_freed) = (Arc::clone(&group.memory), Arc::new(AtomicBool::new(false)));
        let marks = Arc::clone(&is_freed);
        let freed = tokio::spawn(async move {
            // The query above its share is chosen as the victim. It frees its memory while another query waits for that
            // memory.
            large.query.stopped().await;
            tokio::task::block_in_place(|| until("the other query waits", || memory.lock().waiting > 0));
            marks.store(true, SeqCst);
            large.reservation.free();
        });
        let asked = tokio::task::spawn_blocking(move || (small.reservation.try_grow(300 * MIB), small))
            .await
            .unwrap();
        asked.0.unwrap();
        assert!(is_freed.load(SeqCst), "it has waited");
        freed.await.unwrap();
        assert_eq!(group.memory.used(), 500 * MIB);
        assert!(group.memory.peak_and_ended().0 <= 1_050 * MIB);
    }
}
