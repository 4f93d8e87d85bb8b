//! Connection information that workers and aggregators exchange before they are connected. An aggregator of another
//! kind gives the same bytes.
//!
//! | Offset | Bytes | Field |
//! |---:|---:|---|
//! | 0 | 4 | `FXSE` |
//! | 4 | 1 | version, 2 |
//! | 5 | 1 | 1 worker, 2 aggregator |
//! | 6 | 1 | order in which blocks are added: 1 arrival, 2 rank; 0 as each operation says |
//! | 7 | 1 | 0 |
//! | 8 | 4 | its number |
//! | 12 | 4 | workers |
//! | 16 | 4 | aggregators |
//! | 20 | 4 | shards of each aggregator |
//! | 24 | 4 | bytes of a block |
//! | 28 | 4 | blocks per message, d |
//! | 32 | 4 | code of the reduction; 0 as each operation says |
//! | 36 | 4 | shards of each aggregator that operations use; 0 as each says |
//! | 40 | 8 | bytes of the array; 0 as each operation says |
//! | 48 | 16 | GID of its port |
//! | 64 | 6 | its Ethernet address |
//! | 70 | 2 | 0 |
//! | 72 | 16 | a nonce |
//! | 88 | 4 each | numbers of its queue pairs, for one peer after another, and of each shard after shard |
//!
//! Numbers are little-endian. The number of a queue pair's first packet follows from the nonces of both sides
//! ([`Greeting::first_packets`], scope 0), so that cards take no packets of somebody who was not meant. Queue pairs
//! answer Reads of nothing, by which peers find out what is lost.

use flexcast_proto::session::greeting::{Greeting, SIDE_NONCE_BYTES, Side};
use flexcast_proto::session::{self, Role, keyed_hash};
use flexcast_proto::sparse::Order;
use flexio::{Device, Gid, Mac, RemoteQp};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, Party, Result, Settings};

const MAGIC: [u8; 4] = *b"FXSE";
const VERSION: u8 = 2;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    version: u8,
    role: u8,
    order: u8,
    reserved: u8,
    number: U32,
    workers: U32,
    aggregators: U32,
    shards_of_each: U32,
    block_bytes: U32,
    blocks_per_message: U32,
    reduction: U32,
    used_shards: U32,
    bytes: U64,
    gid: [u8; 16],
    mac: [u8; 6],
    padding: [u8; 2],
    nonce: [u8; SIDE_NONCE_BYTES],
}

const _: () = assert!(size_of::<Head>() == 88);

impl Head {
    fn new(party: Party, settings: &Settings, (gid, mac): (Gid, Mac), nonce: [u8; SIDE_NONCE_BYTES]) -> Self {
        let parameters = settings.parameters;
        let (role, number) = match party {
            Party::Worker(number) => (1, number),
            Party::Aggregator(number) => (2, number),
        };
        let order = |order| match order {
            Order::Arrival => 1,
            Order::Rank => 2,
        };
        let fixed = settings.fixed;
        Self {
            magic: MAGIC,
            version: VERSION,
            role,
            order: fixed.map_or(0, |call| order(call.order)),
            reserved: 0,
            number: number.into(),
            workers: parameters.workers().into(),
            aggregators: settings.aggregators.into(),
            shards_of_each: settings.shards_of_each.into(),
            block_bytes: parameters.block_bytes().into(),
            blocks_per_message: parameters.blocks_per_message().into(),
            reduction: fixed.map_or(0, |call| call.reduction.code()).into(),
            used_shards: fixed.map_or(0, |call| call.shards_of_each).into(),
            bytes: fixed.map_or(0, |call| call.bytes).into(),
            gid: gid.0,
            mac: mac.0,
            padding: [0; 2],
            nonce,
        }
    }

    /// Somebody with a queue pair, whose connection information this is.
    fn side(&self, party: Party, qpn: u32) -> Side {
        let (role, number) = match party {
            Party::Worker(number) => (Role::Rank, number),
            Party::Aggregator(number) => (Role::Aggregator, number),
        };
        let party = session::Party { role, number: number.into() };
        Side { party, nonce: self.nonce, address: self.gid, queue_pairs: [qpn, 0, 0, 0] }
    }

    /// What all have to have alike, by name.
    fn agreed(&self) -> [(&'static str, u64); 10] {
        [
            ("version", self.version.into()),
            ("order", self.order.into()),
            ("workers", self.workers.get().into()),
            ("aggregators", self.aggregators.get().into()),
            ("shards of each aggregator", self.shards_of_each.get().into()),
            ("bytes of a block", self.block_bytes.get().into()),
            ("blocks per message", self.blocks_per_message.get().into()),
            ("reduction", self.reduction.get().into()),
            ("shards of each aggregator in use", self.used_shards.get().into()),
            ("bytes of the array", self.bytes.get()),
        ]
    }
}

/// How many peers somebody has.
pub(super) const fn peers(party: Party, settings: &Settings) -> u32 {
    match party {
        Party::Worker(_) => settings.aggregators,
        Party::Aggregator(_) => settings.parameters.workers(),
    }
}

/// Bytes of connection information.
pub const fn connect_info_bytes(party: Party, settings: &Settings) -> usize {
    let queue_pairs = peers(party, settings) as usize * settings.shards_of_each as usize;
    size_of::<Head>() + queue_pairs * size_of::<U32>()
}

/// The own connection information.
#[derive(Clone, Debug)]
pub struct Own {
    party: Party,
    settings: Settings,
    head: Head,
    /// For one peer after another, and of each shard after shard.
    qpns: Vec<u32>,
}

/// How the queue pair of a peer is reached, and the number of the first packet that is sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// How it is reached.
    pub queue_pair: RemoteQp,
    /// Packet sequence number that both sides begin with.
    pub first_psn: u32,
}

impl Own {
    /// Of queue pairs on a card, for one peer after another, and of each shard after shard.
    ///
    /// # Errors
    /// No nonce can be drawn.
    pub fn new(
        party: Party,
        settings: Settings,
        device: &Device,
        qpns: impl Iterator<Item = u32>,
    ) -> flexio::Result<Self> {
        let qpns: Vec<u32> = qpns.collect();
        let nonce = device.nonce(qpns.first().copied().unwrap_or(0).into())?;
        let head = Head::new(party, &settings, (device.port().gid, device.info().mac), nonce);
        Ok(Self { party, settings, head, qpns })
    }

    /// What others have to know of it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.head.as_bytes().to_vec();
        self.qpns.iter().for_each(|qpn| bytes.extend_from_slice(&qpn.to_le_bytes()));
        bytes
    }

    /// The queue pairs that `from` has for this side, by shard.
    ///
    /// # Errors
    /// [`Error::ConnectInfo`]: `bytes` is no connection information of `from`, or one of other settings.
    pub fn remotes(&self, bytes: &[u8], from: Party) -> Result<Vec<Remote>> {
        let (Party::Worker(own) | Party::Aggregator(own), Party::Worker(peer) | Party::Aggregator(peer)) =
            (self.party, from);
        let (head, qpns) = decode(bytes, from, &self.settings, own)?;
        let ours = self.qpns.iter().skip(peer as usize * self.settings.shards_of_each as usize);
        let remote = |(qpn, ours): (&U32, &u32)| {
            let (own, peer) = (self.head.side(self.party, *ours), head.side(from, qpn.get()));
            let [first_psn, expected] = Greeting { scope: 0, own, peer }.first_packets(&keyed_hash);
            let queue_pair = RemoteQp { qpn: qpn.get(), gid: Gid(head.gid), mac: Mac(head.mac), first_psn: expected };
            Remote { queue_pair, first_psn }
        };
        Ok(qpns.iter().zip(ours).map(remote).collect())
    }
}

/// The settings of connection information, which are not checked against others.
pub fn settings_of(bytes: &[u8], from: Party) -> Result<Settings> {
    let refused = |reason: &str| Error::ConnectInfo { party: from, reason: reason.to_owned() };
    let (head, _) = Head::ref_from_prefix(bytes).map_err(|_| refused("too short"))?;
    if (head.magic, head.version) != (MAGIC, VERSION) {
        return Err(refused("of another kind, or another version: install one release on all computers"));
    }
    let Head { workers, aggregators, shards_of_each, block_bytes, blocks_per_message, .. } = *head;
    Settings::new(workers.get(), aggregators.get(), shards_of_each.get(), block_bytes.get(), blocks_per_message.get())
}

/// The connection information of `from`, and the queue pairs that it has for peer number `own`, by shard.
fn decode<'b>(bytes: &'b [u8], from: Party, settings: &Settings, own: u32) -> Result<(&'b Head, &'b [U32])> {
    let refused = |reason: String| Error::ConnectInfo { party: from, reason };
    let expected = connect_info_bytes(from, settings);
    let (head, rest) = Head::ref_from_prefix(bytes)
        .map_err(|_| refused(format!("{} bytes, but it has {expected}: give all of it, whole", bytes.len())))?;
    if head.magic != MAGIC {
        return Err(refused(format!(
            "begins with {:02x?}, not {MAGIC:02x?}: it is not that of a sparse AllReduce",
            head.magic
        )));
    }
    let wanted = Head::new(from, settings, (Gid(head.gid), Mac(head.mac)), head.nonce);
    if (head.role, head.number) != (wanted.role, wanted.number) {
        let who = if head.role == 1 { "worker" } else { "aggregator" };
        return Err(refused(format!("is of {who} {}: give it in the order of their numbers", head.number)));
    }
    for ((what, theirs), (_, own)) in head.agreed().into_iter().zip(wanted.agreed()) {
        if theirs != own {
            return Err(refused(format!("{what}: {theirs} there, but {own} here: give all the same settings")));
        }
    }
    let each = settings.shards_of_each as usize;
    let qpns = <[U32]>::ref_from_bytes(rest).ok().filter(|_| bytes.len() == expected);
    let own = qpns.and_then(|qpns| qpns.get(own as usize * each..)?.get(..each));
    let own = own.ok_or_else(|| refused(format!("{} bytes, but it has {expected}", bytes.len())))?;
    Ok((head, own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Call;
    use flexcast_reduce::{DataType, Operator, Reduction};

    fn own(party: Party, settings: &Settings, qpns: &[u32]) -> Own {
        let nonce = [if matches!(party, Party::Worker(_)) { 1 } else { 2 }; SIDE_NONCE_BYTES];
        let head = Head::new(party, settings, (Gid([7; 16]), Mac([9; 6])), nonce);
        Own { party, settings: *settings, head, qpns: qpns.to_vec() }
    }

    fn encoded(party: Party, settings: &Settings, qpns: &[u32]) -> Vec<u8> {
        own(party, settings, qpns).encode()
    }

    #[test]
    fn each_peer_has_its_queue_pairs_and_numbers_that_both_sides_know() {
        let settings = Settings::new(3, 2, 2, 1024, 16).unwrap();
        let party = Party::Aggregator(1);
        let aggregator = own(party, &settings, &[10, 11, 20, 21, 30, 31]);
        let bytes = aggregator.encode();
        assert_eq!(bytes.len(), connect_info_bytes(party, &settings));
        let mut numbers = std::collections::BTreeSet::new();
        for number in 0..3 {
            let worker = own(Party::Worker(number), &settings, &[1, 2, 3, 4]);
            let there = worker.remotes(&bytes, party).unwrap();
            let here = aggregator.remotes(&worker.encode(), Party::Worker(number)).unwrap();
            let qpns = |remotes: &[Remote]| remotes.iter().map(|remote| remote.queue_pair.qpn).collect::<Vec<_>>();
            assert_eq!(qpns(&there), [10 * (number + 1), 10 * (number + 1) + 1]);
            assert_eq!(qpns(&here), [3, 4]);
            for (there, here) in there.iter().zip(&here) {
                assert_eq!((there.queue_pair.gid, there.queue_pair.mac), (Gid([7; 16]), Mac([9; 6])));
                assert_eq!(there.first_psn, here.queue_pair.first_psn);
                assert_eq!(here.first_psn, there.queue_pair.first_psn);
                numbers.extend([there.first_psn, here.first_psn]);
            }
        }
        assert_eq!(numbers.len(), 3 * 2 * 2, "each queue pair has its own");
        // Of another start.
        let worker = own(Party::Worker(0), &settings, &[1, 2, 3, 4]);
        let mut other = aggregator;
        other.head.nonce = [3; SIDE_NONCE_BYTES];
        let numbers = |bytes: &[u8]| worker.remotes(bytes, party).unwrap()[0].first_psn;
        assert_ne!(numbers(&bytes), numbers(&other.encode()));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let settings = Settings::new(3, 2, 1, 1024, 16).unwrap();
        let from = Party::Worker(2);
        let bytes = encoded(from, &settings, &[1, 2]);
        let text = |bytes: &[u8], settings: &Settings| decode(bytes, from, settings, 0).unwrap_err().to_string();
        assert!(text(&bytes[..10], &settings).contains("10 bytes, but it has 96"));
        assert!(text(&bytes[..92], &settings).contains("92 bytes, but it has 96"));
        assert!(text(&[0; 96], &settings).contains("not that of a sparse AllReduce"));
        assert!(text(&encoded(Party::Worker(1), &settings, &[1, 2]), &settings).contains("is of worker 1"));
        assert!(text(&encoded(Party::Aggregator(2), &settings, &[1, 2, 3]), &settings).contains("is of aggregator 2"));
        let other = Settings::new(3, 2, 1, 2048, 16).unwrap();
        let message = text(&bytes, &other);
        assert!(
            message.contains("worker 2") && message.contains("bytes of a block: 1024 there, but 2048 here"),
            "{message}"
        );
        let sum = Reduction::new(Operator::Sum, DataType::I32).unwrap();
        let call = Call { bytes: 4096, shards_of_each: 1, reduction: sum, order: Order::Arrival };
        let message = text(&bytes, &settings.with_call(call).unwrap());
        assert!(message.contains("order: 0 there, but 1 here"), "{message}");
        let shorter = settings.with_call(Call { bytes: 2048, ..call }).unwrap();
        let message = text(&encoded(from, &settings.with_call(call).unwrap(), &[1, 2]), &shorter);
        assert!(message.contains("bytes of the array: 4096 there, but 2048 here"), "{message}");
    }
}
