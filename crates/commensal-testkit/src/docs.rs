//! The commands and the files that the documents of the source tree show: README.md, CONTRIBUTING.md, and everything
//! below docs/ except the decisions, which describe the past.

use std::fmt;
use std::path::{Path, PathBuf};

/// A document, relative to the top of the tree, and its text.
#[derive(Debug)]
pub struct Document {
    /// Its path, such as `docs/README.md`.
    pub name: String,
    text: String,
}

/// A block of code.
#[derive(Debug)]
pub struct Block {
    /// Line of the document at which its text begins, from 1.
    pub line: usize,
    /// The word behind the fence; empty for an indented block and a fence without a word.
    pub language: String,
    /// Its lines, without the indentation of the block.
    pub text: String,
}

/// A command line. Pipes and lists are separate commands of one line; comments and redirections are left out.
#[derive(Debug)]
pub struct CommandLine {
    /// Name of the document.
    pub document: String,
    /// Line of the document, from 1.
    pub line: usize,
    /// The words of each command.
    pub commands: Vec<Vec<String>>,
    /// What the document shows as its output; empty if nothing.
    pub output: String,
    /// Where it stands.
    pub origin: Origin,
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commands: Vec<String> = self.commands.iter().map(|words| words.join(" ")).collect();
        write!(f, "{}:{}: {}", self.document, self.line, commands.join(" | "))
    }
}

/// Where a command line stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// In a block, to be typed as root: behind `# `.
    Root,
    /// In a block, to be typed by anybody: behind `$ `.
    User,
    /// In a block without prompts.
    Script,
    /// In the text, where arguments may be left out.
    Text,
}

/// The top of the source tree. Tests run in the folder of their package.
///
/// # Panics
/// The test runs somewhere else.
#[must_use]
pub fn top() -> PathBuf {
    let here = std::env::current_dir().expect("a test has a current folder");
    let top = here.ancestors().find(|folder| folder.join("docs/README.md").exists());
    top.expect("the test runs inside the source tree").to_owned()
}

/// Every document, in the order of their names.
///
/// # Panics
/// A document cannot be read.
#[must_use]
pub fn documents() -> Vec<Document> {
    let top = top();
    let mut names = vec!["CONTRIBUTING.md".to_owned(), "README.md".to_owned()];
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(top.join(&folder)).expect("a folder of documents").flatten() {
            let name = format!("{folder}/{}", entry.file_name().display());
            match entry.path() {
                path if path.is_dir() && !name.ends_with("/decisions") => folders.push(name),
                path if path.extension().is_some_and(|ending| ending == "md") => names.push(name),
                _ => {}
            }
        }
    }
    names.sort();
    let read = |name: String| Document { text: read(&top.join(&name)), name };
    names.into_iter().map(read).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl Document {
    /// A document that is not in the tree.
    #[must_use]
    pub fn new(name: &str, text: &str) -> Document {
        Document { name: name.to_owned(), text: text.to_owned() }
    }

    /// The blocks of code, in order.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        self.parts().0
    }

    /// The command lines in blocks and in the text, in no particular order.
    #[must_use]
    pub fn command_lines(&self) -> Vec<CommandLine> {
        let (blocks, rest) = self.parts();
        let mut lines: Vec<CommandLine> = blocks.iter().flat_map(|block| self.in_block(block)).collect();
        for (number, text) in rest {
            // The odd parts are between backticks. A table escapes its pipes.
            for span in text.split('`').skip(1).step_by(2) {
                let commands = split(&span.replace("\\|", "|"), false);
                let document = self.name.clone();
                let (line, output) = (number, String::new());
                lines.push(CommandLine { document, line, commands, output, origin: Origin::Text });
            }
        }
        lines
    }

    /// The headings, without their marks.
    #[must_use]
    pub fn headings(&self) -> Vec<&str> {
        let lines = self.parts().1.into_iter().filter(|(_, line)| line.starts_with('#'));
        lines.map(|(_, line)| line.trim_start_matches('#').trim()).collect()
    }

    /// The links to files of the tree and to headings, each with its line.
    #[must_use]
    pub fn links(&self) -> Vec<(usize, &str)> {
        let mut links = Vec::new();
        for (number, line) in self.parts().1 {
            for text in line.split('`').step_by(2) {
                let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
                links.extend(targets.filter(|target| !target.contains("://")).map(|target| (number, target)));
            }
        }
        links
    }

    /// The blocks, and all other lines with their numbers.
    fn parts(&self) -> (Vec<Block>, Vec<(usize, &str)>) {
        let (mut blocks, mut rest): (Vec<Block>, Vec<(usize, &str)>) = (Vec::new(), Vec::new());
        // The fence of the block that is open, and how far it is indented.
        let mut open: Option<usize> = None;
        // Whether an indented block may begin or go on here.
        let mut may_indent = false;
        let mut indented = false;
        for (number, line) in (1..).zip(self.text.lines()) {
            let code = line.trim_start();
            let indent = line.len() - code.len();
            if let Some(fence) = open {
                if code.starts_with("```") {
                    open = None;
                } else if let Some(block) = blocks.last_mut() {
                    block.text += line.get(fence.min(indent)..).unwrap_or_default();
                    block.text.push('\n');
                }
            } else if let Some(language) = code.strip_prefix("```") {
                open = Some(indent);
                let language = language.trim().to_owned();
                blocks.push(Block { line: number + 1, language, text: String::new() });
                indented = false;
            } else if indent >= 4 && (may_indent || indented) {
                if !indented {
                    blocks.push(Block { line: number, language: String::new(), text: String::new() });
                }
                if let Some(block) = blocks.last_mut() {
                    block.text += &line[4..];
                    block.text.push('\n');
                }
                indented = true;
            } else {
                indented = false;
                rest.push((number, line));
            }
            may_indent = code.is_empty();
        }
        (blocks, rest)
    }

    fn in_block(&self, block: &Block) -> Vec<CommandLine> {
        let prompts = block.language == "console";
        if !prompts && !["sh", "", "ini"].contains(&block.language.as_str()) {
            return Vec::new();
        }
        // Number, origin, command and output of each.
        let mut found: Vec<(usize, Origin, String, String)> = Vec::new();
        for (number, line) in (block.line..).zip(block.text.lines()) {
            let (origin, command) = match line.split_at_checked(2) {
                Some(("# ", command)) if prompts => (Origin::Root, command),
                Some(("$ ", command)) if prompts => (Origin::User, command),
                _ => (Origin::Script, line.strip_prefix("ExecStart=").unwrap_or(line)),
            };
            match found.last_mut() {
                Some((.., before, _)) if before.ends_with('\\') => {
                    before.pop();
                    *before += command;
                }
                Some((.., before, _)) if before.ends_with('|') => *before += command,
                Some((.., output)) if prompts && origin == Origin::Script => *output += &format!("{line}\n"),
                None if prompts && origin == Origin::Script => {}
                _ => found.push((number, origin, command.to_owned(), String::new())),
            }
        }
        let line = |(number, origin, command, output): (usize, Origin, String, String)| CommandLine {
            document: self.name.clone(),
            line: number,
            commands: split(&command, prompts),
            output,
            origin,
        };
        found.into_iter().map(line).collect()
    }
}

/// Splits a line as a shell does, without expansions. With `remarks`, the text after two spaces is a remark about the line,
/// unless it begins with an option.
fn split(line: &str, remarks: bool) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let (mut word, mut quote, mut begun) = (String::new(), None, false);
    let mut rest = line.chars().peekable();
    let end = |word: &mut String, begun: &mut bool, commands: &mut Vec<Vec<String>>| {
        let done = std::mem::take(word);
        let is_redirection =
            done.trim_start_matches(|one: char| one.is_ascii_digit()).starts_with(['<', '>']);
        if std::mem::take(begun) && !is_redirection {
            commands.last_mut().expect("there is always one").push(done);
        }
    };
    while let Some(one) = rest.next() {
        match (quote, one) {
            (Some(mark), _) if mark == one => quote = None,
            (Some(_), _) => word.push(one),
            (None, '\'' | '"') => (quote, begun) = (Some(one), true),
            (None, '#') if !begun => break,
            (None, ' ') => {
                end(&mut word, &mut begun, &mut commands);
                let mut spaces = 1;
                while rest.next_if_eq(&' ').is_some() {
                    spaces += 1;
                }
                if remarks && spaces > 1 && rest.peek().is_some_and(|next| *next != '-') {
                    break;
                }
            }
            (None, '|' | ';' | '&') if !(one == '&' && word.ends_with('>')) => {
                end(&mut word, &mut begun, &mut commands);
                commands.push(Vec::new());
            }
            (None, _) => {
                word.push(one);
                begun = true;
            }
        }
    }
    end(&mut word, &mut begun, &mut commands);
    commands.retain(|command| !command.is_empty());
    commands
}

/// The arguments of a program in a command, if the command starts that program: by its name or path, by `systemd-run`, or
/// by cargo.
#[must_use]
pub fn arguments<'a>(program: &str, command: &'a [String]) -> Option<&'a [String]> {
    let is_program = |word: &String| word.rsplit('/').next() == Some(program);
    let is_prefix = |word: &&String| *word == "sudo" || (word.contains('=') && !word.starts_with('-'));
    let command = &command[command.iter().take_while(is_prefix).count()..];
    let words: Vec<&str> = command.iter().take(2).map(String::as_str).collect();
    match words.as_slice() {
        [first, ..] if first.rsplit('/').next() == Some(program) => Some(&command[1..]),
        ["systemd-run", ..] => Some(&command[command.iter().position(is_program)? + 1..]),
        ["cargo", "run"] if program == "commensal" && !command.contains(&"-p".to_owned()) => {
            Some(&command[command.iter().position(|word| word == "--")? + 1..])
        }
        ["cargo", second] if *second == program => Some(&command[2..]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_where_a_reader_finds_them() {
        let text = "Type `commensal plan -c FILE`, or:\n\n    commensal agent   # until Ctrl-C\n    \
                    FOO=1 sudo ./commensal top 2>&1 | grep x\n\n```console\n# commensal plan    -c a.toml      what \
                    it would do\n$ commensal run -g etl -- 'a b' >x\nsaid\nmore\n```\n- a list\n  ```sh\n  \
                    systemd-run --scope commensal lab run \\\n  quickstart\n  ```\n    no block\n";
        let document = Document::new("x.md", text);
        let mut lines = document.command_lines();
        lines.sort_by_key(|line| line.line);
        let found: Vec<(String, Origin, String)> = lines
            .iter()
            .flat_map(|line| {
                let programs = line.commands.iter().filter_map(|one| arguments("commensal", one));
                programs.map(|words| (words.join(" "), line.origin, line.output.clone()))
            })
            .collect();
        let want = [
            ("plan -c FILE", Origin::Text, ""),
            ("agent", Origin::Script, ""),
            ("top", Origin::Script, ""),
            ("plan -c a.toml", Origin::Root, ""),
            ("run -g etl -- a b", Origin::User, "said\nmore\n"),
            ("lab run quickstart", Origin::Script, ""),
        ];
        let want = want.map(|(words, origin, output)| (words.to_owned(), origin, output.to_owned()));
        assert_eq!(found, want);
    }

    #[test]
    fn other_programs_are_not_taken_for_it() {
        for line in [
            "cp commensal /usr/bin/",
            "commensal-sql --data x",
            "cargo build -p commensal",
            "echo 'commensal'",
        ] {
            let commands = split(line, false);
            assert!(commands.iter().all(|one| arguments("commensal", one).is_none()), "{line}");
        }
        let of = |line: &str| arguments("commensal", &split(line, false)[0]).map(<[String]>::to_vec);
        assert_eq!(of("cargo run --release -- lab list"), Some(vec!["lab".to_owned(), "list".to_owned()]));
        assert_eq!(arguments("xtask", &split("cargo xtask ci", false)[0]), Some(&["ci".to_owned()][..]));
    }
}
