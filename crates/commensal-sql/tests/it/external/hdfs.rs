//! `HDFS(...)` against Hadoop's own cluster for tests, MiniDFSCluster, whose packages Maven fetches once.

use super::drivers::{kept, output};
use crate::server::client::{Answer, Client};
use crate::server::fixture::{Fixture, eventually, write_hits};
use commensal_sql::protocol::Limits;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;
use tempfile::TempDir;

const POM: &str = include_str!("hdfs/pom.xml");
const MIB: u64 = 1 << 20;
const ROWS: usize = 300_000;

/// A cluster in a process of its own, which ends with this value.
struct Cluster {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Ports of the two name nodes.
    ports: Vec<String>,
    folder: TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder with the packages of Hadoop.
fn packages() -> Result<PathBuf, String> {
    let folder = kept("hadoop-minicluster-3.4.1", |folder| {
        std::fs::write(folder.join("pom.xml"), POM).map_err(|error| error.to_string())?;
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"]);
        output(maven.current_dir(folder)).map(|_| ())
    })?;
    Ok(folder.join("lib"))
}

impl Cluster {
    /// Starts a cluster; says why if that is not possible here.
    fn start(test: &str) -> Option<Cluster> {
        let packages = packages().map_err(|why| println!("skipped: {test}: {}", why.trim())).ok()?;
        let folder = tempfile::tempdir().unwrap();
        let source = std::env::current_dir().unwrap().join("tests/it/external/hdfs/MiniCluster.java");
        let mut java = Command::new("java");
        java.arg("-Xmx600m").arg("-cp").arg(packages.join("*")).arg(source);
        java.arg(folder.path().join("cluster")).current_dir(folder.path());
        java.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = match java.spawn() {
            Ok(child) => child,
            Err(why) => {
                println!("skipped: {test}: java: {why}");
                return None;
            }
        };
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut cluster = Cluster { child, orders, answers, ports: Vec::new(), folder };
        cluster.ports = cluster.answer().split(' ').map(str::to_owned).collect();
        Some(cluster)
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.strip_prefix("ok ").unwrap_or_else(|| panic!("the cluster says {line:?}")).trim().to_owned()
    }

    fn ask(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        self.answer()
    }

    fn put(&mut self, name: &str, write: impl FnOnce(&Path)) {
        let file = self.folder.path().join("file");
        write(&file);
        self.ask(&format!("put {} {name}", file.display()));
    }

    fn text(&mut self, name: &str, text: &str) {
        self.put(name, |file| std::fs::write(file, text).unwrap());
    }

    /// The address of one of the name nodes.
    fn node(&self, number: usize) -> String {
        format!("hdfs://127.0.0.1:{}", self.ports[number])
    }

    fn fixture(&self) -> Fixture {
        let endpoints = vec![self.node(0), self.node(1)];
        Fixture::with(Limits::default(), move |options| {
            options.endpoints.0 = endpoints;
            options.writable = true;
        })
    }
}

fn call(uri: &str, user: &str, more: &str) -> String {
    format!("HDFS(\"uri\" = \"{uri}\", \"hadoop.username\" = \"{user}\", {more})")
}

const CSV: &str = "\"format\" = \"csv\", \"column_separator\" = \",\"";
const PARQUET: &str = "\"format\" = \"parquet\"";

// promises 46, 51
#[test]
fn a_cluster_gives_its_files() {
    let Some(mut cluster) = Cluster::start("a_cluster_gives_its_files") else { return };
    cluster.put("/t/hits.parquet", |file| write_hits(file, ROWS));
    for (day, rows) in [(1, "1\n2\n"), (2, "3\n")] {
        cluster.text(&format!("/days/{day} b.csv"), rows);
    }
    cluster.text("/days/_SUCCESS", "");
    for (city, rows) in [("Ulm", "1\n2\n"), ("Bonn", "3\n")] {
        cluster.text(&format!("/stays/city={city}/1.csv"), rows);
    }
    cluster.text("/slots/slot=10%3A30/1.csv", "7\n");
    cluster.text("/secret.csv", "1\n");
    cluster.ask("mode 600 /secret.csv");
    let fixture = cluster.fixture();
    std::fs::create_dir(fixture.data().join("shop")).unwrap();
    let mut client = fixture.root();
    let node = cluster.node(0);
    let at = |path: &str, more: &str| call(&format!("{node}{path}"), "ann", more);

    let hits = at("/t/hits.parquet", PARQUET);
    let counted = client.query(&format!("select count(*), sum(id), count(distinct g) from {hits}")).rows();
    let sum = (ROWS * (ROWS - 1) / 2).to_string();
    assert_eq!(counted, [[ROWS.to_string(), sum, "1000".to_owned()]]);
    for path in ["/days/*.csv", "/days/"] {
        let days = at(path, CSV);
        assert_eq!(client.query(&format!("select sum(column_1) from {days}")).cell(), "6", "{path}");
        assert_eq!(client.query(&format!("desc function {days}")).rows().len(), 1);
    }
    for path in ["/stays/city=*/*.csv", "/stays/"] {
        let stays = at(path, &format!("{CSV}, \"path_partition_keys\" = \"city\""));
        let sql = format!("select city, sum(column_1) from {stays} group by city order by city");
        assert_eq!(client.query(&sql).rows(), [["Bonn", "3"], ["Ulm", "3"]], "{path}");
        let sql = format!("select max(column_1) from {stays} where city = 'Ulm'");
        assert_eq!(client.query(&sql).cell(), "2");
    }
    // A letter that is encoded in the address, and one in the name of a folder.
    let one = at("/days/1 *.csv", CSV);
    assert_eq!(client.query(&format!("select sum(column_1) from {one}")).cell(), "3");
    let slots = at("/slots/", &format!("{CSV}, \"path_partition_keys\" = \"slot\""));
    assert_eq!(client.query(&format!("select column_1 from {slots} where slot = '10:30'")).cell(), "7");
    client.all(&[
        &format!("create table shop.hits as select * from {hits} where id < 10"),
        &format!("insert into shop.hits select * from {hits} where id < 5"),
    ]);
    assert_eq!(client.query("select count(*) from shop.hits").cell(), "15");

    for (call, part) in [
        (at("/absent.csv", CSV), "absent.csv"),
        (at("/days/1 b.csv", PARQUET), "arquet"),
        (at("/secret.csv", CSV), "Permission denied: user=ann"),
    ] {
        let text = client.query(&format!("select * from {call}")).error();
        assert!(text.contains(part) && !text.contains("\tat "), "{call}: {text}");
    }
    let root = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
    let secret = call(&format!("{node}/secret.csv"), &root, CSV);
    assert_eq!(client.query(&format!("select * from {secret}")).cell(), "1");
    let account = "select kind, read_bytes > 100000 from information_schema.workload_group_reads";
    let account = client.query(&format!("{account} where source = '{node}'")).rows();
    assert_eq!(account, [["remote", "1"]]);
    eventually("nothing is left", || fixture.is_quiet());
}

// promise 51
#[test]
fn another_name_node_becomes_active() {
    let Some(mut cluster) = Cluster::start("another_name_node_becomes_active") else { return };
    cluster.text("/k.csv", "1\n2\n");
    let fixture = cluster.fixture();
    let mut client = fixture.root();
    let ports = cluster.ports.clone();
    let service = format!(
        "{CSV}, \"dfs.nameservices\" = \"Lake\", \"dfs.ha.namenodes.Lake\" = \"NN1,nn2\", \
         \"dfs.namenode.rpc-address.Lake.NN1\" = \"127.0.0.1:{}\", \
         \"dfs.namenode.rpc-address.Lake.nn2\" = \"127.0.0.1:{}\"",
        ports[0], ports[1]
    );
    let lake = call("hdfs://Lake/k.csv", "ann", &service);
    let relative = call("/k.csv", "ann", &format!("{service}, \"fs.defaultFS\" = \"hdfs://Lake\""));
    let sum =
        |client: &mut Client, call: &str| client.query(&format!("select sum(column_1) from {call}")).cell();
    assert_eq!(sum(&mut client, &lake), "3");
    cluster.ask("switch");
    assert_eq!(sum(&mut client, &lake), "3");
    assert_eq!(sum(&mut client, &relative), "3");
    let standby = call(&format!("{}/k.csv", cluster.node(0)), "ann", CSV);
    let text = client.query(&format!("select * from {standby}")).error();
    assert!(text.contains("standby"), "{text}");
}

/// A table of so many mebibytes whose lines take little time to parse.
fn lines(mib: u64) -> String {
    let filler = "x".repeat(1_000);
    (0..mib * 1_000).map(|row| format!("{row},{filler}\n")).collect()
}

// promise 51
#[test]
fn a_data_node_dies_in_the_middle_of_a_read() {
    let Some(mut cluster) = Cluster::start("a_data_node_dies_in_the_middle_of_a_read") else { return };
    let mib = 48;
    cluster.text("/k.csv", &lines(mib));
    let fixture = cluster.fixture();
    let mut client = fixture.root();
    let group = fixture.engine.groups()["normal"].clone();
    let table = call(&format!("{}/k.csv", cluster.node(0)), "ann", CSV);
    client.all(&["alter workload group normal properties('remote_read_bytes_per_second'='8388608')"]);
    client.ask(&format!("select count(*), sum(column_1) from {table}")).unwrap();
    eventually("it has read some blocks", || group.read_bytes().1 > 12 * MIB);
    assert!(group.read_bytes().1 < mib * 9 / 10 * MIB, "it is in the middle of the read");
    cluster.ask("stop");
    let rows = mib * 1_000;
    let sum = (rows * (rows - 1) / 2).to_string();
    assert_eq!(client.answer().unwrap().rows(), [[rows.to_string(), sum]]);
}

#[test]
fn a_name_node_is_given_so_long() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("hdfs://{}", silent.local_addr().unwrap());
    let options = endpoint.clone();
    let fixture = Fixture::with(Limits::default(), move |given| given.endpoints.0 = vec![options]);
    let answer =
        fixture.root().query(&format!("select * from {}", call(&format!("{endpoint}/k.csv"), "a", CSV)));
    assert!(
        matches!(&answer, Answer::Err(_, text) if text.contains("has not answered for 20 s")),
        "{answer:?}"
    );
    // Nobody listens: after some attempts.
    drop(silent);
    let text = fixture
        .root()
        .query(&format!("select * from {}", call(&format!("{endpoint}/l.csv"), "b", CSV)))
        .error();
    assert!(text.contains("refused"), "{text}");
    eventually("nothing is left", || fixture.is_quiet());
}

/// Rates within windows of at least a second, in MiB/s: the least, the mean of all the time, the most.
fn windows(seen: &str) -> (f64, f64, f64) {
    let sample = |pair: &str| {
        let (ns, bytes) = pair.split_once(':').unwrap();
        // Four bytes of checksum for each 512 of data.
        (ns.parse::<f64>().unwrap() / 1e9, bytes.parse::<f64>().unwrap() * 512.0 / 516.0 / MIB as f64)
    };
    let samples: Vec<(f64, f64)> = seen.split(' ').map(sample).collect();
    let rate = |(from, before): (f64, f64), (to, after): (f64, f64)| (after - before) / (to - from);
    let window = |start: &(f64, f64)| {
        let end = samples.iter().find(|(at, _)| at - start.0 >= 1.0)?;
        Some(rate(*start, *end))
    };
    let rates: Vec<f64> = samples.iter().filter_map(window).collect();
    let (first, last) = (samples[0], samples[samples.len() - 1]);
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    (least, rate(first, last), rates.iter().copied().fold(0.0, f64::max))
}

/// The rate is kept at the data nodes, in every window of a second, however many read.
// promise 46
#[test]
fn data_nodes_send_at_the_groups_rate() {
    let Some(mut cluster) = Cluster::start("data_nodes_send_at_the_groups_rate") else { return };
    cluster.text("/k.csv", &lines(128));
    let fixture = cluster.fixture();
    let limit = 20;
    fixture.root().all(&[&format!(
        "alter workload group normal properties('remote_read_bytes_per_second'='{}')",
        limit * MIB
    )]);
    let group = fixture.engine.groups()["normal"].clone();
    let table = call(&format!("{}/k.csv", cluster.node(0)), "ann", CSV);
    for readers in [1, 2, 4, 8] {
        let (before, begun) = (group.read_bytes().1, Instant::now());
        let clients: Vec<Client> = (0..readers)
            .map(|_| {
                let mut client = fixture.root();
                client.ask(&format!("select count(*) from {table}")).unwrap();
                client
            })
            .collect();
        eventually("they read", || group.read_bytes().1 > before);
        let (least, mean, most) = windows(&cluster.ask("watch 5000"));
        let paid = (group.read_bytes().1 - before) as f64 / MIB as f64 / begun.elapsed().as_secs_f64();
        println!(
            "{readers} readers: {least:.2} to {most:.2}, mean {mean:.2}, paid {paid:.2} MiB/s of {limit}"
        );
        // Upwards the bound is tight; downwards the machine may have been somebody else's.
        assert!(most <= limit as f64 * 1.1, "{readers} readers: {most}");
        assert!(mean >= limit as f64 * 0.5, "{readers} readers: {mean}");
        drop(clients);
        eventually("they are gone", || fixture.is_quiet());
    }
}
