//! Every statement with its parts, and what is said where something else was expected.

use crate::parsed;
use commensal_sql::statement::{
    ActionText, Assignment, ConditionText, Grant, Granted, Grantee, GroupRef, Kill, NewPolicy, Properties,
    Secret, Statement, UserChange, UserName, Value, parse,
};

fn group(name: &str) -> GroupRef {
    GroupRef { name: name.to_owned(), compute_group: None }
}

fn properties(pairs: &[(&str, &str)]) -> Properties {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[track_caller]
fn check(text: &str, want: &Statement) {
    assert_eq!(parsed(text), *want, "{text}");
}

#[test]
fn groups() {
    let created = |if_not_exists, pairs: &[(&str, &str)]| Statement::CreateGroup {
        group: group("g1"),
        if_not_exists,
        properties: properties(pairs),
    };
    check("CREATE WORKLOAD GROUP g1", &created(false, &[]));
    check("create workload group if not exists g1;", &created(true, &[]));
    check(
        "create workload group 'g1' properties ('cpu_share'='1024')",
        &created(false, &[("cpu_share", "1024")]),
    );
    check(
        "create workload group \"g1\" properties(\"CPU_SHARE\"=\"1024\") ;; ",
        &created(false, &[("cpu_share", "1024")]),
    );
    check(
        "create workload group `g1` properties(cpu_share = 1024)",
        &created(false, &[("cpu_share", "1024")]),
    );
    check(
        "/* a */ create -- b\n workload # c\n group g1 properties(memory_limit = 0.5%, scan_thread_num = -1)",
        &created(false, &[("memory_limit", "0.5%"), ("scan_thread_num", "-1")]),
    );
    let in_cg = GroupRef { name: "g1".to_owned(), compute_group: Some("cg".to_owned()) };
    check(
        "create workload group g1 for `cg` properties ('tag'='')",
        &Statement::CreateGroup {
            group: in_cg.clone(),
            if_not_exists: false,
            properties: properties(&[("tag", "")]),
        },
    );
    check(
        "Alter Workload Group g1 For cg Properties('max_concurrency'='1')",
        &Statement::AlterGroup { group: in_cg.clone(), properties: properties(&[("max_concurrency", "1")]) },
    );
    check(
        "alter workload group g1",
        &Statement::AlterGroup { group: group("g1"), properties: properties(&[]) },
    );
    check("drop workload group if exists g1 for cg", &Statement::DropGroup { group: in_cg, if_exists: true });
    check("drop workload group g1", &Statement::DropGroup { group: group("g1"), if_exists: false });
    check("show workload groups", &Statement::ShowGroups { like: None });
    check("show workload groups like 'test%'", &Statement::ShowGroups { like: Some("test%".to_owned()) });
}

#[test]
fn policies() {
    let number = |metric: &str, operator: &'static str, value: &str| ConditionText {
        metric: metric.to_owned(),
        operator,
        value: value.to_owned(),
    };
    let action = |action: &str, argument: Option<&str>| ActionText {
        action: action.to_owned(),
        argument: argument.map(str::to_owned),
    };
    let policy = NewPolicy {
        name: "p".to_owned(),
        if_not_exists: false,
        conditions: vec![number("query_time", ">", "1000"), number("be_scan_bytes", ">=", "5368709120")],
        actions: vec![action("cancel_query", None)],
        properties: properties(&[("enabled", "false"), ("workload_group", "g")]),
    };
    for spelling in ["policy", "schedule policy", "POLICY"] {
        check(
            &format!(
                "create workload {spelling} p conditions(query_time > 1000, be_scan_bytes >= '5368709120') \
                 actions(cancel_query) properties('enabled' = 'false', 'workload_group'='g');"
            ),
            &Statement::CreatePolicy(policy.clone()),
        );
    }
    check(
        "create workload policy if not exists p conditions(username='root') actions(set_session_variable \
         'workload_group=normal', SET_SESSION_VARIABLE \"a=b\")",
        &Statement::CreatePolicy(NewPolicy {
            name: "p".to_owned(),
            if_not_exists: true,
            conditions: vec![number("username", "=", "root")],
            actions: vec![
                action("set_session_variable", Some("workload_group=normal")),
                action("set_session_variable", Some("a=b")),
            ],
            properties: properties(&[]),
        }),
    );
    check(
        "alter workload policy p properties('priority'='2')",
        &Statement::AlterPolicy { name: "p".to_owned(), properties: properties(&[("priority", "2")]) },
    );
    check(
        "drop workload schedule policy if exists p",
        &Statement::DropPolicy { name: "p".to_owned(), if_exists: true },
    );
    check("show workload policy", &Statement::ShowPolicies);
}

#[test]
fn users_may_need_encryption() {
    for (text, tls) in [("", None), (" require ssl", Some(true)), (" REQUIRE NONE", Some(false))] {
        let name = UserName::anywhere("u");
        let change = UserChange { user: name, create: true, lenient: false, password: None, role: None, tls };
        check(&format!("create user u{text}"), &Statement::User(change));
    }
}

#[test]
fn access() {
    let user = |name: &str, host: &str| UserName { name: name.to_owned(), host: host.to_owned() };
    let usage = |revoke, group: &str, grantee| {
        Statement::Grant(Grant { revoke, what: Granted::Group(group.to_owned()), grantee })
    };
    check(
        "GRANT USAGE_PRIV ON WORKLOAD GROUP 'g1' TO 'u'@'%'",
        &usage(false, "g1", Grantee::User(user("u", "%"))),
    );
    check("grant usage_priv on workload group g1 to u", &usage(false, "g1", Grantee::User(user("u", "%"))));
    check(
        "grant USAGE_PRIV on workload group '%' to role 'r'",
        &usage(false, "%", Grantee::Role("r".to_owned())),
    );
    check(
        "revoke USAGE_PRIV ON WORKLOAD GROUP 'g1' FROM u@localhost",
        &usage(true, "g1", Grantee::User(user("u", "localhost"))),
    );
    check(
        "revoke USAGE_PRIV ON WORKLOAD GROUP 'g1' FROM u@'10.%'",
        &usage(true, "g1", Grantee::User(user("u", "10.%"))),
    );
    let objects = |privileges: &[&str], object: [&str; 3]| {
        Statement::Grant(Grant {
            revoke: false,
            what: Granted::Objects {
                privileges: privileges.iter().map(|name| (*name).to_owned()).collect(),
                object: object.map(str::to_owned),
            },
            grantee: Grantee::User(user("u", "%")),
        })
    };
    check("grant SELECT_PRIV on *.*.* to u", &objects(&["SELECT_PRIV"], ["*", "*", "*"]));
    check(
        "grant select_priv, load_priv on hits.* to u",
        &objects(&["SELECT_PRIV", "LOAD_PRIV"], ["*", "hits", "*"]),
    );
    check("grant SELECT_PRIV on hits to u", &objects(&["SELECT_PRIV"], ["*", "hits", "*"]));
    check("grant SELECT_PRIV on hits.hits to u", &objects(&["SELECT_PRIV"], ["*", "hits", "hits"]));
    check(
        "grant 'r', s to u",
        &Statement::Grant(Grant {
            revoke: false,
            what: Granted::Roles(vec!["r".to_owned(), "s".to_owned()]),
            grantee: Grantee::User(user("u", "%")),
        }),
    );
    let change = |create, lenient, password: Option<Secret>, role: Option<&str>| {
        let role = role.map(str::to_owned);
        Statement::User(UserChange { user: user("u", "%"), create, lenient, password, role, tls: None })
    };
    check("create user u", &change(true, false, None, None));
    let plain = || Some(Secret::Plain("12345".to_owned()));
    check(
        "CREATE USER IF NOT EXISTS 'u'@'%' IDENTIFIED BY '12345' DEFAULT ROLE 'r'",
        &change(true, true, plain(), Some("r")),
    );
    check("alter user if exists u identified by '12345'", &change(false, true, plain(), None));
    let hash = Some(Secret::Hash("*AB".to_owned()));
    check("create user u identified by password '*AB'", &change(true, false, hash, None));
    check("drop user if exists u", &Statement::DropUser { user: user("u", "%"), if_exists: true });
    check(
        "create role if not exists r",
        &Statement::CreateRole { name: "r".to_owned(), if_not_exists: true },
    );
    check("drop role r", &Statement::DropRole { name: "r".to_owned(), if_exists: false });
    check("show grants", &Statement::ShowGrants { all: false, user: None });
    check("show all grants", &Statement::ShowGrants { all: true, user: None });
    check("show grants for u", &Statement::ShowGrants { all: false, user: Some(user("u", "%")) });
    let secret = Secret::Plain("x".to_owned());
    check("set password = password('x')", &Statement::SetPassword { user: None, password: secret.clone() });
    check(
        "set password for u = password('x')",
        &Statement::SetPassword { user: Some(user("u", "%")), password: secret },
    );
}

#[test]
fn sessions() {
    let set = |pairs: &[(bool, &str, Value)]| {
        let one = |(global, name, value): &(bool, &str, Value)| Assignment {
            global: *global,
            name: (*name).to_owned(),
            value: value.clone(),
        };
        Statement::Set(pairs.iter().map(one).collect())
    };
    let text = |text: &str| Value::Text(text.to_owned());
    check("set workload_group = 'g1'", &set(&[(false, "workload_group", text("g1"))]));
    check("SET workload_group=normal;", &set(&[(false, "workload_group", text("normal"))]));
    check("set bypass_workload_group = true", &set(&[(false, "bypass_workload_group", text("true"))]));
    check("set dry_run_query = true", &set(&[(false, "dry_run_query", text("true"))]));
    check(
        "set global a = -1, @@session.B := 'x', @@c = default",
        &set(&[(true, "a", text("-1")), (false, "b", text("x")), (false, "c", Value::Default)]),
    );
    check("set @@GLOBAL.a = 1.5", &set(&[(true, "a", text("1.5"))]));
    check(
        "set sql_mode = concat(@@sql_mode, ',A'), b = 1",
        &set(&[
            (false, "sql_mode", Value::Expression("concat(@@sql_mode, ',A')".to_owned())),
            (false, "b", text("1")),
        ]),
    );
    check(
        "set names utf8mb4 collate utf8mb4_bin",
        &set(&[(false, "names", text("utf8mb4")), (false, "collation_connection", text("utf8mb4_bin"))]),
    );
    check(
        "set character_set_results = NULL",
        &set(&[(false, "character_set_results", Value::Expression("NULL".to_owned()))]),
    );
    check("unset variable workload_group", &Statement::UnsetVariable(Some("workload_group".to_owned())));
    check("unset global variable all", &Statement::UnsetVariable(None));
    let default = properties(&[("default_workload_group", "g")]);
    check(
        "set property for 'root' 'default_workload_group' = 'g'",
        &Statement::SetProperty { user: Some("root".to_owned()), properties: default.clone() },
    );
    check(
        "SET PROPERTY default_workload_group = g",
        &Statement::SetProperty { user: None, properties: default },
    );
    check(
        "show property for u like '%workload%'",
        &Statement::ShowProperty { user: Some("u".to_owned()), like: Some("%workload%".to_owned()) },
    );
    let config = properties(&[("enable_cpu_hard_limit", "true")]);
    check(
        "ADMIN SET FRONTEND CONFIG (\"enable_cpu_hard_limit\" = \"true\");",
        &Statement::AdminSetConfig(config.clone()),
    );
    check(
        "admin set all frontends config ('enable_cpu_hard_limit'='true')",
        &Statement::AdminSetConfig(config),
    );
    check(
        "admin show frontend config like 'workload%'",
        &Statement::AdminShowConfig { like: Some("workload%".to_owned()) },
    );
    check("kill 7", &Statement::Kill(Kill::Connection(7)));
    check("KILL CONNECTION 7", &Statement::Kill(Kill::Connection(7)));
    check("kill query 7", &Statement::Kill(Kill::Query(7)));
    check("kill query '4a-7'", &Statement::Kill(Kill::QueryId("4a-7".to_owned())));
    check("show processlist", &Statement::ShowProcesslist { full: false });
    check("SHOW FULL PROCESSLIST", &Statement::ShowProcesslist { full: true });
    check(
        "show session variables like 'x%'",
        &Statement::ShowVariables { like: Some("x%".to_owned()), condition: None },
    );
    let condition = Some("variable_name = 'x'".to_owned());
    check("show variables where variable_name = 'x'", &Statement::ShowVariables { like: None, condition });
    check("", &Statement::Empty);
    check(" ; -- nothing", &Statement::Empty);
}

#[test]
fn statements_by_name() {
    let prepare = |text: Value| Statement::Prepare { name: "s".to_owned(), text };
    check("prepare s from 'select 1; 2'", &prepare(Value::Text("select 1; 2".to_owned())));
    check("PREPARE `s` FROM @a", &prepare(Value::Expression("@a".to_owned())));
    let execute = |values: &[&str]| {
        let values = values.iter().map(ToString::to_string).collect();
        Statement::Execute { name: "s".to_owned(), values }
    };
    check("execute s", &execute(&[]));
    check("EXECUTE s USING @a, @b", &execute(&["@a", "@b"]));
    for text in ["execute s using 1", "execute s using `@a, (select 1)`", "execute s using @@version"] {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.contains("expected a user variable"), "{error}");
    }
    check("deallocate prepare s", &Statement::Deallocate("s".to_owned()));
    check("drop prepare s", &Statement::Deallocate("s".to_owned()));
    let select = "select /*+ SET_VAR(a = 1) */ 2";
    for text in [format!("do ({select})"), format!("explain format = tree {select}")] {
        let Ok(Statement::Do(passed) | Statement::PassedOn(passed)) = parse(&text) else { panic!("{text}") };
        assert_eq!(passed.variables.len(), 1, "{text}");
    }
}

#[test]
fn statements_of_mysql_clients_become_queries() {
    for (sql, want) in [
        ("desc t id", "SHOW COLUMNS FROM `t` LIKE 'id'"),
        ("describe `a b` 'i%'", "SHOW COLUMNS FROM `a b` LIKE 'i%'"),
        ("explain t", "DESCRIBE `t`"),
        ("desc t", "desc t"),
        ("explain select 1", "explain select 1"),
        (
            "show charset like 'u''%'",
            "SELECT * FROM (SELECT `CHARACTER_SET_NAME` AS `Charset`, `DESCRIPTION` AS `Description`, \
             `DEFAULT_COLLATE_NAME` AS `Default collation`, `MAXLEN` AS `Maxlen` FROM information_schema.character_sets) \
             AS shown WHERE `Charset` LIKE 'u''%'",
        ),
    ] {
        let Ok(Statement::PassedOn(passed)) = parse(sql) else { panic!("{sql}: {:?}", parse(sql)) };
        assert_eq!(passed.text, want, "{sql}");
    }
    for (sql, part) in [
        (
            "show index from t",
            "FROM `t` LIMIT 0) AS one) = 0 AND TABLE_SCHEMA = database() AND TABLE_NAME = 't')",
        ),
        (
            "show keys in d.t",
            "FROM `d`.`t` LIMIT 0) AS one) = 0 AND TABLE_SCHEMA = 'd' AND TABLE_NAME = 't')",
        ),
        ("show indexes from t from `d`", "AND TABLE_SCHEMA = 'd' AND TABLE_NAME = 't')"),
        (
            "show table status from d where `Name` = 'x'",
            "WHERE TABLE_SCHEMA = 'd') AS shown WHERE `Name` = 'x'",
        ),
        ("show table status", "WHERE TABLE_SCHEMA = database()) AS shown"),
        (
            "show procedure status where db = 'd'",
            "WHERE ROUTINE_TYPE = 'PROCEDURE') AS shown WHERE `Db` = 'd'",
        ),
    ] {
        let Ok(Statement::PassedOn(passed)) = parse(sql) else { panic!("{sql}: {:?}", parse(sql)) };
        assert!(passed.text.contains(part), "{sql}: {}", passed.text);
    }
}

#[test]
fn lists_of_settings_and_transactions() {
    let set = |pairs: &[(bool, &str, &str)]| {
        let one = |(global, name, value): &(bool, &str, &str)| Assignment {
            global: *global,
            name: (*name).to_owned(),
            value: Value::Text((*value).to_owned()),
        };
        Statement::Set(pairs.iter().map(one).collect())
    };
    check(
        "SET autocommit = 1, NAMES utf8mb4 COLLATE utf8mb4_bin, @@session.sql_mode = 'A', character set utf8",
        &set(&[
            (false, "autocommit", "1"),
            (false, "names", "utf8mb4"),
            (false, "collation_connection", "utf8mb4_bin"),
            (false, "sql_mode", "A"),
            (false, "names", "utf8"),
        ]),
    );
    for (scope, global) in [("SESSION", false), ("local", false), ("GLOBAL", true)] {
        check(
            &format!("SET {scope} TRANSACTION ISOLATION LEVEL READ COMMITTED, READ ONLY"),
            &set(&[
                (global, "transaction_isolation", "READ-COMMITTED"),
                (global, "transaction_read_only", "1"),
            ]),
        );
    }
    check("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ WRITE", &Statement::SetTransaction);
}

#[test]
fn the_rest_is_handed_on_untouched() {
    for text in [
        "select 1",
        "SELECT  'a;b' ,  \"x\"",
        "with a as (select 1) select * from a",
        "insert into t select * from S3('URI' = 'https://b/1.tsv')",
        "create table workload (a int)",
        "drop table if exists `group`",
        "show tables",
        "explain select 1",
        "desc function s3(\"URI\" = \"https://bucketname/1kw.tsv\")",
        "alter table t add column kill int",
    ] {
        let Statement::PassedOn(passed) = parsed(&format!("  {text} ; ")) else {
            panic!("{text} was not handed on")
        };
        assert_eq!((passed.text.as_str(), passed.variables), (text, vec![]));
    }
    // Keys to a store are not in what is logged.
    assert!(!format!("{:?}", parsed("select * from s3('s3.secret_key' = 'hidden')")).contains("hidden"));
    assert!(!format!("{:?}", parsed("create user u identified by 'hidden'")).contains("hidden"));
}

#[test]
fn hints_are_taken_out_of_selects() {
    let variables = |text: &str| match parsed(text) {
        Statement::PassedOn(passed) => {
            assert_eq!(passed.text, text, "the text stays as it is");
            let shown = |set: &Assignment| match &set.value {
                Value::Text(value) => format!("{}={value}", set.name),
                other => format!("{}={other:?}", set.name),
            };
            passed.variables.iter().map(shown).collect::<Vec<_>>().join(" ")
        }
        other => panic!("{text}: {other:?}"),
    };
    for (text, want) in [
        ("select /*+SET_VAR(workload_group=g1)*/ * from t", "workload_group=g1"),
        ("SELECT /*+ set_var(workload_group = 'g1', a=-1) */ 1", "workload_group=g1 a=-1"),
        ("insert into t select /*+SET_VAR(workload_group=g1)*/ * from u", "workload_group=g1"),
        (
            "create table t properties('a'='b') as select /*+SET_VAR(b=2) leading(u) SET_VAR(c=3)*/ 1",
            "b=2 c=3",
        ),
        ("select /*+ leading(a b) */ 1", ""),
        ("select /*+ max_execution_time(1500) SET_VAR(b=2)*/ 1", "max_execution_time=1500 b=2"),
        ("select /* SET_VAR(a=1) */ 1", ""),
        ("select 1 /*+SET_VAR(a=1)*/", ""),
        ("select '/*+SET_VAR(a=1)*/'", ""),
        ("select 1 union select /*+SET_VAR(a=1)*/ 2", "a=1"),
    ] {
        assert_eq!(variables(text), want, "{text}");
    }
    let error = parse("select\n /*+SET_VAR(workload_group)*/ 1").unwrap_err().to_string();
    assert_eq!(error, "syntax error at line 2, column 27: expected \"=\", found \")\"");
}

#[test]
fn errors_say_where_and_what_was_expected() {
    for (text, want) in [
        ("create workload", "line 1, column 16: expected GROUP or POLICY, found the end of the statement"),
        ("create workload g", "line 1, column 17: expected GROUP or POLICY, found \"g\""),
        ("create workload group", "line 1, column 22: expected the name of a workload group, found the end"),
        (
            "create workload group if exists g",
            "line 1, column 26: expected the end of the statement, found \"exists\"",
        ),
        (
            "create workload group g\n properties('a' '1')",
            "line 2, column 17: expected \"=\", found a text in quotes",
        ),
        ("create workload group g properties('a'=)", "line 1, column 40: expected a value, found \")\""),
        (
            "create workload group g properties('a'='1' 'b'='2')",
            "line 1, column 44: expected \",\" or \")\", found a text",
        ),
        (
            "create workload group g properties('a'='1','A'='2')",
            "line 1, column 44: the property \"a\" occurs twice",
        ),
        ("create workload group g properties", "expected \"(\", found the end of the statement"),
        ("alter workload policy p actions(cancel_query)", "cannot be altered"),
        ("alter workload policy p", "expected PROPERTIES, found the end"),
        ("create workload policy p conditions(a ! 1)", "expected one of >, >=, <, <=, ="),
        ("drop workload group g g", "expected the end of the statement, found \"g\""),
        ("show workload group", "expected GROUPS or POLICY, found \"group\""),
        ("show workload groups like x", "expected a pattern in quotes, found \"x\""),
        (
            "grant select_priv on workload group g to u",
            "expected USAGE_PRIV as the only privilege on a workload group",
        ),
        ("grant usage_priv on workload group g from u", "expected TO, found \"from\""),
        ("grant usage_priv", "expected ON or TO, found the end"),
        ("create user u identified by hidden", "expected a password in quotes, found \"hidden\""),
        ("create user u identified with 'hidden'", "expected the end of the statement, found \"identified\""),
        ("set a", "expected \"=\", found the end"),
        ("set a =", "expected a value, found the end"),
        ("set a = 1,", "expected the name of a session variable, found the end"),
        ("set a = 1, names", "expected a character set, found the end"),
        ("set session transaction read", "expected a characteristic of a transaction, found \"read\""),
        ("kill", "expected the id of a connection, found the end"),
        ("kill query x", "expected the id of a connection, or of a query in quotes, found \"x\""),
        ("kill 99999999999999999999", "expected the id of a connection, found a number"),
        ("admin repair table t", "expected SET FRONTEND CONFIG or SHOW FRONTEND CONFIG"),
        ("select 1; select 2", "line 1, column 11: expected the end of the statement"),
        ("select 'open", "line 1, column 8: unterminated string literal"),
    ] {
        let error = parse(text).expect_err(text).to_string();
        assert!(
            error.starts_with("syntax error at line ") && error.contains(want),
            "{text}\n  says: {error}\n  want: {want}"
        );
        assert!(!error.contains("hidden") || want.contains("hidden"), "{error}");
    }
}
