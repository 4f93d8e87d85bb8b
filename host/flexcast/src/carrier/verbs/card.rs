//! RDMA cards whose queues this process polls itself.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flexio::{Device, ProtectionDomain, Provider};

use crate::carrier::dpa::card::DpaCard;
use crate::error::{Error, Result};
use crate::op::config::ps;
use crate::p2p::Lingering;

/// How collectives go over an RDMA card without its DPA.
///
/// ```
/// use std::time::Duration;
/// let options = flexcast::VerbsOptions::default().chunk_time(Duration::from_nanos(300));
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerbsOptions {
    /// Virtual time that a chunk takes the processor which receives it, one chunk after another, at most 1 ms. For
    /// emulated cards in virtual time alone, where the host's work takes no time unless this says so; a real processor
    /// takes what it takes. Default 0.
    pub chunk_time: Duration,
}

/// Longest [`VerbsOptions::chunk_time`].
const MOST_CHUNK_TIME: Duration = Duration::from_millis(1);

impl VerbsOptions {
    /// The same with this [`chunk_time`](VerbsOptions#structfield.chunk_time).
    #[must_use]
    pub const fn chunk_time(mut self, chunk_time: Duration) -> Self {
        self.chunk_time = chunk_time;
        self
    }

    fn check(&self, is_virtual: bool) -> Result<()> {
        let refuse = |limit: &str| {
            let value = u64::try_from(self.chunk_time.as_nanos()).unwrap_or(u64::MAX);
            Err(Error::Config { what: "chunk_time in ns", value, limit: limit.to_owned() })
        };
        if self.chunk_time > MOST_CHUNK_TIME {
            return refuse("at most 1000000");
        }
        if self.chunk_time > Duration::ZERO && !is_virtual {
            return refuse("0 here: it is for emulated cards in virtual time, and this processor takes what it takes");
        }
        Ok(())
    }
}

/// An open RDMA card. It is closed with the last of its handles, communicators and buffers.
#[derive(Clone)]
pub(crate) struct VerbsCard(Arc<Opened>);

struct Opened {
    lingering: Arc<Lingering>,
    pd: ProtectionDomain,
    options: VerbsOptions,
    serial: AtomicU32,
    /// Image `sparse` on its DPA.
    aggregators: OnceLock<DpaCard>,
}

impl fmt::Debug for VerbsCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsCard").field("device", self.device().info()).finish_non_exhaustive()
    }
}

impl VerbsCard {
    /// Opens the card `device`.
    ///
    /// # Errors
    /// As [`Card::verbs`](crate::Card::verbs).
    pub(crate) fn open(provider: &Provider, device: &str, options: &VerbsOptions) -> Result<Self> {
        options.check(provider.relax().is_virtual())?;
        let pd = ProtectionDomain::new(&provider.open_plain(device)?)?;
        let (lingering, serial, aggregators) = (Arc::default(), AtomicU32::new(0), OnceLock::new());
        Ok(Self(Arc::new(Opened { lingering, pd, options: *options, serial, aggregators })))
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

    /// What a chunk takes its receiver, in picoseconds of virtual time.
    pub(super) fn chunk_ps(&self) -> u64 {
        ps(self.0.options.chunk_time)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_a_time_of_its_own_in_virtual_time_alone() {
        let options = VerbsOptions::default().chunk_time(Duration::from_nanos(300));
        options.check(true).unwrap();
        VerbsOptions::default().check(false).unwrap();
        let text = options.check(false).unwrap_err().to_string();
        assert!(text.contains("chunk_time in ns is 300") && text.contains("virtual time"), "{text}");
        let text = options.chunk_time(Duration::from_millis(2)).check(true).unwrap_err().to_string();
        assert!(text.contains("2000000") && text.contains("at most 1000000"), "{text}");
    }
}
