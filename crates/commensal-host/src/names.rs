//! Names in the kernel's abstract namespace of sockets: one process of a network namespace holds each, until it ends.

use rustix::net::sockopt::socket_peercred;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// Takes a name, for as long as the listener lives; `AddrInUse` when somebody holds it.
pub fn hold_name(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// The process and the user that hold a name, as the kernel knows them (`SO_PEERCRED`).
pub fn name_holder(name: &str) -> Option<(i32, u32)> {
    let addr = SocketAddr::from_abstract_name(name).ok()?;
    peer(&UnixStream::connect_addr(&addr).ok()?)
}

/// The process and the user at the other end: who listens, for the one that connected.
pub fn peer(stream: &UnixStream) -> Option<(i32, u32)> {
    let other = socket_peercred(stream).ok()?;
    Some((other.pid.as_raw_nonzero().get(), other.uid.as_raw()))
}
