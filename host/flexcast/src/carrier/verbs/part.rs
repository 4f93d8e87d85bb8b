//! Creation of a communicator over an RDMA card without its DPA.

use std::sync::{Arc, OnceLock};

use flexcast_proto::RankInfo;
use flexio::ProtectionDomain;

use super::carrier::{Links, VerbsCarrier};
use super::endpoint::VerbsEndpoint;
use super::queues::{Queues, Root};
use crate::carrier::Parts;
use crate::carrier::connect_info::{self, Capabilities, ConnectInfo, Receiver, Speed};
use crate::carrier::control;
use crate::carrier::dpa::card::DpaCard;
use crate::carrier::dpa::waiter::CardWaiter;
use crate::carrier::endpoint::{CarrierEndpoint, CarrierPart, DatapathKind, Endpoint};
use crate::carrier::pairs::{Adders, Maker, Pairs};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::op::config::{Config, Control, Derived};
use crate::op::selection::Selection;
use crate::op::stream::Transport;
use crate::plan::footprint::Footprint;
use crate::plan::peers::peers;

/// A communicator that knows its own queues and not yet those of the others.
pub(crate) struct Part {
    card: VerbsEndpoint,
    place: RankInfo,
    config: Config,
    derived: Derived,
    footprint: Footprint,
    queues: Queues,
    control: control::Control,
    adders: Adders,
    own: ConnectInfo,
}

/// Refuses what this datapath has not.
fn check(config: &Config) -> Result<()> {
    let refuse = |what, value: u64, limit: &str| Err(Error::Config { what, value, limit: limit.to_owned() });
    if config.control == Control::Device {
        return refuse("control", config.control as u64, "host with the datapath verbs, which takes no DPA");
    }
    if config.transport != Transport::Ud {
        return refuse("transport", config.transport as u64, "ud with the datapath verbs");
    }
    if !matches!(config.algorithm, Selection::Automatic | Selection::Multicast) {
        return refuse("algorithm", config.algorithm as u64, "automatic or multicast with the datapath verbs");
    }
    if let Some(rate) = config.pacing_gbit_per_s {
        return refuse("pacing_gbit_per_s", rate.into(), "left out with the datapath verbs: lower chains instead");
    }
    Ok(())
}

impl CarrierEndpoint for VerbsEndpoint {
    fn kind(&self) -> DatapathKind {
        DatapathKind::Verbs
    }

    fn part(&self, rank: u32, ranks: u32, config: Config) -> Result<Box<dyn CarrierPart>> {
        Ok(Box::new(Part::new(self, rank, ranks, config)?))
    }

    fn pd(&self) -> Option<&ProtectionDomain> {
        Some(Self::pd(self))
    }

    fn aggregators(&self) -> Option<&OnceLock<DpaCard>> {
        Some(Self::aggregators(self))
    }
}

impl CarrierPart for Part {
    fn connect_info(&self) -> Vec<u8> {
        self.own.to_bytes()
    }

    fn connect(self: Box<Self>, endpoint: Endpoint, infos: &[Vec<u8>]) -> Result<Parts> {
        let waiter = Arc::new(CardWaiter::new(self.card.device()));
        let (engine, footprint) = self.engine(infos)?;
        Ok(Parts { endpoint, datapath: Box::new(engine), waiter, footprint })
    }
}

impl Part {
    /// Makes the queues of rank `rank` of `ranks`.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Rank`], [`Error::Flexio`].
    fn new(card: &VerbsEndpoint, rank: u32, ranks: u32, config: Config) -> Result<Self> {
        let place = RankInfo::new(rank, ranks)?;
        check(&config)?;
        let (device, pd) = (card.device(), card.pd());
        let mtu_bytes = device.port().mtu_bytes();
        // Whatever cannot be is refused as with the DPA.
        config.derive(ranks, mtu_bytes)?;
        let config = config.with_one_worker();
        let derived = config.derive(ranks, mtu_bytes)?;
        let config = config.with_table().with_link_rate(device.port().link_gbit_per_s)?;
        let peers = peers(place, &config.chain_mapping);
        let queues = Queues::new(pd, ranks, &config)?;
        let control = control::Control::new(pd, &peers, config.eager_bytes as usize / 2, config.restarts)?;
        let footprint = Footprint {
            receive_queue_pairs: 1,
            send_queue_pairs: 2,
            control_queue_pairs: 2 * peers.len() as u32,
            pair_queue_pairs: 4 * (ranks - 1),
            staging_bytes: queues.staging_bytes(),
            bitmap_bytes: 8 * u64::from(derived.bitmap_words),
            ..Footprint::default()
        };
        let communicator = connect_info::proposal(card.next_serial(), rank, device);
        let own = ConnectInfo {
            rank,
            ranks,
            gid: device.port().gid,
            mac: device.info().mac,
            communicator,
            nonce: device.nonce(communicator)?,
            capabilities: Capabilities::new(DatapathKind::Verbs, &config, derived.layout.psn_bits(), mtu_bytes),
            queue_pairs: Vec::new(),
            ends: control.ends(),
            streams: Vec::new(),
            target_queue_pairs: Vec::new(),
            target_table: (0, 0),
            speed: Speed { link_gbit_per_s: config.link_gbit_per_s, receive_threads: 1 },
            direct: Vec::new(),
            rows: (0, 0),
            receiver: Receiver { qpn: queues.qpn(), slots: config.slots },
        };
        let adders = Adders::of(card, &config)?;
        Ok(Self { card: card.clone(), place, config, derived, footprint, queues, control, adders, own })
    }

    /// Connects to the ranks of `infos`, in the order of ranks, the own one among them. No rank may post an
    /// operation before all have connected.
    ///
    /// # Errors
    /// [`Error::Peer`] names a rank that does not fit; [`Error::Flexio`].
    fn engine(self, infos: &[Vec<u8>]) -> Result<(Engine<VerbsCarrier>, Footprint)> {
        let all = ConnectInfo::all(&self.own, infos)?;
        let Self { card, place, config, derived, footprint, mut queues, mut control, adders, .. } = self;
        let id = all[0].communicator;
        let config = Config { link_gbit_per_s: Speed::lowest(&all).link_gbit_per_s, ..config };
        control.connect(place.rank(), &all, &config)?;
        let alone = all.iter().filter(|info| info.gid == all[place.rank() as usize].gid).count() == 1;
        queues.join(connect_info::group(id, 0)?, connect_info::q_key(id), alone)?;
        let roots = all.iter().map(|info| Root { gid: info.gid, qpn: info.receiver.qpn }).collect();
        let slots = all.iter().map(|info| info.receiver.slots).min().unwrap_or(config.slots);
        let maker = Maker::new((card.pd(), card.lingering()), place, &config, Selection::Multicast).with_adders(adders);
        let pairs = Pairs::new(maker, None);
        let links = Links { queues, control, pairs, roots, slots };
        let engine = VerbsCarrier::engine(card, place, id, (config, derived), links);
        Ok((engine, footprint))
    }
}
