//! Finds cycles between the files of a crate. Files that refer to each other, directly or indirectly, can only be
//! understood together.
//!
//! Each name is resolved to the file that defines it, through all re-exports. So it makes no difference whether a file
//! uses the module that re-exports the name or the file behind it. A re-export alone does not count as a dependency.
//! Tests are left out, because they may use anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Maximum number of files in a cycle.
const MAX_FILES: usize = 3;
/// Maximum number of re-exports through which a name is resolved. It is larger than in any real chain, and stops at
/// cyclic re-exports.
const MAX_STEPS: usize = 16;
/// The name that stands for all names of a module, in a glob import.
const ALL: &str = "*";
/// Keywords before the name of an item that a module defines.
const ITEMS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union"];

/// A path as written in the source, or the path of a module from `crate` on.
type Names = Vec<String>;
/// For each file, the files that it depends on, with the names used.
type Needs = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Checks the modules of every library and program in the tree.
pub fn check(root: &Path, files: &[PathBuf], problems: &mut Vec<String>) -> anyhow::Result<()> {
    let mut sources = BTreeMap::new();
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        if name.contains("/src/") {
            sources.insert(name, std::fs::read_to_string(path)?);
        }
    }
    for top in sources.keys().filter(|name| is_top(name)) {
        problems.extend(problems_of(top, &sources));
    }
    Ok(())
}

/// Whether a file is the root of a library or a program.
fn is_top(file: &str) -> bool {
    let (folder, name) = file.rsplit_once('/').unwrap_or_default();
    let above = folder.rsplit_once('/').map_or("", |(above, _)| above);
    match name {
        "lib.rs" => folder.ends_with("/src"),
        "main.rs" => folder.ends_with("/src") || above.ends_with("/src/bin"),
        _ => folder.ends_with("/src/bin"),
    }
}

/// Describes the cycles of the crate whose root file is `top`.
fn problems_of(top: &str, sources: &BTreeMap<String, String>) -> Vec<String> {
    let needs = Modules::read(top, sources).needs();
    let large = circles(&needs).into_iter().filter(|circle| circle.len() > MAX_FILES);
    let told = large.map(|circle| {
        let of_file = |file: &String| {
            let within = needs[file].iter().filter(|(other, _)| circle.contains(*other));
            let within = within.map(|(other, names)| {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                format!("{other} ({})", names.join(", "))
            });
            format!("\n    {file} needs {}", within.collect::<Vec<_>>().join(", "))
        };
        let lines: String = circle.iter().map(of_file).collect();
        format!(
            "{} files depend on each other, more than {MAX_FILES}: move the code that they share into a file that \
             depends on none of them{lines}",
            circle.len()
        )
    });
    told.collect()
}

/// Returns the sets of files that depend on each other. Every file is in one set; most sets have a single file.
fn circles(needs: &Needs) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        needs.keys().map(|file| (file, reached(needs, file))).collect();
    let circle = |file: &&String| {
        let back = |other: &&&String| reached.get(**other).is_some_and(|back| back.contains(*file));
        let others = reached[*file].iter().filter(back);
        others.map(|other| (*other).clone()).chain([(*file).clone()]).collect()
    };
    reached.keys().map(circle).collect()
}

/// Returns the files that a file depends on, directly or indirectly.
fn reached<'n>(needs: &'n Needs, file: &'n str) -> BTreeSet<&'n String> {
    let mut reached = BTreeSet::new();
    let mut left = vec![file];
    while let Some(next) = left.pop() {
        let of = needs.get(next).into_iter().flat_map(BTreeMap::keys);
        left.extend(of.filter(|one| reached.insert(*one)).map(String::as_str));
    }
    reached
}

/// A module: the whole of a file, or a module inside a file.
#[derive(Default)]
struct Module {
    file: String,
    /// Names that the module defines.
    items: BTreeSet<String>,
    /// Names that the module imports, each with the path of its definition or next re-export.
    imports: BTreeMap<String, Names>,
    /// Modules from which all names are imported, and whether the import is public (a re-export).
    globs: Vec<(Names, bool)>,
    /// Paths that the module itself uses, without re-exports.
    paths: BTreeSet<Names>,
}

/// The modules of a crate by their paths.
#[derive(Default)]
struct Modules(BTreeMap<Names, Module>);

impl Modules {
    fn read(top: &str, sources: &BTreeMap<String, String>) -> Modules {
        let mut modules = Modules::default();
        let folder = top.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut left = vec![(vec!["crate".to_owned()], top.to_owned(), folder.to_owned())];
        while let Some((path, file, folder)) = left.pop() {
            let Some(text) = sources.get(&file) else { continue };
            let tokens = without_tests(&tokens(text));
            let walk = Walk {
                modules: &mut modules,
                file: &file,
                tokens: &tokens,
                around: vec![(path.clone(), 0)],
                depth: 0,
                children: Vec::new(),
                fronts: Vec::new(),
                words: BTreeSet::new(),
            };
            for child in walk.all() {
                let below = format!("{folder}/{}", child[path.len()..].join("/"));
                let names = [format!("{below}.rs"), format!("{below}/mod.rs")];
                if let Some(file) = names.into_iter().find(|name| sources.contains_key(name)) {
                    left.push((child, file, below));
                }
            }
        }
        modules
    }

    fn needs(&self) -> Needs {
        let mut needs = Needs::new();
        for (at, module) in &self.0 {
            let named = module.paths.iter().filter_map(|path| self.defined(at, path, MAX_STEPS, true));
            // An imported module is not a dependency by itself: other paths in the file name the items that it uses.
            let named = named.filter(|(_, name)| name != ALL);
            let own = module.globs.iter().filter(|(_, public)| !public);
            let all = own.filter_map(|(path, _)| self.defined(at, path, MAX_STEPS, true));
            let of = needs.entry(module.file.clone()).or_default();
            for (file, name) in named.chain(all).filter(|(file, _)| *file != module.file) {
                of.entry(file).or_default().insert(name);
            }
        }
        needs
    }

    /// Returns the file that defines the item at `path`, as used in the module `from`, and the item's name in that
    /// file; `None` if the item is not of this crate. With `guess`, a name without a known definition is assumed to be
    /// defined in the module that the path leads to, unless it is the first name of the path.
    fn defined(
        &self,
        from: &[String],
        path: &[String],
        steps: usize,
        guess: bool,
    ) -> Option<(String, String)> {
        let steps = steps.checked_sub(1)?;
        let mut at = from.to_vec();
        let mut rest = path;
        let mut is_first = !matches!(rest.first()?.as_str(), "crate" | "self" | "super");
        while let Some((first, below)) = rest.split_first() {
            match first.as_str() {
                "crate" => at.truncate(1),
                "self" => {}
                "super" => drop(at.pop()),
                _ => break,
            }
            rest = below;
        }
        while let Some((first, below)) = rest.split_first() {
            let module = self.0.get(&at)?;
            if self.has_child(&at, first) {
                at.push(first.clone());
            } else if let Some(import) = module.imports.get(first) {
                let path: Names = import.iter().chain(below).cloned().collect();
                // For `use serde;` there is no other path to follow.
                return if import.len() == 1 { None } else { self.defined(&at, &path, steps, guess) };
            } else if module.items.contains(first) {
                return Some((module.file.clone(), first.clone()));
            } else {
                let found = self.through_globs(&at, rest, steps);
                // The first name of a path may be that of another crate.
                let here = || (guess && !is_first).then(|| (module.file.clone(), first.clone()));
                return found.or_else(here);
            }
            is_first = false;
            rest = below;
        }
        Some((self.0.get(&at)?.file.clone(), ALL.to_owned()))
    }

    fn through_globs(&self, at: &[String], path: &[String], steps: usize) -> Option<(String, String)> {
        let name = path.first()?;
        self.0.get(at)?.globs.iter().find_map(|(glob, _)| {
            let path: Names = glob.iter().chain(path).cloned().collect();
            self.defined(at, &path, steps, false).filter(|(_, found)| found == name)
        })
    }

    fn has_child(&self, at: &[String], name: &str) -> bool {
        let child: Names = at.iter().map(String::as_str).chain([name]).map(str::to_owned).collect();
        self.0.contains_key(&child)
    }
}

/// Parses one file, and adds its modules to the modules of the crate.
struct Walk<'w> {
    modules: &'w mut Modules,
    file: &'w str,
    tokens: &'w [&'w str],
    /// The modules that contain the current token, each with the number of braces that were open where it begins.
    around: Vec<(Names, usize)>,
    depth: usize,
    /// Modules that the file declares and that have a separate file.
    children: Vec<Names>,
    /// Names that the file re-exports: the module, the name, and the path of the re-exported item.
    fronts: Vec<(Names, String, Names)>,
    /// Words that stand alone or begin a path.
    words: BTreeSet<String>,
}

impl Walk<'_> {
    fn all(mut self) -> Vec<Names> {
        let mut at = 0;
        self.module();
        while at < self.tokens.len() {
            at = match self.tokens[at] {
                "mod" if self.is_word(at + 1) => self.declare(at),
                "use" => self.take(at),
                _ => {
                    self.look(at);
                    at + 1
                }
            };
        }
        // If the file itself uses a name that it re-exports, that is a dependency.
        for (here, name, path) in std::mem::take(&mut self.fronts) {
            if self.words.contains(&name)
                && let Some(module) = self.modules.0.get_mut(&here)
            {
                module.paths.insert(path);
            }
        }
        self.children
    }

    fn here(&self) -> Names {
        self.around.last().map(|(path, _)| path.clone()).unwrap_or_default()
    }

    /// The module at the current position.
    fn module(&mut self) -> &mut Module {
        let module = self.modules.0.entry(self.here()).or_default();
        self.file.clone_into(&mut module.file);
        module
    }

    fn token(&self, at: usize) -> &str {
        self.tokens.get(at).copied().unwrap_or_default()
    }

    fn is_word(&self, at: usize) -> bool {
        is_word(self.token(at))
    }

    /// Processes `mod name;` or `mod name {`; returns the index of the token to continue at.
    fn declare(&mut self, at: usize) -> usize {
        let mut child = self.here();
        child.push(self.token(at + 1).to_owned());
        if self.token(at + 2) == "{" {
            self.around.push((child, self.depth));
            self.depth += 1;
            self.module();
        } else {
            self.children.push(child);
        }
        at + 3
    }

    /// Processes `use …;`; returns the index of the token to continue at.
    fn take(&mut self, at: usize) -> usize {
        let length = self.tokens[at..].iter().position(|token| *token == ";");
        let end = at + length.unwrap_or(self.tokens.len() - at);
        let public = at > 0 && matches!(self.tokens[at - 1], "pub" | ")");
        let mut taken = Vec::new();
        use_tree(&self.tokens[at + 1..end], &[], &mut taken);
        let here = self.here();
        for (name, path) in taken {
            let module = self.module();
            if name == ALL {
                module.globs.push((path, public));
                continue;
            }
            module.imports.insert(name.clone(), path.clone());
            if public {
                self.fronts.push((here.clone(), name, path));
            } else {
                module.paths.insert(path);
            }
        }
        end + 1
    }

    /// Processes any other token.
    fn look(&mut self, at: usize) {
        let before = &self.tokens[..at];
        match self.tokens[at] {
            "{" => self.depth += 1,
            "}" => {
                self.depth = self.depth.saturating_sub(1);
                if self.around.len() > 1
                    && self.around.last().is_some_and(|(_, outside)| *outside == self.depth)
                {
                    self.around.pop();
                }
            }
            item if ITEMS.contains(&item) && self.is_word(at + 1) => {
                let name = self.token(at + 1).to_owned();
                self.module().items.insert(name);
            }
            "macro_rules" => {
                let name = self.token(at + 2).to_owned();
                self.module().items.insert(name);
            }
            // `pub(in path)` names a module but does not depend on it.
            _ if before.ends_with(&["pub", "(", "in"])
                || before.ends_with(&["::"])
                || before.ends_with(&["."]) => {}
            word if is_word(word) => {
                self.words.insert(word.to_owned());
                let mut named = vec![word.to_owned()];
                let mut next = at + 1;
                while self.token(next) == "::" && self.is_word(next + 1) {
                    named.push(self.token(next + 1).to_owned());
                    next += 2;
                }
                if named.len() > 1 {
                    self.module().paths.insert(named);
                }
            }
            _ => {}
        }
    }
}

/// Collects the names that a `use` declaration imports, each with its path.
fn use_tree(tokens: &[&str], above: &[String], taken: &mut Vec<(String, Names)>) {
    let mut path = above.to_vec();
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" => return parts(&tokens[at..]).into_iter().for_each(|part| use_tree(part, &path, taken)),
            ALL => return taken.push((ALL.to_owned(), path)),
            "as" => return taken.push((tokens.get(at + 1).copied().unwrap_or_default().to_owned(), path)),
            "::" => {}
            // `use path::{self}` imports the module itself.
            "self" if !path.is_empty() => {}
            word => path.push(word.to_owned()),
        }
    }
    // After a trailing comma there is no name.
    if let Some(name) = path.last().cloned().filter(|_| !tokens.is_empty()) {
        taken.push((name, path));
    }
}

/// Splits the tokens inside the braces at the beginning of `tokens` at their commas.
fn parts<'p, 'a>(tokens: &'p [&'a str]) -> Vec<&'p [&'a str]> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 1, 0);
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if (depth == 1 && *token == ",") || depth == 0 {
            parts.push(&tokens[begin..at]);
            begin = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    parts
}

fn is_word(token: &str) -> bool {
    token.starts_with(|one: char| one.is_alphabetic() || one == '_')
}

/// Returns the tokens of the code outside tests: items below `#[cfg(test)]` are left out.
fn without_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].starts_with(&TEST) {
            kept.push(tokens[at]);
            at += 1;
            continue;
        }
        at += TEST.len();
        let mut depth = 0;
        while at < tokens.len() {
            let token = tokens[at];
            if token == "}" && depth == 0 {
                break;
            }
            at += 1;
            match token {
                "(" | "[" | "{" => depth += 1,
                "}" if depth == 1 => break,
                ")" | "]" | "}" => depth -= 1,
                ";" if depth == 0 => break,
                _ => {}
            }
        }
    }
    kept
}

/// Splits a source into words, `::` and single characters, without comments, string and character literals, and
/// lifetimes.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            Some(rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            Some(block_comment(rest))
        } else if first == '\'' {
            Some(character(rest))
        } else {
            quoted(rest)
        };
        let word = rest.find(|one: char| !one.is_alphanumeric() && one != '_').unwrap_or(rest.len());
        let length = skipped.unwrap_or_else(|| {
            let length = if rest.starts_with("::") { 2 } else { word.max(first.len_utf8()) };
            tokens.extend(Some(&rest[..length]).filter(|_| !first.is_whitespace()));
            length
        });
        rest = &rest[length..];
    }
    tokens
}

/// Length of the block comment at the beginning of `text`, which may contain nested comments.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        let (step, change) = match rest {
            [b'/', b'*', ..] => (2, 1),
            [b'*', b'/', ..] => (2, -1),
            _ => (1, 0),
        };
        (at, depth) = (at + step, depth + change);
        if depth == 0 {
            break;
        }
    }
    at
}

/// Length of the string literal at the beginning of `text`, including its prefix letters.
fn quoted(text: &str) -> Option<usize> {
    let letters = text.find(|one: char| !matches!(one, 'b' | 'c' | 'r')).filter(|letters| *letters <= 2)?;
    let raw = text[..letters].ends_with('r');
    let marks = if raw { text[letters..].find(|one| one != '#')? } else { 0 };
    let begin = letters + marks + 1;
    let within = text[begin - 1..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(marks));
    let mut escaped = false;
    let closes = |(at, one): (usize, char)| {
        let closed = !escaped && within[at..].starts_with(&end);
        escaped = !raw && !escaped && one == '\\';
        closed.then_some(begin + at + end.len())
    };
    Some(within.char_indices().find_map(closes).unwrap_or(text.len()))
}

/// Length of the character literal or lifetime at the beginning of `text`.
fn character(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    match (letters.next(), letters.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let from = at + escaped.len_utf8();
            text[from..].find('\'').map_or(text.len(), |end| from + end + 1)
        }
        (_, Some((at, '\''))) => at + 1,
        _ => 1 + text[1..].find(|one: char| !one.is_alphanumeric() && one != '_').unwrap_or(text.len() - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the dependencies in a crate of these files, as lines `file > file: names`.
    fn check(files: &[(&str, &str)], expect: &[&str]) {
        let sources: BTreeMap<String, String> =
            files.iter().map(|(name, text)| (format!("x/src/{name}"), (*text).to_owned())).collect();
        let needs = Modules::read("x/src/lib.rs", &sources).needs();
        let short = |file: &str| file.trim_start_matches("x/src/").to_owned();
        let lines: Vec<String> = needs
            .iter()
            .flat_map(|(file, of)| {
                of.iter().map(move |(other, names)| {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    format!("{} > {}: {}", short(file), short(other), names.join(" "))
                })
            })
            .collect();
        assert_eq!(lines, expect);
    }

    #[test]
    fn names_are_followed_to_where_they_are_defined() {
        check(
            &[
                ("lib.rs", "mod a;\nmod b;\npub use a::{A, low::{self, Low}};\nfn of() -> A { b::make() }"),
                ("a.rs", "pub mod low;\npub struct A;\nuse self::low::Low as L;"),
                ("a/low.rs", "pub struct Low;\n/// [`crate::B`]\nconst TEXT: &str = \"crate::B\";"),
                (
                    "b.rs",
                    "use crate::{Low, A as _};\npub(in crate::a) fn make() { super::of(); crate::low::Low; serde::to() \
                     }",
                ),
            ],
            &[
                "a.rs > a/low.rs: Low",
                "b.rs > a.rs: A",
                "b.rs > a/low.rs: Low",
                "b.rs > lib.rs: of",
                "lib.rs > a.rs: A",
                "lib.rs > b.rs: make",
            ],
        );
    }

    #[test]
    fn tests_and_re_exports_are_no_needs_and_globs_are() {
        check(
            &[
                (
                    "lib.rs",
                    "mod a;\nmod b;\npub use a::*;\npub use b::B;\n#[cfg(test)]\nmod tests {\n use super::b::Other;\n}",
                ),
                ("a.rs", "pub struct A;\nuse crate::b::*;\nmod inner { use super::super::B; }"),
                (
                    "b.rs",
                    "pub struct B<'a>(&'a str, char);\n#[cfg(test)]\nfn f() { crate::a::x('\\'', '\"'); }\nfn g() { \
                     crate::A; crate::X }",
                ),
            ],
            &["a.rs > b.rs: * B", "b.rs > a.rs: A", "b.rs > lib.rs: X"],
        );
    }

    #[test]
    fn a_circle_is_told_from_its_second_file_too_many() {
        let ring = |count: usize| -> BTreeMap<String, String> {
            let mods: String = (0..count).map(|at| format!("mod m{at};")).collect();
            let one = |at: usize| {
                let text = format!("pub struct S; use super::m{}::S as Next;", (at + 1) % count);
                (format!("x/src/m{at}.rs"), text)
            };
            (0..count).map(one).chain([("x/src/lib.rs".to_owned(), mods)]).collect()
        };
        assert_eq!(problems_of("x/src/lib.rs", &ring(MAX_FILES)), Vec::<String>::new());
        let told = problems_of("x/src/lib.rs", &ring(MAX_FILES + 1));
        assert!(told.len() == 1 && told[0].contains("x/src/m3.rs needs x/src/m0.rs (S)"), "{told:?}");
    }

    #[test]
    fn texts_comments_and_lifetimes_are_no_tokens() {
        let text = "a /* x /* y */ */ b // c\n'd' 'e '\\u{1}' \"f\\\"\" r#\"g\"\"# b\"h\" br\"i\\\" ::j r k";
        assert_eq!(tokens(text), ["a", "b", "::", "j", "r", "k"]);
    }
}
