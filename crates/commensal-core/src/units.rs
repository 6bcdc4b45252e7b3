//! Quantities that carry their unit in the type: memory, rates, CPU amounts, weights, time.
//!
//! Parsing is strict: a number without a unit is refused, because the worst bugs found in similar tools are unit
//! errors. Arithmetic is checked.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The error of a string that is not a valid quantity. The message states the expected form with an example.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not {expected}")]
pub struct UnitError {
    /// The string that the user wrote.
    pub given: String,
    /// The expected form, with an example.
    pub expected: &'static str,
}

fn refuse(given: &str, expected: &'static str) -> UnitError {
    UnitError { given: given.to_owned(), expected }
}

/// Splits `"2.5 cores"` into `(2.5, "cores")`. The number may have one decimal point, but no sign and no exponent.
fn number_and_unit(text: &str) -> Option<(Decimal, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let digits: String = text[..end].chars().filter(|c| *c != '_').collect();
    Some((Decimal::parse(&digits)?, text[end..].trim()))
}

/// An exact decimal number: `digits / 10^scale`. With it, no floating-point error occurs between the user's text and
/// the kernel's value.
#[derive(Debug, Clone, Copy)]
struct Decimal {
    digits: u128,
    scale: u32,
}

impl Decimal {
    fn parse(text: &str) -> Option<Decimal> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        if whole.is_empty() || (text.contains('.') && fraction.is_empty()) || text.len() > 24 {
            return None;
        }
        let digits = format!("{whole}{fraction}").parse().ok()?;
        Some(Decimal { digits, scale: u32::try_from(fraction.len()).ok()? })
    }

    /// Returns `self * factor`, rounded to the nearest whole number; `None` on overflow.
    fn times(self, factor: u128) -> Option<u64> {
        u64::try_from(self.times_wide(factor)?).ok()
    }

    /// Like [`Decimal::times`], for products that exceed 64 bits.
    fn times_wide(self, factor: u128) -> Option<u128> {
        let divisor = 10u128.checked_pow(self.scale)?;
        let product = self.digits.checked_mul(factor)?.checked_add(divisor / 2)?;
        Some(product / divisor)
    }
}

pub(crate) const BYTE_UNITS: [(&str, u128); 9] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

fn parse_bytes(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let (_, factor) = BYTE_UNITS.iter().find(|(name, _)| *name == unit)?;
    number.times(*factor)
}

/// An amount of memory or data, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let expected = "a size with a unit, such as \"8 GiB\" (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)";
        parse_bytes(text).map(Bytes).ok_or_else(|| refuse(text, expected))
    }
}

impl fmt::Display for Bytes {
    /// Writes the value with at most one decimal, in the largest binary unit in which it is at least 1.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        for (shift, name) in unit {
            if self.0 >= 1 << shift {
                let tenths = (u128::from(self.0) * 10 + (1 << (shift - 1))) >> shift;
                return match tenths % 10 {
                    0 => write!(f, "{} {name}", tenths / 10),
                    rest => write!(f, "{}.{rest} {name}", tenths / 10),
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// A data rate, in bytes per second; serialised as a plain number of bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BytesPerS(pub u64);

impl FromStr for BytesPerS {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let expected = "a rate above zero with a unit, such as \"100 MiB/s\"";
        let amount = text.trim().strip_suffix("/s").and_then(parse_bytes).filter(|rate| *rate > 0);
        amount.map(BytesPerS).ok_or_else(|| refuse(text, expected))
    }
}

impl fmt::Display for BytesPerS {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", Bytes(self.0))
    }
}

/// A rate of I/O operations, per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoPerS(pub u64);

impl FromStr for IoPerS {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let expected = "an operation rate above zero with its unit, such as \"500 iops\"";
        let (number, unit) = number_and_unit(text).ok_or_else(|| refuse(text, expected))?;
        match (number.times(1), unit) {
            (Some(rate), "iops") if rate > 0 => Ok(IoPerS(rate)),
            _ => Err(refuse(text, expected)),
        }
    }
}

impl fmt::Display for IoPerS {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} iops", self.0)
    }
}

/// The smallest quota per period that the kernel accepts (us; `min_cfs_quota_period`, kernel/sched/core.c).
pub const QUOTA_MIN_US: u64 = 1_000;
/// The period of a quota in a new cgroup (us; `default_cfs_period`, kernel/sched/fair.c).
pub const PERIOD_US: u32 = 100_000;
/// The longest period that the kernel accepts (us; `max_cfs_quota_period`, kernel/sched/core.c).
pub const PERIOD_MAX_US: u32 = 1_000_000;

/// An amount of CPU time per time, in millionths of a logical CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MicroCpus(pub u64);

impl MicroCpus {
    /// The smallest quota that the kernel accepts, with the longest period.
    pub const LEAST_QUOTA: MicroCpus = MicroCpus(QUOTA_MIN_US * 1_000_000 / PERIOD_MAX_US as u64);

    /// The quota per period of `period_us`, rounded down, but at least the kernel's minimum (us).
    #[must_use]
    pub fn quota_us(self, period_us: u32) -> u64 {
        self.exact_us(period_us).max(QUOTA_MIN_US)
    }

    fn exact_us(self, period_us: u32) -> u64 {
        u64::try_from(u128::from(self.0) * u128::from(period_us) / 1_000_000).unwrap_or(u64::MAX)
    }

    /// The period for a quota of this amount (us): `period_us`, or a longer one if with it the quota would be below the
    /// kernel's minimum.
    #[must_use]
    pub fn period_us(self, period_us: u32) -> u32 {
        if self.exact_us(period_us) >= QUOTA_MIN_US {
            return period_us;
        }
        let needed = (QUOTA_MIN_US * 1_000_000).div_ceil(self.0.max(1));
        let needed = u32::try_from(needed).unwrap_or(PERIOD_MAX_US);
        needed.max(PERIOD_US).max(period_us).min(PERIOD_MAX_US)
    }

    /// The amount of `count` whole CPUs.
    #[must_use]
    pub fn whole(count: usize) -> MicroCpus {
        MicroCpus(u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(1_000_000))
    }
}

impl fmt::Display for MicroCpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        write!(f, "{text} {}", if self.0 == 1_000_000 { "CPU" } else { "CPUs" })
    }
}

/// A share of something, in parts per million.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ppm(pub u64);

impl Ppm {
    /// This share of `whole`, rounded to the nearest whole number.
    #[must_use]
    pub fn of(self, whole: u64) -> u64 {
        let part = (u128::from(whole) * u128::from(self.0) + 500_000) / 1_000_000;
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

impl FromStr for Ppm {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let expected = "a share such as \"50 %\"";
        let (number, unit) = number_and_unit(text).ok_or_else(|| refuse(text, expected))?;
        match (number.times(10_000), unit) {
            (Some(ppm), "%") => Ok(Ppm(ppm)),
            _ => Err(refuse(text, expected)),
        }
    }
}

impl fmt::Display for Ppm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:04}", self.0 / 10_000, self.0 % 10_000);
        write!(f, "{} %", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// A CPU hard limit as the user writes it: a share of the machine, or a number of CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuAmount {
    /// Share of all logical CPUs of the machine.
    OfMachine(Ppm),
    /// A number of logical CPUs.
    Cpus(MicroCpus),
}

impl CpuAmount {
    /// The amount in CPUs on a machine with `cpus` logical CPUs.
    #[must_use]
    pub fn on(self, cpus: usize) -> MicroCpus {
        match self {
            CpuAmount::OfMachine(share) => MicroCpus(share.of(MicroCpus::whole(cpus).0)),
            CpuAmount::Cpus(amount) => amount,
        }
    }
}

/// Names of a logical CPU.
pub(crate) const CPU_UNITS: [&str; 6] = ["core", "cores", "cpu", "cpus", "CPU", "CPUs"];

impl FromStr for CpuAmount {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let expected = "a CPU amount above zero, such as \"50 %\" (of the machine) or \"2.5 cores\"";
        let (number, unit) = number_and_unit(text).ok_or_else(|| refuse(text, expected))?;
        let amount = match unit {
            "%" => number.times(10_000).map(|ppm| (ppm, CpuAmount::OfMachine(Ppm(ppm)))),
            unit if CPU_UNITS.contains(&unit) => {
                number.times(1_000_000).map(|micro| (micro, CpuAmount::Cpus(MicroCpus(micro))))
            }
            _ => None,
        };
        match amount {
            Some((raw, amount)) if raw > 0 => Ok(amount),
            _ => Err(refuse(text, expected)),
        }
    }
}

impl fmt::Display for CpuAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpuAmount::OfMachine(share) => write!(f, "{share} of the machine"),
            CpuAmount::Cpus(amount) => amount.fmt(f),
        }
    }
}

/// A memory limit as the user writes it: a size, or a share of the machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryAmount {
    /// Share of the machine's memory.
    OfMachine(Ppm),
    /// A size.
    Bytes(Bytes),
}

impl MemoryAmount {
    /// The amount in bytes on a machine with `total` memory.
    #[must_use]
    pub fn on(self, total: Bytes) -> Bytes {
        match self {
            MemoryAmount::OfMachine(share) => Bytes(share.of(total.0)),
            MemoryAmount::Bytes(size) => size,
        }
    }
}

impl FromStr for MemoryAmount {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let expected = "a size with a unit, such as \"8 GiB\", or a share of the machine, such as \"25 %\"";
        if let Ok(share) = text.parse::<Ppm>() {
            return Ok(MemoryAmount::OfMachine(share));
        }
        parse_bytes(text).map(|n| MemoryAmount::Bytes(Bytes(n))).ok_or_else(|| refuse(text, expected))
    }
}

/// A relative share of CPU time or I/O among siblings: 1 to 10,000, 100 by default (cgroup v2 `cpu.weight`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u16);

impl Weight {
    /// The kernel's default for a new group.
    pub const DEFAULT: Weight = Weight(100);
    /// The smallest weight.
    pub const MIN: Weight = Weight(1);

    /// Creates a weight; returns `None` if the number is not in 1..=10000.
    #[must_use]
    pub fn new(weight: u16) -> Option<Weight> {
        (1..=10_000).contains(&weight).then_some(Weight(weight))
    }

    /// The weight as a value of cgroup v2 `cpu.weight`.
    #[must_use]
    pub fn v2(self) -> u16 {
        self.0
    }

    /// The weight as a value of cgroup v1 `cpu.shares`: 100 becomes 1024, as in the kernel's own conversion
    /// (`CGROUP_WEIGHT_DFL`, kernel/sched/core.c); at least 2, the kernel's minimum.
    #[must_use]
    pub fn v1_shares(self) -> u64 {
        ((u64::from(self.0) * 1024 + 50) / 100).max(2)
    }

    /// The weight nearest to a value of cgroup v1 `cpu.shares`.
    #[must_use]
    pub fn from_v1_shares(shares: u64) -> Weight {
        let nearest = (shares.saturating_mul(100) + 512) / 1024;
        Weight(u16::try_from(nearest.clamp(1, 10_000)).unwrap_or(10_000))
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names and lengths (ns) of the units of time, as in systemd.time(7): a month has 30.44 days, a year 365.25 days.
pub(crate) const TIME_UNITS: [(&[&str], u128); 10] = [
    (&["ns", "nsec", "nanos"], 1),
    (&["us", "usec", "µs"], 1_000),
    (&["ms", "msec", "millis"], MS),
    (&["s", "sec", "secs", "second", "seconds"], S),
    (&["min", "m", "mins", "minute", "minutes"], 60 * S),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600 * S),
    (&["d", "day", "days"], 86_400 * S),
    (&["w", "wk", "wks", "week", "weeks"], 7 * 86_400 * S),
    (&["M", "month", "months"], 2_630_016 * S),
    (&["y", "yr", "yrs", "year", "years"], 31_557_600 * S),
];
const MS: u128 = 1_000_000;
const S: u128 = 1_000 * MS;

/// Parses a time and returns nanoseconds. All types of times use this parser. The text has one or more numbers, each
/// with a unit; the result is their sum (`1h 30min`). The parser refuses units shorter than `shortest_ns`, because the
/// result would have to be rounded.
fn parse_time(text: &str, shortest_ns: u128) -> Option<u128> {
    let mut left = text.trim();
    let mut sum_ns = 0_u128;
    loop {
        let end = left.find(|c: char| c.is_alphabetic() || c.is_whitespace())?;
        let (number, "") = number_and_unit(&left[..end])? else { return None };
        left = left[end..].trim_start();
        let end = left.find(|c: char| !c.is_alphabetic()).unwrap_or(left.len());
        let (_, unit_ns) = TIME_UNITS.iter().find(|(names, _)| names.contains(&&left[..end]))?;
        if *unit_ns < shortest_ns {
            return None;
        }
        sum_ns = sum_ns.checked_add(number.times_wide(*unit_ns)?)?;
        left = left[end..].trim_start();
        if left.is_empty() {
            return Some(sum_ns);
        }
    }
}

/// Converts `ns` to units of `unit_ns`, rounded to the nearest whole number.
fn rounded(ns: u128, unit_ns: u128) -> Option<u64> {
    u64::try_from((ns + unit_ns / 2) / unit_ns).ok()
}

/// A time span of a command-line option, in nanoseconds; `0` needs no unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeSpan(pub Duration);

impl FromStr for TimeSpan {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let expected =
            "a time with a unit, such as 10s, 500ms or \"1h 30min\" (ns, us, ms, s, min, h, days, weeks)";
        let ns = if text == "0" { Some(0) } else { parse_time(text, 1) };
        let span = ns.and_then(|ns| {
            let part_ns = u32::try_from(ns % S).ok()?;
            Some(Duration::new(u64::try_from(ns / S).ok()?, part_ns))
        });
        span.map(TimeSpan).ok_or_else(|| refuse(text, expected))
    }
}

/// A span of time, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

/// Writes the time in the largest unit that represents it exactly, in the syntax of a groups file.
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms")];
        let whole = |(factor, _): &(u64, &str)| self.0 > 0 && self.0.is_multiple_of(*factor);
        let (factor, unit) = units.into_iter().find(whole).unwrap_or((1, "ms"));
        write!(f, "{} {unit}", self.0 / factor)
    }
}

impl FromStr for Millis {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let expected = "a time with a unit, such as \"10 min\" (ms, s, min, h)";
        let ms = parse_time(text, MS).and_then(|ns| rounded(ns, MS));
        ms.map(Millis).ok_or_else(|| refuse(text, expected))
    }
}

/// A short span of time, in microseconds; parsing refuses 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

/// Writes the time in the largest unit that represents it exactly, in the syntax of a groups file.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000, "s"), (1_000, "ms"), (1, "us")];
        let whole = |(factor, _): &(u64, &str)| self.0 > 0 && self.0.is_multiple_of(*factor);
        let (factor, unit) = units.into_iter().find(whole).unwrap_or((1, "us"));
        write!(f, "{} {unit}", self.0 / factor)
    }
}

impl FromStr for Micros {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let expected = "a time above 0 with a unit, such as \"200 us\" (us, ms, s)";
        let us = parse_time(text, 1_000).and_then(|ns| rounded(ns, 1_000));
        us.filter(|us| *us > 0).map(Micros).ok_or_else(|| refuse(text, expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: FromStr + fmt::Debug>(text: &str, expect: &str) {
        let got = text.parse::<T>().map_or_else(|_| "refused".to_owned(), |value| format!("{value:?}"));
        assert_eq!(got, expect, "parsing {text:?}");
    }

    #[test]
    fn sizes_need_a_unit() {
        check::<Bytes>("8 GiB", "Bytes(8589934592)");
        check::<Bytes>("1.5KiB", "Bytes(1536)");
        check::<Bytes>("2 MB", "Bytes(2000000)");
        check::<Bytes>("8", "refused");
        check::<Bytes>("GiB", "refused");
        check::<Bytes>("-1 GiB", "refused");
        check::<Bytes>("1e3 B", "refused");
        check::<Bytes>("8 GIB", "refused");
        check::<Bytes>("99999999999 TiB", "refused");
        check::<BytesPerS>("100 MiB/s", "BytesPerS(104857600)");
        check::<BytesPerS>("0 MiB/s", "refused");
        check::<BytesPerS>("100 MiB", "refused");
        check::<IoPerS>("500 iops", "IoPerS(500)");
        check::<IoPerS>("500", "refused");
    }

    #[test]
    fn short_times_are_written_as_they_are_read() {
        for text in ["1 us", "1500 us", "20 ms", "3 s"] {
            assert_eq!(text.parse::<Micros>().unwrap().to_string(), text);
        }
        assert_eq!("0.5 ms".parse::<Micros>().unwrap().to_string(), "500 us");
    }

    #[test]
    fn cpu_amounts() {
        check::<CpuAmount>("50 %", "OfMachine(Ppm(500000))");
        check::<CpuAmount>("2.5 cores", "Cpus(MicroCpus(2500000))");
        check::<CpuAmount>("0 %", "refused");
        check::<CpuAmount>("0.00000001 cores", "refused");
        check::<CpuAmount>("2.5", "refused");
        check::<CpuAmount>("", "refused");
        // Ten percent of nine thousandths of a CPU must not become zero.
        assert_eq!(Ppm(100_000).of(9_000), 900);
        assert_eq!(CpuAmount::OfMachine(Ppm(500_000)).on(3), MicroCpus(1_500_000));
    }

    /// Parses the text as a command-line option, as a value of a file in milliseconds, and as one in microseconds.
    #[test]
    fn times() {
        let far = "9".repeat(20);
        for (text, span_ns, ms, us) in [
            ("0", Some(0), None, None),
            ("0s", Some(0), Some(0), None),
            ("90s", Some(90_000_000_000), Some(90_000), Some(90_000_000)),
            (" 1h 30min ", Some(5_400_000_000_000), Some(5_400_000), Some(5_400_000_000)),
            ("1hour12min5s", Some(4_325_000_000_000), Some(4_325_000), Some(4_325_000_000)),
            ("2 days", Some(172_800_000_000_000), Some(172_800_000), Some(172_800_000_000)),
            ("1w 1M 1y", Some(34_792_416_000_000_000), Some(34_792_416_000), Some(34_792_416_000_000)),
            ("4.2s", Some(4_200_000_000), Some(4_200), Some(4_200_000)),
            ("1_500 ms", Some(1_500_000_000), Some(1_500), Some(1_500_000)),
            ("0.5 ms", Some(500_000), Some(1), Some(500)),
            ("20us", Some(20_000), None, Some(20)),
            ("2 µs", Some(2_000), None, Some(2)),
            ("7nsec", Some(7), None, None),
            ("1s 5us", Some(1_000_005_000), None, Some(1_000_005)),
            (
                "1000 years",
                Some(31_557_600_000_000_000_000),
                Some(31_557_600_000_000),
                Some(31_557_600_000_000_000),
            ),
            ("", None, None, None),
            ("10", None, None, None),
            ("s", None, None, None),
            ("-1s", None, None, None),
            ("+1s", None, None, None),
            ("1e3s", None, None, None),
            (".5s", None, None, None),
            ("1.s", None, None, None),
            ("1 0s", None, None, None),
            ("1h 30", None, None, None),
            ("2 hours min", None, None, None),
            ("1 m sec", None, None, None),
            ("1 S", None, None, None),
            ("nan s", None, None, None),
            ("9/s", None, None, None),
            ("9:/1s", None, None, None),
            ("5%ms", None, None, None),
            ("1 s,2 s", None, None, None),
            (&format!("{far}y"), None, None, None),
        ] {
            let span = text.parse::<TimeSpan>().ok().map(|span| span.0.as_nanos());
            let millis = text.parse::<Millis>().ok().map(|time| time.0);
            let micros = text.parse::<Micros>().ok().map(|time| time.0);
            assert_eq!((span, millis, micros), (span_ns, ms, us), "{text:?}");
        }
    }

    #[test]
    fn times_and_weights() {
        check::<Millis>("10 min", "Millis(600000)");
        check::<Millis>("0.5 s", "Millis(500)");
        check::<Millis>("10", "refused");
        assert_eq!(Weight::new(0), None);
        assert_eq!(Weight::new(10_001), None);
        assert_eq!(Weight::DEFAULT.v1_shares(), 1024);
        assert_eq!(Weight::MIN.v1_shares(), 10);
    }

    #[test]
    fn display_reads_well() {
        let shown = [
            Bytes(0).to_string(),
            Bytes(1023).to_string(),
            Bytes(8 << 30).to_string(),
            Bytes(25_233_000_000).to_string(),
            BytesPerS(104_857_600).to_string(),
            MicroCpus(1_000_000).to_string(),
            MicroCpus(2_500_000).to_string(),
            Ppm(123_456).to_string(),
        ];
        let want = ["0 B", "1023 B", "8 GiB", "23.5 GiB", "100 MiB/s", "1 CPU", "2.5 CPUs", "12.3456 %"];
        assert_eq!(shown, want);
        let times = [0, 1, 1_500, 90_000, 600_000, 7_200_000].map(|time| Millis(time).to_string());
        assert_eq!(times, ["0 ms", "1 ms", "1500 ms", "90 s", "10 min", "2 h"]);
    }
}
