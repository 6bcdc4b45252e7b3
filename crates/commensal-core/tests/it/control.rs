//! The controllers from outside: properties, closed loops on a toy machine, and defects of peers.

mod derived;
mod peers;
mod properties;
mod simulation;

use commensal_core::control::Explanation;
use commensal_core::topology::{Machine, Topology};
use commensal_core::units::Bytes;

/// `nodes` nodes of `cores` cores with `threads` threads each; an LLC for every four cores of a node.
fn topology(nodes: u32, cores: u32, threads: u32) -> Topology {
    let all = nodes * cores;
    let mut topology = Machine::simple(all * threads, Bytes(1 << 30)).topology;
    for cpu in &mut topology.cpus {
        let core = cpu.id % all;
        let of = |core: u32| (0..threads).map(move |thread| core + thread * all);
        let (node, first) = (core / cores, core % cores / 4 * 4);
        cpu.siblings = of(core).collect();
        cpu.llc = Some((first..(first + 4).min(cores)).flat_map(|core| of(node * cores + core)).collect());
        cpu.node = Some(node);
    }
    topology
}

/// Every input has a name, a unit or none, and a finite value; a formula can be evaluated, and what it gives is what
/// the explanation says of it.
fn explained(why: &Explanation) -> bool {
    let agrees = |(name, value): (&str, f64)| why.value(name).is_none_or(|told| near(told, value));
    !why.rule.is_empty()
        && why.inputs.iter().all(|input| !input.name.is_empty() && input.value.is_finite())
        && (why.formula.is_empty() || why.values().is_some_and(|values| values.into_iter().all(agrees)))
}

/// Whether the formula gives `value`.
fn derives(why: &Explanation, value: f64) -> bool {
    explained(why) && why.derive().is_some_and(|derived| near(derived, value))
}

/// Equal, but for the order of additions.
fn near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(other.abs()).max(1.0)
}
