//! A thousand cgroups a second that appear below a match and go.

use crate::agent::{Agent, Theirs, asked, limited, set_quota, ticks_on, until};
use crate::agent_faults::{Watched, figures, nothing_left};
use crate::support::{Program, can_write_cgroups, cpu_mount};
use commensal_testkit::{Signal, holds_within};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PER_SECOND: usize = 1_000;
/// How many of them are there at a time.
const AT_ONCE: usize = 20;
const LASTS: Duration = Duration::from_secs(5);
/// What may be left of a storm in an agent's memory, KiB: the allocator's share, not a figure per cgroup.
const GROWTH_KIB: u64 = 16 << 10;
/// Descriptors of the one group more, which has a folder and some files in every hierarchy.
const MORE_FDS: usize = 64;

/// Makes and removes groups `storm-N` until told to stop; how many that were.
struct Storm {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Storm {
    fn begin(prefix: &str) -> Storm {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (flag, made, at) = (Arc::clone(&stop), Arc::clone(&count), cpu_mount());
        let prefix = prefix.to_owned();
        let thread = std::thread::spawn(move || {
            let (began, mut there) = (Instant::now(), VecDeque::<PathBuf>::new());
            while !flag.load(Ordering::Relaxed) {
                let due = began.elapsed().as_millis() as usize * PER_SECOND / 1_000;
                let number = made.load(Ordering::Relaxed);
                if number >= due {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                let dir = at.join(format!("{prefix}-storm-{number}"));
                std::fs::create_dir(&dir).unwrap();
                there.push_back(dir);
                if there.len() > AT_ONCE {
                    std::fs::remove_dir(there.pop_front().unwrap()).unwrap();
                }
                made.fetch_add(1, Ordering::Relaxed);
            }
            there.into_iter().for_each(|dir| std::fs::remove_dir(dir).unwrap());
        });
        Storm { stop, count, thread: Some(thread) }
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

// promise 26
#[test]
fn a_thousand_cgroups_a_second() {
    let test = "a_thousand_cgroups_a_second";
    if !can_write_cgroups(test) {
        return;
    }
    let program = Program::new("crowd");
    let (web, stays) = (Theirs::new(&program, "web"), Theirs::new(&program, "batch-stays"));
    let groups = program.groups(&format!(
        "[group.web]\nclass = \"online\"\nmatch = [{{ cgroup = \"/{}\" }}]\n\
         [group.etl]\nclass = \"offline\"\ncpu.max = \"0.3 cores\"\n\
         match = [{{ cgroup = \"/{}-batch-*\" }}, {{ cgroup = \"/{}-storm-*\" }}]\n",
        web.name, program.prefix, program.prefix
    ));
    let watched = Watched::over(&web);
    let agent = Agent::start(&program, &groups, &[]);
    until("the group is limited", || limited(&stays.cpu));
    ticks_on(&program, 10);
    let before = (asked(&program).ticks, figures(agent.child.id()));
    let storm = Storm::begin(&program.prefix);
    let began = Instant::now();
    until("the storm is on its way", || storm.count.load(Ordering::Relaxed) > PER_SECOND / 2);
    // In the middle of it a group comes that stays, and somebody lifts the limit of the other one.
    let late = Theirs::new(&program, "batch-late");
    set_quota(&stays.cpu, false);
    let changed = Instant::now();
    let left = || LASTS.saturating_sub(began.elapsed());
    let protected =
        holds_within(left(), || limited(&late.cpu) && limited(&stays.cpu)).then(|| changed.elapsed());
    // The storm goes on for as long as it was to.
    std::thread::sleep(left());
    let during = figures(agent.child.id());
    let made = storm.count.load(Ordering::Relaxed);
    drop(storm);
    println!(
        "{test}: {made} cgroups in {:.1} s; the one that came and the one that was changed are protected after {protected:?}; \
         descriptors {} -> {}, KiB {} -> {}, CPU {} ms",
        began.elapsed().as_secs_f64(),
        before.1.0,
        during.0,
        before.1.1,
        during.1,
        during.2 - before.1.2
    );
    assert!(made > PER_SECOND, "{made}");
    until("both are limited", || limited(&late.cpu) && limited(&stays.cpu));
    until("nothing is wrong any more", || asked(&program).problems.is_empty());
    // With the next write those that are gone leave the record as well, but for 64 lines (`drivers::forget_gone`), or as many
    // as are kept; the storm's last cgroups may still have been there at that look.
    const LINES_OF_THE_GONE: usize = 3 * 64;
    set_quota(&late.cpu, false);
    let journal = || std::fs::read_to_string(program.state().join("machine.journal")).unwrap();
    until("it is put back", || limited(&late.cpu));
    let left = || journal().lines().filter(|line| line.contains("-storm-")).count();
    assert!(left() <= LINES_OF_THE_GONE, "what is gone stays on record: {}", journal());
    let after = figures(agent.child.id());
    assert!(after.0 <= before.1.0 + MORE_FDS, "{before:?} {after:?}");
    assert!(after.1 <= before.1.1 + GROWTH_KIB, "{before:?} {after:?}");
    assert!(protected.is_some(), "what stays is protected only after the storm: {}", agent.said());
    assert!(asked(&program).ticks > before.0, "it ticks");
    assert_eq!(agent.end(Signal::TERM), Some(0));
    program.expect(0, &["restore"]);
    watched.end();
    drop((late, stays, web));
    nothing_left(&program);
}
