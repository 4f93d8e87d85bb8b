//! Bytes of all that the machines in a test say: what they give has an encoding, which says the same.

use flexcast_proto::service::ContextId;
use flexcast_proto::service::wire::{Body, Packet, decode, encode};

/// Sends a message through its bytes.
pub(crate) fn check(context: ContextId, body: Body<'_>) {
    let packet = Packet { context, body };
    let mut bytes = Vec::new();
    encode(&packet, &mut bytes).unwrap();
    assert_eq!(decode(&bytes), Ok(packet));
}
