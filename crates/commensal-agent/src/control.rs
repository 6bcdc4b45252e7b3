//! The control socket: HTTP/1.1 and JSON over a local socket that only its owner can use, and optionally a part of it
//! read-only over TCP. `docs/reference/control-socket.md` is its reference.
//!
//! ```text
//! socket (0600, peer's user checked) ─┐                          ┌─ GET ─► Published (the loop's last snapshot)
//! shared socket (0660, a group's) ────┼─► one thread, one task ──┤
//! TCP (GET only, fewer paths) ────────┘   per connection         └─ POST ─► Command ─► the loop ─► Reply
//!                                                                          (owner and root only)
//! ```
//!
//! Everything is limited: the number of connections, the size of head and body, the time for a head and for a
//! connection. A client that never reads delays no other client, and no client ever delays the loop.

mod answer;
#[cfg(test)]
mod tests;

use crate::canary;
use crate::error::AgentError;
use crate::publish::Published;
pub use answer::{AGE, Done, Refusal};
use answer::{Origin, Router};
use commensal_core::errno::Errno;
use commensal_host::{Host, Waker};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Name of the socket in the state directory.
pub const SOCKET: &str = "control.sock";
/// The socket for a group, of an agent that keeps the machine.
pub const SHARED_SOCKET: &str = "/run/commensal/control.sock";
/// The group that it is shared with where there is one and nobody said another.
pub const SHARED_GROUP: &str = "commensal";
/// Connections at a time; more wait in the kernel's queue.
const CONNECTIONS: usize = 128;
/// The same of the shared socket, apart: its group takes none of the owner's.
const SHARED_CONNECTIONS: usize = 32;
/// The same over TCP, apart: whoever is out there takes none of the owner's.
const TCP_CONNECTIONS: usize = 16;
/// Timeouts for the head of a request, and for a whole connection.
const HEAD_TIME: Duration = Duration::from_secs(5);
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// Maximum size of a request's head in bytes, and maximum number of its header fields.
const HEAD_BYTES: usize = 16 * 1024;
const HEAD_FIELDS: usize = 64;
/// Maximum number of commands that wait for the loop.
const COMMANDS: usize = 16;
/// Pause after a failed `accept`, so that other connections can close their descriptors.
const PAUSE: Duration = Duration::from_millis(10);

fn no_thread(error: io::Error) -> AgentError {
    AgentError::of("the thread of the control socket cannot be started", &error)
}

/// An order for the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Read the configuration again, and put it in force if it is valid.
    Reload,
    /// Continue to measure, but write nothing until [`Order::Resume`].
    Pause,
    /// Write again.
    Resume,
    /// Start a canary: switch isolation off in short windows, and measure.
    Canary(canary::Request),
    /// Keep-alive of a canary's client: without it for [`canary::PATIENCE`] the canary ends.
    CanaryAlive,
    /// End the canary.
    CanaryStop,
}

/// An order on its way to the loop.
#[derive(Debug)]
pub struct Command {
    /// The order.
    pub order: Order,
    /// Channel for the outcome. If it is dropped, the client is told that the loop did not carry the order out.
    pub reply: Reply,
}

/// Channel for the reply to an order.
#[derive(Debug)]
pub struct Reply(oneshot::Sender<Result<String, Refusal>>);

impl Reply {
    /// Replies that the order was carried out; `what` in words, such as `generation 4 is in force`.
    pub fn done(self, what: impl Into<String>) {
        // The client may be gone.
        let _ = self.0.send(Ok(what.into()));
    }

    /// Replies that the order was refused.
    pub fn refused(self, error: impl Into<String>, try_this: impl Into<String>) {
        let _ = self.0.send(Err(Refusal { error: error.into(), try_this: try_this.into() }));
    }
}

/// Where commands for the loop go: a channel, and what ends the loop's wait.
#[derive(Debug, Clone)]
pub struct Commands {
    sender: SyncSender<Command>,
    waker: Waker,
}

impl Commands {
    /// Passes one on, unless there are too many or the loop is over.
    fn send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        self.sender.try_send(command)?;
        self.waker.wake();
        Ok(())
    }
}

/// Channel for commands to the loop: the one end for [`Control::start`], the other for the loop, whose wait `waker` ends.
#[must_use]
pub fn commands(waker: Waker) -> (Commands, Receiver<Command>) {
    let (sender, receiver) = sync_channel(COMMANDS);
    (Commands { sender, waker }, receiver)
}

/// The number of a group of `/etc/group` (group(5)), by its name; a number is itself.
#[must_use]
pub fn group_number(groups: &str, name: &str) -> Option<u32> {
    name.parse().ok().or_else(|| {
        let fields = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
        fields.filter(|fields| fields.first() == Some(&name)).find_map(|fields| fields.get(2)?.parse().ok())
    })
}

/// The thread that serves. Ends when dropped; the file of the socket stays, and the next agent takes its place.
#[derive(Debug)]
pub struct Control {
    metrics: Option<SocketAddr>,
    /// To the thread: the listener that replaces that of the local socket.
    again: mpsc::UnboundedSender<UnixListener>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Listens on `socket`, whose folder exists, and, if asked, on a TCP address (port 0 is any free one); serves `shared` to look
    /// at as well. The caller holds
    /// the agent's lock: two that start at the same moment could both find a dead socket.
    ///
    /// # Errors
    /// [`AgentError`], in words for users.
    pub fn start(
        host: &mut dyn Host,
        socket: &Path,
        shared: Option<UnixListener>,
        metrics: Option<SocketAddr>,
        published: Arc<Published>,
        commands: Commands,
    ) -> Result<Control, AgentError> {
        let local = listen(host, socket)?;
        let tcp = match metrics {
            Some(addr) => {
                let listener = std::net::TcpListener::bind(addr);
                Some(listener.map_err(|error| {
                    let words =
                        format!("--metrics-listen {addr}: cannot listen there; choose another address");
                    AgentError::of(words, &error)
                })?)
            }
            None => None,
        };
        let metrics = tcp.as_ref().and_then(|listener| listener.local_addr().ok());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(no_thread)?;
        let (mut local, shared, tcp) = {
            let _inside = runtime.enter();
            let over_tcp = |one: std::net::TcpListener| {
                one.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(one)
            };
            let local = listening(local).map_err(no_thread)?;
            let shared = shared.map(listening).transpose().map_err(no_thread)?;
            (local, shared, tcp.map(over_tcp).transpose().map_err(no_thread)?)
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let router = Arc::new(Router { published, commands });
        let owner = host.euid();
        let (again, mut anew) = mpsc::unbounded_channel();
        let serve = move || {
            runtime.block_on(async move {
                let over_socket = async {
                    loop {
                        let other = tokio::select! {
                            () = accept_local(&local, owner, Audience::Owner, &router) => return,
                            other = anew.recv() => other,
                        };
                        local = other.and_then(|other| listening(other).ok()).unwrap_or(local);
                    }
                };
                let over_shared = async {
                    match &shared {
                        Some(listener) => accept_local(listener, owner, Audience::Group, &router).await,
                        None => std::future::pending().await,
                    }
                };
                let over_tcp = async {
                    match &tcp {
                        Some(listener) => accept_tcp(listener, &router).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = over_socket => {}
                    () = over_shared => {}
                    () = over_tcp => {}
                    _ = stopped => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(serve);
        Ok(Control { metrics, again, stop: Some(stop), thread: Some(thread.map_err(no_thread)?) })
    }

    /// Listens on `socket` again: its file is gone.
    ///
    /// # Errors
    /// As [`Control::start`].
    pub fn listen_again(&self, host: &mut dyn Host, socket: &Path) -> Result<(), AgentError> {
        // Without the thread nobody is answered, and the agent ends.
        let _ = self.again.send(listen(host, socket)?);
        Ok(())
    }

    /// The TCP address at which metrics are served.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(host: &mut dyn Host, socket: &Path) -> Result<UnixListener, AgentError> {
    host.listen(socket).map_err(|error| match error.errno {
        Errno::EADDRINUSE => AgentError::new(format!(
            "an agent listens on {} already: ask it with `commensal status`; a second one needs its own --state-dir and groups",
            socket.display()
        )),
        Errno::EEXIST => AgentError::new(format!(
            "{} is not a socket: move it away, or name another --state-dir",
            socket.display()
        )),
        _ => AgentError::of(
            "the control socket cannot be made; its path can have about 90 characters, and its folder must be writable",
            &error,
        ),
    })
}

/// Within a runtime.
fn listening(one: UnixListener) -> io::Result<tokio::net::UnixListener> {
    one.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(one)
}

/// Whom a local socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// The agent's user and root.
    Owner,
    /// Whoever its mode lets in may look.
    Group,
}

async fn accept_local(
    listener: &tokio::net::UnixListener,
    owner: u32,
    audience: Audience,
    router: &Arc<Router>,
) {
    let most = if audience == Audience::Owner { CONNECTIONS } else { SHARED_CONNECTIONS };
    let free = Arc::new(Semaphore::new(most));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // The file's mode keeps other users out; this check also holds if the mode was changed.
        let user = stream.peer_cred().ok().map(|peer| peer.uid());
        let origin = match user {
            Some(user) if user == owner || user == 0 => Origin::Owner,
            Some(user) if audience == Audience::Group => Origin::Member(user),
            _ => continue,
        };
        let serving = serve(stream, Arc::clone(router), origin);
        tokio::spawn(async move {
            serving.await;
            drop(permit);
        });
    }
}

async fn accept_tcp(listener: &tokio::net::TcpListener, router: &Arc<Router>) {
    let free = Arc::new(Semaphore::new(TCP_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let serving = serve(stream, Arc::clone(router), Origin::Remote);
        tokio::spawn(async move {
            serving.await;
            drop(permit);
        });
    }
}

/// Serves one connection, until its timeout.
fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Arc<Router>,
    origin: Origin,
) -> impl Future<Output = ()> {
    let service = service_fn(move |request| {
        let router = Arc::clone(&router);
        async move { Ok::<_, std::convert::Infallible>(router.answer(request, origin).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEAD_FIELDS)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    async move {
        // A client that disconnects, or takes too long, needs no handling.
        let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
    }
}
