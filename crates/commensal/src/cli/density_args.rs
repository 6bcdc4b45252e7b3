//! Subcommands and options of `commensal density`.

use clap::{Args, Subcommand};
use commensal_density::scenario::{Scenario, Vms};
use std::path::PathBuf;

/// `commensal density`.
#[derive(Debug, Args)]
pub struct Density {
    /// The subcommand.
    #[command(subcommand)]
    pub verb: DensityVerb,
}

/// `commensal density …`.
#[derive(Debug, Subcommand)]
pub enum DensityVerb {
    /// Report the class of a placement of VMs: ideal, shared-core or oversubscribed.
    ///
    /// Example: commensal density classify 8x16 --cores 48 --threads 96
    ///
    /// Classifies a placement on this machine, on a described server, or in a whole fleet.
    ///
    /// Exit status 1: the class is worse than --require.
    Classify(Classify),
    /// Run a ladder on this machine, and print its table.
    ///
    /// Example: commensal density run density-spin
    ///
    /// A ladder has an increasing number of cells, which stand for VMs, with an increasing number of sessions.
    ///
    /// Exit status 0: every rung completed; 1: some failed.
    Run(DensityRun),
    /// List the ladders that come with this program.
    ///
    /// Example: commensal density list
    List,
    /// Download and create what TPC-DS needs.
    ///
    /// Example: commensal density prepare --scale 0.1
    ///
    /// These are DuckDB (from PyPI, stored in the state directory), data, query texts, and the 51 queries that are
    /// fastest on this machine.
    Prepare(Prepare),
    /// Choose the CPUs to which VMs should be pinned: whole cores, in one NUMA node where they fit.
    ///
    /// Example: commensal density pin /machine/db-1:4 /machine/db-2:4
    ///
    /// With --apply, restricts their cgroups to these CPUs, and each vCPU thread of QEMU to one; `commensal restore`
    /// reverts that.
    Pin(Pin),
    /// Show a recorded ladder: the table, work per server and per core, and unreliable rungs.
    ///
    /// Example: commensal density report density.json
    Report(DensityReport),
    /// Measure how much the cores of this machine slow each other down.
    ///
    /// Example: commensal density calibrate
    ///
    /// Measures how much a core slows down when other cores are busy, how much throughput a core gains from all its
    /// hardware threads, and how many cores saturate the memory bandwidth.
    Calibrate,
    /// Report how many VMs fit on a server before work takes too long.
    ///
    /// Example: commensal density plan --from density.json --max-harm 10
    ///
    /// Uses a recorded ladder, or measures.
    ///
    /// Exit status 0: there is a result; 3: there is none.
    Plan(DensityPlan),
}

/// `commensal density classify`.
#[derive(Debug, Args)]
pub struct Classify {
    /// Number of VMs and number of vCPUs per VM, such as 4x16 for four VMs with 16 vCPUs each; for VMs of different
    /// sizes, one such value per size.
    #[arg(required_unless_present = "fleet", conflicts_with = "fleet", value_name = "COUNTxVCPU", value_parser = vms)]
    pub vms: Vec<Vms>,

    /// Physical cores of the server [default: this machine's].
    #[arg(long, value_name = "N", requires = "threads", conflicts_with = "fleet")]
    pub cores: Option<u32>,

    /// Logical CPUs of the server [default: this machine's].
    #[arg(long, value_name = "N", requires = "cores", conflicts_with = "fleet")]
    pub threads: Option<u32>,

    /// Cores reserved for the host, or `measured` for the number that the host uses now (at least one) [default: 1].
    #[arg(long, value_name = "CORES", conflicts_with = "fleet")]
    pub reserve: Option<String>,

    /// A file that describes servers and their VMs.
    #[arg(long, value_name = "FILE")]
    pub fleet: Option<PathBuf>,

    /// The worst acceptable class: ideal, shared-core or oversubscribed.
    #[arg(long, value_name = "CLASS")]
    pub require: Option<Scenario>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `commensal density run`.
#[derive(Debug, Args)]
pub struct DensityRun {
    /// The ladder: a name of `density list`, or a file.
    pub name: String,

    /// Attempts per rung [default: the ladder's].
    #[arg(long)]
    pub repeats: Option<u32>,

    /// Seed for the order of the attempts [default: the ladder's].
    #[arg(long)]
    pub seed: Option<u64>,

    /// Continue the record of an interrupted run; it then contains both parts.
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,

    /// File for the record; the page with the charts is written next to it, with the extension .html.
    #[arg(long, short, value_name = "FILE", default_value = "density.json")]
    pub out: PathBuf,

    /// Print the record instead of the table.
    #[arg(long)]
    pub json: bool,
}

/// `commensal density prepare`.
#[derive(Debug, Args)]
pub struct Prepare {
    /// Scale factor: 1 is about 1 GB of raw data.
    #[arg(long, value_name = "SF", default_value_t = 0.1)]
    pub scale: f64,

    /// Also create a PostgreSQL cluster with the same data (needs PostgreSQL; Debian: apt install postgresql).
    #[arg(long)]
    pub postgres: bool,
}

/// `commensal density pin`.
#[derive(Debug, Args)]
pub struct Pin {
    /// VMs: a cgroup and its number of vCPUs, such as /machine/db-1:4, or the PID of a QEMU process.
    #[arg(required = true, value_name = "CGROUP:VCPU|PID")]
    pub targets: Vec<String>,

    /// Number of cores reserved for the host.
    #[arg(long, value_name = "CORES", default_value_t = 0)]
    pub reserve: usize,

    /// Also print the settings for libvirt's domain XML.
    #[arg(long)]
    pub libvirt: bool,

    /// Apply the pinning.
    #[arg(long)]
    pub apply: bool,

    /// Print JSON.
    #[arg(long, conflicts_with = "apply")]
    pub json: bool,
}

/// `commensal density report`.
#[derive(Debug, Args)]
pub struct DensityReport {
    /// A recorded ladder, or `arenadata` for the ladder of Arenadata's article.
    pub file: String,

    /// Also write a page with the charts.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Print the computed table as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `commensal density plan`.
#[derive(Debug, Args)]
pub struct DensityPlan {
    /// A recorded ladder, or `arenadata` for the ladder of Arenadata's article.
    #[arg(long, value_name = "FILE", required_unless_present = "measure")]
    pub from: Option<String>,

    /// Measure instead, by bisection, with the cells, load and limits of this ladder (a name of `density list`, or a
    /// file). Each number of cells is compared with a single cell in the same repeats.
    #[arg(long, value_name = "NAME", conflicts_with = "from")]
    pub measure: Option<String>,

    /// Maximum number of cells that --measure tries.
    #[arg(long, value_name = "N", default_value_t = 16, requires = "measure")]
    pub most: u32,

    /// Where --measure writes its record.
    #[arg(long, short, value_name = "FILE", default_value = "density.json")]
    pub out: PathBuf,

    /// Maximum increase of the completion time over the ladder's first placement, in per cent.
    #[arg(long, value_name = "PER CENT")]
    pub max_harm: f64,

    /// Use only rungs of this test.
    #[arg(long, value_name = "NAME")]
    pub test: Option<String>,

    /// Use only rungs with this number of sessions.
    #[arg(long, value_name = "N")]
    pub at_concurrency: Option<u32>,

    /// Count a number of VMs as fitting only if its rung has at most this many warnings.
    #[arg(long, value_name = "N")]
    pub max_warnings: Option<f64>,

    /// Count a number of VMs as fitting only if its steal time is at most this, in per cent.
    #[arg(long, value_name = "PER CENT")]
    pub max_steal: Option<f64>,

    /// Number of VMs of the whole fleet; also prints the number of servers that the fleet needs.
    #[arg(long, value_name = "VMS")]
    pub fleet: Option<u32>,

    /// Accept an estimate without a confidence bound where only means are recorded.
    #[arg(long)]
    pub accept_means: bool,

    /// Throughput of a core with all its threads busy, relative to one busy thread, for the model's band (`density
    /// calibrate` measures it).
    #[arg(long, value_name = "GAIN", default_value_t = 1.3)]
    pub smt_gain: f64,

    /// Speed of a core when all cores are busy, relative to its speed alone, for the model's band.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub all_core: f64,

    /// Number of cores that saturate the memory bandwidth by copying, for the model's band [default: no limit].
    #[arg(long, value_name = "CORES")]
    pub bandwidth_cores: Option<f64>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Parses `4x16`; a number alone, such as `16`, means one VM.
fn vms(text: &str) -> Result<Vms, String> {
    let refused = || format!("{text:?} is not a number of VMs and the vCPUs of each, such as 4x16");
    let (count, vcpu) = text.split_once(['x', '*']).unwrap_or(("1", text));
    match (count.trim().parse(), vcpu.trim().parse()) {
        (Ok(count), Ok(vcpu)) => Ok(Vms { count, vcpu }),
        _ => Err(refused()),
    }
}
