//! Routes requests to responses: paths, methods, and the requests that each transport permits.

use super::{Command, Commands, Order, Reply};
use crate::canary;
use crate::explain::explain;
use crate::exposition;
use crate::publish::{Latest, Published, is_stale};
use crate::snapshot::Snapshot;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::time::Duration;
use tokio::sync::oneshot;

/// Response header with the age of the snapshot in milliseconds.
pub const AGE: &str = "x-commensal-age-ms";
/// Maximum size of a request body in bytes. Only `/v1/canary/start` takes a body.
const BODY_BYTES: usize = 4 * 1024;
/// How long a client's command waits for the agent's loop, which may be in a long tick. After that the client gets
/// status 504.
const ORDER_TIME: Duration = Duration::from_secs(10);
/// The available paths, for the response to an unknown path.
const PATHS: &str = "the paths are GET /v1/snapshot, /v1/groups, /v1/groups/NAME, /v1/explain/NAME, /v1/actions, /v1/canary, \
                     /metrics, /healthz and POST /v1/reload, /v1/pause, /v1/resume, /v1/canary/start, /v1/canary/alive, \
                     /v1/canary/stop";
const REMOTE_PATHS: &str =
    "the paths are GET /metrics, /healthz and /v1/snapshot; all others are only on the agent's local socket";

/// The body of every response whose status is not 200.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Refusal {
    /// The error message.
    pub error: String,
    /// A suggested remedy; may be empty.
    #[serde(rename = "try")]
    pub try_this: String,
}

/// The response to a command that was executed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Done {
    /// The outcome as text, such as `generation 4 is in force`.
    pub done: String,
}

/// The origin of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The agent's user, or root.
    Owner,
    /// Another user, over the shared socket.
    Member(u32),
    /// A client that connected through TCP.
    Remote,
}

/// Routes requests to the published snapshot or to the loop.
#[derive(Debug)]
pub(super) struct Router {
    pub(super) published: Arc<Published>,
    pub(super) commands: Commands,
}

type Answer = Response<Full<Bytes>>;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Path<'a> {
    Snapshot,
    Groups,
    Group(&'a str),
    Explain(&'a str),
    Actions,
    Metrics,
    Health,
    Canary,
    Order(Order),
    /// Starts a canary; its parameters are in the request body.
    CanaryStart,
    #[cfg(test)]
    Panic,
}

fn path(text: &str) -> Option<Path<'_>> {
    Some(match text {
        "/v1/snapshot" => Path::Snapshot,
        "/v1/groups" => Path::Groups,
        "/v1/actions" => Path::Actions,
        "/metrics" => Path::Metrics,
        "/healthz" => Path::Health,
        "/v1/reload" => Path::Order(Order::Reload),
        "/v1/pause" => Path::Order(Order::Pause),
        "/v1/resume" => Path::Order(Order::Resume),
        "/v1/canary" => Path::Canary,
        "/v1/canary/start" => Path::CanaryStart,
        "/v1/canary/alive" => Path::Order(Order::CanaryAlive),
        "/v1/canary/stop" => Path::Order(Order::CanaryStop),
        #[cfg(test)]
        "/panic" => Path::Panic,
        _ => {
            // Group names need no decoding: they consist of letters, digits, - and _.
            let name = |start: &str| text.strip_prefix(start).filter(|name| !name.contains('/'));
            match (name("/v1/groups/"), name("/v1/explain/")) {
                (Some(name), _) => Path::Group(name),
                (_, Some(name)) => Path::Explain(name),
                _ => return None,
            }
        }
    })
}

impl Router {
    /// Responds to a request. Never fails: a panic also results in an error response.
    pub(super) async fn answer(&self, request: Request<Incoming>, origin: Origin) -> Answer {
        let remote = origin == Origin::Remote;
        let (head, body) = request.into_parts();
        let paths = if remote { REMOTE_PATHS } else { PATHS };
        let asked = path(head.uri.path());
        let open =
            |asked: &Path<'_>| !remote || matches!(asked, Path::Snapshot | Path::Metrics | Path::Health);
        let Some(asked) = asked.filter(open) else {
            return refuse(StatusCode::NOT_FOUND, format!("there is no path {}", head.uri.path()), paths);
        };
        let wanted = if matches!(asked, Path::Order(_) | Path::CanaryStart) { "POST" } else { "GET" };
        let head_only = head.method == Method::HEAD && wanted == "GET";
        if head.method.as_str() != wanted && !head_only {
            let error = format!("{} takes {wanted}, not {}", head.uri.path(), head.method);
            let mut answer = refuse(StatusCode::METHOD_NOT_ALLOWED, error, paths);
            let allowed = if wanted == "GET" { "GET, HEAD" } else { "POST" };
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            return answer;
        }
        if let Origin::Member(user) = origin
            && wanted == "POST"
        {
            let error = format!("user {user} may read this agent's state, but not control it");
            return refuse(
                StatusCode::FORBIDDEN,
                error,
                "run the command as root or as the agent's user, for example with sudo",
            );
        }
        let body = match drain(body).await {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        match asked {
            Path::Order(order) => self.order(order).await,
            Path::CanaryStart => match canary::Request::parse(&body) {
                Ok(request) => self.order(Order::Canary(request)).await,
                Err(error) => refuse(
                    StatusCode::BAD_REQUEST,
                    error,
                    "send the parameters as JSON, or {} for the defaults",
                ),
            },
            asked => guarded(|| self.show(&asked)),
        }
    }

    fn show(&self, asked: &Path<'_>) -> Answer {
        #[cfg(test)]
        if *asked == Path::Panic {
            panic!("asked for");
        }
        let Some(Latest { snapshot, age }) = self.published.latest() else {
            return refuse(
                StatusCode::SERVICE_UNAVAILABLE,
                "the agent has not finished its first scan",
                "ask again in a moment",
            );
        };
        let mut answer = match asked {
            Path::Metrics => {
                let text = exposition::prometheus(&snapshot, age);
                respond(StatusCode::OK, exposition::CONTENT_TYPE, text)
            }
            Path::Health => health(&snapshot, age),
            Path::Groups => json_of(&snapshot.groups),
            Path::Actions => json_of(&snapshot.actions),
            Path::Canary => match &snapshot.canary_report {
                Some(report) => json_of(&**report),
                None => refuse(
                    StatusCode::NOT_FOUND,
                    "no canary has run since the agent started",
                    "`commensal agent canary` starts one",
                ),
            },
            Path::Group(name) => match snapshot.groups.iter().find(|group| group.name == *name) {
                Some(group) => json_of(group),
                None => no_group(&snapshot, name),
            },
            Path::Explain(name) => match explain(&snapshot, name) {
                Some(explained) => json_of(&explained),
                None => no_group(&snapshot, name),
            },
            _ => json_of(&snapshot),
        };
        let ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        answer.headers_mut().insert(AGE, HeaderValue::from(ms));
        answer
    }

    async fn order(&self, order: Order) -> Answer {
        let (sender, outcome) = oneshot::channel();
        let busy = StatusCode::SERVICE_UNAVAILABLE;
        match self.commands.send(Command { order, reply: Reply(sender) }) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                return refuse(
                    busy,
                    "too many commands are waiting for the agent",
                    "try again in some seconds",
                );
            }
            Err(TrySendError::Disconnected(_)) => {
                return refuse(busy, "the agent is exiting", "start it again");
            }
        }
        match tokio::time::timeout(ORDER_TIME, outcome).await {
            Ok(Ok(Ok(done))) => json_of(&Done { done }),
            Ok(Ok(Err(refusal))) => refuse(StatusCode::CONFLICT, refusal.error, refusal.try_this),
            Ok(Err(_)) => refuse(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the agent did not carry out the command",
                "see its log",
            ),
            Err(_) => refuse(
                StatusCode::GATEWAY_TIMEOUT,
                "the agent's loop has not processed the command yet, and may still carry it out",
                "see GET /healthz and the agent's log",
            ),
        }
    }
}

/// Reads the request's body, up to the size limit.
async fn drain(body: Incoming) -> Result<Bytes, Answer> {
    let most = BODY_BYTES as u64;
    let too_big = || {
        let error = format!("a request body can have at most {BODY_BYTES} bytes");
        let mut answer =
            refuse(StatusCode::PAYLOAD_TOO_LARGE, error, "send no body: only /v1/canary/start takes one");
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        answer
    };
    if body.size_hint().lower() > most {
        return Err(too_big());
    }
    match Limited::new(body, BODY_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(too_big()),
        Err(_) => Err(refuse(StatusCode::BAD_REQUEST, "the request is incomplete", "send it again")),
    }
}

/// Calls `make` and returns its response. If `make` panics, only this request fails (status 500).
fn guarded(make: impl FnOnce() -> Answer) -> Answer {
    catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|_| {
        refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the response could not be generated, which is a bug in commensal; the groups stay in force",
            "report it with the agent's log; GET /v1/snapshot has all data",
        )
    })
}

fn health(snapshot: &Snapshot, age: Duration) -> Answer {
    let seconds = age.as_secs_f64();
    if is_stale(snapshot, age) {
        let error = format!("the loop has not finished a tick for {seconds:.1} s");
        return refuse(StatusCode::SERVICE_UNAVAILABLE, error, "restart the agent; its log may say why");
    }
    json_of(&json!({ "status": "ok", "age_s": seconds, "problems": snapshot.problems.len() }))
}

fn no_group(snapshot: &Snapshot, name: &str) -> Answer {
    let names: Vec<&str> = snapshot.groups.iter().map(|group| group.name.as_str()).take(50).collect();
    let way_out = match names.as_slice() {
        [] => "the configuration in force has no groups".to_owned(),
        names => format!("the groups are {}", names.join(", ")),
    };
    refuse(StatusCode::NOT_FOUND, format!("no group is called {name:?}"), way_out)
}

fn json_of(value: &impl Serialize) -> Answer {
    match commensal_core::text::json(value) {
        Ok(text) => respond(StatusCode::OK, "application/json", text),
        Err(error) => refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            error.to_string(),
            "this is a bug in commensal: report it",
        ),
    }
}

fn refuse(status: StatusCode, error: impl Into<String>, try_this: impl Into<String>) -> Answer {
    let refusal = Refusal { error: error.into(), try_this: try_this.into() };
    // Two plain strings can always be serialised.
    respond(status, "application/json", commensal_core::text::json(&refusal).unwrap_or_default())
}

fn respond(status: StatusCode, kind: &'static str, text: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
