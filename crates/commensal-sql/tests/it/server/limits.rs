//! Limits of groups, as their users meet them.

use crate::server::client::{Answer, Client};
use crate::server::fixture::{CPUS, Fixture, MEMORY, beside, eventually};
use crate::server::wire::ENDLESS;
use std::time::{Duration, Instant};

fn usage(client: &mut Client, column: &str, group: &str) -> f64 {
    let sql = format!(
        "select {column} from information_schema.workload_group_resource_usage where name = '{group}'"
    );
    client.query(&sql).cell().parse().unwrap()
}

// promise 47
#[test]
fn the_queue_lets_in_refuses_and_gives_up() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let mut root = fixture.root();
    root.all(&[
        "create workload group q properties('max_concurrency'='1', 'max_queue_size'='1', 'queue_timeout'='500')",
        "create workload group none properties('max_concurrency'='0', 'max_queue_size'='0')",
        "create workload group slow properties('max_concurrency'='0', 'max_queue_size'='1', 'queue_timeout'='500')",
    ]);
    let mut client = fixture.root();
    client.all(&["set workload_group = 'none'"]);
    assert_eq!(client.query("select * from hits").error(), "query waiting queue is full, queue length=0");
    let hint = "select /*+SET_VAR(workload_group=slow)*/ * from hits";
    assert_eq!(client.query(hint).error(), "query queue timeout, timeout: 500 ms ");
    assert_eq!(client.query("select 1").cell(), "1", "what reads no table needs no place");
    client.all(&["select * from information_schema.workload_groups", "show workload groups"]);
    client.all(&["set bypass_workload_group = true", "select * from hits limit 1"]);
    client.all(&[
        "set bypass_workload_group = false",
        "set query_slot_count = 3",
        "set workload_group = 'q'",
    ]);
    assert_eq!(
        client.query("select * from hits").error(),
        "query slot count 3 should be smaller than workload group's max concurrency 1 and > 0"
    );

    // One runs, one waits and is seen waiting, the third is refused.
    let setup = ["set workload_group = 'q'"];
    let running = beside(fixture.address, &setup, ENDLESS);
    let state = "select count(*) from information_schema.backend_active_tasks where state = ";
    eventually("it runs", || root.query(&format!("{state} 'RUNNING' and query_id like '%-%'")).cell() == "2");
    root.all(&["alter workload group q properties('queue_timeout'='60000')"]);
    let waiting = beside(fixture.address, &setup, "select count(*) from hits");
    eventually("it waits", || root.query(&format!("{state} 'QUEUED'")).cell() == "1");
    let shown = root.query("show workload groups like 'q'").rows();
    assert_eq!(shown[0][19..21], ["1", "1"], "{shown:?}");
    let mut third = fixture.root();
    third.all(&setup);
    assert_eq!(third.query("select * from hits").error(), "query waiting queue is full, queue length=1");
    let listed = root.query("show processlist").rows();
    let of = |state: &str| listed.iter().find(|row| row[6] == state).unwrap()[0].clone();
    assert_ne!(of("QUEUED"), of("RUNNING"));
    root.all(&[&format!(
        "kill query {}",
        listed.iter().find(|row| row[9] == "q" && row[6] == "RUNNING").unwrap()[0]
    )]);
    assert_eq!(running.join().unwrap().error(), "query is cancelled");
    assert_eq!(waiting.join().unwrap().cell(), "20000");
    eventually("nothing runs or waits", || fixture.is_quiet());
}

// promise 47
#[test]
fn a_query_can_be_killed_while_it_waits() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 10);
    let mut root = fixture.root();
    root.all(&["create workload group q properties('max_concurrency'='0', 'max_queue_size'='5')"]);
    let (mut killed, mut gone) = (fixture.root(), fixture.root());
    for client in [&mut killed, &mut gone] {
        client.all(&["set workload_group = 'q'"]);
        client.ask("select * from hits").unwrap();
    }
    let group = fixture.engine.groups()["q"].clone();
    eventually("both wait", || group.queue.lengths() == (0, 2));
    root.all(&[&format!("kill query {}", killed.id)]);
    assert_eq!(killed.answer().unwrap().error(), "query is cancelled");
    drop(gone);
    eventually("nobody waits", || group.queue.lengths() == (0, 0) && fixture.is_quiet());
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

#[test]
fn percents_are_of_the_memory_that_the_server_was_given() {
    let fixture = Fixture::new();
    fixture.root().all(&["create workload group m properties('max_memory_percent'='25%')"]);
    let settings = fixture.engine.groups()["m"].settings();
    assert_eq!(settings.memory.limit, Some(MEMORY as usize / 4));
    assert!(settings.memory.hard);
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

// promise 47
#[test]
fn policies_cancel_and_move() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let mut root = fixture.root();
    root.all(&[
        "create workload group a",
        "create workload group b",
        "create workload policy slow conditions(query_time > 300) actions(cancel_query) properties('workload_group'='a')",
    ]);
    let mut client = fixture.root();
    client.all(&["set workload_group = 'a'"]);
    let text = client.query(ENDLESS).error();
    assert!(text.contains("cancelled by workload policy: slow"), "{text}");
    root.all(&[
        "drop workload policy slow",
        "create workload policy off conditions(query_time > 200) actions(move_query_to_group 'b') properties('workload_group'='a')",
    ]);
    client.ask(ENDLESS).unwrap();
    let groups = fixture.engine.groups();
    let (a, b) = (groups["a"].clone(), groups["b"].clone());
    let moved = || fixture.engine.queries.all().iter().any(|query| query.group().name == "b");
    eventually("it was moved", moved);
    let charged = (a.cpu.charged_ns(), b.cpu.charged_ns());
    eventually("the other group pays", || b.cpu.charged_ns() > charged.1 + 50_000_000);
    let used = b.memory.used();
    assert_eq!(a.memory.used(), 0, "its memory went along: {used}");
    root.all(&[&format!("kill query {}", client.id)]);
    assert!(matches!(client.answer().unwrap(), Answer::Err(1317, _)));
    eventually("nothing is left", || fixture.is_quiet());
}

// promise 47
#[test]
fn a_policy_sets_a_variable_of_a_live_session() {
    let fixture = Fixture::new();
    fixture.hits("hits.parquet", 20_000);
    let mut root = fixture.root();
    root.all(&["create workload policy v conditions(username = 'root') actions(set_session_variable 'batch_size=33')"]);
    let mut client = fixture.root();
    client.ask(ENDLESS).unwrap();
    let connection = fixture.engine.connections.get(u64::from(client.id)).unwrap();
    eventually("it is set", || connection.variables().batch_size() == 33);
    root.all(&["drop workload policy v", &format!("kill query {}", client.id)]);
    client.answer().unwrap();
    assert_eq!(client.query("select @@batch_size").cell(), "33");
}
