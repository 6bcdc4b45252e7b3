//! What the agent tells of what groups use.

mod figures;
