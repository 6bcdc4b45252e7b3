//! Drivers of other languages, as programs use them: PyMySQL from the registry of Python packages, and MariaDB's JDBC driver
//! from Debian. Both are fetched once and kept; without them the tests say so.

use crate::server::fixture::{eventually, write_hits};
use crate::server::process::Server;
use crate::server::tls::{World, world};
use commensal_testkit::holds_within;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// The versions that the tests were written with.
const PYMYSQL: &str = "pymysql==1.2.4";
// Later ones want a newer OpenSSL than Debian 12 has.
const CONNECTOR: &str = "mysql-connector-python==9.1.0";

/// The jar of Debian's libmariadb-java.
const JAR: &str = "usr/share/java/mariadb-java-client.jar";

/// Longest that a driver's program may take; only a hang does.
const LIMIT: Duration = Duration::from_secs(240);

/// Where things that were fetched are kept.
fn cache() -> Result<PathBuf, String> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    Ok(base.ok_or("neither XDG_CACHE_HOME nor HOME is set")?.join("commensal-sql-tests"))
}

/// A folder that `fetch` fills, unless it is there already; a half of one never is.
pub fn kept(name: &str, fetch: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let there = cache()?.join(name);
    if !there.exists() {
        std::fs::create_dir_all(cache()?).map_err(|error| error.to_string())?;
        let new = tempfile::tempdir_in(cache()?).map_err(|error| error.to_string())?;
        fetch(new.path())?;
        // Another test may have been faster.
        if std::fs::rename(new.keep(), &there).is_err() && !there.exists() {
            return Err(format!("cannot keep {}", there.display()));
        }
    }
    Ok(there)
}

/// What a program printed, unless it failed or does not end.
pub fn output(command: &mut Command) -> Result<Output, String> {
    let name = format!("{:?}", command.get_program());
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("{name}: {error}"))?;
    // What these programs print fits into a pipe.
    if !holds_within(LIMIT, || !child.try_wait().is_ok_and(|ended| ended.is_none())) {
        let _ = child.kill();
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(output) } else { Err(format!("{name}: {}: {text}", output.status)) }
}

/// A package of Python's registry, without what it may need.
fn package(wanted: &str) -> Result<PathBuf, String> {
    kept(&wanted.replace("==", "-"), |folder| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--timeout", "20", "--retries", "1"]);
        output(pip.arg("--target").arg(folder).arg(wanted)).map(|_| ())
    })
}

fn jar() -> Result<PathBuf, String> {
    let installed = Path::new("/").join(JAR);
    if installed.exists() {
        return Ok(installed);
    }
    let folder = kept("libmariadb-java", |folder| {
        output(Command::new("apt-get").args(["download", "libmariadb-java"]).current_dir(folder))?;
        let files = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
        let package = files.flatten().find(|file| file.path().extension().is_some_and(|end| end == "deb"));
        let package = package.ok_or("apt-get has downloaded nothing")?.path();
        output(Command::new("dpkg-deb").arg("-x").arg(package).arg(folder)).map(|_| ())
    })?;
    Ok(folder.join(JAR))
}

/// A server for a driver, and what it looks like when nobody is there.
fn quiet_world() -> (World, usize) {
    let world = world("127.0.0.1:0", &[]);
    write_hits(&world.folder.path().join("data/hits.parquet"), 20_000);
    let before = world.server.descriptors();
    (world, before)
}

fn left_nothing(server: &Server, before: usize) {
    eventually("no connection is left", || server.descriptors() <= before);
}

// promise 51
#[test]
fn a_python_driver_does_it_all() {
    python("a_python_driver_does_it_all", PYMYSQL, "driver.py", 9);
}

// promise 50
#[test]
fn mysqls_own_library_proves_by_its_own_method() {
    python("mysqls_own_library_proves_by_its_own_method", CONNECTOR, "connector.py", 9);
}

/// Runs a script with a package against a server, which has to say so often that something is ok.
fn python(test: &str, wanted: &str, script: &str, parts: usize) {
    let library = match package(wanted) {
        Ok(library) => library,
        Err(why) => return println!("skipped: {test}: no {wanted}: {}", why.trim()),
    };
    let (world, before) = quiet_world();
    let script = std::env::current_dir().unwrap().join("tests/it/external/drivers").join(script);
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", library).env("PYTHONDONTWRITEBYTECODE", "1").arg(script);
    let output =
        output(python.args([&world.address.port().to_string(), &world.pair.file("ca.pem")])).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), parts, "{text}");
    left_nothing(&world.server, before);
}

// promises 50, 51
#[test]
fn a_jdbc_driver_prepares_statements() {
    // One that runs a source file has the compiler with it.
    let java = output(Command::new("java").arg("--list-modules"))
        .map(|output| String::from_utf8_lossy(&output.stdout).contains("jdk.compiler"));
    let jar = match (java, jar()) {
        (Ok(true), Ok(jar)) => jar,
        (Ok(false), _) => {
            return println!("skipped: a_jdbc_driver_prepares_statements: java without a compiler");
        }
        (Err(why), _) | (_, Err(why)) => {
            return println!("skipped: a_jdbc_driver_prepares_statements: {}", why.trim());
        }
    };
    let (world, before) = quiet_world();
    let source = std::env::current_dir().unwrap().join("tests/it/external/drivers/Drive.java");
    let mut java = Command::new("java");
    java.arg("-Xmx256m").arg("-cp").arg(jar).arg(source);
    let output = output(java.args([&world.address.port().to_string(), &world.pair.file("ca.pem")])).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 3, "{text}");
    left_nothing(&world.server, before);
}
