//! Limits of groups as figures: what queries use of memory, CPU time and reads.

use crate::server::client::Client;
use crate::server::fixture::{CPUS, Fixture, eventually};
use std::time::{Duration, Instant};

fn usage(client: &mut Client, column: &str, group: &str) -> f64 {
    let sql = format!(
        "select {column} from information_schema.workload_group_resource_usage where name = '{group}'"
    );
    client.query(&sql).cell().parse().unwrap()
}

// promise 46
#[test]
fn memory_above_the_hard_limit_ends_one_query() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 1_500_000);
    let mut root = fixture.root();
    // 96 MiB: one such query needs more, and may not spill since it has no room to.
    root.all(&["create workload group m properties('memory_limit'='96MB', 'enable_memory_overcommit'='false', 'memory_high_watermark'='100%', 'memory_low_watermark'='100%')"]);
    let mut client = fixture.root();
    client.all(&["set workload_group = 'm'"]);
    let join = "select count(*) from hits a join hits b on a.url = b.url and a.id + 1 > b.id";
    let text = client.query(join).error();
    assert!(
        text.contains("[MEM_LIMIT_EXCEEDED]") && text.contains("Query#Id=") && text.contains("m"),
        "{text}"
    );
    eventually("its memory is given back", || fixture.is_quiet());
    let (peak, _) = fixture.engine.groups()["m"].memory.peak_and_ended();
    let limit = 96 << 20;
    assert!(peak <= limit + limit / 20 + (8 << 20), "{peak} of {limit}");
    assert_eq!(client.query("select count(*) from hits").cell(), "1500000", "the group goes on");
}

// promise 46
#[test]
fn a_query_spills_rather_than_ends() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 2_000_000);
    let mut root = fixture.root();
    root.all(&[
        "create workload group m properties('memory_limit'='64MB', 'enable_memory_overcommit'='false')",
    ]);
    let mut client = fixture.root();
    client.all(&["set workload_group = 'm'"]);
    let sorted =
        "select count(*) from (select id, row_number() over (order by g, id) n from hits) x where n > 0";
    assert_eq!(client.query(sorted).cell(), "2000000");
    let (peak, ended) = fixture.engine.groups()["m"].memory.peak_and_ended();
    assert_eq!(ended, 0);
    assert!(peak > 0 && peak <= (64 << 20) * 21 / 20, "{peak}");
    eventually("nothing is left", || fixture.is_quiet());
}

// promise 46
#[test]
fn the_cpu_hard_limit_holds() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 100_000);
    let mut root = fixture.root();
    root.all(&["create workload group cpu10 properties('cpu_hard_limit'='10%')"]);
    let setup = ["set workload_group = 'cpu10'"];
    let mut busy: Vec<Client> = (0..3).map(|_| fixture.root()).collect();
    for client in &mut busy {
        client.all(&setup);
        client.ask("select count(*) from hits a join hits b on a.g = b.g join hits c on b.g = c.g where a.url < b.url").unwrap();
    }
    let group = fixture.engine.groups()["cpu10"].clone();
    eventually("they run", || group.queue.lengths().0 == 3 && group.cpu.charged_ns() > 100_000_000);
    eventually("they have waited for CPU tokens", || group.cpu.throttled_ns() > 0);
    // What the kernel says that the threads have used, not what we have charged.
    let used = || threads_ns("wg-cpu10");
    let (from, begun) = (used(), Instant::now());
    // The time in which the CPU limit is measured; below, the time without one.
    std::thread::sleep(Duration::from_secs(4));
    let percent = (used() - from) as f64 / begun.elapsed().as_nanos() as f64 / CPUS as f64 * 100.0;
    let told = usage(&mut root, "cpu_usage_percent", "cpu10");
    println!("10 % of {CPUS} CPUs: used {percent:.2} %, shown {told:.2} %");
    // Upwards the bound is tight; downwards the machine may have been somebody else's.
    assert!(percent < 12.0, "{percent}");
    assert!(percent > 4.0, "{percent}");
    assert!((told - percent).abs() < 4.0, "{told} {percent}");
    root.all(&["alter workload group cpu10 properties('cpu_hard_limit'='-1')"]);
    let (from, begun) = (used(), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let free = (used() - from) as f64 / begun.elapsed().as_nanos() as f64 / CPUS as f64 * 100.0;
    assert!(free > percent * 2.0, "without the limit: {free}");
    drop(busy);
    eventually("nothing is left", || fixture.is_quiet());
}

/// CPU time of this process's threads with such a name.
fn threads_ns(name: &str) -> u64 {
    let mut sum = 0;
    for thread in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        if read("comm").trim() == name {
            sum += read("schedstat").split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    sum
}

// promise 46
#[test]
fn the_local_read_limit_holds_for_every_format() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 300_000);
    let csv: String = std::iter::once("a,b\n".to_owned())
        .chain((0..400_000).map(|number| format!("{number},abcdefghijklmnopqrstuvwxyz{number}\n")))
        .collect();
    fixture.csv("text.csv", &csv);
    let mut root = fixture.root();
    let rate: u64 = 8 << 20;
    root.all(&[&format!("create workload group r properties('read_bytes_per_second'='{rate}')")]);
    let mut client = fixture.root();
    client.all(&["set workload_group = 'r'", "set dry_run_query = true"]);
    let group = fixture.engine.groups()["r"].clone();
    for sql in ["select * from hits", "select * from text"] {
        let (before, begun) = (group.read_bytes().0, Instant::now());
        client.all(&[sql]);
        let (bytes, seconds) = (group.read_bytes().0 - before, begun.elapsed().as_secs_f64());
        println!("{sql}: {:.1} MiB in {seconds:.2} s", bytes as f64 / 1048576.0);
        assert!(bytes > 10 << 20, "{sql} has read {bytes}");
        // The burst, and no more, comes on top.
        assert!(bytes as f64 / seconds < rate as f64 * 1.2, "{sql}");
    }
    root.all(&["alter workload group r properties('read_bytes_per_second'='-1')"]);
    let begun = Instant::now();
    client.all(&["select * from hits"]);
    assert!(begun.elapsed() < Duration::from_secs(60));
}

// promise 46
#[test]
fn spilled_bytes_are_charged_when_they_are_read_back() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 2_000_000);
    let mut root = fixture.root();
    root.all(&[
        "create workload group free",
        "create workload group s properties('memory_limit'='80MB', 'enable_memory_overcommit'='false')",
    ]);
    let sorted =
        "select count(*) from (select id, row_number() over (order by g, id) n from hits) x where n > 0";
    let read = |name: &str| {
        let mut client = fixture.root();
        client.all(&[&format!("set workload_group = '{name}'")]);
        assert_eq!(client.query(sorted).cell(), "2000000");
        fixture.engine.groups()[name].read_bytes().0
    };
    let (in_memory, spilled) = (read("free"), read("s"));
    println!("{in_memory} bytes in memory, {spilled} with spilling");
    // 32 MB of rows at least, of which the sort can hold a part.
    assert!(spilled > in_memory + (8 << 20), "{spilled} and {in_memory} bytes");
}
