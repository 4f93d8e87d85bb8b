//! Socket addresses of C programs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use emu_libibverbs::errno::{Errno, Result};

/// An IP address with a port. An unspecified address is one that is still to be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// Families that `rdma_resolve_addr` and others take in rdma-core, and that have a meaning on RoCE.
const AF_IB: libc::sa_family_t = 27;

impl Endpoint {
    /// Any address of the version of another.
    pub(crate) fn any_like(other: IpAddr, port: u16) -> Self {
        let address = if other.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        Self { address, port }
    }

    /// The same, with an address of the computer itself as any address: so Linux takes it, as no card has it.
    pub(crate) fn of_cards(self) -> Self {
        if self.address.is_loopback() { Self::any_like(self.address, self.port) } else { self }
    }

    /// Reads a `sockaddr`.
    ///
    /// # Safety
    /// If not null, `addr` must point at an initialised socket address, as long as its family asks for.
    ///
    /// # Errors
    /// It is null, or of a family without a meaning here.
    pub(crate) unsafe fn read(addr: *const libc::sockaddr, name: &str) -> Result<Self> {
        if addr.is_null() {
            return Err(Errno::invalid(format!("{name} is null")));
        }
        // SAFETY: not null, and the caller vouches for the rest; the family says how long it is.
        let family = unsafe { (*addr).sa_family };
        match i32::from(family) {
            libc::AF_INET => {
                // SAFETY: as above; programs may have put it at any address.
                let inet = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
                let address = Ipv4Addr::from(u32::from_be(inet.sin_addr.s_addr));
                Ok(Self { address: address.into(), port: u16::from_be(inet.sin_port) })
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let inet6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                let address = Ipv6Addr::from(inet6.sin6_addr.s6_addr);
                // A mapped address is the IPv4 address.
                let address = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
                Ok(Self { address, port: u16::from_be(inet6.sin6_port) })
            }
            _ if family == AF_IB => Err(Errno::new(
                libc::EAFNOSUPPORT,
                format!("{name} is an InfiniBand address: the cards are of Ethernet"),
            )),
            other => Err(Errno::new(
                libc::EAFNOSUPPORT,
                format!(
                    "{name} has address family {other}: AF_INET ({}) and AF_INET6 ({}) are known",
                    libc::AF_INET,
                    libc::AF_INET6
                ),
            )),
        }
    }

    /// The same as C sees it.
    pub(crate) fn storage(&self) -> libc::sockaddr_storage {
        // SAFETY: integers alone.
        let mut storage: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
        let at = &raw mut storage;
        // SAFETY: `storage` is as long and as aligned as any socket address.
        unsafe {
            match self.address {
                IpAddr::V4(address) => {
                    let inet = at.cast::<libc::sockaddr_in>();
                    (*inet).sin_family = libc::AF_INET as libc::sa_family_t;
                    (*inet).sin_port = self.port.to_be();
                    (*inet).sin_addr.s_addr = u32::from(address).to_be();
                }
                IpAddr::V6(address) => {
                    let inet6 = at.cast::<libc::sockaddr_in6>();
                    (*inet6).sin6_family = libc::AF_INET6 as libc::sa_family_t;
                    (*inet6).sin6_port = self.port.to_be();
                    (*inet6).sin6_addr.s6_addr = address.octets();
                }
            }
        }
        storage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_went() {
        for text in ["198.18.0.1:7471", "[fe80::ff:fe00:1]:1", "0.0.0.0:0"] {
            let socket: std::net::SocketAddr = text.parse().expect("an address");
            let endpoint = Endpoint { address: socket.ip(), port: socket.port() };
            let storage = endpoint.storage();
            // SAFETY: a whole address.
            let read = unsafe { Endpoint::read((&raw const storage).cast(), "addr") };
            assert_eq!(read.expect("the same"), endpoint);
        }
    }

    #[test]
    fn other_families_are_refused_by_name() {
        // SAFETY: integers alone.
        let mut storage: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
        for (family, expected) in [(0, "address family 0"), (AF_IB, "an InfiniBand address")] {
            storage.ss_family = family;
            // SAFETY: a whole address.
            let error = unsafe { Endpoint::read((&raw const storage).cast(), "dst_addr") }.expect_err("unknown");
            assert!(error.reason.contains(expected) && error.reason.contains("dst_addr"), "{}", error.reason);
            assert_eq!(error.value, libc::EAFNOSUPPORT);
        }
        // SAFETY: null is answered.
        assert!(unsafe { Endpoint::read(core::ptr::null(), "addr") }.is_err());
    }
}
