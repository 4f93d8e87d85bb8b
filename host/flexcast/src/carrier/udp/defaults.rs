//! Defaults of a communicator over a network interface.

use std::time::Duration;

use super::Interface;
use crate::op::config::{Config, MAX_EAGER_BYTES, Overheads};

/// Rate of a network interface, which nobody has measured.
pub(crate) const ETHERNET_GBIT_PER_S: u64 = 10;
/// How long nothing comes over a network interface before the rest counts as lost: processes are not always run.
const CUTOFF_SLACK: Duration = Duration::from_millis(20);
/// The same for repair and everything behind it, in which other processes have a part.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(2);

impl Config {
    /// The defaults over a network interface.
    pub(crate) fn for_interface(interface: &Interface) -> Self {
        Self {
            chunk_bytes: interface.chunk_bytes(),
            recovery_timeout: RECOVERY_TIMEOUT,
            overheads: Overheads { cutoff_slack: CUTOFF_SLACK, ..Overheads::default() },
            link_gbit_per_s: ETHERNET_GBIT_PER_S,
            eager_bytes: MAX_EAGER_BYTES,
            ..Self::default().with_subgroups(1)
        }
    }
}
