//! Users, roles, privileges, and in which group a query runs.

use crate::{World, hash};
use commensal_sql::catalog::Privilege;
use commensal_sql::statement::UserName;

/// The rows of the suite's users and roles.
fn privileges(world: &World, user: &str) -> Vec<String> {
    let rows = world.catalog.privilege_rows(&UserName::anywhere(user)).into_iter();
    let ours = rows.filter(|row| row.grantee.contains("test_wg_priv"));
    ours.map(|row| {
        assert_eq!((row.privilege_type, row.is_grantable), ("Usage_priv", "NO"));
        format!("{} {}", row.grantee, row.workload_group_name)
    })
    .collect()
}

// promise 45
#[test]
fn privileges_of_the_suite() {
    let mut world = World::new();
    world.ok("drop user if exists test_wg_priv_user1; drop role if exists test_wg_priv_role1");
    world.ok("create workload group test_wg_priv_g1 properties('cpu_share'='1024')");
    let user = |group: &str| format!("'test_wg_priv_user1'@'%' {group}");
    let role = |group: &str| format!("test_wg_priv_role1 {group}");
    let g1 = "test_wg_priv_g1";
    let mut check = |text: &str, want: &[String]| {
        world.ok(text);
        assert_eq!(privileges(&world, "root"), want, "after {text}");
    };
    let (none, one) = (vec![user("normal")], vec![user("normal"), user(g1)]);
    check("create user test_wg_priv_user1", &none);
    check("GRANT USAGE_PRIV ON WORKLOAD GROUP 'test_wg_priv_g1' TO test_wg_priv_user1;", &one);
    check("revoke USAGE_PRIV ON WORKLOAD GROUP 'test_wg_priv_g1' from test_wg_priv_user1;", &none);
    check("GRANT USAGE_PRIV ON WORKLOAD GROUP 'test_wg_priv_g1' TO test_wg_priv_user1;", &one);
    check("create role test_wg_priv_role1;", &one);
    let both = [one.clone(), vec![role(g1)]].concat();
    check("GRANT USAGE_PRIV ON WORKLOAD GROUP 'test_wg_priv_g1' TO role 'test_wg_priv_role1';", &both);
    check("revoke USAGE_PRIV ON WORKLOAD GROUP 'test_wg_priv_g1' from role 'test_wg_priv_role1';", &one);
    check("GRANT USAGE_PRIV ON WORKLOAD GROUP 'test_wg_priv_g1' TO role 'test_wg_priv_role1';", &both);
    check(
        "GRANT USAGE_PRIV ON WORKLOAD GROUP '%' TO test_wg_priv_user1; GRANT USAGE_PRIV ON WORKLOAD GROUP '%' TO role 'test_wg_priv_role1'; ",
        &[user("%"), user("normal"), user(g1), role("%"), role(g1)],
    );
    check(
        "revoke USAGE_PRIV ON WORKLOAD GROUP '%' from test_wg_priv_user1; revoke USAGE_PRIV ON WORKLOAD GROUP '%' from role 'test_wg_priv_role1'; ",
        &both,
    );
    // Everybody sees only rows of their own.
    world.ok("create user test_wg_priv_user2; grant SELECT_PRIV on *.*.* to test_wg_priv_user2");
    assert_eq!(privileges(&world, "test_wg_priv_user2"), ["'test_wg_priv_user2'@'%' normal"]);
    world.ok("grant 'test_wg_priv_role1' to test_wg_priv_user2");
    assert_eq!(
        privileges(&world, "test_wg_priv_user2"),
        ["'test_wg_priv_user2'@'%' normal".to_owned(), role(g1)]
    );
    world.ok("drop user test_wg_priv_user1; drop user test_wg_priv_user2; drop role test_wg_priv_role1");
    assert!(privileges(&world, "root").is_empty());
}

#[test]
fn the_privilege_is_asked_for_when_a_query_runs() {
    let mut world = World::new();
    world.ok("create workload group test_group; create user 'test_wlg_user'@'%' IDENTIFIED BY '12345';
         grant SELECT_PRIV on *.*.* to test_wlg_user;");
    let user = UserName::anywhere("test_wlg_user");
    let group = |world: &World, session: Option<&str>| {
        let group = world.catalog.group_of(session, &user);
        group.map_or_else(|error| error.to_string(), |group| group.name.to_string())
    };
    let denied = |group: &str| {
        format!(
            "Access denied; you need (at least one of) the USAGE/ADMIN privilege(s) to use workload group '{group}'. User: \
             'test_wlg_user'@'%'"
        )
    };
    assert_eq!(group(&world, None), "normal");
    assert_eq!(group(&world, Some("")), "normal");
    assert_eq!(group(&world, Some("test_group")), denied("test_group"));
    assert_eq!(group(&world, Some("gone")), denied("gone"));
    world.refused(
        "GRANT USAGE_PRIV ON WORKLOAD GROUP grant_test_wg TO 'test_wlg_user'@'%';",
        "Can not find workload group grant_test_wg in compute group default.",
    );
    // Session, then the user's default, then normal.
    world.ok("set property for 'test_wlg_user' 'default_workload_group' = 'test_group'");
    assert_eq!(group(&world, None), denied("test_group"));
    world.ok("GRANT USAGE_PRIV ON WORKLOAD GROUP 'test_group' TO 'test_wlg_user'@'%';");
    assert_eq!(group(&world, None), "test_group");
    assert_eq!(group(&world, Some("normal")), "normal");
    let names = |world: &World| {
        world.catalog.group_rows(&user).iter().map(|row| row.name.clone()).collect::<Vec<_>>().join(" ")
    };
    world.ok("create workload group hidden");
    assert_eq!(names(&world), "normal test_group");
    world.ok("create role r; grant usage_priv on workload group '%' to role r; grant r to test_wlg_user");
    assert_eq!(names(&world), "hidden normal test_group");
    assert_eq!(group(&world, Some("gone")), "Can not find workload group gone in compute group default.");
    // A group that comes again does not bring old privileges with it.
    world.ok("revoke r from test_wlg_user; set property for test_wlg_user 'default_workload_group'='';
         drop workload group test_group; create workload group test_group");
    assert_eq!(group(&world, Some("test_group")), denied("test_group"));
    let root = UserName::anywhere("root");
    assert_eq!(world.catalog.group_of(Some("test_group"), &root).unwrap().name.as_str(), "test_group");
}

#[test]
fn only_who_may_changes_things() {
    let mut world = World::new();
    world.ok("create user u; create user admin2; grant ADMIN_PRIV on *.*.* to admin2");
    let denied = "Access denied; you need (at least one of) the (ADMIN) privilege(s) for this operation";
    let mut other = World { catalog: world.catalog.clone(), user: UserName::anywhere("u") };
    for text in [
        "create workload group g",
        "alter workload group normal properties('cpu_share'='1')",
        "drop workload group g",
        "create workload policy p conditions(query_time > 1) actions(cancel_query)",
        "grant admin_priv on *.*.* to u",
        "grant usage_priv on workload group '%' to u",
        "create user v",
        "drop user admin2",
        "create role r",
        "set password for root = password('x')",
        "alter user root identified by 'x'",
        "set property for 'root' 'default_workload_group' = 'normal'",
        "admin set frontend config ('enable_cpu_hard_limit' = 'false')",
    ] {
        other.refused(text, denied);
        other.user = UserName::anywhere("nobody");
        other.refused(text, denied);
        other.user = UserName::anywhere("u");
    }
    // One's own password and property.
    other.ok("set password = password('x'); set property 'default_workload_group' = 'normal'; set property for u 'default_workload_group' = 'normal'");
    world.as_user("admin2").ok("create workload group g; drop user u");
    world.refused("drop user root", "Can not drop user root");
    world.refused("revoke admin_priv on *.*.* from root", "Can not revoke privileges from root");
}

#[test]
fn users_and_passwords() {
    let mut world = World::new();
    let password = |world: &World, name: &str, host: &str| {
        let (_, user) = world.catalog.login(name, host).expect("somebody");
        user.password.as_ref().map(|hash| hash.as_str().to_owned())
    };
    assert_eq!(password(&world, "root", "127.0.0.1"), None);
    let hashed = |text: &str| Some(hash(text).as_str().to_owned());
    world.ok("create user u identified by 'one'; create user u@'10.%' identified by 'two'; create user u@'10.0.0.1' identified by 'three'");
    assert_eq!(password(&world, "u", "192.168.0.1"), hashed("one"));
    assert_eq!(password(&world, "u", "10.1.0.1"), hashed("two"));
    assert_eq!(password(&world, "u", "10.0.0.1"), hashed("three"));
    assert!(world.catalog.login("v", "10.0.0.1").is_none());
    // Names of hosts are the same in upper and lower case.
    world.ok("create user h@'db_.Example.com' identified by 'four'; create user h@'DB1.example.COM' identified by 'five'");
    assert_eq!(password(&world, "h", "db2.example.com"), hashed("four"));
    assert_eq!(password(&world, "h", "db1.example.com"), hashed("five"));
    assert!(
        world.catalog.login("H", "db2.example.com").is_none()
            && world.catalog.login("h", "db.example.com").is_none()
    );
    world.ok("alter user u identified by 'new'");
    assert_eq!(password(&world, "u", "1.1.1.1"), hashed("new"));
    world.ok("set password for u = password('')");
    assert_eq!(password(&world, "u", "1.1.1.1"), None);
    let given = format!("*{}", "ab".repeat(20));
    world.ok(&format!("alter user u identified by password '{given}'"));
    assert_eq!(password(&world, "u", "1.1.1.1"), Some(given.to_uppercase()));
    for bad in ["ab", "*ab", "*zz2470C0C06DEE42FD1618BB99005ADCA2EC9D1E19"] {
        world.refused(&format!("alter user u identified by password '{bad}'"), "a password hash is * and 40");
    }
    world.refused("create user u", "User 'u'@'%' already exist");
    assert!(!world.ok("create user if not exists u identified by 'other'").changed);
    assert_eq!(password(&world, "u", "1.1.1.1"), Some(given.to_uppercase()));
    world.refused("alter user gone identified by 'x'", "User 'gone'@'%' does not exist");
    world.refused("drop user gone", "User 'gone'@'%' does not exist");
    world.refused("set password for gone = password('x')", "User 'gone'@'%' does not exist");
    world.refused("create user w default role gone", "Role: gone does not exist");
    world.refused("create user 'a b'", "invalid name \"a b\"");
    world.refused("create user ''", "invalid name \"\"");
    // Nothing that is printed has a password or its hash in it.
    assert!(!format!("{:?}", world.catalog).to_uppercase().contains("ABAB"));
}

#[test]
fn roles_and_tables() {
    let mut world = World::new();
    world.ok("create user u; create role r; grant SELECT_PRIV on internal.hits.* to role r");
    let user = UserName::anywhere("u");
    let may = |world: &World, privilege, object| world.catalog.may(&user, privilege, object);
    assert!(!may(&world, Privilege::Select, ["internal", "hits", "hits"]));
    world.ok("grant r to u");
    assert!(may(&world, Privilege::Select, ["internal", "hits", "hits"]));
    assert!(!may(&world, Privilege::Select, ["internal", "other", "hits"]));
    assert!(!may(&world, Privilege::Load, ["internal", "hits", "hits"]));
    world.ok("grant LOAD_PRIV on hits.t to u");
    assert!(may(&world, Privilege::Load, ["internal", "hits", "t"]));
    world.ok("revoke LOAD_PRIV on hits.t from u; drop role r");
    assert!(!may(&world, Privilege::Load, ["internal", "hits", "t"]));
    assert!(!may(&world, Privilege::Select, ["internal", "hits", "hits"]));
    world.refused("grant ADMIN_PRIV on hits.* to u", "ADMIN_PRIV can only be granted or revoked on *.*.*");
    world.refused("grant NODE_PRIV on *.*.* to u", "privilege NODE_PRIV is not supported");
    world.refused("grant gone to u", "Role: gone does not exist");
    world.refused("grant select_priv on *.*.* to role gone", "Role: gone does not exist");
    world.refused("create role 'a b'", "invalid name");
    world.ok("grant ADMIN_PRIV on *.*.* to u");
    assert!(world.catalog.is_admin(&user));
}
