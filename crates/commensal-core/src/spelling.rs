//! Encodes the kernel's names, which are bytes, as strings (called spellings here): every name has exactly one
//! spelling, and different names have different spellings.
//!
//! A cgroup's name may contain any bytes except `/`, zero and newline, and need not be valid UTF-8. In a spelling, a
//! byte 0xNN that is not part of valid UTF-8 becomes the character U+10FFNN, at the end of Unicode's last private-use
//! plane. If a name really contains such a character, each byte of the character is encoded in the same way, so that
//! [`bytes`] always returns what [`text`] received. Only bytes from 0x80 on are encoded, so no spelling can hide a
//! slash or a zero byte.
//!
//! `commensal-host` encodes and decodes names where it calls the kernel; all other code uses spellings. [`crate::text`]
//! converts them for display.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The character that would encode byte 0.
const FIRST: u32 = 0x10_FF00;

/// The first two bytes, in UTF-8, of the characters that encode bytes: U+10FF80 is `F4 8F BE 80`, U+10FFFF is `F4 8F BF
/// BF`.
const LEAD: [u8; 2] = [0xF4, 0x8F];

/// The byte that a character encodes; `None` for any other character.
#[must_use]
pub fn byte(character: char) -> Option<u8> {
    u8::try_from(u32::from(character).checked_sub(FIRST)?).ok().filter(|byte| *byte >= 0x80)
}

fn character(byte: u8) -> char {
    char::from_u32(FIRST + u32::from(byte)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Encodes a name from the kernel as a spelling.
#[must_use]
pub fn text(name: Vec<u8>) -> String {
    // Nearly all names, and this check takes the least time.
    if name.is_ascii() {
        return String::from_utf8(name).unwrap_or_default();
    }
    let odd = match std::str::from_utf8(&name) {
        Ok(plain) => plain.contains(|one| byte(one).is_some()),
        Err(_) => true,
    };
    if !odd {
        return String::from_utf8(name).unwrap_or_default();
    }
    let mut spelled = String::with_capacity(name.len() * 2);
    for chunk in name.utf8_chunks() {
        for one in chunk.valid().chars() {
            match byte(one) {
                Some(_) => spelled.extend(one.encode_utf8(&mut [0; 4]).bytes().map(character)),
                None => spelled.push(one),
            }
        }
        spelled.extend(chunk.invalid().iter().copied().map(character));
    }
    spelled
}

/// Decodes a spelling to the bytes of the kernel's name.
#[must_use]
pub fn bytes(spelled: &[u8]) -> Cow<'_, [u8]> {
    if spelled.is_ascii() || !spelled.windows(2).any(|two| two == LEAD) {
        return Cow::Borrowed(spelled);
    }
    let mut name = Vec::with_capacity(spelled.len());
    let mut rest = spelled;
    while let Some((first, after)) = rest.split_first() {
        let one = rest.get(..4).and_then(|four| std::str::from_utf8(four).ok()?.chars().next());
        // In valid UTF-8, four bytes that begin with F4 encode a single character.
        match one.filter(|_| *first == LEAD[0]).and_then(byte) {
            Some(byte) => (name.push(byte), rest = &rest[4..]).1,
            None => (name.push(*first), rest = after).1,
        }
    }
    Cow::Owned(name)
}

/// Decodes a path to the bytes of the kernel's names.
#[must_use]
pub fn path(spelled: &Path) -> Cow<'_, Path> {
    match bytes(spelled.as_os_str().as_bytes()) {
        Cow::Borrowed(_) => Cow::Borrowed(spelled),
        Cow::Owned(bytes) => Cow::Owned(Path::new(OsStr::from_bytes(&bytes)).to_owned()),
    }
}

/// Encodes a path; an encoded path stays the same.
#[must_use]
pub fn of_path(name: &Path) -> String {
    text(path(name).as_os_str().as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_what_is_no_text_is_spelled() {
        for plain in ["", "etl", "größe", "\u{202e}", "a\\xff", "\u{10ff7f}", "\u{fffd}"] {
            assert_eq!(text(plain.as_bytes().to_vec()), plain);
            assert!(matches!(bytes(plain.as_bytes()), Cow::Borrowed(_)) || plain == "\u{10ff7f}");
        }
        assert_eq!(text(b"a\xff".to_vec()), "a\u{10ffff}");
        assert_eq!(text(b"\xc3".to_vec()), "\u{10ffc3}");
        // A name with the real character differs from a name with the byte that this character encodes.
        let real = "a\u{10ffff}".as_bytes();
        assert_eq!(text(real.to_vec()), "a\u{10fff4}\u{10ff8f}\u{10ffbf}\u{10ffbf}");
        assert_eq!(bytes(text(real.to_vec()).as_bytes()).as_ref(), real);
        // No byte below 0x80 is ever encoded.
        assert_eq!(bytes("\u{10ff2f}\u{10ff00}".as_bytes()).as_ref(), "\u{10ff2f}\u{10ff00}".as_bytes());
    }

    #[test]
    fn a_path_keeps_its_parts() {
        assert_eq!(path(Path::new("/a/\u{10ff80}b/c")).as_os_str().as_bytes(), b"/a/\x80b/c");
        assert!(matches!(path(Path::new("/a/b")), Cow::Borrowed(_)));
        // A path that is not UTF-8 survives encoding and decoding.
        let odd = Path::new(OsStr::from_bytes(b"/\xf4\x8f/\xff"));
        assert_eq!(path(odd).as_ref(), odd);
    }

    /// Random names with many bytes that look like encoded ones, up to the maximum length of a name.
    fn name() -> impl Strategy<Value = Vec<u8>> {
        let near = prop::sample::select(vec![0xF4, 0x8F, 0xBE, 0xBF, 0x80, 0xC3, 0xE2, b'a', 0xED, 0xA0]);
        prop::collection::vec(prop_oneof![any::<u8>(), near], 0..=255)
    }

    proptest! {
        #[test]
        fn every_name_has_its_own_spelling(one in name(), other in name()) {
            let (first, second) = (text(one.clone()), text(other.clone()));
            prop_assert_eq!(bytes(first.as_bytes()).into_owned(), one.clone());
            prop_assert_eq!(first == second, one == other);
            // The bytes that no name contains (slash and zero) appear in a spelling only if they were in the bytes that
            // were encoded.
            prop_assert_eq!(first.contains(['/', '\0']), one.iter().any(|byte| matches!(byte, b'/' | 0)));
        }

        #[test]
        fn text_survives(plain in "\\PC{0,80}") {
            let spelled = text(plain.clone().into_bytes());
            prop_assert_eq!(bytes(spelled.as_bytes()).into_owned(), plain.into_bytes());
        }
    }
}
