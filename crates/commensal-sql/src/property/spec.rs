//! Converts SQL's properties of a group to a group of `groups.d` (commensal's group definitions) and back, and extracts
//! the properties that only SQL stores.

use super::table::{GroupProperties, OnlySql};
use super::values::{Limit, MemoryLimit, Named, SqlQueue, UNLIMITED};
use commensal_core::group::{Class, GroupName, GroupSpec, OnExceed, Queue};
use commensal_core::limit::{CPU_MAX, CPU_WEIGHT, IO_READ, MEMORY_MAX};
use commensal_core::units::{Bytes, CpuAmount, MemoryAmount, Millis, Ppm, Weight};

/// Largest numbers allowed in a queue of `groups.d` (`commensal_core::config`).
const MOST_IN_A_QUEUE: u32 = 1_000_000;

impl GroupProperties {
    /// Returns the weight among sibling groups, if a property sets one: from `min_cpu_percent` (1 % is the kernel's
    /// default of 100), otherwise from `cpu_share`.
    #[must_use]
    pub fn weight(&self) -> Option<Weight> {
        if self.min_cpu.0 > 0 {
            let hundredths = (self.min_cpu.0 + 50) / 100;
            return u16::try_from(hundredths.clamp(1, 10_000)).ok().and_then(Weight::new);
        }
        self.cpu_share.map(|share| Weight::from_v1_shares(u64::from(share)))
    }

    /// Returns the memory limit, hard or soft, for a machine with the given amount of memory.
    #[must_use]
    pub fn memory_limit(&self, machine: Bytes, memory_base: Ppm) -> Option<Bytes> {
        self.max_memory.map(|limit| match limit.amount {
            MemoryLimit::OfBase(share) => Bytes(share.of(memory_base.of(machine.0))),
            MemoryLimit::Size(size) => size,
        })
    }

    /// Returns the queue, if `groups.d` can express it.
    fn common_queue(&self) -> Option<Queue> {
        let endless = self.max_queue_size == UNLIMITED;
        let fits = (1..=MOST_IN_A_QUEUE).contains(&self.max_concurrency)
            && (self.max_queue_size <= MOST_IN_A_QUEUE || endless);
        fits.then(|| Queue {
            max_concurrency: self.max_concurrency,
            max_size: if endless { u32::MAX } else { self.max_queue_size },
            timeout: (self.queue_timeout_ms > 0).then(|| Millis(u64::from(self.queue_timeout_ms))),
        })
    }

    /// Returns the group in the form that is written to `groups.d`. `memory_base` is the share of the machine's memory
    /// that percentages refer to ([`super::MEMORY_BASE`]). An online group gets no CPU quota in `groups.d`, because
    /// threads that the kernel throttles keep their locks. The CPU limit of an online group is stored in [`OnlySql`],
    /// and the server enforces it cooperatively. A soft memory limit is stored in [`OnlySql`], too.
    #[must_use]
    pub fn spec(&self, name: GroupName, memory_base: Ppm) -> GroupSpec {
        let mut spec = GroupSpec::new(name, self.class);
        spec.limits.set(CPU_WEIGHT, self.weight());
        let cpu_max = self.max_cpu.map(|limit| limit.amount).filter(|_| self.class == Class::Offline);
        spec.limits.set(CPU_MAX, cpu_max);
        let hard = self.max_memory.filter(|_| !self.overcommits());
        let memory = hard.map(|limit| match limit.amount {
            MemoryLimit::OfBase(share) => MemoryAmount::OfMachine(Ppm(share.of(memory_base.0))),
            MemoryLimit::Size(size) => MemoryAmount::Bytes(size),
        });
        spec.limits.set(MEMORY_MAX, memory);
        spec.on_exceed = hard.map(|_| OnExceed::KillLargest);
        spec.limits.set(IO_READ, self.read_bytes_per_second);
        spec.remote_read = self.remote_read_bytes_per_second;
        spec.queue = self.common_queue();
        spec
    }

    /// Returns the properties that [`GroupProperties::spec`] does not contain.
    #[must_use]
    pub fn only_sql(&self) -> OnlySql {
        let old = |named: Option<Named>, name: &str| (named == Some(Named::Old)).then(|| name.to_owned());
        let soft = self.max_memory.filter(|_| self.overcommits()).map(|limit| limit.amount);
        let is_default =
            (self.max_concurrency, self.max_queue_size, self.queue_timeout_ms) == (UNLIMITED, 0, 0);
        OnlySql {
            compute_group: Some(self.compute_group.clone())
                .filter(|name| name != super::DEFAULT_COMPUTE_GROUP),
            old_names: [
                old(self.max_cpu.map(|limit| limit.named), "cpu_hard_limit"),
                old(self.max_memory.map(|limit| limit.named), "memory_limit"),
                old(Some(self.compute_group_named), "tag"),
            ]
            .into_iter()
            .flatten()
            .collect(),
            min_cpu_ppm: self.min_cpu.0,
            cpu_max: self
                .max_cpu
                .filter(|_| self.class == Class::Online)
                .map(|limit| cpu_words(limit.amount)),
            min_memory_ppm: self.min_memory.0,
            memory_soft_ppm: soft.and_then(|limit| match limit {
                MemoryLimit::OfBase(share) => Some(share.0),
                MemoryLimit::Size(_) => None,
            }),
            memory_soft_bytes: soft.and_then(|limit| match limit {
                MemoryLimit::OfBase(_) => None,
                MemoryLimit::Size(size) => Some(size.0),
            }),
            queue: (self.common_queue().is_none() && !is_default).then_some(SqlQueue {
                max_concurrency: self.max_concurrency,
                max_size: self.max_queue_size,
                timeout_ms: self.queue_timeout_ms,
            }),
            ..self.kept()
        }
    }

    /// Combines the part from `groups.d` and SQL's own part. If the two disagree, `groups.d` wins, because people edit
    /// it.
    #[must_use]
    pub fn from_parts(spec: &GroupSpec, only: &OnlySql, memory_base: Ppm) -> GroupProperties {
        let named = |name: &str| {
            if only.old_names.iter().any(|old| old == name) { Named::Old } else { Named::New }
        };
        let mut properties = GroupProperties {
            class: spec.class,
            compute_group: only
                .compute_group
                .clone()
                .unwrap_or_else(|| super::DEFAULT_COMPUTE_GROUP.to_owned()),
            compute_group_named: named("tag"),
            min_cpu: Ppm(only.min_cpu_ppm),
            min_memory: Ppm(only.min_memory_ppm),
            read_bytes_per_second: spec.limits.get(IO_READ),
            remote_read_bytes_per_second: spec.remote_read,
            ..GroupProperties::of_kept(only)
        };
        properties.take_weight(spec.limits.get(CPU_WEIGHT));
        let of_sql = only.cpu_max.as_deref().and_then(|text| text.parse().ok());
        let cpu_max = spec.limits.get(CPU_MAX).or(of_sql.filter(|_| spec.class == Class::Online));
        properties.max_cpu = cpu_max.map(|amount| Limit { amount, named: named("cpu_hard_limit") });
        properties.take_memory(spec.limits.get(MEMORY_MAX), only, memory_base);
        properties.max_memory =
            properties.max_memory.map(|limit| Limit { named: named("memory_limit"), ..limit });
        if properties.max_memory.is_some() && spec.limits.has(MEMORY_MAX) && properties.overcommits() {
            properties.enable_memory_overcommit = Some(false);
        }
        properties.take_queue(spec.queue, only.queue);
        properties
    }

    /// Applies the weight from `groups.d`. If a person has edited the weight, it replaces the properties that it was
    /// computed from.
    fn take_weight(&mut self, weight: Option<Weight>) {
        if weight != self.weight() {
            self.min_cpu = Ppm(0);
            self.cpu_share = weight.and_then(|weight| u32::try_from(weight.v1_shares()).ok());
        }
    }

    fn take_memory(&mut self, max: Option<MemoryAmount>, only: &OnlySql, memory_base: Ppm) {
        let hard = max.map(|amount| match amount {
            MemoryAmount::OfMachine(share) => MemoryLimit::OfBase(of_base(share, memory_base)),
            MemoryAmount::Bytes(size) => MemoryLimit::Size(size),
        });
        let soft = only.memory_soft_ppm.map(|share| MemoryLimit::OfBase(Ppm(share)));
        let soft = soft.or(only.memory_soft_bytes.map(|size| MemoryLimit::Size(Bytes(size))));
        self.max_memory = hard.or(soft).map(|amount| Limit { amount, named: Named::New });
    }

    fn take_queue(&mut self, common: Option<Queue>, own: Option<SqlQueue>) {
        if let Some(queue) = common {
            let timeout = queue.timeout.map_or(0, |timeout| timeout.0);
            self.max_concurrency = queue.max_concurrency;
            self.max_queue_size = queue.max_size.min(UNLIMITED);
            self.queue_timeout_ms = u32::try_from(timeout).unwrap_or(UNLIMITED).min(UNLIMITED);
        } else if let Some(queue) = own {
            self.max_concurrency = queue.max_concurrency;
            self.max_queue_size = queue.max_size;
            self.queue_timeout_ms = queue.timeout_ms;
        }
    }
}

/// Converts a share of the machine to a share of the memory base, rounded to parts per million.
fn of_base(share: Ppm, base: Ppm) -> Ppm {
    let base = base.0.max(1);
    Ppm(share.0.saturating_mul(1_000_000).saturating_add(base / 2) / base)
}

/// Formats a CPU amount in the notation of `groups.d`.
#[must_use]
pub fn cpu_words(amount: CpuAmount) -> String {
    match amount {
        CpuAmount::OfMachine(share) => share.to_string(),
        CpuAmount::Cpus(cpus) => cpus.to_string(),
    }
}
