//! Functions of numbers, and numbers in texts.

use super::row::ArgumentKind::{Double, Text, Whole};
use super::row::{CellValue, RowFunction, length};

/// Name of the function that gives the number at the beginning of a text.
pub const DOUBLE_OF_TEXT: &str = "__double_of_text";
/// Name of the function that gives the whole number at the beginning of a text.
pub const WHOLE_OF_TEXT: &str = "__whole_of_text";

/// Name of the function that gives the text of a floating point number.
pub const TEXT_OF_DOUBLE: &str = "__text_of_double";

/// Name of the function that takes the sign off a zero. The optimizer would remove an addition of zero.
pub const DOUBLE_WITH_UNSIGNED_ZERO: &str = "__double_with_unsigned_zero";

pub(super) const ROWS: &[RowFunction] = &[
    RowFunction::new(DOUBLE_WITH_UNSIGNED_ZERO, &[Double], Double, |of| {
        Some(CellValue::Double(of[0].double() + 0.0))
    }),
    RowFunction::new(TEXT_OF_DOUBLE, &[Double], Text, |of| {
        let value = of[0].double();
        Some(real(value, &value.to_string(), format!("{value:e}")).into())
    }),
    RowFunction::new(DOUBLE_OF_TEXT, &[Text], Double, |of| Some(CellValue::Double(double(of[0].text())))),
    RowFunction::new(WHOLE_OF_TEXT, &[Text], Whole, |of| Some(whole(of[0].text()).into())),
    RowFunction::new("bin", &[Whole], Text, |of| Some(format!("{:b}", of[0].whole()).into())),
    RowFunction::new("oct", &[Whole], Text, |of| Some(format!("{:o}", of[0].whole()).into())),
    RowFunction::new("bit_count", &[Whole], Whole, |of| Some(i64::from(of[0].whole().count_ones()).into())),
    RowFunction::new("conv", &[Text, Whole, Whole], Text, |of| {
        conv(of[0].text(), of[1].whole(), of[2].whole())
    }),
    RowFunction::new("format", &[Text, Whole], Text, |of| Some(format(of[0].text(), of[1].whole()).into())),
    RowFunction::new("cot", &[Double], Double, |of| {
        let tangent = of[0].double().tan();
        (tangent != 0.0).then(|| CellValue::Double(1.0 / tangent))
    }),
];

/// Formats a floating point number so that MySQL and most languages can parse it.
pub fn real(value: f64, shortest: &str, exponent: String) -> String {
    match value {
        _ if value.is_nan() => "NaN".to_owned(),
        _ if value.is_infinite() => if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        _ if value != 0.0 && !(1e-15..1e15).contains(&value.abs()) => exponent,
        _ => shortest.to_owned(),
    }
}

/// Returns the beginning of a text that is a number, after blanks.
fn number(text: &str, has_fraction: bool) -> &str {
    let text = text.trim_start();
    let digits = |from: usize| text[from..].bytes().take_while(u8::is_ascii_digit).count();
    let sign = usize::from(text.starts_with(['+', '-']));
    let mut end = sign + digits(sign);
    if !has_fraction {
        return &text[..end];
    }
    if text[end..].starts_with('.') {
        end += 1 + digits(end + 1);
    }
    if text[end..].starts_with(['e', 'E']) {
        let from = end + 1 + usize::from(text[end + 1..].starts_with(['+', '-']));
        let count = digits(from);
        end = if count > 0 { from + count } else { end };
    }
    &text[..end]
}

/// Returns the number at the beginning of a text as a decimal with so many digits after the point, rounded half away from
/// zero, and the greatest one if it is too large.
pub fn decimal_of_text(text: &str, scale: u8) -> i128 {
    let number = number(text, true);
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (is_negative, mantissa) = match mantissa.strip_prefix('-') {
        Some(mantissa) => (true, mantissa),
        None => (false, mantissa.trim_start_matches('+')),
    };
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digit = |byte: u8| i128::from(byte - b'0');
    // Beyond these exponents the decimal is the greatest, or zero.
    let exponent = exponent.parse::<i64>().unwrap_or(0).clamp(-1_000, 1_000);
    let kept = length(before.len()) + exponent + i64::from(scale);
    let Ok(kept) = usize::try_from(kept) else { return 0 };
    let mut digits = before.bytes().chain(after.bytes()).map(digit).chain(std::iter::repeat(0));
    let mut value = 0_i128;
    for _ in 0..kept {
        value = value.saturating_mul(10).saturating_add(digits.next().unwrap_or(0));
    }
    if digits.next().is_some_and(|next| next >= 5) {
        value = value.saturating_add(1);
    }
    if is_negative { -value } else { value }
}

fn double(text: &str) -> f64 {
    // Beyond all limits it is the largest number, as in MySQL.
    number(text, true).parse().map_or(0.0, |number: f64| number.clamp(f64::MIN, f64::MAX))
}

fn whole(text: &str) -> i64 {
    let number = number(text, false);
    let limit = if number.starts_with('-') { i64::MIN } else { i64::MAX };
    match number.trim_start_matches(['+', '-']) {
        "" => 0,
        _ => number.parse().unwrap_or(limit),
    }
}

/// `CONV(number, from, to)`: a number in another base. With a negative base to convert to, the result has a sign.
fn conv(text: &str, from: i64, to: i64) -> Option<CellValue<'static>> {
    let base = |of: i64| u32::try_from(of.unsigned_abs()).ok().filter(|base| (2..=36).contains(base));
    let (base_from, base_to) = (base(from)?, base(to)?);
    if text.is_empty() {
        return None;
    }
    let text = text.trim_start();
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let mut number: u64 = 0;
    for digit in digits.chars().map_while(|digit| digit.to_digit(base_from)) {
        let next =
            number.checked_mul(u64::from(base_from)).and_then(|next| next.checked_add(u64::from(digit)));
        number = next.unwrap_or(u64::MAX);
    }
    if is_negative {
        number = number.wrapping_neg();
    }
    let has_sign = to < 0 && number > i64::MAX as u64;
    let mut rest = if has_sign { number.wrapping_neg() } else { number };
    let mut digits = Vec::new();
    while rest > 0 || digits.is_empty() {
        let digit = u32::try_from(rest % u64::from(base_to)).ok()?;
        digits.push(char::from_digit(digit, base_to)?.to_ascii_uppercase());
        rest /= u64::from(base_to);
    }
    digits.extend(has_sign.then_some('-'));
    Some(digits.into_iter().rev().collect::<String>().into())
}

/// `FORMAT(number, digits)`: rounded, with commas between thousands. The number comes as a text, so that it is exact.
fn format(text: &str, digits: i64) -> String {
    let digits = usize::try_from(digits).unwrap_or(0).min(38);
    let plain = match text.contains(['e', 'E']) {
        true => format!("{:.*}", digits, double(text)),
        false => text.to_owned(),
    };
    let (sign, plain) = match plain.strip_prefix('-') {
        Some(plain) => ("-", plain.to_owned()),
        None => ("", plain),
    };
    let (before, after) = plain.split_once('.').unwrap_or((&plain, ""));
    let mut all: Vec<u8> =
        before.bytes().chain(after.bytes().chain(std::iter::repeat(b'0')).take(digits)).collect();
    if after.as_bytes().get(digits).is_some_and(|next| *next >= b'5') {
        let mut carries = true;
        for digit in all.iter_mut().rev() {
            (*digit, carries) = if *digit == b'9' { (b'0', true) } else { (*digit + 1, false) };
            if !carries {
                break;
            }
        }
        if carries {
            all.insert(0, b'1');
        }
    }
    let (before, after) = all.split_at(all.len() - digits);
    let mut grouped = String::new();
    for (at, digit) in before.iter().enumerate() {
        if at > 0 && (before.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(char::from(*digit));
    }
    let after: String = after.iter().map(|digit| char::from(*digit)).collect();
    let is_zero = all.iter().all(|digit| *digit == b'0');
    let sign = if is_zero { "" } else { sign };
    if digits == 0 { format!("{sign}{grouped}") } else { format!("{sign}{grouped}.{after}") }
}
