//! A consistent snapshot with an example of everything that a view can show, for golden tests.

use crate::snapshot::{
    Action, Config, Controller, Cost, Drift, Explanation, Group, HeldBack, Input, LastSafeState, Lease,
    Limit, Machine, Member, Pressure, Queue, Reactions, SCHEMA, Snapshot, Unmet, WaitPart,
};
use std::sync::Arc;

/// A machine of eight CPUs with an online service, two offline groups, and several problems.
#[must_use]
pub fn snapshot() -> Snapshot {
    Snapshot {
        schema: SCHEMA.to_owned(),
        version: "0.1.0".to_owned(),
        pid: 4242,
        at: "2026-11-22T06:15:30.250Z".to_owned(),
        uptime_s: 7_530.25,
        ticks: 7_530,
        interval_ms: 1_000,
        tick_ms: 3.2,
        paused: false,
        canary: None,
        canary_report: None,
        config: Config {
            path: "/etc/commensal/groups.d".to_owned(),
            generation: 3,
            loaded: "2026-11-22T05:58:00Z".to_owned(),
            error: Some(
                "/etc/commensal/groups.d/etl.toml:4:1: unknown key \"cpu.mxa\"; did you mean \"cpu.max\"?".to_owned(),
            ),
        },
        lease: Some(Lease { time_ms: 3_000, guard_pid: Some(4243) }),
        no_probe: Some("this kernel has no type information".to_owned()),
        safe_state: Some(Arc::new(LastSafeState {
            at: "2026-11-22T04:09:52.750Z".to_owned(),
            why: "the agent died".to_owned(),
            took_ms: 8,
            held: 41,
            failures: 1,
            failed: vec!["blkio:/etl blkio.throttle.read_bps_device 254:0: write: EIO".to_owned()],
        })),
        machine: Machine {
            cpus: 8,
            busy: Some(6.31),
            online: Some(2.2),
            offline: Some(4.0),
            other: Some(0.11),
            steal: Some(0.02),
            memory_bytes: 32 << 30,
            memory_available_bytes: Some(11 << 30),
            pressure: pressure(31.5, 0.0, 2.25),
        },
        groups: vec![web(), etl(), report()],
        controllers: controllers(),
        unmet: vec![Unmet {
            group: "report".to_owned(),
            what: "io.read 50 MiB/s".to_owned(),
            because: "cgroup v1 does not count buffered reads".to_owned(),
            try_this: "use a kernel with cgroup v2, or direct reads".to_owned(),
        }],
        drift: drift(),
        actions: Arc::new(actions()),
        cost: Cost {
            cpu_s: Some(9.75),
            rss_bytes: Some(11 << 20),
            writes: 812,
            late_ticks: 2,
            audit_lost: 5,
        },
        reactions: Reactions { count: 4, total_ms: 22.0, longest_ms: 9.5 },
        read_back_s: Some(3.25),
        failed: Vec::new(),
        problems: vec![
            "/docker/91f0c cpu.shares is written by dockerd as well: the agent has stopped writing it until the next \
             configuration"
                .to_owned(),
            "the audit log /var/lib/commensal/audit.log has lost 5 lines: append to /var/lib/commensal/audit.log: ENOSPC \
             (no space left on device); free some space there; the groups stay in force meanwhile"
                .to_owned(),
        ],
    }
}

fn pressure(cpu: f64, memory: f64, io: f64) -> Pressure {
    Pressure { cpu_pct: Some(cpu), memory_pct: Some(memory), io_pct: Some(io) }
}

fn input(name: &str, value: f64, unit: &str) -> Input {
    Input { name: name.to_owned(), value, unit: unit.to_owned() }
}

fn limit(key: &str, value: &str, rule: &str) -> Limit {
    let why = Explanation { rule: rule.to_owned(), ..Explanation::default() };
    Limit { key: key.to_owned(), value: value.to_owned(), why }
}

fn part(kind: &str, group: Option<&str>, ms_per_s: f64, total_s: f64) -> WaitPart {
    WaitPart { kind: kind.to_owned(), group: group.map(str::to_owned), ms_per_s, total_s }
}

fn member(path: &str, own: bool, found_by: &str) -> Member {
    Member { path: path.to_owned(), own, found_by: found_by.to_owned() }
}

fn web() -> Group {
    Group {
        name: "web".to_owned(),
        class: "online".to_owned(),
        mechanism: Some("cpu.weight 1000".to_owned()),
        members: Arc::new(vec![
            member("/system.slice/nginx.service", false, "unit nginx.service"),
            member("/docker/0a12f", false, "container api"),
        ]),
        cpus: Some(2.2),
        memory_bytes: Some(6 << 30),
        memory_max_bytes: None,
        read_per_s: Some(0.0),
        write_per_s: Some(1_048_576.0),
        tasks: Some(94),
        run_delay_ms_per_s: Some(12.5),
        blamed_ms_per_cpu_s: Some(7.25),
        waits: vec![
            part("offline", Some("etl"), 15.95, 120.5),
            part("other", None, 4.5, 33.25),
            part("peers", Some("web"), 0.25, 1.0),
            part("interrupts", None, 0.0, 0.5),
        ],
        held_back: vec![
            HeldBack {
                kind: "own-limit".to_owned(),
                total_s: 61.5,
                now: Some(
                    "its own limit: 412 ms of 10000 were throttled by cpu.max of /system.slice/nginx.service \
                     (20.0 ms of 100.0 ms); raise cpu.max, or use fewer threads"
                        .to_owned(),
                ),
            },
            HeldBack { kind: "steal".to_owned(), total_s: 1.5, now: None },
        ],
        preemption_p99_us: Some(28.0),
        throttled_pct: None,
        oom_kills: Some(0),
        pressure: pressure(1.25, 0.0, 0.5),
        limits: Arc::new(vec![limit("cpu.weight", "1000", "the user's")]),
        queue: None,
        frozen: false,
        ..Group::default()
    }
}

fn etl() -> Group {
    let why = Explanation {
        rule: "suppress: offline work gets what online work leaves below the target; grows by 1 CPU a second at most"
            .to_owned(),
        formula: "quota = min(cpus * target / 100 - online - other, before + step)".to_owned(),
        inputs: vec![
            input("cpus", 8.0, "CPUs"),
            input("target", 80.0, "%"),
            input("online", 2.2, "CPUs"),
            input("other", 0.11, "CPUs"),
            input("before", 3.0, "CPUs"),
            input("step", 1.0, "CPUs"),
        ],
    };
    Group {
        name: "etl".to_owned(),
        class: "offline".to_owned(),
        mechanism: Some("cpu.idle".to_owned()),
        members: Arc::new(vec![member("/commensal-offline/etl", true, "made by commensal")]),
        cpus: Some(3.5),
        memory_bytes: Some(7_730_941_132),
        memory_max_bytes: Some(8 << 30),
        read_per_s: Some(104_857_600.0),
        write_per_s: Some(0.0),
        tasks: Some(12),
        run_delay_ms_per_s: Some(1_830.0),
        blamed_ms_per_cpu_s: None,
        preemption_p99_us: None,
        throttled_pct: Some(41.0),
        oom_kills: Some(1),
        pressure: pressure(88.0, 3.5, 12.0),
        limits: Arc::new(vec![
            Limit { key: "cpu.max".to_owned(), value: "4 CPUs".to_owned(), why },
            limit("memory.max", "8 GiB", "the user's; at the limit the largest process is killed"),
            limit("io.read", "100 MiB/s", "the user's"),
        ]),
        queue: Some(Queue {
            running: 4,
            waiting: 17,
            max_concurrency: Some(4),
            max_size: Some(100),
            held: Some("memory is at 90 % of the limit".to_owned()),
        }),
        frozen: false,
        ..Group::default()
    }
}

fn report() -> Group {
    Group {
        name: "report".to_owned(),
        class: "offline".to_owned(),
        mechanism: Some("cpu.shares 2".to_owned()),
        members: Arc::new(vec![member("/docker/91f0c", false, "container \"report\"")]),
        cpus: Some(0.5),
        memory_bytes: Some(2 << 30),
        pressure: Pressure { cpu_pct: Some(97.0), ..Pressure::default() },
        frozen: true,
        ..Group::default()
    }
}

fn controllers() -> Vec<Controller> {
    vec![
        Controller {
            name: "frame".to_owned(),
            value: Some("CPUs 4-7".to_owned()),
            why: Explanation {
                rule: "frame: whole cores, as many as offline work may use, furthest from online work first"
                    .to_owned(),
                formula: "frame = ceil(allowed / threads) * threads".to_owned(),
                inputs: vec![input("allowed", 4.0, "CPUs"), input("threads", 2.0, "")],
            },
            ..Controller::default()
        },
        Controller {
            name: "latency".to_owned(),
            group: Some("etl".to_owned()),
            off: Some("no online group has target-wakeup-p99".to_owned()),
            ..Controller::default()
        },
    ]
}

fn drift() -> Vec<Drift> {
    vec![
        Drift {
            path: "/docker/91f0c".to_owned(),
            file: "cpu.shares".to_owned(),
            want: "2".to_owned(),
            found: "1024".to_owned(),
            times: 9,
            by: Some("dockerd".to_owned()),
            back_off_ms: None,
            back: false,
            ago_ms: 90_000,
        },
        Drift {
            path: "/commensal-offline/etl".to_owned(),
            file: "cpu.cfs_quota_us".to_owned(),
            want: "40000".to_owned(),
            found: "-1".to_owned(),
            times: 1,
            by: None,
            back_off_ms: Some(2_000),
            back: true,
            ago_ms: 250,
        },
    ]
}

fn actions() -> Vec<Action> {
    let action =
        |at: &str, group: Option<&str>, what: &str, values: Option<(&str, &str)>, why: &str| Action {
            at: format!("2026-11-22T06:15:{at}Z"),
            group: group.map(str::to_owned),
            what: what.to_owned(),
            old: values.map(|(old, _)| old.to_owned()),
            new: values.map(|(_, new)| new.to_owned()),
            why: why.to_owned(),
            reason: None,
        };
    vec![
        action("20.001", None, "configuration", None, "3 groups taken into force"),
        action(
            "28.250",
            Some("report"),
            "/docker/91f0c freezer.state",
            Some(("THAWED", "FROZEN")),
            "memory at 95 %",
        ),
        action(
            "29.250",
            Some("etl"),
            "/commensal-offline/etl cpu.cfs_quota_us",
            Some(("30000", "40000")),
            "online work needs less",
        ),
    ]
}
