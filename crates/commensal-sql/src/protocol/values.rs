//! Parses the values that a client sends for the placeholders of a prepared statement (`COM_STMT_EXECUTE`).

use super::days;
use super::letters::Letters;
use super::packets::PayloadReader;
use datafusion::common::ScalarValue;
use std::collections::HashMap;

/// The placeholders (`?`) of a prepared statement, and the data about them that is kept between executions.
#[derive(Debug, Default)]
pub struct Placeholders {
    /// Number of placeholders.
    pub number: usize,
    /// Types that the client has sent last, each with a flag for unsigned.
    types: Vec<(u8, bool)>,
    /// Values that the client has sent in pieces before the execution.
    pieces: HashMap<u16, Vec<u8>>,
}

impl Placeholders {
    /// Creates this number of placeholders, whose types are still unknown.
    #[must_use]
    pub fn new(number: usize) -> Placeholders {
        Placeholders { number, ..Placeholders::default() }
    }

    /// Appends a piece to the value of a placeholder.
    pub fn piece(&mut self, at: u16, bytes: &[u8]) {
        self.pieces.entry(at).or_default().extend(bytes);
    }

    /// Returns the total size of the stored pieces, in bytes.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.pieces.values().map(Vec::len).sum()
    }

    /// Drops the stored pieces.
    pub fn reset(&mut self) {
        self.pieces.clear();
    }

    /// Parses the values of an execution, whose texts are in this character set; returns `None` if the packet is
    /// malformed or a type is unknown.
    pub fn read(&mut self, mut bytes: PayloadReader<'_>, letters: Letters) -> Option<Vec<ScalarValue>> {
        if self.number == 0 {
            return Some(Vec::new());
        }
        let nulls = bytes.take(self.number.div_ceil(8))?;
        if bytes.u8()? == 1 {
            let types = bytes.take(self.number * 2)?;
            self.types = types.chunks(2).map(|pair| (pair[0], pair[1] & 0x80 != 0)).collect();
        }
        let mut values = Vec::with_capacity(self.number);
        for at in 0..self.number {
            let piece = u16::try_from(at).ok().and_then(|at| self.pieces.remove(&at));
            // NULL needs no type: Connector/J sends none if all values are NULL.
            if piece.is_none() && nulls[at / 8] & 1 << (at % 8) != 0 {
                values.push(ScalarValue::Null);
                continue;
            }
            let (kind, unsigned) = *self.types.get(at)?;
            // VARCHAR, VAR_STRING and STRING; the other types of strings hold bytes.
            let is_text = matches!(kind, 15 | 253 | 254) && letters != Letters::Utf8;
            let decoded = |bytes: &[u8]| letters.decode(bytes).ok().map(|text| ScalarValue::from(&*text));
            values.push(match piece {
                Some(piece) if is_text => decoded(&piece)?,
                Some(piece) => of_bytes(&piece),
                None if is_text => decoded(bytes.with_length()?)?,
                None => value(&mut bytes, kind, unsigned)?,
            });
        }
        Some(values)
    }
}

/// Converts bytes to a string, or to binary data if they are not UTF-8.
fn of_bytes(bytes: &[u8]) -> ScalarValue {
    match std::str::from_utf8(bytes) {
        Ok(text) => ScalarValue::Utf8(Some(text.to_owned())),
        Err(_) => ScalarValue::Binary(Some(bytes.to_vec())),
    }
}

/// Parses one value by its `MYSQL_TYPE_*`.
fn value(bytes: &mut PayloadReader<'_>, kind: u8, unsigned: bool) -> Option<ScalarValue> {
    let signed = |number: i64| ScalarValue::Int64(Some(number));
    let natural = |number: u64| ScalarValue::UInt64(Some(number));
    Some(match kind {
        // TINY.
        1 if unsigned => natural(bytes.u8()?.into()),
        1 => signed(i8::from_le_bytes(bytes.array()?).into()),
        // SHORT, YEAR.
        2 | 13 if unsigned => natural(bytes.u16()?.into()),
        2 | 13 => signed(i16::from_le_bytes(bytes.array()?).into()),
        // LONG, INT24.
        3 | 9 if unsigned => natural(bytes.u32()?.into()),
        3 | 9 => signed(i32::from_le_bytes(bytes.array()?).into()),
        // LONGLONG.
        8 if unsigned => natural(u64::from_le_bytes(bytes.array()?)),
        8 => signed(i64::from_le_bytes(bytes.array()?)),
        4 => ScalarValue::Float32(Some(f32::from_le_bytes(bytes.array()?))),
        5 => ScalarValue::Float64(Some(f64::from_le_bytes(bytes.array()?))),
        6 => ScalarValue::Null,
        // TIMESTAMP, DATE, DATETIME.
        7 | 10 | 12 => {
            let size = bytes.u8()?;
            moment(bytes.take(size.into())?, kind == 10)?
        }
        11 => {
            let size = bytes.u8()?;
            time(bytes.take(size.into())?)?
        }
        // DECIMAL, NEWDECIMAL.
        0 | 246 => {
            let text = std::str::from_utf8(bytes.with_length()?).ok()?;
            decimal(text).unwrap_or_else(|| of_bytes(text.as_bytes()))
        }
        // VARCHAR, BIT, JSON, ENUM, SET, the BLOBs, VAR_STRING, STRING, GEOMETRY.
        15 | 16 | 245 | 247..=255 => of_bytes(bytes.with_length()?),
        _ => return None,
    })
}

/// Parses a date, with the time if it is not zero. Zero dates, which MySQL uses for "no date", become NULL.
fn moment(bytes: &[u8], only_date: bool) -> Option<ScalarValue> {
    let mut padded = [0; 11];
    padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
    if !matches!(bytes.len(), 0 | 4 | 7 | 11) {
        return None;
    }
    let [y0, y1, month, day, hour, minute, second, micros @ ..] = padded;
    if padded == [0; 11] {
        return Some(ScalarValue::Null);
    }
    let day = days::day(u16::from_le_bytes([y0, y1]), month, day)?;
    if only_date {
        return Some(ScalarValue::Date32(Some(day)));
    }
    let of_day = of_day(hour, minute, second, micros)?;
    Some(ScalarValue::TimestampMicrosecond(Some(i64::from(day) * days::MICROS + of_day), None))
}

fn of_day(hour: u8, minute: u8, second: u8, micros: [u8; 4]) -> Option<i64> {
    let micros = u32::from_le_bytes(micros);
    let fits = hour < 24 && minute < 60 && second < 60 && micros < 1_000_000;
    let seconds = (i64::from(hour) * 60 + i64::from(minute)) * 60 + i64::from(second);
    fits.then_some(seconds * 1_000_000 + i64::from(micros))
}

/// Parses a time of day. Times of more than a day and negative ones, which MySQL allows, become strings.
fn time(bytes: &[u8]) -> Option<ScalarValue> {
    let mut padded = [0; 12];
    padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
    if !matches!(bytes.len(), 0 | 8 | 12) {
        return None;
    }
    let [negative, d0, d1, d2, d3, hour, minute, second, micros @ ..] = padded;
    let micros_of_day = of_day(hour, minute, second, micros)?;
    let days = u32::from_le_bytes([d0, d1, d2, d3]);
    if negative == 0 && days == 0 {
        return Some(ScalarValue::Time64Microsecond(Some(micros_of_day)));
    }
    let hours = u64::from(days) * 24 + u64::from(hour);
    let sign = if negative == 0 { "" } else { "-" };
    Some(ScalarValue::Utf8(Some(format!("{sign}{hours:02}:{minute:02}:{second:02}"))))
}

/// Parses a decimal number with as many digits as it has, at most 38.
fn decimal(text: &str) -> Option<ScalarValue> {
    let digits: String = text.chars().filter(|letter| *letter != '.').collect();
    let scale = text.split_once('.').map_or(0, |(_, below)| below.len());
    let count = digits.trim_start_matches(['-', '+']).len();
    if !(1..=38).contains(&count) || text.matches('.').count() > 1 {
        return None;
    }
    let (precision, scale) = (u8::try_from(count).ok()?, i8::try_from(scale).ok()?);
    Some(ScalarValue::Decimal128(Some(digits.parse().ok()?), precision, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: u8, unsigned: u8, bytes: &[u8]) -> Option<ScalarValue> {
        let packet = [&[0, 1, kind, unsigned], bytes].concat();
        Placeholders::new(1).read(PayloadReader(&packet), Letters::Utf8).map(|mut values| values.remove(0))
    }

    #[test]
    fn values() {
        let text = |text: &str| ScalarValue::Utf8(Some(text.to_owned()));
        let micros = |micros| ScalarValue::TimestampMicrosecond(Some(micros), None);
        for (kind, unsigned, bytes, want) in [
            (1, 0, &[0xff][..], ScalarValue::Int64(Some(-1))),
            (1, 0x80, &[0xff], ScalarValue::UInt64(Some(255))),
            (2, 0, &[0, 0x80], ScalarValue::Int64(Some(-32_768))),
            (3, 0x80, &[0xff; 4], ScalarValue::UInt64(Some(u32::MAX.into()))),
            (8, 0, &[0xff; 8], ScalarValue::Int64(Some(-1))),
            (8, 0x80, &[0xff; 8], ScalarValue::UInt64(Some(u64::MAX))),
            (4, 0, &1.5_f32.to_le_bytes(), ScalarValue::Float32(Some(1.5))),
            (253, 0, b"\x03a\0b", text("a\0b")),
            (252, 0, b"\x02\xff\x00", ScalarValue::Binary(Some(vec![0xff, 0]))),
            (246, 0, b"\x06-12.50", ScalarValue::Decimal128(Some(-1_250), 4, 2)),
            (10, 0, &[4, 0xe8, 7, 2, 29], ScalarValue::Date32(Some(19_782))),
            (12, 0, &[7, 0xb2, 7, 1, 2, 1, 0, 0], micros(days::MICROS + 3_600_000_000)),
            (12, 0, &[11, 0xb2, 7, 1, 1, 0, 0, 0, 7, 0, 0, 0], micros(7)),
            (12, 0, &[0], ScalarValue::Null),
            (11, 0, &[8, 0, 0, 0, 0, 0, 1, 2, 3], ScalarValue::Time64Microsecond(Some(3_723_000_000))),
            (11, 0, &[8, 1, 1, 0, 0, 0, 1, 2, 3], text("-25:02:03")),
        ] {
            assert_eq!(read(kind, unsigned, bytes), Some(want), "{kind} {bytes:?}");
        }
    }

    #[test]
    fn texts_of_latin1() {
        let packet = [0, 1, 253, 0, 2, 0xe4, 0x80];
        let values = Placeholders::new(1).read(PayloadReader(&packet), Letters::Latin1).unwrap();
        assert_eq!(values, [ScalarValue::from("ä€")]);
        // The same in pieces, and bytes that are no text.
        for (kind, want) in
            [(254, ScalarValue::from("ä€")), (252, ScalarValue::Binary(Some(vec![0xe4, 0x80])))]
        {
            let mut placeholders = Placeholders::new(1);
            placeholders.piece(0, &[0xe4]);
            placeholders.piece(0, &[0x80]);
            let values = placeholders.read(PayloadReader(&[0, 1, kind, 0]), Letters::Latin1).unwrap();
            assert_eq!(values, [want]);
        }
    }

    #[test]
    fn null_needs_no_type() {
        let mut placeholders = Placeholders::new(2);
        let null = placeholders.read(PayloadReader(&[3, 0]), Letters::Utf8).unwrap();
        assert_eq!(null, [ScalarValue::Null, ScalarValue::Null]);
        // The second value is not NULL.
        assert_eq!(placeholders.read(PayloadReader(&[1, 0, 7]), Letters::Utf8), None);
        // Its type is kept for the next execution.
        for packet in [&[1, 1, 6, 0, 1, 0, 7][..], &[1, 0, 7]] {
            let values = placeholders.read(PayloadReader(packet), Letters::Utf8).unwrap();
            assert_eq!(values, [ScalarValue::Null, ScalarValue::Int64(Some(7))]);
        }
    }

    #[test]
    fn broken_values() {
        for (kind, bytes) in [
            (8, &[1, 2, 3][..]),
            (253, &[9, b'a']),
            (253, &[0xfe, 255, 255, 255, 255, 255, 255, 255, 255]),
            (10, &[5, 1, 2, 3, 4, 5]),
            (10, &[4, 0xe8, 7, 2, 31]),
            (12, &[7, 0xe8, 7, 2, 1, 24, 0, 0]),
            (11, &[20]),
            (200, &[0; 20]),
        ] {
            assert_eq!(read(kind, 0, bytes), None, "{kind} {bytes:?}");
        }
        // The types have not been sent yet, and the packet is too short.
        assert_eq!(Placeholders::new(1).read(PayloadReader(&[0, 0, 1]), Letters::Utf8), None);
        assert_eq!(Placeholders::new(20).read(PayloadReader(&[0, 0, 0, 1, 1]), Letters::Utf8), None);
        assert_eq!(Placeholders::new(0).read(PayloadReader(&[]), Letters::Utf8), Some(Vec::new()));
    }

    #[test]
    fn pieces() {
        let mut placeholders = Placeholders::new(2);
        placeholders.piece(1, b"ab");
        placeholders.piece(1, b"c");
        assert_eq!(placeholders.kept(), 3);
        let values = placeholders.read(PayloadReader(&[0, 1, 1, 0, 252, 0, 7]), Letters::Utf8).unwrap();
        let want = [ScalarValue::Int64(Some(7)), ScalarValue::Utf8(Some("abc".to_owned()))];
        assert_eq!((values.as_slice(), placeholders.kept()), (&want[..], 0));
    }
}
