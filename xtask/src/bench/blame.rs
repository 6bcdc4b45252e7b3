//! What `commensal blame` costs: two programs that do nothing but switch, in pairs with and without it.

use super::Scratch;
use anyhow::{Context, bail};
use commensal_host::LinuxHost;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PAIRS: usize = 8;
/// Round trips of the ping-pong: two switches each.
const TRIPS: u32 = 30_000;
/// Runs of which the fastest counts: what a neighbour or a hypervisor takes only ever adds.
const TRIES: usize = 3;
const GOAL_NS: f64 = 500.0;
/// How long the judge takes to come, generously.
const COMES: Duration = Duration::from_millis(800);

/// Who the switching threads are to the judge.
const ARMS: [(&str, &[&str]); 3] = [
    ("as the service", &["/bench"]),
    ("as the service, without interrupts", &["/bench", "--no-interrupts"]),
    ("as bystanders", &["/idle"]),
];

/// Runs and prints.
pub fn run() -> anyhow::Result<()> {
    let mut build = crate::cargo();
    build.args(["build", "--release", "--quiet", "--package", "commensal"]);
    if !build.current_dir(crate::root()).status()?.success() {
        bail!("commensal does not build");
    }
    let program = std::env::current_exe()?.with_file_name("commensal");
    let top = Scratch::new()?;
    for name in ["bench", "idle"] {
        std::fs::create_dir(top.path.join(name))?;
    }
    let done = measure(&program, &top.path);
    for name in ["bench", "idle"] {
        let _ = std::fs::remove_dir(top.path.join(name));
    }
    done
}

fn measure(program: &Path, top: &Path) -> anyhow::Result<()> {
    let machine = commensal_sensors::machine::machine(&LinuxHost::new())?;
    let last = machine.topology.all().iter().last().unwrap_or(0);
    let pipe = format!("taskset -c {last} perf bench sched pipe -l {TRIPS}");
    let messages = "hackbench -g 4 -l 300";
    for (what, command, per_switch) in
        [("perf bench sched pipe, one CPU", pipe.as_str(), true), ("hackbench, all CPUs", messages, false)]
    {
        let tool =
            command.split_whitespace().find(|word| ["perf", "hackbench"].contains(word)).unwrap_or_default();
        if Command::new(tool).arg("--version").output().is_err() {
            println!("{what}: not measured: there is no {tool} (Debian: linux-perf, rt-tests)");
            continue;
        }
        for (who, args) in ARMS {
            let mut added = Vec::new();
            let mut base = Vec::new();
            for pair in 0..PAIRS {
                // Half of the pairs the other way round: what drifts cancels out.
                let order = if pair % 2 == 0 { [false, true] } else { [true, false] };
                let mut times = [0.0; 2];
                for with in order {
                    times[usize::from(with)] = once(program, top, command, with.then_some(args))?;
                }
                base.push(times[0]);
                added.push(times[1] - times[0]);
            }
            print(what, who, base, added, per_switch);
        }
    }
    Ok(())
}

fn print(what: &str, who: &str, mut base: Vec<f64>, mut added: Vec<f64>, per_switch: bool) {
    base.sort_by(f64::total_cmp);
    added.sort_by(f64::total_cmp);
    let middle = |of: &[f64]| (of[(of.len() - 1) / 2] + of[of.len() / 2]) / 2.0;
    let (base, low, high, added) = (middle(&base), added[0], added[added.len() - 1], middle(&added));
    let share = added / base * 100.0;
    let name = format!("cost of blame, {what}, {who}");
    if per_switch {
        let ns = |seconds: f64| seconds * 1e9 / f64::from(2 * TRIPS);
        let verdict = if ns(added) <= GOAL_NS { "met" } else { "MISSED" };
        println!(
            "{name}: {:+.0} ns per switch ({:+.0} to {:+.0}) on {:.0} ns, {share:+.1} %   goal {GOAL_NS:.0} ns {verdict}",
            ns(added),
            ns(low),
            ns(high),
            ns(base)
        );
    } else {
        println!(
            "{name}: {:+.1} ms ({:+.1} to {:+.1}) on {:.0} ms, {share:+.1} %",
            added * 1e3,
            low * 1e3,
            high * 1e3,
            base * 1e3
        );
    }
}

/// One run, seconds as the program itself tells them.
fn once(program: &Path, top: &Path, command: &str, judged: Option<&[&str]>) -> anyhow::Result<f64> {
    let judge = judged.map(|args| judge(program, top, args)).transpose()?;
    let procs = top.join("bench/cgroup.procs");
    let script = format!("echo $$ >{} && exec {command}", procs.display());
    let mut best = f64::INFINITY;
    for _ in 0..TRIES {
        let output = Command::new("sh").args(["-c", &script]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = || format!("{command} said {text} {}", String::from_utf8_lossy(&output.stderr));
        best = best.min(seconds(&text).with_context(said)?);
    }
    if let Some(mut judge) = judge {
        let _ = Command::new("kill").args(["-INT", &judge.id().to_string()]).status();
        let mut text = String::new();
        if let Some(mut out) = judge.stdout.take() {
            out.read_to_string(&mut text)?;
        }
        if !judge.wait()?.success() || !text.contains("\"wait_ms\"") || text.contains("unattributed") {
            bail!("the judge did not work: {text}");
        }
    }
    Ok(best)
}

/// `Total time: 0.936 [sec]` of perf, `Time: 0.437` of hackbench.
fn seconds(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.split_once("ime:"))?.1;
    line.split_whitespace().next()?.parse().ok()
}

fn judge(program: &Path, top: &Path, args: &[&str]) -> anyhow::Result<Child> {
    let name: PathBuf = Path::new("/").join(top.file_name().unwrap_or_default());
    let target = format!("{}{}", name.display(), args[0]);
    let mut command = Command::new(program);
    command.args(["blame", &target, "--json", "--for", "600s"]).args(&args[1..]);
    let child = command.stdout(Stdio::piped()).spawn().context("start commensal blame")?;
    std::thread::sleep(COMES);
    Ok(child)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_programs_are_understood() {
        assert_eq!(seconds("# Running\n\n     Total time: 0.936 [sec]\n\n       9.36 usecs/op"), Some(0.936));
        assert_eq!(seconds("Running in process mode\nTime: 0.437\n"), Some(0.437));
        assert_eq!(seconds("no"), None);
    }
}
