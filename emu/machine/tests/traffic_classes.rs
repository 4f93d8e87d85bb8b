//! Data and control messages of different traffic classes, distinguished at every port.

use crate::support;
use emu_machine::fabric::Topology;
use emu_machine::nic::{Gid, Transport};
use emu_machine::{Config, Wiring, World};
use support::wire::{Endpoint, To, pattern, rest};

const HOSTS: usize = 188;
const N: u32 = 4096;
/// Class selector 5.
const CONTROL: u8 = 0xA0;

/// A multicast crosses 212 ports of switches, whatever is said on reliable connections meanwhile.
#[test]
fn control_messages_do_not_blur_the_cost_of_a_multicast() {
    let topology = Topology::named("fat-tree-188").expect("a preset");
    let config = Config { cards: HOSTS, wiring: Wiring::network(topology), ..Config::default() };
    let mut world = World::new(config).expect("a valid configuration");
    let group = Gid::from_ipv4([239, 1, 2, 3]);
    let mut members: Vec<_> = (0..HOSTS).map(|card| Endpoint::new(&mut world, card, Transport::Ud)).collect();
    for end in &mut members {
        end.connect(&mut world, 0, (end.card, 0));
        end.receive(&world, 1);
        world.card(end.card).expect("a card").nic.attach_multicast(end.qpn, group).expect("a member");
    }
    // A ring of reliable connections: the right end of each rank writes to the left end of the next.
    let ends = |world: &mut World| -> Vec<_> {
        let end = |card| {
            let mut end = Endpoint::new(world, card, Transport::Rc);
            end.class = CONTROL;
            end
        };
        (0..HOSTS).map(end).collect()
    };
    let (mut right, mut left) = (ends(&mut world), ends(&mut world));
    for (rank, right) in right.iter_mut().enumerate() {
        let next = (rank + 1) % HOSTS;
        right.connect(&mut world, 0, (next, left[next].qpn));
        left[next].connect(&mut world, 0, (rank, right.qpn));
        left[next].receive(&world, 1);
    }

    let data = pattern(N as usize, 3);
    members[7].source(&world, 0, &data);
    members[7].send(&mut world, 0, Some(To::Group(group)), (0, N));
    for (rank, right) in right.iter_mut().enumerate() {
        let target = left[(rank + 1) % HOSTS].target();
        right.source(&world, 0, &pattern(64, rank as u8));
        right.write(&mut world, target, Some(rank as u32), (0, 64));
    }
    rest(&mut world);

    for (card, member) in members.iter_mut().enumerate() {
        assert_eq!(member.arrived(&world).len(), 1, "the own one comes inside the card");
        assert!(member.received(&world, 0, N as usize) == data, "card {card}");
        assert_eq!((right[card].sent(&world).len(), left[card].arrived(&world).len()), (1, 1));
        let port = world.port_counters(card);
        assert_eq!(port.rx_priority_payload_bytes[5], 64);
        assert_eq!(port.rx_priority_payload_bytes[0], if card == 7 { 0 } else { u64::from(N) });
    }
    let totals = world.network().expect("a network").totals().switches;
    assert_eq!(totals.priority_payload_bytes(0), 212 * u64::from(N));
    assert_eq!(totals.priority_payload_bytes(5), 424 * 64);
    assert_eq!(totals.payload_bytes(), 212 * u64::from(N) + 424 * 64, "acknowledgements have no payload");
}
