//! Numbers of a rank's memory that its service process may use, and how much of it has keys of its own.

/// Keys of a pool by default: send and receive buffers of as many collectives as a group may have under way by default,
/// eight.
pub const DEFAULT_BOUND_KEYS: u16 = 16;

/// Memory of a rank's program that the service process may use, by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryId(pub u32);
