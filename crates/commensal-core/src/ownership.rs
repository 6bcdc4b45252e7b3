//! Checks, by owner and mode, whether other users than root and the current user could have changed a file or directory
//! that commensal trusts. The checks ignore access control lists.

/// The write bits of group and others.
const OTHERS_WRITE: u32 = 0o022;

/// The sticky bit: in a directory with this bit, such as `/tmp`, only a file's owner can remove or rename it.
const STICKY: u32 = 0o1000;

/// Owner and mode of a file or directory, from `fstat(2)` on the opened file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// User ID of the owner.
    pub owner: u32,
    /// Permission bits, including the sticky bit.
    pub mode: u32,
}

/// The role of the file or directory that is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRole {
    /// A file or directory of commensal's own, to which no other user may write.
    Own,
    /// An ancestor directory. All users may have write permission if the directory is sticky, because then only a
    /// file's owner can replace the file.
    Above,
    /// A symbolic link in the path; only its owner is checked, because links have no mode.
    Link,
}

/// Why user `euid` must not trust the file at `path`, and how to change that; `None` if no other user could have
/// written it.
#[must_use]
pub fn objection(path: &str, found: Ownership, place: FileRole, euid: u32) -> Option<String> {
    let Ownership { owner, mode } = found;
    if owner != 0 && owner != euid {
        let command = if place == FileRole::Link { "chown -h" } else { "chown" };
        let whose =
            if euid == 0 { "not to root".to_owned() } else { format!("neither to user {euid} nor to root") };
        return Some(format!(
            "{path}, which belongs to user {owner} and {whose} (mode {:04o}; `{command} {euid} {path}` corrects that, \
             --insecure-permissions ignores it)",
            mode & 0o7777
        ));
    }
    // A user other than root may allow the members of a group to write.
    let shared = place != FileRole::Link && mode & OTHERS_WRITE != 0;
    if euid != 0 || !shared || (place == FileRole::Above && mode & STICKY != 0) {
        return None;
    }
    Some(format!(
        "{path}, which others than its owner, user {owner}, can write (mode {:04o}; `chmod go-w {path}` corrects that, \
         --insecure-permissions ignores it)",
        mode & 0o7777
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_have_written_it() {
        let check = |(owner, mode), place, euid, want: &str| {
            let said = objection("/x", Ownership { owner, mode }, place, euid);
            let said = said.unwrap_or_else(|| "fine".to_owned());
            assert!(said.contains(want), "{owner} {mode:o} {place:?} {euid}: {said}");
        };
        check((0, 0o644), FileRole::Own, 0, "fine");
        check((0, 0o664), FileRole::Own, 0, "`chmod go-w /x`");
        check((0, 0o646), FileRole::Own, 0, "(mode 0646;");
        check(
            (65_534, 0o600),
            FileRole::Own,
            0,
            "belongs to user 65534 and not to root (mode 0600; `chown 0 /x`",
        );
        check((0, 0o1777), FileRole::Above, 0, "fine");
        check((0, 0o1777), FileRole::Own, 0, "(mode 1777;");
        check((0, 0o777), FileRole::Above, 0, "chmod");
        check((65_534, 0o1777), FileRole::Above, 0, "`chown 0 /x`");
        check((0, 0o777), FileRole::Link, 0, "fine");
        check((7, 0o777), FileRole::Link, 0, "`chown -h 0 /x`");
        // For an ordinary user: the user's own files, with or without write permission for a group, and root's files.
        check((1000, 0o664), FileRole::Own, 1000, "fine");
        check((0, 0o777), FileRole::Above, 1000, "fine");
        check((7, 0o644), FileRole::Own, 1000, "belongs to user 7 and neither to user 1000 nor to root");
    }
}
