//! Functions of texts.

use super::row::ArgumentKind::{Bytes, Either, Raw, Text, Whole};
use super::row::{CellValue, RowFunction, length};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::Md5;
use regex::Regex;
use sha1::Sha1;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use std::cell::RefCell;

/// The longest text that a function makes, as MySQL's `max_allowed_packet` limits it.
const LONGEST: usize = 16 << 20;
/// Name of the function that gives a part of a text or of bytes.
pub const PART: &str = "__part";
/// Length of a line of `TO_BASE64`.
const BASE64_LINE: usize = 76;

pub(super) const ROWS: &[RowFunction] = &[
    RowFunction::new("ascii", &[Raw], Whole, |of| Some(i64::from(first_byte(of[0].bytes())).into())),
    RowFunction::new("ord", &[Raw], Whole, |of| Some(ord(&of[0]).into())),
    RowFunction::new("bit_length", &[Raw], Whole, |of| Some(length(of[0].bytes().len() * 8).into())),
    RowFunction::new("crc32", &[Raw], Whole, |of| Some(i64::from(crc32fast::hash(of[0].bytes())).into())),
    RowFunction::new("locate", &[Text, Text, Whole], Whole, |of| {
        Some(locate(of[0].text(), of[1].text(), of[2].whole()).into())
    }),
    RowFunction::new("find_in_set", &[Text, Text], Whole, |of| {
        Some(find_in_set(of[0].text(), of[1].text()).into())
    }),
    RowFunction::new("concat", &[Raw], Raw, concat).variadic(),
    RowFunction::new("left", &[Text, Whole], Text, |of| {
        Some(of[0].text().chars().take(count(of[1].whole())).collect::<String>().into())
    }),
    RowFunction::new("right", &[Text, Whole], Text, |of| {
        let skipped = of[0].text().chars().count().saturating_sub(count(of[1].whole()));
        Some(of[0].text().chars().skip(skipped).collect::<String>().into())
    }),
    RowFunction::new(PART, &[Raw, Whole, Whole], Raw, |of| {
        let length = of.get(2).map_or(usize::MAX, |length| count(length.whole()));
        Some(part(&of[0], of[1].whole(), length))
    })
    .at_least(2),
    RowFunction::new("upper", &[Text], Text, |of| Some(upper(of[0].text()).into())),
    RowFunction::new("ucase", &[Text], Text, |of| Some(upper(of[0].text()).into())),
    RowFunction::new("lower", &[Text], Text, |of| Some(lower(of[0].text()).into())),
    RowFunction::new("lcase", &[Text], Text, |of| Some(lower(of[0].text()).into())),
    RowFunction::new("lpad", &[Text, Whole, Text], Text, |of| padded(of, true)),
    RowFunction::new("rpad", &[Text, Whole, Text], Text, |of| padded(of, false)),
    RowFunction::new("repeat", &[Text, Whole], Text, |of| repeated(of[0].text(), of[1].whole())),
    RowFunction::new("space", &[Whole], Text, |of| repeated(" ", of[0].whole())),
    RowFunction::new("insert", &[Text, Whole, Whole, Text], Text, insert),
    RowFunction::new("hex", &[Either], Text, |of| {
        Some(match &of[0] {
            CellValue::Whole(number) => format!("{number:X}").into(),
            other => hex(other.bytes(), true).into(),
        })
    }),
    RowFunction::new("unhex", &[Text], Bytes, |of| unhex(of[0].text()).map(CellValue::Bytes)),
    RowFunction::new("md5", &[Raw], Text, |of| Some(hex(&Md5::digest(of[0].bytes()), false).into())),
    RowFunction::new("sha1", &[Raw], Text, |of| {
        Some(hex(&<Sha1 as sha1::Digest>::digest(of[0].bytes()), false).into())
    }),
    RowFunction::new("sha", &[Raw], Text, |of| {
        Some(hex(&<Sha1 as sha1::Digest>::digest(of[0].bytes()), false).into())
    }),
    RowFunction::new("sha2", &[Raw, Whole], Text, |of| sha2(of[0].bytes(), of[1].whole())),
    RowFunction::new("to_base64", &[Raw], Text, |of| Some(to_base64(of[0].bytes()).into())),
    RowFunction::new("from_base64", &[Text], Bytes, |of| {
        let text: String = of[0].text().split_whitespace().collect();
        STANDARD.decode(text).ok().map(CellValue::Bytes)
    }),
    RowFunction::new("export_set", &[Whole, Text, Text, Text, Whole], Text, |of| {
        let (separator, count) =
            (of.get(3).map_or(",", CellValue::text), of.get(4).map_or(64, CellValue::whole));
        let count = usize::try_from(count).ok().filter(|count| *count <= 64).unwrap_or(64);
        let bits = (0..count).map(|at| of[if of[0].whole() >> at & 1 == 1 { 1 } else { 2 }].text());
        let length = bits.clone().map(|bit| bit.len() + separator.len()).sum::<usize>();
        (length <= LONGEST).then_some(())?;
        Some(bits.collect::<Vec<_>>().join(separator).into())
    })
    .at_least(3),
    RowFunction::new("inet_aton", &[Text], Whole, |of| {
        let parts: Option<Vec<u8>> = of[0].text().split('.').map(|part| part.parse().ok()).collect();
        let parts = parts.filter(|parts| parts.len() == 4)?;
        Some(parts.iter().fold(0_i64, |sum, part| sum << 8 | i64::from(*part)).into())
    }),
    RowFunction::new("inet_ntoa", &[Whole], Text, |of| {
        let number = u32::try_from(of[0].whole()).ok()?;
        Some(number.to_be_bytes().map(|part| part.to_string()).join(".").into())
    }),
    RowFunction::new("quote", &[Text], Text, |of| Some(quote(of[0].text()).into())),
    RowFunction::new("soundex", &[Text], Text, |of| Some(soundex(of[0].text()).into())),
    RowFunction::new("char", &[Whole], Bytes, |of| {
        Some(CellValue::Bytes(of.iter().flat_map(char_bytes).collect()))
    })
    .variadic(),
    RowFunction::new("regexp_substr", &[Text, Text], Text, |of| {
        let (text, pattern) = (of[0].text(), of[1].text());
        matched(pattern, |regex| regex.find(text).map(|found| found.as_str().to_owned()))?
            .map(CellValue::from)
    }),
    RowFunction::new("regexp_instr", &[Text, Text], Whole, |of| {
        let (text, pattern) = (of[0].text(), of[1].text());
        let at = matched(pattern, |regex| {
            regex.find(text).map(|found| text[..found.start()].chars().count() + 1)
        })?;
        Some(length(at.unwrap_or(0)).into())
    }),
];

/// A number of characters; none if it is negative.
fn count(of: i64) -> usize {
    usize::try_from(of).unwrap_or(0)
}

/// Joins texts; with bytes among them, the result is bytes.
fn concat(of: &[CellValue<'_>]) -> Option<CellValue<'static>> {
    let length: usize = of.iter().map(|one| one.bytes().len()).sum();
    (length <= LONGEST).then_some(())?;
    let has_bytes = of.iter().any(|one| matches!(one, CellValue::Bytes(_)));
    Some(match has_bytes {
        true => CellValue::Bytes(of.iter().flat_map(|one| one.bytes().iter().copied()).collect()),
        false => of.iter().map(CellValue::text).collect::<String>().into(),
    })
}

/// A part of a text or of bytes from a position on: from the end if it is negative, and nothing from 0.
fn part(of: &CellValue<'_>, from: i64, length: usize) -> CellValue<'static> {
    let skipped = |all: usize| match from {
        1.. => usize::try_from(from - 1).ok(),
        0 => None,
        _ => usize::try_from(from.unsigned_abs()).ok().and_then(|back| all.checked_sub(back)),
    };
    match of {
        CellValue::Bytes(bytes) => {
            let part = skipped(bytes.len()).map(|from| bytes.iter().skip(from).take(length));
            CellValue::Bytes(part.map_or_else(Vec::new, |part| part.copied().collect()))
        }
        text => {
            let text = text.text();
            let part = skipped(text.chars().count()).map(|from| text.chars().skip(from).take(length));
            part.map_or_else(String::new, |part| part.collect::<String>()).into()
        }
    }
}

/// One letter for each letter: ß stays as it is.
fn upper(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_uppercase();
    }
    let upper = |letter: char| {
        let mut all = letter.to_uppercase();
        all.next().filter(|_| all.next().is_none()).unwrap_or(letter)
    };
    text.chars().map(upper).collect()
}

fn lower(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    // Of the letters that `to_lowercase` gives for one, the first is the letter; the others are marks.
    text.chars().filter_map(|letter| letter.to_lowercase().next()).collect()
}

fn first_byte(bytes: &[u8]) -> u8 {
    bytes.first().copied().unwrap_or(0)
}

/// The bytes of the first character as one number.
fn ord(of: &CellValue<'_>) -> i64 {
    let length = match of {
        CellValue::Text(text) => text.chars().next().map_or(0, char::len_utf8),
        _ => 1,
    };
    of.bytes().iter().take(length).fold(0, |number, byte| number << 8 | i64::from(*byte))
}

/// The position of a part from a position on; 0 if it is not there.
fn locate(part: &str, text: &str, from: i64) -> i64 {
    let Some(skipped) = usize::try_from(from).ok().and_then(|from| from.checked_sub(1)) else { return 0 };
    let starts = || text.char_indices().map(|(at, _)| at).chain([text.len()]);
    let Some(start) = starts().nth(skipped) else { return 0 };
    let found = text[start..].find(part);
    found.map_or(0, |found| length(text[..start + found].chars().count() + 1))
}

fn find_in_set(text: &str, set: &str) -> i64 {
    if set.is_empty() {
        return 0;
    }
    set.split(',').position(|one| one == text).map_or(0, |at| length(at + 1))
}

/// `LPAD` and `RPAD`: NULL if there is nothing to fill up with.
fn padded(of: &[CellValue<'_>], left: bool) -> Option<CellValue<'static>> {
    let (text, fill) = (of[0].text(), of[2].text());
    let wanted = usize::try_from(of[1].whole()).ok().filter(|wanted| *wanted <= LONGEST)?;
    let missing = wanted.saturating_sub(text.chars().count());
    if missing == 0 {
        return Some(text.chars().take(wanted).collect::<String>().into());
    }
    if fill.is_empty() {
        return None;
    }
    let fill: String = fill.chars().cycle().take(missing).collect();
    Some(if left { fill + text } else { text.to_owned() + &fill }.into())
}

fn repeated(text: &str, times: i64) -> Option<CellValue<'static>> {
    let times = usize::try_from(times).unwrap_or(0);
    (text.len().checked_mul(times)? <= LONGEST).then(|| text.repeat(times).into())
}

/// `INSERT(text, from, length, other)`: the other text in place of a part.
fn insert(of: &[CellValue<'_>]) -> Option<CellValue<'static>> {
    let (text, from, part, other) = (of[0].text(), of[1].whole(), of[2].whole(), of[3].text());
    let all: Vec<char> = text.chars().collect();
    let Some(from) =
        usize::try_from(from).ok().and_then(|from| from.checked_sub(1)).filter(|from| *from < all.len())
    else {
        return Some(text.to_owned().into());
    };
    let part = usize::try_from(part).unwrap_or(usize::MAX);
    let rest = from.saturating_add(part).min(all.len());
    let text: String =
        all[..from].iter().copied().chain(other.chars()).chain(all[rest..].iter().copied()).collect();
    Some(text.into())
}

fn hex(bytes: &[u8], is_upper: bool) -> String {
    let digit = |byte: &u8| if is_upper { format!("{byte:02X}") } else { format!("{byte:02x}") };
    bytes.iter().map(digit).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits?;
    let (odd, pairs) = digits.split_at(digits.len() % 2);
    let pairs = pairs.chunks(2).map(|pair| pair[0] << 4 | pair[1]);
    Some(odd.iter().copied().chain(pairs).collect())
}

fn sha2(bytes: &[u8], bits: i64) -> Option<CellValue<'static>> {
    let digest = match bits {
        224 => Sha224::digest(bytes).to_vec(),
        0 | 256 => Sha256::digest(bytes).to_vec(),
        384 => Sha384::digest(bytes).to_vec(),
        512 => Sha512::digest(bytes).to_vec(),
        _ => return None,
    };
    Some(hex(&digest, false).into())
}

fn to_base64(bytes: &[u8]) -> String {
    let encoded = STANDARD.encode(bytes);
    let lines: Vec<&str> = (0..encoded.len())
        .step_by(BASE64_LINE)
        .map(|at| &encoded[at..encoded.len().min(at + BASE64_LINE)])
        .collect();
    lines.join("\n")
}

fn quote(text: &str) -> String {
    let escaped = text.chars().map(|letter| match letter {
        '\'' => "\\'".to_owned(),
        '\\' => "\\\\".to_owned(),
        '\0' => "\\0".to_owned(),
        '\u{1a}' => "\\Z".to_owned(),
        letter => letter.to_string(),
    });
    format!("'{}'", escaped.collect::<String>())
}

/// MySQL's `SOUNDEX`, which has as many digits as there are sounds, at least three.
fn soundex(text: &str) -> String {
    let digit = |letter: char| match letter.to_ascii_uppercase() {
        'B' | 'F' | 'P' | 'V' => Some('1'),
        'C' | 'G' | 'J' | 'K' | 'Q' | 'S' | 'X' | 'Z' => Some('2'),
        'D' | 'T' => Some('3'),
        'L' => Some('4'),
        'M' | 'N' => Some('5'),
        'R' => Some('6'),
        _ => None,
    };
    let mut letters = text.chars().filter(|letter| letter.is_alphabetic());
    let Some(first) = letters.next() else { return String::new() };
    let mut code = first.to_ascii_uppercase().to_string();
    let mut last = digit(first);
    for letter in letters {
        let sound = digit(letter);
        match sound {
            Some(sound) if last != Some(sound) => code.push(sound),
            _ => {}
        }
        // Letters without a sound are left out first, so equal sounds beside them are one.
        last = sound.or(last);
    }
    let missing = 4_usize.saturating_sub(code.chars().count());
    code + &"0".repeat(missing)
}

/// The bytes of a number, without leading zeros.
fn char_bytes(number: &CellValue<'_>) -> Vec<u8> {
    let bytes = number.whole().to_be_bytes();
    let bytes = &bytes[4..];
    let zeros = bytes.iter().take(3).take_while(|byte| **byte == 0).count();
    bytes[zeros..].to_vec()
}

/// Runs something with a regular expression; `None` if it is none. Keeps the last expression of each thread, since a
/// pattern is the same in all rows, mostly.
fn matched<T>(pattern: &str, run: impl FnOnce(&Regex) -> T) -> Option<T> {
    thread_local! {
        static LAST: RefCell<Option<Regex>> = const { RefCell::new(None) };
    }
    LAST.with_borrow_mut(|last| {
        if last.as_ref().is_none_or(|known| known.as_str() != pattern) {
            *last = Regex::new(pattern).ok();
        }
        last.as_ref().map(run)
    })
}
