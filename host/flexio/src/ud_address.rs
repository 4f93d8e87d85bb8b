//! UD address vector of a work queue entry.

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

/// Lowest rate that [`UdAddress::paced`] takes.
pub const LEAST_STATIC_RATE_MBIT_PER_S: u32 = 2_500;
/// Rates in Mbit/s and their codes (InfiniBand specification, static rate), ascending: those that the field of four
/// bits holds.
const STATIC_RATES: [(u32, u8); 14] = [
    (LEAST_STATIC_RATE_MBIT_PER_S, 2),
    (5_000, 5),
    (10_000, 3),
    (14_000, 11),
    (20_000, 6),
    (25_000, 15),
    (30_000, 4),
    (40_000, 7),
    (56_000, 12),
    (60_000, 8),
    (80_000, 9),
    (112_000, 13),
    (120_000, 10),
    (168_000, 14),
];

/// The destination of datagrams that firmware sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdAddress {
    gid: Gid,
    mac: Mac,
    qpn: u32,
    q_key: u32,
    source_gid_index: u8,
    path: Path,
    /// Code of the static rate; 0 for the port's.
    static_rate: u8,
}

impl UdAddress {
    /// From a card's port to queue pair `qpn` (24 bits) behind the port `gid`, whose Ethernet address is `mac`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for the queue pair's number.
    pub fn new(from: &Device, gid: Gid, mac: Mac, qpn: u32, q_key: u32) -> Result<Self> {
        if qpn > 0x00FF_FFFF {
            return Err(Error::OutOfRange {
                what: "queue pair number",
                value: u64::from(qpn),
                limit: "at most 24 bits".to_owned(),
            });
        }
        Ok(Self {
            gid,
            mac,
            qpn,
            q_key,
            source_gid_index: from.port().gid_index,
            path: Path::default(),
            static_rate: 0,
        })
    }

    /// From a card's port to all members of a group.
    #[must_use]
    pub fn group(from: &Device, group: MulticastGroup, q_key: u32) -> Self {
        Self {
            gid: group.gid(),
            mac: group.mac(),
            qpn: MULTICAST_QPN,
            q_key,
            source_gid_index: from.port().gid_index,
            path: Path::default(),
            static_rate: 0,
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

    /// The same destination, to which a queue pair sends at a static rate (InfiniBand specification): the highest of
    /// 2.5, 5, 10, 14, 20, 25, 30, 40, 56, 60, 80, 112, 120 and 168 Gbit/s that is no higher than `mbit_per_s`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for less than 2500 Mbit/s.
    pub fn paced(self, mbit_per_s: u32) -> Result<Self> {
        let below = STATIC_RATES.iter().rev().find(|(rate, _)| *rate <= mbit_per_s);
        let Some(&(_, static_rate)) = below else {
            let limit = format!("at least {LEAST_STATIC_RATE_MBIT_PER_S} Mbit/s");
            return Err(Error::OutOfRange { what: "static rate of an address", value: mbit_per_s.into(), limit });
        };
        Ok(Self { static_rate, ..self })
    }

    /// The address vector.
    #[must_use]
    pub fn segment(&self) -> DatagramSegment {
        DatagramSegment {
            qkey: self.q_key.into(),
            destination_qpn: (EXTENDED_ADDRESS | self.qpn).into(),
            stat_rate_sl: self.static_rate << 4 | self.path.service_level,
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
            static_rate: 0,
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
        // The highest rate that is not above the one asked for, in the upper half of the octet.
        for (mbit_per_s, code) in [(2_500, 2), (9_999, 5), (50_000, 7), (400_000, 14)] {
            expected[12] = code << 4 | 5;
            assert_eq!(address.paced(mbit_per_s).unwrap().to_bytes(), expected);
        }
        let error = address.paced(2_499).unwrap_err().to_string();
        assert!(error.contains("2499") && error.contains("2500"), "{error}");
    }
}
