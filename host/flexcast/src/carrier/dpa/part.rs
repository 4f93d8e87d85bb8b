//! Creation of a communicator over DPA cards: its queues and threads are made, and then connected with those of the
//! others.

use std::collections::BTreeMap;
use std::fmt;

use flexcast_abi::{DeviceAddress, ReceiveView, Signals};
use flexcast_proto::{Alpha, CollectiveIds, RankInfo, StallWindow};
use flexio::{Access, DeviceBuffer, HostBuffer, MemoryRegion};

use crate::carrier::card::{Card, DatapathKind, Kind};
use crate::carrier::dpa::card::DpaCard;
use crate::carrier::dpa::copier::Copier;
use crate::carrier::dpa::device::{self, DeviceDriver};
use crate::carrier::dpa::driver::{Connect, Driver, QueuePairs};
use crate::carrier::dpa::engine::{Engine, Parts};
use crate::carrier::dpa::host::HostDriver;
use crate::carrier::dpa::receive::{self, Receive};
use crate::carrier::dpa::send::{self, Send};
use crate::carrier::dpa::targets::Targets;
use crate::carrier::endpoint::{self, Capabilities, Endpoint, Receiver, Speed, StreamEnds};
use crate::carrier::pairs::{Adders, Maker, Pairs, unconnected};
use crate::engine::Core;
use crate::engine::eager::Gathered;
use crate::error::{Error, Result};
use crate::op::config::{Config, Derived, ps};
use crate::op::selection::Selection;
use crate::op::stream::Stream;
use crate::p2p;
use crate::plan::footprint::Footprint;
use crate::plan::peers::peers;
use crate::plan::tuner::{self, Conditions, Losses};

/// Number of the first operation.
const FIRST_OPERATION: u32 = 1;

/// A communicator that knows its own queues and not yet those of the others.
pub(crate) struct Part {
    card: DpaCard,
    config: Config,
    derived: Derived,
    footprint: Footprint,
    place: RankInfo,
    parts: Parts,
    /// Connections for what may go by other ways than multicast.
    direct: Option<p2p::Pending>,
    adders: Adders,
    own: Endpoint,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("place", &self.place).finish_non_exhaustive()
    }
}

/// The queue pairs of streams from and to single ranks.
fn stream_ends(receive: &Receive, send: &Send) -> Vec<StreamEnds> {
    let mut ends: BTreeMap<(u32, u32), StreamEnds> = BTreeMap::new();
    for (receiver, stream) in receive.unicast() {
        let Stream { subgroup, peer: Some(peer) } = stream else { continue };
        ends.insert((peer, subgroup), StreamEnds { peer, subgroup, receiver, sender: 0 });
    }
    for (sender, stream) in send.unicast() {
        if let Some(ends) = stream.peer.and_then(|peer| ends.get_mut(&(peer, stream.subgroup))) {
            ends.sender = sender;
        }
    }
    ends.into_values().collect()
}

/// Makes the queue pairs of the algorithms over connections that may be chosen, and what others must know of them. A
/// card that has no room for them does without, and with it all ranks, unless one was asked for by name.
fn direct(card: &DpaCard, config: &Config, place: RankInfo) -> Result<Option<(p2p::Pending, Vec<u8>)>> {
    let operations = tuner::operations(config.selection(), place.ranks());
    if operations.is_empty() {
        return Ok(None);
    }
    let made = Maker::new((card.pd(), card.lingering()), place, config, config.selection()).prepare(&operations);
    match made {
        Ok(made) => Ok(Some(made)),
        Err(error) if config.algorithm == Selection::Automatic => {
            tracing::warn!(%error, "no connections for direct operations: all go by multicast");
            Ok(None)
        }
        Err(error) => Err(unconnected(place.rank(), error)),
    }
}

impl Part {
    /// Makes the queues and threads of rank `rank` of `ranks`.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Budget`], [`Error::Rank`], [`Error::Flexio`], [`Error::Context`].
    pub(crate) fn new(card: &DpaCard, rank: u32, ranks: u32, config: Config) -> Result<Self> {
        let place = RankInfo::new(rank, ranks)?;
        let mtu_bytes = card.device().port().mtu_bytes();
        let derived = config.derive(ranks, mtu_bytes)?;
        let config = config.with_table().with_link_rate(card.device().port().link_gbit_per_s)?;
        let mut peers = peers(place);
        peers.extend(config.chain_mapping.neighbours(rank));
        peers.sort_unstable();
        peers.dedup();
        let control_queue_pairs = peers.len() as u32;
        let footprint = Footprint { control_queue_pairs, ..config.footprint(ranks, mtu_bytes)? };
        config.check_cache(&footprint)?;
        let heap = card.process().heap()?;
        let (needed, limit) = (footprint.staging_bytes, heap.size.saturating_sub(heap.allocated));
        if needed > limit {
            let next = "lower slots, subgroups or chunk_bytes, or free another communicator of this card";
            return Err(Error::Budget { what: "bytes of DPA memory for staging", needed, limit, next });
        }
        let units = card.take_units(footprint.threads, config.placement, footprint.hot_bytes())?;
        if card.hot_bytes() > config.cache_bytes {
            let (hot_bytes, cache_bytes) = (card.hot_bytes(), config.cache_bytes);
            tracing::warn!(hot_bytes, cache_bytes, "the card's communicators together exceed the last-level cache");
        }
        let receive_bytes = receive::Shared::new(&derived, ranks).bytes();
        let send_shared = send::Shared::new(&config);
        let device_shared = device::Shared;
        let memory = HostBuffer::zeroed(receive_bytes + send_shared.end() + device_shared.end())?;
        let memory = MemoryRegion::register(card.pd(), memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let (receive_memory, memory) = memory.split_at(receive_bytes)?;
        let (send_memory, device_memory) = memory.split_at(send_shared.end())?;
        let (receivers, others) = units.units.split_at(config.receive_threads as usize);
        let (senders, progress) = others.split_at(config.send_threads as usize);
        let signals = match progress {
            [] => None,
            _ => Some(DeviceBuffer::zeroed(card.process(), size_of::<Signals>() as u64)?),
        };
        let signals_at = signals.as_ref().map(|line| DeviceAddress::new(line.addr().get()));
        let receive = Receive::new(card, &config, &derived, place, receivers, (receive_memory, signals_at))?;
        let send = Send::new(card, &config, &derived, place, senders, (send_memory, send_shared, signals_at))?;
        let driver: Box<dyn Driver> = match progress.first().zip(signals) {
            Some((unit, signals)) => {
                let shared = (device_memory, device_shared, signals);
                Box::new(DeviceDriver::new(card, &config, place, *unit, &peers, shared)?)
            }
            None => Box::new(HostDriver::new(card, place, FIRST_OPERATION, &peers, &config)?),
        };
        let QueuePairs { control, ends, rows } = driver.queue_pairs();
        let (direct, direct_bytes) = direct(card, &config, place)?.unzip();
        let device = card.device();
        let communicator = endpoint::proposal(card.next_serial(), rank, device);
        let own = Endpoint {
            rank,
            ranks,
            gid: device.port().gid,
            mac: device.info().mac,
            communicator,
            nonce: device.nonce(communicator)?,
            capabilities: Capabilities::new(DatapathKind::Dpa, &config, derived.layout.psn_bits(), mtu_bytes),
            queue_pairs: control,
            ends,
            streams: stream_ends(&receive, &send),
            target_queue_pairs: receive.targets().map(Targets::queue_pairs).unwrap_or_default(),
            target_table: receive.targets().map_or((0, 0), Targets::table),
            speed: Speed { link_gbit_per_s: config.link_gbit_per_s, receive_threads: config.receive_threads },
            direct: direct_bytes.unwrap_or_default(),
            rows,
            receiver: Receiver::default(),
        };
        let copier = Copier::new(card)?;
        let adders = Adders::of(&Card::of(Kind::Dpa(card.clone())), &config)?;
        let maker =
            Maker::new((card.pd(), card.lingering()), place, &config, config.selection()).with_adders(adders.clone());
        let pairs = Pairs::new(maker, None);
        let parts = Parts { driver, pairs, send, receive, copier, _units: units };
        Ok(Self { card: card.clone(), config, derived, footprint, place, parts, direct, adders, own })
    }

    /// What the other ranks must know of this one.
    pub(crate) fn endpoint(&self) -> Vec<u8> {
        self.own.to_bytes()
    }

    /// Connects to the ranks that told `endpoints`, in the order of ranks, the own one among them. No rank may post an
    /// operation before all have connected.
    ///
    /// # Errors
    /// [`Error::Peer`] names a rank that does not fit; [`Error::Flexio`].
    pub(crate) fn connect(mut self, endpoints: &[Vec<u8>]) -> Result<(Engine, Footprint)> {
        let all = Endpoint::all(&self.own, endpoints)?;
        let id = all[0].communicator;
        let (q_key, group) = (endpoint::q_key(id), |subgroup: u32| endpoint::group(id, subgroup));
        let speed = Speed::lowest(&all);
        // A rank alone without them would be: all or none.
        let direct = self.direct.take().filter(|_| all.iter().all(|endpoint| !endpoint.direct.is_empty()));
        if let Some(pending) = direct {
            let told: Vec<&[u8]> = all.iter().map(|endpoint| endpoint.direct.as_slice()).collect();
            let own = self.place.rank();
            let pending = pending.with_link_rate(speed.link_gbit_per_s);
            self.parts.pairs.group = Some(pending.connect(&told).map_err(|error| unconnected(own, error))?);
        }
        let Self { card, config, derived, footprint, place, adders, .. } = self;
        let config = Config { link_gbit_per_s: speed.link_gbit_per_s, ..config };
        let maker = Maker::new((card.pd(), card.lingering()), place, &config, config.selection()).with_adders(adders);
        self.parts.pairs = Pairs::new(maker, self.parts.pairs.group.take());
        let conditions = Conditions {
            selection: config.selection(),
            ranks: place.ranks(),
            link_gbit_per_s: speed.link_gbit_per_s,
            receive_threads: speed.receive_threads,
            chunk_bytes: config.chunk_bytes,
            mtu_bytes: card.device().port().mtu_bytes(),
            staged: !config.transport.is_zero_copy(),
            eager_bytes: self.parts.driver.eager_bytes(),
            direct: self.parts.pairs.group.is_some(),
        };
        let Parts { driver, send, receive, .. } = &mut self.parts;
        let views: Vec<ReceiveView> = receive.views().collect();
        let first_operation = FIRST_OPERATION;
        let connect =
            Connect { card: &card, config: &config, all: &all, communicator: id, first_operation, views: &views };
        driver.connect(connect, &send.activation_ids().collect::<Vec<_>>())?;
        let ends = (place.rank(), all.as_slice());
        self.parts.receive.connect(&card, ends, q_key, group, &config)?;
        self.parts.send.connect(&card, ends, q_key, group, &config)?;
        let engine = Engine {
            parts: self.parts,
            gathered: Gathered::default(),
            current: None,
            lost: Vec::new(),
            card,
            derived,
            conditions,
            ids: CollectiveIds::new(derived.layout, ps(config.packet_lifetime)),
            alpha: Alpha::new(config.overheads.in_ps()),
            backoff: tuner::Backoff::default(),
            slowness: tuner::Slowness::default(),
            stall: StallWindow::new(config.first_window_ps()),
            losses: Losses::default(),
            late_chunks: None,
            polled_ps: 0,
            notified: false,
            core: Core::new(place, id, config),
        };
        Ok((engine, footprint))
    }
}
