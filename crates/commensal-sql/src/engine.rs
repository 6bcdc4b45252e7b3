//! The engine: the catalogue (all definitions), the running groups, the connections, and the base state from which the
//! state of each query is built.
//!
//! ```text
//! protocol ── Session ──► catalogue (definitions) ──► groups in force
//!                │                                      │ memory, CPU, reads, queue
//!                └─► rewrite ─► admission ─► execute ◄──┘   one task per query, on its group's threads
//! ```

pub mod accounts;
mod confined_store;
pub mod connections;
pub mod cpu;
mod data;
mod dialect;
pub mod error;
pub(crate) mod execute;
pub(crate) mod functions;
mod grants;
pub mod grid;
pub mod group;
mod having;
mod json_values;
mod kernels;
pub mod memory;
mod meta;
mod mixed_types;
mod mysql_functions;
mod mysql_tables;
mod mysql_variables;
mod names;
mod operators;
pub(crate) mod origins;
mod pace;
mod partitions;
pub mod password;
mod policies;
mod pool;
mod problems;
mod queries;
pub mod query;
pub mod queue;
mod remote;
mod rewrite;
mod schema;
mod scratch;
pub mod session;
pub mod settings;
mod show;
mod single;
mod sleep;
mod status;
mod storage;
mod stores;
mod subqueries;
mod subquery_values;
mod system;
pub mod terms;
mod titles;
pub mod tokens;
mod values;
pub mod variables;
pub mod victim;
pub mod waits;
pub mod worker;
mod write;

pub use data::{Data, Format, INFORMATION_SCHEMA, MAIN};
pub use remote::Allowed;
pub use rewrite::{column_name, written};

use crate::catalog::{Catalog, Kernel, PasswordHash};
use crate::property::{MEMORY_BASE, MemoryLimit};
use crate::statement::{Statement, UserName};
use arc_swap::ArcSwap;
use commensal_core::group::Class;
use commensal_core::units::{MicroCpus, Weight};
use commensal_host::{Host, LinuxHost};
use connections::Connections;
use datafusion::execution::context::SessionState;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionStateBuilder, SessionStateDefaults};
use datafusion::logical_expr::planner::ExprPlanner;
use datafusion::optimizer::{Analyzer, AnalyzerRule};
use datafusion::prelude::SessionConfig;
use error::{Error, cannot};
use group::{Group, Groups};
use mixed_types::MixedTypes;
use password::Decoys;
use queries::Queries;
use scratch::Scratch;
use settings::{QueueLimits, Rules, Settings};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use storage::Storage;
use subquery_values::SubqueryValues;
use worker::{Launcher, Worker, Workers};

/// Options of a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Folder with the data.
    pub data: PathBuf,
    /// Whether statements may add files to the data folder.
    pub writable: bool,
    /// Folder for definitions. Without this folder, definitions are lost when the server exits.
    pub state: Option<PathBuf>,
    /// File for the groups, in the format of `groups.d`; by default a file in the state folder.
    pub groups: Option<PathBuf>,
    /// Folder for spill files, in which each server creates a subfolder.
    pub spill: PathBuf,
    /// Remote stores that queries may read.
    pub endpoints: Allowed,
    /// Memory that percentages refer to, in bytes; by default a share of the machine's memory.
    pub memory: Option<u64>,
    /// Number of CPUs that percentages refer to.
    pub cpus: usize,
    /// How worker processes for offline groups are started. If this is `None`, the queries of offline groups run on
    /// threads of this process.
    pub workers: Option<Workers>,
}

impl Options {
    /// Returns the two files that store definitions: the groups, in the format of `groups.d`, and the data that only
    /// SQL needs. `None` without a state folder.
    fn files(&self) -> Option<(PathBuf, PathBuf)> {
        let state = self.state.as_ref()?;
        let groups = self.groups.clone().unwrap_or_else(|| state.join(GROUPS_FILE));
        Some((groups, state.join(SQL_FILE)))
    }
}

/// File names of the definitions in the state folder.
const GROUPS_FILE: &str = "sql-groups.toml";
const SQL_FILE: &str = "sql.toml";

/// Freed memory is returned to the kernel when no query has run for this long.
const QUIET: Duration = Duration::from_secs(2);

/// Interval between two checks of the limits that are not enforced immediately.
pub const TICK: Duration = Duration::from_millis(100);

/// The engine; one per process.
pub struct Engine {
    /// Options that the engine was started with.
    pub options: Options,
    /// The data folder and the spill files.
    pub storage: Storage,
    /// The state from which each query's state is built.
    pub base: SessionState,
    /// The open connections.
    pub connections: Connections,
    /// The waiting and running queries.
    pub queries: Queries,
    /// Data that stands in for users that do not exist, so that a refused login does not reveal whether the user
    /// exists.
    pub decoys: Decoys,
    /// Bytes that percentages of memory refer to.
    pub memory_bytes: u64,
    launcher: Option<Arc<Launcher>>,
    catalog: Mutex<Catalog>,
    groups: ArcSwap<Groups>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("options", &self.options).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the machine's memory in bytes.
fn machine_memory() -> Option<u64> {
    let text = LinuxHost::new().read_file(Path::new("/proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1_024)
}

impl Engine {
    /// Opens the data folder, loads the definitions, and starts the groups. Timers, limits and statements run on the
    /// tokio runtime that calls this function.
    ///
    /// # Errors
    /// A folder is missing, or a file of definitions cannot be parsed.
    pub fn open(options: Options) -> Result<Arc<Engine>, Error> {
        cpu::charge_spawned_tasks();
        let storage = Storage::open(&options.data, options.writable, &options.spill)?;
        // Caching of folder listings is disabled, because it would hide new files.
        let runtime = RuntimeEnvBuilder::new().with_object_list_cache_limit(0).build_arc()?;
        let config = SessionConfig::new()
            .with_create_default_catalog_and_schema(false)
            .with_information_schema(false)
            .set_str("datafusion.sql_parser.dialect", "mysql")
            // NULL is less than all values.
            .set_str("datafusion.sql_parser.default_null_ordering", "nulls_min")
            .set_bool("datafusion.sql_parser.enable_ident_normalization", false)
            // 0.1 + 0.2 is 0.3.
            .set_bool("datafusion.sql_parser.parse_float_as_decimal", true);
        // The first planner that knows an operator decides.
        let mut planners: Vec<Arc<dyn ExprPlanner>> = vec![Arc::new(operators::Operators)];
        planners.extend(SessionStateDefaults::default_expr_planners());
        let mut rules: Vec<Arc<dyn AnalyzerRule + Send + Sync>> =
            vec![Arc::new(SubqueryValues), Arc::new(MixedTypes)];
        rules.extend(Analyzer::new().rules);
        let mut builder = SessionStateBuilder::new()
            .with_default_features()
            .with_analyzer_rules(rules)
            .with_expr_planners(planners)
            .with_config(config)
            .with_runtime_env(runtime);
        builder.scalar_functions().get_or_insert_default().extend(
            values::functions()
                .into_iter()
                .chain(functions::functions())
                .chain(kernels::functions())
                .chain(json_values::functions())
                .chain([sleep::function()]),
        );
        let base = builder.build();
        let machine = || machine_memory().map(|bytes| MEMORY_BASE.of(bytes));
        let Some(memory_bytes) = options.memory.or_else(machine) else {
            return Err(Error::Engine(
                "cannot determine how much memory this machine has: set the amount with --memory".to_owned(),
            ));
        };
        let catalog = load(&options)?;
        let decoys = Decoys::open(options.state.as_deref())?;
        let launcher = launcher(&options, memory_bytes, storage.scratch());
        let engine = Engine {
            storage,
            base,
            connections: Connections::default(),
            queries: Queries::default(),
            decoys,
            memory_bytes,
            launcher,
            catalog: Mutex::new(catalog),
            groups: ArcSwap::default(),
            options,
        };
        let _ = engine.put_in_force(&lock(&engine.catalog))?;
        Ok(Arc::new(engine))
    }

    /// Removes all spill files (data that queries have written to disk because memory was short). The caller is about
    /// to exit the process: queries that still run may fail.
    pub fn close(&self) {
        self.storage.scratch().remove();
    }

    /// Calls `look` with the catalogue.
    pub fn with_catalog<T>(&self, look: impl FnOnce(&Catalog) -> T) -> T {
        look(&lock(&self.catalog))
    }

    /// Whether a user has all privileges.
    #[must_use]
    pub fn is_admin(&self, user: &UserName) -> bool {
        self.with_catalog(|catalog| catalog.is_admin(user))
    }

    /// Returns the active groups by name.
    #[must_use]
    pub fn groups(&self) -> Arc<Groups> {
        self.groups.load_full()
    }

    /// Executes a statement that changes definitions: stores the change and applies it immediately, also to running
    /// queries. Returns warnings, or `None` for a statement that changes no definition.
    ///
    /// # Errors
    /// The change violates a rule of the catalogue or cannot be stored. In both cases nothing has changed.
    pub fn change(
        &self,
        statement: &Statement,
        by: &UserName,
        hash: &dyn Fn(&str) -> PasswordHash,
    ) -> Result<Option<Vec<String>>, Error> {
        let mut catalog = lock(&self.catalog);
        let mut new = catalog.clone();
        let Some(mut done) = new.execute(statement, by, hash)? else { return Ok(None) };
        if done.changed {
            if let Some((groups, sql)) = self.options.files() {
                store(&groups, &sql, &new)?;
            }
            done.warnings.extend(self.put_in_force(&new)?);
            *catalog = new;
        }
        Ok(Some(done.warnings))
    }

    /// Reconciles the running groups with the catalogue. A dropped group remains until its last running query has
    /// finished; queries that wait in its queue fail.
    /// Returns warnings about limits that the server could not set on a worker's cgroup.
    fn put_in_force(&self, catalog: &Catalog) -> Result<Vec<String>, Error> {
        let mut warnings = Vec::new();
        let old = self.groups.load();
        let mut groups = Groups::new();
        for defined in catalog.groups() {
            let name = defined.name.as_str();
            let settings = self.settings(catalog, defined);
            let group = match old.get(name).filter(|group| group.id == defined.id) {
                Some(group) => {
                    if group.settings() != settings {
                        group.set(settings);
                        warnings.extend(self.change_worker(catalog, group));
                    }
                    Arc::clone(group)
                }
                None => Group::new(defined.id, name, settings, self.options.cpus)
                    .map_err(|error| Error::Engine(format!("cannot start threads for {name}: {error}")))?,
            };
            groups.insert(name.to_owned(), group);
        }
        let dropped =
            old.values().filter(|group| groups.get(&group.name).is_none_or(|kept| kept.id != group.id));
        dropped.for_each(|group| group.close());
        self.groups.store(Arc::new(groups));
        Ok(warnings)
    }

    /// Returns the worker process for a query of this group; `None` if the query runs on threads of this process.
    pub async fn worker(&self, group: &Arc<Group>) -> Option<Arc<Worker>> {
        let launcher = self.launcher.as_ref()?;
        let kernel = || self.with_catalog(|catalog| self.kernel(catalog, group));
        group.worker.worker(launcher, group, kernel).await
    }

    /// Returns a groups file with the limits that the kernel enforces for a group's worker. `None` if there are no such
    /// limits, or if the groups file is invalid.
    fn kernel(&self, catalog: &Catalog, group: &Group) -> Option<String> {
        let settings = group.settings();
        let file = self.options.files().map(|(groups, _)| groups);
        let text = file.and_then(|file| LinuxHost::new().state_read(&file).ok().flatten());
        let memory = settings.memory.limit.filter(|_| settings.memory.hard).map(|bytes| bytes as u64);
        let limits = Kernel { cpu: settings.cpu_max.is_some(), memory: memory.map(|bytes| bytes + RESERVE) };
        match catalog.worker_toml(&group.name, text.as_deref().unwrap_or(""), limits) {
            Ok(text) => text,
            Err(error) => {
                tracing::warn!(group = %group.name, "the kernel enforces no limits on the worker: {error}");
                None
            }
        }
    }

    /// Changes the limits of a running worker. Returns a warning for the user if the change fails.
    fn change_worker(&self, catalog: &Catalog, group: &Arc<Group>) -> Option<String> {
        let launcher = self.launcher.as_ref().filter(|_| group.settings().worker)?;
        let kernel = self.kernel(catalog, group)?;
        let mut changed = Ok(());
        cpu::blocking(|| changed = group.worker.change(launcher, group, &kernel));
        let error = changed.err()?;
        tracing::warn!(group = %group.name, "the worker's cgroup keeps its previous limits: {error}");
        Some(format!("the kernel still enforces the previous limits of {}: {error}", group.name))
    }

    /// Returns the settings that a group's definition has on this machine.
    fn settings(&self, catalog: &Catalog, group: &crate::catalog::GroupDefinition) -> Settings {
        let properties = &group.properties;
        let cpu = catalog.cpu_hard_limit(group).map(|amount| amount.on(self.options.cpus));
        let all = MicroCpus::whole(self.options.cpus);
        let memory = properties.max_memory.map(|limit| match limit.amount {
            MemoryLimit::OfBase(share) => share.of(self.memory_bytes),
            MemoryLimit::Size(bytes) => bytes.0,
        });
        let mark =
            |mark: Option<u32>, default: u8| mark.and_then(|mark| u8::try_from(mark).ok()).unwrap_or(default);
        let none = Rules::NONE;
        let timeout = Duration::from_millis(u64::from(properties.queue_timeout_ms));
        Settings {
            // A limit equal to the whole machine counts as no limit.
            cpu_max: cpu.filter(|cpu| *cpu < all).map(|cpu| cpu.0),
            memory: Rules {
                limit: memory.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
                hard: !properties.overcommits(),
                low_watermark: mark(properties.memory_low_watermark, none.low_watermark),
                high_watermark: mark(properties.memory_high_watermark, none.high_watermark),
                slots: properties.slot_memory_policy,
                all_slots: properties.max_concurrency,
            },
            queue: QueueLimits {
                max_concurrency: properties.max_concurrency,
                max_queue_size: properties.max_queue_size,
                timeout: Some(timeout).filter(|timeout| !timeout.is_zero()),
            },
            local_read: properties.read_bytes_per_second,
            remote_read: properties.remote_read_bytes_per_second,
            worker: self.launcher.is_some() && properties.class == Class::Offline,
            nice: nice(weight(group), catalog.groups().map(weight).max().unwrap_or(1), properties.class),
        }
    }

    /// Makes the allocator return its free memory to the kernel. Called after a query was cancelled because of its
    /// memory, and when no query has run for `QUIET`.
    pub fn give_memory_back(&self) {
        if let Some(group) = self.groups().values().next() {
            group.timer.spawn_blocking(commensal_host::trim_memory);
        }
    }

    /// Checks limits that are not enforced immediately. The server calls this function every [`TICK`].
    pub fn tick(&self) {
        let host = LinuxHost::new();
        let time = threads_time(&host);
        let groups = self.groups();
        for group in groups.values() {
            group.settle(group.threads_cpu_ns(&time));
            group.measure(self.options.cpus);
            group.worker.rest();
            // Memory may have been freed since the last tick.
            group.queue.admit();
        }
        let memories: Vec<_> = groups.values().map(|group| Arc::clone(&group.memory)).collect();
        let limit = usize::try_from(self.memory_bytes).unwrap_or(usize::MAX);
        memory::end(&memory::reclaim(&memories, limit));
        for query in self.queries.all() {
            if let Some(why) = query.exceeded() {
                query.end(why);
            }
            self.apply_policies(&query);
        }
        if self.queries.are_at_rest(QUIET) {
            self.give_memory_back();
        }
    }
}

/// Additional memory of a worker process beyond the memory that the operators of its queries have reserved: the program
/// itself, batches in flight, and free memory in the allocator. Measured 60 to 90 MiB. The constant is so large that
/// the worker cancels queries long before the kernel would OOM-kill the process.
const RESERVE: u64 = 256 << 20;

/// Returns a function that reads the CPU time of a thread of this process, given its thread ID.
fn threads_time(host: &LinuxHost) -> impl Fn(u32) -> Option<Duration> {
    |thread| {
        let text = host.read_file(Path::new(&format!("/proc/self/task/{thread}/schedstat"))).ok()?;
        text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    }
}

/// Creates the launcher of workers, if workers are configured. Workers get the same data folder, with the same access.
fn launcher(options: &Options, memory_bytes: u64, scratch: &Arc<Scratch>) -> Option<Arc<Launcher>> {
    let workers = options.workers.clone()?;
    let mut arguments: Vec<OsString> = vec!["--data".into(), options.data.clone().into()];
    if options.writable {
        arguments.push("--writable".into());
    }
    for endpoint in &options.endpoints.0 {
        arguments.extend(["--endpoint".into(), endpoint.into()]);
    }
    arguments.extend(["--memory-bytes".into(), memory_bytes.to_string().into()]);
    arguments.extend(["--cpus".into(), options.cpus.to_string().into()]);
    Some(Arc::new(Launcher::new(workers, arguments, Arc::clone(scratch))))
}

/// Returns the CPU weight of a group, from its properties.
fn weight(group: &crate::catalog::GroupDefinition) -> u16 {
    group.properties.weight().unwrap_or(Weight::DEFAULT).v2()
}

/// Converts a weight to a nice value: one step is a factor of 1.25 (`sched_prio_to_weight` in the kernel). The heaviest
/// group has nice 0, because groups are weighted against each other, not against the rest of the machine. The range is
/// limited to a factor of ten, because a thread that hardly ever runs may hold a lock that other threads wait for.
fn nice(weight: u16, heaviest: u16, class: Class) -> i8 {
    let steps = (f64::from(heaviest) / f64::from(weight.max(1))).ln() / 1.25_f64.ln();
    let least = if class == Class::Offline { STEPS_TO_A_TENTH } else { 0.0 };
    steps.max(least).min(STEPS_TO_A_TENTH).round() as i8
}

/// Number of steps by a factor of 1.25 that make a factor of about ten.
const STEPS_TO_A_TENTH: f64 = 10.0;

/// Loads the stored definitions.
fn load(options: &Options) -> Result<Catalog, Error> {
    let (Some(folder), Some((groups, sql))) = (&options.state, options.files()) else {
        return Ok(Catalog::new(MEMORY_BASE));
    };
    let mut host = LinuxHost::new();
    host.state_dir(folder).map_err(|error| cannot("make", folder, &error))?;
    let mut read = |path: &Path| {
        let text = host.state_read(path).map_err(|error| cannot("read", path, &error))?;
        Ok::<_, Error>((path.display().to_string(), text.unwrap_or_default()))
    };
    let (groups, sql) = (read(&groups)?, read(&sql)?);
    let loaded = Catalog::load((&groups.0, &groups.1), (&sql.0, &sql.1), MEMORY_BASE);
    let (catalog, notes) = loaded.map_err(|error| Error::Engine(error.to_string()))?;
    for note in notes {
        tracing::warn!("{note}");
    }
    Ok(catalog)
}

/// Stores the definitions: the groups file first, then SQL's own file, each atomically. After a crash between the two
/// writes, a group that is missing in SQL's file gets defaults, and an entry in SQL's file for a group that no longer
/// exists is dropped.
fn store(groups: &Path, sql: &Path, catalog: &Catalog) -> Result<(), Error> {
    let mut host = LinuxHost::new();
    let words = |error: crate::catalog::StoreError| Error::Engine(error.to_string());
    let before = host.state_read(groups).map_err(|error| cannot("read", groups, &error))?.unwrap_or_default();
    let text = catalog.groups_toml(&groups.display().to_string(), &before).map_err(words)?;
    host.state_replace(groups, &text).map_err(|error| cannot("write", groups, &error))?;
    let text = catalog.sql_toml().map_err(words)?;
    host.state_replace(sql, &text).map_err(|error| cannot("write", sql, &error))
}
