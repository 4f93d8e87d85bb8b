//! Reception of what is multicast: whether it arrives, and membership in the group where switches forget it.

use std::collections::BTreeMap;

use super::operation::Operation;
use super::{UdpCarrier, UdpOperations};
use crate::carrier::udp::igmp::has_old_querier;
use crate::error::Result;
use crate::op::decision::LostMulticast;
use crate::plan::tuner::{Delivery, Note};
use flexcast_proto::RankSet;

/// Time after which the membership in the group is announced again. Switches that snoop forget a member after 260 s
/// without a report, and without a querier nothing else asks for one.
const ANNOUNCE_PS: u64 = 100_000_000_000_000;

/// Whether multicast arrives.
#[derive(Debug, Default)]
pub(super) struct Reception {
    delivery: Delivery,
    /// What this rank has to report of the last operation by multicast.
    pub(super) lost: Lost,
    /// It has not sent most of its own block, since all others had fetched it.
    pub(super) withheld: bool,
    /// When the membership in the group was announced last.
    announced_ps: u64,
    is_reported: bool,
}

/// Chunks of an operation that is over, without which less than half of a block has come.
#[derive(Debug, Default)]
pub(super) struct Lost {
    operation: u32,
    /// By root.
    chunks: BTreeMap<u32, u32>,
}

impl Lost {
    /// A chunk of an operation has come after its end: it was late.
    pub(super) fn came(&mut self, root: u32, operation: u32) {
        if operation != self.operation {
            return;
        }
        let Some(chunks) = self.chunks.get_mut(&root) else { return };
        *chunks -= 1;
        if *chunks == 0 {
            self.chunks.remove(&root);
        }
    }
}

impl Reception {
    /// Of a communicator that has joined the group now.
    pub(super) fn new(now_ps: u64) -> Self {
        Self { announced_ps: now_ps, ..Self::default() }
    }
}

impl UdpCarrier {
    /// Why the operation that begins does without multicast; none if it need not.
    pub(super) fn lost_multicast(&mut self, ops: &UdpOperations) -> Option<LostMulticast> {
        let operation = ops.protocol.participant().operation();
        let lost = self.reception.delivery.avoids(operation)?;
        if self.reception.delivery.avoids(operation.wrapping_add(1)).is_none() {
            // The next one tries it again.
            self.announce();
        }
        Some(lost)
    }

    /// An operation by multicast begins: what this rank reports of the one before.
    pub(super) fn begin_reception(&mut self, ops: &mut UdpOperations) -> Result<Note> {
        let (operation, now_ps) = (ops.protocol.participant().operation(), self.interface.now_ps());
        if !self.reception.lost.chunks.is_empty() {
            // Of what lacks some may wait in the socket.
            let _ = if self.fanout.is_some() { self.receive_shared(ops)? } else { self.receive_data(ops)? };
        }
        if now_ps.saturating_sub(self.reception.announced_ps) >= ANNOUNCE_PS && !self.is_at_home() {
            self.reception.announced_ps = now_ps;
            if !has_old_querier(self.interface.index()) {
                self.announce();
            }
        }
        let Reception { delivery, lost, withheld, .. } = &mut self.reception;
        let (lost, withheld) = (std::mem::take(lost), std::mem::take(withheld));
        let own = ops.core.place.rank();
        if !delivery.begin(operation) {
            return Ok(Note::default());
        }
        let withheld = if withheld { RankSet::of(own) } else { RankSet::EMPTY };
        Ok(Note { lost: lost.chunks.into_keys().map(|root| (root, own)).collect(), withheld })
    }

    /// An operation by multicast is over: what it has brought is reported with the next one, and the reports of all
    /// ranks about the one before count.
    pub(super) fn end_reception(&mut self, ops: &UdpOperations, operation: &Operation) {
        if self.is_at_home() {
            return;
        }
        let is_lossy = operation.stream.repairs || operation.stream.given_up;
        // Datagrams that had no room have arrived; a slower root helps against that.
        let chunks = match operation.report.overflowed_datagrams {
            0 if is_lossy => self.incoming.mostly_lost().collect(),
            _ => BTreeMap::new(),
        };
        self.reception.lost = Lost { operation: operation.number, chunks };
        let notes = ops.protocol.notes();
        let Some(loss) = self.reception.delivery.passed(operation.number, &notes) else { return };
        let LostMulticast { root, rank } = loss;
        if !std::mem::replace(&mut self.reception.is_reported, true) && rank == ops.core.place.rank() {
            let querier = if self.interface.address().is_ipv4() { "an IGMP querier" } else { "an MLD querier" };
            tracing::warn!(
                "multicast from rank {root} no longer arrives at rank {rank}: is there {querier}? Operations go \
                 without multicast, which is tried again now and then; `flexcast info --check` tests it"
            );
        }
        self.announce();
    }

    /// Announces the membership in the group to switches.
    fn announce(&mut self) {
        if let Err(error) = self.sockets.rejoin(&self.interface) {
            tracing::warn!(%error, "the membership in the multicast group cannot be announced");
        }
    }
}
