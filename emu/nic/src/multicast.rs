//! Multicast groups: which queue pairs of the card are members of which.
//!
//! A datagram to a group carries the queue pair number 0xFFFFFF. The card gives one copy to each member, with a routing
//! header of its own; Q_Key and partition are checked, and receives counted, for each (InfiniBand specification, volume 1,
//! 10.5: multicast services). What a member of the same card sends comes back to the card's members, unless the sending
//! queue pair blocks it.

use crate::address::Gid;
use crate::error::NicError;
use crate::nic::Nic;
use crate::qp::Transport;

impl Nic {
    /// Makes a queue pair a member of a group (`ATTACH_TO_MCG` of the PRM, 0x806). Being one already is no error.
    ///
    /// # Errors
    /// No such queue pair, it is not UD (or UC where that is [allowed](Self::allow_uc_multicast)), or the identifier is not that
    /// of a group.
    pub fn attach_multicast(&mut self, qpn: u32, gid: Gid) -> Result<(), NicError> {
        let transport = self.qps.get(qpn).ok_or(NicError::UnknownQp { qpn })?.attr.transport;
        if transport != Transport::Ud && !(transport == Transport::Uc && self.uc_multicast) {
            return Err(NicError::NotADatagramQp { qpn, transport });
        }
        if !gid.is_multicast() {
            return Err(NicError::NotAGroup { gid });
        }
        self.groups.entry(gid).or_default().insert(qpn);
        self.group_changes += 1;
        Ok(())
    }

    /// Ends a membership (`DETACH_FROM_MCG` of the PRM, 0x807).
    ///
    /// # Errors
    /// No such queue pair, or it is not a member.
    pub fn detach_multicast(&mut self, qpn: u32, gid: Gid) -> Result<(), NicError> {
        self.qps.get(qpn).ok_or(NicError::UnknownQp { qpn })?;
        let members = self.groups.get_mut(&gid).filter(|members| members.contains(&qpn));
        let members = members.ok_or(NicError::NotAttached { qpn, gid })?;
        members.remove(&qpn);
        if members.is_empty() {
            self.groups.remove(&gid);
        }
        self.group_changes += 1;
        Ok(())
    }

    /// The groups with at least one member on the card, in ascending order: what the port asks its switch for.
    pub fn joined_groups(&self) -> impl Iterator<Item = Gid> {
        self.groups.keys().copied()
    }

    /// How often memberships have begun or ended: while this stays, so does [`joined_groups`](Self::joined_groups).
    #[must_use]
    pub fn group_changes(&self) -> u64 {
        self.group_changes
    }

    /// Whether the card has a member of the group.
    #[must_use]
    pub fn has_joined(&self, gid: &Gid) -> bool {
        self.groups.contains_key(gid)
    }

    pub(crate) fn members(&self, gid: &Gid) -> Vec<u32> {
        self.groups.get(gid).map(|members| members.iter().copied().collect()).unwrap_or_default()
    }

    /// Whether a queue pair is a member of the group.
    #[must_use]
    pub fn is_member(&self, qpn: u32, gid: &Gid) -> bool {
        self.groups.get(gid).is_some_and(|members| members.contains(&qpn))
    }

    /// How many groups a queue pair is a member of.
    pub(crate) fn groups_of(&self, qpn: u32) -> usize {
        self.groups.values().filter(|members| members.contains(&qpn)).count()
    }
}
