//! Memory accounting of groups: an account for each of their queries, and the choice of queries to end when memory is
//! short.
//!
//! DataFusion's operators ask a pool before they grow. Ours (`pool`) belongs to one query, because a reservation does
//! not tell its query, and charges the query's group:
//!
//! 1. Below the high watermark every request is granted.
//! 2. Above it an operator that can spill and holds memory is refused, which makes it spill.
//! 3. An operator that cannot spill and finds no free memory waits a little, while others are told to spill
//!    (`pool::PRESS`).
//! 4. Above a hard limit a victim is chosen ([`crate::engine::victim`]) and told to end. The requester waits for its
//!    memory, and may meanwhile overshoot the limit by [`SLACK`].
//! 5. A soft limit only takes effect while the process is short of memory ([`reclaim`]).
//!
//! Only what operators reserve is counted. Batches in flight and caches are not, as DataFusion's documentation says; a
//! measured process had 1.1 to 1.5 times the reserved bytes.

use super::error::Error;
use super::query::Query;
use super::settings::Rules;
use super::victim::{self, Holder};
use arc_swap::ArcSwap;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Divisor that gives the part of a hard limit by which it may be exceeded while a victim frees its memory: one
/// twentieth.
pub const SLACK: usize = 20;

/// An operator that holds less than this is not told to spill, since that would free too little.
const WORTH_SPILLING: usize = 1 << 20;

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
    /// Number of requests that wait for others to spill.
    pressing: usize,
    /// Number of requests that wait for memory. Waking is skipped when it is 0: it costs a system call, and operators
    /// free memory all the time.
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
    /// Everything that counts against the limit.
    fn all(&self) -> usize {
        self.used.saturating_add(self.untracked)
    }

    /// Whether the queries run in a worker process, which enforces the limit.
    fn is_remote(&self) -> bool {
        self.accounts.values().any(|account| account.query.is_remote())
    }

    fn holders(&self, rules: &Rules) -> Vec<Holder> {
        // The fair share of each query; a query with a limit of its own gets that instead.
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

    /// The three queries that hold most, for messages.
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
    /// An empty account.
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

    /// Replaces the rules. Waiting requests are evaluated again, and a query above a new hard limit is ended at its
    /// next request.
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

    /// Bytes in use, including memory of a worker process that no operator has reserved.
    #[must_use]
    pub fn all(&self) -> usize {
        self.lock().all()
    }

    /// Sets the memory of a worker process besides what its operators reserved.
    pub fn set_untracked(&self, bytes: usize) {
        self.lock().untracked = bytes;
    }

    /// Updates the memory of a query in a worker process; returns the query, unless it has left.
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

    /// Peak use, and number of queries ended because of memory.
    #[must_use]
    pub fn peak_and_ended(&self) -> (usize, u64) {
        let ledger = self.lock();
        (ledger.peak, ledger.ended)
    }

    /// Bytes that a query holds, and its peak.
    #[must_use]
    pub fn of(&self, number: u64) -> (usize, usize) {
        self.lock().accounts.get(&number).map_or((0, 0), |account| (account.held, account.peak))
    }

    /// Whether another query may start: use is below the low watermark of a hard limit.
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

    /// Closes a query's account. Returns the bytes that it still held (0 unless an operator leaked them), which are
    /// freed.
    pub fn leave(&self, number: u64) -> usize {
        let mut ledger = self.lock();
        let held = ledger.accounts.remove(&number).map_or(0, |account| account.held);
        ledger.used -= held;
        drop(ledger);
        self.freed.notify_all();
        held
    }

    /// Moves the account of a query to another group, with all that it holds.
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

    /// Chooses and marks victims if the use exceeds the hard limit.
    pub(super) fn over_limit(&self) -> Vec<Victim> {
        let mut ledger = self.lock();
        let rules = self.rules.load();
        match rules.hard_limit() {
            // A worker process does this itself.
            Some(limit) if ledger.all() > limit && !ledger.is_remote() => {
                let need = ledger.all() - limit;
                self.mark(&mut ledger, need, None)
            }
            _ => Vec::new(),
        }
    }

    /// Marks queries to end, so that `need` bytes are freed.
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
        // All messages are built first, so that they describe the state before any query is marked.
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

    /// The message for the user of a query that is ended.
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

    /// Counts a query that was ended because of memory.
    pub fn count_ended(&self) {
        self.lock().ended += 1;
    }

    /// Adds a reservation that cannot be refused.
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

    /// Decides once about a request: granted, refused, or to be repeated when memory was freed.
    pub(super) fn request(&self, number: u64, bytes: usize, spillable: Option<usize>) -> Answer {
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
                // The requester itself is the victim, so no other query ends. It may get along with less, or it fails.
                return Answer::Less(self.text(&ledger, &rules, number, "hard limit", ""));
            }
            if chosen.is_empty() && victim::pending_free(&holders) == 0 {
                // Ending other queries would not help: the request alone exceeds the limit.
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

    /// The hard limit in force, if there is one.
    pub(super) fn hard_limit(&self) -> Option<usize> {
        self.rules.load().hard_limit()
    }

    pub(super) fn press(&self, begins: bool) {
        let mut ledger = self.lock();
        ledger.pressing = if begins { ledger.pressing + 1 } else { ledger.pressing.saturating_sub(1) };
    }

    /// Waits until memory was freed, or for at most `longest`.
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

/// A query that must end, and the message for its user.
#[derive(Debug)]
pub struct Victim {
    query: Arc<Query>,
    text: String,
}

/// Ends the victims. Must be called without holding locks: this wakes tasks.
pub fn end(victims: &[Victim]) {
    for victim in victims {
        tracing::info!(query = %victim.query.id, "{}", victim.text);
        victim.query.end(Error::Memory(victim.text.clone()));
    }
}

/// Enforces soft limits: when the process uses more than its limit, each group above its soft limit must free memory in
/// proportion to its excess. Returns the queries that must end.
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
