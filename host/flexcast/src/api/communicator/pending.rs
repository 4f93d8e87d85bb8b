//! Creation of a communicator: its own part is made, and then connected with those of the others.

use std::fmt;

use super::Communicator;
use crate::carrier::Parts;
use crate::carrier::endpoint::{CarrierPart, Endpoint};
use crate::carrier::pairs::Adders;
use crate::error::Result;
use crate::op::config::{Config, Control};
use crate::op::service_options::ControlReport;

/// A communicator that knows its own queues and not yet those of the others.
///
/// For ranks that share a thread, whose exchange cannot block: make all of them, take their [`Pending::connect_info`]s,
/// and give each the list of all.
pub struct Pending {
    endpoint: Endpoint,
    own: Box<dyn CarrierPart>,
    asked: Control,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

impl Pending {
    /// Makes the queues and threads of rank `rank` of `ranks`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), [`Error::Budget`](crate::Error::Budget),
    /// [`Error::Rank`](crate::Error::Rank), [`Error::Flexio`](crate::Error::Flexio),
    /// [`Error::Context`](crate::Error::Context), [`Error::Socket`](crate::Error::Socket).
    pub fn new(endpoint: &Endpoint, rank: u32, ranks: u32, mut config: Config) -> Result<Self> {
        let asked = config.control;
        if asked == Control::Service {
            config.service.check()?;
            if endpoint.pd().is_some() {
                // What the service processes do not carry out is the DPA's, or the host's.
                config.control = config.service.datapath_control;
            }
        }
        Adders::check(endpoint.carrier(), &config)?;
        if endpoint.pd().is_none() {
            // RDMA cards take settings of the DPA without one, too: one configuration serves all of them.
            config.check_datapath(&endpoint.carrier().defaults(), endpoint.carrier().kind().name())?;
        }
        let own = endpoint.carrier().part(rank, ranks, config)?;
        Ok(Self { endpoint: endpoint.clone(), own, asked })
    }

    /// What the other ranks must know of this one.
    #[must_use]
    pub fn connect_info(&self) -> Vec<u8> {
        self.own.connect_info()
    }

    /// Connects to the ranks that sent `infos`, which are in the order of ranks, with the own one among them. No
    /// rank may post an operation before all have connected.
    ///
    /// # Errors
    /// [`Error::Peer`](crate::Error::Peer) names a rank that does not fit; [`Error::Flexio`](crate::Error::Flexio),
    /// [`Error::Socket`](crate::Error::Socket).
    pub fn connect(self, infos: &[Vec<u8>]) -> Result<Communicator> {
        let asked = self.asked;
        let parts = self.parts(infos)?;
        let control = parts.datapath.core().config.control;
        let reason = "ranks that are connected by `Pending` have nothing to agree by: use `Communicator::create`";
        let report = ControlReport { control, reason: (asked == Control::Service).then(|| reason.to_owned()) };
        Communicator::of(parts, report)
    }

    /// The same, but for the communicator around it.
    pub(crate) fn parts(self, infos: &[Vec<u8>]) -> Result<Parts> {
        self.own.connect(self.endpoint, infos)
    }
}
