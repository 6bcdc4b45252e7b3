//! Reconciles a machine with its groups: puts them in force, keeps them so, and restores everything. All code that
//! changes groups on a machine calls this crate.
//!
//! ```text
//!  specs ──────────────┐
//!  (PlanRequest)       ├─► resolve ─► DesiredState ─┐
//!  survey ─► Survey ───┤                            ├─► plan ─► Plan ─► journal ─► write ─► read back ─► Outcome
//!  observe ─► ActualState ──────────────────────────┘   (core)           │ (fsync)  (drivers)                │
//!     ▲                                                                  │                                   │
//!     │                                                                  └──► restore: originals back,       │
//!     │                                                                       our groups gone                │
//!     └─────────────── Reconciler: again and again; drift and refusals back off ◄────────────────────────────┘
//! ```
//!
//! - [`Instance`] identifies a commensal: state directory, names, journals. [`Instance::plan`] is the one place where a
//!   survey and specs become a plan.
//! - [`enforce`] carries a request out once: `apply`, `run`, the guard, the lab's and density's groups.
//! - [`Reconciler`] does that repeatedly: the agent.
//! - [`restore`] works from the journals alone, even if their writers are dead. It is idempotent: a second run has
//!   nothing to do.
//!
//! A plan may create and remove commensal's cgroups, enable v2 controllers for them, write settings of groups that a
//! spec claims, move processes that a spec matches, turn on a vendor's switch that a group needs, and send orders to
//! commensal's scheduler. What it must never do, and why:
//!
//! - *Decide while it is carried out.* A plan is data: `commensal plan` prints exactly what `apply` does, and undo is
//!   the same steps inverted. If drivers made choices, nobody could have read the real plan beforehand.
//! - *Write before the original is on disk.* The process may die between any two steps, and `restore` must know what to
//!   restore.
//! - *Stop half way.* After a refusal at any step the earlier steps are undone, so that a machine is in the state
//!   before or in the state after.
//! - *Touch a cgroup that no spec claims*, except for controllers above commensal's groups: a mistake in a groups file
//!   must not affect a neighbour.
//! - *Write to the wrong group.* A cgroup is identified by its inode, a process by its start time: a path or PID that
//!   was reused between reading and writing is refused ([`Refusal::Vanished`]).
//! - *Fight another writer.* A value that another program changes again and again is reported, and written with a
//!   growing back-off.
#![forbid(unsafe_code)]

mod drivers;
mod enforce;
mod instance;
pub mod journal;
mod marks;
mod master;
pub mod queue;
mod reconciler;
mod request;
mod restore;
mod safe_state;

pub use drivers::affinity::pin_thread;
pub use drivers::apply::{Applied, Failure, Outcome, Refusal, apply, forget_gone, forget_settled, verify};
pub use drivers::aside::{DelegationError, step_aside, step_out};
pub use drivers::{freezer, members, policy, scheduler};
pub use enforce::{adopt, enforce};
pub use instance::{Instance, ReconcileError};
pub use journal::{Journal, JournalError};
pub use master::{Master, Mastery};
pub use reconciler::{Change, Drift, Reconciler, Round, in_words};
pub use request::{FindMembers, NO_GROUPS, PlanRequest, Planned, SafeRequest};
pub use restore::{Restored, restore, restore_own, restore_stale};
pub use safe_state::{SafeState, bring_safe_state};
