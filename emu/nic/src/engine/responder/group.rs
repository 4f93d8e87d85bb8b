//! Multicast on unreliable connections: hypothetical, and off unless it is asked for.
//!
//! No card has this. It is what a zero-copy receive path of multicast would need, so that such a path can be built and
//! measured:
//!
//! - A UC queue pair may be a member of groups. One that is connected to a group (its identifier and address, queue
//!   pair number 0xFFFFFF) sends to all members; what it sends comes back to members on its card, unless it blocks
//!   that, as with datagrams.
//! - Only RDMA Writes are taken. One names its target by an offset and a *group key*, alike for all members. Each
//!   member has a table from group keys to a memory key of its own and the address of offset 0 ([`GroupKey`]); the
//!   access is then checked like any other. A Write by a key that is not in the table is dropped and counted
//!   ([`access_drops`](crate::Counters::access_drops)).
//! - A UC packet does not name its sender's queue pair. Senders are distinguished by source identifier and UDP source
//!   port, which two senders of one card to one group must not share (by default it follows from the queue pair's
//!   number). For each of them a member keeps a place in the sequence: a gap drops the message, and the next one begins
//!   afresh ([`uc_gap_drops`](crate::Counters::uc_gap_drops)).

use super::{Refusal, Responder};
use crate::cx::Cx;
use crate::engine::datapath::Datapath;
use crate::error::NicError;
use crate::packet::{Acknowledgement, Operation, Packet};
use crate::queue_pair::QueuePair;
use crate::queue_pair::receive_queue::{Inbound, Sender, Sequence};

/// Senders that a member distinguishes; packets of further ones are dropped.
const MOST_SENDERS: usize = 4096;

/// What a group key stands for at one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupKey {
    /// The key that packets carry.
    pub key: u32,
    /// The memory key that it stands for, of the queue pair's protection domain, with remote write access.
    pub local_key: u32,
    /// Address of offset 0 under that key.
    pub base: u64,
}

impl Responder {
    /// Adds a group key to the table of a UC queue pair.
    ///
    /// # Errors
    /// The key is in the table already.
    pub(crate) fn map_group_key(&mut self, qpn: u32, entry: GroupKey) -> Result<(), NicError> {
        if self.group_keys.contains_key(&(qpn, entry.key)) {
            return Err(NicError::GroupKeyTaken { qpn, key: entry.key });
        }
        self.group_keys.insert((qpn, entry.key), entry);
        Ok(())
    }

    /// Takes a group key out of a queue pair's table. The queue pair, if it is there still, writes by it no more.
    ///
    /// # Errors
    /// It is not in the table.
    pub(crate) fn unmap_group_key(&mut self, qpn: u32, key: u32, qp: Option<&mut QueuePair>) -> Result<(), NicError> {
        let entry = self.group_keys.remove(&(qpn, key)).ok_or(NicError::UnknownGroupKey { qpn, key })?;
        for sequence in qp.into_iter().flat_map(|qp| qp.rq.senders.values_mut()) {
            let of_key = |inbound: &Inbound| matches!(inbound, Inbound::Write { rkey, .. } if *rkey == entry.local_key);
            sequence.inbound.take_if(|inbound| of_key(inbound));
        }
        Ok(())
    }

    /// Forgets the group keys of a queue pair that goes.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.group_keys.retain(|(of, _), _| *of != qpn);
    }

    /// Where a Write goes: what its key stands for if it was sent to a group, and else what it says itself.
    pub(super) fn write_target(
        &self,
        qp: &QueuePair,
        packet: &Packet,
        (address, rkey): (u64, u32),
        len: u32,
    ) -> Result<(u64, u32), Refusal> {
        if !packet.destination.is_multicast() || len == 0 {
            return Ok((address, rkey));
        }
        let entry = self.group_keys.get(&(qp.qpn, rkey));
        let target = entry.and_then(|entry| Some((entry.base.checked_add(address)?, entry.local_key)));
        target.ok_or(Refusal::Request(Acknowledgement::RemoteAccess))
    }

    /// A packet to a group that a UC queue pair is a member of.
    pub(super) fn respond_to_group(&self, dp: &mut Datapath, qp: &mut QueuePair, packet: &Packet, cx: &mut Cx<'_>) {
        let sender: Sender = (packet.source.gid, packet.network.udp_source_port);
        let known = qp.rq.senders.get(&sender).copied();
        if packet.operation != Operation::Write || (known.is_none() && qp.rq.senders.len() >= MOST_SENDERS) {
            cx.log.counters.qp_drops += 1;
            return;
        }
        // The first packet that comes of a sender begins its sequence.
        let sequence = known.unwrap_or(Sequence { expected_psn: packet.psn, inbound: None });
        let own = Sequence { expected_psn: qp.rq.expected_psn, inbound: qp.rq.inbound };
        (qp.rq.expected_psn, qp.rq.inbound) = (sequence.expected_psn, sequence.inbound);
        self.respond_unreliably(dp, qp, packet, cx);
        let sequence = Sequence { expected_psn: qp.rq.expected_psn, inbound: qp.rq.inbound };
        qp.rq.senders.insert(sender, sequence);
        (qp.rq.expected_psn, qp.rq.inbound) = (own.expected_psn, own.inbound);
    }
}
