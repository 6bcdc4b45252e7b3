//! `config check` and `config schema`: on any machine, as any user.

use crate::support::Program;
use commensal_core::config::{AgentKeys, parse_file};
use std::process::Command;

const GOOD: &str = "[group.web]\nclass = \"online\"\n";

/// Every mistake of every file is reported, in the order of the files, and the worst file decides the status.
#[test]
fn statuses_and_mistakes_of_several_files() {
    let program = Program::new("check");
    let write = |name: &str, text: &str| std::fs::write(program.path(name), text).unwrap();
    write("good.toml", GOOD);
    write("bad.toml", "[group.etl]\nclas = \"offline\"\ncpu.mxa = \"50 %\"\n");
    write("deploy.yaml", "# groups\ngroup:\n  etl:\n    class: offline\n");
    write("groups.json", "{ \"group\": { \"etl\": { \"class\": \"offline\" } } }");
    write("lab.toml", "arms = [\"baseline\", \"contendd\"]\n[design]\nround = 3\n");
    write("ladder.toml", "[cell]\nvcpu = 0\n");
    for (files, status, want) in [
        (vec!["good.toml"], 0, vec!["good.toml: 1 group, no mistakes"]),
        (
            vec!["bad.toml", "good.toml"],
            1,
            vec![
                "bad.toml:1:8: group \"etl\" has no class",
                "bad.toml:2:1: unknown key \"clas\"; did you mean \"class\"?",
                "bad.toml:3:5: unknown key \"cpu.mxa\"; did you mean \"cpu.max\"?",
                "good.toml: 1 group, no mistakes",
            ],
        ),
        (vec!["deploy.yaml"], 1, vec!["deploy.yaml:2:1: this is YAML, but commensal's files are TOML"]),
        (vec!["groups.json"], 1, vec!["groups.json:1:1: this is JSON, but commensal's files are TOML"]),
        (vec!["lab.toml"], 1, vec!["lab.toml:1:21: ", "lab.toml:3:1: unknown key \"design.round\""]),
        (vec!["ladder.toml"], 1, vec!["ladder.toml:2:8: cell.vcpu = 0", "ladder.cells is missing"]),
        (vec!["bad.toml", "missing.toml", "good.toml"], 2, vec!["bad.toml:2:1: ", "good.toml: 1 group"]),
    ] {
        let (out, err) = program.expect(status, &[&["config", "check"][..], &files].concat());
        assert!(want.iter().all(|line| out.contains(line)), "{files:?}: {out}{err}");
        let lines = if files[0].ends_with(".yaml") || files[0].ends_with(".json") { 1 } else { want.len() };
        assert!(out.lines().count() >= lines, "{out}");
        assert_eq!(err.contains("missing.toml"), status == 2, "{err}");
        let (json, _) = program.expect(status, &[&["config", "check", "--json"][..], &files].concat());
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let found = json["files"].as_array().unwrap();
        assert_eq!(found.len(), files.len(), "{json}");
        let told = found.iter().flat_map(|file| file["mistakes"].as_array().into_iter().flatten());
        let told: Vec<String> = told
            .map(|one| {
                let text = |key: &str| one[key].to_string().trim_matches('"').to_owned();
                format!(
                    "{}:{}:{}: {}",
                    text("file"),
                    text("line"),
                    text("column"),
                    one["message"].as_str().unwrap()
                )
            })
            .collect();
        let lines: Vec<&str> = out.lines().filter(|line| !line.ends_with(", no mistakes")).collect();
        assert_eq!(told, lines);
    }
    assert!(!program.state().exists(), "the state directory was created");
}

/// The files of a folder are one configuration; files that are named are not.
#[test]
fn a_folder_is_checked_as_a_whole() {
    let program = Program::new("check-folder");
    let folder = program.path("groups.d");
    std::fs::create_dir(&folder).unwrap();
    for name in ["a.toml", "b.toml"] {
        std::fs::write(folder.join(name), GOOD).unwrap();
    }
    let (out, _) = program.expect(1, &["config", "check", "groups.d"]);
    assert_eq!(out, "groups.d/b.toml:1:8: group \"web\" is already defined at groups.d/a.toml:1:8\n");
    program.expect(0, &["config", "check", "groups.d/a.toml", "groups.d/b.toml"]);
}

/// A build container has no home directory, and its files belong to anybody.
#[test]
fn without_an_environment() {
    let program = Program::new("check-bare");
    let file = program.groups(GOOD);
    for args in [vec!["check", file.to_str().unwrap()], vec!["schema"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_commensal"))
            .arg("config")
            .args(args)
            .env_clear()
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

/// The file of the packages; its lines of TOML are comments that begin without a space.
#[test]
fn the_packaged_file_does_nothing_until_it_is_edited() {
    let text = include_str!("../../../../packaging/groups.toml");
    let packaged = parse_file("groups.toml", text).unwrap();
    assert_eq!((packaged.groups.len(), packaged.agent), (0, Some(AgentKeys::default())));
    let edit =
        |line: &'static str| line.strip_prefix('#').filter(|code| !code.starts_with(' ')).unwrap_or(line);
    let edited: String = text.lines().map(|line| edit(line).to_owned() + "\n").collect();
    assert_eq!(parse_file("groups.toml", &edited).unwrap().groups.len(), 2);
}
