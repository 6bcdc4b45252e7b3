//! What cargo is told to build: everything, or everything but the BPF programs where they cannot be compiled.

#[path = "../../crates/commensal-blame/clang.rs"]
mod clang;

use clang::clang;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Without `bpf`; tests need the fake host.
pub const WITHOUT_BPF: [&str; 2] = ["--features", "commensal-host/fake"];
const ALL: [&str; 1] = ["--all-features"];
/// What libbpf is built against.
const HEADERS: &str = "#include <gelf.h>\n#include <zlib.h>\n";

/// The features of a build here.
pub fn of_this_machine() -> &'static [&'static str] {
    if no_bpf().is_none() { &ALL } else { &WITHOUT_BPF }
}

/// Why BPF programs cannot be compiled here, if they cannot.
pub fn no_bpf() -> Option<&'static str> {
    static WHY: OnceLock<Option<&str>> = OnceLock::new();
    *WHY.get_or_init(|| {
        let Some(clang) = clang() else {
            return Some("no clang 18 or newer; apt-get install --no-install-recommends clang-19");
        };
        let mut command = Command::new(clang);
        command.args(["-fsyntax-only", "-xc", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
        let compiled = command.spawn().and_then(|mut child| {
            use std::io::Write;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(HEADERS.as_bytes())?;
            }
            child.wait()
        });
        match compiled {
            Ok(status) if status.success() => None,
            _ => Some("no headers of libelf and zlib; apt-get install --no-install-recommends libelf-dev zlib1g-dev pkg-config"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::clang::version;

    #[test]
    fn versions() {
        assert_eq!(version("Debian clang version 19.1.4 (1~deb12u1)\nTarget: x"), Some(19));
        assert_eq!(version("Apple clang"), None);
    }
}
