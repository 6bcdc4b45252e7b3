//! Memory of groups and their queries: a pool for each query, which asks its group.
//!
//! DataFusion's operators ask a [`MemoryPool`] before they grow. Ours belongs to one query (a reservation does not say
//! whose it is) and keeps the account with the query's group:
//!
//! 1. Below the high watermark everything is granted.
//! 2. Above it an operator that can spill and holds something is refused, which makes it spill.
//! 3. Who has nothing to spill and no room waits a little, and meanwhile those who can spill are told to ([`PRESS`]).
//! 4. Above a hard limit a victim is chosen ([`crate::engine::victim`]), told to end and its memory waited for: who
//!    asked goes on once it is there, and may meanwhile overshoot by [`SLACK`].
//! 5. A soft limit matters only while the process is short ([`reclaim`]).
//!
//! What is counted is what operators reserve. Batches under way and caches are not; DataFusion's own documentation
//! says so, and a measured process had 1.1 to 1.5 times the reserved bytes.

use super::cpu;
use super::error::Error;
use super::group::Group;
use super::query::Query;
use super::victim::{self, Holder};
use crate::property::{SlotPolicy, UNLIMITED};
use arc_swap::ArcSwap;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Part of a hard limit by which it may be overshot while a victim's memory is on its way back: one twentieth.
pub const SLACK: usize = 20;

/// An operator that holds less than this is not told to spill: it has nothing to give yet.
const WORTH_SPILLING: usize = 1 << 20;

/// How long one waits for the memory of a victim. Cancelling takes milliseconds to a second (measured), so that one who
/// waits longer waits for a query that does not yield.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long one that has nothing to spill waits for those of its own query that have: they spill when they ask for more the
/// next time, which takes the sorting and writing of what they hold. It would fail otherwise.
const PRESS: Duration = Duration::from_secs(10);

/// What a group may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Bytes; `None` is no limit.
    pub limit: Option<usize>,
    /// Whether queries end when the limit is passed, or only when the process is short.
    pub hard: bool,
    /// Percent of the limit above which no other query begins.
    pub low_watermark: u8,
    /// Percent of the limit above which operators spill.
    pub high_watermark: u8,
    /// How the limit is divided among queries.
    pub slots: SlotPolicy,
    /// All slots that there are (`max_concurrency`).
    pub all_slots: u32,
}

impl Rules {
    /// No limit.
    pub const NONE: Rules = Rules {
        limit: None,
        hard: false,
        low_watermark: 75,
        high_watermark: 85,
        slots: SlotPolicy::None,
        all_slots: UNLIMITED,
    };

    fn hard_limit(&self) -> Option<usize> {
        self.limit.filter(|_| self.hard)
    }

    fn spill_above(&self) -> Option<usize> {
        let high = |limit: usize| (limit as u128 * u128::from(self.high_watermark) / 100) as usize;
        self.hard_limit().map(high)
    }

    /// What a query with so many of the slots in use may have for itself, if memory goes by slots.
    fn slot_share(&self, slots: u32, in_use: u32) -> Option<usize> {
        let of = match self.slots {
            SlotPolicy::None => return None,
            SlotPolicy::Fixed => self.all_slots,
            SlotPolicy::Dynamic => in_use,
        };
        let part = |bytes: usize| bytes as u128 * u128::from(slots) / u128::from(of.max(slots).max(1));
        self.spill_above().map(|bytes| usize::try_from(part(bytes)).unwrap_or(bytes))
    }
}

/// Memory of one group.
pub struct GroupMemory {
    /// Number of the group, for messages.
    pub id: u64,
    /// Its name, for messages.
    pub name: String,
    rules: ArcSwap<Rules>,
    ledger: Mutex<Ledger>,
    freed: Condvar,
}

#[derive(Default)]
struct Ledger {
    used: usize,
    /// Memory of a worker process that no operator has reserved; counts against the limit.
    untracked: usize,
    peak: usize,
    ended: u64,
    /// Who waits for others to spill.
    pressing: usize,
    /// Who waits for memory to come back. Waking nobody is a system call as well, and operators give back all the time.
    waiting: usize,
    accounts: BTreeMap<u64, Account>,
}

struct Account {
    query: Arc<Query>,
    held: usize,
    peak: usize,
    dying: bool,
}

impl fmt::Debug for GroupMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupMemory").field("name", &self.name).field("used", &self.used()).finish()
    }
}

impl Ledger {
    /// All that counts against the limit.
    fn all(&self) -> usize {
        self.used.saturating_add(self.untracked)
    }

    /// Whether the queries run in a worker process, which keeps the limit.
    fn is_remote(&self) -> bool {
        self.accounts.values().any(|account| account.query.is_remote())
    }

    fn holders(&self, rules: &Rules) -> Vec<Holder> {
        // Everybody's fair part; who has set a limit of its own has that.
        let fair = rules.limit.map(|limit| limit / self.accounts.len().max(1));
        let in_use = self.slots_in_use();
        let holder = |(id, account): (&u64, &Account)| Holder {
            id: *id,
            held: account.held,
            share: account.query.memory_limit.or(rules.slot_share(account.query.slots, in_use)).or(fair),
            dying: account.dying,
        };
        self.accounts.iter().map(holder).collect()
    }

    fn slots_in_use(&self) -> u32 {
        self.accounts.values().fold(0, |sum, account| sum.saturating_add(account.query.slots))
    }

    /// The three largest, for messages.
    fn top(&self) -> String {
        let mut accounts: Vec<(&u64, &Account)> = self.accounts.iter().collect();
        accounts.sort_by_key(|(_, account)| std::cmp::Reverse(account.held));
        let line = |(_, account): &(&u64, &Account)| {
            format!("<Query#Id={}> {}", account.query.id, readable(account.held))
        };
        accounts.iter().take(3).map(line).collect::<Vec<_>>().join(", ")
    }
}

/// A number of bytes as Doris prints it: two digits and a unit.
#[must_use]
pub fn readable(bytes: usize) -> String {
    let units = ["B", "KB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", units[unit]) }
}

impl GroupMemory {
    /// Nothing used yet.
    #[must_use]
    pub fn new(id: u64, name: &str, rules: Rules) -> GroupMemory {
        GroupMemory {
            id,
            name: name.to_owned(),
            rules: ArcSwap::from_pointee(rules),
            ledger: Mutex::default(),
            freed: Condvar::new(),
        }
    }

    /// Takes other rules; those who wait look again, and who is above a new hard limit ends with the next request.
    pub fn set_rules(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
        let victims = self.over_limit();
        end(&victims);
        self.freed.notify_all();
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.lock().used
    }

    /// Bytes in use, with those of a worker process that no operator has reserved.
    #[must_use]
    pub fn all(&self) -> usize {
        self.lock().all()
    }

    /// A worker process has so much memory beside what its operators have reserved.
    pub fn set_untracked(&self, bytes: usize) {
        self.lock().untracked = bytes;
    }

    /// A query in a worker process holds so much now; the answer is the query, unless it has left.
    pub fn mirror(&self, number: u64, held: usize, peak: usize) -> Option<Arc<Query>> {
        let mut ledger = self.lock();
        let account = ledger.accounts.get_mut(&number)?;
        let before = std::mem::replace(&mut account.held, held);
        account.peak = account.peak.max(peak);
        let query = Arc::clone(&account.query);
        ledger.used = ledger.used.saturating_sub(before).saturating_add(held);
        ledger.peak = ledger.peak.max(ledger.used);
        drop(ledger);
        self.freed.notify_all();
        Some(query)
    }

    /// The most that was ever in use, and how many queries were ended for memory.
    #[must_use]
    pub fn peak_and_ended(&self) -> (usize, u64) {
        let ledger = self.lock();
        (ledger.peak, ledger.ended)
    }

    /// Bytes that a query has, and the most it ever had.
    #[must_use]
    pub fn of(&self, number: u64) -> (usize, usize) {
        self.lock().accounts.get(&number).map_or((0, 0), |account| (account.held, account.peak))
    }

    /// Whether another query may begin: what is used is below the low watermark of a hard limit.
    #[must_use]
    pub fn room(&self) -> bool {
        let rules = self.rules.load();
        let low = rules.hard_limit().map(|limit| limit as u128 * u128::from(rules.low_watermark) / 100);
        low.is_none_or(|low| (self.all() as u128) < low)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a query's account.
    pub fn join(&self, query: &Arc<Query>) {
        let account = Account { query: Arc::clone(query), held: 0, peak: 0, dying: false };
        self.lock().accounts.insert(query.number, account);
    }

    /// Closes it. What it still holds, which is nothing unless an operator forgot it, goes back; the answer says how much.
    pub fn leave(&self, number: u64) -> usize {
        let mut ledger = self.lock();
        let held = ledger.accounts.remove(&number).map_or(0, |account| account.held);
        ledger.used -= held;
        drop(ledger);
        self.freed.notify_all();
        held
    }

    /// Hands the account of a query over to another group, with all that it holds.
    pub fn hand_over(&self, to: &GroupMemory, number: u64) {
        let Some(account) = ({
            let mut ledger = self.lock();
            let account = ledger.accounts.remove(&number);
            ledger.used -= account.as_ref().map_or(0, |account| account.held);
            account
        }) else {
            return;
        };
        self.freed.notify_all();
        let mut ledger = to.lock();
        ledger.used += account.held;
        ledger.peak = ledger.peak.max(ledger.used);
        ledger.accounts.insert(number, account);
        drop(ledger);
        end(&to.over_limit());
    }

    /// Marks the victims that a use above the hard limit needs.
    fn over_limit(&self) -> Vec<Victim> {
        let mut ledger = self.lock();
        let rules = self.rules.load();
        match rules.hard_limit() {
            // A worker does it by itself.
            Some(limit) if ledger.all() > limit && !ledger.is_remote() => {
                let need = ledger.all() - limit;
                self.mark(&mut ledger, need, None)
            }
            _ => Vec::new(),
        }
    }

    /// Marks those that have to end so that `need` bytes come back.
    fn mark(&self, ledger: &mut Ledger, need: usize, process: Option<(usize, usize)>) -> Vec<Victim> {
        let rules = self.rules.load();
        let chosen = victim::choose(&ledger.holders(&rules), need);
        match process {
            None => self.end_these(ledger, &rules, &chosen, "hard limit", ""),
            Some((used, limit)) => {
                let (used, limit) = (readable(used), readable(limit));
                let short = format!(" process memory used {used} exceed limit {limit}.");
                self.end_these(ledger, &rules, &chosen, "soft limit", &short)
            }
        }
    }

    fn end_these(
        &self,
        ledger: &mut Ledger,
        rules: &Rules,
        chosen: &[u64],
        why: &str,
        more: &str,
    ) -> Vec<Victim> {
        // All texts first: they tell what was the case before anybody was marked.
        let texts: Vec<String> =
            chosen.iter().map(|number| self.text(ledger, rules, *number, why, more)).collect();
        let mut marked = Vec::new();
        for (number, text) in chosen.iter().zip(texts) {
            let Some(account) = ledger.accounts.get_mut(number) else { continue };
            account.dying = true;
            marked.push(Victim { query: Arc::clone(&account.query), text });
        }
        marked
    }

    /// What the user of a query reads that has to end.
    fn text(&self, ledger: &Ledger, rules: &Rules, number: u64, why: &str, more: &str) -> String {
        let Some(account) = ledger.accounts.get(&number) else { return String::new() };
        format!(
            "[MEM_LIMIT_EXCEEDED]GC wg for {why}, wg id:{}, name:{}, used:{}, limit:{}, backend:127.0.0.1. cancel top \
             memory used tracker <Query#Id={}> consumption {}. top holders: {}.{more} Execute again after enough \
             memory, or give the group more memory, or fewer queries at once (max_concurrency)",
            self.id,
            self.name,
            readable(ledger.all()),
            readable(rules.limit.unwrap_or(0)),
            account.query.id,
            readable(account.held),
            ledger.top(),
        )
    }

    /// A query has ended for want of memory.
    pub fn count_ended(&self) {
        self.lock().ended += 1;
    }

    /// Adds what cannot be refused.
    fn add(&self, number: u64, bytes: usize) -> Option<()> {
        let mut ledger = self.lock();
        let account = ledger.accounts.get_mut(&number)?;
        account.held += bytes;
        account.peak = account.peak.max(account.held);
        ledger.used += bytes;
        ledger.peak = ledger.peak.max(ledger.used);
        Some(())
    }

    fn sub(&self, number: u64, bytes: usize) -> Option<()> {
        let mut ledger = self.lock();
        let account = ledger.accounts.get_mut(&number)?;
        let bytes = bytes.min(account.held);
        account.held -= bytes;
        ledger.used -= bytes;
        if ledger.waiting > 0 {
            self.freed.notify_all();
        }
        Some(())
    }

    /// One look at a request: granted, refused, or to be asked again when memory came back.
    fn request(&self, number: u64, bytes: usize, spillable: Option<usize>) -> Answer {
        let mut ledger = self.lock();
        let rules = self.rules.load();
        let Some(account) = ledger.accounts.get(&number) else { return Answer::Moved };
        if account.dying {
            return Answer::Refuse;
        }
        let total = ledger.all().saturating_add(bytes);
        let can_spill = spillable.is_some_and(|held| held >= WORTH_SPILLING);
        let share = rules.slot_share(account.query.slots, ledger.slots_in_use());
        let above_share = share.is_some_and(|share| account.held.saturating_add(bytes) > share);
        let pressed = ledger.pressing > 0 && rules.hard_limit().is_some();
        if can_spill && (pressed || above_share || rules.spill_above().is_some_and(|high| total > high)) {
            return Answer::Spill { used: ledger.all(), limit: rules.limit.unwrap_or(0) };
        }
        let mut victims = Vec::new();
        if let Some(limit) = rules.hard_limit()
            && total > limit
        {
            let holders = ledger.holders(&rules);
            let chosen = victim::choose(&holders, total - limit);
            if chosen.contains(&number) {
                // Nobody else has to go for it. It may get along with less: operators do, or say that they cannot.
                return Answer::Less(self.text(&ledger, &rules, number, "hard limit", ""));
            }
            if chosen.is_empty() && victim::pending_free(&holders) == 0 {
                // Nobody holds anything that would help: the request alone is more than the limit.
                return Answer::TooLarge { used: ledger.all(), limit };
            }
            victims = self.end_these(&mut ledger, &rules, &chosen, "hard limit", "");
            if total > limit + limit / SLACK {
                return Answer::Wait(victims);
            }
        }
        let Some(account) = ledger.accounts.get_mut(&number) else { return Answer::Moved };
        account.held += bytes;
        account.peak = account.peak.max(account.held);
        ledger.used += bytes;
        ledger.peak = ledger.peak.max(ledger.used);
        Answer::Granted(victims)
    }

    /// One more, or one less, waits for others to spill.
    fn press(&self, begins: bool) {
        let mut ledger = self.lock();
        ledger.pressing = if begins { ledger.pressing + 1 } else { ledger.pressing.saturating_sub(1) };
    }

    /// Waits until something came back.
    fn wait(&self, longest: Duration) {
        let mut ledger = self.lock();
        ledger.waiting += 1;
        let (mut ledger, _) =
            self.freed.wait_timeout(ledger, longest).unwrap_or_else(PoisonError::into_inner);
        ledger.waiting -= 1;
    }
}

enum Answer {
    Granted(Vec<Victim>),
    Wait(Vec<Victim>),
    Less(String),
    Spill { used: usize, limit: usize },
    TooLarge { used: usize, limit: usize },
    Refuse,
    Moved,
}

/// A query that has to end, and what its user is told.
#[derive(Debug)]
pub struct Victim {
    query: Arc<Query>,
    text: String,
}

/// Tells them. Outside of every lock: this wakes tasks.
pub fn end(victims: &[Victim]) {
    for victim in victims {
        tracing::info!(query = %victim.query.id, "{}", victim.text);
        victim.query.end(Error::Memory(victim.text.clone()));
    }
}

/// What soft limits are for: when the process uses more than it may, each group above its soft limit gives in proportion
/// to its excess. The answer is who has to end.
#[must_use]
pub fn reclaim(groups: &[Arc<GroupMemory>], process_limit: usize) -> Vec<Victim> {
    let used: usize = groups.iter().map(|group| group.used()).sum();
    if used <= process_limit {
        return Vec::new();
    }
    let excess = |group: &Arc<GroupMemory>| {
        let limit = group.rules.load().limit.unwrap_or(usize::MAX);
        group.used().saturating_sub(limit)
    };
    let excesses: Vec<usize> = groups.iter().map(excess).collect();
    let parts = victim::in_proportion(&excesses, used - process_limit);
    let mut victims = Vec::new();
    for (group, part) in groups.iter().zip(parts) {
        if part > 0 {
            victims.extend(group.mark(&mut group.lock(), part, Some((used, process_limit))));
        }
    }
    victims
}

/// While it is there, operators of a group that can spill are told to.
struct Pressing(Arc<Group>);

impl Pressing {
    fn new(group: &Arc<Group>) -> Pressing {
        group.memory.press(true);
        Pressing(Arc::clone(group))
    }
}

impl Drop for Pressing {
    fn drop(&mut self) {
        self.0.memory.press(false);
    }
}

/// The pool of one query.
#[derive(Debug)]
pub struct QueryPool {
    query: Arc<Query>,
}

impl QueryPool {
    /// The pool of a query that has joined its group.
    #[must_use]
    pub fn new(query: &Arc<Query>) -> QueryPool {
        QueryPool { query: Arc::clone(query) }
    }

    /// Does it with the query's group, again when the query was moved meanwhile.
    fn with<T>(&self, act: impl Fn(&GroupMemory) -> Option<T>) -> Option<T> {
        for _ in 0..100 {
            if let Some(done) = act(&self.query.group().memory) {
                return Some(done);
            }
            if self.query.is_done() {
                return None;
            }
            std::thread::yield_now();
        }
        None
    }

    /// Why there is no more. An operator of a query that was ended shall not begin to spill, as it does when memory is short.
    fn refusal(&self, fallback: impl FnOnce() -> String) -> DataFusionError {
        match self.query.ended() {
            Some(why) => DataFusionError::External(Box::new(why)),
            None => DataFusionError::ResourcesExhausted(fallback()),
        }
    }
}

impl fmt::Display for QueryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "query {}", self.query.id)
    }
}

impl MemoryPool for QueryPool {
    fn name(&self) -> &str {
        "workload-group"
    }

    fn grow(&self, _reservation: &MemoryReservation, additional: usize) {
        self.with(|group| group.add(self.query.number, additional));
        end(&self.query.group().memory.over_limit());
    }

    fn shrink(&self, _reservation: &MemoryReservation, shrink: usize) {
        self.with(|group| group.sub(self.query.number, shrink));
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> datafusion::error::Result<()> {
        let spillable = reservation.consumer().can_spill().then(|| reservation.size());
        let begun = Instant::now();
        let mut pressing: Option<Pressing> = None;
        loop {
            let group = self.query.group();
            let memory = &group.memory;
            match memory.request(self.query.number, additional, spillable) {
                Answer::Granted(victims) => {
                    end(&victims);
                    return Ok(());
                }
                Answer::Spill { used, limit } => {
                    return Err(DataFusionError::ResourcesExhausted(format!(
                        "{} asks for {}, and workload group {} uses {} of {}: it has to spill",
                        reservation.consumer().name(),
                        readable(additional),
                        memory.name,
                        readable(used),
                        readable(limit),
                    )));
                }
                Answer::Refuse => return Err(self.refusal(|| "the query was cancelled".to_owned())),
                Answer::Less(text) => {
                    let others = memory.of(self.query.number).0 > reservation.size();
                    // Who holds something to spill does that at once; who has nothing (any more) would fail.
                    let nothing_to_spill = spillable.is_none_or(|held| held == 0);
                    let patient = nothing_to_spill && others && begun.elapsed() < PRESS;
                    if !patient || self.query.ended().is_some() {
                        return Err(DataFusionError::ResourcesExhausted(text));
                    }
                    pressing.get_or_insert_with(|| Pressing::new(&group));
                    cpu::blocking(|| memory.wait(Duration::from_millis(20)));
                }
                Answer::TooLarge { used, limit } => {
                    return Err(DataFusionError::ResourcesExhausted(format!(
                        "[MEM_LIMIT_EXCEEDED]{} of <Query#Id={}> asks for {}, and workload group {} has {} of {} \
                         left: give the group more memory",
                        reservation.consumer().name(),
                        self.query.id,
                        readable(additional),
                        memory.name,
                        readable(limit.saturating_sub(used)),
                        readable(limit),
                    )));
                }
                Answer::Wait(victims) => {
                    end(&victims);
                    if begun.elapsed() > PATIENCE || self.query.ended().is_some() {
                        return Err(self.refusal(|| {
                            format!(
                                "[MEM_LIMIT_EXCEEDED]workload group {} is above its memory limit, and the query that \
                                 was ended for it has not given its memory back within {PATIENCE:?}",
                                memory.name
                            )
                        }));
                    }
                    // The victim's own tasks need a thread to end on.
                    cpu::blocking(|| memory.wait(Duration::from_millis(20)));
                }
                // The account is closed, and what is left of the query's tasks is dropped once it gives its thread back: who
                // is refused now would begin to spill.
                Answer::Moved if self.query.is_done() => return Ok(()),
                Answer::Moved => {
                    if begun.elapsed() > Duration::from_millis(100) {
                        return Err(self.refusal(|| "the query has ended".to_owned()));
                    }
                    std::thread::yield_now();
                }
            }
        }
    }

    fn reserved(&self) -> usize {
        self.query.group().memory.of(self.query.number).0
    }

    fn memory_limit(&self) -> MemoryLimit {
        match self.query.group().memory.rules.load().hard_limit() {
            Some(limit) => MemoryLimit::Finite(limit),
            None => MemoryLimit::Infinite,
        }
    }
}

#[cfg(test)]
mod tests;
