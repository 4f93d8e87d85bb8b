//! Connection information that ranks exchange before they are connected.

use std::net::Ipv4Addr;

use flexcast_abi::{ABI_HASH, Fnv};
use flexcast_proto::session::greeting::{Greeting, SIDE_NONCE_BYTES};
use flexcast_proto::session::keyed_hash;
use flexio::{Device, Gid, Mac, MulticastGroup, RemoteQp};

use crate::carrier::endpoint::DatapathKind;
use crate::error::{Error, Result, shown};
use crate::op::aggregation::Aggregation;
use crate::op::config::Config;
use flexcast_rc::greeting::side;

const MAGIC: u64 = u64::from_le_bytes(*b"flexcast");
/// Version of these bytes and of the control messages; raised with every change of either.
pub(crate) const VERSION: u32 = 13;

/// One rank, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectInfo {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) gid: Gid,
    pub(crate) mac: Mac,
    /// What it would call the communicator; rank 0's proposal is taken.
    pub(crate) communicator: u64,
    /// Nonce of its queue pairs: with that of a peer the key of the greetings between the two.
    pub(crate) nonce: [u8; SIDE_NONCE_BYTES],
    /// Its parameters, as far as they matter to others.
    pub(crate) capabilities: Capabilities,
    /// Its card's queue pairs for control messages, where the card runs the protocol: to which rank, and number.
    pub(crate) queue_pairs: Vec<(u32, u32)>,
    /// Its host's connections: reads, and control messages where the host runs the protocol.
    pub(crate) ends: Vec<Ends>,
    /// Its streams from and to single ranks (UC unicast).
    pub(crate) streams: Vec<StreamEnds>,
    /// Its connections to the tables of targets of others, likewise, and address and key of its own (UC unicast).
    pub(crate) target_queue_pairs: Vec<(u32, u32)>,
    pub(crate) target_table: (u64, u32),
    /// What its card reports.
    pub(crate) speed: Speed,
    /// Its connections for data that does not go by multicast, as `p2p` encodes them; empty if it has none.
    pub(crate) direct: Vec<u8>,
    /// Address and key of the memory that peers write eager data to; zeros where it rides on the messages.
    pub(crate) rows: (u64, u32),
    /// What its host receives itself; zeros where its DPA receives.
    pub(crate) receiver: Receiver,
}

/// A host that receives datagrams itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receiver {
    /// The queue pair that takes acknowledgements.
    pub(crate) qpn: u32,
    /// Datagrams that wait for it without loss.
    pub(crate) slots: u32,
}

/// Mixes the number of a communicator. Groups of different communicators may coincide; their queue keys do not, and the
/// card checks them.
const fn mixed(communicator: u64) -> u64 {
    communicator.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Queue key of a communicator's datagrams.
pub(crate) const fn q_key(communicator: u64) -> u32 {
    (mixed(communicator) >> 33) as u32
}

/// The multicast group of a subgroup.
pub(crate) fn group(communicator: u64, subgroup: u32) -> Result<MulticastGroup> {
    let [a, b, c, _] = ((mixed(communicator) >> 32) as u32 ^ communicator as u32).to_be_bytes();
    Ok(MulticastGroup::ipv4(Ipv4Addr::new(239, a ^ c, b, subgroup as u8))?)
}

/// What a rank would call a communicator: `serial` differs among those of its card.
pub(crate) fn proposal(serial: u32, rank: u32, device: &Device) -> u64 {
    let (Mac(mac), Gid(gid)) = (device.info().mac, device.port().gid);
    // Where the kernel reports no Ethernet address.
    let [high, low] = if mac == [0; 6] { [gid[14], gid[15]] } else { [mac[4], mac[5]] };
    u64::from(serial) << 32 | u64::from(rank) << 16 | u64::from(high) << 8 | u64::from(low)
}

/// How fast a rank is. Need not be alike: every rank computes with the lowest of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speed {
    pub(crate) link_gbit_per_s: u64,
    pub(crate) receive_threads: u32,
}

impl Speed {
    /// The lowest of all ranks' figures, at least 1.
    pub(crate) fn lowest(all: &[ConnectInfo]) -> Self {
        let link = all.iter().map(|info| info.speed.link_gbit_per_s).min();
        let threads = all.iter().map(|info| info.speed.receive_threads).min();
        Self { link_gbit_per_s: link.unwrap_or(1).max(1), receive_threads: threads.unwrap_or(1).max(1) }
    }
}

/// The queue pairs of a rank for what one rank and it send one another in one subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamEnds {
    pub(crate) peer: u32,
    pub(crate) subgroup: u32,
    pub(crate) receiver: u32,
    pub(crate) sender: u32,
}

/// The queue pairs of a rank's host for one peer: each takes requests in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) peer: u32,
    /// Sends this rank's requests.
    pub(crate) asking: u32,
    /// Answers the peer's.
    pub(crate) answering: u32,
}

/// What the connection between two ranks is for, as seen from the rank that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Control messages between cards.
    Control,
    /// Requests to the peer's host.
    Requests,
    /// Answers to requests of the peer's host.
    Answers,
    /// Tables of targets.
    Targets,
}

/// Parameters that must be alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    fields: [u64; CAPABILITIES.len()],
}

const CAPABILITIES: [&str; 17] = [
    "datapath",
    "chunk_bytes",
    "subgroups",
    "psn_bits",
    "max_receive_bytes",
    "chains",
    "path MTU",
    "the chain mapping with digest",
    "transport",
    "control",
    "eager_bytes",
    "algorithm",
    "sparse.aggregation",
    "cache_bytes for sparse.aggregation",
    "number of aggregators",
    "reproducible",
    FIXED_POINT,
];
/// Shown by its bits; none is 0.
const FIXED_POINT: &str = "sparse.fixed_point";

impl Capabilities {
    pub(crate) fn new(datapath: DatapathKind, config: &Config, psn_bits: u32, mtu_bytes: u32) -> Self {
        let Config {
            chunk_bytes,
            subgroups,
            max_receive_bytes,
            chains,
            transport,
            control,
            eager_bytes,
            algorithm,
            reproducible,
            sparse_aggregation,
            sparse_fixed_point,
            cache_bytes,
            ..
        } = *config;
        // Which operations are the DPA's follows from it.
        let spots_bytes = if sparse_aggregation == Aggregation::Dpa { cache_bytes } else { 0 };
        Self {
            fields: [
                datapath as u64,
                chunk_bytes.into(),
                subgroups.into(),
                psn_bits.into(),
                max_receive_bytes,
                chains.into(),
                mtu_bytes.into(),
                config.chain_mapping.digest(),
                transport as u64,
                control as u64,
                eager_bytes.into(),
                algorithm as u64,
                sparse_aggregation as u64,
                spots_bytes,
                config.aggregators.len() as u64,
                reproducible.into(),
                sparse_fixed_point.map_or(0, f32::to_bits).into(),
            ],
        }
    }

    fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let mut fields = CAPABILITIES.iter().zip(self.fields.iter().zip(other.fields));
        let (name, (own, theirs)) = fields.find(|(_, (own, theirs))| *own != theirs)?;
        let text = |value: u64| {
            if *name == FIXED_POINT { f32::from_bits(value as u32).to_string() } else { shown(name, value) }
        };
        Some((name, text(*own), text(theirs)))
    }
}

/// What a peer's ABI hash must be: contexts stay on the own card, but a peer of another build may mean other things by
/// the same bytes.
fn build() -> u64 {
    Fnv::new().u64(ABI_HASH).u64(VERSION.into()).finish()
}

impl ConnectInfo {
    /// How a queue pair of this rank is reached.
    pub(crate) fn remote(&self, qpn: u32) -> RemoteQp {
        RemoteQp { qpn, gid: self.gid, mac: self.mac, first_psn: 0 }
    }

    /// How its queue pair for rank `peer` is reached.
    ///
    /// # Errors
    /// [`Error::Peer`]: it has not sent any.
    pub(crate) fn connection(&self, purpose: Purpose, peer: u32) -> Result<RemoteQp> {
        let of_pairs = |pairs: &[(u32, u32)]| pairs.iter().find(|(rank, _)| *rank == peer).map(|(_, qpn)| *qpn);
        let ends = || self.ends.iter().find(|ends| ends.peer == peer);
        let (qpn, what) = match purpose {
            Purpose::Control => (of_pairs(&self.queue_pairs), "connection of its card"),
            Purpose::Requests => (ends().map(|ends| ends.answering), "connection"),
            Purpose::Answers => (ends().map(|ends| ends.asking), "connection"),
            Purpose::Targets => (of_pairs(&self.target_queue_pairs), "table of targets"),
        };
        match qpn {
            Some(qpn) => Ok(self.remote(qpn)),
            None => Err(Error::Peer {
                rank: self.rank,
                reason: format!("has no {what} for rank {peer}: give all ranks one configuration"),
            }),
        }
    }

    /// Numbers that messages from `own` to `peer` carry, and those the other way, on the hosts' connections between two
    /// ranks that have this connection information.
    ///
    /// # Errors
    /// [`Error::Peer`]: one of them has no connections for the other.
    pub(crate) fn message_numbers(communicator: u64, own: &Self, peer: &Self) -> Result<[u64; 2]> {
        let of = |one: &Self, other: &Self| -> Result<_> {
            let asking = one.connection(Purpose::Answers, other.rank)?.qpn;
            let answering = one.connection(Purpose::Requests, other.rank)?.qpn;
            Ok(side(one.rank, one.nonce, one.gid, [asking, answering, 0, 0]))
        };
        let greeting = Greeting { scope: communicator, own: of(own, peer)?, peer: of(peer, own)? };
        Ok(greeting.message_numbers(&keyed_hash))
    }

    /// How the queue pair of `peer` is reached over which no greeting goes, and the number of the first packet of the
    /// own one, `qpn`. Both numbers follow from both ranks' nonces, so that cards take no packets of a queue pair that
    /// was not meant.
    ///
    /// # Errors
    /// [`Error::Peer`]: it has not sent any.
    pub(crate) fn silent(
        communicator: u64,
        (own, qpn): (&Self, u32),
        peer: &Self,
        purpose: Purpose,
    ) -> Result<(RemoteQp, u32)> {
        let remote = peer.connection(purpose, own.rank)?;
        let of = |one: &Self, qpn| side(one.rank, one.nonce, one.gid, [qpn, 0, 0, 0]);
        let greeting = Greeting { scope: communicator, own: of(own, qpn), peer: of(peer, remote.qpn) };
        let [first, expected] = greeting.first_packets(&keyed_hash);
        Ok((RemoteQp { first_psn: expected, ..remote }, first))
    }

    /// The ends of what rank `peer` and this one send one another in a subgroup.
    ///
    /// # Errors
    /// [`Error::Peer`]: it has not sent any.
    pub(crate) fn stream(&self, peer: u32, subgroup: u32) -> Result<StreamEnds> {
        let ends = self.streams.iter().find(|ends| (ends.peer, ends.subgroup) == (peer, subgroup));
        ends.copied().ok_or_else(|| Error::Peer {
            rank: self.rank,
            reason: format!(
                "has no queue pairs for rank {peer} in subgroup {subgroup}: give all ranks one configuration"
            ),
        })
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let pairs = self.queue_pairs.len() + self.target_queue_pairs.len() + 2 * (self.ends.len() + self.streams.len());
        let mut bytes = Vec::with_capacity(208 + 8 * pairs + self.direct.len());
        let mut put = |part: &[u8]| bytes.extend_from_slice(part);
        put(&MAGIC.to_le_bytes());
        put(&VERSION.to_le_bytes());
        put(&build().to_le_bytes());
        put(&self.rank.to_le_bytes());
        put(&self.ranks.to_le_bytes());
        put(&self.gid.0);
        put(&self.mac.0);
        put(&self.communicator.to_le_bytes());
        put(&self.nonce);
        self.capabilities.fields.iter().for_each(|field| put(&field.to_le_bytes()));
        for list in [&self.queue_pairs, &self.target_queue_pairs] {
            put(&(list.len() as u32).to_le_bytes());
            for (rank, number) in list {
                put(&rank.to_le_bytes());
                put(&number.to_le_bytes());
            }
        }
        for (address, key) in [self.target_table, self.rows] {
            put(&address.to_le_bytes());
            put(&key.to_le_bytes());
        }
        put(&(self.streams.len() as u32).to_le_bytes());
        for StreamEnds { peer, subgroup, receiver, sender } in &self.streams {
            [peer, subgroup, receiver, sender].into_iter().for_each(|word| put(&word.to_le_bytes()));
        }
        put(&(self.ends.len() as u32).to_le_bytes());
        for Ends { peer, asking, answering } in &self.ends {
            [peer, asking, answering].into_iter().for_each(|word| put(&word.to_le_bytes()));
        }
        put(&self.speed.link_gbit_per_s.to_le_bytes());
        put(&self.speed.receive_threads.to_le_bytes());
        put(&self.receiver.qpn.to_le_bytes());
        put(&self.receiver.slots.to_le_bytes());
        put(&(self.direct.len() as u32).to_le_bytes());
        put(&self.direct);
        bytes
    }

    /// Reads the connection information of rank `from`.
    ///
    /// # Errors
    /// [`Error::Peer`]: not connection information, cut short, or of another version.
    fn from_bytes(from: u32, bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        let short = || Error::Peer {
            rank: from,
            reason: format!(
                "sent {} bytes, which are no connection information of the datapaths dpa and verbs: give all ranks one \
                 datapath (FLEXCAST_DATAPATH) and one build of this library",
                bytes.len()
            ),
        };
        let mut take = |len: usize| -> Result<&[u8]> {
            let (part, behind) = rest.split_at_checked(len).ok_or_else(short)?;
            rest = behind;
            Ok(part)
        };
        let word = |part: &[u8]| part.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        if word(take(8)?) != MAGIC {
            return Err(short());
        }
        let version = word(take(4)?);
        if version != u64::from(VERSION) {
            let reason = format!(
                "speaks version {version} of the protocol, this rank version {VERSION}: run one build on all ranks"
            );
            return Err(Error::Peer { rank: from, reason });
        }
        let theirs = word(take(8)?);
        if theirs != build() {
            let reason = format!(
                "was built with another ABI ({theirs:#x}, this rank {:#x}): run one build on all ranks",
                build()
            );
            return Err(Error::Peer { rank: from, reason });
        }
        let (rank, ranks) = (word(take(4)?) as u32, word(take(4)?) as u32);
        let mut gid = Gid([0; 16]);
        gid.0.copy_from_slice(take(16)?);
        let mut mac = Mac([0; 6]);
        mac.0.copy_from_slice(take(6)?);
        let communicator = word(take(8)?);
        let mut nonce = [0; SIDE_NONCE_BYTES];
        nonce.copy_from_slice(take(SIDE_NONCE_BYTES)?);
        let mut fields = [0; CAPABILITIES.len()];
        for field in &mut fields {
            *field = word(take(8)?);
        }
        let [mut queue_pairs, mut target_queue_pairs] = [const { Vec::new() }; 2];
        let (mut streams, mut ends) = (Vec::new(), Vec::new());
        for list in [&mut queue_pairs, &mut target_queue_pairs] {
            for _ in 0..word(take(4)?) {
                list.push((word(take(4)?) as u32, word(take(4)?) as u32));
            }
        }
        let target_table = (word(take(8)?), word(take(4)?) as u32);
        let rows = (word(take(8)?), word(take(4)?) as u32);
        for _ in 0..word(take(4)?) {
            let mut next = || take(4).map(|part| word(part) as u32);
            streams.push(StreamEnds { peer: next()?, subgroup: next()?, receiver: next()?, sender: next()? });
        }
        for _ in 0..word(take(4)?) {
            let mut next = || take(4).map(|part| word(part) as u32);
            ends.push(Ends { peer: next()?, asking: next()?, answering: next()? });
        }
        let speed = Speed { link_gbit_per_s: word(take(8)?), receive_threads: word(take(4)?) as u32 };
        let receiver = Receiver { qpn: word(take(4)?) as u32, slots: word(take(4)?) as u32 };
        let direct_bytes = word(take(4)?) as usize;
        let direct = take(direct_bytes)?.to_vec();
        let capabilities = Capabilities { fields };
        Ok(Self {
            rank,
            ranks,
            gid,
            mac,
            communicator,
            nonce,
            capabilities,
            queue_pairs,
            ends,
            streams,
            target_queue_pairs,
            target_table,
            speed,
            direct,
            rows,
            receiver,
        })
    }

    /// The connection information of all ranks, in their order, checked against the own.
    ///
    /// # Errors
    /// [`Error::Peer`] for the first that does not fit.
    pub(crate) fn all(own: &Self, infos: &[Vec<u8>]) -> Result<Vec<Self>> {
        if infos.len() != own.ranks as usize {
            let reason = format!(
                "got {} blocks of connection information for {} ranks: the exchange must return one per rank",
                infos.len(),
                own.ranks
            );
            return Err(Error::Peer { rank: own.rank, reason });
        }
        let mut all = Vec::with_capacity(infos.len());
        for (from, bytes) in (0..own.ranks).zip(infos) {
            let info = Self::from_bytes(from, bytes)?;
            let peer = |reason| Err(Error::Peer { rank: from, reason });
            if info.rank != from {
                return peer(format!("says that it is rank {}: two ranks were started with one number", info.rank));
            }
            if info.ranks != own.ranks {
                return peer(format!("counts {} ranks, this rank {}", info.ranks, own.ranks));
            }
            if let Some((name, ours, theirs)) = own.capabilities.difference(&info.capabilities) {
                return peer(format!("has {name} {theirs}, this rank {ours}: give all ranks one configuration"));
            }
            all.push(info);
        }
        if own.rank as usize >= all.len() || all[own.rank as usize] != *own {
            let reason = "does not find its own connection information in what the exchange returned".to_owned();
            return Err(Error::Peer { rank: own.rank, reason });
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::chain_mapping::ChainMapping;

    fn connect_info(rank: u32) -> ConnectInfo {
        ConnectInfo {
            rank,
            ranks: 3,
            gid: Gid([rank as u8; 16]),
            mac: Mac([rank as u8; 6]),
            communicator: 7,
            nonce: [rank as u8; SIDE_NONCE_BYTES],
            capabilities: Capabilities::new(DatapathKind::Dpa, &Config::default(), 14, 4096),
            queue_pairs: vec![(1, 0x100), (2, 0x101)],
            ends: vec![Ends { peer: 1, asking: 0x106, answering: 0x107 }],
            streams: vec![StreamEnds { peer: 1, subgroup: 0, receiver: 0x104, sender: 0x105 }],
            target_queue_pairs: vec![(1, 0x102), (2, 0x103)],
            target_table: (0x1000, 0x77),
            speed: Speed { link_gbit_per_s: 200 + u64::from(rank), receive_threads: 4 - rank },
            direct: vec![7; rank as usize],
            rows: (0x2000, 0x78),
            receiver: Receiver { qpn: 0x108 + rank, slots: 64 },
        }
    }

    fn all_infos() -> Vec<Vec<u8>> {
        (0..3).map(|rank| connect_info(rank).to_bytes()).collect()
    }

    fn refusal(infos: &[Vec<u8>]) -> String {
        ConnectInfo::all(&connect_info(0), infos).unwrap_err().to_string()
    }

    #[test]
    fn connection_information_survives_the_exchange() {
        let all = ConnectInfo::all(&connect_info(0), &all_infos()).unwrap();
        assert_eq!(all, (0..3).map(connect_info).collect::<Vec<_>>());
    }

    #[test]
    fn the_slowest_rank_counts_whatever_the_others_report() {
        let mut all: Vec<_> = (0..3).map(connect_info).collect();
        assert_eq!(Speed::lowest(&all), Speed { link_gbit_per_s: 200, receive_threads: 2 });
        all[1].speed = Speed { link_gbit_per_s: u64::MAX, receive_threads: u32::MAX };
        assert_eq!(Speed::lowest(&all), Speed { link_gbit_per_s: 200, receive_threads: 2 });
        all[1].speed = Speed { link_gbit_per_s: 0, receive_threads: 0 };
        assert_eq!(Speed::lowest(&all), Speed { link_gbit_per_s: 1, receive_threads: 1 });
    }

    #[test]
    fn connections_are_found_by_purpose_and_rank() {
        let info = connect_info(0);
        let number = |purpose, peer| info.connection(purpose, peer).map(|remote| remote.qpn);
        assert_eq!(number(Purpose::Control, 2).unwrap(), 0x101);
        assert_eq!(number(Purpose::Requests, 1).unwrap(), 0x107);
        assert_eq!(number(Purpose::Answers, 1).unwrap(), 0x106);
        assert_eq!(number(Purpose::Targets, 2).unwrap(), 0x103);
        let text = number(Purpose::Requests, 2).unwrap_err().to_string();
        assert!(text.contains("rank 0 has no connection for rank 2"), "{text}");
    }

    #[test]
    fn whatever_is_cut_short_is_refused() {
        let whole = connect_info(1).to_bytes();
        for len in 0..whole.len() {
            let mut infos = all_infos();
            infos[1].truncate(len);
            assert!(refusal(&infos).starts_with("rank 1 "), "{len}");
        }
    }

    #[test]
    fn peers_that_do_not_fit_are_named() {
        let with = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
            let mut infos = all_infos();
            change(&mut infos);
            refusal(&infos)
        };
        let text = with(&|infos| infos[1] = connect_info(2).to_bytes());
        assert!(text.contains("rank 1 says that it is rank 2"), "{text}");
        let text = with(&|infos| infos[2][8] = 8);
        assert!(text.contains("rank 2 speaks version 8"), "{text}");
        let text = with(&|infos| infos[2][12] ^= 1);
        assert!(text.contains("rank 2 was built with another ABI"), "{text}");
        let other = ConnectInfo {
            capabilities: Capabilities::new(
                DatapathKind::Dpa,
                &Config { chunk_bytes: 1024, ..Config::default() },
                14,
                4096,
            ),
            ..connect_info(1)
        };
        let text = with(&|infos| infos[1] = other.to_bytes());
        assert!(text.contains("rank 1 has chunk_bytes 1024, this rank 4096"), "{text}");
        let mapped = Config { chain_mapping: ChainMapping::PerRack(vec![0, 1, 1]), ..Config::default() };
        let other =
            ConnectInfo { capabilities: Capabilities::new(DatapathKind::Dpa, &mapped, 14, 4096), ..connect_info(1) };
        let text = with(&|infos| infos[1] = other.to_bytes());
        assert!(text.contains("rank 1 has the chain mapping with digest") && text.contains("this rank 0"), "{text}");
        let text = with(&|infos| infos.truncate(2));
        assert!(text.contains("2 blocks of connection information for 3 ranks"), "{text}");
        let text = with(&|infos| infos[1] = ConnectInfo { ranks: 4, ..connect_info(1) }.to_bytes());
        assert!(text.contains("counts 4 ranks"), "{text}");
        let text = with(&|infos| infos[0] = ConnectInfo { communicator: 8, ..connect_info(0) }.to_bytes());
        assert!(text.contains("its own connection information"), "{text}");
    }
}
