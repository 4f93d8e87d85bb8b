//! Names of the published kernels' transports in options, files and reports.

use flexcast_abi::Transport;
use serde::{Deserialize as _, Deserializer, Serializer, de};

/// The name: `uc` or `ud`.
#[must_use]
pub const fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::Uc => "uc",
        Transport::Ud => "ud",
    }
}

/// The transports, for options: name, what it is, value.
#[must_use]
pub fn transports() -> Vec<(&'static str, &'static str, Transport)> {
    let about = |transport| match transport {
        Transport::Uc => "Unreliable connected: RDMA Write with immediate straight into the user buffer",
        Transport::Ud => "Unreliable datagram: staged in the card, copied by loopback RDMA Writes",
    };
    Transport::ALL.iter().map(|transport| (name(*transport), about(*transport), *transport)).collect()
}

fn named<E: de::Error>(asked: &str) -> Result<Transport, E> {
    let known = Transport::ALL.iter().find(|transport| name(**transport) == asked);
    known.copied().ok_or_else(|| E::unknown_variant(asked, &["uc", "ud"]))
}

pub(crate) fn serialize<S: Serializer>(transport: &Transport, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(name(*transport))
}

/// A list of names.
pub(crate) fn list<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<Transport>, D::Error> {
    Vec::<String>::deserialize(from)?.iter().map(|asked| named(asked)).collect()
}

/// A name, or nothing.
pub(crate) fn optional<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Transport>, D::Error> {
    Option::<String>::deserialize(from)?.map(|asked| named(&asked)).transpose()
}
