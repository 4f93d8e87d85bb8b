//! The IP service of connection management (InfiniBand specification, annex A11), as Linux speaks it: service ids from
//! port spaces and ports, and a header in the private data of requests that names both ends by their IP addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::mad::private;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 36;
/// Private data that a program has of a REQ.
pub const REQ_BYTES: usize = private::REQ - HEADER_BYTES;
/// Private data that a program has of a SIDR_REQ.
pub const SIDR_REQ_BYTES: usize = private::SIDR_REQ - HEADER_BYTES;

/// What ports are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// Reliable connections.
    Tcp,
    /// Datagrams.
    Udp,
}

impl Space {
    /// Its number (`RDMA_PS_TCP`, `RDMA_PS_UDP`).
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
        }
    }

    fn from_number(number: u64) -> Option<Self> {
        [Self::Tcp, Self::Udp].into_iter().find(|space| u64::from(space.number()) == number)
    }
}

/// A service: what somebody listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Service {
    /// Port space.
    pub space: Space,
    /// Port.
    pub port: u16,
}

impl Service {
    /// The service id of requests for it.
    #[must_use]
    pub fn id(self) -> u64 {
        u64::from(self.space.number()) << 16 | u64::from(self.port)
    }

    /// The service with an id, if it is one of the IP service.
    #[must_use]
    pub fn from_id(id: u64) -> Option<Self> {
        Some(Self { space: Space::from_number(id >> 16)?, port: id as u16 })
    }
}

/// The header: where a request comes from, and the address that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's port.
    pub port: u16,
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address, of the same version.
    pub destination: IpAddr,
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[12..].copy_from_slice(&address.octets());
            octets
        }
    }
}

impl Header {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[1] = if self.source.is_ipv4() { 4 << 4 } else { 6 << 4 };
        bytes[2..4].copy_from_slice(&self.port.to_be_bytes());
        bytes[4..20].copy_from_slice(&octets(self.source));
        bytes[20..36].copy_from_slice(&octets(self.destination));
        bytes
    }

    /// The header that private data begin with, if they begin with one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER_BYTES] = bytes.get(..HEADER_BYTES)?.try_into().ok()?;
        let address = |at: usize| -> Option<IpAddr> {
            let octets: [u8; 16] = core::array::from_fn(|i| bytes[at + i]);
            match bytes[1] >> 4 {
                4 => Some(IpAddr::V4(Ipv4Addr::new(octets[12], octets[13], octets[14], octets[15]))),
                6 => Some(IpAddr::V6(Ipv6Addr::from(octets))),
                _ => None,
            }
        };
        let version = bytes[0];
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        Some(Self { port, source: address(4)?, destination: address(20)? }).filter(|_| version == 0)
    }

    /// Private data of a request: the header, and what the program adds. What is longer than `N` is cut.
    #[must_use]
    pub fn with<const N: usize>(&self, program: &[u8]) -> [u8; N] {
        let mut whole = [0; N];
        let bytes = self.encode().into_iter().chain(program.iter().copied());
        whole.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_the_ids_of_the_ip_service() {
        let service = Service { space: Space::Tcp, port: 0x1C03 };
        assert_eq!((service.id(), Service::from_id(0x0106_1C03)), (0x0106_1C03, Some(service)));
        assert_eq!(Service { space: Space::Udp, port: 7 }.id(), 0x0111_0007);
        for foreign in [0x013F_0001, 0x1_0106_0001, 0] {
            assert_eq!(Service::from_id(foreign), None, "{foreign:#x}");
        }
    }

    #[test]
    fn headers_come_back_as_they_went() {
        let v4 =
            Header { port: 0x1234, source: IpAddr::from([198, 18, 0, 1]), destination: IpAddr::from([198, 18, 0, 2]) };
        let bytes = v4.encode();
        assert_eq!(
            (&bytes[..4], &bytes[16..20], &bytes[32..36]),
            (&[0, 0x40, 0x12, 0x34][..], &[198, 18, 0, 1][..], &[198, 18, 0, 2][..])
        );
        assert_eq!(Header::decode(&bytes), Some(v4));
        let v6 = Header { port: 1, source: IpAddr::from([7_u8; 16]), destination: IpAddr::from([8_u8; 16]) };
        assert_eq!(Header::decode(&v6.encode()), Some(v6));
        let whole: [u8; private::REQ] = v4.with(&[5; REQ_BYTES]);
        assert_eq!((Header::decode(&whole), &whole[HEADER_BYTES..]), (Some(v4), &[5; REQ_BYTES][..]));
    }

    #[test]
    fn what_is_no_header_is_none() {
        let good = Header { port: 1, source: [1, 2, 3, 4].into(), destination: [1, 2, 3, 5].into() }.encode();
        let mut version = good;
        version[0] = 1;
        let mut family = good;
        family[1] = 5 << 4;
        for bytes in [&version[..], &family[..], &good[..35], &[]] {
            assert_eq!(Header::decode(bytes), None);
        }
    }
}
