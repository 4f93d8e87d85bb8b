//! Connections of service processes over TCP: the greeting, the exchange of queue pairs, and signs of life.
//!
//! [`greeting`] and [`life`] are state machines without IO: they take messages, the time and random bytes as arguments.
//! [`server`] has the sockets of a service process, `session` that of a rank's program. Messages on a TCP connection
//! are those of `wire`, one behind the other, each with a tag behind it once both sides have proven who they are.

mod conn;
pub(crate) mod counts;
pub(crate) mod frames;
pub(crate) mod greeting;
pub(crate) mod life;
pub(crate) mod processes;
mod receive;
pub(crate) mod server;
mod set_up;

use std::net::{IpAddr, SocketAddr};

use flexcast_proto::service::ContextId;
use flexcast_proto::service::wire::{self, Body, Endpoint, FormatError, Link, Packet, TAG_BYTES};
use flexcast_proto::session::MessageTags;
pub use flexcast_proto::session::keyed_hash;
use flexio::{Gid, Mac};

use crate::links::LinkEnd;

/// Fresh random bytes of the operating system.
pub(crate) fn nonce() -> std::io::Result<[u8; TAG_BYTES]> {
    let mut bytes = [0; TAG_BYTES];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}

/// A message of a connection as bytes.
pub(crate) fn encoded(body: Body<'_>) -> Result<Vec<u8>, FormatError> {
    let mut bytes = Vec::new();
    wire::encode(&Packet { context: ContextId { group: 0, collective: 0 }, body }, &mut bytes)?;
    Ok(bytes)
}

/// The same with the tag behind it that it has once both sides have proven who they are.
pub(crate) fn tagged(body: Body<'_>, tags: Option<&mut MessageTags>) -> Result<Vec<u8>, FormatError> {
    let mut bytes = encoded(body)?;
    if let Some(tags) = tags {
        let tag = tags.next(&bytes, &keyed_hash);
        bytes.extend_from_slice(&tag);
    }
    Ok(bytes)
}

/// Where a service process listens, as groups name it.
#[must_use]
pub const fn endpoint_of(address: SocketAddr) -> Endpoint {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    Endpoint { address: ip, port: address.port() }
}

/// Where to connect to reach a service process.
#[must_use]
pub fn address_of(endpoint: Endpoint) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(endpoint.address).to_canonical(), endpoint.port)
}

impl From<LinkEnd> for Link {
    fn from(end: LinkEnd) -> Self {
        Self { gid: end.gid.0, mac: end.mac.0, queue_pair: end.qpn, nonce: end.nonce }
    }
}

impl From<Link> for LinkEnd {
    fn from(link: Link) -> Self {
        Self { gid: Gid(link.gid), mac: Mac(link.mac), qpn: link.queue_pair, nonce: link.nonce }
    }
}

#[cfg(test)]
mod tests {
    use flexcast_proto::service::wire::Secret;

    use super::*;

    #[test]
    fn endpoints_are_addresses() {
        for text in ["127.0.0.1:4791", "[2001:db8::1]:5"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(address_of(endpoint_of(address)), address);
        }
    }

    /// RFC 4231, test case 1, with the key filled up with zeros, which changes nothing of an HMAC.
    #[test]
    fn the_keyed_hash_is_hmac_sha_256() {
        let mut key = [0; TAG_BYTES];
        key[..20].fill(0x0b);
        let tag = keyed_hash(&Secret::new(key), b"Hi There");
        let hex: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    }
}
