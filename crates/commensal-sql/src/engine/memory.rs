//! Memory accounting of groups: an account for each query of a group, and the choice of queries to cancel when memory
//! is short. A query that is chosen is called a victim.
//!
//! DataFusion's operators request memory from a pool before they grow. The pool in `pool` belongs to one query, because
//! a request does not name its query. The pool charges the query's group:
//!
//! 1. Below the high watermark (a percentage of the limit) every request is granted.
//! 2. Above the high watermark, a request of an operator that can spill (write its data to disk) and holds memory is
//!    refused. The refusal makes the operator spill.
//! 3. If an operator that cannot spill finds no free memory, it waits for up to `pool::PRESS`, while the requests of
//!    others are refused so that they spill.
//! 4. Above a hard limit a victim is chosen ([`crate::engine::victim`]) and cancelled. The requester waits for the
//!    victim's memory; it may exceed the limit in the meantime by the part that [`SLACK`] defines.
//! 5. A soft limit only takes effect while the process is short of memory ([`reclaim`]).
//!
//! Only memory that operators reserve is counted. Batches in flight and caches are not, as DataFusion's documentation
//! explains. A measured process used 1.1 to 1.5 times the reserved bytes.

use super::error::Error;
use super::query::Query;
use super::settings::Rules;
use super::victim::{self, Holder};
use arc_swap::ArcSwap;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Divisor of a hard limit: while a victim frees its memory, the group may exceed its limit by one twentieth of the
/// limit.
pub const SLACK: usize = 20;

/// An operator that holds fewer bytes than this is not made to spill, because the spill would free too little.
const WORTH_SPILLING: usize = 1 << 20;

/// Memory of one group.
pub struct GroupMemory {
    /// Number of the group, for messages.
    pub id: u64,
    /// Name of the group, for messages.
    pub name: String,
    rules: ArcSwap<Rules>,
    ledger: Mutex<Ledger>,
    freed: Condvar,
}

#[derive(Default)]
struct Ledger {
    used: usize,
    /// Memory of a worker process that no operator has reserved, in bytes; it counts against the limit.
    untracked: usize,
    peak: usize,
    ended: u64,
    /// Number of requests that wait until other operators have spilled.
    pressing: usize,
    /// Number of requests that wait for memory. If this number is 0, no waiter is notified: a notification costs a
    /// system call, and operators free memory all the time.
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
    /// Returns all bytes that count against the limit.
    fn all(&self) -> usize {
        self.used.saturating_add(self.untracked)
    }

    /// Whether the queries run in a worker process, which enforces the limit itself.
    fn is_remote(&self) -> bool {
        self.accounts.values().any(|account| account.query.usage.is_remote())
    }

    fn holders(&self, rules: &Rules) -> Vec<Holder> {
        // The fair share of each query. A query with a memory limit or slots of its own has a different share.
        let fair = rules.limit.map(|limit| limit / self.accounts.len().max(1));
        let in_use = self.slots_in_use();
        let holder = |(id, account): (&u64, &Account)| {
            let own = &account.query.limits;
            Holder {
                id: *id,
                held: account.held,
                share: own.memory.or(rules.slot_share(own.slots, in_use)).or(fair),
                dying: account.dying,
            }
        };
        self.accounts.iter().map(holder).collect()
    }

    fn slots_in_use(&self) -> u32 {
        self.accounts.values().fold(0, |sum, account| sum.saturating_add(account.query.limits.slots))
    }

    /// Lists the three queries that hold the most memory, as text for messages.
    fn top(&self) -> String {
        let mut accounts: Vec<(&u64, &Account)> = self.accounts.iter().collect();
        accounts.sort_by_key(|(_, account)| std::cmp::Reverse(account.held));
        let line = |(_, account): &(&u64, &Account)| {
            format!("<Query#Id={}> {}", account.query.identity.id, readable(account.held))
        };
        accounts.iter().take(3).map(line).collect::<Vec<_>>().join(", ")
    }
}

/// Formats a number of bytes like Doris: with two decimals and a unit.
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
    /// Creates the accounting of a group without queries.
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

    /// Replaces the rules. If the group exceeds a new hard limit, queries are cancelled immediately. Waiting requests
    /// are evaluated again.
    pub fn set_rules(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
        let victims = self.over_limit();
        end(&victims);
        self.freed.notify_all();
    }

    /// Returns the bytes that operators have reserved.
    #[must_use]
    pub fn used(&self) -> usize {
        self.lock().used
    }

    /// Returns the bytes in use, including memory of a worker process that no operator has reserved.
    #[must_use]
    pub fn all(&self) -> usize {
        self.lock().all()
    }

    /// Sets the memory of a worker process that its operators have not reserved, in bytes.
    pub fn set_untracked(&self, bytes: usize) {
        self.lock().untracked = bytes;
    }

    /// Updates the memory of a query in a worker process. Returns the query, or `None` if it has finished.
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

    /// Returns the peak of the reserved bytes, and the number of queries that were cancelled because of memory.
    #[must_use]
    pub fn peak_and_ended(&self) -> (usize, u64) {
        let ledger = self.lock();
        (ledger.peak, ledger.ended)
    }

    /// Returns the bytes that a query holds, and their peak.
    #[must_use]
    pub fn of(&self, number: u64) -> (usize, usize) {
        self.lock().accounts.get(&number).map_or((0, 0), |account| (account.held, account.peak))
    }

    /// Whether another query may start: the group has no hard limit, or uses less than the low watermark.
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
        self.lock().accounts.insert(query.identity.number, account);
    }

    /// Closes a query's account, and frees the bytes that the query still held. Returns the number of these bytes,
    /// which is 0 unless an operator leaked them.
    pub fn leave(&self, number: u64) -> usize {
        let mut ledger = self.lock();
        let held = ledger.accounts.remove(&number).map_or(0, |account| account.held);
        ledger.used -= held;
        drop(ledger);
        self.freed.notify_all();
        held
    }

    /// Moves the account of a query to another group, with all memory that the query holds.
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

    /// Chooses and marks victims if the hard limit is exceeded.
    pub(super) fn over_limit(&self) -> Vec<Victim> {
        let mut ledger = self.lock();
        let rules = self.rules.load();
        match rules.hard_limit() {
            // A worker process enforces its limit itself.
            Some(limit) if ledger.all() > limit && !ledger.is_remote() => {
                let need = ledger.all() - limit;
                self.mark(&mut ledger, need, None)
            }
            _ => Vec::new(),
        }
    }

    /// Marks queries as victims, so that `need` bytes are freed. `process` is the process's memory use and limit, if a
    /// soft limit is enforced.
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
        // All messages are built first, so that they describe the state before a query is marked.
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

    /// Returns the message for the user of a query that is cancelled.
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
            account.query.identity.id,
            readable(account.held),
            ledger.top(),
        )
    }

    /// Counts a query that was cancelled because of memory.
    pub fn count_ended(&self) {
        self.lock().ended += 1;
    }

    /// Adds a reservation that cannot be refused. Returns `None` if the query has no account in this group.
    pub(super) fn add(&self, number: u64, bytes: usize) -> Option<()> {
        let mut ledger = self.lock();
        let account = ledger.accounts.get_mut(&number)?;
        account.held += bytes;
        account.peak = account.peak.max(account.held);
        ledger.used += bytes;
        ledger.peak = ledger.peak.max(ledger.used);
        Some(())
    }

    pub(super) fn sub(&self, number: u64, bytes: usize) -> Option<()> {
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

    /// Makes one decision about a request: the request is granted, refused, or must be repeated when memory was freed.
    pub(super) fn request(&self, number: u64, bytes: usize, spillable: Option<usize>) -> Answer {
        let mut ledger = self.lock();
        let rules = self.rules.load();
        let Some(account) = ledger.accounts.get(&number) else { return Answer::Moved };
        if account.dying {
            return Answer::Refuse;
        }
        let total = ledger.all().saturating_add(bytes);
        let can_spill = spillable.is_some_and(|held| held >= WORTH_SPILLING);
        let share = rules.slot_share(account.query.limits.slots, ledger.slots_in_use());
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
                // The query of this request is itself the victim, so no other query is cancelled. The operator may
                // manage with less memory, or it fails.
                return Answer::Less(self.text(&ledger, &rules, number, "hard limit", ""));
            }
            if chosen.is_empty() && victim::pending_free(&holders) == 0 {
                // Cancelling other queries would not help, because the request alone exceeds the limit.
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

    /// Returns the hard limit, if there is one.
    pub(super) fn hard_limit(&self) -> Option<usize> {
        self.rules.load().hard_limit()
    }

    pub(super) fn press(&self, begins: bool) {
        let mut ledger = self.lock();
        ledger.pressing = if begins { ledger.pressing + 1 } else { ledger.pressing.saturating_sub(1) };
    }

    /// Waits until memory is freed, for at most `longest`.
    pub(super) fn wait(&self, longest: Duration) {
        let mut ledger = self.lock();
        ledger.waiting += 1;
        let (mut ledger, _) =
            self.freed.wait_timeout(ledger, longest).unwrap_or_else(PoisonError::into_inner);
        ledger.waiting -= 1;
    }
}

pub(super) enum Answer {
    Granted(Vec<Victim>),
    Wait(Vec<Victim>),
    Less(String),
    Spill { used: usize, limit: usize },
    TooLarge { used: usize, limit: usize },
    Refuse,
    Moved,
}

/// A query to cancel, and the message for its user.
#[derive(Debug)]
pub struct Victim {
    query: Arc<Query>,
    text: String,
}

/// Cancels the victims. The caller must not hold locks, because this function wakes tasks.
pub fn end(victims: &[Victim]) {
    for victim in victims {
        tracing::info!(query = %victim.query.identity.id, "{}", victim.text);
        victim.query.end(Error::Memory(victim.text.clone()));
    }
}

/// Enforces soft limits: if the process uses more than its limit, each group above its soft limit must free memory in
/// proportion to its excess. Returns the queries to cancel.
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

#[cfg(test)]
mod tests;
