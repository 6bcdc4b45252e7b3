//! Starts, identifies and signals processes. A child is in its groups from its first instruction; a process is
//! identified by PID and start time, and signalled through a pidfd.

use crate::dir::Dir;
use crate::error::{HostError, Result};
use crate::locks::{Held, Lock};
use commensal_core::cpuset::CpuSet;
use commensal_core::errno::Errno;
use commensal_core::process::{Cookie, Exit, Policy, SCHED_DEADLINE, Scheduling, Signal, Stat};
use commensal_core::spelling;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::FdFlags;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, WaitId, WaitIdOptions, WaitOptions, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;

/// The source of a child's standard input.
#[derive(Debug, Clone)]
pub enum Stdin {
    /// The same standard input as the parent.
    Inherit,
    /// `/dev/null`.
    Null,
    /// This descriptor.
    Fd(Arc<OwnedFd>),
}

/// The destination of a child's standard output.
#[derive(Debug, Clone)]
pub enum Stdout {
    /// The same standard output as the parent.
    Inherit,
    /// `/dev/null`.
    Null,
    /// A pipe that the parent reads ([`Child::stdout`]).
    Pipe,
    /// Appended to this file, which is created with access for this user only.
    Append(PathBuf),
    /// This descriptor.
    Fd(Arc<OwnedFd>),
}

/// The destination of a child's standard error.
#[derive(Debug, Clone)]
pub enum Stderr {
    /// The same standard error as the parent.
    Inherit,
    /// `/dev/null`.
    Null,
    /// The same destination as standard output.
    Stdout,
    /// This descriptor.
    Fd(Arc<OwnedFd>),
}

/// The program to start, with its groups and options.
#[derive(Debug, Clone)]
pub struct SpawnSpec {
    /// Program, looked up in `PATH` unless the name contains a slash.
    pub program: PathBuf,
    /// Arguments after the program's name.
    pub args: Vec<OsString>,
    /// Groups to enter before the program starts, one per hierarchy.
    pub groups: Vec<Dir>,
    /// Scheduling attributes that the child gets before the program starts.
    pub policy: Policy,
    /// Kill the child (SIGKILL) when the thread that started it dies.
    pub die_with_parent: bool,
    /// Put the child in a new process group, so that Ctrl-C in the terminal does not signal it.
    pub own_process_group: bool,
    /// Put the child in a new session, so that it survives the end of the parent and of its terminal.
    pub own_session: bool,
    /// Standard input.
    pub stdin: Stdin,
    /// Standard output.
    pub stdout: Stdout,
    /// Standard error.
    pub stderr: Stderr,
    /// The child's working directory; the parent's if unset.
    pub folder: Option<PathBuf>,
    /// Locks that the child and its descendants also hold, even after the parent has exited.
    pub locks: Vec<Lock>,
}

impl SpawnSpec {
    /// Creates a spec for a program with default options.
    pub fn new(program: impl Into<PathBuf>) -> SpawnSpec {
        SpawnSpec {
            program: program.into(),
            args: Vec::new(),
            groups: Vec::new(),
            policy: Policy::default(),
            die_with_parent: false,
            own_process_group: false,
            own_session: false,
            stdin: Stdin::Null,
            stdout: Stdout::Inherit,
            stderr: Stderr::Inherit,
            folder: None,
            locks: Vec::new(),
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> SpawnSpec {
        self.args.push(arg.into());
        self
    }
}

/// A process, identified by PID, start time and, on a real host, a pidfd, so that it is not confused with a later
/// process of the same PID.
#[derive(Debug, Clone)]
pub struct Process {
    /// Process ID.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`, in clock ticks since boot.
    pub start_ticks: u64,
    pub(crate) pidfd: Option<Arc<OwnedFd>>,
}

/// A child process, started by this process.
#[derive(Debug)]
pub struct Child {
    /// PID and start time of the child.
    pub process: Process,
    /// The reading end of the child's standard output, if a pipe was requested.
    pub stdout: Option<ChildStdout>,
    pub(crate) exit: Option<Exit>,
    /// State of a child of the fake host, which has no pidfd.
    #[cfg(feature = "fake")]
    pub(crate) running: Option<crate::fake::Running>,
}

impl Child {
    /// Returns the exit status if the child has exited; never blocks.
    ///
    /// # Errors
    /// Returns an error when the process is no longer a child of this one.
    pub fn try_wait(&mut self) -> Result<Option<Exit>> {
        self.wait_with(WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
    }

    /// Waits for the child to exit.
    ///
    /// # Errors
    /// Returns an error when the process is no longer a child of this one.
    pub fn wait(&mut self) -> Result<Exit> {
        loop {
            if let Some(exit) = self.wait_with(WaitIdOptions::EXITED)? {
                return Ok(exit);
            }
        }
    }

    /// Like [`Child::try_wait`]; also reaps all other children of this process that have exited
    /// ([`crate::Host::adopt_orphans`]).
    ///
    /// # Errors
    /// Returns an error when the process is no longer a child of this one.
    pub fn try_wait_and_reap(&mut self) -> Result<Option<Exit>> {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if pid.as_raw_nonzero().get().unsigned_abs() == self.process.pid {
                self.exit = Some(exit_of(status.exit_status(), status.terminating_signal()));
            }
        }
        self.try_wait()
    }

    fn wait_with(&mut self, options: WaitIdOptions) -> Result<Option<Exit>> {
        if self.exit.is_some() {
            return Ok(self.exit);
        }
        #[cfg(feature = "fake")]
        if let Some(running) = &self.running {
            let block = !options.contains(WaitIdOptions::NOHANG);
            self.exit = if block { Some(running.wait()) } else { running.poll() };
            return Ok(self.exit);
        }
        let Some(pidfd) = &self.process.pidfd else { return Ok(None) };
        let wait = || rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options);
        let status = rustix::io::retry_on_intr(wait)
            .map_err(|errno| failed("wait for", format!("pid {}", self.process.pid), errno))?;
        self.exit = status.map(|status| exit_of(status.exit_status(), status.terminating_signal()));
        Ok(self.exit)
    }
}

fn exit_of(code: Option<i32>, signal: Option<i32>) -> Exit {
    code.map_or(Exit::Signal(signal.unwrap_or(Signal::KILL.0)), Exit::Code)
}

pub(crate) fn failed(operation: &'static str, object: String, errno: rustix::io::Errno) -> HostError {
    HostError { operation, object, value: None, errno: Errno(errno.raw_os_error()) }
}

/// Starts the child. `procs` are the open `cgroup.procs` files of its groups, `descriptors` is the limit of open files
/// that the child gets.
pub(crate) fn spawn(spec: &SpawnSpec, procs: Vec<OwnedFd>, descriptors: Option<Rlimit>) -> Result<Child> {
    let mut command = Command::new(&spec.program);
    command.args(&spec.args);
    command.stdin(match &spec.stdin {
        Stdin::Inherit => Stdio::inherit(),
        Stdin::Null => Stdio::null(),
        Stdin::Fd(fd) => Stdio::from(fd.try_clone().map_err(|error| start_failed(spec, &error))?),
    });
    let piped = outputs(spec, &mut command).map_err(|error| start_failed(spec, &error))?;
    if let Some(folder) = &spec.folder {
        command.current_dir(folder);
    }
    // A process group leader cannot start a session.
    if spec.own_process_group && !spec.own_session {
        command.process_group(0);
    }
    let policy = spec.policy.clone();
    let parent = spec.die_with_parent.then(rustix::process::getpid);
    let session = spec.own_session;
    let locks = spec.locks.clone();
    // SAFETY: between fork and exec the closure makes system calls only: no allocation, no lock, no
    // access to memory that another thread of the parent might have been changing.
    unsafe {
        command.pre_exec(move || {
            enter(&procs)?;
            if let Some(limit) = &descriptors {
                setrlimit(Resource::Nofile, *limit)?;
            }
            apply_policy(&policy)?;
            keep(&locks)?;
            if session {
                rustix::process::setsid()?;
            }
            parent.map_or(Ok(()), die_with)
        });
    }
    let mut child = command.spawn().map_err(|error| start_failed(spec, &error))?;
    // This process's copy of the writing end would keep the pipe open.
    drop(command);
    let stdout = piped.map(ChildStdout::from);
    // The child is not reaped until we wait for it, so its pid cannot have been reused here.
    let process = match identify(child.id()) {
        Ok(process) => process,
        Err(error) => {
            // Without a pidfd the child could not be waited for.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
    };
    Ok(Child {
        process,
        stdout,
        exit: None,
        #[cfg(feature = "fake")]
        running: None,
    })
}

/// Sets standard output and standard error; returns the reading end of a pipe, if one was requested.
fn outputs(spec: &SpawnSpec, command: &mut Command) -> io::Result<Option<OwnedFd>> {
    let (mut reading, mut writing) = (None, None);
    let stdout = match &spec.stdout {
        Stdout::Inherit => Stdio::inherit(),
        Stdout::Null => Stdio::null(),
        Stdout::Pipe => {
            let (reader, writer) = io::pipe()?;
            reading = Some(OwnedFd::from(reader));
            writing = Some(OwnedFd::from(writer.try_clone()?));
            Stdio::from(writer)
        }
        Stdout::Append(path) => appending(path)?,
        Stdout::Fd(fd) => Stdio::from(fd.try_clone()?),
    };
    let stderr = match (&spec.stderr, &spec.stdout, writing) {
        (Stderr::Inherit, ..) | (Stderr::Stdout, Stdout::Inherit, _) => Stdio::inherit(),
        (Stderr::Null, ..) | (Stderr::Stdout, Stdout::Null, _) => Stdio::null(),
        (Stderr::Stdout, Stdout::Append(path), _) => appending(path)?,
        (Stderr::Fd(fd), ..) | (Stderr::Stdout, Stdout::Fd(fd), _) => Stdio::from(fd.try_clone()?),
        (Stderr::Stdout, Stdout::Pipe, writer) => writer.map_or_else(Stdio::null, Stdio::from),
    };
    command.stdout(stdout).stderr(stderr);
    Ok(reading)
}

fn appending(path: &Path) -> io::Result<Stdio> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path).map(Stdio::from)
}

fn start_failed(spec: &SpawnSpec, error: &io::Error) -> HostError {
    let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
    HostError { operation: "start", object: spelling::of_path(&spec.program), value: None, errno }
}

/// Enters the groups by writing `0`, which stands for the writing process: no PID has to be formatted, and no other
/// process can be moved by mistake.
fn enter(procs: &[OwnedFd]) -> io::Result<()> {
    for fd in procs {
        rustix::io::write(fd, b"0")?;
    }
    Ok(())
}

/// Clears the close-on-exec flag of the locks' descriptors, so that the program keeps the locks.
fn keep(locks: &[Lock]) -> io::Result<()> {
    for lock in locks {
        #[allow(irrefutable_let_patterns, reason = "a fake host's lock is none")]
        if let Held::Real(file) = &lock.0 {
            rustix::io::fcntl_setfd(file, FdFlags::empty())?;
        }
    }
    Ok(())
}

fn apply_policy(policy: &Policy) -> io::Result<()> {
    if let Some(cpus) = &policy.cpus {
        keep_to(None, cpus)?;
    }
    if let Some(nice) = policy.nice {
        rustix::process::setpriority_process(None, nice)?;
    }
    if policy.idle {
        set_scheduler(0, libc::SCHED_IDLE, 0)?;
    }
    if let Some(priority) = policy.fifo {
        set_scheduler(0, libc::SCHED_FIFO, priority)?;
    }
    if let Some(cookie) = policy.cookie {
        take_cookie(cookie)?;
    }
    if policy.confined { confine() } else { Ok(()) }
}

/// Lets no program that this process executes raise its priority or change to a policy above `SCHED_IDLE`. Without
/// `CAP_SETPCAP` the bounding set stays, and a program that root executes still has `CAP_SYS_NICE`.
fn confine() -> io::Result<()> {
    for resource in [Resource::Nice, Resource::Rtprio] {
        setrlimit(resource, Rlimit { current: Some(0), maximum: Some(0) })?;
    }
    let nice = CapabilitySet::SYS_NICE;
    // Also removes it from the ambient set.
    let CapabilitySets { effective, permitted, inheritable } = capabilities(None)?;
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable: inheritable - nice })?;
    match remove_capability_from_bounding_set(nice) {
        Ok(()) | Err(rustix::io::Errno::PERM) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn keep_to(thread: Option<Pid>, cpus: &CpuSet) -> rustix::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| (*cpu as usize) < rustix::thread::CpuSet::MAX_CPU) {
        set.set(cpu as usize);
    }
    rustix::thread::sched_setaffinity(thread, &set)
}

pub(crate) fn set_affinity(tid: u32, cpus: &CpuSet) -> Result<()> {
    let thread = i32::try_from(tid).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH);
    thread.and_then(|thread| keep_to(Some(thread), cpus)).map_err(|errno| HostError {
        value: Some(cpus.to_string()),
        ..failed("set the affinity of", format!("thread {tid}"), errno)
    })
}

pub(crate) fn adopt_orphans(adopt: bool) -> Result<()> {
    let set = rustix::process::set_child_subreaper(adopt.then(rustix::process::getpid));
    set.map_err(|errno| failed("adopt the orphans of", "this process".to_owned(), errno))
}

/// Calls `prctl(PR_SCHED_CORE, …)` for one thread; 0 is the calling thread. rustix has no function for this call that
/// takes a thread and a scope.
fn core_sched(command: libc::c_int, tid: u32, value: *mut u64) -> io::Result<()> {
    const THREAD: libc::c_ulong = 0;
    // SAFETY: the pointer is null or to a live u64, and only PR_SCHED_CORE_GET writes to it.
    match unsafe { libc::prctl(libc::PR_SCHED_CORE, command, libc::c_ulong::from(tid), THREAD, value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the calling thread's cookie. Makes system calls only.
fn take_cookie(cookie: Cookie) -> io::Result<()> {
    let none = std::ptr::null_mut();
    match cookie {
        Cookie::New => core_sched(libc::PR_SCHED_CORE_CREATE, 0, none),
        Cookie::Of(tid) => core_sched(libc::PR_SCHED_CORE_SHARE_FROM, tid, none),
        Cookie::None => Ok(()),
    }
}

pub(crate) fn cookie_of(tid: u32) -> Result<u64> {
    let mut cookie = 0;
    core_sched(libc::PR_SCHED_CORE_GET, tid, &raw mut cookie)
        .map_err(|error| cookie_failed("read", tid, &error))?;
    Ok(cookie)
}

fn cookie_failed(operation: &'static str, tid: u32, error: &io::Error) -> HostError {
    let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
    HostError { operation, object: format!("the core-scheduling cookie of thread {tid}"), value: None, errno }
}

/// Gives the threads a cookie. A helper thread takes the cookie, passes it on and exits, so that no other thread of
/// this process ever has it.
pub(crate) fn share_cookie(cookie: Cookie, tids: &[u32]) -> Result<()> {
    let hand_on = || {
        take_cookie(cookie).map_err(|error| cookie_failed("make", 0, &error))?;
        if cookie == Cookie::None && cookie_of(0)? != 0 {
            // This process was started with a cookie, so it cannot pass on the absence of one.
            return Err(cookie_failed("clear", 0, &io::Error::from_raw_os_error(Errno::EBUSY.0)));
        }
        for tid in tids {
            match core_sched(libc::PR_SCHED_CORE_SHARE_TO, *tid, std::ptr::null_mut()) {
                Err(error) if error.raw_os_error() != Some(Errno::ESRCH.0) => {
                    return Err(cookie_failed("give", *tid, &error));
                }
                _ => {}
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, hand_on);
        let thread = thread.map_err(|error| cookie_failed("make", 0, &error))?;
        let panicked = || Err(cookie_failed("give", 0, &io::Error::from_raw_os_error(Errno::EIO.0)));
        thread.join().unwrap_or_else(|_| panicked())
    })
}

pub(crate) fn set_policy(tid: u32, policy: i32) -> Result<()> {
    set_scheduler(i32::try_from(tid).unwrap_or(-1), policy, 0)
        .map_err(|_| policy_failed("set the scheduling policy of", tid, Some(policy.to_string())))
}

fn policy_failed(operation: &'static str, tid: u32, value: Option<String>) -> HostError {
    let errno = Errno(io::Error::last_os_error().raw_os_error().unwrap_or(Errno::EIO.0));
    HostError { operation, object: format!("thread {tid}"), value, errno }
}

/// Size of the first version of `struct sched_attr`, which every kernel takes.
const ATTRIBUTES: u32 = 48;

pub(crate) fn scheduling(tid: u32) -> Result<Scheduling> {
    // SAFETY: all fields are numbers, so zero is a value of each.
    let mut found: libc::sched_attr = unsafe { std::mem::zeroed() };
    let (pid, no_flags) = (libc::c_long::from(i32::try_from(tid).unwrap_or(-1)), 0 as libc::c_long);
    // SAFETY: the pointer is to a live value of the size that is passed, which the call fills in.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, pid, &raw mut found, ATTRIBUTES, no_flags) };
    if done != 0 {
        return Err(policy_failed("read the scheduling policy of", tid, None));
    }
    let policy = i32::try_from(found.sched_policy).unwrap_or(-1);
    let times = [found.sched_runtime, found.sched_deadline, found.sched_period];
    Ok(Scheduling {
        policy,
        priority: found.sched_priority,
        reset_on_fork: found.sched_flags & libc::SCHED_FLAG_RESET_ON_FORK as u64 != 0,
        deadline: (policy == SCHED_DEADLINE).then_some(times),
    })
}

/// Sets a thread's attributes. For a policy without a priority, the system call also sets the nice value, so this
/// passes the current nice value.
pub(crate) fn set_scheduling(tid: u32, to: &Scheduling) -> Result<()> {
    // SAFETY: all fields are numbers, so zero is a value of each.
    let mut wanted: libc::sched_attr = unsafe { std::mem::zeroed() };
    wanted.size = ATTRIBUTES;
    wanted.sched_policy = u32::try_from(to.policy).unwrap_or(u32::MAX);
    wanted.sched_flags = if to.reset_on_fork { libc::SCHED_FLAG_RESET_ON_FORK as u64 } else { 0 };
    wanted.sched_priority = to.priority;
    [wanted.sched_runtime, wanted.sched_deadline, wanted.sched_period] = to.deadline.unwrap_or_default();
    let object = || format!("thread {tid}");
    let pid = i32::try_from(tid).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH);
    let nice = pid.and_then(|pid| rustix::process::getpriority_process(Some(pid)));
    wanted.sched_nice = nice.map_err(|errno| failed("read the nice value of", object(), errno))?;
    let (pid, no_flags) = (libc::c_long::from(i32::try_from(tid).unwrap_or(-1)), 0 as libc::c_long);
    // SAFETY: the pointer is to a live value of the size that is in it, which the call reads.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, pid, &raw const wanted, no_flags) } {
        0 => Ok(()),
        _ => Err(policy_failed("set the scheduling policy of", tid, Some(to.to_string()))),
    }
}

/// Calls `sched_setscheduler(2)` for a thread, 0 for the calling one; rustix has no wrapper for it.
pub(crate) fn set_scheduler(tid: i32, policy: i32, priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the pointer is to a live value of the type the call reads.
    match unsafe { libc::sched_setscheduler(tid, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the kernel kill this process when its parent dies. Fails with `ESRCH` if the parent has died already.
fn die_with(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let lives = rustix::process::getppid() == Some(parent);
    lives.then_some(()).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

/// Returns the process that has this PID now.
pub(crate) fn identify(pid: u32) -> Result<Process> {
    let gone = |errno| failed("open", format!("pid {pid}"), errno);
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| gone(rustix::io::Errno::SRCH))?;
    let pidfd = rustix::process::pidfd_open(raw, PidfdFlags::empty()).map_err(gone)?;
    // Read after the pidfd is open: if the process exits in between, a signal through the pidfd fails with `ESRCH`.
    let start_ticks = start_ticks(pid).ok_or_else(|| gone(rustix::io::Errno::SRCH))?;
    Ok(Process { pid, start_ticks, pidfd: Some(Arc::new(pidfd)) })
}

fn start_ticks(pid: u32) -> Option<u64> {
    Stat::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?.start_ticks()
}

pub(crate) fn send(process: &Process, signal: Signal) -> Result<()> {
    let object = || format!("pid {}", process.pid);
    let pidfd = process.pidfd.as_ref().ok_or_else(|| failed("signal", object(), rustix::io::Errno::SRCH))?;
    // Signal 0 checks whether the process exists; a pidfd is readable once it has exited (pidfd_open(2)).
    if signal.0 == 0 {
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
        let ended = rustix::event::poll(&mut polled, Some(&none))
            .map_err(|errno| failed("signal", object(), errno))?;
        return if ended == 0 { Ok(()) } else { Err(failed("signal", object(), rustix::io::Errno::SRCH)) };
    }
    let raw = rustix::process::Signal::from_named_raw(signal.0)
        .ok_or_else(|| failed("signal", object(), rustix::io::Errno::INVAL))?;
    rustix::process::pidfd_send_signal(pidfd.as_fd(), raw).map_err(|errno| failed("signal", object(), errno))
}

/// Makes the calling thread real-time (`SCHED_FIFO` 1) and its timers exact (slack 1 ns), for load generation. On error
/// the scheduling policy is unchanged; the timer slack is 1 ns anyway.
///
/// # Errors
/// Returns `EPERM` without `CAP_SYS_NICE`, or in a cgroup v1 group with no real-time budget.
pub fn precise_thread() -> Result<()> {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    // Children start as ordinary tasks: a group without a real-time budget refuses a real-time task (EINVAL).
    set_scheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1).map_err(|error| HostError {
        operation: "set real-time scheduling of",
        object: "the load generator".to_owned(),
        value: None,
        errno: Errno(error.raw_os_error().unwrap_or(0)),
    })
}
