//! File operations that the standard library lacks.

use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::path::Path;

/// Exchanges two files atomically.
///
/// # Panics
/// Panics if one of the files does not exist, or the file system does not support the exchange.
#[track_caller]
pub fn exchange(one: &Path, other: &Path) {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).expect("two names on one file system");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir, read_to_string, remove_dir_all, write};

    #[test]
    fn a_file_and_a_folder_change_places() {
        let dir = std::env::temp_dir().join(format!("commensal-test-exchange-{}", std::process::id()));
        let (file, folder) = (dir.join("file"), dir.join("folder"));
        create_dir(&dir).expect("a folder of our own");
        create_dir(&folder).expect("a folder");
        write(&file, "text").expect("a file");
        exchange(&file, &folder);
        assert!(file.is_dir() && read_to_string(&folder).is_ok_and(|text| text == "text"));
        remove_dir_all(dir).expect("it is ours");
    }
}
