//! Disks that are full and files that lie.

use crate::server::client::{Answer, Client};
use crate::server::fixture::{Fixture, eventually, write_hits};
use crate::server::process::{Server, start_with};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// A sort that spills to a disk with room for a part of it.
// promise 46
#[test]
fn a_disk_that_is_full_ends_the_query_that_fills_it() {
    let folder = tempfile::tempdir().unwrap();
    let (data, spill) = (folder.path().join("data"), folder.path().join("spill"));
    for path in [&data, &spill] {
        std::fs::create_dir(path).unwrap();
    }
    write_hits(&data.join("hits.parquet"), 2_000_000);
    // In a mount namespace of its own.
    let mount = "mount -t tmpfs -o size=8m none \"$1\"";
    let namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(&spill);
        command
    };
    let probe = namespace(mount).output();
    if !probe.as_ref().is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: a_disk_that_is_full_ends_the_query_that_fills_it: no tmpfs can be mounted here: {probe:?}"
        );
        return;
    }
    let mut command = namespace(&format!("{mount}; shift; exec \"$@\""));
    command.arg(env!("CARGO_BIN_EXE_commensal-sql")).args(["--listen", "127.0.0.1:0", "--workers", "off"]);
    command.arg("--data").arg(&data).arg("--spill").arg(&spill).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let server = Server(child);
    let address = line.trim().strip_prefix("listening on ").unwrap().parse().unwrap();
    let mut client = Client::login(address, "root", "", "").unwrap();
    client.all(&[
        "create workload group m properties('memory_limit'='64MB', 'enable_memory_overcommit'='false')",
        "set workload_group = 'm'",
    ]);
    let sorted =
        "select count(*) from (select id, row_number() over (order by g, id) n from hits) x where n > 0";
    let Answer::Err(code, text) = client.query(sorted) else { panic!("it had room") };
    assert!(code == 1105 && text.contains("No space left on device"), "{code} {text}");
    // What it had spilled is gone, and others go on.
    let files = || {
        let listed = Command::new("find")
            .arg(format!("/proc/{}/root{}", server.0.id(), spill.display()))
            .args(["-type", "f", "!", "-name", "in-use"])
            .output()
            .unwrap();
        String::from_utf8(listed.stdout).unwrap()
    };
    eventually("nothing is left on the disk", || files().is_empty());
    assert_eq!(client.query("select count(*) from hits").cell(), "2000000");
    let used =
        "select memory_usage_bytes from information_schema.workload_group_resource_usage where name = 'm'";
    eventually("its memory is given back", || client.query(used).cell() == "0");
}

/// What a server that was killed had spilled is removed by the next one; one that is told to end leaves nothing.
// promise 46
#[test]
fn spilled_files_do_not_outlive_their_server() {
    let folder = tempfile::tempdir().unwrap();
    let (data, spill) = (folder.path().join("data"), folder.path().join("spill"));
    for path in [&data, &spill] {
        std::fs::create_dir(path).unwrap();
    }
    write_hits(&data.join("hits.parquet"), 1_000_000);
    let args = ["--listen", "127.0.0.1:0", "--workers", "off", "--spill", spill.to_str().unwrap()];
    let spilled = || {
        let listed =
            Command::new("find").arg(&spill).args(["-type", "f", "-size", "+1000k"]).output().unwrap();
        !listed.stdout.is_empty()
    };
    let (mut server, address) = start_with(&data, &args);
    let limit =
        "create workload group m properties('memory_limit'='128MB', 'enable_memory_overcommit'='false')";
    // Each row with all that follow, in order: it spills, and has no end.
    let sorted = "select count(*) from (select a.id, row_number() over (order by a.g, b.id) n from hits a, hits b) x \
                  where n < 0";
    let mut client = Client::login(address, "root", "", "").unwrap();
    client.all(&[limit, "set workload_group = 'm'"]);
    client.ask(sorted).unwrap();
    let mut answer = Some(std::thread::spawn(move || client.answer().map_err(|error| format!("{error:?}"))));
    eventually("it spills", || {
        if answer.as_ref().is_some_and(|answer| answer.is_finished()) {
            panic!("it ended, and should spill: {:?}", answer.take().map(|answer| answer.join()));
        }
        spilled()
    });
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    let answer = answer.take().unwrap().join().unwrap();
    assert!(answer.is_err() && spilled());
    let (mut server, _) = start_with(&data, &args);
    assert!(!spilled() && std::fs::read_dir(&spill).unwrap().count() == 1);
    let term = Command::new("kill").arg(server.0.id().to_string()).status().unwrap();
    assert!(term.success() && server.0.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(&spill).unwrap().count(), 0);
}

/// Bytes of a good file changed at random: an answer or an error, and the server goes on.
// promise 46
#[test]
fn a_damaged_parquet_file_harms_its_own_query_only() {
    const FILES: u64 = 150;
    let fixture = Fixture::new();
    fixture.hits("good.parquet", 3_000);
    let good = std::fs::read(fixture.data().join("good.parquet")).unwrap();
    let mut client = fixture.root();
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut errors = 0;
    for number in 0..FILES {
        let mut bytes = good.clone();
        // Most of the damage in the footer, which says how much there is of everything.
        for _ in 0..=random(4) {
            let at = if random(3) == 0 {
                random(bytes.len())
            } else {
                bytes.len() - 1 - random(bytes.len().min(1_500))
            };
            bytes[at] = random(256) as u8;
        }
        if random(10) == 0 {
            bytes.truncate(random(bytes.len()));
        }
        std::fs::write(fixture.data().join(format!("bad{number}.parquet")), &bytes).unwrap();
        let sql =
            format!("select count(*), max(url), sum(id), min(g) from bad{number} where length(url) > 3");
        errors += u32::from(matches!(client.query(&sql), Answer::Err(..)));
    }
    println!("{errors} of {FILES} files were refused");
    assert!(errors > 0);
    assert_eq!(client.query("select count(*) from good").cell(), "3000");
    eventually("nothing is left", || fixture.is_quiet());
}
