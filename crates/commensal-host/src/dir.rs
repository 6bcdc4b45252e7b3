//! An open directory of a cgroup hierarchy.

/// An open directory of a cgroup hierarchy. Cheap to copy; the host keeps the descriptor until [`crate::Host::close`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dir {
    /// Index in the host's table of open directories.
    pub(crate) slot: u32,
    /// Number of the slot's use, so that a closed `Dir` is not taken for a later one in the same slot.
    pub(crate) generation: u32,
    /// Inode of the directory; inode and hierarchy together identify the cgroup.
    pub inode: u64,
}
