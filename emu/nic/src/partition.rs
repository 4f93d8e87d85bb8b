//! Partition keys (InfiniBand specification, volume 1, 10.9: partitioning).
//!
//! A port has a table of them, and each queue pair names an entry. A packet is for a queue pair if both have the same
//! partition (bits 14:0) and at least one of them is a full member (bit 15); others are dropped in silence, whatever the
//! transport: an RC requester learns of it by its timeout.

use crate::error::NicError;
use crate::nic::Nic;
use crate::packet::DEFAULT_PKEY;
use crate::queue_pair::QueuePair;

/// Entries a partition key table may have (mlx5: 128).
const MAX_PKEYS: usize = 128;
/// A partition key without this bit is that of a limited member.
const FULL_MEMBER: u16 = 1 << 15;

/// Whether a packet with the key `packet` may reach a queue pair with the key `own`.
pub(crate) fn same_partition(packet: u16, own: u16) -> bool {
    (packet ^ own) & !FULL_MEMBER == 0 && (packet | own) & FULL_MEMBER != 0 && packet & !FULL_MEMBER != 0
}

impl Nic {
    /// Sets an entry of the port's partition key table, which has the default key at index 0 alone at first. Queue pairs
    /// that name the entry use the new key from their next packet on.
    ///
    /// # Errors
    /// The index would leave a hole or pass 128 entries, or the key is that of no partition (bits 14:0 are zero).
    pub fn set_pkey(&mut self, index: usize, pkey: u16) -> Result<(), NicError> {
        if pkey & !FULL_MEMBER == 0 {
            return Err(NicError::PkeyInvalid { pkey });
        }
        let entries = self.pkeys.len();
        match self.pkeys.get_mut(index) {
            Some(entry) => *entry = pkey,
            None if index == entries && entries < MAX_PKEYS => self.pkeys.push(pkey),
            None => return Err(NicError::PkeyIndex { index, entries, limit: MAX_PKEYS }),
        }
        Ok(())
    }

    /// The port's partition keys.
    #[must_use]
    pub fn pkeys(&self) -> &[u16] {
        &self.pkeys
    }

    /// The key that a queue pair sends with and is reached by.
    pub(crate) fn pkey(&self, qp: &QueuePair) -> u16 {
        self.pkeys.get(usize::from(qp.path.pkey_index)).copied().unwrap_or(DEFAULT_PKEY)
    }
}

#[cfg(test)]
mod tests {
    use super::same_partition;

    #[test]
    fn members_of_a_partition_meet_unless_both_are_limited() {
        assert!(same_partition(0xFFFF, 0xFFFF));
        assert!(same_partition(0x7FFF, 0xFFFF), "a limited member reaches a full one");
        assert!(same_partition(0xFFFF, 0x7FFF), "and the other way round");
        assert!(!same_partition(0x7FFF, 0x7FFF), "two limited members do not meet");
        assert!(!same_partition(0x8001, 0x8002));
        assert!(!same_partition(0x8000, 0x8000), "partition 0 is none");
    }
}
