//! Memory that DevX commands may name: registered host memory and the memory of DPA processes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use emu_machine::FunctionId;
use emu_machine::nic::{QueueMemory, Space};

/// A range of memory behind an id.
#[derive(Clone, Copy, Debug)]
pub struct Umem {
    /// The function it was registered through.
    pub owner: FunctionId,
    /// The memory.
    pub space: Space,
    /// Address of its first byte.
    pub base: u64,
    /// Bytes.
    pub len: u64,
}

impl Umem {
    /// The place of `len` bytes at an offset, if they lie inside.
    #[must_use]
    pub fn at(&self, offset: u64, len: u64) -> Option<QueueMemory> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| QueueMemory { space: self.space, addr: self.base + offset })
    }
}

static UMEMS: Mutex<BTreeMap<u32, Umem>> = Mutex::new(BTreeMap::new());
/// UAR pages and memory objects are numbered from here on; 0 is what a forgotten field holds.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);
static NEXT_UAR: AtomicU32 = AtomicU32::new(1);

fn umems() -> MutexGuard<'static, BTreeMap<u32, Umem>> {
    UMEMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers memory and gives its id.
pub fn insert(umem: Umem) -> u32 {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    umems().insert(id, umem);
    id
}

/// The memory behind an id.
#[must_use]
pub fn find(id: u32) -> Option<Umem> {
    umems().get(&id).copied()
}

/// Forgets an id. Queues made from it keep their memory.
pub fn remove(id: u32) {
    umems().remove(&id);
}

/// Numbers a new UAR page.
pub fn new_uar_page() -> u32 {
    NEXT_UAR.fetch_add(1, Ordering::Relaxed)
}
