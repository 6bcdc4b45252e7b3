//! Looks twice at all processes, and reads what starts work by the clock, for the proposal of a groups file
//! ([`commensal_core::propose`]).
//!
//! What cannot be read is left out, and the result says so. Without root, the kernel hides the programs and sockets of
//! other users.

use crate::containers;
use crate::sockets::{self, LISTEN, TcpSocket};
use commensal_core::actual::CgroupPath;
use commensal_core::errno::Errno;
use commensal_core::process::Stat;
use commensal_core::propose::{CronJob, Inventory, SeenProcess, cron_jobs, timer_unit};
use commensal_host::Host;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Time between the two looks.
const WINDOW: Duration = Duration::from_secs(1);
/// Seconds per clock tick of `/proc/PID/stat`: `USER_HZ` is 100 on every Linux architecture in use.
const TICK_S: f64 = 0.01;
/// Number of descriptors of a process that are looked at. A server opens its sockets early, so they are among the first.
const MOST_DESCRIPTORS: usize = 512;

/// Folders with the units of systemd; a file in an earlier one replaces a file of the same name in a later one.
const UNIT_FOLDERS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/transient",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Looks at the machine twice. `pause` waits between the looks. `docker_host` is the value of the variable `DOCKER_HOST`.
pub fn look(host: &dyn Host, docker_host: Option<&str>, pause: &mut dyn FnMut(Duration)) -> Inventory {
    let mut seen = Inventory::default();
    let begin = host.boot_time();
    let before = processes(host);
    seen.containers = engines(host, docker_host, &mut seen.unseen);
    seen.timers = timers(host);
    seen.jobs = jobs(host, &mut seen.unseen);
    pause(WINDOW.saturating_sub(host.boot_time().saturating_sub(begin)));
    let after = processes(host);
    seen.window_s = host.boot_time().saturating_sub(begin).as_secs_f64();
    let mut sockets = Sockets::default();
    for (id, now) in &after {
        let earlier = before.get(id).map_or(0.0, |earlier| earlier.cpu_s);
        seen.processes
            .push(SeenProcess { cpu_s: [earlier, now.cpu_s], ..facts(host, id.0, now, &mut sockets) });
    }
    // The time of a child that has exited is now its parent's.
    for (_, gone) in before.iter().filter(|(id, _)| !after.contains_key(id)) {
        let listens = Some(Vec::new());
        let Figures { cgroup, cpu_s, name, .. } = gone.clone();
        seen.processes.push(SeenProcess {
            exe: name,
            cgroup,
            cpu_s: [cpu_s, 0.0],
            listens,
            ..SeenProcess::default()
        });
    }
    let hidden = seen.processes.iter().filter(|process| process.listens.is_none()).count();
    if hidden > 0 {
        seen.unseen.push(format!("whether {hidden} processes accept connections (root can see it)"));
    }
    if !after.keys().any(|(pid, _)| *pid == 1) {
        seen.unseen.push("the processes of other users (/proc hides them)".to_owned());
    }
    seen
}

/// A process at one look.
#[derive(Debug, Clone)]
struct Figures {
    name: String,
    cgroup: CgroupPath,
    cpu_s: f64,
    nice: i32,
    policy: i32,
}

/// Returns all processes by PID and start time, kernel threads and zombies excepted.
fn processes(host: &dyn Host) -> BTreeMap<(u32, u64), Figures> {
    let names = host.list(Path::new("/proc")).unwrap_or_default();
    let one = |name: &String| {
        let pid: u32 = name.parse().ok()?;
        let text = host.read_file(Path::new(&format!("/proc/{pid}/stat"))).ok()?;
        let stat = Stat::parse(&text)?;
        if stat.is_kernel_thread() || stat.has_ended() {
            return None;
        }
        // User and system time of the process, and of the children that it has waited for.
        let ticks: i64 = (14..=17).filter_map(|field| stat.number::<i64>(field)).sum();
        let figures = Figures {
            name: stat.name.to_owned(),
            cgroup: cgroup(&host.read_file(Path::new(&format!("/proc/{pid}/cgroup"))).unwrap_or_default()),
            cpu_s: ticks as f64 * TICK_S,
            nice: stat.number(19).unwrap_or(0),
            policy: stat.policy().unwrap_or(0),
        };
        Some(((pid, stat.start_ticks()?), figures))
    };
    names.iter().filter_map(one).collect()
}

/// The deepest of a process's cgroups (`/proc/PID/cgroup`). In v1, managers may use only some of the hierarchies.
fn cgroup(text: &str) -> CgroupPath {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let paths = paths.map(|path| CgroupPath::new(path.strip_suffix(" (deleted)").unwrap_or(path)));
    // The first of the deepest ones.
    paths
        .fold(CgroupPath::root(), |deepest, path| if path.depth() > deepest.depth() { path } else { deepest })
}

fn facts(host: &dyn Host, pid: u32, now: &Figures, sockets: &mut Sockets) -> SeenProcess {
    let cmdline = host.read_file(Path::new(&format!("/proc/{pid}/cmdline"))).unwrap_or_default();
    let args: Vec<String> = cmdline.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
    let link = host.link(Path::new(&format!("/proc/{pid}/exe"))).ok();
    let exe = link.map(|exe| exe.strip_suffix(" (deleted)").unwrap_or(&exe).to_owned());
    // Other users may not read the link.
    let exe = exe.or_else(|| args.first().filter(|program| program.starts_with('/')).cloned());
    let Figures { name, cgroup, nice, policy, .. } = now.clone();
    let listens = sockets.of(host, pid);
    SeenProcess { exe: exe.unwrap_or(name), args, cgroup, nice, policy, listens, ..SeenProcess::default() }
}

/// The listening sockets of each network namespace.
#[derive(Default)]
struct Sockets {
    /// What each socket's inode listens on, by the namespace's name.
    listening: BTreeMap<String, BTreeMap<u64, String>>,
}

impl Sockets {
    /// What the process accepts connections on; `None` if this user may not see it.
    fn of(&mut self, host: &dyn Host, pid: u32) -> Option<Vec<String>> {
        let inodes = match sockets::inodes(host, pid, MOST_DESCRIPTORS) {
            Ok(inodes) => inodes,
            // It has exited.
            Err(error) if [Errno::ENOENT, Errno::ESRCH].contains(&error.errno) => return Some(Vec::new()),
            Err(_) => return None,
        };
        if inodes.is_empty() {
            return Some(Vec::new());
        }
        let space = host.link(Path::new(&format!("/proc/{pid}/ns/net"))).unwrap_or_default();
        let listening = self.listening.entry(space).or_insert_with(|| listening(host, pid));
        Some(inodes.iter().filter_map(|inode| listening.get(inode).cloned()).collect())
    }
}

/// What the sockets in a process's network namespace listen on, by inode (for local sockets proc_pid_net(5)).
fn listening(host: &dyn Host, pid: u32) -> BTreeMap<u64, String> {
    /// `__SO_ACCEPTCON`, include/linux/net.h.
    const ACCEPTS: u32 = 1 << 16;
    let tcp = |one: TcpSocket| {
        let port = u16::from_str_radix(one.local.rsplit(':').next()?, 16).ok();
        port.filter(|_| one.state == LISTEN).map(|port| (one.inode, format!("port {port}")))
    };
    let local = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().take(8).collect();
        let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
        (flags & ACCEPTS != 0).then_some((fields.get(6)?.parse().ok()?, (*fields.get(7)?).to_owned()))
    };
    let unix = host.read_file(Path::new(&format!("/proc/{pid}/net/unix"))).unwrap_or_default();
    let found = sockets::tcp(host, pid).into_iter().filter_map(tcp);
    found.chain(unix.lines().skip(1).filter_map(local)).collect()
}

/// Returns the names of the running containers, by identifier.
fn engines(host: &dyn Host, docker_host: Option<&str>, unseen: &mut Vec<String>) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for socket in containers::sockets(docker_host) {
        match containers::listed(host, &socket) {
            Ok(running) => names.extend(running.into_iter().map(|one| (one.id, one.name))),
            Err(error) if error.errno == Errno::ENOENT => {}
            Err(error) => unseen.push(format!("the names of containers ({error})")),
        }
    }
    names
}

/// Returns the units that systemd's timers start, with their timers.
fn timers(host: &dyn Host) -> BTreeMap<String, String> {
    let wanted = UNIT_FOLDERS.map(|folder| format!("{folder}/timers.target.wants"));
    let folders = wanted.iter().map(String::as_str).chain(["/run/systemd/transient"]);
    let names = folders.flat_map(|folder| host.list(Path::new(folder)).unwrap_or_default());
    let unit = |timer: String| {
        let template = timer.split_once('@').map(|(name, _)| format!("{name}@.timer"));
        let names = [Some(timer.clone()), template];
        let files =
            names.iter().flatten().flat_map(|name| UNIT_FOLDERS.map(|folder| format!("{folder}/{name}")));
        let text = files.map(|file| host.read_file(Path::new(&file))).find_map(Result::ok);
        Some((timer_unit(&timer, &text.unwrap_or_default())?, timer))
    };
    names.filter(|name| name.ends_with(".timer")).filter_map(unit).collect()
}

/// Returns the jobs of cron.
fn jobs(host: &dyn Host, unseen: &mut Vec<String>) -> Vec<CronJob> {
    let mut jobs = Vec::new();
    let mut file = |path: &str, has_user: bool| {
        if let Ok(text) = host.read_file(Path::new(path)) {
            jobs.extend(cron_jobs(path, &text, has_user));
        }
    };
    file("/etc/crontab", true);
    for (folder, has_user) in
        [("/etc/cron.d", true), ("/var/spool/cron/crontabs", false), ("/var/spool/cron", false)]
    {
        match host.list(Path::new(folder)) {
            Ok(names) => names.iter().for_each(|name| file(&format!("{folder}/{name}"), has_user)),
            Err(error) if [Errno::EACCES, Errno::EPERM].contains(&error.errno) => {
                unseen.push(format!("the crontabs in {folder} (root can see them)"));
            }
            Err(_) => {}
        }
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;
    use commensal_core::propose::propose;
    use commensal_host::fake::{FakeHost, FakeLooks};

    /// Adds a process to the machine. `socket` is the inode of a socket that it has.
    fn add(fake: &FakeHost, cgroup: &str, exe: &str, socket: Option<u64>) -> u32 {
        let pid = fake.add_process(&[]);
        fake.set_looks(pid, FakeLooks { exe: exe.to_owned(), ..FakeLooks::default() });
        fake.set_file(format!("/proc/{pid}/cgroup"), &format!("0::{cgroup}\n"));
        for (fd, target) in [(0, "/dev/null".to_owned())]
            .into_iter()
            .chain(socket.map(|inode| (3, format!("socket:[{inode}]"))))
        {
            fake.set_file(format!("/proc/{pid}/fd/{fd}"), &target);
        }
        pid
    }

    fn tcp(listening: &[(u16, u64)]) -> String {
        let line = |(port, inode): &(u16, u64)| {
            format!(
                "   0: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0 100 0\n"
            )
        };
        let client = "   9: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 999 1 0 100 0\n";
        "  sl  local_address rem_address   st tx_queue\n".to_owned()
            + &listening.iter().map(line).collect::<String>()
            + client
    }

    fn twice(fake: &FakeHost) -> Inventory {
        look(fake, None, &mut |time| fake.advance(time))
    }

    #[test]
    fn listeners_of_their_own_namespaces() {
        let fake = FakeHost::v2(4, 8 << 30);
        let web = add(&fake, "/system.slice/nginx.service", "/usr/sbin/nginx", Some(7));
        let client = add(&fake, "/system.slice/client.service", "/opt/client", Some(999));
        let inside = add(&fake, "/system.slice/own.service", "/opt/own", Some(7));
        let local = add(&fake, "/system.slice/fpm.service", "/usr/sbin/php-fpm", Some(8));
        let unix = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01     8 /run/fpm.sock\n\
                    0000000000000000: 00000002 00000000 00000000 0001 03   999 /run/client.sock\n";
        for (pid, space, ports) in [
            (web, "net:[1]", &[(80, 7)][..]),
            (client, "net:[1]", &[]),
            (inside, "net:[2]", &[]),
            (local, "net:[1]", &[]),
        ] {
            fake.set_file(format!("/proc/{pid}/ns/net"), space);
            fake.set_file(format!("/proc/{pid}/net/tcp"), &tcp(ports));
            fake.set_file(format!("/proc/{pid}/net/unix"), unix);
        }
        let seen = twice(&fake);
        let found: BTreeMap<&str, &[String]> =
            seen.processes.iter().map(|one| (one.exe.as_str(), one.listens.as_deref().unwrap())).collect();
        assert_eq!(found["/usr/sbin/nginx"], ["port 80"]);
        assert_eq!(found["/usr/sbin/php-fpm"], ["/run/fpm.sock"]);
        assert!(found["/opt/client"].is_empty() && found["/opt/own"].is_empty());
    }

    /// 500 units and 200 containers, some of which listen or compute.
    #[test]
    fn a_machine_with_many_units_and_containers() {
        let fake = FakeHost::v2(64, 8 << 30);
        let mut listed = Vec::new();
        for index in 0..500_u32 {
            let socket = index.is_multiple_of(5).then_some(7);
            let pid = add(&fake, &format!("/system.slice/unit-{index}.service"), "/opt/x", socket);
            fake.set_file(format!("/proc/{pid}/net/tcp"), &tcp(&[(80, 7)]));
            fake.wants_cpu(pid, index % 5 == 1);
        }
        for index in 0..200_u32 {
            let id = format!("{index:064x}");
            listed.push(format!(r#"{{"Id":"{id}","Names":["/c-{index}"]}}"#));
            let pid = add(&fake, &format!("/docker/{id}"), "/usr/bin/ffmpeg", None);
            fake.wants_cpu(pid, true);
        }
        let answer = format!("HTTP/1.0 200 OK\r\n\r\n[{}]", listed.join(","));
        fake.answer("/run/docker.sock", "GET /containers/json ", &answer);
        let before = fake.snapshot();
        let calls = fake.calls();
        let proposal = propose(&twice(&fake));
        // The fake machine has some processes of its own.
        let bare = propose(&twice(&FakeHost::v2(64, 8 << 30)));
        assert_eq!((proposal.online.len(), proposal.offline.len()), (100, 100 + 200));
        assert_eq!((proposal.idle - bare.idle, proposal.undecided.len()), (300, 0));
        assert_eq!(proposal.unseen, bare.unseen);
        assert!(
            proposal.offline.iter().all(|entry| (entry.cpus - 1.0).abs() < 0.011),
            "{:?}",
            proposal.offline[0]
        );
        assert_eq!(fake.snapshot(), before, "looking changed something");
        assert!(fake.mutations().is_empty());
        // Reads are in proportion to the processes.
        let each = (fake.calls() - calls) / 700;
        assert!(each <= 12, "{each} calls for each process");
    }

    #[test]
    fn timers_and_crontabs() {
        let fake = FakeHost::v1(2, 1 << 30);
        for (path, text) in [
            ("/etc/systemd/system/timers.target.wants/backup.timer", ""),
            ("/usr/lib/systemd/system/timers.target.wants/systemd-tmpfiles-clean.timer", ""),
            ("/etc/systemd/system/timers.target.wants/report@eu.timer", ""),
            ("/etc/systemd/system/report@.timer", "[Timer]\nUnit=report-eu.service\n"),
            ("/etc/systemd/system/backup.timer", "[Timer]\nUnit=nightly.service\n"),
            ("/usr/lib/systemd/system/backup.timer", "[Timer]\nUnit=replaced.service\n"),
            ("/run/systemd/transient/run-u7.timer", ""),
            ("/usr/lib/systemd/system/disabled.timer", ""),
            ("/etc/crontab", "0 2 * * * root /opt/etl\n"),
            ("/etc/cron.d/report", "@daily www /opt/report\n"),
            ("/var/spool/cron/crontabs/media", "0 3 * * * /opt/transcode\n"),
        ] {
            fake.set_file(path, text);
        }
        let seen = twice(&fake);
        let units: Vec<&str> = seen.timers.keys().map(String::as_str).collect();
        assert_eq!(
            units,
            ["nightly.service", "report-eu.service", "run-u7.service", "systemd-tmpfiles-clean.service"]
        );
        let jobs: Vec<&str> = seen.jobs.iter().map(|job| job.command.as_str()).collect();
        assert_eq!(jobs, ["/opt/etl", "/opt/report", "/opt/transcode"]);
        let text = propose(&seen).groups_file();
        assert!(
            text.contains("systemd = \"nightly.service\"")
                && text.contains("systemd-tmpfiles-clean.service."),
            "{text}"
        );
        assert!(text.contains("#   /etc/crontab:1: /opt/etl\n"), "{text}");
    }

    #[test]
    fn the_deepest_cgroup_is_the_home() {
        for (text, want) in [
            ("", "/"),
            ("0::/\n", "/"),
            ("5:memory:/docker/x\n1:name=systemd:/a/b/c\n0::/\n", "/a/b/c"),
            ("2:cpu,cpuacct:/a:b\n", "/a:b"),
            ("0::/a (deleted)\n", "/a"),
        ] {
            assert_eq!(cgroup(text).as_str(), want, "{text:?}");
        }
    }
}
