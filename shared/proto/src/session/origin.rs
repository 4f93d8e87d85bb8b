//! Origin of a connection: which ones count together where those of strangers are bounded.

use core::net::{IpAddr, Ipv6Addr};

/// Bits of a network of IPv6: whoever has one address of it can have all others (RFC 4291, section 2.5.1).
const NETWORK_BITS: u32 = 64;

/// Where a connection comes from, for bounds by address: an address of IPv4, also one that is mapped into IPv6, or the
/// first 64 bits of one of IPv6.
#[must_use]
pub const fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> NETWORK_BITS << NETWORK_BITS)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_origin() {
        let of = |text: &str| origin(text.parse().unwrap());
        assert_eq!(of("2001:db8:0:1::7"), of("2001:db8:0:1:ffff::9"));
        assert_ne!(of("2001:db8:0:1::7"), of("2001:db8:0:2::7"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
