//! An open directory of a cgroup hierarchy.

/// An open directory of a cgroup hierarchy. Cheap to copy; the host keeps the descriptor until [`Host::close`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dir {
    /// Slot in the host's table.
    pub(crate) slot: u32,
    /// Distinguishes different uses of one slot.
    pub(crate) generation: u32,
    /// Inode of the directory; together with the hierarchy it identifies the group.
    pub inode: u64,
}
