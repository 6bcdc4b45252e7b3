//! Cargo arguments for xtask's builds: the features that tests need (not `faults`, so that tests run the code that
//! ships), and the exclusion of `commensal-sched` on machines without libelf, zlib or pkg-config.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// All features except `faults`: with `faults`, tests would not run the code that ships.
pub const OF_TESTS: [&str; 2] = ["--features", "commensal-host/fake,commensal-agent/fixture"];

const WITHOUT: [&str; 2] = ["--exclude", "commensal-sched"];
/// Headers that libbpf needs.
const HEADERS: &str = "#include <gelf.h>\n#include <zlib.h>\n";

/// Returns the arguments that exclude the scheduler if this machine cannot build it, and prints a message in that case.
pub fn without_scheduler() -> &'static [&'static str] {
    let Some(why) = no_scheduler() else { return &[] };
    println!("without commensal-sched, so its tests are skipped: {why}");
    &WITHOUT
}

/// Returns why this machine cannot build the scheduler's loader; `None` if it can.
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
