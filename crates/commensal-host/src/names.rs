//! Names in the kernel's abstract socket namespace. One process of a network namespace can hold a name, until it exits.

use rustix::net::sockopt::socket_peercred;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// Takes a name and holds it for as long as the listener exists; `AddrInUse` if another process holds it.
pub fn hold_name(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Returns PID and user ID of the process that holds a name, as the kernel reports them (`SO_PEERCRED`).
pub fn name_holder(name: &str) -> Option<(i32, u32)> {
    let addr = SocketAddr::from_abstract_name(name).ok()?;
    peer(&UnixStream::connect_addr(&addr).ok()?)
}

/// Returns PID and user ID of the process at the other end of a connection. For a client, that is the listening
/// process.
pub fn peer(stream: &UnixStream) -> Option<(i32, u32)> {
    let other = socket_peercred(stream).ok()?;
    Some((other.pid.as_raw_nonzero().get(), other.uid.as_raw()))
}
