//! How the kernel reads numbers, sizes and lists: `kstrtoull`, `memparse`, `bitmap_parselist`.

use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;

fn base(text: &str) -> (u32, &str) {
    if let Some(rest) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        (16, rest)
    } else if text.len() > 1 && text.starts_with('0') {
        (8, &text[1..])
    } else {
        (10, text)
    }
}

/// Parses like `kstrtoull(…, 0)`: decimal, hexadecimal (`0x`) or octal (`0`). A trailing line break and a plus sign are
/// allowed, blanks are not. A number that is too large is ERANGE.
pub(super) fn unsigned(text: &str) -> Answer<u64> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let (radix, digits) = base(text.strip_prefix('+').unwrap_or(text));
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(Errno::EINVAL);
    }
    u64::from_str_radix(digits, radix).map_err(|_| Errno::ERANGE)
}

/// Parses like `kstrtoll(…, 0)`: as [`unsigned`], with an optional minus sign.
pub(super) fn number(text: &str) -> Answer<i64> {
    match text.strip_prefix('-') {
        Some(rest) if !rest.starts_with('+') => {
            i64::try_from(unsigned(rest)?).map(|value| -value).map_err(|_| Errno::ERANGE)
        }
        Some(_) => Err(Errno::EINVAL),
        None => i64::try_from(unsigned(text)?).map_err(|_| Errno::ERANGE),
    }
}

/// Parses like `memparse`: a number that wraps at 2^64, with an optional suffix K, M, G, T, P or E. Other text after it
/// is EINVAL; empty text is 0.
pub(super) fn size(text: &str) -> Answer<u64> {
    let (radix, digits) = base(text);
    let end = digits.find(|digit: char| !digit.is_digit(radix)).unwrap_or(digits.len());
    let value = digits[..end]
        .chars()
        .filter_map(|digit| digit.to_digit(radix))
        .fold(0u64, |sum, digit| sum.wrapping_mul(u64::from(radix)).wrapping_add(u64::from(digit)));
    let shift = match &digits[end..] {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        "P" | "p" => 50,
        "E" | "e" => 60,
        _ => return Err(Errno::EINVAL),
    };
    Ok(value << shift)
}

/// Parses a list such as `0-3,8`. Blanks are separators too, and `0-7:1/2` takes one of every two. Numbers of `limit`
/// and above are ERANGE.
pub(super) fn list(text: &str, limit: u32) -> Answer<CpuSet> {
    let mut set = CpuSet::new();
    for part in text.split([',', ' ', '\t', '\n']).filter(|part| !part.is_empty()) {
        let (range, stride) = part.split_once(':').unwrap_or((part, "1/1"));
        let (used, group) = stride.split_once('/').ok_or(Errno::EINVAL)?;
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let plain = |word: &str| word.parse::<u32>().map_err(|_| Errno::EINVAL);
        let (first, last, used, group) = (plain(first)?, plain(last)?, plain(used)?, plain(group)?);
        if first > last || used > group || group == 0 {
            return Err(Errno::EINVAL);
        }
        if last >= limit {
            return Err(Errno::ERANGE);
        }
        (first..=last).filter(|number| (number - first) % group < used).for_each(|number| set.insert(number));
    }
    Ok(set)
}

/// Parses like `sscanf("%llu")`: only the digits at the start of the text.
pub(super) fn leading(text: &str) -> Option<u64> {
    let end = text.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

pub(super) type Answer<T> = Result<T, Errno>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_measured_on_6_18() {
        for (text, expect) in [
            ("12\n", Ok(12)),
            ("0x10", Ok(16)),
            ("010", Ok(8)),
            ("+5", Ok(5)),
            ("0", Ok(0)),
            (" 12 ", Err(Errno::EINVAL)),
            ("12abc", Err(Errno::EINVAL)),
            ("", Err(Errno::EINVAL)),
            ("18446744073709551616", Err(Errno::ERANGE)),
        ] {
            assert_eq!(unsigned(text), expect, "{text:?}");
        }
        assert_eq!(number("-1"), Ok(-1));
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("18446744073709551616"), Ok(0));
        assert_eq!(size("64MB"), Err(Errno::EINVAL));
        assert_eq!(list("0-1:1/2", 2).map(|set| set.to_string()), Ok("0".to_owned()));
        assert_eq!(list("0 1", 2).map(|set| set.to_string()), Ok("0-1".to_owned()));
        assert_eq!(list("2", 2), Err(Errno::ERANGE));
        assert_eq!(list("1-0", 2), Err(Errno::EINVAL));
    }
}
