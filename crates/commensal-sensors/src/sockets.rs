//! The sockets of processes, as `/proc` shows them (proc_pid_fd(5); Documentation/networking/proc_net_tcp.rst).

use commensal_host::{Host, HostError};
use std::path::Path;

/// State of a connection in the kernel's table (`TCP_ESTABLISHED`, include/net/tcp_states.h).
pub const ESTABLISHED: u8 = 0x01;
/// State of a socket that accepts connections (`TCP_LISTEN`).
pub const LISTEN: u8 = 0x0A;

/// A row of the kernel's table of TCP sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSocket {
    /// Address and port of this end, in the table's hexadecimal form.
    pub local: String,
    /// Address and port of the other end.
    pub remote: String,
    /// State of the connection.
    pub state: u8,
    /// Inode of the socket; 0 if no process holds it any more.
    pub inode: u64,
}

/// Returns the inodes of the sockets among the first `most` descriptors of a process.
///
/// # Errors
/// Returns the kernel's error if the descriptors cannot be listed: the process has exited, or belongs to another user.
pub fn inodes(host: &dyn Host, pid: u32, most: usize) -> Result<Vec<u64>, HostError> {
    let folder = format!("/proc/{pid}/fd");
    let names = host.list(Path::new(&folder))?;
    let mut descriptors: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    descriptors.sort_unstable();
    let socket = |fd: &u32| {
        let target = host.link(Path::new(&format!("{folder}/{fd}"))).ok()?;
        target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    Ok(descriptors.iter().take(most).filter_map(socket).collect())
}

/// Returns the TCP sockets in the network namespace of a process, IPv4 first.
pub fn tcp(host: &dyn Host, pid: u32) -> Vec<TcpSocket> {
    let table = |name| host.read_file(Path::new(&format!("/proc/{pid}/net/{name}"))).unwrap_or_default();
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().take(10).collect();
        Some(TcpSocket {
            local: (*fields.get(1)?).to_owned(),
            remote: (*fields.get(2)?).to_owned(),
            state: u8::from_str_radix(fields.get(3)?, 16).ok()?,
            inode: fields.get(9)?.parse().ok()?,
        })
    };
    ["tcp", "tcp6"]
        .into_iter()
        .flat_map(|name| table(name).lines().filter_map(row).collect::<Vec<_>>())
        .collect()
}
