//! Group keys: targets of multicast Writes, which only the emulator has.

use std::ptr::NonNull;
use std::sync::Arc;

use verbs_sys as sys;

use crate::device::warn_unless_ok;
use crate::dpa_qp::{DpaQueuePair, Inner, refused};
use crate::error::Result;
use crate::memory::MemoryRegion;
use crate::prm::{self, Mailbox};
use crate::raw::Raw;

/// What a group key stands for at a UC queue pair in DPA memory, until this is dropped: then Writes by it are dropped
/// at the card, also the rest of one that has begun.
///
/// A Write to a group names its target by an offset and a key that are the same for all members. Multicast of UC queue
/// pairs is hypothetical: no card offers it, and emulated ones only where their machine is configured so
/// (`uc_multicast`). For simulation and evaluation, and so hidden.
#[derive(Debug)]
pub struct GroupKey {
    queue_pair: Arc<Inner>,
    raw: Raw<sys::mlx5dv_devx_obj>,
    key: u32,
}

impl GroupKey {
    /// Has Writes by group key `key` at offset 0 go to the byte at `offset` of the region, which must be of the queue
    /// pair's domain and allow remote writes.
    ///
    /// # Errors
    /// [`crate::Error::RegionRange`] for the offset; [`crate::Error::Command`] when the card refuses: always on a card.
    pub fn new(queue_pair: &DpaQueuePair, key: u32, region: &MemoryRegion, offset: u64) -> Result<Self> {
        let base = region.slice(offset, 1)?.addr.get();
        Self::of_key(queue_pair, key, region.rkey(), base)
    }

    /// The same for a region that somebody else keeps: Writes at offset 0 go to address `base` under memory key `rkey`.
    /// The card checks the key at every packet, so that none is written once the region is gone.
    ///
    /// # Errors
    /// [`crate::Error::Command`] when the card refuses: always on a card.
    pub fn of_key(queue_pair: &DpaQueuePair, key: u32, rkey: u32, base: u64) -> Result<Self> {
        let device = queue_pair.inner.process().device();
        let command = prm::create_group_key(queue_pair.number(), key, rkey, base);
        let mut answer = Mailbox::<{ prm::QP_ANSWER_BYTES }>::zeroed();
        // SAFETY: the context is open; both mailboxes have the lengths passed.
        let raw = unsafe {
            (device.provider().verbs().mlx5dv_devx_obj_create)(
                device.context(),
                command.as_bytes().as_ptr().cast(),
                prm::GROUP_KEY_COMMAND_BYTES,
                answer.as_mut_bytes().as_mut_ptr().cast(),
                prm::QP_ANSWER_BYTES,
            )
        };
        let detail = || format!("group key {key:#x} of queue pair {:#x}", queue_pair.number());
        let raw = NonNull::new(raw).ok_or_else(|| refused("CREATE_GENERAL_OBJECT", &answer, &detail()))?;
        Ok(Self { queue_pair: Arc::clone(&queue_pair.inner), raw: Raw::new(raw), key })
    }

    /// The group key.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.key
    }
}

impl Drop for GroupKey {
    fn drop(&mut self) {
        let verbs = self.queue_pair.process().device().provider().verbs();
        // SAFETY: created in `new` and destroyed only here.
        let errno = unsafe { (verbs.mlx5dv_devx_obj_destroy)(self.raw.as_ptr()) };
        warn_unless_ok("mlx5dv_devx_obj_destroy", errno);
    }
}
