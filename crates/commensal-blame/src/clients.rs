//! Finds clients of a service on this machine that wait for a CPU longer than the service. A client that is in no group has
//! less CPU weight than a service that is in one; on a busy machine its own waiting then looks like a slow service.
//!
//! A client is a process that holds the other end of one of the service's TCP connections. Both ends of such a connection are
//! in the table of sockets of the service's network namespace.

use commensal_host::Host;
use commensal_sensors::run_delay::{RunDelay, Schedstat};
use commensal_sensors::sockets::{self, ESTABLISHED};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Wait of a client (ms per second of its CPU time) below which it is not worth a word.
const LEAST_MS: f64 = 100.0;
/// How many times the service's wait a client's wait is at least.
const TIMES: f64 = 2.0;
/// Begin of an IPv4 address in `/proc/net/tcp6`.
const MAPPED: &str = "0000000000000000FFFF0000";

/// A client that waits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Client {
    /// PID of the process.
    pub pid: u32,
    /// Name of the process.
    pub name: String,
    /// How long its threads have waited for a CPU since it started, per second of their CPU time (ms).
    pub wait_ms_per_cpu_s: f64,
}

/// Returns the clients that wait far longer than the service, those with the longest wait first. `is_service` tells the
/// service's processes by their PIDs; `wait_ms` is the service's wait per second of its CPU time (ms).
pub fn waiting(
    host: &mut dyn Host,
    is_service: &dyn Fn(&dyn Host, u32) -> bool,
    wait_ms: f64,
) -> Vec<Client> {
    let all = host.list(Path::new("/proc")).unwrap_or_default();
    let all = all.iter().filter_map(|name| name.parse::<u32>().ok());
    let (service, others): (Vec<u32>, Vec<u32>) = all.partition(|pid| is_service(&*host, *pid));
    let Some(one) = service.first() else { return Vec::new() };
    let its: BTreeSet<u64> = service.iter().flat_map(|pid| sockets(&*host, *pid)).collect();
    let ends = other_ends(&*host, *one, &its);
    if ends.is_empty() {
        return Vec::new();
    }
    let clients: Vec<u32> =
        others.into_iter().filter(|pid| sockets(&*host, *pid).iter().any(|one| ends.contains(one))).collect();
    let least = LEAST_MS.max(TIMES * wait_ms);
    let mut found: Vec<Client> = clients.into_iter().filter_map(|pid| client(host, pid)).collect();
    found.retain(|client| client.wait_ms_per_cpu_s >= least);
    found.sort_by(|a, b| b.wait_ms_per_cpu_s.total_cmp(&a.wait_ms_per_cpu_s));
    found
}

fn client(host: &mut dyn Host, pid: u32) -> Option<Client> {
    let name = host.read_file(Path::new(&format!("/proc/{pid}/comm"))).ok()?;
    let Schedstat { run_ns, delay_ns } = RunDelay::default().of(host, &[pid])?;
    let wait_ms_per_cpu_s = delay_ns as f64 / run_ns as f64 * 1e3;
    (run_ns > 0).then(|| Client { pid, name: name.trim_end().to_owned(), wait_ms_per_cpu_s })
}

/// Inodes of the sockets that a process has open.
fn sockets(host: &dyn Host, pid: u32) -> Vec<u64> {
    sockets::inodes(host, pid, usize::MAX).unwrap_or_default()
}

/// Inodes of the sockets at the other ends of the service's connections, without its connections to itself.
fn other_ends(host: &dyn Host, pid: u32, its: &BTreeSet<u64>) -> BTreeSet<u64> {
    // The same connection may be an IPv4 one at the client and a mapped IPv6 one at the service.
    let plain = |end: &str| end.strip_prefix(MAPPED).unwrap_or(end).to_owned();
    let rows = sockets::tcp(host, pid).into_iter();
    let established = rows.filter(|one| one.state == ESTABLISHED && one.inode != 0);
    let by_ends: BTreeMap<(String, String), u64> =
        established.map(|one| ((plain(&one.local), plain(&one.remote)), one.inode)).collect();
    let own = by_ends.iter().filter(|(_, inode)| its.contains(*inode));
    let other = own.filter_map(|((local, remote), _)| by_ends.get(&(remote.clone(), local.clone())));
    other.copied().filter(|inode| !its.contains(inode)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_host::fake::FakeHost;

    const HEADER: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn row(local: &str, remote: &str, state: &str, inode: u64) -> String {
        format!(
            "   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0 20 4 30 10 -1\n"
        )
    }

    /// A service (pid 70) with a connection, and a client (pid 71) that has waited 2 s in 1 s of CPU time.
    fn machine(tcp: &str, tcp6: &str) -> FakeHost {
        let host = FakeHost::v2(2, 1 << 30);
        host.set_file("/proc/70/net/tcp", &format!("{HEADER}{tcp}"));
        host.set_file("/proc/70/net/tcp6", &format!("{HEADER}{tcp6}"));
        for (pid, inode) in [(70, 7_001), (71, 7_101), (72, 7_201)] {
            host.set_file(format!("/proc/{pid}/fd/0"), "/dev/null");
            host.set_file(format!("/proc/{pid}/fd/5"), &format!("socket:[{inode}]"));
            host.set_file(format!("/proc/{pid}/comm"), &format!("p{pid}\n"));
            host.set_file(format!("/proc/{pid}/task/{pid}/schedstat"), "1000000000 2000000000 9\n");
        }
        host
    }

    fn found(host: &mut FakeHost, wait_ms: f64) -> Vec<(u32, f64)> {
        let clients = waiting(host, &|_, pid| pid == 70, wait_ms);
        assert!(clients.iter().all(|one| one.name == format!("p{}", one.pid)));
        clients.into_iter().map(|one| (one.pid, one.wait_ms_per_cpu_s)).collect()
    }

    // promise 31
    #[test]
    fn a_client_at_the_other_end_of_a_connection_is_found() {
        const SERVICE: &str = "0100007F:1F90";
        const CLIENT: &str = "0100007F:B0A2";
        let both = row(SERVICE, CLIENT, "01", 7_001) + &row(CLIENT, SERVICE, "01", 7_101);
        let mapped = format!("{MAPPED}{SERVICE}");
        let mapped = row(&mapped, &format!("{MAPPED}{CLIENT}"), "01", 7_001);
        let listening = row("00000000:1F90", "00000000:0000", "0A", 7_001);
        for (tcp, tcp6, clients) in [
            (both.as_str(), "", 1),
            (&row(CLIENT, SERVICE, "01", 7_101), &mapped, 1),
            // Connections that are closing, that wait, or whose other end is on another machine.
            (&(row(SERVICE, CLIENT, "06", 0) + &row(CLIENT, SERVICE, "06", 0)), "", 0),
            (&listening, "", 0),
            (&row(SERVICE, "0200000A:B0A2", "01", 7_001), "", 0),
            // Other programs' connections, and one of the service to itself.
            (
                &(row("0100007F:01", "0100007F:02", "01", 7_101)
                    + &row("0100007F:02", "0100007F:01", "01", 7_201)),
                "",
                0,
            ),
            ("garbage\n", "0: x", 0),
        ] {
            let mut host = machine(tcp, tcp6);
            let got = found(&mut host, 0.0);
            assert_eq!(got, vec![(71, 2_000.0); clients], "{tcp}{tcp6}");
        }
        // Only a client that waits far longer than the service is worth a word.
        let mut host = machine(&both, "");
        assert_eq!(found(&mut host, 999.0), [(71, 2_000.0)]);
        assert!(found(&mut host, 1_001.0).is_empty());
        host.set_file("/proc/71/task/71/schedstat", "1000000000 99000000 9\n");
        assert!(found(&mut host, 0.0).is_empty());
    }
}
