//! The catalogue's two files: what is in them, what survives, and what is said of a damaged one.

use crate::{World, cases};
use commensal_core::config;
use commensal_core::group::{Class, OnExceed};
use commensal_core::limit::{CPU_MAX, CPU_WEIGHT, IO_READ, MEMORY_MAX};
use commensal_core::units::Ppm;
use commensal_sql::catalog::{Catalog, GroupRow};
use commensal_sql::property::{MEMORY_BASE, ROWS, columns};
use commensal_sql::statement::UserName;
use proptest::prelude::*;

fn load(groups: &str, sql: &str) -> Result<(Catalog, Vec<String>), String> {
    Catalog::load(("sql.toml", groups), ("catalog.toml", sql), MEMORY_BASE).map_err(|error| error.to_string())
}

/// Both files, written over nothing.
fn files(catalog: &Catalog) -> (String, String) {
    let groups = catalog.groups_toml("sql.toml", "").expect("groups");
    (groups, catalog.sql_toml().expect("SQL's own file"))
}

#[track_caller]
fn survives(world: &World) {
    let (groups, sql) = files(&world.catalog);
    let (again, notes) = load(&groups, &sql).unwrap_or_else(|error| panic!("{error}\n{groups}\n{sql}"));
    assert!(notes.is_empty(), "{notes:?}");
    assert_eq!(again, world.catalog, "{groups}\n{sql}");
}

/// One of everything.
fn full() -> World {
    let mut world = World::new();
    world.ok(
        "create workload group etl properties('class'='offline', 'cpu_hard_limit'='10%', 'memory_limit'='0.5%',
           'enable_memory_overcommit'='false', 'read_bytes_per_second'='104857600', 'max_concurrency'='4',
           'max_queue_size'='100', 'queue_timeout'='600000', 'cpu_share'='512', 'tag'='t', 'scan_thread_num'='3');
         create workload group web properties('max_cpu_percent'='80.5%', 'min_cpu_percent'='20%', 'min_memory_percent'='5',
           'memory_limit'='1690MB', 'memory_low_watermark'='10', 'slot_memory_policy'='dynamic', 'write_buffer_ratio'='7');
         create workload group none properties('max_concurrency'='0', 'queue_timeout'='500');
         create user u identified by 'p'; create user v@'10.%' require ssl; create role r;
         grant usage_priv on workload group etl to role r; grant select_priv, load_priv on hits.* to u; grant r to u;
         grant usage_priv on workload group '%' to v@'10.%'; set property for u 'default_workload_group'='etl';
         create workload policy p conditions(query_time > 10, be_scan_rows >= 2) actions(cancel_query)
           properties('priority'='3', 'workload_group'='etl', 'enabled'='false');
         create workload policy q conditions(username = 'u') actions(set_session_variable 'a=b');
         create workload policy m conditions(query_be_memory_bytes > 1) actions(move_query_to_group 'etl');
         admin set frontend config ('workload_group_max_num' = '20', 'enable_cpu_hard_limit' = 'false')",
    );
    world
}

// promise 48
#[test]
fn everything_survives_a_restart() {
    survives(&World::new());
    survives(&full());
    let mut world = full();
    world
        .ok("drop workload policy p; drop workload policy m; set property for u 'default_workload_group'='';
         drop workload group etl; alter workload group web properties('class'='offline'); drop user u");
    survives(&world);
    // What was dropped leaves no number behind for others.
    world.ok("create workload group later");
    assert_eq!(world.catalog.group("later").unwrap().id, 10_008);
}

/// Files that the version before the table of properties has written, and what that version showed of them.
#[test]
fn files_of_earlier_versions_mean_the_same() {
    let (groups, sql) = (include_str!("stored/sql-groups.toml"), include_str!("stored/sql.toml"));
    let (catalog, notes) = load(groups, sql).unwrap();
    assert!(notes.is_empty(), "{notes:?}");
    let cells =
        |row: &GroupRow| columns().iter().map(|column| row.cell(column).to_string()).collect::<Vec<_>>();
    let rows = catalog.group_rows(&UserName::anywhere("root"));
    let shown: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {} {}", row.id, row.name, cells(row).join(" "), row.version))
        .collect();
    assert_eq!(
        shown,
        [
            "10002 etl 512 0.5% false 4 100 600000 10% 3 -1 -1 75% 85% t t 104857600 -1 0% 10% 0% 0.5% 20% none \
             offline 0",
            "10004 none -1 20% true 0 0 500 -1 -1 -1 -1 75% 85%  default -1 -1 0% 100% 0% 20% 20% fixed online 0",
            "10001 normal -1 -1 true 2147483647 0 0 -1 -1 -1 -1 75% 85%  default -1 -1 0% 100% 0% 100% 20% none online \
             0",
            "10003 web -1 1690000000 B true 2147483647 0 0 80.5% -1 9 2 10% 60%  default -1 -1 20% 80.5% 5% 1690000000 B 7% \
             dynamic online 0",
        ]
    );
    // And what is written today says the same, key by key.
    let table = |text: &str| text.parse::<toml::Table>().expect("TOML");
    assert_eq!(table(&catalog.sql_toml().unwrap()), table(sql));
    assert_eq!(catalog.groups_toml("sql-groups.toml", groups).unwrap(), groups);
}

// promise 48
#[test]
fn groups_are_those_of_groups_d() {
    let (groups, _) = files(&full().catalog);
    let specs = config::parse("sql.toml", &groups).unwrap_or_else(|errors| panic!("{errors:?}\n{groups}"));
    let spec = |name: &str| specs.iter().find(|spec| spec.name.as_str() == name).unwrap();
    let etl = spec("etl");
    assert_eq!(etl.class, Class::Offline);
    assert_eq!(etl.limits.get(CPU_MAX).unwrap().to_string(), "10 % of the machine");
    assert_eq!(etl.limits.get(CPU_WEIGHT).unwrap().v2(), 50);
    assert_eq!(etl.on_exceed, Some(OnExceed::KillLargest));
    assert_eq!(etl.limits.get(IO_READ).unwrap().to_string(), "100 MiB/s");
    let queue = etl.queue.unwrap();
    assert_eq!((queue.max_concurrency, queue.max_size, queue.timeout.unwrap().0), (4, 100, 600_000));
    // An online group has no quota that would stop it while it holds a lock, and a soft limit is no hard one.
    let web = spec("web");
    assert_eq!((web.class, web.limits.get(CPU_MAX), web.limits.get(MEMORY_MAX)), (Class::Online, None, None));
    assert_eq!(web.limits.get(CPU_WEIGHT).unwrap().v2(), 2_000);
    assert_eq!(spec("none").queue, None);
    assert_eq!(
        groups
            .lines()
            .skip_while(|line| *line != "[group.etl]")
            .take_while(|line| !line.is_empty())
            .collect::<Vec<_>>(),
        [
            "[group.etl]",
            "class = \"offline\"",
            "cpu.weight = 50",
            "cpu.max = \"10 %\"",
            "memory.max = \"0.45 %\"",
            "memory.on-exceed = \"kill-largest\"",
            "io.read = \"100 MiB/s\"",
            "queue.max-concurrency = 4",
            "queue.max-size = 100",
            "queue.timeout = \"10 min\"",
        ]
    );
}

// promise 48
#[test]
fn what_people_write_into_the_groups_file_counts_and_stays() {
    let before = "# ours\n[agent]\nheadroom = \"auto\"\n\n[group.etl] # nightly\nclass = \"offline\"\nmatch = [{ cgroup = \"/batch/*\" }]\n\
                  memory = { max = \"1024 MiB\", on-exceed = \"freeze\" }\ncpu.max = \"2.5 cores\" # of four\nqueue.max-concurrency = 4\n";
    let (catalog, notes) = load(before, "").unwrap();
    assert!(notes.is_empty(), "{notes:?}");
    let mut world = World { catalog, user: UserName::anywhere("root") };
    let cell = |world: &World, name: &str| {
        let property = ROWS.iter().find(|row| row.name == name).expect("a property");
        world.catalog.group_rows(&world.user)[0].cell(property).to_string()
    };
    let shown = ["max_memory_percent", "max_cpu_percent", "max_concurrency"].map(|name| cell(&world, name));
    assert_eq!(shown, ["1 GiB", "2.5 CPUs", "4"]);
    let normal = "\n[group.normal]\nclass = \"online\"\n";
    assert_eq!(world.catalog.groups_toml("g", before).unwrap(), format!("{before}{normal}"));
    world.ok(
        "alter workload group etl properties('max_memory_percent'='50%', 'read_bytes_per_second'='1000')",
    );
    let after = world.catalog.groups_toml("g", before).unwrap();
    let want = before.replace("\"1024 MiB\"", "\"45 %\"");
    assert_eq!(after, format!("{want}io.read = \"1000 B/s\"\n{normal}"));
    world.ok("alter workload group etl properties('max_memory_percent'='100%', 'max_cpu_percent'='100%', \
              'max_concurrency'='2147483647')");
    let without = world.catalog.groups_toml("g", &after).unwrap();
    assert!(
        !without.contains("memory") && !without.contains("cpu.max") && !without.contains("queue"),
        "{without}"
    );
    world.ok("drop workload group etl");
    let gone = world.catalog.groups_toml("g", &without).unwrap();
    assert!(gone.contains("headroom = \"auto\"") && !gone.contains("etl"), "{gone}");
}

#[test]
fn what_vanished_from_the_groups_file_is_put_right_and_told() {
    let world = full();
    let (groups, sql) = files(&world.catalog);
    let (again, notes) = load("", &sql).unwrap();
    assert_eq!(again.groups().map(|group| group.name.as_str()).collect::<Vec<_>>(), ["normal"]);
    let told = notes.join("\n");
    for what in [
        "workload group etl is no longer in the groups file and is dropped",
        "workload group normal is no longer in the groups file and has no limits now",
        "workload policy p is dropped, because its workload group etl",
        "workload policy m is dropped, because its workload group etl",
        "user u has lost the default workload group etl",
    ] {
        assert!(told.contains(what), "{told}");
    }
    assert_eq!(again.policies().map(|policy| policy.name.as_str()).collect::<Vec<_>>(), ["q"]);
    assert_eq!(again.group("normal").unwrap().id, world.catalog.group("normal").unwrap().id);
    let user = UserName::anywhere("u");
    assert!(!again.may_use(&user, "etl"));
    // A new one by hand, and one by hand that changes its side.
    let edited = groups.replace("[group.none]\nclass = \"online\"", "[group.none]\nclass = \"offline\"");
    let (again, notes) = load(&format!("{edited}\n[group.hand]\nclass = \"offline\"\n"), &sql).unwrap();
    assert!(notes.is_empty(), "{notes:?}");
    assert_eq!(again.group("none").unwrap().properties.class, Class::Offline);
    assert!(again.groups().all(|group| group.id >= 10_001));
    let ids: std::collections::BTreeSet<u64> = again.groups().map(|group| group.id).collect();
    assert_eq!(ids.len(), again.groups().count());
}

// promise 48
#[test]
fn damage_is_told_with_its_line() {
    let (groups, sql) = files(&full().catalog);
    let id = |name: &str| full().catalog.group(name).unwrap().id.to_string();
    for (groups, sql, want) in [
        (groups.clone(), sql.replace("format = 1", "format = 2"), "catalog.toml:1:1: the file has format 2"),
        (
            groups.clone(),
            sql.replace("format = 1", "format = 1\nfoo = 3"),
            "catalog.toml:4:1: unknown field `foo`",
        ),
        (groups.clone(), sql.replace("priority = 3", "priority = 101"), "policy's priority can only between"),
        (groups.clone(), sql.replace("query_time", "quer_time"), "invalid metric name:quer_time"),
        (
            groups.clone(),
            sql.replace("password-hash = \"*", "password-hash = \""),
            "a password hash is * and 40",
        ),
        (groups.clone(), sql.replace("Select_priv", "Selec_priv"), "there is no privilege Selec_priv"),
        (groups.clone(), sql.replace(&id("web"), &id("etl")), "occurs twice"),
        (groups.clone(), sql.replace("next-id", "next id"), "catalog.toml:4:"),
        (groups.clone(), sql[..sql.find("conditions").unwrap() + 5].to_owned(), "catalog.toml:"),
        (groups.replace("class = \"offline\"", "class = \"ofline\""), sql.clone(), "class must be one of"),
        (groups.replace("cpu.max", "cpu.maxx"), sql.clone(), "did you mean \"cpu.max\"?"),
        ("group = 3".to_owned(), sql.clone(), "sql.toml:1:9:"),
    ] {
        let error = load(&groups, &sql).map(|(_, notes)| notes).expect_err(want);
        assert!(error.contains(want), "{error}\n  want: {want}");
        let place = error.split(": ").next().unwrap_or_default();
        assert!(place.split(':').count() == 3, "no line in {error}");
    }
}

// promise 48
#[test]
fn no_damage_makes_it_panic() {
    let (groups, sql) = files(&full().catalog);
    for end in (0..sql.len()).step_by(3) {
        let _ = load(&groups, &sql[..end]);
    }
    for end in (0..groups.len()).step_by(2) {
        let _ = load(&groups[..end], &sql);
        let _ = full_once().groups_toml("g", &groups[..end]);
    }
}

fn full_once() -> &'static Catalog {
    static FULL: std::sync::OnceLock<Catalog> = std::sync::OnceLock::new();
    FULL.get_or_init(|| full().catalog)
}

/// A property with a value that is mostly in its range.
fn property() -> impl Strategy<Value = (String, String)> {
    let percents = prop_oneof![
        Just("cpu_hard_limit"),
        Just("memory_limit"),
        Just("min_cpu_percent"),
        Just("max_cpu_percent"),
        Just("min_memory_percent"),
        Just("max_memory_percent"),
    ];
    let numbers = prop_oneof![
        Just("cpu_share"),
        Just("max_concurrency"),
        Just("max_queue_size"),
        Just("queue_timeout"),
        Just("scan_thread_num"),
        Just("write_buffer_ratio"),
        Just("read_bytes_per_second"),
        Just("remote_read_bytes_per_second"),
    ];
    let number = prop_oneof![Just(-1i64), Just(0), 1..2_000i64, 1..2_147_483_647i64];
    let words = prop_oneof![
        Just(("class", "online")),
        Just(("class", "offline")),
        Just(("enable_memory_overcommit", "true")),
        Just(("enable_memory_overcommit", "false")),
        Just(("tag", "a")),
        Just(("compute_group", "b")),
        Just(("slot_memory_policy", "fixed")),
        Just(("memory_limit", "1690MB")),
        Just(("max_cpu_percent", "1.5 cores")),
        Just(("memory_low_watermark", "20")),
        Just(("spill_threshold_high_watermark", "90")),
    ];
    prop_oneof![
        (percents, 0u32..105_000).prop_map(|(name, thousandths)| {
            (name.to_owned(), format!("{}.{:03}%", thousandths / 1000, thousandths % 1000))
        }),
        (numbers, number).prop_map(|(name, number)| (name.to_owned(), number.to_string())),
        words.prop_map(|(name, value)| (name.to_owned(), value.to_owned())),
    ]
}

proptest! {
    #![proptest_config(cases(300))]

    /// Whatever was carried out is the same after a restart, and the groups file is one that commensal reads; editing it
    /// step by step comes to the same groups as writing it anew.
    #[test]
    fn whatever_is_carried_out_survives(steps in prop::collection::vec((0usize..4, prop::collection::vec(property(), 0..4)), 1..12)) {
        let mut world = World::new();
        let mut edited = String::new();
        for (group, properties) in steps {
            let pairs: Vec<String> = properties.iter().map(|(name, value)| format!("'{name}'='{value}'")).collect();
            let clause = if pairs.is_empty() { String::new() } else { format!(" properties({})", pairs.join(", ")) };
            let name = ["normal", "a", "b", "c"][group];
            let exists = world.catalog.group(name).is_some();
            let text = match (exists, pairs.is_empty()) {
                (true, true) if group > 0 => format!("drop workload group {name}"),
                (true, _) => format!("alter workload group {name}{clause}"),
                (false, _) => format!("create workload group {name}{clause}"),
            };
            let _ = world.run(&text);
            edited = world.catalog.groups_toml("sql.toml", &edited).unwrap();
        }
        let (groups, sql) = files(&world.catalog);
        for groups in [&groups, &edited] {
            let (again, notes) = load(groups, &sql).map_err(TestCaseError::fail)?;
            prop_assert_eq!(notes.len(), 0);
            prop_assert_eq!(&again, &world.catalog, "{}\n{}", groups, sql);
        }
    }

    /// Percents keep their thousandths on the way to the machine's memory and back.
    #[test]
    fn percents_of_the_memory_base_are_exact(thousandths in 1u64..=100_000) {
        let mut world = World::new();
        let text = format!("{}.{:03}%", thousandths / 1000, thousandths % 1000);
        world.ok(&format!("alter workload group normal properties('memory_limit'='{text}', \
                           'enable_memory_overcommit'='false')"));
        let (groups, sql) = files(&world.catalog);
        let (again, _) = load(&groups, &sql).map_err(TestCaseError::fail)?;
        let limit = again.group("normal").and_then(|group| group.properties.max_memory).map(|limit| limit.amount);
        prop_assert_eq!(limit, Some(commensal_sql::property::MemoryLimit::OfBase(Ppm(thousandths * 10))));
    }
}
