//! Memory of buffers that a service process may use, between its first use and the end of the buffer.
//!
//! A buffer keeps the number of its memory with each service process ([`Lease`]). One that is dropped meanwhile leaves
//! its memory with the lease's [`DeferredFree`]: it is freed once the service process has let go of its key.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use flexcast_proto::service::MemoryId;

/// Memory that somebody may still reach.
pub(crate) type Kept = Arc<Mutex<dyn Send>>;

/// Memory of buffers that are gone, until it is taken back from a service process.
pub(crate) struct DeferredFree {
    process: SocketAddr,
    left: Mutex<Vec<(MemoryId, Kept)>>,
}

impl fmt::Debug for DeferredFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferredFree").finish_non_exhaustive()
    }
}

impl DeferredFree {
    /// That of the memory which the process at this address may use. Who has it drops the keys of that memory first.
    #[cfg(feature = "service")]
    pub(crate) fn new(process: SocketAddr) -> Self {
        Self { process, left: Mutex::default() }
    }

    /// What has come since the last call.
    #[cfg(feature = "service")]
    pub(crate) fn take(&self) -> Vec<(MemoryId, Kept)> {
        std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Memory that a service process may use.
#[derive(Debug)]
pub(crate) struct Lease {
    deferred_free: Weak<DeferredFree>,
    memory: MemoryId,
}

impl Lease {
    #[cfg(feature = "service")]
    pub(crate) fn new(deferred_free: &Arc<DeferredFree>, memory: MemoryId) -> Self {
        Self { deferred_free: Arc::downgrade(deferred_free), memory }
    }

    /// The number of the memory, if it is leased by this one.
    #[cfg(feature = "service")]
    pub(crate) fn of(&self, deferred_free: &Arc<DeferredFree>) -> Option<MemoryId> {
        (self.deferred_free.as_ptr() == Arc::as_ptr(deferred_free)).then_some(self.memory)
    }

    /// The service process that may use it; none any more if the [`DeferredFree`] is gone, and the keys with that.
    pub(crate) fn process(&self) -> Option<SocketAddr> {
        self.deferred_free.upgrade().map(|deferred_free| deferred_free.process)
    }

    /// Leaves memory with each [`DeferredFree`] of its leases that is still there. Keys of others are gone.
    pub(crate) fn defer_free(leases: Vec<Self>, memory: impl Send + 'static) {
        let kept: Kept = Arc::new(Mutex::new(memory));
        for Self { deferred_free, memory } in leases {
            if let Some(deferred_free) = deferred_free.upgrade() {
                let mut deferred = deferred_free.left.lock().unwrap_or_else(PoisonError::into_inner);
                deferred.push((memory, Arc::clone(&kept)));
            }
        }
    }
}
