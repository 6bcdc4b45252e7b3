//! Reasons why the probe cannot work on this machine, one sentence each. Some are checked before the probe is loaded,
//! others after the kernel has refused to load it.

use crate::BlameError;
use commensal_host::Host;
use std::path::Path;

/// Oldest kernel that has `iter/task`, and `bpf_task_storage` in tracing programs.
const OLDEST: (u32, u32) = (5, 12);
/// Numbers of capabilities (`linux/capability.h`).
const CAPABILITIES: [(u32, &str); 2] = [(38, "CAP_PERFMON"), (39, "CAP_BPF")];
const SYS_ADMIN: u32 = 21;

/// Checks the requirements that can be checked without loading the probe.
///
/// # Errors
/// Returns an error if the kernel is too old, or has no type information (BTF).
pub fn check(host: &dyn Host) -> Result<(), BlameError> {
    let release = text(host, "/proc/sys/kernel/osrelease");
    if version(&release).is_some_and(|version| version < OLDEST) {
        return Err(BlameError::TooOld(release));
    }
    let described =
        host.list(Path::new("/sys/kernel/btf")).is_ok_and(|names| names.iter().any(|one| one == "vmlinux"));
    if described { Ok(()) } else { Err(BlameError::NoBtf) }
}

/// Returns why the kernel refused to load the probe with EPERM or EACCES: all known causes that apply.
#[must_use]
pub fn forbidden(host: &dyn Host) -> String {
    let status = text(host, "/proc/thread-self/status");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mut why = Vec::new();
    let effective = field("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    let has = |number: u32| effective >> number & 1 == 1 || effective >> SYS_ADMIN & 1 == 1;
    let lacks: Vec<&str> = CAPABILITIES.iter().filter(|one| !has(one.0)).map(|one| one.1).collect();
    if !lacks.is_empty() {
        why.push(format!("this process lacks {}", lacks.join(" and ")));
    }
    if field("Seccomp:") == Some("2") {
        why.push(
            "a seccomp filter is in force (containers have one by default), and must allow bpf()".to_owned(),
        );
    }
    let lockdown = text(host, "/sys/kernel/security/lockdown");
    if lockdown.contains("[confidentiality]") {
        why.push("the kernel is locked down (confidentiality), which forbids reading its memory".to_owned());
    }
    if why.is_empty() {
        why.push("a security module or the user namespace of this process forbids it".to_owned());
    }
    why.join("; ")
}

fn text(host: &dyn Host, path: &str) -> String {
    host.read_file(Path::new(path)).unwrap_or_default().trim().to_owned()
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|one: char| !one.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    fn kernel(release: &str, btf: bool) -> FakeHost {
        let host = FakeHost::v2(2, 1 << 30);
        host.set_file("/proc/sys/kernel/osrelease", release);
        if btf {
            host.set_file("/sys/kernel/btf/vmlinux", "");
        }
        host
    }

    // promise 33
    #[test]
    fn an_old_kernel_and_one_without_btf() {
        let said = |release, btf| check(&kernel(release, btf)).map_err(|error| error.to_string());
        assert_eq!(said("6.1.0-13-amd64\n", true), Ok(()));
        assert_eq!(said("5.12.0\n", true), Ok(()));
        assert!(said("5.10.0-28-amd64\n", true).unwrap_err().contains("5.10.0-28-amd64 is older than 5.12"));
        assert!(said("6.1.0\n", false).unwrap_err().contains("/sys/kernel/btf/vmlinux"));
    }

    // promise 33
    #[test]
    fn each_reason_has_its_words() {
        let check = |status: &str, lockdown: &str, expect: &[&str]| {
            let host = kernel("6.1.0", true);
            host.set_file("/proc/thread-self/status", status);
            host.set_file("/sys/kernel/security/lockdown", lockdown);
            let said = forbidden(&host);
            assert_eq!(
                said.split("; ").filter(|part| !part.starts_with("theirs")).count(),
                expect.len(),
                "{said}"
            );
            for part in expect {
                assert!(said.contains(part), "{said:?} lacks {part:?}");
            }
        };
        check("CapEff:\t0000000000000000\nSeccomp:\t0\n", "", &["lacks CAP_PERFMON and CAP_BPF"]);
        check("CapEff:\t0000004000000000\nSeccomp:\t0\n", "", &["lacks CAP_BPF"]);
        check("CapEff:\t000001ffffffffff\nSeccomp:\t2\n", "", &["a seccomp filter"]);
        check("CapEff:\t0000000000200000\n", "none integrity [confidentiality]\n", &["locked down"]);
        check("CapEff:\t0000000000200000\n", "[none] integrity\n", &["a security module"]);
    }
}
