//! Names of running containers, asked of the engine that runs them: Docker's Engine API, which Podman speaks as well. Read
//! only, over the engine's local socket; no engine is no error.

use commensal_host::Host;
use serde::Deserialize;
use std::path::PathBuf;

/// Where engines listen, in this order. `DOCKER_HOST` comes first when it names a local socket.
const SOCKETS: [&str; 2] = ["/run/docker.sock", "/run/podman/podman.sock"];
/// A name that every version since 1.24 (Docker 1.12) has.
const REQUEST: &str = "GET /containers/json HTTP/1.0\r\nHost: localhost\r\n\r\n";

/// A running container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// 64 hexadecimal digits.
    pub id: String,
    /// As its owner calls it.
    pub name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
    #[serde(default)]
    names: Vec<String>,
}

/// All running containers of the engines that answer. `docker_host` is the variable of that name.
pub fn containers(host: &dyn Host, docker_host: Option<&str>) -> Vec<Container> {
    let named = docker_host.and_then(|url| url.strip_prefix("unix://")).map(PathBuf::from);
    let sockets: Vec<PathBuf> = match named {
        Some(one) => vec![one],
        None => SOCKETS.map(PathBuf::from).to_vec(),
    };
    let answers = sockets.iter().filter_map(|socket| host.ask(socket, REQUEST).ok());
    answers.flat_map(|answer| read(&answer).unwrap_or_default()).collect()
}

/// The body of an answer with status 200.
fn read(answer: &str) -> Option<Vec<Container>> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    if head.lines().next()?.split_whitespace().nth(1) != Some("200") {
        return None;
    }
    let listed: Vec<Listed> = serde_json::from_str(body).ok()?;
    let container = |one: Listed| {
        // `/web`; one with links has further names, with a slash inside.
        let name =
            one.names.iter().map(|name| name.trim_start_matches('/')).find(|name| !name.contains('/'))?;
        Some(Container { id: one.id.clone(), name: name.to_owned() })
    };
    Some(listed.into_iter().filter_map(container).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_engine() {
        let body =
            r#"[{"Id":"5e1c","Names":["/shop/db","/web"],"Image":"nginx"},{"Id":"77aa","Names":["/etl"]}]"#;
        let answer = format!("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{body}");
        let names: Vec<(String, String)> =
            read(&answer).unwrap_or_default().into_iter().map(|one| (one.id, one.name)).collect();
        assert_eq!(names, [("5e1c".to_owned(), "web".to_owned()), ("77aa".to_owned(), "etl".to_owned())]);
        for wrong in ["", "HTTP/1.0 404 Not Found\r\n\r\n[]", "HTTP/1.0 200 OK\r\n\r\n{\"message\":\"no\"}"] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
