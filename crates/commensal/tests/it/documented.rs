//! What the documents show: the program takes every command line, `config check` accepts every file, and the commands that
//! need no root are run.

use crate::support::{Program, text};
use clap::error::ErrorKind;
use commensal::cli::{self, Cli};
use commensal_testkit::docs::{Block, CommandLine, Document, Origin, arguments, documents, top};
use std::collections::BTreeSet;
use std::path::Path;

/// Commands that are run here, and the statuses with which they may exit.
const RUN: [(&str, &[i32]); 12] = [
    ("completions", &[0]),
    ("config check", &[0, 1]),
    ("config schema", &[0]),
    ("density classify", &[0]),
    ("density list", &[0]),
    ("doctor", &[0, 1]),
    ("init", &[0, 1]),
    ("journal check", &[0]),
    ("journal show", &[0]),
    ("lab list", &[0]),
    ("lab show", &[0]),
    ("plan", &[0, 1]),
];

/// Commands whose output does not depend on the machine, so that it is what the document shows.
const SAME_EVERYWHERE: [&str; 3] = ["config check", "density classify", "lab list"];

/// Commands that are not run here, why, and the file with the tests that run them.
const ELSEWHERE: [(&str, &str, &str); 23] = [
    ("agent canary", "it needs groups in force, and minutes", "canaries.rs"),
    ("agent", "it runs until it is stopped", "agent.rs"),
    ("apply", "it changes settings", "on_machine.rs"),
    ("blame", "it needs BPF", "blame.rs"),
    ("density pin", "it needs virtual machines", "density/vms.rs"),
    ("density plan", "it needs a record, or measures", "density.rs"),
    ("density run", "it measures", "density.rs"),
    ("doctor --prove", "it takes up to a minute", "prove.rs"),
    ("explain", "it needs an agent", "agent.rs"),
    ("guard", "it runs until it is stopped", "agent.rs"),
    ("lab diff", "it needs records", "history.rs"),
    ("lab doctor", "it measures", "lab.rs"),
    ("lab load", "it needs a service", "load.rs"),
    ("lab report", "it needs a record", "report.rs"),
    ("lab run", "it measures", "measure/lab.rs"),
    ("queue", "it needs groups in force", "queue/program.rs"),
    ("restore", "it changes settings", "in_force.rs"),
    ("run", "it makes cgroups", "limits.rs"),
    ("sched load", "it needs sched_ext", "guest/sched.rs"),
    ("sched status", "it needs sched_ext", "guest/sched.rs"),
    ("sched unload", "it needs sched_ext", "guest/sched.rs"),
    ("status", "it needs groups in force", "in_force.rs"),
    ("top", "it needs an agent", "terminals.rs"),
];

/// The arguments of the program in each command of a line. In `commensal status | top` the second is the program's as well.
fn ours(line: &CommandLine) -> Vec<Vec<String>> {
    let program = cli::command();
    let mut found: Vec<Vec<String>> = Vec::new();
    for command in &line.commands {
        if let Some(words) = arguments("commensal", command) {
            found.push(words.to_vec());
        } else if !found.is_empty() && program.find_subcommand(&command[0]).is_some() {
            found.push(command.clone());
        }
    }
    if line.origin == Origin::Text {
        for word in found.iter_mut().flatten() {
            *word = word.trim_matches(['[', ']']).trim_end_matches("...").to_owned();
        }
        found.iter_mut().for_each(|words| words.retain(|word| word != "…"));
    }
    found
}

/// Text names commands without all of their arguments.
fn is_unfinished(error: &clap::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    )
}

fn parsed(words: &[String]) -> Result<Cli, clap::Error> {
    cli::parse([&["commensal".to_owned()], words].concat())
}

#[test]
fn the_program_takes_every_command_line() {
    let (mut whole, mut named, mut wrong) = (0, 0, Vec::new());
    for line in documents().iter().flat_map(Document::command_lines) {
        for words in ours(&line) {
            match parsed(&words) {
                Ok(_) => whole += 1,
                Err(error) if line.origin == Origin::Text && is_unfinished(&error) => named += 1,
                Err(error) => wrong.push(format!("{line}\n{error}")),
            }
        }
    }
    println!("{whole} command lines, {named} names of commands");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(whole >= 80 && named >= 20, "the documents have more: {whole}, {named}");
}

/// The first paragraph says what the verb does, the second has an example of it, and the options of all verbs are the last.
#[test]
fn the_help_of_every_verb_begins_with_an_example() {
    fn look(command: &clap::Command, verbs: &mut usize) {
        for verb in command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help") {
            let name = verb.get_display_name().unwrap().replace('-', " ");
            let help = verb.clone().render_help().to_string();
            let paragraphs: Vec<&str> = help.split("\n\n").collect();
            let example =
                paragraphs[1].strip_prefix("Example: commensal ").unwrap_or_else(|| panic!("{help}"));
            let words: Vec<String> =
                example.split(' ').take_while(|word| !word.starts_with('>')).map(str::to_owned).collect();
            let of_verb = format!("commensal {}", words.join(" "));
            assert!(of_verb.starts_with(&name), "{name}: {example}");
            assert!(parsed(&words).is_ok(), "{name}: {example}");
            let (own, shared) =
                help.split_once("\nOptions of every command:\n").unwrap_or_else(|| panic!("{help}"));
            assert!(own.contains("\nOptions:\n") && !shared.contains("\n\n"), "{help}");
            *verbs += 1;
            look(verb, verbs);
        }
    }
    let mut program = cli::command();
    program.build();
    let mut verbs = 0;
    look(&program, &mut verbs);
    assert!(verbs >= 45, "{verbs}");
}

/// The longest entry of a table with which a command begins.
fn entry<'a, T>(table: &'a [T], begins: impl Fn(&T) -> &str, command: &str) -> Option<&'a T> {
    let fits = |row: &&T| command == begins(row) || command.starts_with(&format!("{} ", begins(row)));
    table.iter().filter(fits).max_by_key(|row| begins(row).len())
}

#[test]
fn commands_that_need_no_root_do_what_the_documents_show() {
    let program = Program::new("documented");
    let (mut run, mut compared, mut left) = (BTreeSet::new(), 0, 0);
    for document in documents() {
        let files = groups_files(&document);
        for line in document.command_lines().iter().filter(|line| line.origin != Origin::Text) {
            for words in ours(line) {
                let command = words.join(" ");
                let here = entry(&RUN, |row| row.0, &command);
                let elsewhere = entry(&ELSEWHERE, |row| row.0, &command);
                let longer = |row: &&(&str, &str, &str)| here.is_none_or(|here| row.0.len() > here.0.len());
                if elsewhere.filter(longer).is_some() || command.starts_with("--cgroup-root ") {
                    left += 1;
                    continue;
                }
                // A hidden command that only helps with an example.
                if command.starts_with("workload ") {
                    continue;
                }
                let (name, statuses) = here.unwrap_or_else(|| panic!("{line}: neither run nor listed"));
                let file = files.iter().rfind(|block| block.line < line.line);
                program.groups(file.map_or("[group.web]\nclass = \"online\"\n", |block| &block.text));
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let output = program.run(&words);
                let said = text(&output.stdout);
                let status = output.status.code().unwrap();
                assert!(statuses.contains(&status), "{line}\n{status}\n{said}{}", text(&output.stderr));
                if SAME_EVERYWHERE.contains(name) && !line.output.is_empty() {
                    assert_eq!(said, line.output, "{line}");
                    compared += 1;
                }
                run.insert(command);
            }
        }
    }
    println!(
        "{} commands are run, the output of {compared} is compared; {left} are in other tests",
        run.len()
    );
    assert!(run.len() >= 5 && compared >= 2, "{run:?} {compared}");
}

#[test]
fn tests_that_run_the_other_commands_exist() {
    for (command, why, file) in ELSEWHERE {
        let tests = std::fs::read_to_string(format!("tests/it/{file}")).unwrap();
        let verb = command.split(' ').next_back().unwrap();
        assert!(tests.contains(&format!("\"{verb}\"")), "{file} does not run `{command}` ({why})");
    }
}

fn is_groups_file(block: &Block) -> bool {
    let first = block.text.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
    block.language == "toml" && (first.starts_with("[group.") || first.starts_with("[agent]"))
}

fn groups_files(document: &Document) -> Vec<Block> {
    document.blocks().into_iter().filter(is_groups_file).collect()
}

/// The rest of a ladder.
const LADDER: &str =
    "[ladder]\ncells = [1, 2]\n[[load]]\nname = \"spin\"\nkind = \"spin\"\nwork = 500\nconcurrency = [1]\n";

/// What completes a part of a file: how the part begins, and what comes before and after it.
const PARTS: [(&str, &str, &str); 4] = [
    ("match = [", "[group.example]\nclass = \"offline\"\n", ""),
    ("[[metric]]", "based-on = \"clickhouse-vs-stress\"\n", ""),
    ("[[warning]]", "[cell]\nvcpu = 1\n", LADDER),
    ("[cell]", "", LADDER),
];

/// A file with mistakes stands above the command that finds them.
#[test]
fn every_file_passes_the_check() {
    let program = Program::new("documented-files");
    let (mut files, mut wrong) = (0, Vec::new());
    let mut check = |name: &str, text: &str, status: i32, want: &str| {
        program.groups(text);
        let args: &[&str] = match text.starts_with("[[server]]") {
            true => &["density", "classify", "--fleet", "groups.toml"],
            false => &["config", "check", "groups.toml"],
        };
        let output = program.run(args);
        let said = self::text(&output.stdout) + &self::text(&output.stderr);
        if output.status.code() != Some(status) || !said.contains(want) {
            wrong.push(format!("{name}: status {:?}\n{said}", output.status.code()));
        }
        files += 1;
    };
    for document in documents() {
        let blocks = document.blocks();
        for (block, next) in blocks.iter().zip(blocks.iter().skip(1).map(Some).chain([None])) {
            let name = format!("{}:{}", document.name, block.line);
            if let Some(output) = block.text.strip_prefix("$ commensal init\n") {
                check(&name, output, 0, "no mistakes");
            }
            if block.language != "toml" {
                continue;
            }
            let part = PARTS.iter().find(|part| block.text.starts_with(part.0));
            let (_, before, after) = part.unwrap_or(&("", "", ""));
            let found =
                next.and_then(|next| next.text.strip_prefix("$ commensal config check groups.toml\n"));
            let found = found.filter(|output| output.starts_with("groups.toml:"));
            let whole = format!("{before}{}{after}", block.text);
            check(&name, &whole, i32::from(found.is_some()), found.unwrap_or_default());
        }
    }
    println!("{files} files");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(files >= 15, "the documents show more files: {files}");
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|one| one.is_alphanumeric() || [' ', '-', '_'].contains(one));
    kept.flat_map(char::to_lowercase).map(|one| if one == ' ' { '-' } else { one }).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let all = documents();
    let anchors_of = |name: &str| {
        let document = all.iter().find(|one| one.name == name)?;
        Some(document.headings().into_iter().map(anchor).collect::<BTreeSet<String>>())
    };
    let (mut links, mut wrong) = (0, Vec::new());
    for document in &all {
        for (line, target) in document.links() {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let folder = Path::new(&document.name).parent().unwrap();
            let path = if file.is_empty() { document.name.clone() } else { within(&folder.join(file)) };
            let there = top().join(&path).exists();
            let known = heading.is_empty() || anchors_of(&path).is_none_or(|known| known.contains(heading));
            if !there || !known {
                wrong.push(format!("{}:{line}: {target}", document.name));
            }
            links += 1;
        }
    }
    println!("{links} links");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(links >= 100, "{links}");
}

/// A path without `..`.
fn within(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.iter().map(|part| part.to_str().unwrap()) {
        match part {
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}
