//! The lists of contents, and, with nfpm, what the packages contain. Stand-ins take the place of programs.

use super::*;
use std::os::unix::fs::PermissionsExt;

const PACKAGES: [Package; 3] = [Package::Commensal, Package::CommensalSched, Package::CommensalSql];

fn list(package: Package) -> String {
    std::fs::read_to_string(root().join(package.list())).unwrap()
}

/// The values of a key in a list.
fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    let value =
        move |line: &'a str| line.trim_start_matches([' ', '-']).strip_prefix(key)?.strip_prefix(": ");
    text.lines().filter_map(value)
}

/// nfpm would give a file the mode that it has in the tree, which is another one with another umask.
#[test]
fn every_content_has_a_source_a_place_and_a_mode() {
    for package in PACKAGES {
        let list = list(package);
        let (_, contents) = list.split_once("\ncontents:\n").unwrap();
        let (contents, _) = contents.split_once("\nscripts:\n").unwrap();
        for entry in contents.split("  - src: ").skip(1) {
            let source = entry.lines().next().unwrap();
            let found = source.starts_with("${STAGE}/")
                || glob::glob(&root().join(source).display().to_string()).unwrap().next().is_some();
            assert!(found, "{}: {source} does not exist", package.list());
            for key in ["dst", "file_info: { mode"] {
                assert_eq!(values(entry, key).count(), 1, "{}: {source}: {key}", package.list());
            }
            let bad = values(entry, "file_info: { mode").any(|mode| !["0644 }", "0755 }"].contains(&mode));
            assert!(!bad, "{}: {source}", package.list());
        }
    }
}

/// A file that no list names would be forgotten in every package.
#[test]
fn every_file_of_packaging_is_in_a_package() {
    let lists: String = PACKAGES.iter().map(|package| list(*package)).collect();
    let generated: Vec<&str> = PACKAGES.iter().filter_map(|package| package.page()).collect();
    for path in glob::glob(&root().join("packaging/**/*").display().to_string()).unwrap().flatten() {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        let known =
            lists.contains(&name) || generated.contains(&name.as_str()) || name.ends_with("nfpm.yaml");
        assert!(known || path.is_dir(), "{name} is in no package");
    }
}

/// A removed program could not undo anything any more, so one that fails to stays; an upgrade undoes nothing.
#[test]
fn removal_undoes_first_and_stops_if_it_cannot() {
    let folder = tempfile::tempdir().unwrap();
    let (program, called) = (folder.path().join("commensal"), folder.path().join("called"));
    for script in ["packaging/scripts/preremove.sh", "packaging/sched/preremove.sh"] {
        for (argument, undoes) in [("remove", true), ("0", true), ("upgrade", false), ("1", false)] {
            for status in 0..=2 {
                let text = format!("#!/bin/sh\necho >{}\nexit {status}\n", called.display());
                std::fs::write(&program, text).unwrap();
                std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
                let mut run = Command::new("/bin/sh");
                // With no other program in PATH, nothing is asked of systemd.
                run.arg(root().join(script)).arg(argument).env("PATH", folder.path());
                let output = run.output().unwrap();
                let failed = undoes && status == 2;
                assert_eq!(
                    output.status.code(),
                    Some(i32::from(failed)),
                    "{script} {argument} {status}: {output:?}"
                );
                assert_eq!(std::fs::remove_file(&called).is_ok(), undoes, "{script} {argument} {status}");
            }
        }
    }
}

/// The man pages that are written by hand name every option of their program.
#[test]
fn written_man_pages_name_every_option() {
    let long = |attribute: &str, field: &str| match attribute.split_once("long = \"") {
        Some((_, name)) => name.split('"').next().unwrap_or_default().to_owned(),
        None => field.trim().split(':').next().unwrap_or_default().replace('_', "-"),
    };
    for (package, main, most) in [
        (Package::CommensalSched, "crates/commensal-sched/src/main.rs", 9),
        (Package::CommensalSql, "crates/commensal-sql/src/main.rs", 15),
    ] {
        let page = std::fs::read_to_string(root().join(package.page().unwrap())).unwrap().replace('\\', "");
        let code = std::fs::read_to_string(root().join(main)).unwrap();
        // Not the options of the server's own processes.
        let code = code.split("struct WorkerArgs").next().unwrap();
        let lines: Vec<&str> = code.lines().collect();
        let options =
            lines.windows(2).filter(|two| two[0].contains("#[arg(long") && !two[0].contains("hide = true"));
        let names: Vec<String> = options.map(|two| long(two[0], two[1])).collect();
        assert!(names.len() >= most, "{main}: {names:?}");
        for name in names {
            assert!(page.contains(&format!("--{name}")), "{}: --{name} is missing", package.page().unwrap());
        }
    }
}

#[test]
fn checksums_are_those_of_sha256sum() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a b");
    std::fs::write(&file, "abc").unwrap();
    let want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a b\n";
    assert_eq!(checksums(&[file]).unwrap(), want);
}

mod external {
    use super::*;

    /// Whether these programs can be started; prints the skip otherwise.
    fn there(test: &str, programs: &[&str]) -> bool {
        let missing = programs.iter().find(|name| Command::new(name).arg("--version").output().is_err());
        if let Some(missing) = missing {
            println!("skipped: {test}: {missing} is not installed");
        }
        missing.is_none()
    }

    /// Lays out a package with stand-ins for what is built and generated.
    fn stage<'a>(root: &'a Path, package: Package, folder: &Path) -> Stage<'a> {
        let stage = Stage {
            root,
            package,
            folder: folder.join(package.name()),
            version: "1.2.3",
            maintainer: "A <a@b.c>",
        };
        let files: &[&str] = match package {
            Package::Commensal => &[
                "bin/commensal",
                "man/commensal.1",
                "man/commensal-plan.1",
                "man/groups.toml.5",
                "completions/commensal.bash",
                "completions/_commensal",
                "completions/commensal.fish",
                "schema/groups.schema.json",
            ],
            Package::CommensalSched => &["bin/commensal-sched", "man/commensal-sched.1"],
            Package::CommensalSql => &["bin/commensal-sql", "man/commensal-sql.1"],
        };
        for file in files {
            let path = stage.folder.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "stand-in").unwrap();
        }
        stage.texts().unwrap();
        stage
    }

    fn said(program: &str, args: &[&str]) -> String {
        let output = Command::new(program).args(args).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Mode, owner and path of each file, without folders.
    fn files(package: &Path) -> Vec<String> {
        let path = package.display().to_string();
        let lines = match path.ends_with(".deb") {
            true => said("dpkg-deb", &["--contents", &path]),
            false => {
                let format = "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} - - - %{FILENAMES}\n]";
                said("rpm", &["-qp", "--qf", format, &path])
            }
        };
        let words =
            lines.lines().filter(|line| !line.starts_with('d')).map(|line| line.split_whitespace().collect());
        let mut files: Vec<String> = words
            .map(|words: Vec<&str>| format!("{} {} {}", words[0], words[1], words[5].trim_start_matches('.')))
            .collect();
        files.sort();
        files
    }

    const PROGRAM: &str = "-rwxr-xr-x root/root ";
    const FILE: &str = "-rw-r--r-- root/root ";

    #[test]
    fn packages_contain_what_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let root = root();
        if !there("packages_contain_what_is_listed", &["nfpm", "dpkg-deb", "rpm"]) {
            return;
        }
        for (package, program, others) in [
            (Package::Commensal, "/usr/bin/commensal", include_str!("commensal.txt")),
            (Package::CommensalSched, "/usr/bin/commensal-sched", include_str!("commensal-sched.txt")),
            (Package::CommensalSql, "/usr/bin/commensal-sql", include_str!("commensal-sql.txt")),
        ] {
            let stage = stage(&root, package, folder.path());
            for format in [DEB, RPM] {
                let file = folder.path().join(format!("{}.{}", package.name(), format.packager));
                stage.pack(&format, &file).unwrap();
                let others = others.lines().filter_map(|line| match line.split_once(": ") {
                    Some((packager, path)) => (packager == format.packager).then_some(path),
                    None => Some(line),
                });
                let mut want: Vec<String> = others.map(|path| format!("{FILE}{path}")).collect();
                want.push(format!("{PROGRAM}{program}"));
                want.sort();
                assert_eq!(files(&file), want, "{}", file.display());
            }
        }
    }

    /// Each blob has the name of its digest, each reference the digest and the size, and the layer has the tarball's files.
    #[test]
    fn the_image_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let root = root();
        if !there("the_image_is_whole", &["nfpm", "tar", "gzip"]) {
            return;
        }
        let stage = stage(&root, Package::Commensal, folder.path());
        let [tarball, image] = image::make(&stage, folder.path()).unwrap();
        let layout = folder.path().join("unpacked");
        std::fs::create_dir(&layout).unwrap();
        said("tar", &["-xf", image.to_str().unwrap(), "-C", layout.to_str().unwrap()]);
        let json = |bytes: &[u8]| -> serde_json::Value { serde_json::from_slice(bytes).unwrap() };
        let blob = |of: &serde_json::Value| {
            let hash = of["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
            let bytes = std::fs::read(layout.join("blobs/sha256").join(hash)).unwrap();
            assert_eq!((digest(&bytes).as_str(), bytes.len() as u64), (hash, of["size"].as_u64().unwrap()));
            bytes
        };
        assert_eq!(json(&std::fs::read(layout.join("oci-layout")).unwrap())["imageLayoutVersion"], "1.0.0");
        let index = json(&std::fs::read(layout.join("index.json")).unwrap());
        let manifest = json(&blob(&index["manifests"][0]));
        let config = json(&blob(&manifest["config"]));
        let layer = blob(&manifest["layers"][0]);
        assert_eq!(layer, std::fs::read(&tarball).unwrap());
        let unpacked = Command::new("gzip").arg("-dc").arg(&tarball).output().unwrap().stdout;
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", digest(&unpacked)));
        assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/commensal");
        let listed = said("tar", &["--numeric-owner", "-tvzf", tarball.to_str().unwrap()]);
        assert!(listed.lines().all(|line| line.contains(" 0/0 ")), "{listed}");
        assert!(
            listed
                .lines()
                .any(|line| line.starts_with("-rwxr-xr-x") && line.ends_with("./usr/bin/commensal"))
        );
    }
}
