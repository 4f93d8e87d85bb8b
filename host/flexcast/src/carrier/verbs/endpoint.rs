//! RDMA cards whose queues this process polls itself.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use flexio::{Device, ProtectionDomain, Provider};

use crate::carrier::dpa::card::DpaCard;
use crate::error::Result;
use flexcast_rc::linger::Lingering;

/// An open RDMA card. It is closed with the last of its handles, communicators and buffers.
#[derive(Clone)]
pub(crate) struct VerbsEndpoint(Arc<Opened>);

struct Opened {
    lingering: Arc<Lingering>,
    pd: ProtectionDomain,
    serial: AtomicU32,
    /// Image `sparse` on its DPA.
    aggregators: OnceLock<DpaCard>,
}

impl fmt::Debug for VerbsEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsEndpoint").field("device", self.device().info()).finish_non_exhaustive()
    }
}

impl VerbsEndpoint {
    /// Opens the card `device`.
    ///
    /// # Errors
    /// As [`Endpoint::verbs`](crate::Endpoint::verbs).
    pub(crate) fn open(provider: &Provider, device: &str) -> Result<Self> {
        let pd = ProtectionDomain::new(&provider.open_plain(device)?)?;
        let (lingering, serial, aggregators) = (Arc::default(), AtomicU32::new(0), OnceLock::new());
        Ok(Self(Arc::new(Opened { lingering, pd, serial, aggregators })))
    }

    pub(crate) fn device(&self) -> &Device {
        self.0.pd.device()
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    /// What is kept of connections that communicators have given up.
    pub(crate) fn lingering(&self) -> &Arc<Lingering> {
        &self.0.lingering
    }

    pub(crate) fn now_ps(&self) -> u64 {
        self.device().provider().relax().now_ps()
    }

    /// Where image `sparse` is, once it is started.
    pub(crate) fn aggregators(&self) -> &OnceLock<DpaCard> {
        &self.0.aggregators
    }

    /// A number that no other communicator of this card has had.
    pub(super) fn next_serial(&self) -> u32 {
        self.0.serial.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}
