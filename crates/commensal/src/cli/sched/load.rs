//! The command `sched load`. Reports all mistakes together, before anything is loaded; then loads the scheduler; then
//! assigns its groups. If an error occurs after loading, the scheduler stays loaded and the exit status is 1. Orders
//! are the configuration that is sent to the scheduler: cgroups, each with class, weight and limit.

use super::ask::{status_of, tell};
use super::start::{self, refuse};
use crate::cli::sched_args::SchedLoad;
use crate::cli::{Groups, apply};
use crate::context::Context;
use anyhow::{Context as _, anyhow, bail};
use commensal_agent::client;
use commensal_agent::control::{Done, SOCKET};
use commensal_core::errno::Errno;
use commensal_core::group::GroupSpec;
use commensal_core::scheduler::protocol::{Request, Status};
use commensal_core::scheduler::{Mode, Orders};
use commensal_host::Host;
use commensal_reconcile::PlanRequest;
use commensal_reconcile::agent_lock::running;
use commensal_reconcile::groups_file::LoadError;
use commensal_sensors::sched_ext::Kernel;
use commensal_sensors::scheduler::Unanswered;
use std::path::{Path, PathBuf};

/// Default folder of the groups.
const GROUPS: &str = "/etc/commensal/groups.d";

/// Owner of the orders that set the hold-off given on the command line. These orders name no groups.
const OWNER: &str = "commensal sched load";

/// The source of the scheduler's groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follows {
    /// The file given with --orders.
    Orders,
    /// The running agent.
    Agent,
    /// This command, which applies the groups once.
    Apply,
    /// No groups yet.
    Nobody,
}

/// Loads the scheduler. Status 1 when it is loaded but not everything requested is in force.
pub fn run(context: &mut Context, options: &SchedLoad) -> anyhow::Result<u8> {
    let short = load(context, options, start::find())?;
    short.iter().for_each(|line| eprintln!("commensal: {line}"));
    Ok(u8::from(!short.is_empty()))
}

/// Loads the scheduler, and returns a sentence for each request that is not in force. An error means that nothing was
/// loaded.
fn load<H: Host>(
    context: &mut Context<H>,
    options: &SchedLoad,
    program: anyhow::Result<PathBuf>,
) -> anyhow::Result<Vec<String>> {
    let (program, follows) = ready(context, options, program)?;
    context.host.state_dir(&context.state_dir)?;
    let lock = context.lock()?;
    let state = context.state_dir.clone();
    // Another process may have loaded a scheduler meanwhile.
    refuse(&start::obstacles(&context.host, &state, options.replace))?;
    let arguments = start::arguments(options);
    let loaded = start::load(&mut context.host, &state, &program, &arguments)?;
    drop(lock);
    println!("loaded   process {}, its log is {}", loaded.process.pid, state.join(start::LOG).display());
    let mut short = settle(context, options, follows);
    match status_of(&context.host, &state) {
        Ok(now) => {
            print(&now, follows, &options.config);
            if now.mode != Mode::Running {
                short
                    .push(format!("the scheduler is loaded, but does not do its work: {}", now.mode.words()));
            }
        }
        Err(error) if error.is_nobody() && !Kernel::read(&context.host).busy() => bail!(
            "the scheduler was loaded, but has been unloaded again: {} contains the reason; `commensal sched unload` \
             reverts what it had changed",
            state.join(start::LOG).display()
        ),
        Err(error) => {
            short.push(format!("the scheduler was loaded, but its status cannot be read: {error}"));
        }
    }
    Ok(short)
}

/// Checks everything before a program is started. Returns the scheduler's program and the source of its groups. One
/// error reports all mistakes.
fn ready<H: Host>(
    context: &mut Context<H>,
    options: &SchedLoad,
    program: anyhow::Result<PathBuf>,
) -> anyhow::Result<(PathBuf, Follows)> {
    let state = context.state_dir.clone();
    let mut wrong = start::obstacles(&context.host, &state, options.replace);
    let program = program.map_err(|error| wrong.push(format!("{error:#}")));
    let follows = follows(context, options).map_err(|error| wrong.push(format!("{error:#}")));
    refuse(&wrong)?;
    // If this fails, at least one of the two functions has failed and has reported its obstacle.
    program.ok().zip(follows.ok()).context("the scheduler was not loaded")
}

/// Determines the source of the groups, and validates it.
fn follows<H: Host>(context: &mut Context<H>, options: &SchedLoad) -> anyhow::Result<Follows> {
    if let Some(file) = &options.orders {
        let text = context.host.read_file(file)?;
        match Request::parse(&text) {
            Ok(Request::Orders(_)) => {}
            Ok(_) => bail!("{} contains no orders (\"do\": \"orders\")", file.display()),
            Err(error) => bail!("{}: {error}", file.display()),
        }
        return Ok(Follows::Orders);
    }
    if running(&mut context.host, &context.state_dir).is_ok_and(|agent| agent.is_some()) {
        return Ok(Follows::Agent);
    }
    let specs = match context.specs(&options.config) {
        Ok(specs) => specs,
        Err(error) if options.config == Path::new(GROUPS) && absent(&error) => return Ok(Follows::Nobody),
        Err(error) => return Err(error),
    };
    fits(context, &specs)
        .with_context(|| format!("the groups in {} cannot be put in force here", options.config.display()))?;
    Ok(Follows::Apply)
}

/// Checks that the groups can be planned on this machine. Limits that the plan cannot apply (`unmet`) are not an error.
fn fits<H: Host>(context: &mut Context<H>, specs: &[GroupSpec]) -> anyhow::Result<()> {
    let _lock = context.lock_to_look()?;
    context.plan(PlanRequest::all(specs)).map(drop)
}

/// Whether the error means that there is no groups file.
fn absent(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<LoadError>() {
        Some(LoadError::Empty(_)) => true,
        Some(LoadError::Read { source, .. }) => source.errno == Errno::ENOENT,
        _ => false,
    }
}

/// Assigns the groups and sets the hold-off after loading; returns a message for each failure.
fn settle<H: Host>(context: &mut Context<H>, options: &SchedLoad, follows: Follows) -> Vec<String> {
    let mut short = Vec::new();
    if let Some(hold_off_us) = options.hold_off_us
        && let Err(error) = hold_off(&context.host, &context.state_dir, hold_off_us)
    {
        short.push(format!("the scheduler is loaded, but without --hold-off-us: {error}"));
    }
    match follows {
        Follows::Orders | Follows::Nobody => {}
        Follows::Agent => {
            match client::post::<Done>(&context.host, &context.state_dir.join(SOCKET), "/v1/reload") {
                Ok(done) => {
                    println!(
                        "agent    {}; its next round puts its groups under the scheduler",
                        done.body.done
                    );
                }
                Err(error) => short.push(format!(
                    "the scheduler is loaded, but the agent could not be notified: {:#}; it notices the scheduler by \
                     itself, or after `commensal agent reload`",
                    anyhow!(error)
                )),
            }
        }
        Follows::Apply => {
            let groups = Groups { config: options.config.clone(), json: false };
            short.extend(unapplied(apply::apply(context, &groups)));
        }
    }
    short
}

/// Sets the hold-off. The longest hold-off of all owners is in force.
fn hold_off(host: &dyn Host, state: &Path, hold_off_us: u64) -> Result<(), Unanswered> {
    let orders = Orders { owner: OWNER.to_owned(), hold_off_us, ..Orders::default() };
    tell(host, state, &Request::Orders(orders)).map(drop)
}

/// The message if `apply` failed while the scheduler is loaded.
fn unapplied(applied: anyhow::Result<u8>) -> Option<String> {
    let again =
        "correct this and run `commensal apply` again, or unload the scheduler: `commensal sched unload`";
    match applied {
        Ok(0) => None,
        Ok(1) => Some(
            "the scheduler is loaded, but some settings of the groups are not in force: see the lines above for the \
             reasons"
                .to_owned(),
        ),
        Ok(_) => Some(format!("the scheduler is loaded, but its groups are not in force, for the reason printed above; \
                               {again}")),
        Err(error) => Some(format!("the scheduler is loaded, but its groups are not in force: {error:#}; {again}")),
    }
}

/// Prints the groups that the scheduler manages now.
fn print(now: &Status, follows: Follows, config: &Path) {
    let groups = now.groups.len();
    let none = match follows {
        Follows::Agent => {
            "the agent assigns its groups in its next round (see `commensal sched status`)".to_owned()
        }
        Follows::Orders => "the orders contain none".to_owned(),
        Follows::Apply => {
            format!("the plan for {} assigns none to it (`commensal plan` shows why)", config.display())
        }
        Follows::Nobody => format!(
            "there is no groups file ({}); write one and run `commensal apply` or start an agent, or give orders with \
             `commensal sched load --replace --orders FILE`",
            config.display()
        ),
    };
    match groups {
        0 => println!("no offline group is under the scheduler yet: {none}"),
        1 => println!("1 offline group with {} threads is under the scheduler", now.threads),
        _ => println!("{groups} offline groups with {} threads are under the scheduler", now.threads),
    }
    for problem in &now.problems {
        eprintln!("commensal: {problem}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use commensal_core::scheduler::protocol::{self, Refusal, Standing};
    use commensal_host::fake::FakeHost;
    use commensal_testkit::until;
    use std::sync::{Arc, Mutex};

    const STATE: &str = "/var/lib/commensal";
    const FILE: &str = "/etc/groups.toml";
    const KERNEL: &str = "/sys/kernel/sched_ext/state";
    const OWN: &str = "[group.web]\nclass = \"online\"\n[group.etl]\nclass = \"offline\"\n";

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        load: SchedLoad,
    }

    fn options(args: &[&str]) -> SchedLoad {
        Line::parse_from(["load"].iter().chain(args)).load
    }

    fn world(groups: &str) -> Context<FakeHost> {
        let host = FakeHost::v2(4, 8 << 30);
        host.set_file("/sys/kernel/btf/vmlinux", "");
        host.set_file(KERNEL, "disabled\n");
        host.set_file(FILE, groups);
        Context {
            host,
            state_dir: STATE.into(),
            prefix: "commensal".to_owned(),
            cgroup_root: None,
            beside_others: false,
            engines: None,
        }
    }

    fn program() -> anyhow::Result<PathBuf> {
        Ok("/usr/bin/commensal-sched".into())
    }

    /// Simulates the scheduler's program. After its start, the program reports `mode`. With `refuses`, it refuses
    /// everything except status requests; otherwise it accepts orders.
    fn comes(host: &FakeHost, mode: Mode, refuses: bool) {
        let host = host.another();
        let before = host.processes().len();
        std::thread::spawn(move || {
            until("its program is started", || host.processes().len() > before);
            host.set_file(KERNEL, "enabled\n");
            let standing = Arc::new(Mutex::new(Standing::default()));
            host.serve(Path::new(STATE).join("sched.sock"), move |request| {
                let mut standing = standing.lock().unwrap();
                let done = match Request::parse(request.lines().next().unwrap()).unwrap() {
                    Request::Status => {
                        let orders = standing.clone();
                        serde_json::to_string(&Status { ok: true, pid: 7, mode, orders, ..Status::default() })
                    }
                    _ if refuses => {
                        serde_json::to_string(&Refusal { ok: false, error: "not today".to_owned() })
                    }
                    Request::Orders(orders) => {
                        *standing = standing.with(orders);
                        serde_json::to_string(&protocol::Done { ok: true, ..protocol::Done::default() })
                    }
                    other => panic!("nobody asks for {other:?}"),
                };
                Some(done.unwrap())
            });
        });
    }

    // promise 52
    #[test]
    fn all_that_is_wrong_is_in_one_refusal_and_nothing_is_started() {
        let check = |context: &mut Context<FakeHost>, args: &[&str], parts: &[&str]| {
            let (processes, before) = (context.host.processes(), context.host.snapshot());
            let missing = Err(anyhow!("there is no program commensal-sched"));
            let error = load(context, &options(args), missing).unwrap_err().to_string();
            let first = "no scheduler was loaded, and nothing was changed:\n  ";
            assert!(error.starts_with(first), "{error}");
            for part in parts.iter().chain(&["there is no program commensal-sched"]) {
                assert!(error.contains(part), "{error}\nlacks {part:?}");
            }
            assert_eq!((context.host.processes().len(), context.host.snapshot()), (processes.len(), before));
        };
        let file = ["-c", FILE];
        let mut context = world("[group.web]\nclass = \"inline\"\ncpu.wait = 3\n");
        context.host.remove_file(KERNEL);
        check(&mut context, &file, &["CONFIG_SCHED_CLASS_EXT", "groups.toml:2:", "groups.toml:3:"]);
        // The file is valid, but the machine cannot fulfil it.
        let mut context = world(&format!("{OWN}cpu.set = \"0-63\"\n"));
        context.host.remove_file("/sys/kernel/btf/vmlinux");
        check(&mut context, &file, &["CONFIG_DEBUG_INFO_BTF", "cannot be put in force here", "cpu.set"]);
        check(&mut world(OWN), &["-c", "/nowhere.toml"], &["/nowhere.toml"]);
        check(
            &mut world(OWN),
            &["--orders", FILE, "--replace"],
            &["no scheduler to --replace", "groups.toml: not a request"],
        );
        check(&mut world("{\"do\":\"status\"}"), &["--orders", FILE], &["contains no orders"]);
        let twice = r#"{"do":"orders","groups":[{"cgroup":"a","class":"offline","weight":0}]}"#;
        check(&mut world(twice), &["--orders", FILE], &["not an absolute path", "weight 0 is not between"]);
        // A missing groups file is not a mistake.
        check(&mut world(OWN), &[], &[]);
    }

    // promise 52
    #[test]
    fn what_goes_wrong_later_is_told_and_leaves_it_loaded() {
        let check = |groups: &str, (mode, refuses): (Mode, bool), parts: &[&str]| {
            let mut context = world(groups);
            comes(&context.host, mode, refuses);
            let short = load(&mut context, &options(&["-c", FILE, "--hold-off-us", "5"]), program()).unwrap();
            assert_eq!(short.len(), parts.len(), "{short:?}");
            for (sentence, part) in short.iter().zip(parts) {
                assert!(
                    sentence.starts_with("the scheduler is loaded, ") && sentence.contains(part),
                    "{short:?}"
                );
            }
        };
        check(OWN, (Mode::Running, false), &[]);
        let refused = ["without --hold-off-us: ", "its groups are not in force"];
        check(OWN, (Mode::Running, true), &refused);
        let unmet = format!("{OWN}memory = {{ max = \"1 GiB\", on-exceed = \"freeze\" }}\n");
        check(&unmet, (Mode::Running, false), &["some settings of the groups are not in force"]);
        check(OWN, (Mode::Frozen, false), &["does not do its work: offline groups are frozen"]);
    }

    #[test]
    fn an_apply_that_fails_is_a_sentence() {
        let told = |applied: anyhow::Result<u8>| unapplied(applied).unwrap_or_default();
        assert_eq!(told(Ok(0)), "");
        assert!(told(Ok(2)).contains("printed above"));
        assert!(told(Err(anyhow!("the disk is full"))).contains("the disk is full; correct this"));
    }
}
