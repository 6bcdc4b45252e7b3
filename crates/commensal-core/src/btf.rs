//! Parses the type information (BTF, `Documentation/bpf/btf.rst`) of a compiled BPF object and compares its structures
//! with their Rust mirrors: structures with the same layout, which [`mirror!`](crate::mirror) declares. The input is
//! the content of the section `.BTF`; the loader finds that section in the object.

use std::collections::BTreeMap;

/// Size and members of a Rust structure that must have the same layout as a C structure.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Name of the C structure.
    pub name: &'static str,
    /// Size of the structure (bytes).
    pub size: usize,
    /// Name, offset and size (both in bytes) of each member.
    pub members: &'static [(&'static str, usize, usize)],
}

/// Declares `#[repr(C)]` structures, each with its [`Layout`]. The caller reads these structures from BPF maps and
/// writes them to BPF maps as bytes (zerocopy).
#[macro_export]
macro_rules! mirror {
    ($($(#[$doc:meta])* pub struct $name:ident = $theirs:literal {
        $($(#[$about:meta])* $field:ident: $ty:ty,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable)]
        #[repr(C)]
        pub struct $name {
            $($(#[$about])* pub $field: $ty,)*
        }

        impl $name {
            /// The layout to compare with the object's BTF.
            pub const LAYOUT: $crate::btf::Layout = $crate::btf::Layout {
                name: $theirs,
                size: size_of::<$name>(),
                members: &[$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$ty>())),*],
            };
        }
    )*};
}

/// Structures and enum constants of an object.
#[derive(Debug, Clone, Default)]
pub struct Btf {
    types: Vec<Type>,
    strings: Vec<u8>,
}

#[derive(Debug, Clone, Default)]
struct Type {
    name: u32,
    kind: u32,
    /// Size in bytes, or the index of another type.
    size_or_type: u32,
    /// For an array: index of the element type, and number of elements.
    array: (u32, u32),
    /// For each member: its name (an offset into the strings), its type (for an enum, the value), and its offset in
    /// bytes.
    members: Vec<(u32, u32, u32)>,
}

const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const PTR: u32 = 2;
/// typedef, volatile, const, restrict and type tag: kinds with the size and members of the type that they refer to.
const STANDS_FOR: [u32; 5] = [8, 9, 10, 11, 18];
/// Longest chain of types that refer to one another; the parser treats a longer chain as a loop.
const DEPTH: usize = 16;

struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn next(&mut self) -> Option<u32> {
        let (four, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*four))
    }
}

impl Btf {
    /// Parses the section `.BTF`; returns `None` if the section is not valid BTF or has the byte order of another
    /// machine.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Btf> {
        let mut head = Words(bytes);
        let (magic, length) = (head.next()? & 0xffff, head.next()? as usize);
        if magic != 0xeb9f {
            return None;
        }
        let mut place = || head.next().map(|word| word as usize);
        let (types_at, types_len, strings_at, strings_len) = (place()?, place()?, place()?, place()?);
        let part = |at: usize, len: usize| bytes.get(length + at..length + at + len);
        let mut words = Words(part(types_at, types_len)?);
        // Type 0 is void.
        let mut types = vec![Type::default()];
        while let Some(name) = words.next() {
            types.push(one(name, &mut words)?);
        }
        Some(Btf { types, strings: part(strings_at, strings_len)?.to_vec() })
    }

    fn text(&self, at: u32) -> &str {
        let rest = self.strings.get(at as usize..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
        std::str::from_utf8(&rest[..end]).unwrap_or_default()
    }

    fn size(&self, number: u32) -> Option<usize> {
        let mut number = number;
        for _ in 0..DEPTH {
            let one = self.types.get(number as usize)?;
            match one.kind {
                PTR => return Some(8),
                ARRAY => return Some(self.size(one.array.0)? * one.array.1 as usize),
                kind if STANDS_FOR.contains(&kind) => number = one.size_or_type,
                _ => return Some(one.size_or_type as usize),
            }
        }
        None
    }

    /// Lists all differences between the mirrors and the object; empty if they agree.
    #[must_use]
    pub fn differences(&self, mirrors: &[Layout]) -> Vec<String> {
        let mut wrong = Vec::new();
        for mirror in mirrors {
            let name = mirror.name;
            let Some(theirs) =
                self.types.iter().find(|one| one.kind == STRUCT && self.text(one.name) == name)
            else {
                wrong.push(format!("the object has no struct {name}"));
                continue;
            };
            if theirs.size_or_type as usize != mirror.size {
                wrong.push(format!(
                    "struct {name} has {} bytes in the object, and {} in this program",
                    theirs.size_or_type, mirror.size
                ));
            }
            let members: BTreeMap<&str, (usize, Option<usize>)> = theirs
                .members
                .iter()
                .map(|(name, kind, at)| (self.text(*name), (*at as usize, self.size(*kind))))
                .collect();
            for (member, at, size) in mirror.members {
                match members.get(member) {
                    Some((theirs, bytes)) if theirs == at && *bytes == Some(*size) => {}
                    Some((theirs, bytes)) => wrong.push(format!(
                        "struct {name}: {member} is at offset {theirs} with {} bytes in the object, and at {at} with {size} in this program",
                        bytes.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string())
                    )),
                    None => wrong.push(format!("struct {name} has no member {member}")),
                }
            }
            if members.len() != mirror.members.len() {
                wrong.push(format!(
                    "struct {name} has {} members in the object, and {} in this program",
                    members.len(),
                    mirror.members.len()
                ));
            }
        }
        wrong
    }

    /// Returns the offset (bytes) of a member of a structure; `None` if the object has no such structure or member. Use
    /// it for kernel structures that have no complete mirror.
    #[must_use]
    pub fn offset(&self, name: &str, member: &str) -> Option<usize> {
        let theirs = self.types.iter().find(|one| one.kind == STRUCT && self.text(one.name) == name)?;
        let found = theirs.members.iter().find(|(name, ..)| self.text(*name) == member)?;
        Some(found.2 as usize)
    }

    /// The value of an enum constant; `None` if there is no such constant.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        let enums = self.types.iter().filter(|one| one.kind == ENUM);
        let found = enums.flat_map(|one| &one.members).find(|(one, ..)| self.text(*one) == name)?;
        Some(u64::from(found.1))
    }
}

/// Parses a type; the caller has read the type's name already.
fn one(name: u32, words: &mut Words<'_>) -> Option<Type> {
    let (info, size_or_type) = (words.next()?, words.next()?);
    let (count, kind, bitfields) = (info & 0xffff, info >> 24 & 0x1f, info >> 31 == 1);
    let mut one = Type { name, kind, size_or_type, ..Type::default() };
    match kind {
        ARRAY => {
            let (of, _, many) = (words.next()?, words.next()?, words.next()?);
            one.array = (of, many);
        }
        STRUCT | UNION => {
            for _ in 0..count {
                let (name, of, bits) = (words.next()?, words.next()?, words.next()?);
                one.members.push((name, of, if bitfields { bits & 0xff_ffff } else { bits } / 8));
            }
        }
        ENUM => {
            for _ in 0..count {
                one.members.push((words.next()?, words.next()?, 0));
            }
        }
        // Words that follow the header: one for int, variable and declaration tag; two per argument of a function;
        // three per variable of a section and per value of a 64-bit enum.
        1 | 14 | 17 => skip(words, 1)?,
        13 => skip(words, 2 * count)?,
        15 | 19 => skip(words, 3 * count)?,
        _ => {}
    }
    Some(one)
}

fn skip(words: &mut Words<'_>, count: u32) -> Option<()> {
    (0..count).try_for_each(|_| words.next().map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct pair { u32 first; u64 many[2]; }`, `enum { NONE, SOME = 7 }`.
    fn object() -> Vec<u8> {
        let strings = b"\0u32\0u64\0pair\0first\0many\0NONE\0SOME\0";
        let int = 1 << 24;
        let types: [u32; 38] = [
            1,
            int,
            4,
            32, // 1: u32
            5,
            int,
            8,
            64, // 2: u64
            0,
            ARRAY << 24,
            0,
            2,
            1,
            2, // 3: u64[2]
            9,
            STRUCT << 24 | 2,
            24,
            14,
            1,
            0,
            20,
            3,
            64, // 4
            0,
            ENUM << 24 | 2,
            4,
            25,
            0,
            30,
            7, // 5
            0,
            13 << 24 | 1,
            0,
            0,
            1, // 6: a function's arguments
            0,
            9 << 24,
            1, // 7: volatile u32
        ];
        let head: [u32; 6] =
            [0x1_eb9f, 24, 0, 4 * types.len() as u32, 4 * types.len() as u32, strings.len() as u32];
        let words = head.iter().chain(&types).flat_map(|word| word.to_ne_bytes());
        words.chain(strings.iter().copied()).collect()
    }

    #[test]
    fn what_differs_is_told() {
        let btf = Btf::parse(&object()).unwrap();
        let right = Layout { name: "pair", size: 24, members: &[("first", 0, 4), ("many", 8, 16)] };
        assert_eq!(btf.differences(&[right]), Vec::<String>::new());
        let wrong = Layout { name: "pair", size: 20, members: &[("first", 4, 4), ("more", 8, 16)] };
        let told = btf.differences(&[wrong, Layout { name: "none", ..right }]);
        for (told, part) in told.iter().zip([
            "24 bytes in the object, and 20",
            "first is at offset 0",
            "no member more",
            "no struct none",
        ]) {
            assert!(told.contains(part), "{told:?} lacks {part:?}");
        }
        assert_eq!(
            (btf.number("SOME"), btf.number("first"), btf.offset("pair", "many")),
            (Some(7), None, Some(8))
        );
    }

    #[test]
    fn something_else_is_no_btf() {
        assert!(Btf::parse(b"\x7fELF").is_none());
        assert!(Btf::parse(&object()[..60]).is_none());
    }
}
