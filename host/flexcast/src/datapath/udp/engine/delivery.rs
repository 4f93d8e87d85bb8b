//! Reception of what is multicast: whether it arrives, and membership in the group where switches forget it.

use super::Engine;
use super::operation::Running;
use crate::datapath::udp::igmp::hears_old_querier;
use crate::tuner::{Delivery, LostMulticast, Note};
use flexcast_proto::RankSet;

/// Time after which the membership in the group is announced again. Switches that snoop forget a member after 260 s without a report, and without a
/// querier nothing else asks for one.
const ANNOUNCE_PS: u64 = 100_000_000_000_000;

/// Whether multicast arrives.
#[derive(Debug, Default)]
pub(super) struct Reception {
    delivery: Delivery,
    /// What this rank has to report of the last operation by multicast.
    lost: RankSet,
    /// It has not sent most of its own block, since all others had fetched it.
    pub(super) withheld: bool,
    /// When the membership in the group was announced last.
    announced_ps: u64,
    is_reported: bool,
}

impl Reception {
    /// Of a communicator that has joined the group now.
    pub(super) fn new(now_ps: u64) -> Self {
        Self { announced_ps: now_ps, ..Self::default() }
    }
}

impl Engine {
    /// Why the operation that begins does without multicast; none if it need not.
    pub(super) fn lost_multicast(&mut self) -> Option<LostMulticast> {
        let operation = self.conversation.participant().operation();
        let lost = self.reception.delivery.avoids(operation)?;
        if self.reception.delivery.avoids(operation.wrapping_add(1)).is_none() {
            // The next one tries it again.
            self.announce();
        }
        Some(lost)
    }

    /// An operation by multicast begins: what this rank reports of the one before.
    pub(super) fn begin_reception(&mut self, operation: u32, now_ps: u64) -> Note {
        if now_ps.saturating_sub(self.reception.announced_ps) >= ANNOUNCE_PS && !self.is_at_home() {
            self.reception.announced_ps = now_ps;
            if !hears_old_querier(self.interface.index()) {
                self.announce();
            }
        }
        let Reception { delivery, lost, withheld, .. } = &mut self.reception;
        let (lost, withheld) = (std::mem::take(lost), std::mem::take(withheld));
        let (own, counts) = (self.place.rank(), delivery.begin(operation));
        let withheld = if withheld { RankSet::of(own) } else { RankSet::EMPTY };
        if counts { Note { lost, by: own, withheld } } else { Note::default() }
    }

    /// An operation by multicast is over: what it has brought is reported with the next one, and the reports of all ranks about the one before count.
    pub(super) fn end_reception(&mut self, running: &Running) {
        if self.is_at_home() {
            return;
        }
        let is_lossy = running.repairs || running.given_up;
        // Datagrams that had no room have arrived; a slower root helps against that.
        self.reception.lost = match running.report.overflowed_datagrams {
            0 if is_lossy => self.incoming.mostly_lost(),
            _ => RankSet::EMPTY,
        };
        let notes = self.conversation.notes();
        let Some(loss) = self.reception.delivery.passed(running.operation, &notes) else { return };
        let LostMulticast { root, rank } = loss;
        if !std::mem::replace(&mut self.reception.is_reported, true) && rank == self.place.rank() {
            let querier = if self.interface.address().is_ipv4() { "an IGMP querier" } else { "an MLD querier" };
            tracing::warn!(
                "multicast from rank {root} no longer arrives at rank {rank}: is there {querier}? Operations go without multicast, which is tried again \
                 now and then; `flexcast info --check` tests it"
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
