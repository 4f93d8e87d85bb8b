//! Multicast groups: which queue pairs of the card are members of which.
//!
//! A datagram to a group carries the queue pair number 0xFFFFFF. The card gives one copy to each member, with a routing
//! header of its own; Q_Key and partition are checked, and receives counted, for each (InfiniBand specification, volume
//! 1, 10.5: multicast services). What a member of the same card sends comes back to the card's members, unless the
//! sending queue pair blocks it.

use std::collections::{BTreeMap, BTreeSet};

use crate::address::Gid;
use crate::error::NicError;
use crate::queue_pair::QueuePair;
use crate::transport::Transport;

/// Memberships of the card's queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: BTreeMap<Gid, BTreeSet<u32>>,
    changes: u64,
    /// UC queue pairs take part, too: hypothetical, see [`Responder`](crate::engine::responder::Responder).
    pub(crate) uc: bool,
}

impl Groups {
    pub(crate) fn attach(&mut self, qpn: u32, transport: Transport, gid: Gid) -> Result<(), NicError> {
        if transport != Transport::Ud && !(transport == Transport::Uc && self.uc) {
            return Err(NicError::NotADatagramQp { qpn, transport });
        }
        if !gid.is_multicast() {
            return Err(NicError::NotAGroup { gid });
        }
        self.members.entry(gid).or_default().insert(qpn);
        self.changes += 1;
        Ok(())
    }

    pub(crate) fn detach(&mut self, qpn: u32, gid: Gid) -> Result<(), NicError> {
        let members = self.members.get_mut(&gid).filter(|members| members.contains(&qpn));
        let members = members.ok_or(NicError::NotAttached { qpn, gid })?;
        members.remove(&qpn);
        if members.is_empty() {
            self.members.remove(&gid);
        }
        self.changes += 1;
        Ok(())
    }

    /// The groups with at least one member, in ascending order.
    pub(crate) fn joined(&self) -> impl Iterator<Item = Gid> {
        self.members.keys().copied()
    }

    /// How often memberships have begun or ended.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn has_joined(&self, gid: &Gid) -> bool {
        self.members.contains_key(gid)
    }

    pub(crate) fn members(&self, gid: &Gid) -> Vec<u32> {
        self.members.get(gid).map(|members| members.iter().copied().collect()).unwrap_or_default()
    }

    pub(crate) fn is_member(&self, qpn: u32, gid: &Gid) -> bool {
        self.members.get(gid).is_some_and(|members| members.contains(&qpn))
    }

    /// How many groups a queue pair is a member of.
    pub(crate) fn groups_of(&self, qpn: u32) -> usize {
        self.members.values().filter(|members| members.contains(&qpn)).count()
    }

    /// Whether what a UC queue pair sends is for members on its own card, too.
    pub(crate) fn come_back_to(&self, qp: &QueuePair) -> bool {
        let to = qp.peer();
        self.uc
            && qp.attr.transport == Transport::Uc
            && to.is_multicast()
            && !qp.path.force_loopback
            && !qp.path.block_multicast_loopback
            && self.has_joined(&to.gid)
    }
}
