//! Reconciling: making a machine what its groups say, keeping it so, and putting everything back. Everybody who changes
//! groups on a machine calls this crate.
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
//! - [`Instance`] is whose groups they are: state directory, names, journals. [`Instance::plan`] is the one place where a survey
//!   and specs become a plan.
//! - [`enforce`] carries a request out once: `apply`, `run`, the guard, the lab's and density's groups.
//! - [`Reconciler`] does it again and again: the agent.
//! - [`restore`] works from the journals alone, with whoever wrote them dead. It is idempotent: a second run finds nothing.
//!
//! What a plan may do: make and remove cgroups of our own, enable v2 controllers for them, write settings of groups that a spec
//! claims, move processes that a spec matches, turn a vendor's switch that a group needs, order our scheduler. What it may never
//! do, and why:
//!
//! - *Decide while it is carried out.* A plan is data: `commensal plan` prints exactly what `apply` does, and undo is the same
//!   steps turned round. A driver that chose would be a plan that nobody has read.
//! - *Write before the original is on the disk.* The process may end between any two steps, and `restore` must know what to put
//!   back.
//! - *Stop half way.* After a refusal at any step the steps before it are taken back, so that a machine is in the state before or
//!   in the state after.
//! - *Touch a cgroup that no spec claims*, but for controllers above our own groups: a mistake in a groups file must not reach a
//!   neighbour.
//! - *Write to the wrong group.* A cgroup is its inode, a process its start time: a path or number that was given to somebody else
//!   between look and write is refused ([`Refusal::Vanished`]).
//! - *Fight another writer.* A value that somebody else changes again and again is told, and written after longer and longer pauses.
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
