//! Compiles the BPF program when the feature asks for it.

#[cfg(feature = "bpf")]
#[expect(clippy::disallowed_methods, reason = "a compiler is asked for its version")]
#[path = "../commensal-blame/clang.rs"]
mod clang;

#[cfg(not(feature = "bpf"))]
fn main() {}

#[cfg(feature = "bpf")]
fn main() -> Result<(), String> {
    use std::path::PathBuf;
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-env-changed=BPF_CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    println!("cargo:rerun-if-env-changed=PATH");
    let clang = clang::clang().ok_or(
        "feature bpf: no clang 18 or newer found; apt-get install clang-19, name one in BPF_CLANG, or build without the feature",
    )?;
    let built = libbpf_cargo::SkeletonBuilder::new()
        .source("src/bpf/commensal.bpf.c")
        .clang(&clang)
        .clang_args(["-mcpu=v3", "-O2", "-Wall", "-Werror"])
        .build_and_generate(out.join("sched.skel.rs"));
    built.map_err(|error| format!("feature bpf: {clang}: {error:?}"))
}
