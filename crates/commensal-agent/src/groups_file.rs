//! The groups file or folder: read whole, compiled whole.

use commensal_core::config::{self, ConfigError, Room};
use commensal_core::group::{GroupSpec, Position};
use commensal_host::{Host, HostError};
use std::path::{Path, PathBuf};

/// What the files may be together, bytes: a thousand groups take a third of it. They are read in every tick, and the
/// guard gets them in one line.
pub const LONGEST: usize = 1 << 20;

/// Why groups could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A folder without groups.
    #[error("{} has no *.toml file; write one, or name a file with --config", .0.display())]
    Empty(PathBuf),
    /// A file could not be read.
    #[error("cannot read the groups in {} (see --config)", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: HostError,
    },
    /// More than anybody would write.
    #[error(
        "the groups in {} are {bytes} bytes, which is more than {LONGEST}: is it a groups file? take out what is not (see --config)",
        .path.display()
    )]
    Long {
        /// File or folder.
        path: PathBuf,
        /// How long.
        bytes: usize,
    },
    /// Every mistake in them.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Mistakes(Vec<ConfigError>),
}

/// Texts of the groups files, by name.
pub type Texts = Vec<(String, String)>;

/// Reads the file, or every `*.toml` of the folder.
///
/// # Errors
/// When there is none, one cannot be read, or they are too long.
pub fn texts(host: &dyn Host, path: &Path) -> Result<Texts, LoadError> {
    let files = match host.list(path) {
        Ok(names) => {
            let toml = names.iter().filter(|name| name.ends_with(".toml"));
            let files: Vec<PathBuf> = toml.map(|name| path.join(name)).collect();
            if files.is_empty() {
                return Err(LoadError::Empty(path.to_owned()));
            }
            files
        }
        Err(_) => vec![path.to_owned()],
    };
    let read = |file: PathBuf| match host.read_file(&file) {
        Ok(text) => Ok((file.display().to_string(), text)),
        Err(source) => Err(LoadError::Read { file, source }),
    };
    let texts: Texts = files.into_iter().map(read).collect::<Result<_, _>>()?;
    match texts.iter().map(|(_, text)| text.len()).sum() {
        bytes if bytes > LONGEST => Err(LoadError::Long { path: path.to_owned(), bytes }),
        _ => Ok(texts),
    }
}

/// What the files say together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compiled {
    /// The groups.
    pub groups: Vec<GroupSpec>,
    /// How the offline side is kept to its room.
    pub room: Room,
}

/// Compiles them; all mistakes in one error.
///
/// # Errors
/// Every mistake found.
pub fn compile(texts: &Texts) -> Result<Compiled, LoadError> {
    let (mut compiled, mut errors) = (Compiled::default(), Vec::new());
    let mut first: Option<String> = None;
    for (file, text) in texts {
        match config::parse_file(file, text) {
            Ok(mut one) => {
                compiled.groups.append(&mut one.groups);
                let Some((room, Position { line, column })) = one.room else { continue };
                let at = format!("{file}:{line}:{column}");
                match &first {
                    None => (compiled.room, first) = (room, Some(at)),
                    Some(first) => {
                        let message = format!("[agent] room is written already at {first}");
                        errors.push(ConfigError { at, message });
                    }
                }
            }
            Err(mut wrong) => errors.append(&mut wrong),
        }
    }
    if errors.is_empty() { Ok(compiled) } else { Err(LoadError::Mistakes(errors)) }
}
