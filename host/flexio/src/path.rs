//! The way packets take: class, level, and address handles.

use verbs_sys as sys;

use crate::device::{Gid, Port, ProtectionDomain, non_null, warn_unless_ok};
use crate::error::{Error, Result};
use crate::raw::Raw;

/// What the packets of a queue pair or an address handle ask of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Traffic class of the IP header: six bits of DSCP above two of congestion notification. Switches sort by it.
    pub traffic_class: u8,
    /// Service level, 0 to 15. On RoCE the priority of a VLAN tag, if the interface has one.
    pub service_level: u8,
    /// Flow label, 20 bits; IPv6 only.
    pub flow_label: u32,
    /// How many routers may pass the packet on.
    pub hop_limit: u8,
}

impl Default for Path {
    fn default() -> Self {
        Self { traffic_class: 0, service_level: 0, flow_label: 0, hop_limit: 64 }
    }
}

/// How long a reliable connection believes in a silent peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The time after which a packet without answer is sent again is 4.096 us x 2 to this power, 1 to 31 (InfiniBand
    /// specification, volume 1, 9.7.6.1.3). Default 14: 67 ms.
    pub timeout_exponent: u8,
    /// How often, 0 to 7, before the connection breaks. Default 7.
    pub count: u8,
}

impl Default for Retry {
    fn default() -> Self {
        Self { timeout_exponent: 14, count: 7 }
    }
}

impl Retry {
    pub(crate) fn check(self) -> Result<()> {
        let out_of_range = |what, value: u8, limit: &str| {
            Err(Error::OutOfRange { what, value: u64::from(value), limit: limit.to_owned() })
        };
        if !(1..=31).contains(&self.timeout_exponent) {
            return out_of_range("exponent of the retransmission timeout", self.timeout_exponent, "1 to 31");
        }
        if self.count > 7 {
            return out_of_range("number of retransmissions", self.count, "at most 7");
        }
        Ok(())
    }
}

impl Path {
    /// The default path in another traffic class.
    #[must_use]
    pub fn of_class(traffic_class: u8) -> Self {
        Self { traffic_class, ..Self::default() }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |what, value, limit: &str| Err(Error::OutOfRange { what, value, limit: limit.to_owned() });
        if self.service_level > 15 {
            return refuse("service level of a path", u64::from(self.service_level), "at most 15");
        }
        if self.flow_label > 0xF_FFFF {
            return refuse("flow label of a path", u64::from(self.flow_label), "at most 20 bits");
        }
        Ok(())
    }

    /// The address attributes of a port on this path.
    pub(crate) fn attributes(&self, from: &Port, to: Gid) -> sys::ibv_ah_attr {
        sys::ibv_ah_attr {
            grh: sys::ibv_global_route {
                dgid: sys::ibv_gid { raw: to.0 },
                sgid_index: from.gid_index,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
                flow_label: self.flow_label,
            },
            sl: self.service_level,
            is_global: 1,
            port_num: from.number,
            ..Default::default()
        }
    }
}

/// A path to another card, for datagrams.
#[derive(Debug)]
pub struct AddressHandle {
    pd: ProtectionDomain,
    raw: Raw<sys::ibv_ah>,
}

impl AddressHandle {
    /// Resolves the path to a port or a multicast group.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn new(pd: &ProtectionDomain, gid: Gid) -> Result<Self> {
        Self::along(pd, gid, Path::default())
    }

    /// [`AddressHandle::new`] with a choice of path.
    ///
    /// # Errors
    /// [`Error::Verbs`]; [`Error::OutOfRange`] for the path.
    pub fn along(pd: &ProtectionDomain, gid: Gid, path: Path) -> Result<Self> {
        path.check()?;
        let mut attr = path.attributes(pd.device().port(), gid);
        // SAFETY: the domain is live and `attr` initialised.
        let raw = unsafe { (pd.device().provider().verbs().ibv_create_ah)(pd.raw(), &raw mut attr) };
        Ok(Self { pd: pd.clone(), raw: non_null("ibv_create_ah", raw, || format!("to {gid}"))? })
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: created in `along`. Posted datagrams hold a copy of the address in their work queue entry.
        let errno = unsafe { (self.pd.device().provider().verbs().ibv_destroy_ah)(self.raw.as_ptr()) };
        warn_unless_ok("ibv_destroy_ah", errno);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_too_wide_are_refused() {
        assert!(Path::of_class(0xFF).check().is_ok());
        assert!(Path { service_level: 16, ..Path::default() }.check().is_err());
        assert!(Path { flow_label: 1 << 20, ..Path::default() }.check().is_err());
    }
}
