//! Converts values of knobs (kernel settings of a cgroup) to and from the text of kernel files, and predicts how the
//! kernel normalises a value.

use super::{File, Form, Normalise, Value};
use crate::cpuset::CpuSet;
use crate::topology::Device;

/// Page size (bytes); the kernel stores memory limits in whole pages.
const PAGE: i64 = 4096;

/// The largest page size (bytes) of any machine that Linux runs on.
const LARGEST_PAGE: i64 = 65_536;

/// The error for a text that does not have the form that a kernel file requires: the content of the file, or a value to
/// be written to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file} holds {text:?}, which is not {expected}")]
pub struct CodecError {
    /// Name of the kernel file.
    pub file: &'static str,
    /// The text that was read, or the value that was to be written.
    pub text: String,
    /// The form that was expected, as readable text.
    pub expected: &'static str,
}

impl File {
    /// Parses a value from the file's text. In a per-device file `device` selects the line; a device without a line has
    /// no limit.
    ///
    /// # Errors
    /// Returns an error if the text does not have the file's form.
    pub fn parse(&self, text: &str, device: Option<Device>) -> Result<Value, CodecError> {
        let wrong =
            |expected: &'static str| CodecError { file: self.name, text: text.trim().to_owned(), expected };
        let text = text.trim();
        let number = |word: &str| word.parse::<i64>().map(Value::Number);
        match self.form {
            Form::Number => number(text).map_err(|_| wrong("a number")),
            Form::MinusOne => match number(text).map_err(|_| wrong("a number"))? {
                Value::Number(n) if n < 0 || (self.normalise == Normalise::PageDown && n >= self.range.1) => {
                    Ok(Value::NoLimit)
                }
                value => Ok(value),
            },
            Form::MaxWord => max_or_number(text).ok_or_else(|| wrong("a number or \"max\"")),
            Form::Quota => {
                let field = text.split_whitespace().next().unwrap_or_default();
                max_or_number(field).ok_or_else(|| wrong("a quota and a period"))
            }
            Form::Period => {
                let field = text.split_whitespace().nth(1).unwrap_or_default();
                number(field).map_err(|_| wrong("a quota and a period"))
            }
            Form::List => {
                text.parse::<CpuSet>().map(Value::List).map_err(|_| wrong("a list such as \"0-3\""))
            }
            Form::DeviceNumber => {
                let rest = device_line(text, device);
                match rest.map(number).transpose().map_err(|_| wrong("a device and a number"))? {
                    // The kernel treats 0 as "no limit" and removes the line.
                    None | Some(Value::Number(0)) => Ok(Value::NoLimit),
                    Some(value) => Ok(value),
                }
            }
            Form::DeviceKey(key) => {
                let Some(rest) = device_line(text, device) else { return Ok(Value::NoLimit) };
                let field =
                    rest.split_whitespace().find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
                field.map_or(Ok(Value::NoLimit), |word| {
                    max_or_number(word).ok_or_else(|| wrong("keys with numbers or \"max\""))
                })
            }
            Form::Words(words) => match words.iter().position(|word| *word == text) {
                Some(at) => Ok(Value::Number(i64::from(at > 0))),
                None => Err(wrong("one of the words that the file accepts")),
            },
            Form::DefaultWeight => {
                let line = text.lines().find_map(|line| line.trim().strip_prefix("default "));
                number(line.unwrap_or(text)).map_err(|_| wrong("a weight"))
            }
            Form::DeviceFlag(key) => {
                let Some(rest) = device_line(text, device) else { return Ok(Value::Number(0)) };
                let field =
                    rest.split_whitespace().find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
                field
                    .map_or(Ok(Value::Number(0)), |word| number(word).map_err(|_| wrong("keys with numbers")))
            }
            Form::Word(_) | Form::Opaque | Form::Trigger => Ok(Value::Word(text.to_owned())),
        }
    }

    /// Converts `value` to the text to write. Each text has one value and one device. The reason: if a write contains
    /// several lines, the kernel applies only the first line but reports success for all of them (measured on 6.18,
    /// `blkio`).
    ///
    /// # Errors
    /// Returns an error if the type of the value does not fit the file's form, or if the device for a per-device file
    /// is missing.
    pub fn encode(&self, value: &Value, device: Option<Device>) -> Result<String, CodecError> {
        let wrong =
            |expected: &'static str| CodecError { file: self.name, text: value.to_string(), expected };
        match (self.form, value, device) {
            (Form::Number | Form::MinusOne | Form::MaxWord | Form::Quota, Value::Number(n), _) => {
                Ok(n.to_string())
            }
            // `max` as in a new group; `encode_over` replaces it with the quota in force.
            (Form::Period, Value::Number(n), _) => Ok(format!("max {n}")),
            (Form::MinusOne, Value::NoLimit, _) => Ok("-1".to_owned()),
            (Form::MaxWord | Form::Quota, Value::NoLimit, _) => Ok("max".to_owned()),
            // The empty set is written as a line break, because a write of zero bytes has no effect.
            (Form::List, Value::List(set), _) if set.is_empty() => Ok("\n".to_owned()),
            (Form::List, Value::List(set), _) => Ok(set.to_string()),
            (Form::DeviceNumber, Value::Number(n), Some(device)) => Ok(format!("{device} {n}")),
            (Form::DeviceNumber, Value::NoLimit, Some(device)) => Ok(format!("{device} 0")),
            (Form::DeviceKey(key), Value::Number(n), Some(device)) => Ok(format!("{device} {key}={n}")),
            (Form::DeviceKey(key), Value::NoLimit, Some(device)) => Ok(format!("{device} {key}=max")),
            // An invalid partition reads as `root invalid (reason)`, but is written as `root`.
            (Form::Word(_), Value::Word(word), _) => {
                Ok(word.split(' ').next().unwrap_or_default().to_owned())
            }
            (Form::Trigger, Value::Word(word), _) => Ok(word.clone()),
            (Form::Words(words), Value::Number(n @ (0 | 1)), _) => {
                Ok(words.get(usize::from(*n == 1)).copied().unwrap_or_default().to_owned())
            }
            (Form::DefaultWeight, Value::Number(n), _) => Ok(format!("default {n}")),
            (Form::DeviceFlag(key), Value::Number(n @ (0 | 1)), Some(device)) => {
                Ok(format!("{device} {key}={n}"))
            }
            (Form::DeviceNumber | Form::DeviceKey(_) | Form::DeviceFlag(_), _, None) => {
                Err(wrong("possible without a device"))
            }
            _ => Err(wrong("a value of the file's type")),
        }
    }

    /// The text that changes one value of a file that reads `now`, and keeps the others. v2 `cpu.max` needs this: it takes
    /// quota and period in one write, and a period alone cannot be written.
    ///
    /// # Errors
    /// As [`File::encode`].
    pub fn encode_over(
        &self,
        now: &str,
        value: &Value,
        device: Option<Device>,
    ) -> Result<String, CodecError> {
        match (self.form, value, now.split_whitespace().next()) {
            (Form::Period, Value::Number(period), Some(quota)) => Ok(format!("{quota} {period}")),
            _ => self.encode(value, device),
        }
    }

    /// The value that the file reads back after the kernel has accepted `value`.
    #[must_use]
    pub fn normalise(&self, value: &Value) -> Value {
        match (self.normalise, value) {
            (Normalise::Clamp, Value::Number(n)) => Value::Number((*n).clamp(self.range.0, self.range.1)),
            (Normalise::PageDown, Value::Number(n)) if *n >= self.range.1 => Value::NoLimit,
            (Normalise::PageDown, Value::Number(n)) => Value::Number(n / PAGE * PAGE),
            _ => value.clone(),
        }
    }

    /// Whether `read`, the value read from the file, is what the file reads back after `want` was written. For memory
    /// limits, which the kernel rounds down to whole pages, every page size up to 64 KiB is accepted.
    #[must_use]
    pub fn holds(&self, read: &Value, want: &Value) -> bool {
        match (self.normalise, read, want) {
            (Normalise::PageDown, Value::Number(read), Value::Number(want)) => {
                read <= want && want - read < LARGEST_PAGE
            }
            (_, Value::Word(read), Value::Word(want)) if want.contains(' ') => {
                read.split(' ').next() == want.split(' ').next()
            }
            _ => *read == self.normalise(want),
        }
    }

    /// Whether the kernel accepts the value: numbers must lie in the file's range, except where the kernel clamps or
    /// rounds them.
    #[must_use]
    pub fn accepts(&self, value: &Value) -> bool {
        match (self.normalise, value) {
            (Normalise::Clamp | Normalise::PageDown, _) => true,
            (_, Value::Number(n)) => (self.range.0..=self.range.1).contains(n),
            _ => true,
        }
    }
}

fn max_or_number(word: &str) -> Option<Value> {
    if word == "max" { Some(Value::NoLimit) } else { word.parse().ok().map(Value::Number) }
}

/// The rest of the line that begins with `device`; `None` if there is no such line or no device.
fn device_line(text: &str, device: Option<Device>) -> Option<&str> {
    let wanted = device?.to_string();
    text.lines().find_map(|line| {
        let (first, rest) = line.trim().split_once(char::is_whitespace)?;
        (first == wanted).then_some(rest.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::super::{KnobId, Version};
    use super::*;

    const DEV: Option<Device> = Some(Device { major: 254, minor: 0 });

    fn file(knob: KnobId, version: Version) -> &'static File {
        knob.row().file(version).unwrap()
    }

    /// Checks that `text` is parsed as `value`, and that `value` is written as `write`.
    fn check(knob: KnobId, version: Version, text: &str, value: Value, write: &str) {
        let file = file(knob, version);
        let device = file.per_device().then_some(DEV).flatten();
        assert_eq!(file.parse(text, device).unwrap(), value, "{} {text:?}", file.name);
        assert_eq!(file.encode(&value, device).unwrap(), write, "{} {value:?}", file.name);
    }

    #[test]
    fn both_directions() {
        use KnobId::*;
        use Version::*;
        check(CpuWeight, V1, "1024\n", Value::Number(1024), "1024");
        check(CpuMax, V1, "-1", Value::NoLimit, "-1");
        check(CpuMax, V2, "max 100000", Value::NoLimit, "max");
        check(CpuMax, V2, "50000 100000", Value::Number(50_000), "50000");
        check(MemoryMax, V1, "9223372036854771712", Value::NoLimit, "-1");
        check(MemoryMax, V2, "max", Value::NoLimit, "max");
        check(CpusetCpus, V1, "0-1", Value::List("0-1".parse().unwrap()), "0-1");
        check(CpusetCpus, V2, "", Value::List(CpuSet::new()), "\n");
        check(IoReadBps, V1, "8:0 5\n254:0 1048576", Value::Number(1_048_576), "254:0 1048576");
        check(IoReadBps, V1, "8:0 5", Value::NoLimit, "254:0 0");
        check(IoReadBps, V1, "254:0 0", Value::NoLimit, "254:0 0");
        check(IoReadBps, V2, "254:0 rbps=7 wbps=max riops=max wiops=max", Value::Number(7), "254:0 rbps=7");
        check(
            IoWriteIops,
            V2,
            "254:0 rbps=7 wbps=max riops=max wiops=max",
            Value::NoLimit,
            "254:0 wiops=max",
        );
        check(PidsMax, V2, "max", Value::NoLimit, "max");
        check(CgroupFreeze, V1, "FROZEN", Value::Number(1), "FROZEN");
        check(CgroupFreeze, V2, "1", Value::Number(1), "1");
        check(IoWeight, V2, "default 200\n254:0 50", Value::Number(200), "default 200");
        check(IoBfqWeight, V1, "200", Value::Number(200), "200");
        check(IoCostQos, V2, "254:0 enable=1 ctrl=auto rpct=0.00", Value::Number(1), "254:0 enable=1");
        check(IoCostQos, V2, "8:0 enable=1 ctrl=auto", Value::Number(0), "254:0 enable=0");
        check(CpuQosLevel, V1, "-1", Value::Number(-1), "-1");
        check(CpuBvtWarpNs, V2, "2", Value::Number(2), "2");
    }

    #[test]
    fn a_group_that_is_still_freezing_counts_as_frozen() {
        let file = file(KnobId::CgroupFreeze, Version::V1);
        assert_eq!(file.parse("FREEZING\n", None), Ok(Value::Number(1)));
        assert!(file.parse("MELTING", None).is_err() && file.encode(&Value::Number(2), None).is_err());
    }

    #[test]
    fn refuses_other_shapes() {
        let weight = file(KnobId::CpuWeight, Version::V1);
        assert!(weight.parse("banana", None).is_err());
        assert!(weight.encode(&Value::List(CpuSet::new()), None).is_err());
        let read = file(KnobId::IoReadBps, Version::V1);
        assert!(read.encode(&Value::Number(1), None).is_err());
    }

    #[test]
    fn normalises_as_measured_on_6_18() {
        let shares = file(KnobId::CpuWeight, Version::V1);
        assert_eq!(shares.normalise(&Value::Number(1)), Value::Number(2));
        assert_eq!(shares.normalise(&Value::Number(999_999_999)), Value::Number(262_144));
        let limit = file(KnobId::MemoryMax, Version::V1);
        assert_eq!(limit.normalise(&Value::Number(1_000_000)), Value::Number(999_424));
        assert_eq!(limit.normalise(&Value::Number(i64::MAX)), Value::NoLimit);
        // 100 MB, as read back on a machine with pages of 64 KiB.
        assert!(limit.holds(&Value::Number(99_942_400), &Value::Number(100_000_000)));
        assert!(!limit.holds(&Value::Number(99_900_000), &Value::Number(100_000_000)));
        assert!(!limit.holds(&Value::Number(100_003_840), &Value::Number(100_000_000)));
    }
}
