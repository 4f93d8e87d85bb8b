//! Multicast groups and memberships in them.
//!
//! A membership makes the card deliver a group's packets to a queue pair. Whether they reach the card is the network's
//! business: managed switches learn members from IGMP or MLD, which the kernel's RDMA connection manager speaks
//! (`rdma_join_multicast`); unmanaged ones flood. The emulated network knows the members.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr::NonNull;
use std::sync::Arc;

use verbs_sys as sys;

use crate::connection::RemoteQp;
use crate::device::{Gid, Mac, verbs_ok, warn_unless_ok};
use crate::dpa_qp::{self, DpaQueuePair, refused};
use crate::error::{Error, Result};
use crate::prm::{self, Mailbox};
use crate::queue_pair::{self, QueuePair};
use crate::raw::Raw;

pub(crate) use crate::prm::GROUP_QPN as MULTICAST_QPN;

/// A multicast group: an IPv4 group (224.0.0.0/4), as a mapped address, or an IPv6 group (ff00::/8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastGroup(Gid);

impl MulticastGroup {
    /// The group of an IPv4 address; those of organisations begin with 239.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when it is no group's.
    pub fn ipv4(address: Ipv4Addr) -> Result<Self> {
        Self::new(Gid(address.to_ipv6_mapped().octets()))
    }

    /// The group with this identifier.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when it is no group's.
    pub fn new(gid: Gid) -> Result<Self> {
        let address = Ipv6Addr::from(gid.0);
        let is_group = address.to_ipv4_mapped().map_or(address.is_multicast(), |address| address.is_multicast());
        if is_group {
            return Ok(Self(gid));
        }
        Err(Error::OutOfRange {
            what: "first byte of a multicast address",
            value: u64::from(address.to_ipv4_mapped().map_or(gid.0[0], |address| address.octets()[0])),
            limit: "224 to 239 (IPv4) or 255 (IPv6)".to_owned(),
        })
    }

    /// The peer of a UC queue pair that sends to the group, or receives from it; see [`crate::GroupKey`].
    #[doc(hidden)]
    #[must_use]
    pub fn endpoint(self, first_psn: u32) -> RemoteQp {
        RemoteQp { qpn: MULTICAST_QPN, gid: self.gid(), mac: self.mac(), first_psn }
    }

    /// Its identifier.
    #[must_use]
    pub fn gid(self) -> Gid {
        self.0
    }

    /// Its Ethernet address: 01:00:5e with the low 23 bits of an IPv4 group, or 33:33 with the low 32 of an IPv6 group.
    /// Groups may share one.
    #[must_use]
    pub fn mac(self) -> Mac {
        let [.., a, b, c, d] = self.0.0;
        match Ipv6Addr::from(self.0.0).to_ipv4_mapped() {
            Some(_) => Mac([0x01, 0x00, 0x5E, b & 0x7F, c, d]),
            None => Mac([0x33, 0x33, a, b, c, d]),
        }
    }
}

impl std::fmt::Display for MulticastGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let address = Ipv6Addr::from(self.0.0);
        match address.to_ipv4_mapped() {
            Some(address) => address.fmt(f),
            None => address.fmt(f),
        }
    }
}

#[derive(Debug)]
enum Member {
    Device(Arc<dpa_qp::Inner>, Raw<sys::mlx5dv_devx_obj>),
    Host(Arc<queue_pair::Inner>),
}

/// A UD queue pair in a multicast group (or a UC one, where the emulator is configured so), until this is dropped.
#[derive(Debug)]
pub struct MulticastMembership {
    member: Member,
    group: MulticastGroup,
}

impl MulticastMembership {
    /// Makes a queue pair in DPA memory a member. In one group it can be one once.
    ///
    /// # Errors
    /// [`Error::Command`] when the card refuses: it is no UD queue pair, or a member already.
    pub fn attach(queue_pair: &DpaQueuePair, group: MulticastGroup) -> Result<Self> {
        let device = queue_pair.inner.process().device();
        let command = prm::attach_to_mcg(queue_pair.number(), group.gid().0);
        let mut answer = Mailbox::<{ prm::QP_ANSWER_BYTES }>::zeroed();
        // SAFETY: the context is open; both mailboxes have the lengths passed.
        let raw = unsafe {
            (device.provider().verbs().mlx5dv_devx_obj_create)(
                device.context(),
                command.as_bytes().as_ptr().cast(),
                prm::GROUP_COMMAND_BYTES,
                answer.as_mut_bytes().as_mut_ptr().cast(),
                prm::QP_ANSWER_BYTES,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| {
            refused("ATTACH_TO_MCG", &answer, &format!("queue pair {:#x} to {group}", queue_pair.number()))
        })?;
        Ok(Self { member: Member::Device(Arc::clone(&queue_pair.inner), Raw::new(raw)), group })
    }

    /// Makes a queue pair of the host a member.
    ///
    /// # Errors
    /// [`Error::Verbs`]: it is no UD queue pair.
    pub fn attach_host(queue_pair: &QueuePair, group: MulticastGroup) -> Result<Self> {
        let gid = sys::ibv_gid { raw: group.gid().0 };
        let verbs = queue_pair.device().provider().verbs();
        // SAFETY: the queue pair is live and the identifier is only read.
        let errno = unsafe { (verbs.ibv_attach_mcast)(queue_pair.raw(), &raw const gid, 0) };
        verbs_ok("ibv_attach_mcast", errno, || format!("queue pair {:#x} to {group}", queue_pair.qpn()))?;
        Ok(Self { member: Member::Host(Arc::clone(&queue_pair.inner)), group })
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> MulticastGroup {
        self.group
    }
}

impl Drop for MulticastMembership {
    fn drop(&mut self) {
        match &self.member {
            Member::Device(queue_pair, raw) => {
                let verbs = queue_pair.process().device().provider().verbs();
                // SAFETY: created in `attach` and destroyed only here.
                let errno = unsafe { (verbs.mlx5dv_devx_obj_destroy)(raw.as_ptr()) };
                warn_unless_ok("mlx5dv_devx_obj_destroy", errno);
            }
            Member::Host(queue_pair) => {
                let gid = sys::ibv_gid { raw: self.group.gid().0 };
                let verbs = queue_pair.pd.device().provider().verbs();
                // SAFETY: the queue pair is live and the identifier is only read.
                let errno = unsafe { (verbs.ibv_detach_mcast)(queue_pair.raw(), &raw const gid, 0) };
                warn_unless_ok("ibv_detach_mcast", errno);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_their_ethernet_addresses() {
        let group = MulticastGroup::ipv4(Ipv4Addr::new(239, 129, 2, 3)).unwrap();
        assert_eq!(group.gid().0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 239, 129, 2, 3]);
        assert_eq!(group.mac(), Mac([0x01, 0x00, 0x5E, 1, 2, 3]), "23 bits of the address");
        assert_eq!(group.to_string(), "239.129.2.3");
        let mut raw = [0; 16];
        (raw[0], raw[1], raw[12], raw[15]) = (0xFF, 0x05, 0xAB, 0xCD);
        let group = MulticastGroup::new(Gid(raw)).unwrap();
        assert_eq!(group.mac(), Mac([0x33, 0x33, 0xAB, 0, 0, 0xCD]));
    }

    #[test]
    fn what_is_no_group_is_refused() {
        let error = MulticastGroup::ipv4(Ipv4Addr::new(240, 0, 0, 1)).unwrap_err().to_string();
        assert!(error.contains("240") && error.contains("224 to 239"), "{error}");
        assert!(MulticastGroup::ipv4(Ipv4Addr::new(223, 255, 255, 255)).is_err());
        assert!(MulticastGroup::new(Gid([0xFE; 16])).is_err());
    }
}
