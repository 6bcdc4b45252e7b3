//! Antagonists that stress kernel paths: short-lived processes, and a stream over loopback.

use crate::error::LabError;
use crate::workload::burn::{Piece, failed};
use crate::workload::no_threads;
use commensal_host::{Host as _, LinuxHost, SpawnSpec, Stdout};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

/// Bytes per unit of work.
const KIB: u64 = 1 << 10;

/// Bytes sent per piece of work.
const PIECE: usize = 256 << 10;

/// Returns a piece of work that forks, executes `true` and waits for its exit. Counts processes.
pub fn fork() -> Piece {
    let mut host = LinuxHost::default();
    let mut spec = SpawnSpec::new("true");
    spec.stdout = Stdout::Null;
    spec.die_with_parent = true;
    Box::new(move || {
        let ended = host.spawn(&spec).and_then(|mut child| child.wait());
        ended.map_err(|error| LabError::of("cannot fork another process", &error))?;
        Ok(1)
    })
}

/// Returns a piece of work that sends data to another thread, which discards the data. Counts KiB.
pub fn stream() -> Result<Piece, LabError> {
    let failed = |operation: &'static str| move |error: std::io::Error| failed(operation, &error);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed("listen on loopback"))?;
    let address = listener.local_addr().map_err(failed("listen on loopback"))?;
    let mut sender = TcpStream::connect(address).map_err(failed("connect on loopback"))?;
    let own = sender.local_addr().map_err(failed("connect on loopback"))?;
    let mut receiver = loop {
        // Another program may have connected first.
        let (stream, peer) = listener.accept().map_err(failed("accept on loopback"))?;
        if peer == own {
            break stream;
        }
    };
    // The thread exits when the sending side is dropped; the thread owns only its socket.
    let reader = std::thread::Builder::new().name("network-reader".to_owned()).spawn(move || {
        let mut bytes = vec![0_u8; PIECE];
        while receiver.read(&mut bytes).is_ok_and(|n| n > 0) {}
    });
    reader.map_err(|error| no_threads(1, &error))?;
    let bytes = vec![0x33_u8; PIECE];
    Ok(Box::new(move || {
        sender.write_all(&bytes).map_err(failed("send on loopback"))?;
        Ok(PIECE as u64 / KIB)
    }))
}
