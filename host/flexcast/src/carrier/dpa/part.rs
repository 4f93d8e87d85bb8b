//! Creation of a communicator over DPA cards: its queues and threads are made, and then connected with those of the
//! others.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use flexcast_abi::{DeviceAddress, ReceiveView, Signals};
use flexcast_proto::{CollectiveIds, RankInfo, StallWindow};
use flexio::{Access, DeviceBuffer, HostBuffer, MemoryRegion, ProtectionDomain};

use crate::carrier::Parts;
use crate::carrier::connect_info::{self, Capabilities, ConnectInfo, Receiver, Speed, StreamEnds};
use crate::carrier::control;
use crate::carrier::dpa::card::{DpaCard, TakenUnits};
use crate::carrier::dpa::card_protocol::{self, CardProtocol};
use crate::carrier::dpa::carrier::DpaCarrier;
use crate::carrier::dpa::copier::Copier;
use crate::carrier::dpa::protocol::{Connect, DpaProtocol, QueuePairs};
use crate::carrier::dpa::receive::{self, Receive};
use crate::carrier::dpa::send::{self, Send};
use crate::carrier::dpa::targets::Targets;
use crate::carrier::dpa::waiter::CardWaiter;
use crate::carrier::endpoint::{CarrierEndpoint, CarrierPart, DatapathKind, Endpoint};
use crate::carrier::pairs::{Adders, Maker, Pairs, unconnected};
use crate::engine::{Core, Engine};
use crate::error::{Error, Result};
use crate::op::config::{Config, Derived, ps};
use crate::op::selection::Selection;
use crate::op::stream::Stream;
use crate::p2p;
use crate::plan::footprint::Footprint;
use crate::plan::peers::peers;
use crate::plan::tuner::{self, Conditions};

/// Number of the first operation.
const FIRST_OPERATION: u32 = 1;

/// Queues and threads of a communicator; what can reach memory is dropped before the memory.
struct Queues {
    /// Connections that carry the protocol's messages, where the host runs it.
    control: Option<control::Control>,
    pairs: Pairs,
    send: Send,
    receive: Receive,
    copier: Copier,
    units: TakenUnits,
}

/// A communicator that knows its own queues and not yet those of the others.
pub(crate) struct Part {
    card: DpaCard,
    config: Config,
    derived: Derived,
    footprint: Footprint,
    place: RankInfo,
    protocol: DpaProtocol,
    queues: Queues,
    /// Connections for what may go by other ways than multicast.
    direct: Option<p2p::Pending>,
    adders: Adders,
    own: ConnectInfo,
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

impl CarrierEndpoint for DpaCard {
    fn kind(&self) -> DatapathKind {
        DatapathKind::Dpa
    }

    fn part(&self, rank: u32, ranks: u32, config: Config) -> Result<Box<dyn CarrierPart>> {
        Ok(Box::new(Part::new(self, rank, ranks, config)?))
    }

    fn pd(&self) -> Option<&ProtectionDomain> {
        Some(Self::pd(self))
    }

    fn hot_bytes(&self) -> u64 {
        Self::hot_bytes(self)
    }

    fn dpa(&self) -> Option<&DpaCard> {
        Some(self)
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
    /// Makes the queues and threads of rank `rank` of `ranks`.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Budget`], [`Error::Rank`], [`Error::Flexio`], [`Error::Context`].
    fn new(card: &DpaCard, rank: u32, ranks: u32, config: Config) -> Result<Self> {
        let place = RankInfo::new(rank, ranks)?;
        let mtu_bytes = card.device().port().mtu_bytes();
        let derived = config.derive(ranks, mtu_bytes)?;
        let config = config.with_table().with_link_rate(card.device().port().link_gbit_per_s)?;
        let peers = peers(place, &config.chain_mapping);
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
        let device_shared = card_protocol::Shared;
        let memory = HostBuffer::zeroed(receive_bytes + send_shared.end() + device_shared.end())?;
        let memory = MemoryRegion::register(card.pd(), memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let (receive_memory, memory) = memory.split_at(receive_bytes)?;
        let (send_memory, device_memory) = memory.split_at(send_shared.end())?;
        // The units of receivers, then those of senders, then that of the progress thread if there is one.
        let first_sender = config.receive_threads as usize;
        let progress = first_sender + config.send_threads as usize;
        let (receivers, senders) = ((&units, 0..first_sender), (&units, first_sender..progress));
        let signals = match units.len() - progress {
            0 => None,
            _ => Some(DeviceBuffer::zeroed(card.process(), size_of::<Signals>() as u64)?),
        };
        let signals_at = signals.as_ref().map(|line| DeviceAddress::new(line.addr().get()));
        let receive = Receive::new(card, &config, &derived, place, receivers, (receive_memory, signals_at))?;
        let send = Send::new(card, &config, &derived, place, senders, (send_memory, send_shared, signals_at))?;
        let eager_bytes = config.eager_bytes;
        let (protocol, connections) = match signals {
            Some(signals) => {
                let shared = (device_memory, device_shared, signals);
                let progress = CardProtocol::new(card, &config, place, (&units, progress), &peers, shared)?;
                (DpaProtocol::Card(Box::new(progress)), None)
            }
            None => {
                let connections = control::Control::new(card.pd(), &peers, eager_bytes as usize / 2, config.restarts)?;
                (DpaProtocol::on_host(place, FIRST_OPERATION, eager_bytes.into()), Some(connections))
            }
        };
        let QueuePairs { control, ends, rows } = match (&protocol, &connections) {
            (DpaProtocol::Card(card), _) => card.queue_pairs(),
            (_, connections) => {
                let ends = connections.as_ref().map_or_else(Vec::new, control::Control::ends);
                QueuePairs { control: Vec::new(), ends, rows: (0, 0) }
            }
        };
        let (direct, direct_bytes) = direct(card, &config, place)?.unzip();
        let device = card.device();
        let communicator = connect_info::proposal(card.next_serial(), rank, device);
        let own = ConnectInfo {
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
        let adders = Adders::of(card, &config)?;
        let maker =
            Maker::new((card.pd(), card.lingering()), place, &config, config.selection()).with_adders(adders.clone());
        let pairs = Pairs::new(maker, None);
        let queues = Queues { control: connections, pairs, send, receive, copier, units };
        Ok(Self { card: card.clone(), config, derived, footprint, place, protocol, queues, direct, adders, own })
    }

    /// Connects to the ranks of `infos`, in the order of ranks, the own one among them. No rank may post an
    /// operation before all have connected.
    ///
    /// # Errors
    /// [`Error::Peer`] names a rank that does not fit; [`Error::Flexio`].
    fn engine(mut self, infos: &[Vec<u8>]) -> Result<(Engine<DpaCarrier>, Footprint)> {
        let all = ConnectInfo::all(&self.own, infos)?;
        let id = all[0].communicator;
        let (q_key, group) = (connect_info::q_key(id), |subgroup: u32| connect_info::group(id, subgroup));
        let speed = Speed::lowest(&all);
        // A rank alone without them would be: all or none.
        let direct = self.direct.take().filter(|_| all.iter().all(|info| !info.direct.is_empty()));
        if let Some(pending) = direct {
            let infos: Vec<&[u8]> = all.iter().map(|info| info.direct.as_slice()).collect();
            let own = self.place.rank();
            let pending = pending.with_link_rate(speed.link_gbit_per_s);
            self.queues.pairs.group = Some(pending.connect(&infos).map_err(|error| unconnected(own, error))?);
        }
        let Self { card, config, derived, footprint, place, adders, mut queues, mut protocol, .. } = self;
        let config = Config { link_gbit_per_s: speed.link_gbit_per_s, ..config };
        let maker = Maker::new((card.pd(), card.lingering()), place, &config, config.selection()).with_adders(adders);
        queues.pairs = Pairs::new(maker, queues.pairs.group.take());
        let mtu_bytes = card.device().port().mtu_bytes();
        let conditions = Conditions {
            receive_threads: speed.receive_threads,
            staged: !config.transport.is_zero_copy(),
            direct: queues.pairs.group.is_some(),
            ..Conditions::new(&config, place.ranks(), mtu_bytes, protocol.eager_bytes())
        };
        match (&mut protocol, &mut queues.control) {
            (DpaProtocol::Card(progress), _) => {
                let views: Vec<ReceiveView> = queues.receive.views().collect();
                let (first_operation, views) = (FIRST_OPERATION, views.as_slice());
                let connect =
                    Connect { card: &card, config: &config, all: &all, communicator: id, first_operation, views };
                progress.connect(connect, &queues.send.activation_ids().collect::<Vec<_>>())?;
            }
            (DpaProtocol::Host(conversation), connections) => {
                conversation.connect(id);
                if let Some(connections) = connections {
                    connections.connect(place.rank(), &all, &config)?;
                }
            }
        }
        let ends = (place.rank(), all.as_slice());
        queues.receive.connect(&card, ends, q_key, group, &config)?;
        queues.send.connect(&card, ends, q_key, group, &config)?;
        let stall = StallWindow::new(config.first_window_ps());
        let Queues { control, pairs, send, receive, copier, units } = queues;
        let carrier = DpaCarrier {
            control,
            pairs,
            send,
            receive,
            copier,
            _units: units,
            lost: Vec::new(),
            card,
            place,
            derived,
            conditions,
            backoff: tuner::Backoff::default(),
            slowness: tuner::Slowness::default(),
            ids: CollectiveIds::new(derived.layout, ps(config.packet_lifetime)),
            late_chunks: None,
            polled_ps: 0,
            notified: false,
        };
        Ok((Engine::new(carrier, Core::new(place, id, config), protocol, stall), footprint))
    }
}
