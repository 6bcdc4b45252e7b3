//! What of root's privileges agent and guard keep. `docs/guide/security.md` says which function needs which capability; the test
//! that measures it holds these lists to that table.

use commensal_blame::preflight;
use commensal_host::{Capability, Host};

/// The guard writes values that are on record, in the journal and as attributes of the cgroups.
pub const OF_GUARD: [Capability; 2] = [Capability::DacOverride, Capability::SysAdmin];

/// What only the probe needs.
pub const OF_PROBE: [Capability; 2] = [Capability::Bpf, Capability::Perfmon];

/// What an agent keeps: those of the probe only where one may be loaded, `CAP_CHOWN` only until its socket is a group's.
#[must_use]
pub fn of_agent(host: &dyn Host, probe: bool, shares: bool) -> Vec<Capability> {
    // A kernel that has no probe will have none tomorrow.
    let probe = probe && preflight::check(host).is_ok();
    let wanted = |one: &Capability| match one {
        Capability::Bpf | Capability::Perfmon => probe,
        Capability::Chown => shares,
        _ => true,
    };
    Capability::ALL.into_iter().filter(wanted).collect()
}
