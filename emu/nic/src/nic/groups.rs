//! Commands for multicast groups.

use super::Nic;
use crate::address::Gid;
use crate::engine::responder::GroupKey;
use crate::error::NicError;
use crate::transport::Transport;

impl Nic {
    /// Makes a queue pair a member of a group (`ATTACH_TO_MCG` of the PRM, 0x806). Being one already is no error.
    ///
    /// # Errors
    /// No such queue pair, it is not UD (or UC where that is [allowed](Self::allow_uc_multicast)), or the identifier is
    /// not that of a group.
    pub fn attach_multicast(&mut self, qpn: u32, gid: Gid) -> Result<(), NicError> {
        let transport = self.qps.get(qpn).ok_or(NicError::UnknownQp { qpn })?.attr.transport;
        self.datapath.groups.attach(qpn, transport, gid)
    }

    /// Ends a membership (`DETACH_FROM_MCG` of the PRM, 0x807).
    ///
    /// # Errors
    /// No such queue pair, or it is not a member.
    pub fn detach_multicast(&mut self, qpn: u32, gid: Gid) -> Result<(), NicError> {
        self.qps.get(qpn).ok_or(NicError::UnknownQp { qpn })?;
        self.datapath.groups.detach(qpn, gid)
    }

    /// The groups with at least one member on the card, in ascending order: what the port asks its switch for.
    pub fn joined_groups(&self) -> impl Iterator<Item = Gid> {
        self.datapath.groups.joined()
    }

    /// How often memberships have begun or ended: while this stays, so does [`joined_groups`](Self::joined_groups).
    #[must_use]
    pub fn group_changes(&self) -> u64 {
        self.datapath.groups.changes()
    }

    /// Whether the card has a member of the group.
    #[must_use]
    pub fn has_joined(&self, gid: &Gid) -> bool {
        self.datapath.groups.has_joined(gid)
    }

    /// Whether a queue pair is a member of the group.
    #[must_use]
    pub fn is_member(&self, qpn: u32, gid: &Gid) -> bool {
        self.datapath.groups.is_member(qpn, gid)
    }

    /// Lets UC queue pairs take part in multicast from now on.
    pub fn allow_uc_multicast(&mut self) {
        self.datapath.groups.uc = true;
    }

    /// Adds a group key to a queue pair's table. Vendor-specific, of a vendor that does not exist.
    ///
    /// # Errors
    /// Multicast of UC is off, no such queue pair, it is not UC, or the key is in the table already.
    pub fn map_group_key(&mut self, qpn: u32, entry: GroupKey) -> Result<(), NicError> {
        let transport = self.qps.get(qpn).ok_or(NicError::UnknownQp { qpn })?.attr.transport;
        if !self.datapath.groups.uc || transport != Transport::Uc {
            return Err(NicError::NoGroupKeys { qpn, transport });
        }
        self.responder.map_group_key(qpn, entry)
    }

    /// Takes a group key out of a queue pair's table: packets by it write nothing any more, not even the rest of a
    /// message.
    ///
    /// # Errors
    /// It is not in the table.
    pub fn unmap_group_key(&mut self, qpn: u32, key: u32) -> Result<(), NicError> {
        self.responder.unmap_group_key(qpn, key, self.qps.get_mut(qpn))
    }
}
