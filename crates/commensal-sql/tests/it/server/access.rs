//! Who may connect, and what they may see.

use crate::server::client::{Answer, Client, ClientError};
use crate::server::fixture::{Fixture, eventually};
use commensal_sql::engine::password::{self, Method};
use commensal_sql::protocol::{Access, Origin, decide};
use std::net::{IpAddr, TcpListener};

#[test]
fn users_need_their_password() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "a\n1\n");
    let mut root = fixture.root();
    root.all(&["create user jack identified by 'geheim'", "grant select_priv on internal.main.* to jack"]);
    assert_eq!(
        Client::login(fixture.address, "jack", "geheim", "main").unwrap().query("select a from t").cell(),
        "1"
    );
    for (user, password) in [("jack", "Geheim"), ("jack", ""), ("nobody", ""), ("root", "x")] {
        let refused = Client::login(fixture.address, user, password, "").unwrap_err();
        assert!(matches!(refused, ClientError::Server { code: 1045, .. }), "{user} {password}: {refused}");
        assert!(!refused.to_string().contains("geheim"));
    }
    root.all(&["set password for jack = password('n3uesPW')"]);
    assert!(Client::login(fixture.address, "jack", "geheim", "").is_err());
    assert!(Client::login(fixture.address, "jack", "n3uesPW", "").is_ok());
    let kept = std::fs::read_to_string(fixture.folder.path().join("state/sql.toml")).unwrap();
    assert!(kept.contains("jack") && !kept.contains("n3uesPW") && !kept.contains("geheim"), "{kept}");
}

// promise 50
#[test]
fn every_connection_has_a_salt_of_its_own() {
    let fixture = Fixture::new();
    let mut salts: Vec<Vec<u8>> = (0..20).map(|_| Client::greet(fixture.address).unwrap().salt).collect();
    assert!(salts.iter().all(|salt| salt.len() == 20 && !salt.contains(&0)), "{salts:?}");
    salts.sort();
    salts.dedup();
    assert_eq!(salts.len(), 20);
}

// promise 50
#[test]
fn nobody_without_a_password_comes_from_elsewhere() {
    let fixture = Fixture::new();
    fixture.root().all(&["create user jack identified by 'geheim'"]);
    let salt = [7; 20];
    let here: IpAddr = "127.0.0.1".parse().unwrap();
    let there: IpAddr = "192.0.2.7".parse().unwrap();
    let decide = |name, from, password: &str| {
        let sent = password::response(Method::Native, password, &salt);
        let from = Origin { address: from, encrypted: false };
        matches!(decide(&fixture.engine, name, from, (Method::Native, &sent), &salt), Access::As(_))
    };
    assert!(decide("root", here, ""));
    assert!(!decide("root", there, ""));
    assert!(decide("jack", there, "geheim"));
    assert!(!decide("jack", there, ""));
}

#[test]
fn groups_and_tables_need_a_grant() {
    let fixture = Fixture::new();
    fixture.csv("t.csv", "a\n1\n");
    let mut root = fixture.root();
    root.all(&["create user jack identified by 'x'", "create workload group g1"]);
    let mut jack = Client::login(fixture.address, "jack", "x", "").unwrap();
    assert!(
        matches!(jack.query("select a from t"), Answer::Err(1227, text) if text.contains("Access denied"))
    );
    root.all(&["grant select_priv on internal.main.t to jack"]);
    assert_eq!(jack.query("select a from t").cell(), "1");
    // The variable is set without a look; the query is refused.
    jack.all(&["set workload_group = 'g1'"]);
    let refused = jack.query("select a from t").error();
    assert!(refused.contains("to use workload group 'g1'"), "{refused}");
    root.all(&["grant usage_priv on workload group 'g1' to jack"]);
    assert_eq!(jack.query("select a from t").cell(), "1");
    assert_eq!(jack.query("select count(*) from information_schema.workload_groups").cell(), "2");
    for sql in [
        "create workload group g2",
        "select * from local(\"file_path\" = \"t.csv\")",
        "admin show frontend config",
        "show all grants",
    ] {
        assert!(matches!(jack.query(sql), Answer::Err(..)), "{sql}");
    }
    for kill in ["kill", "kill query", "kill connection"] {
        let refused = Answer::Err(1095, format!("You are not owner of thread {}", root.id));
        assert_eq!(jack.query(&format!("{kill} {}", root.id)), refused);
    }
}

// promise 50
#[test]
fn secrets_are_not_shown() {
    // It takes connections and never answers, so a query is there until it is killed.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let fixture = Fixture::with(commensal_sql::protocol::Limits::default(), |options| {
        options.endpoints.0 = vec![endpoint.clone()];
    });
    let mut root = fixture.root();
    let call = format!(
        "s3(\"uri\" = \"{endpoint}/b/k.csv\", \"use_path_style\" = \"true\", \"format\" = \"csv\", \
         \"s3.access_key\" = \"mykey\", \"s3.secret_key\" = \"mysecret\")"
    );
    for sql in [
        format!("select * from {call}"),
        format!("explain select * from {call}"),
        format!("desc function {call}"),
    ] {
        let mut client = fixture.root();
        client.ask(&sql).unwrap();
        eventually("it is there", || !fixture.engine.queries.all().is_empty());
        let shown = format!("{:?}", root.query("show full processlist"));
        assert!(!shown.contains("mysecret") && !shown.contains("mykey"), "{shown}");
        // It may be listed a moment before it can be killed.
        eventually("it is killed", || {
            root.query(&format!("kill query {}", client.id));
            fixture.engine.queries.all().is_empty()
        });
        let answer = format!("{:?}", client.answer());
        assert!(!answer.contains("mysecret") && !answer.contains("mykey"), "{answer}");
    }
}

// promise 50
#[test]
fn a_user_has_so_many_connections() {
    let fixture = Fixture::new();
    let mut root = fixture.root();
    root.all(&["create user jack identified by 'x'", "set property for 'jack' 'max_user_connections' = '2'"]);
    let login = || Client::login(fixture.address, "jack", "x", "");
    let (mut one, two) = (login().unwrap(), login().unwrap());
    let refused = login().unwrap_err().to_string();
    assert!(refused.contains("1226") && refused.contains("max_user_connections"), "{refused}");
    // Who has a limit does not lift it; others are not concerned; a place that is free can be had.
    assert!(!one.query("set property 'max_user_connections' = '9'").error().is_empty());
    assert_eq!(fixture.root().query("select 1").cell(), "1");
    drop(two);
    let mut again = None;
    eventually("the place is free", || {
        again = login().ok();
        again.is_some()
    });
    let fixture = fixture.again();
    let shown = fixture.root().query("show property for 'jack' like 'max%'").rows();
    assert_eq!(shown, [["max_user_connections", "2"]]);
}
