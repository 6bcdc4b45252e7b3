//! The rows of Doris' suite `test_workload_sched_policy` and its neighbours.

use crate::World;
use commensal_sql::catalog::{Action, Metrics};

fn rows(world: &World) -> Vec<String> {
    let rows = world.catalog.policy_rows(&world.user).into_iter();
    let row = |row: commensal_sql::catalog::PolicyRow| {
        format!(
            "{}|{}|{}|{}|{}|{}|{}",
            row.name, row.condition, row.action, row.priority, row.enabled, row.version, row.workload_group
        )
    };
    rows.map(row).collect()
}

/// Statements and what is said to them, with the suite's four policies there.
const REFUSED: [(&str, &str); 28] = [
    ("create workload policy p conditions(abc > 123) actions(cancel_query);", "invalid metric name:abc"),
    ("create workload policy p conditions(query_time > 123) actions(abc);", "invalid action type abc"),
    (
        "alter workload policy fe_policy properties('priority'='abc');",
        "invalid priority property value, it must be a number, input value=abc",
    ),
    (
        "alter workload policy fe_policy properties('enabled'='abc');",
        "invalid enabled property value, it can only true or false with lower case",
    ),
    (
        "alter workload policy fe_policy properties('enabled'='True');",
        "invalid enabled property value, it can only true or false with lower case",
    ),
    (
        "alter workload policy fe_policy properties('priority'='10000');",
        "policy's priority can only between 0 ~ 100",
    ),
    (
        "alter workload policy fe_policy properties('priority'='-1');",
        "policy's priority can only between 0 ~ 100",
    ),
    (
        "alter workload policy fe_policy properties('colour'='red', 'size'='1');",
        "illegal policy properties colour,size",
    ),
    (
        "alter workload policy fe_policy properties('workload_group'='invalid_group');",
        "unknown workload group invalid_group",
    ),
    (
        "create workload policy p conditions (query_time > 0) actions(cancel_query, cancel_query);",
        "duplicate action in one policy",
    ),
    (
        "create workload policy p conditions (username = 'root') actions(set_session_variable 'workload_group=normal', set_session_variable 'workload_group=abc');",
        "duplicate set_session_variable action args one policy, workload_group",
    ),
    (
        "create workload policy p conditions(query_time > 1) actions(cancel_query, move_query_to_group 'normal')",
        "CANCEL_QUERY and MOVE_QUERY_TO_GROUP can not exist in one policy at same time",
    ),
    (
        "create workload policy p conditions(query_time > 1) actions(move_query_to_group 'gone')",
        "can not find workload group gone when set workload sched policy",
    ),
    (
        "create workload policy p conditions(username = 'u') actions(cancel_query, set_session_variable 'a=b')",
        "one policy can not contains fe and be action",
    ),
    (
        "create workload policy p conditions(query_time > 1) actions(set_session_variable 'a=b')",
        "action and metric must run in FE together or run in BE together",
    ),
    (
        "create workload policy p conditions(username > 'u') actions(cancel_query)",
        "username only support EQUAL operator",
    ),
    (
        "create workload policy p conditions(username = 'u') actions(set_session_variable 'ab')",
        "illegal arguments, it should be like set_session_variable \"xxx=xxx\"",
    ),
    (
        "create workload policy p conditions(query_be_memory_bytes > '-1') actions(cancel_query);",
        "invalid query be memory bytes value: -1, it requires >= 0",
    ),
    (
        "create workload policy p conditions(query_time > '-1') actions(cancel_query);",
        "invalid query time value: -1, it requires >= 0",
    ),
    (
        "create workload policy p conditions(be_scan_rows > -1) actions(cancel_query);",
        "invalid scan rows value: -1, it requires >= 0",
    ),
    (
        "create workload policy p conditions(be_scan_bytes > 'x') actions(cancel_query);",
        "invalid scan bytes value: x, it requires >= 0",
    ),
    (
        "create workload policy p conditions(be_scan_bytes_from_remote_storage > 1.5) actions(cancel_query);",
        "invalid remote scan bytes value: 1.5, it requires >= 0",
    ),
    ("create workload policy p actions(cancel_query)", "At least one condition needs to be specified"),
    ("create workload policy p conditions(query_time > 1)", "At least one action needs to be specified"),
    (
        "create workload policy p conditions(query_time > 1, query_time > 2, query_time > 3, query_time > 4, query_time > 5, query_time > 6) actions(cancel_query)",
        "condition num in a policy can not exceed 5",
    ),
    (
        "create workload policy fe_policy conditions(query_time > 1) actions(cancel_query)",
        "workload schedule policy fe_policy already exists ",
    ),
    ("alter workload policy gone properties('priority'='1')", "can not find workload schedule policy gone"),
    ("drop workload policy gone", "workload schedule policy gone not exists"),
];

// promise 45
#[test]
fn the_suites_rows() {
    let mut world = World::new();
    world.ok(
        "create workload policy test_cancel_policy conditions(query_time > 10) actions(cancel_query) properties('enabled'='false');
         create workload policy set_action_policy conditions(username='root') actions(set_session_variable 'workload_group=normal') properties('enabled'='false');
         create workload policy fe_policy conditions(username='root') actions(set_session_variable 'workload_group=normal') properties('enabled' = 'false', 'priority'='10');
         create workload policy be_policy conditions(query_time > 10) actions(cancel_query) properties('enabled' = 'false', 'priority'='10');",
    );
    assert_eq!(
        rows(&world),
        [
            "be_policy|query_time > 10|cancel_query|10|false|0|",
            "fe_policy|username = root|set_session_variable \"workload_group=normal\"|10|false|0|",
            "set_action_policy|username = root|set_session_variable \"workload_group=normal\"|0|false|0|",
            "test_cancel_policy|query_time > 10|cancel_query|0|false|0|",
        ]
    );
    world.ok("alter workload policy fe_policy properties('priority'='2', 'enabled'='false');");
    let long =
        format!("create workload policy {} conditions(query_time > 1) actions(cancel_query)", "x".repeat(65));
    world.refused(&long, "invalid name");
    for (text, want) in REFUSED {
        world.refused(text, want);
    }
    assert!(!world.ok("create workload policy if not exists fe_policy conditions(query_time > 1) actions(cancel_query)").changed);
    assert!(!world.ok("drop workload policy if exists gone").changed);
    for name in ["test_cancel_policy", "set_action_policy", "fe_policy", "be_policy"] {
        world.ok(&format!("drop workload policy {name};"));
    }
    assert!(rows(&world).is_empty());
}

#[test]
fn altering_keeps_what_is_not_named_and_counts() {
    let mut world = World::new();
    world.ok("create workload policy test_alter_policy conditions(username='u') actions(set_session_variable 'parallel_pipeline_task_num=0') properties('workload_group'='normal');");
    let head = "test_alter_policy|username = u|set_session_variable \"parallel_pipeline_task_num=0\"|";
    assert_eq!(rows(&world), [format!("{head}0|true|0|normal")]);
    for (property, want) in [
        ("'workload_group'=''", "0|true|1|"),
        ("'enabled'='false'", "0|false|2|"),
        ("'priority'='9'", "9|false|3|"),
        ("'workload_group'='default.normal'", "9|false|4|normal"),
    ] {
        world.ok(&format!("alter workload policy test_alter_policy properties({property});"));
        assert_eq!(rows(&world), [format!("{head}{want}")]);
    }
}

#[test]
fn a_group_with_a_policy_cannot_be_dropped() {
    let mut world = World::new();
    world.ok(
        "create workload group policy_group; create workload group to;
         create workload policy p conditions(query_time > 1000) actions(cancel_query) properties('workload_group'='policy_group');
         create workload policy q conditions(query_time > 1000) actions(move_query_to_group 'to')",
    );
    world.refused(
        "drop workload group policy_group;",
        "Workload group policy_group can't be dropped, because it has related policy",
    );
    world.refused(
        "drop workload group to;",
        "Workload group to can't be dropped, because it has related policy",
    );
    world.ok("alter workload policy p properties('workload_group'=''); drop workload group policy_group");
    world.ok("drop workload policy q; drop workload group to");
}

// promise 47
#[test]
fn which_policies_fire() {
    let mut world = World::new();
    world.ok(
        "create workload group etl;
         create workload policy long conditions(query_time > 1000) actions(cancel_query) properties('workload_group'='etl', 'priority'='5');
         create workload policy longer conditions(query_time >= 2000, be_scan_rows > 1) actions(cancel_query) properties('priority'='7');
         create workload policy set33 conditions(username='u') actions(set_session_variable 'a=33');
         create workload policy set22 conditions(username='u') actions(set_session_variable 'a=22') properties('priority'='10');",
    );
    let query = |time, rows, group: &'static str, user: &'static str| Metrics {
        user,
        group,
        query_time_ms: time,
        scan_rows: rows,
        scan_bytes: 0,
        remote_scan_bytes: 0,
        memory_bytes: 0,
    };
    let firing = |world: &World, metrics: &Metrics<'_>| {
        world.catalog.firing(metrics).iter().map(|policy| policy.name.clone()).collect::<Vec<_>>().join(" ")
    };
    for (metrics, want) in [
        (query(1000, 9, "etl", "x"), ""),
        (query(1001, 9, "etl", "x"), "long"),
        (query(1001, 9, "normal", "x"), ""),
        (query(2000, 1, "etl", "x"), "long"),
        (query(2000, 2, "etl", "x"), "longer"),
        (query(2000, 2, "normal", "u"), "longer set22"),
        (query(0, 0, "normal", "u"), "set22"),
    ] {
        assert_eq!(firing(&world, &metrics), want, "{metrics:?}");
    }
    // Who has the higher priority wins; who is disabled does not count.
    world.ok("alter workload policy set22 properties('enabled'='false')");
    let seen = query(2000, 2, "normal", "u");
    assert_eq!(firing(&world, &seen), "longer set33");
    // Moving against cancelling: priority, and cancelling at a draw.
    world.ok("create workload policy move conditions(query_time > 1) actions(move_query_to_group 'etl') properties('priority'='7')");
    assert_eq!(firing(&world, &seen), "longer set33");
    world.ok("alter workload policy move properties('priority'='8')");
    assert_eq!(firing(&world, &seen), "move set33");
    let moving = world.catalog.policies().find(|policy| policy.name == "move").unwrap();
    assert_eq!(moving.actions, [Action::Move("etl".to_owned())]);
    let longer = world.catalog.policies().find(|policy| policy.name == "longer").unwrap();
    assert_eq!(
        longer.cancel_text("4a-7", &seen),
        format!(
            "query 4a-7 cancelled by workload policy: longer, id:{}, query_time: 2000(>= 2000), be_scan_rows: 2(> 1)",
            longer.id
        )
    );
}

#[test]
fn not_too_many_policies() {
    let mut world = World::new();
    for number in 0..25 {
        world.ok(&format!(
            "create workload policy p{number} conditions(query_time > 1) actions(cancel_query)"
        ));
    }
    world.refused(
        "create workload policy p conditions(query_time > 1) actions(cancel_query)",
        "workload scheduler policy num can not exceed 25",
    );
}
