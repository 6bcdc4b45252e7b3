//! The probe's programs, compiled for this machine, in a kernel that `replay/played.h` plays: it hides switches and refuses storage for
//! tasks at will, which no test can make a real kernel do. `replay/sequences.c` has the sequences of events, each with what must come out.

use std::path::Path;
use std::process::Command;

/// Headers of libbpf that the programs include.
const HEADERS: [&str; 3] = ["bpf_helpers.h", "bpf_core_read.h", "bpf_tracing.h"];

// promise 31
#[test]
fn sequences_that_a_kernel_hides() {
    let test = "sequences_that_a_kernel_hides";
    let sources = Path::new("../../bpf");
    if !sources.exists() {
        println!("skipped: {test}: the sources of the probe are not beside this crate");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sequences");
    std::fs::create_dir(folder.path().join("bpf")).unwrap();
    for name in HEADERS {
        std::fs::write(folder.path().join("bpf").join(name), include_str!("replay/helpers.h")).unwrap();
    }
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-fno-strict-aliasing", "-w", "-I"]).arg(folder.path());
    compiler.arg("-I").arg(sources).arg("tests/it/replay/sequences.c").arg("-o").arg(&program);
    let output = match compiler.output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {test}: no C compiler: {error}");
            return;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = Command::new(&program).output().unwrap().stdout;
    let names = String::from_utf8(names).unwrap();
    let mut wrong = Vec::new();
    for name in names.lines() {
        let output = Command::new(&program).arg(name).output().unwrap();
        let text = format!("{name}:\n{}", String::from_utf8_lossy(&output.stdout));
        println!("{text}");
        if !output.status.success() {
            wrong.push(text);
        }
    }
    assert!(names.lines().count() > 0 && wrong.is_empty(), "{}", wrong.join("\n"));
}
