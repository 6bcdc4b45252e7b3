//! Golden files of the tests, in `tests/golden`. `UPDATE=1 cargo test -p commensal-agent` rewrites them.
#![allow(clippy::disallowed_methods, reason = "a test reads its expectation")]

use std::path::Path;

/// Compares `got` with the file. Tests run in the folder of their package. With `UPDATE` set, rewrites the file instead.
pub fn check(name: &str, got: &str) {
    let path = Path::new("tests/golden").join(name);
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    if got == want {
        return;
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, got).unwrap();
        return;
    }
    panic!("{}\n--- expected\n{want}--- got\n{got}", path.display());
}
