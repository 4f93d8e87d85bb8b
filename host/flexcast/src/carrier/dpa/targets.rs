//! Target addresses of an operation's Writes, when each rank's buffer has an address and a key of its own (UC unicast).
//!
//! Each rank has a table with a line for every rank. Before it enters the barrier of an operation it writes its line
//! into the tables of all others, over reliable connections; a root sends once the lines of all are there.

use flexcast_proto::RankInfo;
use flexio::{
    Access, CompletionQueue, Connection, HostBuffer, InlineRequest, MemoryRegion, QueueDepths, QueuePair, Retry,
    SendKind, Transport,
};

use crate::carrier::connect_info::{ConnectInfo, Purpose};
use crate::carrier::dpa::card::DpaCard;
use crate::error::Result;
use crate::op::config::Config;

/// Bytes from line to line; of a line the first 32 are used: operation, address, key, and the operation again.
const LINE_BYTES: u64 = 64;
const USED_BYTES: usize = 32;
/// Lines under way to each rank: that of an operation is written after that of the one before has arrived or the rank
/// is broken.
const SENDS: u32 = 2;

/// What a rank has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Nothing yet.
    Unknown,
    /// Where the bytes go.
    Known {
        /// Address of the first byte of its buffer.
        address: u64,
        /// Key, for this operation alone.
        rkey: u32,
    },
    /// It is done with the operation and wants nothing.
    Over,
}

#[derive(Debug)]
struct Peer {
    rank: u32,
    qp: QueuePair,
    under_way: u32,
    /// Its table.
    address: u64,
    rkey: u32,
}

/// One rank's table, and its way to those of others.
#[derive(Debug)]
pub(crate) struct Targets {
    own: u32,
    peers: Vec<Peer>,
    table: MemoryRegion,
    cq: CompletionQueue,
    /// The first rank whose connection is broken, with the completion's status, until it is returned.
    broken: Option<(u32, u32)>,
}

impl Targets {
    pub(crate) fn new(card: &DpaCard, place: RankInfo) -> Result<Self> {
        let table = HostBuffer::zeroed(place.ranks() as usize * LINE_BYTES as usize)?;
        let table = MemoryRegion::register(card.pd(), table, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let ranks = (0..place.ranks()).filter(|rank| *rank != place.rank());
        let cq = CompletionQueue::new(card.device(), place.ranks() * SENDS)?;
        let depths = QueueDepths { send: SENDS, receive: 1 };
        let mut peers = Vec::with_capacity(place.ranks() as usize - 1);
        for rank in ranks {
            let qp = QueuePair::builder(card.pd(), Transport::Rc, depths).inline(USED_BYTES as u32).build(&cq, &cq)?;
            qp.init(Access::REMOTE_WRITE, 0)?;
            peers.push(Peer { rank, qp, under_way: 0, address: 0, rkey: 0 });
        }
        Ok(Self { own: place.rank(), peers, table, cq, broken: None })
    }

    /// Rank and queue pair number of every connection.
    pub(crate) fn queue_pairs(&self) -> Vec<(u32, u32)> {
        self.peers.iter().map(|peer| (peer.rank, peer.qp.qpn())).collect()
    }

    /// Address and key of the table.
    pub(crate) fn table(&self) -> (u64, u32) {
        (self.table.addr().get(), self.table.rkey())
    }

    pub(crate) fn connect(&mut self, all: &[ConnectInfo], config: &Config) -> Result<()> {
        let retry = Retry { timeout_exponent: config.retry_exponent, count: 7 };
        let path = flexio::Path::of_class(config.control_class);
        for peer in &mut self.peers {
            let info = &all[peer.rank as usize];
            let own = (&all[self.own as usize], peer.qp.qpn());
            let (remote, first_psn) = ConnectInfo::silent(all[0].communicator, own, info, Purpose::Targets)?;
            (peer.address, peer.rkey) = info.target_table;
            peer.qp.connect(&Connection::to(remote).first_psn(first_psn).path(path).retry(retry))?;
        }
        Ok(())
    }

    /// Whether the next line may be written: those before have arrived, or never will.
    pub(crate) fn is_free(&mut self) -> Result<bool> {
        self.take_completions()?;
        Ok(self.peers.iter().all(|peer| peer.under_way == 0))
    }

    /// A rank whose table cannot be reached any more, with the status of the work completion; returned once.
    pub(crate) fn take_broken(&mut self) -> Result<Option<(u32, u32)>> {
        self.take_completions()?;
        Ok(self.broken.take())
    }

    fn take_completions(&mut self) -> Result<()> {
        let Self { peers, cq, broken, .. } = self;
        cq.poll_each(|completion| {
            let Some(peer) = peers.get_mut(completion.id as usize) else { return };
            peer.under_way = peer.under_way.saturating_sub(1);
            if completion.status != 0 {
                broken.get_or_insert((peer.rank, completion.status));
            }
        })?;
        Ok(())
    }

    /// Writes to all ranks where this one wants the bytes of an operation. Only when [`Targets::is_free`].
    pub(crate) fn publish(&mut self, operation: u32, address: u64, rkey: u32) -> Result<()> {
        let mut line = [0; USED_BYTES];
        let words = [u64::from(operation), address, u64::from(rkey), u64::from(operation)];
        for (place, word) in line.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let at = u64::from(self.own) * LINE_BYTES;
        for (id, peer) in (0..).zip(&mut self.peers) {
            let kind = SendKind::Write { remote_addr: peer.address + at, rkey: peer.rkey };
            peer.qp.post_inline([InlineRequest { id, kind, bytes: &line, immediate: None, signaled: true }])?;
            peer.under_way += 1;
        }
        // A lone rank is its own peer and never sends.
        Ok(self.table.write(at as usize, &line)?)
    }

    /// What a rank has written of an operation.
    pub(crate) fn of(&self, rank: u32, operation: u32) -> Result<Target> {
        let at = rank as usize * LINE_BYTES as usize;
        // The last word first: lines are written from the front.
        let last = self.table.read_u64(at + 24)?;
        let first = self.table.read_u64(at)?;
        if first != last || first < u64::from(operation) {
            return Ok(Target::Unknown);
        }
        if first > u64::from(operation) {
            return Ok(Target::Over);
        }
        Ok(Target::Known { address: self.table.read_u64(at + 8)?, rkey: self.table.read_u64(at + 16)? as u32 })
    }

    /// Whether all ranks have written something of an operation.
    pub(crate) fn are_known(&self, operation: u32) -> Result<bool> {
        for peer in &self.peers {
            if self.of(peer.rank, operation)? == Target::Unknown {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
