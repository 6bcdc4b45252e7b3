//! Refused logins, byte by byte: nothing in them tells whether there is such a user.

use crate::server::client::Client;
use crate::server::fixture::Fixture;
use commensal_sql::engine::password::{self, Method};
use std::io::{BufReader, Read};
use std::net::{SocketAddr, TcpStream};

/// What users have as their password.
const PASSWORD: &str = "geheim";

/// `CLIENT_LONG_PASSWORD | PROTOCOL_41 | SECURE_CONNECTION`.
const BASIC: u32 = 0x0000_0001 | 0x0000_0200 | 0x0000_8000;
/// `CLIENT_PLUGIN_AUTH`.
const PLUGINS: u32 = 0x0008_0000;

const NATIVE: &str = "mysql_native_password";
const SHA2: &str = "caching_sha2_password";

/// The server's packets after its greeting, with their sequence numbers. What differs between any two logins is blanked:
/// the salt and the user's name.
type Transcript = Vec<(u8, String)>;

fn packet(stream: &mut BufReader<TcpStream>) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).ok()?;
    let mut bytes = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
    stream.read_exact(&mut bytes).unwrap();
    Some((head[3], bytes))
}

fn proof(plugin: &str, password: &str, salt: &[u8]) -> Vec<u8> {
    match plugin {
        NATIVE => password::response(Method::Native, password, salt),
        SHA2 => password::response(Method::Sha2, password, salt),
        // A client that prefers another method does not know what to send for it here.
        _ => Vec::new(),
    }
}

/// Logs in as a client that prefers this plugin, or knows of none, and does what the server asks of it.
fn log_in(address: SocketAddr, user: &str, password: &str, plugin: Option<&str>) -> Transcript {
    let mut client = Client::greet(address).unwrap();
    let capabilities = BASIC | if plugin.is_some() { PLUGINS } else { 0 };
    let mut login = [&capabilities.to_le_bytes()[..], &[0; 28], user.as_bytes(), &[0]].concat();
    let sent = proof(plugin.unwrap_or(NATIVE), password, &client.salt);
    login.push(sent.len() as u8);
    login.extend(sent);
    login.extend(plugin.unwrap_or_default().as_bytes());
    login.push(0);
    client.send(1, &login).unwrap();
    let mut seen = Transcript::new();
    while let Some((number, bytes)) = packet(&mut client.stream) {
        match bytes.first() {
            Some(0xfe) => {
                let end = bytes.iter().position(|byte| *byte == 0).unwrap();
                let wanted = String::from_utf8(bytes[1..end].to_vec()).unwrap();
                let salt = &bytes[end + 1..bytes.len() - 1];
                seen.push((number, format!("switch to {wanted}, a salt of {} bytes", salt.len())));
                let answer = proof(&wanted, password, salt);
                client.send(number.wrapping_add(1), &answer).unwrap();
            }
            Some(0) => {
                seen.push((number, "done".to_owned()));
                break;
            }
            _ => {
                let text = String::from_utf8_lossy(&bytes).replace(&format!("'{user}'"), "'USER'");
                seen.push((number, format!("{text:?}")));
            }
        }
    }
    seen
}

/// Users of every kind; the first has what most have.
fn create_users(fixture: &Fixture) {
    let hash = format!("*{}", password::hash(PASSWORD).native());
    fixture.root().all(&[
        &format!("create user plain identified by '{PASSWORD}'"),
        &format!("create user hashed identified by password '{hash}'"),
        &format!("create user sly identified by '{PASSWORD}' require ssl"),
        &format!("create user slyhashed identified by password '{hash}' require ssl"),
        &format!("create user far@'192.0.2.%' identified by '{PASSWORD}'"),
        &format!("create user farhashed@'192.0.2.%' identified by password '{hash}'"),
        "create user 'open'",
        &format!("create user twice@'%' identified by '{PASSWORD}'"),
        &format!("create user twice@'127.%' identified by '{PASSWORD}'"),
    ]);
}

/// Names that nobody has.
fn unknown() -> Vec<String> {
    (0..100).map(|number| format!("nobody{number}")).collect()
}

// promise 50
#[test]
fn a_refusal_does_not_tell_whether_there_is_such_a_user() {
    let fixture = Fixture::new();
    create_users(&fixture);
    for plugin in [Some(NATIVE), Some(SHA2), Some("sha256_password"), None] {
        for password in ["", "wrong"] {
            let see = |user: &str| log_in(fixture.address, user, password, plugin);
            let what = format!("{plugin:?} {password:?}");
            let (plain, hashed) = (see("plain"), see("hashed"));
            assert!(plain.iter().all(|(_, text)| text != "done"), "{what}: {plain:?}");
            assert!(plain.last().unwrap().1.contains("Access denied for user 'USER'"), "{what}: {plain:?}");
            // Who is refused for another reason than the password.
            for (user, like) in [("sly", &plain), ("slyhashed", &hashed), ("twice", &plain)] {
                assert_eq!(see(user), *like, "{what}: {user}");
            }
            if !password.is_empty() {
                assert_eq!(see("open"), plain, "{what}: one without a password");
            }
            // Who is nobody: from here, or at all.
            let two = plain != hashed;
            assert_eq!(
                two,
                plugin == Some(SHA2),
                "{what}: what a client prefers is asked of it, if it can be"
            );
            let names = unknown();
            let names = names.iter().map(String::as_str).take(if two { 100 } else { 5 });
            let names: Vec<&str> = names.chain(["far", "farhashed", "", "plain2", "PLAIN"]).collect();
            let seen: Vec<Transcript> = names.iter().map(|name| see(name)).collect();
            for (name, seen) in names.iter().zip(&seen) {
                assert!([&plain, &hashed].contains(&seen), "{what}: {name}: {seen:?}");
            }
            // The chance that all of a hundred are of one kind is 0.7 to the power of 100.
            assert!(!two || (seen.contains(&plain) && seen.contains(&hashed)), "{what}: both occur");
        }
    }
    // With the right password, some are still refused, like those with a wrong one.
    for plugin in [NATIVE, SHA2] {
        let see = |user: &str, password: &str| log_in(fixture.address, user, password, Some(plugin));
        assert_eq!(see("sly", PASSWORD), see("plain", "wrong"), "{plugin}");
        assert_eq!(see("slyhashed", PASSWORD), see("hashed", "wrong"), "{plugin}");
        for user in ["plain", "hashed", "twice"] {
            assert_eq!(see(user, PASSWORD).last().unwrap().1, "done", "{plugin}: {user}");
        }
    }
    assert_eq!(log_in(fixture.address, "open", "", Some(SHA2)).last().unwrap().1, "done");
}

// promise 50
#[test]
fn a_name_is_answered_in_the_same_way_every_time() {
    let fixture = Fixture::new();
    create_users(&fixture);
    let see = |fixture: &Fixture| -> Vec<Transcript> {
        unknown().iter().map(|name| log_in(fixture.address, name, "wrong", Some(SHA2))).collect()
    };
    let before = see(&fixture);
    assert_eq!(see(&fixture), before, "asked again");
    let fixture = fixture.again();
    assert_eq!(see(&fixture), before, "by a new server with the same state");
    // Another server has another key: nobody can work out which names are whose.
    let other = Fixture::new();
    create_users(&other);
    assert_ne!(see(&other), before);
}

mod measure {
    use super::*;
    use commensal_sql::protocol::{Access, Origin, decide};
    use std::net::IpAddr;
    use std::time::{Duration, Instant};

    // promise 50
    #[test]
    fn a_refusal_takes_as_long_whoever_is_named() {
        let fixture = Fixture::new();
        create_users(&fixture);
        let salt = [7; password::SALT];
        let here: IpAddr = [127, 0, 0, 1].into();
        let from = Origin { address: here, encrypted: false };
        for method in [Method::Native, Method::Sha2] {
            let sent = password::response(method, "wrong", &salt);
            let refuse = |name: &str| {
                let access = decide(&fixture.engine, name, from, (method, &sent), &salt);
                assert!(matches!(access, Access::Refused(_)), "{name}");
            };
            // The shortest of many rounds is one that nothing else disturbed.
            let round = |name: &str| -> Duration {
                let begun = Instant::now();
                (0..100).for_each(|_| refuse(name));
                begun.elapsed()
            };
            let names = ["plain", "sly", "open", "far", "nobody1", "nobody2", ""];
            let times = names.map(|name| (0..30).map(|_| round(name)).min().unwrap());
            let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
            println!("{method:?}: {:?}", names.iter().zip(&times).collect::<Vec<_>>());
            assert!(*most < *least * 4, "{method:?}: {names:?} take {times:?}");
        }
    }
}
