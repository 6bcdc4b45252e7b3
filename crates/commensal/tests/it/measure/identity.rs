//! A process is the one that was named: by its number in the namespace of whoever names it, across exec, and never another process
//! that gets the number later.

use crate::support::{Program, can_write_cgroups, text};
use commensal_blame::{BlameError, Scope, WaitProbe, probe};
use commensal_core::actual::Hierarchy;
use commensal_core::knob::Version;
use commensal_host::LinuxHost;
use commensal_sensors::mounts;
use commensal_testkit::{Groups, Signal, alone, ended, members, mortal, signal, until};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Number of probes that run here; `None` if there can be none, which it prints.
pub fn probes(test: &str) -> Option<usize> {
    let before = probe::count();
    match WaitProbe::attach(&LinuxHost::new(), &Scope::default()) {
        Ok(probe) => drop(probe),
        Err(why @ (BlameError::TooOld(_) | BlameError::NoBtf | BlameError::Forbidden(_))) => {
            println!("skipped: {test}: {why}");
            return None;
        }
        Err(error) => panic!("{error}"),
    }
    // The kernel unloads its programs a little later.
    until("this test's own probe is gone", || probe::count() <= before);
    Some(before)
}

/// Runs a script in a PID namespace of its own, with the program as `$0`; gives its output.
pub fn in_a_namespace(test: &str, program: &Program, script: &str) -> Option<String> {
    probes(test)?;
    let mut command = mortal("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]);
    command.arg(env!("CARGO_BIN_EXE_commensal")).current_dir(program.dir.path());
    let output = command.output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if err.starts_with("unshare:") {
        println!("skipped: {test}: {}", err.trim());
        return None;
    }
    assert!(output.status.success(), "{out}{err}");
    Some(out)
}

pub fn json(out: &str) -> Value {
    serde_json::from_str(out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

// promises 13, 31
#[test]
fn numbers_are_those_of_the_namespace() {
    let _alone = alone();
    let program = Program::new("bi");
    // Its number is small, and on the outside another process has it.
    let script = "sh -c 'while :; do :; done' & $0 blame $! --against 1 --for 1s --json";
    let Some(out) = in_a_namespace("numbers_are_those_of_the_namespace", &program, script) else { return };
    let report = json(&out);
    let name = report["subjects"][0].as_str().unwrap();
    assert!(name.starts_with("sh ("), "{out}");
    // It never sleeps, and it is alone: it is known by that, however busy the machine is.
    let figure = |key: &str| report[key].as_f64().unwrap();
    let busy = (figure("run_s") + figure("wait_ms") / 1e3) / figure("seconds");
    assert!(figure("run_s") > 0.0 && (0.9..1.01).contains(&busy), "{out}");
}

/// The process is killed in the look, and another one gets its number. The look goes on, because of a second target.
// promises 13, 31
#[test]
fn who_gets_the_number_later_is_nobody() {
    let _alone = alone();
    let program = Program::new("br");
    // The metrics are first written while it measures.
    let script = "
        sleep 600 & stays=$!
        sh -c 'while :; do :; done' & first=$!
        $0 blame $first $stays --for 10m --json --prometheus metrics >report & look=$!
        until [ -s metrics ] || ! kill -0 $look; do sleep 0.1; done
        kill -9 $first; wait $first
        while :; do
            echo $((first - 1)) >/proc/sys/kernel/ns_last_pid
            sh -c 'while :; do :; done' & [ $! = $first ] && break
            kill -9 $!; wait $!
        done
        until [ $(cut -d' ' -f14 /proc/$first/stat) -gt 50 ]; do sleep 0.1; done
        kill -TERM $look
        wait $look || exit
        cat report
        cut -d' ' -f14 /proc/$first/stat";
    let Some(out) = in_a_namespace("who_gets_the_number_later_is_nobody", &program, script) else { return };
    let (report, stranger) = out.trim_end().rsplit_once('\n').unwrap();
    let report = json(report);
    let ended = &report["ended"][0];
    let after = ended["after_s"].as_f64().unwrap_or_else(|| panic!("{out}"));
    assert_eq!(ended["name"], report["subjects"][0]);
    let ran = report["by_subject"][0]["run_s"].as_f64().unwrap();
    let stranger = stranger.trim().parse::<f64>().unwrap() / 100.0;
    println!("it ran for {ran} s and ended after {after} s; who got its number ran for {stranger} s");
    // One thread has no more CPU time than time.
    assert!(ran > 0.0 && ran <= after * 1.01 + 0.01, "{out}");
    assert!(stranger > 0.5, "{out}");
}

/// How a target ends, or goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ending {
    Ends,
    /// It ends, and another one of its name is started.
    StartsAgain,
    /// A process executes another program; a cgroup gets another name, where the kernel can rename it.
    Renamed,
    Stays,
}

/// Kinds of targets.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Process,
    Cgroup,
    Unit,
}

const ENDINGS: [Ending; 4] = [Ending::Ends, Ending::StartsAgain, Ending::Renamed, Ending::Stays];
/// A process that executes another program when it is told to.
const SCRIPT: &str = "trap 'exec sleep 600' USR1; while :; do sleep 0.05; done";

/// One target, and what was started for it.
struct Target {
    kind: Kind,
    ending: Ending,
    /// The second in which it ends.
    moment: u64,
    /// Its cgroup, except for a process.
    group: String,
    child: Option<Child>,
    name: String,
}

impl Target {
    fn process() -> Child {
        mortal("sh").args(["-c", SCRIPT]).spawn().unwrap()
    }

    fn start(groups: &mut Groups, kind: Kind, ending: Ending, moment: u64) -> Target {
        let ending_of = if kind == Kind::Unit { ".service" } else { "" };
        let group = format!("{kind:?}-{ending:?}-{moment}{ending_of}").to_lowercase();
        let mut target = Target { kind, ending, moment, group, child: None, name: String::new() };
        target.name = match kind {
            Kind::Process => {
                let child = target.child.insert(Target::process());
                child.id().to_string()
            }
            Kind::Cgroup => format!("/{}/{}", groups.top.file_name().unwrap().display(), target.group),
            Kind::Unit => target.group.clone(),
        };
        if kind != Kind::Process {
            groups.make(&target.group);
            groups.start(&target.group, None, SCRIPT);
        }
        target
    }

    /// Whether `blame` says that it has ended, and whether another one is in its place.
    fn expected(&self) -> Option<bool> {
        let another = self.kind != Kind::Process && self.ending == Ending::StartsAgain;
        [Ending::Ends, Ending::StartsAgain].contains(&self.ending).then_some(another)
    }

    fn end(&mut self, groups: &mut Groups) {
        match (self.ending, &mut self.child) {
            (Ending::Stays, _) => {}
            (Ending::Renamed, Some(child)) => {
                assert!(signal(child.id(), Signal::USR1));
            }
            (Ending::Renamed, None) if groups.unified => {}
            (Ending::Renamed, None) => {
                let to = format!("renamed-{}", self.group);
                std::fs::rename(groups.dir(&self.group), groups.dir(&to)).unwrap();
                self.group = to;
            }
            (ending, Some(child)) => {
                child.kill().unwrap();
                child.wait().unwrap();
                if ending == Ending::StartsAgain {
                    *child = Target::process();
                }
            }
            (ending, None) => {
                let dir = groups.dir(&self.group);
                until("the cgroup is gone", || {
                    for pid in members(&dir) {
                        signal(pid, Signal::KILL);
                    }
                    std::fs::remove_dir(&dir).is_ok()
                });
                if ending == Ending::StartsAgain {
                    groups.make(&self.group);
                    groups.start(&self.group, None, SCRIPT);
                }
            }
        }
    }
}

/// Kinds of targets x endings x moments, in one look: what has ended is told with its time, and what was started again under the
/// same name is another one. What has only another name goes on.
// promises 13, 31
#[test]
fn a_target_is_what_was_named_until_it_ends() {
    let test = "a_target_is_what_was_named_until_it_ends";
    let _alone = alone();
    if probes(test).is_none() || !can_write_cgroups(test) {
        return;
    }
    let hierarchies = mounts::hierarchies(&mut LinuxHost::new()).unwrap();
    let hierarchy = Hierarchy::of_threads(&hierarchies).unwrap();
    let unified = hierarchy.version == Version::V2;
    let mut groups = Groups::new(Path::new(&hierarchy.mount), unified, "target-ends");
    let mut targets = Vec::new();
    for kind in [Kind::Process, Kind::Cgroup, Kind::Unit] {
        for moment in [1, 3] {
            targets.extend(ENDINGS.map(|ending| Target::start(&mut groups, kind, ending, moment)));
        }
    }
    let program = Program::new("be");
    let names: Vec<String> = targets.iter().map(|target| target.name.clone()).collect();
    let metrics = program.path("metrics");
    let mut command = program.command(&["blame", "--for", "10m", "--json", "--prometheus"]);
    command.arg(&metrics).args(&names);
    let look = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = look.id();
    // They are first written while it measures.
    until("it measures", || std::fs::metadata(&metrics).is_ok_and(|file| file.len() > 0) || ended(pid));
    let measuring = Instant::now();
    let mut gone = Vec::new();
    for moment in [1, 3] {
        std::thread::sleep(Duration::from_secs(moment).saturating_sub(measuring.elapsed()));
        for target in targets.iter_mut().filter(|target| target.moment == moment) {
            target.end(&mut groups);
            gone.push((target.name.clone(), measuring.elapsed()));
        }
    }
    signal(pid, Signal::TERM);
    let output = look.wait_with_output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    for child in targets.iter_mut().filter_map(|target| target.child.as_mut()) {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    groups.clear();
    assert!(output.status.success(), "{out}{err}");
    let report = json(&out);
    let told = report["ended"].as_array().unwrap();
    let shown = report["subjects"].as_array().unwrap();
    let mut apart = Vec::new();
    for (target, shown) in targets.iter().zip(shown) {
        let found = told.iter().find(|one| one["name"] == *shown);
        let what = format!("{:?} {:?} {}", target.kind, target.ending, target.moment);
        assert_eq!(found.map(|one| one["replaced"].as_bool().unwrap()), target.expected(), "{what}: {out}");
        let Some(after) = found.map(|one| one["after_s"].as_f64().unwrap()) else { continue };
        let (_, at) = gone.iter().find(|(name, _)| *name == target.name).unwrap();
        apart.push(after - at.as_secs_f64());
    }
    // How long it had measured before; a cgroup is looked at twenty times a second.
    let (least, most) = apart.iter().fold((f64::MAX, 0.0_f64), |(low, high), s| (low.min(*s), high.max(*s)));
    assert!(most - least < 3.0, "{apart:?}: {out}");
    assert!(told.iter().all(|one| shown.contains(&one["name"])), "{out}");
}
