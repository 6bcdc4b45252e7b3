//! Memory of groups: the account that each of their queries has, and who is ended for it.
//!
//! DataFusion's operators ask a pool before they grow. Ours (`pool`) belongs to one query (a reservation does not say
//! whose it is) and keeps the account with the query's group:
//!
//! 1. Below the high watermark everything is granted.
//! 2. Above it an operator that can spill and holds something is refused, which makes it spill.
//! 3. Who has nothing to spill and no room waits a little, and meanwhile those who can spill are told to (`pool::PRESS`).
//! 4. Above a hard limit a victim is chosen ([`crate::engine::victim`]), told to end and its memory waited for: who
//!    asked goes on once it is there, and may meanwhile overshoot by [`SLACK`].
//! 5. A soft limit matters only while the process is short ([`reclaim`]).
//!
//! What is counted is what operators reserve. Batches under way and caches are not; DataFusion's own documentation
//! says so, and a measured process had 1.1 to 1.5 times the reserved bytes.

use super::error::Error;
use super::query::Query;
use super::settings::Rules;
use super::victim::{self, Holder};
use arc_swap::ArcSwap;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Part of a hard limit by which it may be overshot while a victim's memory is on its way back: one twentieth.
pub const SLACK: usize = 20;

/// An operator that holds less than this is not told to spill: it has nothing to give yet.
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
    pub(super) fn over_limit(&self) -> Vec<Victim> {
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

    /// One look at a request: granted, refused, or to be asked again when memory came back.
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
    /// The hard limit in force, if there is one.
    pub(super) fn hard_limit(&self) -> Option<usize> {
        self.rules.load().hard_limit()
    }

    pub(super) fn press(&self, begins: bool) {
        let mut ledger = self.lock();
        ledger.pressing = if begins { ledger.pressing + 1 } else { ledger.pressing.saturating_sub(1) };
    }

    /// Waits until something came back.
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

#[cfg(test)]
mod tests;
