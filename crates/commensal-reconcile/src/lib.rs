//! Reconciles a machine with its groups: puts them in force, keeps them in force, and restores the original state. All
//! code that changes groups on a machine calls this crate.
//!
//! ```text
//!  specs ──────────────┐
//!  (PlanRequest)       ├─► resolve ─► DesiredState ─┐
//!  survey ─► Survey ───┤                            ├─► plan ─► Plan ─► journal ─► write ─► read back ─► Outcome
//!  observe ─► ActualState ──────────────────────────┘   (core)           │ (fsync)  (drivers)                │
//!     ▲                                                                  │                                   │
//!     │                                                                  └──► restore: originals back,       │
//!     │                                                                       our groups removed             │
//!     └─────────────── Reconciler: again and again; drift and refusals back off ◄────────────────────────────┘
//! ```
//!
//! - [`Instance`] identifies one instance of commensal: state directory, names, journals. [`Instance::plan`] is the
//!   only place where a survey and specs become a plan.
//! - [`enforce()`] carries out a request once, for `apply`, `run`, the guard, and the groups of the lab and of density.
//! - [`Reconciler`] carries out requests repeatedly, for the agent.
//! - [`restore()`] works from the journals and the marks on cgroups alone, even if their writers are dead. It is
//!   idempotent: a second run has nothing to do.
//!
//! A plan may create and remove commensal's cgroups, enable v2 controllers for them, write settings of groups that a
//! spec claims, move processes that a spec matches, turn on a vendor's switch that a group needs, and send orders (the
//! configuration of cgroups) to commensal's scheduler. A plan must never do the following:
//!
//! - *Decide while it is carried out.* A plan is data: `commensal plan` prints exactly what `apply` does, and undo is
//!   the same steps inverted. If drivers made choices, the printed plan would not be the real one.
//! - *Write before the original is on disk.* The process may die between any two steps, and `restore` must know the
//!   original values.
//! - *Stop half way.* After a refusal at any step the earlier steps are undone, so that the machine is either in its
//!   previous state or in the planned state.
//! - *Touch a cgroup that no spec claims*, except for controllers above commensal's groups: a mistake in a groups file
//!   must not affect a neighbour.
//! - *Write to the wrong group.* A cgroup is identified by its inode, a process by its start time: a path or PID that
//!   was reused between reading and writing is refused ([`Refusal::Vanished`]).
//! - *Fight another writer.* A value that another program changes again and again is reported, and rewritten with an
//!   increasing back-off.
#![forbid(unsafe_code)]

pub mod agent_lock;
mod attributes;
mod drivers;
mod enforce;
pub mod groups_file;
mod hand;
mod instance;
pub mod journal;
mod marks;
mod master;
pub mod queue;
mod reach;
mod reconciler;
mod request;
mod restore;
mod runner;
mod safe_state;
pub mod siblings;
mod steps;

pub use attributes::kept_in_force;
pub use drivers::apply::{Applied, Failure, Outcome, Refusal, apply, forget_gone, forget_settled, verify};
pub use drivers::aside::{DelegationError, step_aside, step_out};
pub use drivers::level::set_idle;
pub use drivers::lift::{Lifted, lift, lower};
pub use drivers::lifted_group::{LiftError, Quota, lift_group, lower_group, put_down};
pub use drivers::{freezer, members, scheduler};
pub use enforce::{adopt, enforce};
pub use instance::{Instance, ReconcileError};
pub use journal::{Journal, JournalError};
pub use master::{Master, Mastery};
pub use reach::reach;
pub use reconciler::{Change, Drift, Reconciler, Round, in_words, why_unwatched};
pub use request::{FindMembers, NO_GROUPS, PlanRequest, Planned, SafeRequest};
pub use restore::{Restored, restore, restore_own, restore_stale};
pub use safe_state::{SafeState, bring_safe_state};
pub use steps::affinity::{as_from_a_free_shell, pin_thread};
pub use steps::policy;
