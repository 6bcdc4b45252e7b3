//! Reads the running containers from the engine that runs them, with Docker's Engine API, which Podman supports too.
//! All requests only read, over the engine's local socket. If no match (a condition that selects members of a group)
//! needs containers, a missing engine is not an error.

use crate::processes::places_of;
use commensal_core::actual::Hierarchy;
use commensal_core::errno::Errno;
use commensal_core::group::{GroupSpec, Match};
use commensal_core::member::{self, ContainerFact, EngineReport};
use commensal_host::{Host, HostError};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Default sockets of engines, in this order. If the variable `DOCKER_HOST` names a local socket, that socket is used
/// before these.
const SOCKETS: [&str; 2] = ["/run/docker.sock", "/run/podman/podman.sock"];

/// Timeout of one request to an engine.
const PATIENCE: Duration = Duration::from_secs(2);
/// Timeout of all requests to an engine together.
const PATIENCE_IN_ALL: Duration = Duration::from_secs(5);

/// A running container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// ID of the container: 64 hexadecimal digits.
    pub id: String,
    /// Name of the container.
    pub name: String,
    /// Labels by key.
    pub labels: BTreeMap<String, String>,
    /// PID of the container's first process; only [`inspected`] sets it.
    pub pid: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    name: String,
    state: State,
    config: Config,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    running: bool,
    pid: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

/// Returns the local sockets on which an engine may listen. `docker_host` is the value of the variable `DOCKER_HOST`.
#[must_use]
pub fn sockets(docker_host: Option<&str>) -> Vec<PathBuf> {
    let named = docker_host.and_then(|url| url.strip_prefix("unix://")).map(PathBuf::from);
    named.map_or_else(|| SOCKETS.map(PathBuf::from).to_vec(), |one| vec![one])
}

/// Returns the text of a request, without an API version, so that every engine since Docker 1.12 (API 1.24) can
/// respond. Uses HTTP 1.0, so that the response is not chunked.
#[must_use]
pub fn request(what: &str) -> String {
    format!("GET {what} HTTP/1.0\r\nHost: localhost\r\n\r\n")
}

/// Returns all running containers of the engines that respond. `docker_host` is the value of the variable
/// `DOCKER_HOST`.
pub fn containers(host: &dyn Host, docker_host: Option<&str>) -> Vec<Container> {
    sockets(docker_host).iter().flat_map(|socket| listed(host, socket).unwrap_or_default()).collect()
}

/// Returns all running containers of the engine at `socket`, without their PIDs.
///
/// # Errors
/// Returns an error when no process listens on the socket, the response takes longer than two seconds (`ETIMEDOUT`), or
/// the response is not valid (`EIO`).
pub fn listed(host: &dyn Host, socket: &Path) -> Result<Vec<Container>, HostError> {
    let answer = host.ask(socket, &request("/containers/json"), PATIENCE)?;
    read(&answer).ok_or_else(|| no_answer(socket))
}

/// Returns a container with the PID of its first process; `None` if the container is not running.
///
/// # Errors
/// Returns the same errors as [`listed`].
pub fn inspected(host: &dyn Host, socket: &Path, id: &str) -> Result<Option<Container>, HostError> {
    let answer = host.ask(socket, &request(&format!("/containers/{id}/json")), PATIENCE)?;
    match body(&answer) {
        Some((200, body)) => {
            let one: Inspected = serde_json::from_str(body).map_err(|_| no_answer(socket))?;
            let name = one.name.trim_start_matches('/').to_owned();
            let labels = one.config.labels.unwrap_or_default();
            let running = one.state.running && one.state.pid != 0;
            let container = Container { id: one.id, name, labels, pid: Some(one.state.pid) };
            Ok(Some(container).filter(|_| running))
        }
        Some((404, _)) => Ok(None),
        _ => Err(no_answer(socket)),
    }
}

/// Returns the running containers for which `wanted` returns true, with their PIDs; and a message if no engine has
/// responded completely.
pub fn running(
    host: &dyn Host,
    docker_host: Option<&str>,
    wanted: &dyn Fn(&Container) -> bool,
) -> (Vec<Container>, Option<String>) {
    let (mut found, mut answered, mut why) = (Vec::new(), false, String::new());
    for socket in sockets(docker_host) {
        match listed(host, &socket) {
            Ok(list) => {
                answered = true;
                let end = host.boot_time() + PATIENCE_IN_ALL;
                for one in list.iter().filter(|one| wanted(one)) {
                    if host.boot_time() > end {
                        why = format!("{} takes too long to answer", socket.display());
                        answered = false;
                        break;
                    }
                    match inspected(host, &socket, &one.id) {
                        Ok(one) => found.extend(one),
                        // The engine has stopped responding, so the other containers are not queried.
                        Err(error) => {
                            why = error.to_string();
                            answered = false;
                            break;
                        }
                    }
                }
            }
            Err(error) if why.is_empty() || error.errno != Errno::ENOENT => why = error.to_string(),
            Err(_) => {}
        }
    }
    let obstacle = (!answered).then(|| format!("no container engine answers ({why})"));
    (found, obstacle)
}

/// Queries the engines for containers that the groups match; `None` if no group matches containers. The caller must
/// hold no lock, because an engine may be slow.
pub fn find(
    host: &dyn Host,
    hierarchies: &[Hierarchy],
    specs: &[GroupSpec],
    docker_host: Option<&str>,
) -> Option<EngineReport> {
    let matches: Vec<&Match> = specs.iter().flat_map(|spec| &spec.matches).collect();
    let of_engine = |one: &&Match| matches!(one, Match::DockerLabel(_) | Match::DockerName(_));
    if !matches.iter().any(of_engine) {
        return None;
    }
    let wanted = |one: &Container| {
        let (name, labels) = (one.name.clone(), one.labels.clone());
        let fact = ContainerFact { name, labels, ..ContainerFact::default() };
        matches.iter().any(|one| one.takes_container(&fact))
    };
    let (running, obstacle) = running(host, docker_host, &wanted);
    Some(EngineReport { containers: facts(host, hierarchies, running), obstacle })
}

/// Adds the cgroups of the containers, which are those of their first processes.
pub fn facts(
    host: &dyn Host,
    hierarchies: &[Hierarchy],
    containers: impl IntoIterator<Item = Container>,
) -> Vec<ContainerFact> {
    let fact = |one: Container| {
        let file = one.pid.map(|pid| PathBuf::from(format!("/proc/{pid}/cgroup")));
        let cgroups = file.and_then(|file| host.read_file(&file).ok()).unwrap_or_default();
        let (paths, unnamed) =
            (places_of(host, &cgroups, hierarchies), member::unnamed(&cgroups, hierarchies));
        let Container { id, name, labels, pid } = one;
        ContainerFact { id, name, labels, pid, paths, unnamed }
    };
    containers.into_iter().map(fact).collect()
}

fn no_answer(socket: &Path) -> HostError {
    HostError {
        operation: "understand",
        object: socket.display().to_string(),
        value: None,
        errno: Errno::EIO,
    }
}

/// Splits an HTTP response into status and body.
fn body(answer: &str) -> Option<(u16, &str)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.lines().next()?.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, body))
}

fn read(answer: &str) -> Option<Vec<Container>> {
    let (_, body) = body(answer).filter(|(status, _)| *status == 200)?;
    let listed: Vec<Listed> = serde_json::from_str(body).ok()?;
    let container = |one: Listed| {
        // The container's name has the form `/web`; a container with links has more names, with another slash in them.
        let name =
            one.names.iter().map(|name| name.trim_start_matches('/')).find(|name| !name.contains('/'))?;
        let labels = one.labels.unwrap_or_default();
        Some(Container { id: one.id.clone(), name: name.to_owned(), labels, pid: None })
    };
    Some(listed.into_iter().filter_map(container).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    #[test]
    fn an_answer_of_the_engine() {
        let body = r#"[{"Id":"5e1c","Names":["/shop/db","/web"],"Image":"nginx","Labels":{"tier":"web"}},{"Id":"77aa","Names":["/etl"],"Labels":null}]"#;
        let answer = format!("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{body}");
        let found = read(&answer).unwrap_or_default();
        let names: Vec<(&str, &str)> = found.iter().map(|one| (one.id.as_str(), one.name.as_str())).collect();
        assert_eq!(names, [("5e1c", "web"), ("77aa", "etl")]);
        assert_eq!(found[0].labels.get("tier").map(String::as_str), Some("web"));
        for wrong in ["", "HTTP/1.0 404 Not Found\r\n\r\n[]", "HTTP/1.0 200 OK\r\n\r\n{\"message\":\"no\"}"] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn only_what_is_wanted_and_runs_is_inspected() {
        let fake = FakeHost::v1(2, 1 << 30);
        let ok = |body: &str| format!("HTTP/1.0 200 OK\r\n\r\n{body}");
        let socket = Path::new("/run/docker.sock");
        let all = r#"[{"Id":"a1","Names":["/a"]},{"Id":"b2","Names":["/b"]},{"Id":"c3","Names":["/c"]}]"#;
        fake.answer(socket, "GET /containers/json ", &ok(all));
        let one = |id: &str, running: bool| {
            ok(&format!(
                r#"{{"Id":"{id}","Name":"/{id}","State":{{"Running":{running},"Pid":42}},"Config":{{"Labels":{{"k":"v"}}}}}}"#
            ))
        };
        fake.answer(socket, "GET /containers/a1/json ", &one("a1", true));
        fake.answer(socket, "GET /containers/b2/json ", &one("b2", false));
        let (found, obstacle) = running(&fake, None, &|one| one.name != "c");
        assert_eq!(obstacle, None);
        assert_eq!(
            found.iter().map(|one| (one.id.as_str(), one.pid)).collect::<Vec<_>>(),
            [("a1", Some(42))]
        );
        // An engine stops responding after some requests: the result has a message, and the facts received before.
        let (found, obstacle) = running(&fake, None, &|_| true);
        assert_eq!(found.len(), 1);
        assert!(obstacle.is_some_and(|text| text.contains("docker.sock")));
        let (found, obstacle) = running(&fake, Some("unix:///nowhere.sock"), &|_| true);
        assert!(found.is_empty() && obstacle.is_some_and(|text| text.contains("/nowhere.sock")));
    }
}
