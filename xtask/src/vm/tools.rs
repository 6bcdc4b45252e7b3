//! The paths of programs from other packages.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// PATH with the system directories, which contain depmod and similar tools and are not in every user's PATH.
pub(super) fn tool_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin:/usr/bin:/bin");
    path
}

pub(super) fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    // The output is parsed, so it must not be translated.
    command.env("PATH", tool_path()).env("LC_ALL", "C");
    command
}

pub(super) fn find_tool(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&tool_path()).map(|folder| folder.join(name)).find(|path| path.is_file())
}
