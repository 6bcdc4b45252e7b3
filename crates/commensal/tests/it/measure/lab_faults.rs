//! A lab run that is interrupted, killed or robbed of its disk at each of its moments: nothing stays frozen, nothing stays behind.

use crate::bad_input::assert_nothing_left;
use crate::lab::{assert_gone, workloads};
use crate::support::{Program, can_write_cgroups, cgroups_named, text};
use commensal_lab::record::Run;
use commensal_testkit::{Signal, ended, signal, until};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// When it happens.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    /// The service has been started, nothing has been measured.
    Begin,
    /// The offline work stands still.
    Frozen,
    /// It runs, and isolation is on.
    Isolated,
    /// A round is recorded: between two rounds.
    Recorded,
    /// All rounds are recorded: the work is being ended, or the report written.
    End,
}

const MOMENTS: [Moment; 5] = [Moment::Begin, Moment::Frozen, Moment::Isolated, Moment::Recorded, Moment::End];

impl Moment {
    /// A run that comes to this moment soon.
    fn args(self) -> &'static [&'static str] {
        match self {
            // Short windows have at least six rounds, and long blocks freeze nothing.
            Moment::End => &["lab", "run", "quickstart", "--rounds", "1", "--block", "0.5"],
            _ => &["lab", "run", "quickstart", "--for", "60s"],
        }
    }

    /// One that ends soon as well, whatever becomes of it.
    fn short_args(self) -> &'static [&'static str] {
        match self {
            Moment::Frozen => &["lab", "run", "quickstart", "--for", "1s"],
            Moment::End => self.args(),
            _ => &["lab", "run", "quickstart", "--rounds", "2", "--block", "0.5"],
        }
    }

    fn is_there(self, pid: u32, record: &Path) -> bool {
        let groups = cgroups_named(&format!("commensal-lab-{pid}-"));
        let reads = |file: &str, value: &str| {
            let below = groups.iter().filter_map(|group| std::fs::read_dir(group).ok()).flatten().flatten();
            let all = below.map(|entry| entry.path()).chain(groups.iter().cloned());
            all.into_iter()
                .any(|dir| std::fs::read_to_string(dir.join(file)).is_ok_and(|text| text.trim() == value))
        };
        let frozen = || reads("freezer.state", "FROZEN") || reads("cgroup.freeze", "1");
        let blocks = || {
            let record = std::fs::read(record).ok().and_then(|bytes| Run::from_json(&bytes).ok());
            record.map_or(0, |run| run.blocks.len())
        };
        match self {
            Moment::Begin => workloads(pid).iter().any(|line| line.contains("http")),
            Moment::Frozen => frozen(),
            Moment::Isolated => reads("cpu.idle", "1") && !frozen(),
            Moment::Recorded => blocks() > 0,
            Moment::End => blocks() >= 4,
        }
    }

    fn wait(self, pid: u32, record: &Path, child: &mut Child) {
        until(format_args!("{self:?}"), || {
            let is_there = self.is_there(pid, record);
            let ended = child.try_wait().unwrap();
            // The end may be over before anybody looks.
            assert!(is_there || ended.is_none() || self == Moment::End, "{self:?} did not come: {ended:?}");
            is_there || ended.is_some()
        });
    }
}

/// Statuses of a run that ends by itself.
const VERDICTS: [i32; 4] = [0, 1, 3, 4];

// promise 34
#[test]
fn each_signal_at_each_moment() {
    if !can_write_cgroups("each_signal_at_each_moment") {
        return;
    }
    for moment in MOMENTS {
        for (name, with) in [("INT", Signal::INT), ("TERM", Signal::TERM), ("KILL", Signal::KILL)] {
            let case = format!("SIG{name} at {moment:?}");
            let program = Program::new("moment");
            let record = program.path("run.json");
            let mut child =
                program.command(moment.args()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let pid = child.id();
            moment.wait(pid, &record, &mut child);
            let children = workloads(pid);
            signal(pid, with);
            let groups = format!("commensal-lab-{pid}-");
            if with == Signal::KILL {
                // Dead is dead, although this parent has not looked: nobody has to wait for that.
                until(&case, || ended(pid));
                until(&case, || {
                    program.run(&["restore"]).status.code() == Some(0) && cgroups_named(&groups).is_empty()
                });
            }
            let output = child.wait_with_output().unwrap();
            let (status, err) = (output.status.code(), text(&output.stderr));
            match (name, moment) {
                ("KILL", Moment::End) => {}
                ("KILL", _) => assert_eq!(status, None, "{case}: {err}"),
                (_, Moment::End) if status.is_some_and(|status| VERDICTS.contains(&status)) => {}
                _ => assert!(
                    status == Some(2) && err.contains("stopped before its end"),
                    "{case}: {status:?} {err}"
                ),
            }
            if !children.is_empty() {
                assert_gone(&children);
            }
            assert!(cgroups_named(&groups).is_empty(), "{case}: {:?}", cgroups_named(&groups));
            assert_nothing_left(&program.state());
            // What is there of a record can be read.
            if let Ok(bytes) = std::fs::read(&record) {
                Run::from_json(&bytes).unwrap();
            }
        }
    }
}

/// The disk with state and record fills up at each moment; afterwards there is space again.
// promise 34
#[test]
fn a_full_disk_at_each_moment() {
    let test = "a_full_disk_at_each_moment";
    if !can_write_cgroups(test) {
        return;
    }
    for moment in MOMENTS {
        let program = Program::new("disk");
        let small = program.path("small");
        std::fs::create_dir(&small).unwrap();
        let run = program.command(moment.short_args());
        let words: Vec<&str> = std::iter::once(run.get_program())
            .chain(run.get_args())
            .map(|word| word.to_str().unwrap())
            .collect();
        let state = program.state();
        let command: Vec<String> = words
            .iter()
            .map(|word| if Path::new(word) == state { "small/state".to_owned() } else { format!("'{word}'") })
            .collect();
        let script = format!(
            "mount -t tmpfs -o size=4m none small || exit 99\n\
             {} -o small/run.json >out 2>err &\n\
             echo $! >pid.new && mv pid.new pid\n\
             until test -e full; do cp small/run.json . 2>/dev/null; sleep 0.01; done\n\
             cat /dev/zero >small/fill 2>/dev/null\n\
             wait $!; echo $? >status.new; mv status.new status\n\
             rm small/fill\n\
             {} --state-dir small/state --beside-others restore >restored 2>&1; echo $? >restore-status; ls small/state >left",
            command.join(" "),
            words[0],
        );
        let mut shell = Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .current_dir(program.dir.path())
            .env("COMMENSAL_LAB_SCOPE", &program.prefix)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let read = |name: &str| std::fs::read_to_string(program.path(name)).unwrap_or_default();
        until("the script begins", || {
            program.path("pid").exists() || !Path::new(&format!("/proc/{}/exe", shell.id())).exists()
        });
        let Ok(pid) = read("pid").trim().parse::<u32>() else {
            let said = text(&shell.wait_with_output().unwrap().stderr);
            println!("skipped: {test}: nothing can be mounted here: {}", said.trim());
            return;
        };
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        moment.wait(pid, &program.path("run.json"), &mut child);
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::write(program.path("full"), "").unwrap();
        shell.wait().unwrap();
        let (status, err) = (read("status").trim().to_owned(), read("err"));
        let case = format!("{moment:?}: status {status}\n{err}\n{}", read("restored"));
        // The end may be over before the disk is full.
        let verdict = VERDICTS.iter().any(|known| known.to_string() == status);
        assert!((status == "2" && err.contains("ENOSPC")) || (moment == Moment::End && verdict), "{case}");
        // Nothing is said to be where it is not: here the record fits, and the page beside it does not.
        let told = read("out").contains("record: ");
        assert!(
            status != "2" || !told || (err.contains("run.html") && !read("out").contains("page: ")),
            "{case}"
        );
        assert_eq!(read("restore-status").trim(), "0", "{case}");
        let groups = cgroups_named(&format!("commensal-lab-{pid}-"));
        assert!(groups.is_empty(), "{case}{groups:?}");
        assert!(!read("left").contains(".journal"), "{case}{}", read("left"));
    }
}
