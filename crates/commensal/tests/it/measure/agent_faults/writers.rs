//! Somebody else who writes what the agent writes, again and again.

use crate::agent::{Agent, Theirs, asked, limited, ticks_on, until};
use crate::agent_faults::{Watched, figures, nothing_left, settings};
use crate::support::{Program, can_write_cgroups};
use commensal_testkit::Signal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What an agent may use beside such a writer, of one CPU: wide, for a build without optimisation that ticks ten times a second.
const MOST_CPU: f64 = 0.6;
const LASTS: Duration = Duration::from_secs(7);
/// Answers of 0, 1, 2, 4 s come in that time, and one more for a writer that just missed one.
const MOST_ANSWERS: usize = 5;

/// Sets files to what they were, with a pause in between; how often it found them changed.
struct Writer {
    stop: Arc<AtomicBool>,
    found: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    fn begin(files: Vec<(PathBuf, String)>, pause: Duration) -> Writer {
        let (stop, found) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (flag, count) = (Arc::clone(&stop), Arc::clone(&found));
        let thread = std::thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                for (file, value) in &files {
                    let now = std::fs::read_to_string(file).unwrap_or_default();
                    count.fetch_add(usize::from(now != *value), Ordering::Relaxed);
                    let _ = std::fs::write(file, value);
                }
                std::thread::sleep(pause);
            }
        });
        Writer { stop, found, thread: Some(thread) }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

// promise 18
#[test]
fn a_writer_that_never_stops() {
    let test = "a_writer_that_never_stops";
    if !can_write_cgroups(test) {
        return;
    }
    for (name, pause) in [("every-second", 1_000), ("every-10-ms", 10)] {
        let program = Program::new(name);
        let web = Theirs::new(&program, "web");
        // The name of a container manager's cgroup is all that tells who writes there.
        let batch = Theirs::named(format!("docker-{}-batch", program.prefix));
        let original = settings(&batch);
        let groups = program.groups(&format!(
            "[group.web]\nclass = \"online\"\nmatch = [{{ cgroup = \"/{}\" }}]\n\
             [group.batch]\nclass = \"offline\"\ntakeover = true\ncpu.max = \"0.5 cores\"\nmatch = [{{ cgroup = \"/{}\" }}]\n",
            web.name, batch.name
        ));
        let watched = Watched::over(&web);
        let agent = Agent::start(&program, &groups, &[]);
        until("the group is limited", || limited(&batch.cpu));
        until("the first round is over", || asked(&program).cost.writes > 0);
        ticks_on(&program, 5);
        let ours = settings(&batch);
        let changed: Vec<(PathBuf, String)> = original
            .iter()
            .filter(|(file, value)| file.starts_with(&batch.cpu) && ours[*file] != **value)
            .map(|(file, value)| (file.clone(), value.clone()))
            .collect();
        let files: Vec<String> = changed
            .iter()
            .map(|(file, _)| file.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        // Weight, idle and quota, as far as the kernel has them.
        println!("{test}, {name}: {files:?}");
        assert!(
            files.iter().any(|file| file.starts_with("cpu.idle")
                || file.contains("shares")
                || file.contains("weight"))
        );
        let (before, began) = (figures(agent.child.id()), Instant::now());
        let writer = Writer::begin(changed, Duration::from_millis(pause));
        std::thread::sleep(LASTS);
        let (after, passed) = (figures(agent.child.id()), began.elapsed());
        let seen = asked(&program);
        let found = writer.found.load(Ordering::Relaxed);
        drop(writer);
        let stopped = Instant::now();
        let cpu = (after.2 - before.2) as f64 / passed.as_millis() as f64;
        assert!(!seen.drift.is_empty(), "{seen:?}");
        for drift in &seen.drift {
            println!(
                "{test}, {name}: {} {}: {} times, {:?}",
                drift.path, drift.file, drift.times, drift.back_off_ms
            );
            assert!(drift.times >= 2 && (drift.times as usize) <= MOST_ANSWERS + 1, "{drift:?}");
            let by = drift.by.as_deref();
            assert_eq!(by, Some("a container manager, judging by the name docker"), "{drift:?}");
        }
        // Each file was set right at most so often; the writer found what it had not written.
        assert!(found >= 1 && found <= files.len() * (MOST_ANSWERS + 1), "{found} of {files:?}");
        assert!(cpu < MOST_CPU, "{cpu}");
        until("everything is in force again", || settings(&batch) == ours);
        println!(
            "{test}, {name}: the writer lost {found} times in {:.1} s; agent {:.1} % of a CPU; in force {:.1} s after its end",
            passed.as_secs_f64(),
            cpu * 1e2,
            stopped.elapsed().as_secs_f64()
        );
        // Backing off is no problem. Only who writes every 10 ms can have taken a value away before it was read back: that is
        // told, once for each file at most.
        let said = agent.said();
        let (races, other): (Vec<&str>, Vec<&str>) = said
            .lines()
            .partition(|line| line.contains("reads") && line.contains("another program writes it"));
        assert!(other.is_empty(), "{said}");
        assert!(races.len() <= if pause == 10 { files.len() } else { 0 }, "{said}");
        assert_eq!(agent.end(Signal::TERM), Some(0));
        program.expect(0, &["restore"]);
        assert_eq!(settings(&batch), original);
        watched.end();
        drop((batch, web));
        nothing_left(&program);
    }
}
