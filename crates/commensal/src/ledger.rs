//! The capability ledger: what this machine can enforce (found by tests), and which mechanism makes offline work yield
//! to online work.
//!
//! The ledger is built from a survey through [`Host`], so that golden files of other machines can be generated from
//! fixtures.

use anyhow::Context as _;
use commensal_core::actual::{CgroupPath, Manager, SCHEDULER, Support};
use commensal_core::class::{Mechanism, Rung, ladder, offline_mechanism, offline_task_policy};
use commensal_core::knob::{Controller, KnobId, KnobStatus, TABLE, Version};
use commensal_core::plan::identity_obstacle;
use commensal_core::vendor::{QOS_SYSCTLS, QosLevels, Switch, Sysctl};
use commensal_host::Host;
use commensal_sensors::{Survey, machine, mounts, scheduler, survey};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// The capabilities of a machine, ready to be printed.
#[derive(Debug)]
pub struct Ledger {
    identity: machine::Identity,
    survey: Survey,
    /// The mechanism that makes an offline group created by commensal yield.
    yields_by: String,
    /// The reason why that mechanism is weak; `None` if it is not.
    weak: Option<String>,
    rungs: Vec<Rung>,
    /// Settings of the vendor's scheduler that this kernel has, with their values.
    sysctls: Vec<(Sysctl, String)>,
    root: bool,
}

/// Name of a knob or feature, result (`yes`, `untried`, `no`, `refused`), and a remark.
type Entry<'a> = (String, &'static str, String);

impl Ledger {
    /// Surveys the machine. Knobs are tried in a scratch cgroup called `probe`. `prefix` begins the names of
    /// commensal's own groups (`prefix-…`); the socket of commensal's scheduler is in `state_dir`.
    ///
    /// # Errors
    /// `/proc` or `/sys` lacks files that every Linux has.
    pub fn look(
        host: &mut dyn Host,
        probe: &str,
        (prefix, state_dir): (&str, &Path),
        cgroup_root: Option<&CgroupPath>,
    ) -> anyhow::Result<Ledger> {
        let mut survey = survey(host, probe, cgroup_root).context("cannot read this machine")?;
        scheduler::capability(host, state_dir, prefix, &mut survey.caps);
        let identity = machine::identity(host);
        let caps = &mut survey.caps;
        if lacks(&identity.kernel)
            && caps.features.get(SCHEDULER).is_some_and(|found| found.obstacle().is_some())
        {
            let because =
                "sched_ext of Linux 6.12 lacks kernel functions that the scheduler needs; use Linux 6.13 or newer"
                    .to_owned();
            caps.features.insert(SCHEDULER, Support::No { because });
        }
        let stored = stored_identity(host, &survey)?;
        let (yields_by, weak, rungs) = mechanism(&survey, prefix, stored.as_deref());
        let sysctls = match survey.caps.qos {
            Some(_) => sysctls(host),
            None => Vec::new(),
        };
        let root = host.euid() == 0;
        Ok(Ledger { identity, survey, yields_by, weak, rungs, sysctls, root })
    }

    /// Whether only weak mechanisms can hold back offline work.
    #[must_use]
    pub fn is_weak(&self) -> bool {
        self.weak.is_some()
    }

    /// The ledger as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.machine(&mut text);
        text.push_str("\nWhat works, as tested in a scratch cgroup:\n");
        if let Some(obstacle) = &self.survey.caps.cgroup_obstacle {
            let _ = writeln!(text, "  no cgroup knob: {obstacle}");
        }
        for (name, word, remark) in self.entries() {
            let _ = writeln!(text, "{}", format!("  {name:<24} {word:<8} {remark}").trim_end());
        }
        self.conclusion(&mut text);
        text
    }

    fn conclusion(&self, text: &mut String) {
        let _ = writeln!(text, "\nOffline work yields to online work here by: {}", self.yields_by);
        if let Some(weak) = &self.weak {
            let _ = writeln!(text, "  {weak}");
        }
        let systemd = self.survey.tenancy.manager == Manager::Systemd;
        match (systemd && self.survey.tenancy.obstacle.is_some(), self.root) {
            (true, true) => text.push_str(
                "  try: systemd-run --scope -p Delegate=yes commensal …, or insist with --cgroup-root /\n",
            ),
            (true, false) => text.push_str("  try: systemd-run --user --scope -p Delegate=yes commensal …\n"),
            (false, _) => {}
        }
        if self.yields_by.starts_with("cpu.qos_level")
            && let Some(qos) = self.survey.caps.qos
        {
            let _ = writeln!(text, "  {qos}");
            for (sysctl, value) in &self.sysctls {
                let range = sysctl.range.map(|(low, high)| format!(", {low} to {high}")).unwrap_or_default();
                let _ = writeln!(
                    text,
                    "  {} = {value}: {} (default {}{range})",
                    sysctl.name, sysctl.doc, sysctl.default
                );
            }
        }
        let mut below = false;
        let mut heading = false;
        for rung in &self.rungs {
            below |= self.yields_by.starts_with(rung.name);
            if let (false, Some(obstacle)) = (below, &rung.obstacle) {
                if !heading {
                    text.push_str("Better, but not here:\n");
                    heading = true;
                }
                let _ = writeln!(text, "  {:<24} {obstacle}", rung.name);
            }
        }
        text.push_str("To measure whether that is enough on this machine: commensal lab run quickstart\n");
    }

    /// Every knob and feature with its result, in the order of [`TABLE`].
    fn entries(&self) -> Vec<Entry<'_>> {
        let mut entries = Vec::new();
        let caps = &self.survey.caps;
        for ((knob, version), support) in &caps.knobs {
            let file = knob.row().file(*version).map_or("", |file| file.name);
            entries.push(entry(&knob.to_string(), &format!("cgroup {version} {file}"), support));
        }
        // Includes knobs that the machine's cgroup version lacks, so that users do not search for them.
        for knob in TABLE.iter().filter(|knob| knob.status == KnobStatus::Driven) {
            let version = self.version_of(knob.controller);
            let Some(version) = version.filter(|version| knob.file(*version).is_none()) else { continue };
            if caps.cgroup_obstacle.is_none() {
                let other = if version == Version::V1 { Version::V2 } else { Version::V1 };
                let because =
                    format!("only cgroup {other} has it, and {} is on {version} here", knob.controller);
                entries.push(entry(knob.name, "", &Support::No { because }));
            }
        }
        entries.extend(caps.features.iter().map(|(name, support)| entry(name, "", support)));
        entries
    }

    fn version_of(&self, controller: Controller) -> Option<Version> {
        let found = self.survey.hierarchies.iter().find(|one| one.controllers.contains(&controller));
        found.map(|hierarchy| hierarchy.version)
    }

    fn machine(&self, text: &mut String) {
        let (facts, identity) = (&self.survey.machine, &self.identity);
        let topology = &facts.topology;
        let virtualised = match identity.virtualised {
            Some(true) => ", virtual machine (topology as the hypervisor shows it)",
            _ => "",
        };
        let _ = writeln!(text, "{}{virtualised}", identity.kernel);
        let _ = writeln!(
            text,
            "{}: {} cores, {} threads, SMT {}, {} last-level cache(s), {} NUMA node(s), {}",
            identity.cpu.as_deref().unwrap_or("CPU unknown"),
            topology.cores(),
            topology.threads(),
            if topology.smt() { "on" } else { "off" },
            topology.llcs().len(),
            topology.nodes().len().max(1),
            facts.memory,
        );
        let disks: Vec<String> =
            facts.disks.iter().map(|disk| format!("{} ({})", disk.name, disk.device)).collect();
        let _ = writeln!(
            text,
            "disks: {}",
            if disks.is_empty() { "none found".to_owned() } else { disks.join(", ") }
        );
        let _ = writeln!(text, "cgroup: {}", mounts::layout(&self.survey.hierarchies));
        for hierarchy in &self.survey.hierarchies {
            let names: Vec<&str> =
                hierarchy.controllers.iter().map(|controller| controller.v2_name()).collect();
            let names = if names.is_empty() { "no controllers".to_owned() } else { names.join(" ") };
            let _ = writeln!(text, "  {} {}: {names}", hierarchy.version, hierarchy.mount);
        }
        let tenancy = &self.survey.tenancy;
        let who = match tenancy.manager {
            Manager::Systemd => {
                Some("managed by systemd, the only writer except below units with Delegate=yes")
            }
            Manager::Nobody => None,
        };
        let own = match &tenancy.obstacle {
            Some(obstacle) => Some(format!("commensal has no groups of its own: {obstacle}")),
            None if tenancy.base.depth() > 0 => {
                Some(format!("commensal creates its own groups below {}", tenancy.base))
            }
            None => None,
        };
        for line in who.map(str::to_owned).into_iter().chain(own) {
            let _ = writeln!(text, "  {line}");
        }
    }

    /// The ledger as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let (facts, identity, caps) = (&self.survey.machine, &self.identity, &self.survey.caps);
        let support = |support: &Support| match support.obstacle() {
            None => json!({ "works": true, "tried": *support == Support::Yes }),
            Some(because) => json!({ "works": false, "because": because }),
        };
        let knobs: Vec<Value> = caps
            .knobs
            .iter()
            .map(|((knob, version), found)| {
                json!({ "knob": knob.to_string(), "cgroup": version.to_string(), "support": support(found) })
            })
            .collect();
        let features: serde_json::Map<_, _> =
            caps.features.iter().map(|(name, found)| ((*name).to_owned(), support(found))).collect();
        let disks: Vec<Value> = facts
            .disks
            .iter()
            .map(|disk| json!({ "name": disk.name, "device": disk.device.to_string() }))
            .collect();
        let rungs: Vec<Value> = self
            .rungs
            .iter()
            .map(|rung| json!({ "name": rung.name, "because_not": rung.obstacle }))
            .collect();
        let tenancy = &self.survey.tenancy;
        let qos = caps
            .qos
            .map(|qos| json!({ "levels": if qos == QosLevels::Five { 5 } else { 2 }, "reversible": false }));
        let sysctls: serde_json::Map<_, _> =
            self.sysctls.iter().map(|(sysctl, value)| (sysctl.name.to_owned(), json!(value))).collect();
        json!({
            "kernel": identity.kernel, "cpu": identity.cpu, "virtualised": identity.virtualised,
            "cores": facts.topology.cores(), "threads": facts.topology.threads(), "smt": facts.topology.smt(),
            "memory_bytes": facts.memory.0, "cgroup": mounts::layout(&self.survey.hierarchies).to_string(),
            "managed_by": (tenancy.manager == Manager::Systemd).then_some("systemd"),
            "own_groups_below": tenancy.obstacle.is_none().then(|| tenancy.base.as_str().to_owned()),
            "own_groups_obstacle": tenancy.obstacle,
            "disks": disks, "cgroup_obstacle": caps.cgroup_obstacle, "knobs": knobs, "features": features,
            "qos_level": qos, "offline_yields_by": self.yields_by, "weak_because": self.weak, "ladder": rungs,
            "sysctls": sysctls,
        })
    }
}

/// Whether the kernel is Linux 6.12, the first with sched_ext. The scheduler needs kernel functions that have other
/// names in 6.12 than in all later kernels.
fn lacks(kernel: &str) -> bool {
    kernel
        .strip_prefix("Linux 6.12")
        .is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
}

/// The settings of openEuler's scheduling levels that this kernel has, with their values.
fn sysctls(host: &dyn Host) -> Vec<(Sysctl, String)> {
    let value = |sysctl: &Sysctl| {
        let text = host.read_file(Path::new(sysctl.path)).ok()?;
        Some((*sysctl, text.split_whitespace().collect::<Vec<_>>().join(" ")))
    };
    QOS_SYSCTLS.iter().filter_map(value).collect()
}

fn entry<'a>(name: &str, file: &str, support: &Support) -> Entry<'a> {
    let (word, remark) = match support {
        Support::Yes => ("yes", file.to_owned()),
        Support::Untried { because } => ("untried", because.clone()),
        Support::No { because } => ("no", because.clone()),
        Support::Refused { errno, because } => ("refused", format!("{because} ({errno})")),
    };
    (name.to_owned(), word, remark)
}

/// Returns why Group Identity cannot be turned on, judged from the identity values of existing groups; `None` if it can
/// be turned on, or if the kernel does not have it.
fn stored_identity(host: &mut dyn Host, survey: &Survey) -> anyhow::Result<Option<String>> {
    let mut found = survey.tree(host)?;
    if !found.switches.contains_key(&Switch::GroupIdentity) {
        return Ok(None);
    }
    survey.fill_all(host, &mut found)?;
    Ok(identity_obstacle(None, &found))
}

/// The mechanism for an offline group of commensal, the reason why it is weak (if it is), and the ranking of all
/// mechanisms.
fn mechanism(survey: &Survey, prefix: &str, identity: Option<&str>) -> (String, Option<String>, Vec<Rung>) {
    let caps = &survey.caps;
    let cpu = survey.hierarchies.iter().find(|hierarchy| hierarchy.controllers.contains(&Controller::Cpu));
    let version = cpu.map_or(Version::V2, |cpu| cpu.version);
    let rungs = ladder(caps, version, identity);
    let no_cpu = cpu.is_none().then(|| "no cgroup hierarchy has the cpu controller".to_owned());
    let own = survey.tenancy.obstacle_in(version).map(str::to_owned);
    let obstacle = caps.cgroup_obstacle.clone().or(own).or(no_cpu);
    if let Some(obstacle) = obstacle {
        let weak = offline_task_policy(&obstacle, None).weak;
        return ("SCHED_IDLE and nice 19 on tasks".to_owned(), weak, rungs);
    }
    let own = survey.tenancy.base.child(&format!("{prefix}-offline"));
    let untried = |knob: KnobId| matches!(caps.knobs.get(&(knob, version)), Some(Support::Untried { .. }));
    let mechanism = offline_mechanism(caps, version, &own, true, identity);
    let (words, weak) = match &mechanism {
        Mechanism::GroupIdentity(underneath) => {
            let weak = match underneath.as_ref() {
                Mechanism::Nothing(because) => Some(format!(
                    "{because}; with Group Identity alone, offline work gets half of a CPU next to one online group"
                )),
                _ => None,
            };
            ("", weak)
        }
        Mechanism::QosLevel => ("cpu.qos_level on its group", None),
        Mechanism::SchedExt(_) => ("", None),
        Mechanism::CpuIdle if untried(KnobId::CpuIdle) => {
            ("cpu.idle on its group, if the kernel has it (untried)", None)
        }
        Mechanism::CpuIdle => ("cpu.idle on its group", None),
        Mechanism::MinWeight(because) => {
            let weak =
                format!("{because}; the smallest weight gives up CPU time but does not preempt as fast");
            ("smallest weight of its group", Some(weak))
        }
        Mechanism::Nothing(because) => ("nothing", Some(because.clone())),
    };
    let mut words = if words.is_empty() { mechanism.describe() } else { words.to_owned() };
    if matches!(mechanism, Mechanism::GroupIdentity(_)) && untried(KnobId::CpuBvtWarpNs) {
        words.push_str(", once a plan has turned it on");
    }
    (words, weak, rungs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::{FakeHost, VendorKernel};

    /// The first kernel with sched_ext (6.12) cannot run the scheduler, so the ledger does not suggest loading it.
    #[test]
    fn a_kernel_whose_sched_ext_is_too_old_is_told_so() {
        let check = |release: &str, part: &str| {
            let mut host = FakeHost::v2(2, 1 << 30);
            host.set_file("/proc/sys/kernel/ostype", "Linux\n");
            host.set_file("/proc/sys/kernel/osrelease", release);
            host.set_file("/sys/kernel/sched_ext/state", "disabled\n");
            let own = ("commensal", Path::new("/state"));
            let text = Ledger::look(&mut host, "commensal-probe", own, None).unwrap().text();
            let row = text.lines().find(|line| line.starts_with("  sched_ext scheduler")).unwrap();
            assert!(row.contains(part), "{row}");
        };
        check("6.12.48+deb13-amd64\n", "lacks kernel functions that the scheduler needs; use Linux 6.13");
        check("6.13.0\n", "`commensal sched load` loads it");
        check("6.120.0\n", "`commensal sched load` loads it");
    }

    fn ledger(fake: &FakeHost) -> Ledger {
        let own = ("commensal", Path::new("/state"));
        Ledger::look(&mut fake.another(), "commensal-probe", own, None).unwrap()
    }

    fn row(text: &str, name: &str) -> String {
        let row = text.lines().find(|line| line.trim_start().starts_with(name));
        row.unwrap_or_else(|| panic!("no {name} in\n{text}")).to_owned()
    }

    /// The ledger shows the number of levels with the settings of the vendor's scheduler. A kernel without levels has
    /// neither.
    #[test]
    fn openeuler_levels_and_their_settings() {
        let check = |kernel: Option<VendorKernel>, levels: Option<&str>, settings: usize| {
            let fake = FakeHost::v1(2, 1 << 30);
            kernel.into_iter().for_each(|kernel| fake.vendor_kernel(kernel));
            let ledger = ledger(&fake);
            let text = ledger.text();
            assert_eq!(text.lines().any(|line| line.contains(" levels, ")), levels.is_some(), "{text}");
            assert!(levels.is_none_or(|levels| text.contains(levels)), "{text}");
            assert_eq!(ledger.sysctls.len(), settings, "{text}");
            assert_eq!(ledger.json()["sysctls"].as_object().unwrap().len(), settings);
        };
        check(None, None, 0);
        check(Some(VendorKernel::ANOLIS), None, 0);
        check(Some(VendorKernel::OPENEULER), Some("two levels, irreversible"), 2);
        check(Some(VendorKernel::OPENEULER_FIVE), Some("five levels, irreversible"), 3);
        let fake = FakeHost::v1(2, 1 << 30);
        fake.vendor_kernel(VendorKernel::OPENEULER_FIVE);
        let weights = row(&ledger(&fake).text(), "kernel.qos_level_weights");
        assert!(weights.contains("= 1 10 100 1000 10000: "), "{weights}");
        // Any value of a setting is shown, next to the range that was observed.
        for odd in ["99", "100001", "-1", "x", ""] {
            fake.set_file("/proc/sys/kernel/qos_overload_detect_period_ms", &format!("{odd}\n"));
            let period = row(&ledger(&fake).text(), "kernel.qos_overload_detect_period_ms");
            assert!(period.contains(&format!("_ms = {odd}: ")), "{period}");
            assert!(period.ends_with("(default 5000, 100 to 100000)"), "{period}");
        }
    }

    /// Memory levels and scheduling levels are separate build options, so missing memory levels do not show which
    /// distribution this is.
    #[test]
    fn openeuler_without_memory_levels_is_still_openeuler() {
        let fake = FakeHost::v1(2, 1 << 30);
        assert!(row(&ledger(&fake).text(), "memory.qos_level").contains("this is not a kernel of openEuler"));
        fake.vendor_kernel(VendorKernel::OPENEULER);
        fake.without_file("memory.qos_level");
        let text = ledger(&fake).text();
        assert!(
            row(&text, "memory.qos_level").ends_with("CONFIG_MEMCG_OOM_PRIORITY) is off in this kernel"),
            "{text}"
        );
        assert!(row(&text, "cpu.qos_level ").contains(" yes "), "{text}");
    }

    /// The ledger shows Group Identity with the mechanism beneath it, and whether its strict form is on.
    #[test]
    fn group_identity_and_whether_it_is_strict() {
        let check = |features: Option<&str>, part: &str| {
            let fake = FakeHost::v1(2, 1 << 30);
            fake.vendor_kernel(VendorKernel::ANOLIS);
            features.into_iter().for_each(|text| fake.set_file("/sys/kernel/debug/sched_features", text));
            let text = ledger(&fake).text();
            let yields = "Group Identity, cpu.idle underneath, once a plan has turned it on";
            assert!(text.contains(yields), "{text}");
            assert!(row(&text, "absolute expulsion").contains(part), "{text}");
        };
        check(None, "untried");
        check(Some("NEXT_BUDDY ID_ABSOLUTE_EXPEL\n"), " yes");
        check(Some("NEXT_BUDDY NO_ID_ABSOLUTE_EXPEL\n"), "share a CPU by their weights");
        check(Some("NEXT_BUDDY\n"), "has no scheduler feature ID_ABSOLUTE_EXPEL");
        let fake = FakeHost::v1(2, 1 << 30);
        fake.vendor_kernel(VendorKernel::Anolis66);
        let text = ledger(&fake).text();
        assert!(row(&text, "cpu.bvt_warp_ns").contains("found cpu.priority and cpu.identity"), "{text}");
        assert!(text.contains("yields to online work here by: cpu.idle on its group"), "{text}");
    }

    #[test]
    fn openeuler_smt_expulsion_is_told_by_its_events() {
        let check = |files: &[(&str, &str)], part: &str| {
            let fake = FakeHost::v1(2, 1 << 30);
            fake.vendor_kernel(VendorKernel::OPENEULER);
            files.iter().for_each(|(path, text)| fake.set_file(path, text));
            let row = row(&ledger(&fake).text(), "qos_level SMT expulsion");
            assert!(row.contains(part), "{row}");
        };
        let event = ("/sys/kernel/debug/tracing/events/sched/sched_qos_smt_expel/id", "400\n");
        let config = "/boot/config-5.10.0-60.18.0.50.oe2203.x86_64";
        check(&[], "neither tracefs nor");
        check(&[("/sys/kernel/tracing/README", "tracing mini-HOWTO\n")], "no event sched_qos_smt_expel");
        check(&[event], " yes");
        check(&[event, ("/proc/cmdline", "ro nosmtexpell\n")], "nosmtexpell is on the kernel command line");
        check(&[(config, "CONFIG_QOS_SCHED=y\n")], "is not set in");
        check(&[(config, "CONFIG_QOS_SCHED_SMT_EXPELLER=y\n")], " yes");
    }
}
