//! Man pages: one for each command, named as git names its own (commensal-lab-run(1)), and groups.toml(5). The
//! text comes from the help of each command, from the schema of groups files, and from the table of limits.

use super::amount;
use clap::Command;
use clap_mangen::Man;
use commensal_core::config::schema::schema;
use commensal_core::limit::LIMITS;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Adds a page for the command and each of its subcommands.
pub fn commands(command: &Command, files: &mut BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    files.insert(format!("man/{name}.1"), page(command)?);
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        commands(verb, files)?;
    }
    Ok(())
}

fn page(command: &Command) -> anyhow::Result<Vec<u8>> {
    let details = command.get_before_help().map(ToString::to_string).unwrap_or_default();
    let (mut text, mut status, mut examples) = (Vec::new(), Vec::new(), Vec::new());
    for paragraph in details.split("\n\n") {
        if let Some(example) = paragraph.strip_prefix("Example:") {
            examples.push(example.trim_start_matches([' ', '\n']));
        } else if paragraph.starts_with("Exit status") {
            status.push(paragraph.to_owned());
        } else if !paragraph.is_empty() {
            text.push(paragraph.to_owned());
        }
    }
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    text.insert(0, format!("{}.", about.trim_end_matches('.')));
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    page.extend(section("DESCRIPTION", &text).into_bytes());
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if !status.iter().any(|text| text.contains("2: ") || text.contains("127: ")) {
        status.push("0 after success, 2 after an error.".to_owned());
    }
    let examples = examples.iter().map(|example| format!(".PP\n.nf\n{}.fi\n", indented(example)));
    let rest = [
        section("EXIT STATUS", &status),
        format!(".SH FILES\n{}", files_of(command)),
        format!(".SH EXAMPLES\n{}", examples.collect::<String>()),
        also(command),
    ];
    page.extend(rest.concat().into_bytes());
    Ok(page)
}

fn section(name: &str, paragraphs: &[String]) -> String {
    let text = paragraphs.iter().map(|paragraph| format!(".PP\n{}", escaped(paragraph)));
    format!(".SH \"{name}\"\n{}", text.collect::<String>())
}

/// Text whose first characters and dashes are not troff's.
fn escaped(text: &str) -> String {
    let line = |line: &str| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        if line.starts_with(['.', '\'']) { format!("\\&{line}\n") } else { format!("{line}\n") }
    };
    text.lines().map(line).collect()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| escaped(&format!("    {}", line.trim_start()))).collect()
}

/// The files that a command reads or writes.
fn files_of(command: &Command) -> String {
    let has = |option: &str| command.get_arguments().any(|one| one.get_id() == option);
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut rows = Vec::new();
    if has("config") {
        rows.push((
            "/etc/commensal/groups.d/*.toml",
            "The groups of this machine, where --config names no others.",
        ));
    }
    rows.push((
        "/var/lib/commensal",
        "State of root's instance: the undo journals, the queues, the agent's socket, its audit log, and records. Other users have \
         $XDG_STATE_HOME/commensal; --state-dir names another folder.",
    ));
    if ["agent", "status", "top", "explain"].iter().any(|verb| name == format!("commensal-{verb}")) {
        rows.push(("/run/commensal/control.sock", "The socket that an agent shares with a group of users."));
    }
    if name == "commensal-lab-run" {
        rows.push((
            "run.json, run.html",
            "The record of the run and the page with its charts, where --out names no others.",
        ));
    }
    rows.iter().map(|(file, text)| format!(".TP\n.I {}{}", escaped(file), escaped(text))).collect()
}

/// The page of the command above, and that of the groups file.
fn also(command: &Command) -> String {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let above = name.rsplit_once('-').map(|(above, _)| above);
    let pages: Vec<String> = above
        .map(|above| format!(".BR {} (1)", above.replace('-', "\\-")))
        .into_iter()
        .chain([".BR groups.toml (5)".to_owned()])
        .collect();
    format!(".SH \"SEE ALSO\"\n{}\n", pages.join(",\n"))
}

/// The page of groups files.
pub fn groups_file() -> String {
    let schema = schema();
    let group = &schema["definitions"]["group"]["properties"];
    let (mut keys, mut members, mut agent) = (Vec::new(), Vec::new(), Vec::new());
    of_table("", group, &mut keys);
    of_table("", &group["match"]["items"]["properties"], &mut members);
    of_table("", &schema["properties"]["agent"]["properties"], &mut agent);
    let rows = |rows: &[(String, String)]| -> String {
        rows.iter().map(|(key, text)| format!(".TP\n.B {}{}", escaped(key), escaped(text))).collect()
    };
    let intro = "A groups file says which work on a machine must stay fast (online), which may wait (offline), and what each may use. \
                 It is TOML. All *.toml of a folder are one configuration. Unknown keys are errors; commensal config check reports \
                 all mistakes at once, with line and column.";
    let example = "[group.web]\nclass = \"online\"\nmatch = [{ systemd = \"nginx.service\" }]\n\n[group.etl]\nclass      = \
                   \"offline\"\ncpu.max    = \"50 %\"\nmemory.max = \"8 GiB\"\nmatch      = [{ docker-label = \"tier=batch\" }]\n";
    let mut page = format!(
        ".TH GROUPS.TOML 5\n.SH NAME\ngroups.toml \\- workload groups of commensal\n.SH SYNOPSIS\n.I \
         /etc/commensal/groups.d/*.toml\n{}",
        section("DESCRIPTION", &[intro.to_owned()])
    );
    let _ = write!(
        page,
        ".SH \"KEYS OF A GROUP\"\nIn a table \\fB[group.NAME]\\fR:\n{}.SH MEMBERS\nEach entry of \\fBmatch\\fR has one of these \
         keys:\n{}.SH \"THE AGENT\"\nIn the table \\fB[agent]\\fR:\n{}",
        rows(&keys),
        rows(&members),
        rows(&agent)
    );
    let amounts = "Sizes, rates and times have a unit, such as \"8 GiB\", \"100 MiB/s\" or \"10 min\". Per cent are of the machine.";
    page += &section("AMOUNTS", &[amounts.to_owned()]);
    let _ = write!(page, ".SH EXAMPLES\n.nf\n{}.fi\n", indented(example));
    page += ".SH FILES\n.TP\n.I /etc/commensal/groups.d/*.toml\nThe groups of this machine.\n.TP\n.I \
             /usr/share/commensal/groups.schema.json\nA JSON Schema of groups files, for editors.\n";
    page += ".SH \"SEE ALSO\"\n.BR commensal\\-config\\-check (1),\n.BR commensal\\-plan (1),\n.BR commensal\\-agent (1)\n";
    page
}

/// Adds the keys of a table in the schema, with what each means and which words or amounts it takes.
fn of_table(above: &str, properties: &Value, rows: &mut Vec<(String, String)>) {
    for (name, value) in properties.as_object().into_iter().flatten() {
        let key = format!("{above}{name}");
        match value["description"].as_str() {
            Some(text) => rows.push((key.clone(), format!("{text}{}", takes(&key, value)))),
            None => of_table(&format!("{key}."), &value["properties"], rows),
        }
        // A table that may also be left empty, as processes are.
        if value["description"].is_string() && value["properties"].is_object() {
            of_table(&format!("{key}."), &value["properties"], rows);
        }
    }
}

/// Which words or amounts a key takes, as a sentence.
fn takes(key: &str, value: &Value) -> String {
    if let Some(row) = LIMITS.iter().find(|row| row.key == key) {
        return format!(" Takes {}.", amount(row.unit).replace('`', ""));
    }
    let words =
        value["enum"].as_array().map(|words| words.iter().map(ToString::to_string).collect::<Vec<_>>());
    words.map_or(String::new(), |words| format!(" Takes {}.", words.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> BTreeMap<String, Vec<u8>> {
        let mut command = commensal::cli::command().disable_help_subcommand(true);
        command.build();
        let mut files = BTreeMap::new();
        commands(&command, &mut files).unwrap();
        files
    }

    /// A verb without an example in its help would have an empty section.
    #[test]
    fn every_page_has_every_section() {
        let pages = pages();
        assert!(pages.len() > 40, "{}", pages.len());
        for (name, page) in pages {
            let page = String::from_utf8(page).unwrap();
            for section in
                ["NAME", "SYNOPSIS", "\"DESCRIPTION\"", "OPTIONS", "\"EXIT STATUS\"", "FILES", "EXAMPLES"]
            {
                let (_, rest) = page
                    .split_once(&format!("\n.SH {section}\n"))
                    .unwrap_or_else(|| panic!("{name}: {section}"));
                assert!(!rest.starts_with(".SH"), "{name}: {section} is empty");
            }
            let (_, examples) = page.split_once("\n.SH EXAMPLES\n").unwrap();
            assert!(examples.contains("\n    commensal "), "{name}: {examples}");
        }
    }

    #[test]
    fn the_page_of_groups_files_has_every_key() {
        let page = groups_file().replace('\\', "");
        for row in LIMITS {
            assert!(page.contains(&format!("\n.B {}\n", row.key)), "{}", row.key);
        }
        for key in
            ["class", "match", "systemd", "process.exe", "queue.max-concurrency", "headroom", "takeover"]
        {
            assert!(page.contains(&format!("\n.B {key}\n")), "{key}\n{page}");
        }
    }
}
