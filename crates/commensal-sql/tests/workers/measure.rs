//! Offline groups in worker processes: a group that yields to everybody gets nothing while other tests compute, so these run
//! one after the other.

use crate::server::client::{Answer, Client};
use crate::server::fixture::{ENDLESS, Fixture, beside, eventually, shapes};
use commensal_sql::engine::worker::Workers;
use commensal_sql::protocol::Limits;
use commensal_testkit::{Alone, alone};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The program, as `cargo test --workspace` has left it; built when it is not there.
fn commensal() -> PathBuf {
    static BUILD: Once = Once::new();
    let program = Path::new(env!("CARGO_BIN_EXE_commensal-sql")).with_file_name("commensal");
    BUILD.call_once(|| {
        if !program.exists() {
            let status = Command::new(env!("CARGO")).args(["build", "--package", "commensal"]).status();
            assert!(status.unwrap().success());
        }
    });
    program
}

struct Site {
    _alone: Alone,
    fixture: Option<Fixture>,
    prefix: String,
    state: TempDir,
}

impl Site {
    /// A server whose offline groups have workers, if this machine lets us make cgroups; else the reason is printed.
    fn new(test: &str) -> Option<Site> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let alone = alone();
        if !rustix_is_root() {
            println!("skipped: {test}: not root, and cgroups of one's own need it");
            return None;
        }
        let prefix = format!("commensal-sqltest-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let state = tempfile::tempdir().unwrap();
        let options = ["--state-dir", state.path().to_str().unwrap(), "--cgroup-prefix", &prefix];
        let workers = Workers {
            program: env!("CARGO_BIN_EXE_commensal-sql").into(),
            commensal: commensal(),
            options: options.iter().map(Into::into).collect(),
        };
        let fixture = Fixture::with(Limits::default(), |options| options.workers = Some(workers));
        Some(Site { _alone: alone, fixture: Some(fixture), prefix, state })
    }

    fn fixture(&self) -> &Fixture {
        self.fixture.as_ref().unwrap()
    }

    /// A group and a client in it.
    fn offline(&self, name: &str, properties: &str) -> Client {
        let mut root = self.fixture().root();
        let more = if properties.is_empty() { "" } else { ", " };
        root.all(&[&format!("create workload group {name} properties('class'='offline'{more}{properties})")]);
        let mut client = self.fixture().root();
        client.all(&[&format!("set workload_group = '{name}'")]);
        client
    }

    fn column(&self, column: &str, group: &str) -> String {
        let sql = format!(
            "select {column} from information_schema.workload_group_resource_usage where name = '{group}'"
        );
        self.fixture().root().query(&sql).cell()
    }

    /// The cgroups of this site, in any hierarchy.
    fn groups(&self) -> Vec<PathBuf> {
        let below = |folder: &Path| -> Vec<PathBuf> {
            let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
            found.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()).collect()
        };
        let ours = |path: &PathBuf| path.to_string_lossy().contains(&self.prefix);
        let root = Path::new("/sys/fs/cgroup");
        let mut all: Vec<PathBuf> = below(root);
        all.extend(below(root).iter().flat_map(|hierarchy| below(hierarchy)));
        let parents: Vec<PathBuf> = all.into_iter().filter(ours).collect();
        let children: Vec<PathBuf> = parents.iter().flat_map(|parent| below(parent)).collect();
        parents.into_iter().chain(children).collect()
    }

    /// The worker's own process, not `commensal run`.
    fn worker(&self, group: &str) -> u32 {
        let inside = |path: &PathBuf| path.ends_with(group);
        let groups = self.groups();
        let folder = groups.iter().find(|path| inside(path)).unwrap_or_else(|| panic!("{groups:?}"));
        let processes = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap();
        processes.trim().parse().unwrap_or_else(|_| panic!("{processes:?}"))
    }

    fn cgroup_file(&self, group: &str, names: &[&str]) -> String {
        let files = self.groups().into_iter().filter(|path| path.ends_with(group));
        let mut texts = files.flat_map(|path| {
            names.iter().filter_map(move |name| std::fs::read_to_string(path.join(name)).ok())
        });
        texts.next().unwrap().trim().to_owned()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let engine = self.fixture.take().map(|fixture| std::sync::Arc::downgrade(&fixture.engine));
        if std::thread::panicking() {
            return;
        }
        drop(engine);
        eventually("no cgroup is left", || self.groups().is_empty());
        let _ = &self.state;
    }
}

fn rustix_is_root() -> bool {
    rustix::process::geteuid().is_root()
}

// promise 46
#[test]
fn answers_are_the_same() {
    let Some(site) = Site::new("answers_are_the_same") else { return };
    let fixture = site.fixture();
    fixture.clickbench(20_000);
    fixture.csv("odd.csv", "a,b\n1,x\n,\"it's \"\"q\"\" \\\\ ü\"\n3,\n");
    let (mut here, mut there) = (fixture.root(), site.offline("etl", ""));
    // The order of rows that are the same to the statement is anybody's.
    let rows = |client: &mut Client, sql: &str| match client.query(sql) {
        Answer::Rows(columns, mut rows) => {
            rows.sort();
            (columns, rows)
        }
        other => panic!("{sql}: {other:?}"),
    };
    // Those with a limit that cuts ties give any of them.
    for sql in shapes().iter().filter(|sql| !sql.to_lowercase().contains("limit")) {
        assert_eq!(rows(&mut here, sql), rows(&mut there, sql), "{sql}");
    }
    for sql in [
        "select * from odd",
        "select a, b, database(), @@batch_size, concat(b, 'x\\'y') from odd where b is not null",
        "select * from LOCAL(\"file_path\" = \"odd.csv\", \"format\" = \"csv_with_names\")",
        "select * from hits where 1 = 0",
        "explain select count(*) from odd",
    ] {
        assert_eq!(rows(&mut here, sql), rows(&mut there, sql), "{sql}");
    }
    let (id, _) = there.prepare("select count(*) from odd where a >= ? or b = ?").unwrap().unwrap();
    assert_eq!(there.execute(id, &["2", "x"]).unwrap().unwrap(), 1);
    there.all(&["set dry_run_query = true"]);
    assert_eq!(there.query("select * from hits").cell(), "20000");
    there.all(&["set dry_run_query = false"]);
    for wrong in ["select nothing from odd", "select * from missing", "select 1 / 0 from odd where a / 0 = 1"]
    {
        assert_eq!(here.query(wrong).error(), there.query(wrong).error(), "{wrong}");
    }
    assert!(site.column("worker", "etl").starts_with("worker "), "{}", site.column("worker", "etl"));
    assert_eq!(site.column("worker", "normal"), "");
    eventually("nothing is left", || fixture.is_quiet());
}

// promise 46
#[test]
fn the_kernel_keeps_the_cpu_limit_and_takes_another() {
    let Some(site) = Site::new("the_kernel_keeps_the_cpu_limit_and_takes_another") else { return };
    site.fixture().hits("hits.parquet", 20_000);
    let mut client = site.offline("etl", "'cpu_hard_limit'='10%'");
    let mut root = site.fixture().root();
    root.all(&["ADMIN SET FRONTEND CONFIG (\"enable_cpu_hard_limit\" = \"true\")"]);
    client.ask(ENDLESS).unwrap();
    eventually("it runs", || site.column("worker", "etl").starts_with("worker "));
    eventually("the kernel keeps it", || site.column("cpu_limit_by", "etl") == "kernel");
    let quota = || {
        let text = site.cgroup_file("etl", &["cpu.max", "cpu.cfs_quota_us"]);
        text.split_whitespace().next().unwrap().to_owned()
    };
    let before = quota();
    assert!(before.parse::<u64>().is_ok(), "{before}");
    // Twice the limit: twice the quota of the same period, at once.
    root.all(&["alter workload group etl properties('cpu_hard_limit'='20%')"]);
    assert_eq!(quota().parse::<u64>().unwrap(), before.parse::<u64>().unwrap() * 2);
    root.all(&["alter workload group etl properties('cpu_hard_limit'='-1')"]);
    assert!(["max", "-1"].contains(&quota().as_str()), "{}", quota());
    eventually("it is told", || site.column("cpu_limit_by", "etl").is_empty());
    root.all(&["alter workload group etl properties('cpu_hard_limit'='10%')"]);
    assert_eq!(quota(), before);
    eventually("the kernel keeps it again", || site.column("cpu_limit_by", "etl") == "kernel");
    let used = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat"));
        let _ = stat;
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let time = |path: PathBuf| -> Option<u64> {
            let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        tasks.filter_map(|task| time(task.path())).sum::<u64>()
    };
    let pid = site.worker("etl");
    // The kernel counts the periods of a quota while the group has something to run.
    let periods = || -> u64 {
        let folders = site.groups().into_iter().filter(|path| path.ends_with("etl"));
        let texts = folders.filter_map(|path| std::fs::read_to_string(path.join("cpu.stat")).ok());
        let count =
            |text: String| text.lines().find_map(|line| line.strip_prefix("nr_periods ")?.parse().ok());
        texts.filter_map(count).max().unwrap_or(0)
    };
    let first = periods();
    eventually("the quota holds", || periods() > first + 2);
    let (begun, before) = (Instant::now(), used(pid));
    // The time in which the quota is measured.
    std::thread::sleep(Duration::from_secs(3));
    let share = (used(pid) - before) as f64 / begun.elapsed().as_nanos() as f64 / 2.0;
    println!("{:.2} % of two CPUs", share * 100.0);
    // A busy machine gives less; a period may end before or after the look.
    assert!((0.02..0.12).contains(&share), "{share}");
    root.all(&[&format!("kill query {}", client.id)]);
    assert!(matches!(client.answer().unwrap(), Answer::Err(1317, _)));
    eventually("nothing is left", || site.fixture().is_quiet());
}

// promise 46
#[test]
fn a_killed_worker_takes_nobody_along() {
    let Some(site) = Site::new("a_killed_worker_takes_nobody_along") else { return };
    let fixture = site.fixture();
    fixture.hits("hits.parquet", 20_000);
    let mut client = site.offline("etl", "");
    let _other = site.offline("other", "");
    // Online, and with little CPU: others get nothing where online work takes all.
    fixture.root().all(&[
        "ADMIN SET FRONTEND CONFIG (\"enable_cpu_hard_limit\" = \"true\")",
        "create workload group online properties('cpu_hard_limit'='10%')",
    ]);
    let online = beside(fixture.address, &["set workload_group = 'online'"], ENDLESS);
    let third = beside(fixture.address, &["set workload_group = 'other'"], ENDLESS);
    client.ask(ENDLESS).unwrap();
    let running = || fixture.engine.queries.all().iter().filter(|query| query.usage.cpu_ns() > 0).count();
    eventually("all three run", || running() == 3);
    let pid = site.worker("etl");
    let number = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(number, rustix::process::Signal::KILL).unwrap();
    let Answer::Err(code, text) = client.answer().unwrap() else { panic!("it was killed") };
    assert_eq!(code, 1105, "{text}");
    assert!(text.contains("workload group etl has died: it was killed by signal 9"), "{text}");
    assert!(!online.is_finished() && !third.is_finished());
    assert_eq!(client.query("select count(*) from hits").cell(), "20000", "the next one has a new worker");
    assert_ne!(site.worker("etl"), pid);
    for query in fixture.engine.queries.all() {
        fixture.root().all(&[&format!("kill query '{}'", query.identity.id)]);
    }
    assert!(matches!(online.join().unwrap(), Answer::Err(1317, _)));
    assert!(matches!(third.join().unwrap(), Answer::Err(1317, _)));
    eventually("nothing is left", || fixture.is_quiet());
}

// promise 46
#[test]
fn memory_of_the_worker_counts() {
    let Some(site) = Site::new("memory_of_the_worker_counts") else { return };
    let fixture = site.fixture();
    fixture.hits("hits.parquet", 1_000_000);
    let mut client = site.offline(
        "etl",
        "'memory_limit'='48MB', 'enable_memory_overcommit'='false', 'max_concurrency'='1', \
                             'max_queue_size'='9'",
    );
    // Hash joins cannot spill: 1,000,000 rows of about 60 bytes.
    let join = "select count(*) from hits a join hits b on a.url = b.url";
    let text = client.query(join).error();
    assert!(text.contains("MEM_LIMIT_EXCEEDED") && text.contains("limit:45.78 MB"), "{text}");
    eventually("nothing is left", || fixture.is_quiet());
    assert_eq!(client.query("select count(*) from hits").cell(), "1000000", "the worker is still there");
    assert_eq!(site.column("killed_queries", "etl"), "1");
    let peak: f64 = site.column("memory_peak_bytes", "etl").parse().unwrap();
    assert!(peak < 48e6 * 1.05, "{peak}");
    // What can spill does.
    let sorted =
        "select count(*) from (select id, row_number() over (order by g, id) n from hits) x where n > 0";
    assert_eq!(client.query(sorted).cell(), "1000000");
}

// promise 46
#[test]
fn reads_of_the_worker_are_limited_and_shown() {
    let Some(site) = Site::new("reads_of_the_worker_are_limited_and_shown") else { return };
    let fixture = site.fixture();
    fixture.hits("hits.parquet", 300_000);
    let limit: u64 = 2 << 20;
    let mut client = site.offline("etl", &format!("'read_bytes_per_second'='{limit}'"));
    client.all(&["set dry_run_query = true"]);
    let begun = Instant::now();
    assert_eq!(client.query("select url from hits").cell(), "300000");
    let seconds = begun.elapsed().as_secs_f64();
    let reads = "select read_bytes, waits from information_schema.workload_group_reads where name = 'etl'";
    // The worker tells it every 100 ms: the last of it comes after the answer.
    let (mut root, mut before) = (fixture.root(), Vec::new());
    eventually("all of it is told", || {
        // Many of its reports come in the time between two looks.
        std::thread::sleep(Duration::from_secs(1));
        let now = root.query(reads).rows();
        let done = now.len() == 1 && now == before;
        before = now;
        done
    });
    let rows = before;
    let bytes: u64 = rows[0][0].parse().unwrap();
    assert!(bytes > 4 << 20, "{bytes}");
    assert_eq!(fixture.engine.groups()["etl"].read_bytes().0, bytes);
    println!("{:.1} MiB in {seconds:.2} s", bytes as f64 / 1048576.0);
    // The burst, and no more, comes on top.
    assert!(bytes as f64 / seconds < limit as f64 * 1.3, "{bytes} in {seconds}");
    assert!(rows[0][1].parse::<u64>().unwrap() > 0);
}

// promise 46
#[test]
fn who_goes_away_ends_its_query_in_the_worker() {
    let Some(site) = Site::new("who_goes_away_ends_its_query_in_the_worker") else { return };
    let fixture = site.fixture();
    fixture.hits("hits.parquet", 20_000);
    let mut client = site.offline("etl", "");
    client.ask(ENDLESS).unwrap();
    eventually("it runs", || fixture.engine.queries.all().iter().any(|query| query.usage.cpu_ns() > 0));
    drop(client);
    eventually("nothing is left", || fixture.is_quiet());
    let mut root = fixture.root();
    let idle = |root: &mut Client| {
        let sql = "select cpu_usage_percent from information_schema.workload_group_resource_usage where name = 'etl'";
        root.query(sql).cell().parse::<f64>().unwrap() < 20.0
    };
    eventually("the worker computes no more", || idle(&mut root));
    root.all(&["drop workload group etl"]);
    eventually("its cgroup is gone with the group", || {
        !site.groups().iter().any(|path| path.ends_with("etl"))
    });
}
