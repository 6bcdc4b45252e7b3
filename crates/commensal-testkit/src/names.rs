//! Valid names of cgroups that may cause failures in a program that reads or prints names.

const ODD: &[(&str, &[u8])] = &[
    // Invalid UTF-8.
    ("a byte that begins nothing", b"u\xff"),
    ("a lone continuation", b"\x80u"),
    ("a cut sequence", b"u\xe2\x82"),
    ("an overlong slash", b"u\xc0\xaf"),
    ("a surrogate", b"u\xed\xa0\x80"),
    ("Latin-1", b"gr\xf6\xdfe"),
    ("beyond Unicode", b"u\xf5\x80\x80\x80"),
    ("two cut sequences", b"\xf4\x8f\xbf\xf4\x8f"),
    ("255 bytes, none of them text", &[0xfe; 255]),
    // Text that looks like commensal's representation of such bytes.
    ("the character of a byte", "u\u{10ffff}".as_bytes()),
    ("the first character of a byte", "\u{10ff80}".as_bytes()),
    ("the character and the byte", b"\xff\xf4\x8f\xbf\xbf"),
    ("the character before the block", "u\u{10ff7f}".as_bytes()),
    ("a byte written out", b"u\\xff"),
    ("a character written out", b"u\\u{202e}"),
    ("a JSON escape", b"u\\u202e"),
    ("a line break written out", b"u\\n"),
    ("an octal escape", b"u\\040"),
    ("a replacement character", "u\u{fffd}".as_bytes()),
    // Characters with a special meaning in shells, patterns or formats.
    ("a single quote", b"u'"),
    ("a double quote", b"u\""),
    ("a backtick", b"`u`"),
    ("a backslash", b"u\\"),
    ("two dots inside", b"a..b"),
    ("two dots first", b"..u"),
    ("three dots", b"..."),
    ("a hidden name", b".u"),
    ("a leading dash", b"-rf"),
    ("an option", b"--config=x"),
    ("a glob", b"*"),
    ("a set of a glob", b"[!a]"),
    ("a question mark", b"?"),
    ("braces", b"{}"),
    ("a format", b"%s%n{0}"),
    ("a variable", b"$(id)"),
    ("markup", b"<script>&amp;"),
    ("a label of a metric", b"u\",group=\"x"),
    ("an object of JSON", b"\"},{\"record\":\"owner"),
    ("a colon", b"0::u"),
    ("a comment", b"#u"),
    ("a comma", b"a,b"),
    ("255 bytes", &[b'n'; 255]),
    ("256 bytes", &[b'm'; 256]),
    ("1,000 bytes, none of them text", &[0xfd; 1_000]),
    // Spaces.
    ("a blank", b"a b"),
    ("nothing but a blank", b" "),
    ("a trailing blank", b"u "),
    ("a leading blank", b" u"),
    ("a tab", b"u\tv"),
    ("a trailing tab", b"u\t"),
    ("a no-break space", "u\u{a0}".as_bytes()),
    ("a carriage return inside", b"u\rv"),
    ("a trailing carriage return", b"u\r"),
    ("a removed group's mark", b"u (deleted)"),
    // Control characters.
    ("ESC", b"u\x1b[2J\x1b]0;x\x07"),
    ("a backspace", b"u\x08\x08"),
    ("the first control", b"\x01"),
    ("a vertical tab", b"u\x0b"),
    ("a form feed", b"u\x0c"),
    ("DEL", b"u\x7f"),
    ("NEL", "u\u{85}".as_bytes()),
    ("CSI of C1", "u\u{9b}2J".as_bytes()),
    ("a C1 control as a byte", b"u\x9b2J"),
    // Characters that change the direction of text.
    ("right to left override", "u\u{202e}lmot.spuorg".as_bytes()),
    ("a left to right mark", "u\u{200e}".as_bytes()),
    ("a right to left mark", "u\u{200f}".as_bytes()),
    ("an Arabic letter mark", "u\u{61c}".as_bytes()),
    ("an isolate", "u\u{2067}v\u{2069}".as_bytes()),
    ("Hebrew", "\u{5d0}\u{5d1}".as_bytes()),
    // Invisible characters.
    ("a zero width space", "u\u{200b}".as_bytes()),
    ("a zero width joiner", "u\u{200d}v".as_bytes()),
    ("a word joiner", "u\u{2060}".as_bytes()),
    ("a BOM", "\u{feff}u".as_bytes()),
    ("a soft hyphen", "u\u{ad}v".as_bytes()),
    ("a line separator", "u\u{2028}v".as_bytes()),
    ("a paragraph separator", "u\u{2029}v".as_bytes()),
    ("a tag", "u\u{e0041}".as_bytes()),
    ("an annotation", "u\u{fff9}".as_bytes()),
    ("combining marks", "u\u{301}\u{301}".as_bytes()),
    ("an emoji", "\u{1f980}".as_bytes()),
    ("a file of another version", b"cpu.nothing"),
];

/// Unusual names, each with a description. All are different, none contains a slash, a 0 or a newline, and the kernel
/// accepts each of them as the name of a cgroup: cgroup file systems have no limit of 255 bytes.
#[must_use]
pub fn odd_names() -> Vec<(&'static str, Vec<u8>)> {
    let greek = format!("{}x", "\u{3b1}".repeat(127));
    let table = ODD.iter().map(|(what, name)| (*what, name.to_vec()));
    table.chain([("255 bytes in Greek", greek.into_bytes())]).collect()
}

/// Returns the first character of an output that is invisible or controls the terminal; `None` if there is none.
/// Newlines are allowed.
#[must_use]
pub fn hidden(output: &str) -> Option<char> {
    let raw = |one: &char| {
        let code = u32::from(*one);
        let direction = matches!(code, 0x061c | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x2069 | 0xfeff);
        let spelled = matches!(code, 0x10_ff80..=0x10_ffff);
        *one != '\n' && (one.is_control() || direction || spelled)
    };
    output.chars().find(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn they_can_be_names() {
        let all = odd_names();
        let different: BTreeSet<&[u8]> = all.iter().map(|(_, name)| name.as_slice()).collect();
        assert!(different.len() == all.len() && all.len() >= 68, "{} of {}", different.len(), all.len());
        for (what, name) in &all {
            assert!(!name.iter().any(|byte| matches!(byte, b'/' | b'\n' | 0)), "{what}");
        }
        assert!(all.iter().filter(|(_, name)| std::str::from_utf8(name).is_err()).count() >= 5);
    }
}
