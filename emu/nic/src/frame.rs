//! Frames as a network of switches sees them.

use emu_fabric::{Destination, NetworkFrame};

use crate::address::{Address, Gid};
use crate::mix::mix;
use crate::packet::{Extension, Packet, priority};
use crate::transport::Transport;

impl Address {
    /// The Ethernet address as a number, by which a switch knows a port.
    #[must_use]
    pub fn mac_number(&self) -> u64 {
        let [a, b, c, d, e, f] = self.mac;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

impl Gid {
    /// The identifier as a number, by which a switch knows a group.
    #[must_use]
    pub fn number(self) -> u128 {
        u128::from_be_bytes(self.0)
    }
}

impl NetworkFrame for Packet {
    /// A group by its identifier, a port by its Ethernet address.
    fn destination(&self) -> Destination {
        if self.destination.is_multicast() {
            Destination::Group(self.destination.gid.number())
        } else {
            Destination::Address(self.destination.mac_number())
        }
    }

    /// A hash of both ends' addresses, the UDP source port and the queue pairs.
    fn flow(&self) -> u64 {
        if self.transport == Transport::Ethernet {
            return self.ethernet_flow();
        }
        let source_qpn = match self.extension {
            Extension::Datagram { source_qpn, .. } => source_qpn,
            _ => 0,
        };
        let ends = [&self.source, &self.destination].map(|end| {
            let gid = end.gid.number();
            [end.mac_number(), gid as u64, (gid >> 64) as u64]
        });
        let queue_pairs = u64::from(source_qpn) << 32 | u64::from(self.destination_qpn);
        let port = u64::from(self.network.udp_source_port);
        ends.iter().flatten().chain(&[queue_pairs, port]).fold(0, |hash, &word| mix(hash ^ word))
    }

    fn payload_bytes(&self) -> u64 {
        self.payload.len() as u64
    }

    fn priority(&self) -> u8 {
        priority(self.network.traffic_class)
    }

    /// Sets [`Packet::damage`]; a second fault adds nothing to the first.
    fn corrupt(&mut self, seed: u64) {
        self.damage.get_or_insert(seed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{DEFAULT_PKEY, Network, Operation};
    use crate::wire::{DecodeError, decode, encode};

    fn packet(payload: usize) -> Packet {
        Packet {
            source: Address { mac: [2, 0, 0, 0, 0, 1], gid: Gid::from_ipv4([198, 18, 0, 1]) },
            destination: Address { mac: [2, 0, 0, 0, 1, 2], gid: Gid::from_ipv4([198, 18, 1, 2]) },
            network: Network::default(),
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
            payload: vec![7; payload].into(),
            damage: None,
        }
    }

    #[test]
    fn ports_and_groups_are_distinguished() {
        assert_eq!(packet(0).destination(), Destination::Address(0x0200_0000_0102));
        let gid = Gid::from_ipv4([239, 0, 0, 9]);
        let group = Packet { destination: Address { mac: [0; 6], gid }, ..packet(0) };
        assert_eq!(group.destination(), Destination::Group(0xFFFF_EF00_0009));
    }

    #[test]
    fn the_class_selector_is_the_priority() {
        for (traffic_class, priority) in [(0, 0), (0x1F, 0), (0x20, 1), (0xA4, 5), (0xFF, 7)] {
            let network = Network { traffic_class, ..Network::default() };
            assert_eq!(Packet { network, ..packet(1) }.priority(), priority, "{traffic_class:#x}");
        }
    }

    #[test]
    fn a_flow_is_what_must_stay_in_order() {
        let one = packet(9);
        assert_eq!(one.flow(), Packet { psn: 5, payload: vec![1].into(), ..one.clone() }.flow());
        let others = [
            Packet { destination_qpn: 7, ..one.clone() },
            Packet { source: one.destination, ..one.clone() },
            Packet { network: Network { udp_source_port: 0xC001, ..one.network }, ..one.clone() },
            Packet { extension: Extension::Datagram { qkey: 5, source_qpn: 7 }, ..one.clone() },
        ];
        for other in others {
            assert_ne!(other.flow(), one.flow(), "{other:?}");
        }
    }

    /// In the payload, in the padding or in the check sequence itself, of long frames and of those shorter than
    /// Ethernet allows.
    #[test]
    fn damage_shows_in_the_frame() {
        for bytes in [0, 1, 61, 4096] {
            let (mut good, mut bad) = (Vec::new(), Vec::new());
            encode(&packet(bytes), &mut good).expect("a datagram");
            for seed in [0, 1, 31, 0x0123_4567_89AB_CDEF, u64::MAX] {
                let mut packet = packet(bytes);
                packet.corrupt(seed);
                packet.corrupt(77);
                assert_eq!(packet.damage, Some(seed));
                bad.clear();
                encode(&packet, &mut bad).expect("a damaged datagram");
                let flipped: u32 = good.iter().zip(&bad).map(|(good, bad)| (good ^ bad).count_ones()).sum();
                assert_eq!((flipped, bad.len()), (1, good.len()));
                assert!(matches!(decode(&bad), Err(DecodeError::Icrc { .. })), "{bytes} bytes, seed {seed}");
            }
        }
    }
}
