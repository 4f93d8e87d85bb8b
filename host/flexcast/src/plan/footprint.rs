//! Footprint of a communicator on its card.

use flexcast_proto::RankInfo;

use crate::error::{Error, Result};
use crate::op::chain_mapping::ChainMapping;
use crate::op::config::{Config, Control};
use crate::op::stream::Transport;
use crate::plan::peers::peers;
use crate::plan::tuner;

/// Context of a communicator in DPA memory, as published; ours is smaller.
const CONTEXT_BYTES: u64 = 16 << 10;
/// What a communicator takes of its card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// DPA threads.
    pub threads: u32,
    /// UD or UC queue pairs that receive, each with a receive context: one per subgroup whatever the number of roots;
    /// UC unicast: one per subgroup and other rank.
    pub receive_queue_pairs: u32,
    /// UD or UC queue pairs that send; as many.
    pub send_queue_pairs: u32,
    /// Reliable queue pairs over the own card: copies (UD), and the wake-up of threads.
    pub loopback_queue_pairs: u32,
    /// Reliable queue pairs to other ranks: two neighbours on the ring and the peers of the barrier, each once. In a
    /// communicator with a [`ChainMapping`](crate::ChainMapping) also two neighbours in the chain; UC unicast: one more
    /// to each rank, for addresses.
    pub control_queue_pairs: u32,
    /// Reliable queue pairs to other ranks for data that does not go by multicast ([`Config::algorithm`]): four for
    /// each peer.
    pub direct_queue_pairs: u32,
    /// Reliable queue pairs that its first Reduce, AllReduce, Reduce-Scatter, Alltoall, Gather or Scatter makes in
    /// addition to these: four for each other rank. They take over what those of `direct_queue_pairs` do, which are
    /// given back then. None before, and none with the protocol on the card, where these collectives are refused.
    pub pair_queue_pairs: u32,
    /// Staging slots in DPA memory, in bytes; in host memory where the host receives
    /// ([`Endpoint::verbs`](crate::Endpoint::verbs)).
    pub staging_bytes: u64,
    /// Bitmaps, in bytes.
    pub bitmap_bytes: u64,
    /// Contexts, in bytes.
    pub context_bytes: u64,
    /// Rings of all queues in DPA memory, in bytes.
    pub ring_bytes: u64,
}

impl Footprint {
    /// What workers touch all the time and the last-level cache should hold.
    #[must_use]
    pub const fn hot_bytes(&self) -> u64 {
        self.bitmap_bytes + self.context_bytes + self.ring_bytes
    }
}

impl Config {
    /// What a communicator of `ranks` ranks takes of its card, whose path has this MTU.
    ///
    /// # Errors
    /// [`Error::Config`] for parameters outside their range, [`Error::Rank`] for no ranks or too many.
    pub fn footprint(&self, ranks: u32, mtu_bytes: u32) -> Result<Footprint> {
        let derived = self.derive(ranks, mtu_bytes)?;
        let contexts = u64::from(derived.streams);
        let slots = u64::from(self.slots);
        let copies = if self.transport.is_zero_copy() { 0 } else { derived.streams };
        // Receive CQ, copy CQ and copy ring (UD) have entries of 64 bytes, the receive ring of 16; a send takes one
        // block of 64, on UD two.
        let receive = slots * (contexts * (64 + 16) + u64::from(copies) * (64 + 64));
        let sends = u64::from(self.send_depth);
        let blocks = if self.transport.is_zero_copy() { 1 } else { 2 };
        let send = contexts * sends * (blocks * 64) + contexts * sends / u64::from(self.send_batch) * 64;
        // As many for every rank: all stand in the same place of a circle.
        let peers = peers(RankInfo::new(0, ranks)?, &ChainMapping::Contiguous);
        let targets = if self.transport == Transport::UcUnicast { ranks.saturating_sub(1) } else { 0 };
        let progress = u32::from(self.control == Control::Device);
        // The card's connections have one each, plus one for reads to each ring neighbour, and the host's one for
        // each direction.
        let control = if progress == 0 { 2 * peers.len() } else { peers.len() + if ranks > 1 { 2 } else { 0 } } as u32;
        Ok(Footprint {
            threads: self.receive_threads + self.send_threads + progress,
            receive_queue_pairs: derived.streams,
            send_queue_pairs: derived.streams,
            loopback_queue_pairs: copies + self.receive_threads + self.send_threads + progress,
            control_queue_pairs: control + targets,
            direct_queue_pairs: 4 * tuner::peers(self.selection(), RankInfo::new(0, ranks)?),
            pair_queue_pairs: if progress == 0 { 4 * (ranks - 1) } else { 0 },
            staging_bytes: contexts * slots * u64::from(derived.slot_bytes),
            bitmap_bytes: contexts * 8 * u64::from(derived.bitmap_words + derived.tail_words),
            context_bytes: CONTEXT_BYTES,
            ring_bytes: receive + send,
        })
    }

    /// Refuses what does not fit the last-level cache.
    pub(crate) fn check_cache(&self, footprint: &Footprint) -> Result<()> {
        let needed = footprint.hot_bytes();
        if needed <= self.cache_bytes {
            return Ok(());
        }
        Err(Error::Budget {
            what: "bytes of the DPA's last-level cache",
            needed,
            limit: self.cache_bytes,
            next: "lower slots, send_depth, subgroups or max_receive_bytes, or raise cache_bytes to accept a slower \
                datapath",
        })
    }
}
