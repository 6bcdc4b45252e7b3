//! The capabilities of root that agent and guard keep. `docs/guide/security.md` lists the functions that need each
//! capability; a test measures the need and compares these lists with that table.

use commensal_blame::preflight;
use commensal_host::{Capability, Host};

/// Capabilities that the guard keeps: it restores values that are recorded in the journal and in attributes of cgroups.
pub const OF_GUARD: [Capability; 2] = [Capability::DacOverride, Capability::SysAdmin];

/// Capabilities that only the probe needs.
pub const OF_PROBE: [Capability; 2] = [Capability::Bpf, Capability::Perfmon];

/// Capabilities that an agent keeps: those of the probe only if one can be loaded, and `CAP_CHOWN` only until it has
/// created the socket that it shares with a group.
#[must_use]
pub fn of_agent(host: &dyn Host, probe: bool, shares: bool) -> Vec<Capability> {
    // A kernel that cannot run the probe now will not be able to later.
    let probe = probe && preflight::check(host).is_ok();
    let wanted = |one: &Capability| match one {
        Capability::Bpf | Capability::Perfmon => probe,
        Capability::Chown => shares,
        _ => true,
    };
    Capability::ALL.into_iter().filter(wanted).collect()
}
