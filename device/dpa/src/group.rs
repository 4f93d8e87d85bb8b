//! The finish counter of a group of workers.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{GroupContext, Shared};

/// The group's counter in DPA memory, shared by the threads of its workers.
#[derive(Debug)]
pub struct Group {
    finished: *const AtomicU64,
}

impl Group {
    /// The group that `memory` names. If there is none, the process ends with [`crate::error::NO_MEMORY`].
    #[must_use]
    pub fn attach(memory: &Shared<GroupContext>) -> Self {
        let at = crate::there(memory.address()) as *const GroupContext;
        Self { finished: at.wrapping_byte_add(core::mem::offset_of!(GroupContext, finished)).cast() }
    }

    /// Counts one worker that finished operation `sequence`; true for the last of `workers`. What the other workers
    /// wrote before they counted themselves is then visible. An operation older than the counted one never completes.
    #[must_use]
    pub fn count(&self, sequence: u32, workers: u32) -> bool {
        // SAFETY: the host names an aligned GroupContext that outlives the workers; all accesses by threads are atomic.
        let finished = unsafe { &*self.finished };
        count(finished, sequence, workers)
    }
}

/// Counts one of `all` at operation `sequence` in a word of sequence number and count; true for the last one.
pub(crate) fn count(word: &AtomicU64, sequence: u32, all: u32) -> bool {
    // A plain fetch-add would need somebody to reset the count between operations; with the sequence number in the same
    // word the first finisher of an operation does, and a straggler of an earlier one cannot disturb.
    let counted =
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |value| match ((value >> 32) as u32).cmp(&sequence) {
            core::cmp::Ordering::Less => Some(u64::from(sequence) << 32 | 1),
            core::cmp::Ordering::Equal => Some(value + 1),
            core::cmp::Ordering::Greater => None,
        });
    match counted {
        Ok(before) => {
            let already = if (before >> 32) as u32 == sequence { before as u32 } else { 0 };
            already + 1 == all
        }
        Err(_) => false,
    }
}

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;
    use crate::abi::DeviceAddress;

    /// Of an exclusive borrow: what is behind a shared one may not be written, whoever knows its address.
    fn group(cell: &mut GroupContext) -> Group {
        Group::attach(&Shared::new(DeviceAddress::new(core::ptr::from_mut(cell) as u64)))
    }

    #[test]
    fn only_the_last_worker_of_each_operation_is_reported() {
        let mut cell = GroupContext::default();
        let group = group(&mut cell);
        for sequence in 1..=3 {
            assert!(!group.count(sequence, 3));
            assert!(!group.count(sequence, 3));
            assert!(group.count(sequence, 3));
        }
    }

    #[test]
    fn a_straggler_of_an_abandoned_operation_changes_nothing() {
        let mut cell = GroupContext::default();
        let group = group(&mut cell);
        assert!(!group.count(1, 2));
        assert!(!group.count(2, 2), "operation 1 was abandoned: the count starts over");
        assert!(!group.count(1, 2), "straggler");
        assert!(group.count(2, 2));
    }
}
