//! The memories that the card reads and writes.

use serde::{Deserialize, Serialize};

/// Which memory an address lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Space {
    /// The host's memory, across PCIe; addresses are host virtual ones.
    Host,
    /// The memory of the card's Arm cores; addresses are virtual ones of the process there.
    Arm,
    /// The memory of the DPA process with this id; addresses are those that its threads use.
    Dpa(u32),
    /// The memory of another process of the host, with this number in its machine; addresses are virtual ones of that
    /// process.
    HostProcess(u32),
}

/// A queue or record lies here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueMemory {
    /// The memory.
    pub space: Space,
    /// First byte.
    pub addr: u64,
}

impl QueueMemory {
    /// The same memory, `offset` bytes further; wraps like the address arithmetic of the card.
    #[must_use]
    pub(crate) fn at(self, offset: u64) -> u64 {
        self.addr.wrapping_add(offset)
    }
}

/// There is no such memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the card cannot reach {len} bytes at {addr:#x}: map or register the memory before a queue or key names it")]
pub struct DmaFault {
    /// First byte of the access.
    pub addr: u64,
    /// Bytes of the access.
    pub len: u64,
}

/// The card's way to memory. An access is all or nothing.
pub trait Dma {
    /// Fills `out` from memory.
    ///
    /// # Errors
    /// Some byte of the range is not there.
    fn read(&mut self, space: Space, addr: u64, out: &mut [u8]) -> Result<(), DmaFault>;
    /// Stores `data` in memory.
    ///
    /// # Errors
    /// Some byte of the range is not there, or it is read-only.
    fn write(&mut self, space: Space, addr: u64, data: &[u8]) -> Result<(), DmaFault>;
}
