//! Reads and compiles a groups file or directory as a whole.

use commensal_core::config::{self, ConfigError, Headroom};
use commensal_core::group::{GroupSpec, Position};
use commensal_core::text;
use commensal_host::{FolderEvent, For, GroupWatch, Host, HostError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum total size of the files, bytes: a thousand groups take a third of it. They are read every few seconds, and sent
/// to the guard in one line.
pub const LONGEST: usize = 1 << 20;

/// Why groups could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A folder without groups.
    #[error("{} has no *.toml file; write one, or name a file with --config", text::path(.0))]
    Empty(PathBuf),
    /// A file could not be read.
    #[error("cannot read the groups in {} (see --config)", text::path(file))]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: HostError,
    },
    /// The files are too large.
    #[error(
        "the groups in {} are {bytes} bytes, which is more than {LONGEST}: is it a groups file? take out what is not (see --config)",
        text::path(.path)
    )]
    Long {
        /// File or directory.
        path: PathBuf,
        /// Total size.
        bytes: usize,
    },
    /// Every error in the files.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Mistakes(Vec<ConfigError>),
}

/// Texts of the groups files, by name.
pub type Texts = Vec<(String, String)>;

/// Reads the file, or every `*.toml` of the directory.
///
/// # Errors
/// When there is none, one cannot be read, or they are too large.
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
    let read = |file: PathBuf| match host.read_trusted(&file) {
        Ok(text) => Ok((file.display().to_string(), text)),
        Err(source) => Err(LoadError::Read { file, source }),
    };
    let texts: Texts = files.into_iter().map(read).collect::<Result<_, _>>()?;
    match texts.iter().map(|(_, text)| text.len()).sum() {
        bytes if bytes > LONGEST => Err(LoadError::Long { path: path.to_owned(), bytes }),
        _ => Ok(texts),
    }
}

/// Watches the files for writes and replacements.
#[derive(Debug)]
pub struct Changes {
    watch: GroupWatch,
    /// The file's name, when only one file of a directory is watched.
    only: Option<String>,
}

impl Changes {
    /// Starts watching; `None` where the kernel does not support it: then the next tick sees changes.
    pub fn of(host: &dyn Host, path: &Path) -> Option<Changes> {
        let is_folder = host.list(path).is_ok();
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let watch = GroupWatch::new().ok()?;
        watch.add(if is_folder { path } else { above }, For::Files).ok()?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Some(Changes { watch, only: name.filter(|_| !is_folder) })
    }

    /// What can be read once a file in the watched directory has changed.
    #[must_use]
    pub fn watch(&self) -> &GroupWatch {
        &self.watch
    }

    /// Whether a file has changed since the last call.
    pub fn any(&self) -> bool {
        // A directory that is replaced as a whole, as Kubernetes does with `..data`, changes every file.
        let is_ours =
            |name: &str| self.only.as_ref().is_none_or(|only| name == only || name.starts_with(".."));
        let seen = self.watch.seen().unwrap_or_default();
        seen.iter().any(|seen| match seen {
            FolderEvent::Made(_, name) | FolderEvent::Gone(_, name) | FolderEvent::Touched(_, Some(name)) => {
                is_ours(name)
            }
            FolderEvent::Touched(_, None) | FolderEvent::Lost => true,
        })
    }
}

/// The compiled contents of all files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// The groups.
    pub groups: Vec<GroupSpec>,
    /// How the offline side is kept within its headroom.
    pub headroom: Headroom,
    /// Whether online groups get more weight than siblings that belong to no group.
    pub weights: bool,
    /// Whether offline disk I/O is limited while online groups wait for the disks.
    pub io: bool,
}

impl Default for Compiled {
    fn default() -> Compiled {
        Compiled { groups: Vec::new(), headroom: Headroom::default(), weights: true, io: true }
    }
}

/// Compiles the texts; one error contains all mistakes.
///
/// # Errors
/// Every mistake found.
pub fn compile(texts: &Texts) -> Result<Compiled, LoadError> {
    let (mut compiled, mut errors) = (Compiled::default(), Vec::new());
    let mut written: BTreeMap<&str, String> = BTreeMap::new();
    for (file, text) in texts {
        let mut first = |key: &'static str, Position { line, column }: Position| {
            let at = format!("{file}:{line}:{column}");
            let known = written.entry(key).or_insert_with(|| at.clone());
            let message = format!("[agent] {key} is written already at {known}");
            if *known != at {
                errors.push(ConfigError { at, message });
            }
        };
        match config::parse_file(file, text) {
            Ok(mut one) => {
                compiled.groups.append(&mut one.groups);
                let keys = one.agent.unwrap_or_default();
                if let Some((headroom, at)) = keys.headroom {
                    compiled.headroom = headroom;
                    first("headroom", at);
                }
                if let Some((weights, at)) = keys.weights {
                    compiled.weights = weights;
                    first("weights", at);
                }
                if let Some((io, at)) = keys.io {
                    compiled.io = io;
                    first("io", at);
                }
            }
            Err(mut wrong) => errors.append(&mut wrong),
        }
    }
    if errors.is_empty() { Ok(compiled) } else { Err(LoadError::Mistakes(errors)) }
}
