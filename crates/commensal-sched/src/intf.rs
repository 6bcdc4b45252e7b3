//! What `src/bpf/intf.h` says, in Rust: limits, classes and where numbers stand. The loader compares the sizes.

/// Most CPUs.
pub const MOST_CPUS: usize = 1024;
/// Groups that are weighed apart; the last one takes all others.
pub const MOST_SLOTS: usize = 256;
/// Last-level caches that are told apart.
pub const MOST_LLCS: usize = 16;
/// Hard limits; 0 is none.
pub const MOST_LIMITS: usize = 64;
/// Other threads of a core.
pub const SIBLINGS: usize = 3;

/// `CLASS_*`: an entry of this class is taken away.
pub const CLASS_OTHER: u64 = 1;
/// Under the scheduler.
pub const CLASS_OFFLINE: u64 = 2;
/// Not under it, and not to be hurt.
pub const CLASS_ONLINE: u64 = 3;
/// Online, and offline work leaves its cores.
pub const CLASS_EXPELLING: u64 = 4;
/// How many there are.
pub use commensal_core::scheduler::protocol::CLASSES;

/// Bytes of `struct cpu`.
pub const CPU: usize = CPU_WORDS_AT + 8 * CPU_WORDS;
/// Where its 64-bit numbers begin: after siblings, core, llc, state, claim and expelled.
pub const CPU_WORDS_AT: usize = 4 * (SIBLINGS + 5);
/// Where `ns` begins among them: after since, asked_at, by_tick, resume_at, vacant_until, crowded_since, helped_until, room_for
/// and flush.
pub const CPU_NS: usize = 9;
/// … and then `ns`, `room_ns` and ten counters.
pub const CPU_WORDS: usize = CPU_NS + CLASSES + 1 + 10;
/// Where `state` stands.
pub const CPU_STATE_AT: usize = 4 * (SIBLINGS + 2);
/// Bytes of `struct core`.
pub const CORE: usize = 8 * 5;
/// Bytes of `struct slot`.
pub const SLOT: usize = 8 * 9;
/// Bytes of `struct limit`.
pub const LIMIT: usize = 8 * 5;

/// A number of a value that is nothing but 64-bit numbers from `at` on; 0 past its end.
#[must_use]
pub fn word(bytes: &[u8], at: usize, index: usize) -> u64 {
    let from = at + 8 * index;
    let eight = bytes.get(from..from + 8).and_then(|eight| eight.try_into().ok());
    u64::from_ne_bytes(eight.unwrap_or_default())
}

/// A 32-bit number.
#[must_use]
pub fn half(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    u32::from_ne_bytes(four.unwrap_or_default())
}

/// Puts a 64-bit number where [`word`] reads it.
pub fn put_word(bytes: &mut [u8], at: usize, index: usize, value: u64) {
    let from = at + 8 * index;
    if let Some(eight) = bytes.get_mut(from..from + 8) {
        eight.copy_from_slice(&value.to_ne_bytes());
    }
}
