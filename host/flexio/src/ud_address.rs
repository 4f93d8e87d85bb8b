//! Where a datagram goes, as its work queue entry says it.

use flexcast_hw::DatagramSegment;
use flexcast_hw::wqe::EXTENDED_ADDRESS;
use zerocopy::IntoBytes as _;

use crate::device::{Device, Gid, Mac};
use crate::error::{Error, Result};
use crate::multicast::{MULTICAST_QPN, MulticastGroup};
use crate::path::Path;
use crate::prm::UDP_SOURCE_PORT;

/// Bytes of an address vector in a UD send entry, behind its control segment.
pub const UD_ADDRESS_BYTES: usize = 48;
/// A routing header is present, in [`DatagramSegment::grh_gid_flow`].
const GRH_PRESENT: u32 = 1 << 30;

/// The destination of datagrams that firmware sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdAddress {
    gid: Gid,
    mac: Mac,
    qpn: u32,
    q_key: u32,
    source_gid_index: u8,
    path: Path,
}

impl UdAddress {
    /// From a card's port to queue pair `qpn` (24 bits) behind the port `gid`, whose Ethernet address is `mac`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for the queue pair's number.
    pub fn new(from: &Device<'_>, gid: Gid, mac: Mac, qpn: u32, q_key: u32) -> Result<Self> {
        if qpn > 0x00FF_FFFF {
            return Err(Error::OutOfRange {
                what: "queue pair number",
                value: u64::from(qpn),
                limit: "at most 24 bits".to_owned(),
            });
        }
        Ok(Self { gid, mac, qpn, q_key, source_gid_index: from.port().gid_index, path: Path::default() })
    }

    /// From a card's port to all members of a group.
    #[must_use]
    pub fn group(from: &Device<'_>, group: MulticastGroup, q_key: u32) -> Self {
        Self {
            gid: group.gid(),
            mac: group.mac(),
            qpn: MULTICAST_QPN,
            q_key,
            source_gid_index: from.port().gid_index,
            path: Path::default(),
        }
    }

    /// The same destination on another path.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for the path.
    pub fn along(self, path: Path) -> Result<Self> {
        path.check()?;
        Ok(Self { path, ..self })
    }

    /// The address vector.
    #[must_use]
    pub fn segment(&self) -> DatagramSegment {
        DatagramSegment {
            qkey: self.q_key.into(),
            destination_qpn: (EXTENDED_ADDRESS | self.qpn).into(),
            stat_rate_sl: self.path.service_level,
            rlid: UDP_SOURCE_PORT.into(),
            remote_mac: self.mac.0,
            traffic_class: self.path.traffic_class,
            hop_limit: self.path.hop_limit,
            grh_gid_flow: (GRH_PRESENT | u32::from(self.source_gid_index) << 20 | self.path.flow_label).into(),
            remote_gid: self.gid.0,
            ..Default::default()
        }
    }

    /// The bytes of [`UdAddress::segment`], to be put into device memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; UD_ADDRESS_BYTES] {
        let mut bytes = [0; UD_ADDRESS_BYTES];
        bytes.copy_from_slice(self.segment().as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against bytes written out by hand.
    #[test]
    fn every_field_lies_at_its_byte() {
        let address = UdAddress {
            gid: Gid([7; 16]),
            mac: Mac([1, 2, 3, 4, 5, 6]),
            qpn: 0xAB_CDEF,
            q_key: 0x1122_3344,
            source_gid_index: 3,
            path: Path { traffic_class: 0xA0, service_level: 5, flow_label: 0x1_2345, hop_limit: 9 },
        };
        let mut expected = [0; 48];
        expected[..4].copy_from_slice(&[0x11, 0x22, 0x33, 0x44]);
        expected[8..12].copy_from_slice(&[0x80, 0xAB, 0xCD, 0xEF]);
        expected[12] = 5;
        expected[14..16].copy_from_slice(&[0xC0, 0x00]);
        expected[20..26].copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        expected[26] = 0xA0;
        expected[27] = 9;
        expected[28..32].copy_from_slice(&[0x40, 0x31, 0x23, 0x45]);
        expected[32..].fill(7);
        assert_eq!(address.to_bytes(), expected);
    }
}
