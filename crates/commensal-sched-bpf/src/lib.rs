//! The scheduler's BPF program, as `cargo xtask gen bpf` has compiled it from `bpf/sched`; GPL-2.0-only, which is why it has a
//! crate of its own. Nothing but bytes for the kernel.
#![forbid(unsafe_code)]
#![no_std]

/// An ELF object for BPF, little-endian.
pub static OBJECT: &[u8] = include_bytes!("../commensal.bpf.o");
