//! The control socket: HTTP/1.1 with JSON over a local socket that only the agent's user and root can use. Part of it
//! is also available read-only over a second, shared socket and over TCP, if requested. Documented in
//! `docs/reference/control-socket.md`.
//!
//! ```text
//! socket (0600, peer's user checked) ─┐                          ┌─ GET ─► Published (the loop's last snapshot)
//! shared socket (0660, a group's) ────┼─► one thread, one task ──┤
//! TCP (GET only, fewer paths) ────────┘   per connection         └─ POST ─► Command ─► the loop ─► Reply
//!                                                                          (owner and root only)
//! ```
//!
//! The number of connections, the sizes of head and body, and the time for a head and for a connection are all limited.
//! A client that does not read its response delays no other client, and no client delays the loop.

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

/// Name of the control socket in the state directory.
pub const SOCKET: &str = "control.sock";
/// The read-only socket that root's agent shares with the members of a Unix group.
pub const SHARED_SOCKET: &str = "/run/commensal/control.sock";
/// Name of the Unix group that gets access to the shared socket by default. Without such a group there is no shared
/// socket.
pub const SHARED_GROUP: &str = "commensal";
/// Maximum number of simultaneous connections to the owner's socket; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 128;
/// Maximum number of simultaneous connections to the shared socket. The limit is separate, so that clients of the
/// shared socket cannot use up the owner's connections.
const SHARED_CONNECTIONS: usize = 32;
/// Maximum number of simultaneous TCP connections. The limit is separate, so that TCP clients cannot use up the owner's
/// connections.
const TCP_CONNECTIONS: usize = 16;
/// Timeout for the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Maximum duration of a connection.
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// Maximum size of a request's head in bytes.
const HEAD_BYTES: usize = 16 * 1024;
/// Maximum number of a request's header fields.
const HEAD_FIELDS: usize = 64;
/// Maximum number of commands that wait for the loop.
const COMMANDS: usize = 16;
/// Pause after a failed `accept`, in which other connections can close their descriptors.
const PAUSE: Duration = Duration::from_millis(10);

fn no_thread(error: io::Error) -> AgentError {
    AgentError::of("cannot start the thread of the control socket", &error)
}

/// A command for the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Read the configuration again, and put it in force if it is valid.
    Reload,
    /// Continue to measure, but write nothing until [`Order::Resume`].
    Pause,
    /// End the pause.
    Resume,
    /// Start a canary: remove isolation for short windows, and measure its effect.
    Canary(canary::Request),
    /// Keep-alive of a canary's client. If none arrives for [`canary::PATIENCE`], the canary ends.
    CanaryAlive,
    /// End the canary, and restore isolation.
    CanaryStop,
}

/// A command on its way to the loop, with a channel for the reply.
#[derive(Debug)]
pub struct Command {
    /// The command.
    pub order: Order,
    /// Channel for the outcome. If it is dropped without a reply, the client gets the response that the command was not
    /// executed.
    pub reply: Reply,
}

/// Channel for the reply to a command.
#[derive(Debug)]
pub struct Reply(oneshot::Sender<Result<String, Refusal>>);

impl Reply {
    /// Replies that the command was executed; `what` is the outcome as text, such as `generation 4 is in force`.
    pub fn done(self, what: impl Into<String>) {
        // The client may have disconnected.
        let _ = self.0.send(Ok(what.into()));
    }

    /// Replies that the command was refused.
    pub fn refused(self, error: impl Into<String>, try_this: impl Into<String>) {
        let _ = self.0.send(Err(Refusal { error: error.into(), try_this: try_this.into() }));
    }
}

/// The sending end of the channel for commands, with the waker that wakes the loop.
#[derive(Debug, Clone)]
pub struct Commands {
    sender: SyncSender<Command>,
    waker: Waker,
}

impl Commands {
    /// Sends a command, and wakes the loop. Fails if too many commands wait, or the loop has ended.
    fn send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        self.sender.try_send(command)?;
        self.waker.wake();
        Ok(())
    }
}

/// Creates a channel for commands: one end for [`Control::start`], the other for the loop, which `waker` wakes.
#[must_use]
pub fn commands(waker: Waker) -> (Commands, Receiver<Command>) {
    let (sender, receiver) = sync_channel(COMMANDS);
    (Commands { sender, waker }, receiver)
}

/// Looks up the GID of a group in the text of `/etc/group` (group(5)). If `name` is a number, returns that number.
#[must_use]
pub fn group_number(groups: &str, name: &str) -> Option<u32> {
    name.parse().ok().or_else(|| {
        let fields = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
        fields.filter(|fields| fields.first() == Some(&name)).find_map(|fields| fields.get(2)?.parse().ok())
    })
}

/// The thread that serves the control socket. Dropping this value stops the thread. The socket file remains, and the
/// next agent replaces it.
#[derive(Debug)]
pub struct Control {
    metrics: Option<SocketAddr>,
    /// Sends the thread a new listener for the local socket.
    again: mpsc::UnboundedSender<UnixListener>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Listens on `socket`, in an existing directory, and on a TCP address if one is given (port 0: any free port).
    /// Also serves `shared`, read-only. The caller holds the agent's lock: without it, two agents that start at the
    /// same time could each treat the other's socket as that of a dead agent.
    ///
    /// # Errors
    /// Returns an [`AgentError`], whose message is for users.
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

    /// Listens on `socket` again, after its file was removed.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be created.
    pub fn listen_again(&self, host: &mut dyn Host, socket: &Path) -> Result<(), AgentError> {
        // If sending fails, the thread has ended, and the agent ends as well.
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
            "an agent already listens on {}: see `commensal status`; a second one needs a --state-dir and groups of its own",
            socket.display()
        )),
        Errno::EEXIST => AgentError::new(format!(
            "{} is not a socket: remove it, or name another --state-dir",
            socket.display()
        )),
        _ => AgentError::of(
            "the control socket cannot be created; its path may have about 90 characters, and its folder must be \
             writable",
            &error,
        ),
    })
}

/// Converts a listener to tokio's type. Must be called within a tokio runtime.
fn listening(one: UnixListener) -> io::Result<tokio::net::UnixListener> {
    one.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(one)
}

/// The users whose connections a local socket accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// The agent's user and root.
    Owner,
    /// Users to whom the socket's mode gives access; they may only read.
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
        // The file's mode keeps other users out. This check keeps them out even if the mode was changed.
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

/// Serves one connection until it is closed or times out.
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
        // No action is necessary for a client that disconnects or takes too long.
        let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
    }
}
