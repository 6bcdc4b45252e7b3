//! Cargo features: those that tests need, without the injected faults that ship nowhere; and what is left out, the scheduler's loader
//! where the libraries that it links are missing.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// All but `faults`, with which tests would not run what ships.
pub const OF_TESTS: [&str; 2] = ["--features", "commensal-host/fake,commensal-agent/fixture"];

const WITHOUT: [&str; 2] = ["--exclude", "commensal-sched"];
/// Headers that libbpf needs.
const HEADERS: &str = "#include <gelf.h>\n#include <zlib.h>\n";

/// Arguments that leave out the scheduler where it cannot be built; prints a message then.
pub fn without_scheduler() -> &'static [&'static str] {
    let Some(why) = no_scheduler() else { return &[] };
    println!("without commensal-sched, so its tests are skipped: {why}");
    &WITHOUT
}

/// Why the scheduler's loader cannot be built here, if it cannot.
pub fn no_scheduler() -> Option<&'static str> {
    static WHY: OnceLock<Option<&str>> = OnceLock::new();
    *WHY.get_or_init(|| {
        let mut command = Command::new("cc");
        command.args(["-fsyntax-only", "-xc", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
        let compiled = command.spawn().and_then(|mut child| {
            use std::io::Write;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(HEADERS.as_bytes())?;
            }
            child.wait()
        });
        let headers = compiled.is_ok_and(|status| status.success());
        let finder = Command::new("pkg-config").arg("--version").output().is_ok_and(|output| output.status.success());
        (!headers || !finder)
            .then_some("no headers of libelf and zlib, or no pkg-config; apt-get install --no-install-recommends libelf-dev zlib1g-dev pkg-config")
    })
}
