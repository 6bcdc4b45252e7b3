//! Checks by owner and mode who may have written the files and directories that root acts on. Access control lists are
//! ignored.

/// Write bits of group and others.
const OTHERS_WRITE: u32 = 0o022;

/// In a directory with this bit only a file's owner can remove or rename it (`/tmp`).
const STICKY: u32 = 0o1000;

/// Owner and mode of a file or directory, from `fstat(2)` on the opened file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// User number of the owner.
    pub owner: u32,
    /// Permission bits, with the sticky bit.
    pub mode: u32,
}

/// What is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRole {
    /// A file, or one of commensal's directories: no other user may write there.
    Own,
    /// A directory above it: a sticky one may be writable for all, as sshd(8) allows.
    Above,
    /// A symbolic link on the way; links have no mode.
    Link,
}

/// Why user `euid` must not trust what is at `path`, because others could have written it, with what to do about it;
/// `None` when it may be trusted.
#[must_use]
pub fn objection(path: &str, found: Ownership, place: FileRole, euid: u32) -> Option<String> {
    let Ownership { owner, mode } = found;
    if owner != 0 && owner != euid {
        let command = if place == FileRole::Link { "chown -h" } else { "chown" };
        let whose =
            if euid == 0 { "not to root".to_owned() } else { format!("neither to user {euid} nor to root") };
        return Some(format!(
            "{path}, which belongs to user {owner} and {whose} (mode {:04o}; `{command} {euid} {path}` changes that, \
             --insecure-permissions goes on)",
            mode & 0o7777
        ));
    }
    // A user other than root may share files with their group.
    let shared = place != FileRole::Link && mode & OTHERS_WRITE != 0;
    if euid != 0 || !shared || (place == FileRole::Above && mode & STICKY != 0) {
        return None;
    }
    Some(format!(
        "{path}, which others than its owner, user {owner}, can write (mode {:04o}; `chmod go-w {path}` changes that, \
         --insecure-permissions goes on)",
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
        // As a user: files of that user, shared with the group or not, and root's.
        check((1000, 0o664), FileRole::Own, 1000, "fine");
        check((0, 0o777), FileRole::Above, 1000, "fine");
        check((7, 0o644), FileRole::Own, 1000, "belongs to user 7 and neither to user 1000 nor to root");
    }
}
