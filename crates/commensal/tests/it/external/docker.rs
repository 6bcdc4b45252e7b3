//! Both sides in containers of a real engine, started for this test alone.

use crate::support::{Program, can_write_cgroups, text};
use commensal_lab::record::Run;
use commensal_testkit::Engine;
use std::path::Path;

const EXPERIMENT: &str = r#"
arms = ["baseline", "baseline2", "contended", "isolated"]
[design]
rounds = 1
block  = "500 ms"
warmup = "200 ms"
[online]
command = ["docker", "run", "--rm", "--name", "commensal-test-online", "--network", "host", "--cgroup-parent", "{online-group}", "commensal-test:1", "/bin/busybox", "httpd", "-f", "-p", "127.0.0.1:{port}", "-h", "/www"]
ready   = { http = "/index.html" }
cleanup = [["docker", "rm", "-f", "commensal-test-online"]]
[load]
http = "/index.html"
rate = 100
[offline]
command = ["docker", "run", "--rm", "--name", "commensal-test-offline", "--network", "none", "--cgroup-parent", "{offline-group}", "commensal-test:1", "/bin/sh", "-c", "while :; do :; done"]
cleanup = [["docker", "rm", "-f", "commensal-test-offline"]]
cpus    = 1
[[requires]]
program = "docker"
package = "docker.io"
version = ["--version"]
"#;

// promise 39
#[test]
fn both_sides_in_containers() {
    let test = "both_sides_in_containers";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("docker");
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = Engine::start(test, dir.path()) else { return };
    std::fs::write(program.path("mine.toml"), EXPERIMENT).unwrap();
    // A container of a killed run has the name already.
    assert!(engine.docker(&["create", "--name", "commensal-test-online", "commensal-test:1", "/bin/sh"]).0);
    let mut command = program.command(&["lab", "run", "./mine.toml", "--no-blame"]);
    let output = command.env("DOCKER_HOST", &engine.host).output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1 | 3 | 4)), "{said}");
    let run = Run::from_json(&std::fs::read(program.path("run.json")).unwrap()).unwrap();
    assert_eq!(run.blocks.len(), 4, "{said}");
    for block in &run.blocks {
        // What containers use is counted in the groups of their side.
        assert!(block.cpu.online.is_some_and(|cpus| cpus > 0.0), "{block:?}");
        match block.arm.as_str() {
            "contended" => assert!(block.cpu.offline.is_some_and(|cpus| cpus > 0.01), "{block:?}"),
            // It yields to whatever else runs on this machine, and may get next to nothing.
            "isolated" => assert!(block.cpu.offline.is_some(), "{block:?}"),
            _ => assert!(block.cpu.offline.is_none_or(|cpus| cpus <= 0.01), "{block:?}"),
        }
    }
    assert!(run.programs[0].starts_with("docker: Docker version"), "{:?}", run.programs);
    let (_, left) = engine.docker(&["ps", "-a", "-q"]);
    assert_eq!(left, "", "no container is left");
    crate::bad_input::assert_nothing_left(&program.state());
    // The engine made the groups of both sides in every hierarchy; they went with the run.
    let record = run.commands.join(" ");
    assert!(record.contains("docker run"), "{record}");
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let cgroups =
        mounts.lines().filter(|line| line.contains(" cgroup")).filter_map(|line| line.split(' ').nth(1));
    for mount in cgroups {
        let names = std::fs::read_dir(mount).into_iter().flatten().flatten();
        for name in names.map(|entry| entry.file_name().to_string_lossy().into_owned()) {
            let pid = name.strip_prefix("commensal-lab-").and_then(|rest| rest.split('-').next());
            let alive = pid.is_none_or(|pid| Path::new(&format!("/proc/{pid}")).exists());
            assert!(alive, "{mount}/{name} is left");
        }
    }
}
