//! The rows of Doris' suite `test_curd_wlg`, in the order and with the texts of its 3.x and its 4.x version.

use crate::World;
use commensal_sql::catalog::{GroupRow, show_groups};
use commensal_sql::property::{ROWS, columns};

/// Columns of some groups, as the suite selects them.
fn rows(world: &World, names: &[&str], columns: fn(&GroupRow) -> Vec<String>) -> Vec<String> {
    let rows =
        world.catalog.group_rows(&world.user).into_iter().filter(|row| names.contains(&row.name.as_str()));
    rows.map(|row| columns(&row).join(" ")).collect()
}

/// What a group's row has for these properties.
fn cells(row: &GroupRow, names: &[&str]) -> Vec<String> {
    let of = |name: &&str| {
        ROWS.iter().find(|known| known.name == *name).unwrap_or_else(|| panic!("no property {name}"))
    };
    names.iter().map(|name| row.cell(of(name)).to_string()).collect()
}

/// Behind the name, in the words of 3.x.
fn old(row: &GroupRow) -> Vec<String> {
    let names = [
        "cpu_share",
        "memory_limit",
        "enable_memory_overcommit",
        "max_concurrency",
        "max_queue_size",
        "queue_timeout",
        "cpu_hard_limit",
        "scan_thread_num",
        "read_bytes_per_second",
        "remote_read_bytes_per_second",
    ];
    [vec![row.name.clone()], cells(row, &names)].concat()
}

/// The same in the words of 4.0.
fn new(row: &GroupRow) -> Vec<String> {
    let names = [
        "min_cpu_percent",
        "max_memory_percent",
        "max_concurrency",
        "max_queue_size",
        "queue_timeout",
        "max_cpu_percent",
        "scan_thread_num",
        "read_bytes_per_second",
        "remote_read_bytes_per_second",
    ];
    [vec![row.name.clone()], cells(row, &names)].concat()
}

fn marks(row: &GroupRow) -> Vec<String> {
    cells(row, &["memory_low_watermark", "memory_high_watermark"])
}

fn remote_threads(row: &GroupRow) -> Vec<String> {
    cells(row, &["max_remote_scan_thread_num", "min_remote_scan_thread_num"])
}

const BOTH: [&str; 2] = ["normal", "test_group"];
/// How the suite makes `normal` what it was.
const RESET: [&str; 12] = [
    "'cpu_share'='1024'",
    "'memory_limit'='50%'",
    "'enable_memory_overcommit'='true'",
    "'max_concurrency'='2147483647'",
    "'max_queue_size'='0'",
    "'queue_timeout'='0'",
    "'cpu_hard_limit'='1%'",
    "'scan_thread_num'='-1'",
    "'remote_read_bytes_per_second'='-1'",
    "'read_bytes_per_second'='-1'",
    "'scan_thread_num'='16'",
    "'cpu_share'='20'",
];

const NOT_CREATED: [(&str, &str); 6] = [
    ("'cpu_share'='-2', 'memory_limit'='1%'", "The allowed cpu_share value is -1 or a positive integer"),
    (
        "'cpu_share'='10', 'memory_limit'='200%'",
        "The sum of all workload group memory_limit within compute group default can not be greater than 100.0%. \
         current sum val:261.0",
    ),
    (
        "'cpu_share'='10', 'memory_limit'='99%'",
        "The sum of all workload group memory_limit within compute group default can not be greater than",
    ),
    (
        "'memory_limit'='3%', 'enable_memory_overcommit'='1', 'cpu_hard_limit'='1%'",
        "The value of 'enable_memory_overcommit' must be true or false.",
    ),
    (
        "'memory_limit'='3%', 'cpu_hard_limit'='120%'",
        "The allowed cpu_hard_limit value is -1 or a positive integer between 1 and 100",
    ),
    (
        "'memory_limit'='3%', 'cpu_hard_limit'='99%'",
        "The sum of all workload group cpu_hard_limit within compute group default can not be greater than 100%",
    ),
];

/// Numbers of queues and rates.
fn numbers_out_of_range(world: &mut World, group: &str) {
    for name in ["max_concurrency", "max_queue_size", "queue_timeout"] {
        world.refused(
            &format!("{group} ( '{name}'='-1' );"),
            &format!(
                "The allowed {name} value is an integer greater than or equal to 0, but input value is -1"
            ),
        );
    }
    for name in ["read_bytes_per_second", "remote_read_bytes_per_second"] {
        for value in ["0", "-2"] {
            world.refused(
                &format!("{group}('{name}'='{value}')"),
                &format!(
                    "The allowed {name} value should be -1 or an positive integer, but input value is {value}"
                ),
            );
        }
    }
}

// promise 45
#[test]
fn the_suite_in_the_words_of_3() {
    let mut world = World::new();
    for property in RESET {
        world.ok(&format!("alter workload group normal properties ( {property} );"));
    }
    let normal = "alter workload group normal properties";
    world.refused(
        &format!("{normal} ( 'cpu_share'='-2' );"),
        "The allowed cpu_share value is -1 or a positive integer, but input value is -2",
    );
    world.refused(
        &format!("{normal} ( 'scan_thread_num'='0' );"),
        "The allowed scan_thread_num value is -1 or a positive integer",
    );
    world.ok("drop workload group if exists test_group;");
    world.ok(
        "create workload group if not exists test_group properties ( 'cpu_share'='10', 'memory_limit'='10%', \
         'enable_memory_overcommit'='true' );",
    );
    assert_eq!(
        rows(&world, &BOTH, old),
        [
            "normal 20 50% true 2147483647 0 0 1% 16 -1 -1",
            "test_group 10 10% true 2147483647 0 0 -1 -1 -1 -1",
        ]
    );
    world.ok("create workload group if not exists test_drop_wg properties ('cpu_share'='10')");
    assert_eq!(rows(&world, &["test_drop_wg"], old), ["test_drop_wg 10 -1 true 2147483647 0 0 -1 -1 -1 -1"]);
    world.ok("drop workload group test_drop_wg");
    assert!(rows(&world, &["test_drop_wg"], old).is_empty());

    let group = "alter workload group test_group properties";
    world.refused(
        &format!("{group} ( 'memory_limit'='100%' );"),
        "The sum of all workload group memory_limit within compute group default can not be greater than 100.0%. current \
         sum val:150.0",
    );
    world.ok(&format!("{group} ( 'memory_limit'='11%' );"));
    world.refused(
        &format!("{group} ( 'enable_memory_overcommit'='1' );"),
        "The value of 'enable_memory_overcommit' must be true or false.",
    );
    world.ok(&format!("{group} ( 'enable_memory_overcommit'='TRUE' );"));
    world.ok(&format!("{group} ( 'enable_memory_overcommit'='false' );"));
    world.refused(
        &format!("{group} ( 'cpu_hard_limit'='101%' );"),
        "The allowed cpu_hard_limit value is -1 or a positive integer between 1 and 100, but input value is 101%",
    );
    let done = world.ok(&format!("{group} ( 'cpu_hard_limit'='99%' );"));
    assert!(done.warnings[0].contains("add up to 100%"), "{done:?}");
    world.refused(
        &format!("{normal} ( 'cpu_hard_limit'='2%' );"),
        "The sum of all workload group cpu_hard_limit within compute group default can not be greater than 100%. current \
         sum val:101",
    );
    assert!(world.ok(&format!("{group} ( 'cpu_hard_limit'='20%' );")).warnings.is_empty());
    numbers_out_of_range(&mut world, group);
    world.ok(&format!("{group} ( 'max_concurrency'='100' );"));
    world.ok(&format!("{group}('remote_read_bytes_per_second'='104857600')"));
    world.ok(&format!("{group}('read_bytes_per_second'='104857600')"));
    assert_eq!(
        rows(&world, &BOTH, old),
        [
            "normal 20 50% true 2147483647 0 0 1% 16 -1 -1",
            "test_group 10 11% false 100 0 0 20% -1 104857600 104857600",
        ]
    );
    for (properties, want) in NOT_CREATED {
        let text = format!("create workload group if not exists test_group2 properties ( {properties} );");
        world.refused(&text, want);
    }
}

const REFUSED_BY_4: [(&str, &str); 13] = [
    (
        "'max_cpu_percent'='101%'",
        "The allowed max_cpu_percent value has to be in [1,100], but input value is 101%",
    ),
    ("'max_cpu_percent'='0'", "The allowed max_cpu_percent value has to be in [1,100], but input value is 0"),
    (
        "'max_memory_percent'='0%'",
        "The allowed max_memory_percent value has to be in [1,100], but input value is 0%",
    ),
    (
        "'max_memory_percent'='x'",
        "The allowed max_memory_percent value has to be in [1,100], but input value is x",
    ),
    (
        "'min_memory_percent'='101'",
        "The allowed min_memory_percent value has to be in [0,100], but input value is 101",
    ),
    ("'max_cpu_percent'='5%'", "max_cpu_percent's value 5 has to be great or equal than min_cpu_percent 10"),
    (
        "'min_memory_percent'='12%'",
        "max_memory_percent's value 11 has to be great or equal than min_memory_percent 12",
    ),
    ("'cpu_hard_limit'='5%'", "min_cpu_percent is 10%, it should be less or equal than max_cpu_percent 5%"),
    (
        "'max_cpu_percent'='100', 'min_cpu_percent'='81'",
        "Sum of min_cpu_percent in default should be less than 100%",
    ),
    ("'slot_memory_policy'='some'", "The value of 'slot_memory_policy' must be one of none, fixed, dynamic."),
    ("'write_buffer_ratio'='-1'", "write_buffer_ratio -1 requires a positive int number."),
    (
        "'cpu_shares'='1', 'max_cpu_percent'='3'",
        "Property cpu_shares is not supported, maybe it is deprecated.",
    ),
    ("'cpu_shares'='1'", "Property cpu_shares is not supported. Did you mean cpu_share?"),
];

// promise 45
#[test]
fn the_suite_in_the_words_of_4() {
    let mut world = World::new();
    for property in [
        "'min_cpu_percent'='20'",
        "'max_memory_percent'='50%'",
        "'max_cpu_percent'='30%'",
        "'scan_thread_num'='16'",
    ] {
        world.ok(&format!("alter workload group normal properties ( {property} );"));
    }
    let normal = "alter workload group normal properties";
    world.refused(
        &format!("{normal} ('min_cpu_percent'='-2')"),
        "The allowed min_cpu_percent value has to be in [0,100], but input value is -2",
    );
    world.ok("create workload group if not exists test_group properties ('min_cpu_percent'='10', \
              'max_memory_percent'='10%');");
    assert_eq!(
        rows(&world, &BOTH, new),
        ["normal 20% 50% 2147483647 0 0 30% 16 -1 -1", "test_group 10% 10% 2147483647 0 0 100% -1 -1 -1",]
    );
    let group = "alter workload group test_group properties";
    // Limits of the new names may add up to more than the whole.
    world.ok(&format!("{group} ('max_memory_percent'='100%', 'max_cpu_percent'='99%');"));
    world.ok(&format!("{group} ('max_memory_percent'='11%', 'max_cpu_percent'='20%');"));
    for (property, want) in REFUSED_BY_4 {
        world.refused(&format!("{group} ({property})"), want);
    }
    world.ok(&format!("{group} ('max_cpu_percent'='100', 'min_cpu_percent'='80')"));
    world.ok(&format!("{normal} ('max_memory_percent'='100', 'min_memory_percent'='95')"));
    world.refused(
        &format!("{group} ('min_memory_percent'='6')"),
        "Sum of min_memory_percent in default should be less than 100%",
    );
    world.ok(&format!("{group} ('slot_memory_policy'='Fixed', 'write_buffer_ratio'='30%')"));
    let row = world.catalog.group_rows(&world.user).pop().unwrap();
    assert_eq!(cells(&row, &["slot_memory_policy", "write_buffer_ratio"]), ["fixed", "30%"]);
}

#[test]
fn watermarks() {
    let mut world = World::new();
    world.refused(
        "create workload group spill_group_test_failed properties ('memory_low_watermark'='96%');",
        "memory_high_watermark(85) should bigger than memory_low_watermark(96)",
    );
    world.ok("create workload group spill_group_test properties \
              ('memory_low_watermark'='10%','memory_high_watermark'='10%');");
    let shown = |world: &World| rows(world, &["spill_group_test"], marks).join(" ");
    assert_eq!(shown(&world), "10% 10%");
    world.refused(
        "create workload group if not exists spill_group_test properties \
         ('memory_low_watermark'='20%','memory_high_watermark'='10%');",
        "memory_high_watermark(10) should bigger than memory_low_watermark(20)",
    );
    let group = "alter workload group spill_group_test properties";
    world.ok(&format!("{group} ('memory_low_watermark'='5%')"));
    assert_eq!(shown(&world), "5% 10%");
    world.refused(
        &format!("{group} ('memory_low_watermark'='20%')"),
        "memory_high_watermark(10) should bigger than",
    );
    for name in ["memory_low_watermark", "memory_high_watermark"] {
        for value in ["0%", "101%"] {
            let number = value.trim_end_matches('%');
            let want = format!(
                "The allowed {name} value is an integer value between 1 and 100, but input value is {number}"
            );
            world.refused(&format!("{group} ('{name}'='{value}')"), &want);
            world.refused(
                &format!("create workload group spill_group_test2 properties ('{name}'='{value}')"),
                &want,
            );
        }
    }
    world.ok(&format!("{group} ('memory_high_watermark'='40%')"));
    assert_eq!(shown(&world), "5% 40%");
    world.refused(
        &format!("{group} ('memory_high_watermark'='1%')"),
        "memory_high_watermark(1) should bigger than",
    );
    world.refused(
        &format!("{group} ('spill_threshold_low_watermark'='0')"),
        "spill_threshold_low_watermark must be a positive integer(1 ~ 100) or -1. but input value is 0",
    );
    world.ok(&format!(
        "{group} ('spill_threshold_low_watermark'='-1', 'spill_threshold_high_watermark'='80')"
    ));
    assert_eq!(shown(&world), "50% 80%");
}

#[test]
fn threads_of_remote_scans() {
    let mut world = World::new();
    let create = "create workload group test_remote_scan_wg properties";
    for one in ["'min_remote_scan_thread_num'='123'", "'max_remote_scan_thread_num'='123'"] {
        world.refused(
            &format!("{create}({one});"),
            "max_remote_scan_thread_num and min_remote_scan_thread_num must be specified simultaneously",
        );
    }
    let bigger = "max_remote_scan_thread_num must bigger or equal min_remote_scan_thread_num";
    world.refused(
        &format!("{create}('max_remote_scan_thread_num'='10', 'min_remote_scan_thread_num'='123');"),
        bigger,
    );
    world.ok(&format!("{create}('max_remote_scan_thread_num'='20', 'min_remote_scan_thread_num'='10');"));
    let alter = "alter workload group test_remote_scan_wg properties";
    let mut check = |given: &str, want: &str| {
        let outcome = world.run(&format!("{alter}({given})"));
        let shown = outcome
            .map_or_else(|error| error, |_| rows(&world, &["test_remote_scan_wg"], remote_threads).join(" "));
        assert_eq!(shown, want, "{given}");
    };
    check("'scan_thread_num'='1'", "20 10");
    check("'max_remote_scan_thread_num'='21'", "21 10");
    check("'max_remote_scan_thread_num'='5'", bigger);
    check("'min_remote_scan_thread_num'='2'", "21 2");
    check("'min_remote_scan_thread_num'='30'", bigger);
    check("'max_remote_scan_thread_num'='40', 'min_remote_scan_thread_num'='20'", "40 20");
    check("'max_remote_scan_thread_num'='3', 'min_remote_scan_thread_num'='3'", "3 3");
    check("'max_remote_scan_thread_num'='-1', 'min_remote_scan_thread_num'='-1'", "-1 -1");
    check(
        "'max_remote_scan_thread_num'='30'",
        "max_remote_scan_thread_num and min_remote_scan_thread_num must be specified simultaneously",
    );
    check(
        "'max_remote_scan_thread_num'='0', 'min_remote_scan_thread_num'='0'",
        "The allowed max_remote_scan_thread_num value is -1 or a positive integer. but input value is 0",
    );
}

#[test]
fn defaults_and_back_to_them() {
    let mut world = World::new();
    world.ok("create workload group default_val_wg properties('enable_memory_overcommit'='true');");
    let shown = |world: &World| {
        let columns = |row: &GroupRow| {
            [old(row), remote_threads(row), marks(row), cells(row, &["compute_group"])].concat()
        };
        rows(world, &["default_val_wg"], columns).join("")
    };
    let unset = "default_val_wg -1 -1 true 2147483647 0 0 -1 -1 -1 -1 -1 -1 75% 85% default";
    assert_eq!(shown(&world), unset);
    world.ok(
        "alter workload group default_val_wg properties('cpu_share'='1024', 'memory_limit'='1%', \
         'enable_memory_overcommit'='true', 'max_concurrency'='100', 'max_queue_size'='1', 'queue_timeout'='123', \
         'cpu_hard_limit'='1%', 'scan_thread_num'='1', 'max_remote_scan_thread_num'='12', \
         'min_remote_scan_thread_num'='10', 'read_bytes_per_second'='123', 'remote_read_bytes_per_second'='10');",
    );
    assert_eq!(shown(&world), "default_val_wg 1024 1% true 100 1 123 1% 1 123 10 12 10 75% 85% default");
    world.ok(
        "alter workload group default_val_wg properties('cpu_share'='-1', 'memory_limit'='-1', \
         'enable_memory_overcommit'='true', 'max_concurrency'='2147483647', 'max_queue_size'='0', 'queue_timeout'='0', \
         'cpu_hard_limit'='-1', 'scan_thread_num'='-1', 'max_remote_scan_thread_num'='-1', \
         'min_remote_scan_thread_num'='-1', 'read_bytes_per_second'='-1', 'remote_read_bytes_per_second'='-1');",
    );
    assert_eq!(shown(&world), unset);
}

// promise 45
#[test]
fn every_row_of_the_older_names() {
    let mut world = World::new();
    let cases = [
        ("'cpu_share'='0'", "The allowed cpu_share value is -1 or a positive integer, but input value is 0"),
        ("'cpu_share'='a'", "The allowed cpu_share value is -1 or a positive integer, but input value is a"),
        (
            "'cpu_hard_limit'='-1%'",
            "The allowed cpu_hard_limit value is -1 or a positive integer between 1 and 100, but input value is -1%",
        ),
        (
            "'cpu_hard_limit'='0'",
            "The allowed cpu_hard_limit value is -1 or a positive integer between 1 and 100, but input value is 0",
        ),
        ("'memory_limit'='10'", "memory_limit 10 requires a percentage and ends with a '%'"),
        ("'memory_limit'='0%'", "memory_limit 0% requires a positive floating point number."),
        ("'memory_limit'='-1%'", "memory_limit -1% requires a positive floating point number."),
        ("'memory_limit'='x%'", "memory_limit x% requires a positive floating point number."),
        ("'memory_limit'='%'", "memory_limit % requires a positive floating point number."),
        ("'memory_limit'='nan%'", "memory_limit nan% requires a positive floating point number."),
        ("'enable_memory_overcommit'='1'", "The value of 'enable_memory_overcommit' must be true or false."),
        (
            "'max_concurrency'='2147483648'",
            "The allowed max_concurrency value is an integer greater than or equal to 0",
        ),
        ("'class'='batch'", "The value of 'class' must be online or offline."),
        (
            "'memory_limit'='1%', 'max_memory_percent'='2%'",
            "memory_limit and max_memory_percent are two names",
        ),
        ("'enable_cpu_hard_limit'='true'", "enable_cpu_hard_limit is not a property of a group"),
        ("'nonsense'='1'", "Property nonsense is not supported."),
    ];
    for (property, want) in cases {
        world.refused(&format!("create workload group g properties({property})"), want);
        world.refused(&format!("alter workload group normal properties({property})"), want);
    }
    // A group with a tag is of 2.1, whose sums are said otherwise.
    world.ok("create workload group a properties('tag'='T1', 'memory_limit'='60%', 'cpu_hard_limit'='60%')");
    world.ok("create workload group b properties('memory_limit'='60%', 'cpu_hard_limit'='60%')");
    world.refused(
        "create workload group c properties('tag'='t1', 'memory_limit'='50%')",
        "The sum of all workload group memory_limit within tag t1 cannot be greater than 100.0%.",
    );
    world.refused(
        "create workload group c properties('tag'='t1', 'cpu_hard_limit'='50%')",
        "sum of all workload group cpu_hard_limit within tag t1 can not be greater than 100% ",
    );
    world.ok("create workload group c properties('tag'='t1', 'memory_limit'='40%', 'cpu_hard_limit'='40')");
    world.refused(
        "alter workload group c properties('cpu_hard_limit'='40.001')",
        "sum of all workload group cpu_hard_limit within tag t1",
    );
}

#[test]
fn fractions_sizes_and_units() {
    let mut world = World::new();
    for (property, column, want) in [
        ("'memory_limit'='0.5%'", 2, "0.5%"),
        ("'memory_limit'='1690MB'", 2, "1690000000 B"),
        ("'memory_limit'='8 GiB'", 2, "8 GiB"),
        ("'memory_limit'='33.33333%'", 2, "33.333%"),
        ("'memory_limit'='0.0000001%'", 2, "0.001%"),
        ("'max_memory_percent'='0.5%'", 2, "0.5%"),
        ("'cpu_hard_limit'='12.5%'", 7, "12.5%"),
        ("'max_cpu_percent'='0.5'", 7, "0.5%"),
        ("'max_cpu_percent'='1.5 cores'", 7, "1.5 CPUs"),
        ("'read_bytes_per_second'='100 MiB/s'", 9, "104857600"),
        ("'read_bytes_per_second'='100 MiB'", 9, "104857600"),
        ("'memory_limit'='-1'", 2, "-1"),
        ("'max_cpu_percent'='100'", 7, "-1"),
    ] {
        world.ok(&format!("alter workload group normal properties({property})"));
        let row = old(&world.catalog.group_rows(&world.user)[0]);
        assert_eq!(row[column], want, "{property}");
    }
}

#[test]
fn rules_about_groups_themselves() {
    let mut world = World::new();
    world.refused("create workload group normal", "Compute group default already has workload group normal.");
    assert!(!world.ok("create workload group if not exists normal").changed);
    world.refused("drop workload group normal", "Dropping workload group normal is not allowed.");
    world.refused("drop workload group if exists normal", "Dropping workload group normal is not allowed.");
    world.refused("drop workload group gone", "Can not find workload group gone in compute group default.");
    assert!(!world.ok("drop workload group if exists gone").changed);
    world.refused(
        "alter workload group gone properties('cpu_share'='1')",
        "Can not find workload group gone in compute group default.",
    );
    world.refused(
        "alter workload group gone for cg properties('cpu_share'='1')",
        "Can not find workload group gone in compute group cg.",
    );
    world.refused("alter workload group normal", "Alter workload group should contain at least one property");
    world.refused(
        "alter workload group normal properties()",
        "Alter workload group should contain at least one property",
    );
    world.refused("create workload group 'a/b'", "group name \"a/b\" contains '/'");
    world.refused("create workload group '../x'", "group name \"../x\" contains '.'");
    world.ok("create workload group g for Cg1 properties('cpu_share'='10')");
    world.refused("create workload group g for cg2", "Compute group cg1 already has workload group g.");
    world.refused("create workload group h for cg2 properties('compute_group'='cg3')", "FOR cg2 contradicts");
    world.refused(
        "create workload group h for 'a b'",
        "The allowed compute_group value is a name of at most 64",
    );
    world.ok("set property for 'root' 'default_workload_group' = 'g'");
    world.refused(
        "drop workload group g for cg1",
        "Workload group g is set for user root, you can reset the user's property(eg, set property for root \
         'default_workload_group'='xxx'; ), then you can drop the group.",
    );
    world.refused("set property 'default_workload_group' = 'gone'", "workload group gone not exists");
    world.refused("set property 'max_connections' = '3'", "Unknown user property(max_connections)");
    for (bad, why) in
        [("0", "not valid, must be between 1 and 10000"), ("10001", "not valid,"), ("x", "not number")]
    {
        let want = format!("max_user_connections is {why}");
        world.refused(&format!("set property 'max_user_connections' = '{bad}'"), &want);
    }
    world.ok("set property 'default_workload_group' = ''");
    world.ok("drop workload group g for cg1");
}

#[test]
fn ids_and_versions() {
    let mut world = World::new();
    world.ok(
        "create workload group a; create workload group b; drop workload group b; create workload group b",
    );
    let ids: Vec<u64> = world.catalog.groups().map(|group| group.id).collect();
    assert!(
        ids.iter().all(|id| *id > 10_000) && ids.iter().max() == Some(&10_004),
        "{ids:?}: no number twice"
    );
    let before = world.catalog.changes();
    world.ok("alter workload group a properties('cpu_share'='2'); alter workload group a properties('cpu_share'='3')");
    assert_eq!(world.catalog.group("a").unwrap().version, 2);
    assert_eq!(world.catalog.changes(), before + 2);
    world.ok("create workload group if not exists a");
    assert_eq!(world.catalog.changes(), before + 2);
}

#[test]
fn not_too_many_groups() {
    let mut world = World::new();
    for number in 1..15 {
        world.ok(&format!("create workload group g{number}"));
    }
    world.refused(
        "create workload group one_more",
        "Workload group number in Compute Group default can not exceed 15",
    );
    world.ok("create workload group elsewhere for cg");
    world.ok("ADMIN SET FRONTEND CONFIG ('workload_group_max_num' = '16')");
    world.ok("create workload group one_more");
}

#[test]
fn configuration() {
    let mut world = World::new();
    world.ok("create workload group g properties('class'='offline', 'cpu_hard_limit'='10%')");
    let limited = |world: &World| world.catalog.cpu_hard_limit(world.catalog.group("g").unwrap()).is_some();
    assert!(limited(&world));
    world.ok("ADMIN SET FRONTEND CONFIG (\"enable_cpu_hard_limit\" = \"false\");");
    assert!(!limited(&world));
    assert!(world.ok("ADMIN SET FRONTEND CONFIG (\"enable_cpu_hard_limit\" = \"true\");").changed);
    assert!(limited(&world));
    let done = world.ok("ADMIN SET FRONTEND CONFIG ('query_queue_update_interval_ms' = '100')");
    assert!(!done.changed && done.warnings[0].contains("has no effect"), "{done:?}");
    world.refused(
        "ADMIN SET FRONTEND CONFIG ('enable_workload_group' = 'false')",
        "enable_workload_group cannot be false",
    );
    world.refused("ADMIN SET FRONTEND CONFIG ('x' = '1')", "Config 'x' does not exist or is not mutable");
    world.refused("ADMIN SET FRONTEND CONFIG ()", "ADMIN SET FRONTEND CONFIG needs at least one key");
    world.refused(
        "ADMIN SET FRONTEND CONFIG ('workload_group_max_num' = '0')",
        "workload_group_max_num must be a number",
    );
}

/// Doris' columns in their order, and what each of ours has its place behind.
#[test]
fn columns_are_where_doris_has_them() {
    let names: Vec<&str> = columns().iter().map(|row| row.name).collect();
    let until_3 = "cpu_share memory_limit enable_memory_overcommit max_concurrency max_queue_size queue_timeout cpu_hard_limit \
                   scan_thread_num max_remote_scan_thread_num min_remote_scan_thread_num memory_low_watermark \
                   memory_high_watermark tag compute_group read_bytes_per_second remote_read_bytes_per_second";
    let of_4 = "min_cpu_percent max_cpu_percent min_memory_percent max_memory_percent write_buffer_ratio \
                slot_memory_policy";
    assert_eq!(names.join(" "), format!("{until_3} {of_4} class"));
    assert_eq!(
        show_groups().join(" "),
        "Id Name min_cpu_percent max_cpu_percent min_memory_percent max_memory_percent max_concurrency max_queue_size \
         queue_timeout scan_thread_num max_remote_scan_thread_num min_remote_scan_thread_num memory_low_watermark \
         memory_high_watermark compute_group read_bytes_per_second remote_read_bytes_per_second write_buffer_ratio \
         slot_memory_policy running_query_num waiting_query_num"
    );
    for (place, row) in columns().iter().enumerate() {
        assert_eq!(
            row.column.map(usize::from),
            Some(place + 2),
            "two columns have the place of {}, or one is free",
            row.name
        );
    }
}
