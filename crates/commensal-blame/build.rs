//! Compiles the BPF program when the feature asks for it.

#[cfg(not(feature = "bpf"))]
fn main() {}

#[cfg(feature = "bpf")]
fn main() -> Result<(), String> {
    use std::path::PathBuf;
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-env-changed=BPF_CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let clang = clang().ok_or(
        "feature bpf: no clang 18 or newer found; apt-get install clang-19, name one in BPF_CLANG, or build without the feature",
    )?;
    let built = libbpf_cargo::SkeletonBuilder::new()
        .source("src/bpf/blame.bpf.c")
        .clang(&clang)
        .clang_args(["-mcpu=v3", "-O2", "-Wall", "-Werror"])
        .build_and_generate(out.join("blame.skel.rs"));
    built.map_err(|error| format!("feature bpf: {clang}: {error:?}"))
}

/// The first one that is new enough.
#[cfg(feature = "bpf")]
#[expect(clippy::disallowed_methods, reason = "a compiler is asked for its version")]
fn clang() -> Option<String> {
    println!("cargo:rerun-if-env-changed=PATH");
    let named = std::env::var("BPF_CLANG").ok();
    let known = (18..=24).rev().map(|version| format!("clang-{version}")).chain(["clang".to_owned()]);
    let candidates: Vec<String> = named.map_or_else(|| known.collect(), |one| vec![one]);
    candidates.into_iter().find(|name| {
        let Ok(output) = std::process::Command::new(name).arg("--version").output() else { return false };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version =
            text.split("version ").nth(1).and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        version.is_some_and(|version| version >= 18)
    })
}
