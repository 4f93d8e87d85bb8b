//! Making the connections that operations need.

use std::collections::BTreeMap;

use flexcast_proto::RankInfo;
use flexcast_proto::p2p::{Operation, Schedule};
use flexcast_proto::session::greeting::Greeting;
use flexio::{Access, CompletionQueue, HostBuffer, MemoryRegion, ProtectionDomain, RemoteQp};
use zerocopy::little_endian::U32;

use super::connect_info::{ConnectInfo, Entry};
use super::connection::{CONTROL_DEPTH, Connection, Slots};
use super::{Config, Error, Group};
use flexcast_rc::requester::{PROBES, Wire};

/// Most messages of one peer in one operation: the depth of a receive queue.
const MAX_MESSAGES: u32 = 1 << 15;

/// The peers that operations of a rank have, and how many messages each may bring.
#[derive(Clone, Debug)]
pub struct Connections {
    place: RankInfo,
    config: Config,
    /// By peer: most messages in one operation.
    accepts: BTreeMap<u32, u32>,
}

impl Connections {
    /// What these operations need. All ranks must name the same. A Broadcast is for its root and for at most so many
    /// blocks.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a configuration or a number of messages beyond its limits, [`Error::Schedule`].
    pub fn new(place: RankInfo, operations: &[Operation], config: Config) -> Result<Self, Error> {
        let check = |what, value: u32, limit: u32| match value {
            0 => Err(Error::OutOfRange { what, value: 0, limit: format!("1 to {limit}") }),
            _ if value > limit => Err(Error::OutOfRange { what, value: value.into(), limit: format!("1 to {limit}") }),
            _ => Ok(()),
        };
        check("the number of writes under way", config.writes, 4096)?;
        check("the longest write in bytes", config.write_bytes, 1 << 30)?;
        let mut accepts = BTreeMap::new();
        for &operation in operations {
            let schedule = Schedule::new(operation, place)?;
            for peer in schedule.targets().iter() {
                accepts.entry(peer).or_insert(0);
            }
            for (peer, messages) in count(schedule.receives().map(|arrival| arrival.from)) {
                check("the number of messages from one rank", messages, MAX_MESSAGES)?;
                let most: &mut u32 = accepts.entry(peer).or_insert(0);
                *most = messages.max(*most);
            }
        }
        Ok(Self { place, config, accepts })
    }

    /// The peers, ascending.
    pub fn peers(&self) -> impl Iterator<Item = u32> {
        self.accepts.keys().copied()
    }

    /// Entries that the completion queue must have at least.
    #[must_use]
    pub fn completions(&self) -> u32 {
        let of_peer = |accepts: &u32| self.config.writes + accepts + 2 * CONTROL_DEPTH + 2 * PROBES;
        self.accepts.values().map(of_peer).fold(1, u32::saturating_add)
    }

    /// Makes queue pairs on a card, and what the other ranks need to know of them, to be exchanged by whatever means
    /// there are. Nobody else may use the completion queue.
    ///
    /// # Errors
    /// [`Error::Flexio`].
    pub fn prepare(&self, pd: &ProtectionDomain, completions: &CompletionQueue) -> Result<(Pending, Vec<u8>), Error> {
        let buffer = HostBuffer::zeroed(Slots::bytes(self.accepts.len()))?;
        let slots = MemoryRegion::register(pd, buffer, Access::LOCAL_WRITE)?;
        let connections = self
            .accepts
            .iter()
            .enumerate()
            .map(|(index, (&peer, &accepts))| {
                Connection::new(pd, completions, Slots { index: index as u32, peer, accepts }, self.config)
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let device = pd.device();
        let entry = |connection: &Connection| {
            let [data_qpns, control_qpns] = connection.numbers().map(|ends| ends.map(U32::new));
            let [peer, accepts] = [connection.peer(), connection.accepts()].map(U32::new);
            Entry { peer, data_qpns, control_qpns, accepts }
        };
        let number = connections.first().map_or(0, |connection| connection.numbers()[0][0]);
        let info = ConnectInfo {
            rank: self.place.rank(),
            ranks: self.place.ranks(),
            gid: device.port().gid,
            mac: device.info().mac,
            nonce: device.nonce(number.into())?,
            entries: connections.iter().map(entry).collect(),
        };
        let encoded = info.encode();
        Ok((
            Pending {
                place: self.place,
                config: self.config,
                pd: pd.clone(),
                completions: completions.clone(),
                connections,
                own: info,
                slots,
                wire: Wire::new(device.port().link_gbit_per_s.into()),
            },
            encoded,
        ))
    }
}

fn count(peers: impl Iterator<Item = u32>) -> BTreeMap<u32, u32> {
    peers.fold(BTreeMap::new(), |mut counts, peer| {
        *counts.entry(peer).or_insert(0) += 1;
        counts
    })
}

/// Queue pairs that are not connected yet.
#[derive(Debug)]
pub struct Pending {
    place: RankInfo,
    config: Config,
    pd: ProtectionDomain,
    completions: CompletionQueue,
    connections: Vec<Connection>,
    own: ConnectInfo,
    slots: MemoryRegion,
    wire: Wire,
}

impl Pending {
    /// Judges silent peers by the lowest rate of all ranks' links, where that is known, instead of the own port's.
    #[must_use]
    pub(crate) fn with_link_rate(self, link_gbit_per_s: u64) -> Self {
        Self { wire: Wire::new(link_gbit_per_s), ..self }
    }

    /// Connects with the peers; `infos` are those of all ranks, in their order. Does not wait for anybody.
    ///
    /// # Errors
    /// [`Error::ConnectInfo`] for one that is missing, damaged, or of a rank that was prepared for other operations;
    /// [`Error::Flexio`].
    pub fn connect(mut self, infos: &[impl AsRef<[u8]>]) -> Result<Group, Error> {
        let (rank, ranks) = (self.place.rank(), self.place.ranks());
        for connection in &mut self.connections {
            let peer = connection.peer();
            let refused = |reason: String| Error::ConnectInfo { rank: peer, reason };
            let bytes = infos
                .get(peer as usize)
                .ok_or_else(|| refused(format!("missing: {} are given for {ranks} ranks", infos.len())))?;
            let info = ConnectInfo::decode(bytes.as_ref(), peer, ranks)?;
            let entry = info.entry(rank).ok_or_else(|| {
                refused(format!(
                    "has no queue pair for rank {rank}: all ranks must be prepared for the same operations"
                ))
            })?;
            let remote = |qpn: U32| RemoteQp { qpn: qpn.get(), gid: info.gid, mac: info.mac, first_psn: 0 };
            let ends = [entry.data_qpns, entry.control_qpns].map(|ends| ends.map(remote));
            let numbers = [entry.data_qpns, entry.control_qpns].map(|ends| ends.map(U32::get));
            let (own, peer) = (self.own.side(connection.numbers()), info.side(numbers));
            let greeting = Greeting { scope: 0, own, peer };
            connection.connect(ends, greeting, entry.accepts.get(), &self.slots)?;
        }
        Ok(Group::new(self.place, (self.config, self.wire), self.pd, self.completions, self.connections, self.slots))
    }
}
