//! commensal's sched_ext scheduler as a compiled BPF program. `cargo xtask gen bpf` compiles it from `bpf/sched`. The
//! program is GPL-2.0-only, so it has this crate of its own, which contains nothing else.
#![forbid(unsafe_code)]
#![no_std]

/// The little-endian ELF object.
pub static OBJECT: &[u8] = include_bytes!("../commensal.bpf.o");
