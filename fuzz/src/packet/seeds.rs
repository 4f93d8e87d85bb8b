//! A frame of each opcode, alone and towards live queue pairs, and operations on top of them.

use emu_machine::address;
use emu_machine::nic::wire;
use emu_machine::nic::{Acknowledgement, Address, DEFAULT_PKEY, Extension, Gid, Network, Operation, Packet};

use super::{Abuse, TRANSPORTS, mode, op};
use crate::fixture::{QKEY, world};
use crate::input::Script;

/// A frame of each opcode, from the codec itself, alone and towards live queue pairs, and operations on top of them.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut world = world();
    let abuse = Abuse::new(&mut world);
    let packet = |pair: usize, operation: Operation, extension: Extension, bytes: usize| Packet {
        source: address(0),
        destination: address(1),
        network: Network::default(),
        pkey: DEFAULT_PKEY,
        transport: TRANSPORTS[pair],
        operation,
        first: true,
        last: true,
        solicited: false,
        ack_request: pair == 0,
        destination_qpn: abuse.pairs[pair][1].qp.number,
        psn: crate::fixture::FIRST_PSN,
        immediate: None,
        invalidate: None,
        message_number: 0,
        extension,
        payload: vec![7; bytes].into(),
        damage: None,
    };
    let frame = |packet: Packet| {
        let mut frame = Vec::new();
        wire::encode(&packet, &mut frame).expect("a packet of the architecture");
        frame
    };
    let rkey = |pair: usize| abuse.buffers[pair][1].key;
    let remote = |pair: usize, len: u32| Extension::Remote { address: 64, rkey: rkey(pair), len };
    let atomic = Extension::Atomic { address: 8, rkey: rkey(0), swap_or_add: 1, compare: 0 };
    let datagram = Extension::Datagram { qkey: QKEY, source_qpn: 77 };
    let acknowledge = Extension::Acknowledge(Acknowledgement::Positive);
    let v6 = |packet: Packet| {
        let gid = |last| Gid([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        let source = Address { gid: gid(1), ..packet.source };
        Packet { source, destination: Address { gid: gid(2), ..packet.destination }, ..packet }
    };
    let kinds = [
        ("send-rc", frame(packet(0, Operation::Send, Extension::None, 100))),
        ("send-first", frame(Packet { last: false, ..packet(1, Operation::Send, Extension::None, 256) })),
        ("send-immediate", frame(Packet { immediate: Some([1; 4]), ..packet(1, Operation::Send, Extension::None, 3) })),
        (
            "send-invalidate",
            frame(Packet { invalidate: Some(rkey(0)), ..packet(0, Operation::Send, Extension::None, 4) }),
        ),
        ("send-ud", frame(packet(2, Operation::Send, datagram, 64))),
        ("send-v6", frame(v6(packet(2, Operation::Send, datagram, 64)))),
        ("write", frame(packet(0, Operation::Write, remote(0, 200), 200))),
        (
            "write-middle",
            frame(Packet { first: false, last: false, ..packet(1, Operation::Write, Extension::None, 256) }),
        ),
        (
            "write-immediate",
            frame(Packet { immediate: Some([2; 4]), ..packet(1, Operation::Write, remote(1, 16), 16) }),
        ),
        ("read", frame(packet(0, Operation::ReadRequest, remote(0, 600), 0))),
        ("response", frame(packet(0, Operation::ReadResponse, acknowledge, 16))),
        ("acknowledge", frame(packet(0, Operation::Acknowledge, acknowledge, 0))),
        ("compare-swap", frame(packet(0, Operation::CompareSwap, atomic, 0))),
        ("fetch-add", frame(packet(0, Operation::FetchAdd, atomic, 0))),
        (
            "atomic-acknowledge",
            frame(packet(0, Operation::AtomicAcknowledge, Extension::AtomicAcknowledge { original: 5 }, 0)),
        ),
    ];
    let mut seeds = vec![("raw", [&[mode::FRAME], &kinds[0].1[..]].concat())];
    for (name, frame) in kinds {
        let live = Script::new().bytes(&[mode::OPERATIONS, op::RECEIVE, 0, 1, 255, op::RECEIVE, 1, 1, 255]);
        let live = live.bytes(&[op::RECEIVE, 2, 1, 255, op::FRAME, 0]).u16(frame.len() as u16).bytes(&frame);
        seeds.push((name, live.bytes(&[op::STEP, 50]).done()));
        if name == "send-v6" {
            seeds.push(("fixed", [&[mode::FIXED], &frame[..]].concat()));
        }
    }
    // To RC of card 1: Send with everything right; then an acknowledgement of something to card 0.
    let operations = Script::new().bytes(&[mode::OPERATIONS, op::POST, 0, 0, 0, 64, op::STEP, 30]);
    let operations = operations.bytes(&[op::PACKET, 3, 0, 0b1011, 0, 0, 0]).u16(64);
    let operations = operations.bytes(&[op::PACKET, 0, 4, 0b0011, 0xFF, 0, 5]).u16(0);
    // A datagram to the group.
    let operations = operations.bytes(&[op::RECEIVE, 2, 1, 255, op::PACKET, 5, 0, 0b0011, 0, 1, 1]).u32(9).u16(64);
    seeds.push(("operations", operations.bytes(&[op::STEP, 60, op::DRAIN]).done()));
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Input;
    use crate::packet::MAX_STEPS;

    /// Frames of seeds are accepted, so that the fuzzer starts from packets and not from noise.
    #[test]
    fn seeds_are_delivered() {
        for (name, bytes) in seeds() {
            let mut input = Input::new(&bytes);
            if input.u8() != mode::OPERATIONS {
                continue;
            }
            let mut world = world();
            let mut abuse = Abuse::new(&mut world);
            while !input.is_empty() {
                abuse.operation(&mut input);
            }
            abuse.fixture.settle(MAX_STEPS);
            let counters = *abuse.fixture.world.card(1).expect("a card").nic.counters();
            let lost = counters.qp_drops + counters.pkey_drops + counters.qkey_drops + counters.remote_access_errors;
            assert!(counters.rx_packets > 0, "{name}: {counters:?}");
            // Only a UMR key can be invalidated.
            assert_eq!(lost == 0, name != "send-invalidate", "{name}: {counters:?}");
        }
    }
}
