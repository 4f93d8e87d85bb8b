//! Addresses of the store: `host:port`, with a name, an IPv4 address, or an IPv6 address in brackets, with the zone of
//! a link-local one.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};

use super::StoreError;

/// An address in its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address<'a> {
    /// Without brackets.
    host: &'a str,
    port: u16,
}

impl<'a> Address<'a> {
    /// Reads `host:port`.
    pub(super) fn parse(text: &'a str) -> Result<Self, StoreError> {
        let wrong = || StoreError::Address { address: text.to_owned() };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        // Only rank 0 could know which port 0 becomes.
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        let host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
            Some(Some(inner)) => {
                let (address, zone) =
                    inner.split_once('%').map_or((inner, None), |(address, zone)| (address, Some(zone)));
                let address: Ipv6Addr = address.parse().map_err(|_| wrong())?;
                match zone {
                    Some("") => return Err(wrong()),
                    None if address.is_unicast_link_local() => {
                        return Err(StoreError::Zone { address: text.to_owned(), host: inner.to_owned(), port });
                    }
                    _ => inner,
                }
            }
            Some(None) => return Err(wrong()),
            // More colons than one belong to an IPv6 address, whose port cannot be distinguished from it without
            // brackets.
            None if host.is_empty() || host.contains([':', ']', '%']) => return Err(wrong()),
            None => host,
        };
        Ok(Self { host, port })
    }

    /// What a socket can be bound or connected to. Asks the system for names and zones.
    pub(super) fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = (self.host, self.port).to_socket_addrs()?.collect();
        if found.is_empty() {
            return Err(io::Error::other("the name has no address"));
        }
        Ok(found)
    }

    /// Whether it names this computer to whoever uses it, and no other.
    pub(super) fn is_loopback(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_of_both_families_are_understood() {
        for (text, host, port) in [
            ("head:4711", "head", 4711),
            ("10.0.0.1:1", "10.0.0.1", 1),
            ("[::1]:65535", "::1", 65535),
            ("[fe80::1%eth0]:4711", "fe80::1%eth0", 4711),
            ("[fe80::1%2]:4711", "fe80::1%2", 4711),
        ] {
            assert_eq!(Address::parse(text).unwrap(), Address { host, port });
        }
        for text in [
            "",
            "foo",
            "head:",
            ":1",
            "head:0",
            "head:70000",
            "::1:4711",
            "[::1]",
            "[::1:4711",
            "[head]:1",
            "[fe80::1%]:1",
            "fe80::1%eth0:1",
        ] {
            assert!(matches!(Address::parse(text), Err(StoreError::Address { .. })), "{text}");
        }
    }

    #[test]
    fn a_link_local_address_needs_its_zone() {
        let text = Address::parse("[fe80::1]:4711").unwrap_err().to_string();
        assert!(text.contains("needs its zone") && text.contains("[fe80::1%eth0]:4711"), "{text}");
    }

    #[test]
    fn zones_are_resolved_to_interfaces() {
        // The loopback interface has number 1 in every network namespace.
        let expected = "[fe80::1%1]:4711".parse().unwrap();
        for zone in ["lo", "1"] {
            let text = format!("[fe80::1%{zone}]:4711");
            assert_eq!(Address::parse(&text).unwrap().resolve().unwrap(), [expected], "{zone}");
        }
    }

    #[test]
    fn loopback_is_known() {
        for (text, is_loopback) in
            [("localhost:1", true), ("127.1.2.3:1", true), ("[::1]:1", true), ("10.0.0.1:1", false), ("head:1", false)]
        {
            assert_eq!(Address::parse(text).unwrap().is_loopback(), is_loopback, "{text}");
        }
    }
}
