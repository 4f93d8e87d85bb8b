//! RoCE packets as the bytes of Ethernet frames, and back.
//!
//! A frame is Ethernet (14 bytes, without preamble and frame check sequence), IPv4 without options or IPv6, UDP to port
//! 4791 (version 1: a global route header in place of both, by an EtherType of its own), the base transport header
//! (BTH), the extended headers of its opcode, the payload padded to four bytes, and the invariant check sequence
//! (ICRC). Frames shorter than Ethernet allows are padded with zeros after the check sequence.
//!
//! Sources: IBTA Architecture Specification volume 1, chapter 9 (transport headers, opcodes) and annexes A16 (RoCE) and
//! A17 (RoCEv2); RFC 791 (IPv4), RFC 8200 (IPv6), RFC 768 (UDP), RFC 1112 and RFC 2464 (Ethernet addresses of groups),
//! IEEE 802.3.
//!
//! What a [`Packet`] has no field for is sent as follows, and ignored on arrival:
//! * the migration bit is 1 (no automatic path migration), the congestion bits FECN and BECN are 0, reserved bits are
//!   0;
//! * UDP checksum 0, as the Linux drivers send it over both IPv4 and IPv6: the check sequence covers more;
//! * credits: a positive acknowledgement says that it has none to report (code 31).
//!
//! What carries these bytes onward, and which errors do what to whom, is the caller's business: a card drops what it
//! cannot decode.

mod decode;
mod encode;
mod error;
mod opcode;

use emu_fabric::CaptureFrame;

pub use decode::{decode, decode_any};
pub use encode::{encode, entropy_port, group_mac};
pub use error::{DecodeError, EncodeError};

use crate::packet::Packet;

/// UDP port of RoCEv2 (IANA: roce).
pub const UDP_PORT: u16 = 4791;
/// Largest payload: the largest path MTU of the architecture.
pub const MAX_PAYLOAD_BYTES: usize = 4096;
/// Shortest Ethernet frame without its check sequence.
pub const MIN_FRAME_BYTES: usize = 60;

const ETHERNET_BYTES: usize = 14;
/// EtherType of RoCE version 1.
pub(crate) const ROCE_V1: u16 = 0x8915;
const UDP_BYTES: usize = 8;
const BTH_BYTES: usize = 12;
const ICRC_BYTES: usize = 4;
/// Largest value of a queue pair number, a PSN or an MSN.
const MAX_24: u32 = 0xFF_FFFF;

impl CaptureFrame for Packet {
    type Error = EncodeError;

    fn capture_bytes(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        encode(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Address, Gid, RoceVersion};
    use crate::grh::{GRH_BYTES, routing_header};
    use crate::packet::{DEFAULT_PKEY, Extension, Network, Operation};
    use crate::transport::Transport;

    /// The header that a datagram's receive begins with is the one that was on the wire.
    #[test]
    fn the_routing_header_is_that_of_the_wire() {
        let v4 = |last| Gid::from_ipv4([192, 0, 2, last]);
        let v6 = |first, last| Gid([first, 0x0E, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        let v2 = |source, destination| (source, destination, RoceVersion::V2);
        for (source, destination, version) in [
            v2(v4(1), v4(2)),
            v2(v6(0xFD, 1), v6(0xFD, 2)),
            v2(v4(1), v6(0xFF, 3)),
            (v4(1), v4(2), RoceVersion::V1),
            (v6(0xFD, 1), v6(0xFD, 2), RoceVersion::V1),
        ] {
            for bytes in [0, 1, 1024] {
                let packet = Packet {
                    source: Address { mac: [2; 6], gid: source },
                    destination: Address { mac: [4; 6], gid: destination },
                    network: Network {
                        version,
                        traffic_class: 0xB2,
                        hop_limit: 9,
                        flow_label: 0x12345,
                        identification: 0x8001,
                        dont_fragment: false,
                        udp_source_port: 1,
                    },
                    pkey: DEFAULT_PKEY,
                    transport: Transport::Ud,
                    operation: Operation::Send,
                    first: true,
                    last: true,
                    solicited: false,
                    ack_request: false,
                    destination_qpn: 3,
                    psn: 4,
                    immediate: None,
                    invalidate: None,
                    message_number: 0,
                    extension: Extension::Datagram { qkey: 5, source_qpn: 6 },
                    payload: vec![7; bytes].into(),
                    damage: None,
                };
                let mut frame = Vec::new();
                encode(&packet, &mut frame).expect("a datagram");
                let is_ipv4 = version == RoceVersion::V2 && destination.ipv4().is_some();
                let ip_bytes = if is_ipv4 { 20 } else { GRH_BYTES };
                let header = routing_header(&packet);
                assert_eq!(header[GRH_BYTES - ip_bytes..], frame[ETHERNET_BYTES..ETHERNET_BYTES + ip_bytes]);
            }
        }
    }
}
