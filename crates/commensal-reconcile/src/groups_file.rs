//! Reads a groups file, or all groups files of a directory, and watches them for changes.

use commensal_core::config::{self, Compiled, ConfigError, Texts};
use commensal_core::text;
use commensal_host::{FolderEvent, For, GroupWatch, Host, HostError};
use std::path::{Path, PathBuf};

/// Maximum total size of the files in bytes; a thousand groups need a third of it. There is a limit because the files
/// are read every few seconds.
pub const LONGEST: usize = 1 << 20;

/// Name of the file with the groups in force.
const SAVED: &str = "agent-groups.json";

/// An error of reading or compiling groups files.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The directory has no groups file.
    #[error("{} has no *.toml file; write one, or name a file with --config", text::path(.0))]
    Empty(PathBuf),
    /// A file could not be read.
    #[error("cannot read the groups in {} (see --config)", text::path(file))]
    Read {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: HostError,
    },
    /// The files are too large.
    #[error(
        "the groups files in {} have {bytes} bytes, which is more than {LONGEST}: remove files that are not groups files (see --config)",
        text::path(.path)
    )]
    Long {
        /// The groups file, or the directory of groups files.
        path: PathBuf,
        /// The total size in bytes.
        bytes: usize,
    },
    /// The errors found in the files.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Mistakes(Vec<ConfigError>),
}

/// Reads the file, or every `*.toml` of the directory.
///
/// # Errors
/// Returns an error if there is no file, if a file cannot be read, or if the files are too large.
pub fn texts(host: &dyn Host, path: &Path) -> Result<Texts, LoadError> {
    let files = match host.list(path) {
        Ok(names) => {
            let refused = |source| LoadError::Read { file: path.to_owned(), source };
            host.trust_folder(path).map_err(refused)?;
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

/// Saves the groups in force, for `status` without an agent, and for the next start of an agent.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn save(host: &mut dyn Host, state_dir: &Path, texts: &Texts) -> Result<(), HostError> {
    host.state_replace(&state_dir.join(SAVED), &text::json(texts).unwrap_or_default())
}

/// Returns the groups that were saved last; `None` if there are none.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn saved(host: &mut dyn Host, state_dir: &Path) -> Result<Option<Texts>, HostError> {
    let text = host.state_read(&state_dir.join(SAVED))?.unwrap_or_default();
    Ok(serde_json::from_str(&text).ok())
}

/// Compiles the texts as a whole.
///
/// # Errors
/// Returns all errors in the texts.
pub fn compile(texts: &Texts) -> Result<Compiled, LoadError> {
    config::compile(texts).map_err(LoadError::Mistakes)
}

/// Watches the groups files for writes and replacements.
#[derive(Debug)]
pub struct Changes {
    watch: GroupWatch,
    /// The file's name, when only one file of a directory is watched.
    only: Option<String>,
}

impl Changes {
    /// Starts watching; `None` if the kernel does not support file watches. Without a watch, callers read the files in
    /// every tick.
    pub fn of(host: &dyn Host, path: &Path) -> Option<Changes> {
        let is_folder = host.list(path).is_ok();
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let watch = GroupWatch::new().ok()?;
        watch.add(if is_folder { path } else { above }, For::Files).ok()?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Some(Changes { watch, only: name.filter(|_| !is_folder) })
    }

    /// The watch, whose descriptor becomes readable when a file in the watched directory has changed.
    #[must_use]
    pub fn watch(&self) -> &GroupWatch {
        &self.watch
    }

    /// Whether a groups file has changed since the last call.
    pub fn any(&self) -> bool {
        // Kubernetes updates a mounted volume by replacing the symbolic link `..data`, which changes every file without
        // an event for the file's own name. So an event for a name that starts with `..` counts as well.
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
