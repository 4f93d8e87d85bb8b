//! Collectives whose data goes straight into the user's buffer: UC Writes to groups, as only the emulator has them, and
//! to each rank; and datagrams, where the same must hold for all. With the real firmware, all ranks in one thread.

use std::time::Duration;

use emu_config::Machine;
use emu_machine::fabric::{Fault, FaultEvent, FaultScript, Topology};
use emu_machine::{Config as MachineConfig, NetworkConfig, Wiring, World, with_world};
use emu_provider::emulated;
use flexcast::{Allgather, Buffer, Communicator, Config, Endpoint, Error, Overheads, Pending, Transport};
use flexcast_lab::sim::params::{Operation, SimParams};
use flexcast_lab::sim::report::Report;
use flexcast_lab::sim::run;
use flexcast_lab::tput::run::ImageFile;
use flexcast_tests::communicators::{self, connect, contribution, ended, gathered, with_machine};
use flexcast_tests::{assert_mentions, image_bytes};
use flexio::Provider;

const ALL: [Transport; 3] = [Transport::Ud, Transport::UcMulticast, Transport::UcUnicast];
const UC: [Transport; 2] = [Transport::UcMulticast, Transport::UcUnicast];
const PS_PER_US: u64 = 1_000_000;

fn params(transport: Transport, operation: Operation, ranks: u32, bytes: u64) -> SimParams {
    let config = Config::default()
        .with_subgroups(2)
        .transport(transport)
        .slots(32)
        .receive_batch(8)
        .send_batch(4)
        .send_depth(32)
        .max_receive_bytes(64 << 20);
    SimParams { ranks, operation, bytes, root: ranks - 1, warm_up: 0, config, ..SimParams::default() }
}

/// Runs a simulation, under the race detector, in which every rank must have every byte.
fn simulate(params: &SimParams, loss_ppm: u32) -> Report {
    let machine = Machine { loss_ppm: Some(loss_ppm), detect_races: true, seed: Some(3), ..Machine::default() };
    let machine = machine.config_of(params.cards()).expect("a switch");
    let provider = emulated(MachineConfig { uc_multicast: params.needs_uc_multicast(), ..machine }).expect("a machine");
    let image = ImageFile { name: "allgather".to_owned(), elf: image_bytes("allgather") };
    let report =
        run::run(&provider, Some(&image), params, &run::source(params).expect("memory"), &mut |_| {}).expect("it runs");
    assert!(report.digest_ok && report.failures == 0, "{params:?}: {:?}", report.errors);
    assert_eq!(with_world(World::take_races).expect("the machine"), [], "{params:?}");
    report
}

#[test]
fn every_operation_works_with_every_transport_with_and_without_losses() {
    for transport in ALL {
        for operation in [Operation::Broadcast, Operation::Allgather, Operation::Allgatherv] {
            for (ranks, bytes, loss_ppm) in [(1, 5000, 0), (2, 0, 0), (5, 1, 0), (5, 50_001, 0), (5, 200_000, 10_000)] {
                let mut params = SimParams { iterations: 2, ..params(transport, operation, ranks, bytes) };
                params.config.chains = ranks.min(2);
                let report = simulate(&params, loss_ppm);
                assert_eq!(report.recovered_chunks > 0, loss_ppm > 0, "{transport:?} {operation:?} {ranks} {bytes}");
            }
        }
    }
}

/// Two ranks share each card: what one sends reaches its neighbour inside the card.
#[test]
fn ranks_that_share_a_card_reach_one_another_on_every_transport() {
    for transport in ALL {
        let params = SimParams { ranks_per_card: 2, ..params(transport, Operation::Allgather, 6, 30_000) };
        let report = simulate(&params, 0);
        assert_eq!(report.recovered_chunks, 0, "{transport:?}");
    }
}

/// 16 packets to a message: one completion each, and none for a message that lost a packet, whose bytes recovery
/// brings.
#[test]
fn long_messages_have_one_completion_and_are_lost_as_a_whole() {
    for transport in UC {
        let mut params = params(transport, Operation::Allgather, 8, 2 << 20);
        params.config.chunk_bytes = 64 << 10;
        let chunks = 8 * 7 * 32;
        let report = simulate(&params, 0);
        assert_eq!(report.recovered_chunks, 0);
        // Ranks are alone on their cards: nothing comes back to the sender.
        assert_eq!(report.workers.expect("workers").cqes, chunks, "{transport:?}");

        const LOSS: f64 = 0.01;
        let report = simulate(&params, 10_000);
        let expected = 1.0 - (1.0 - LOSS).powi(16);
        let lost = report.recovered_chunks as f64 / chunks as f64;
        assert!(
            (expected * 0.8..expected * 1.2).contains(&lost),
            "{transport:?}: {lost} of the chunks lost, computed {expected}"
        );
        assert_eq!(report.recovered_chunks * (64 << 10), report.recovered_bytes, "whole messages are fetched");
        let cqes = report.workers.expect("workers").cqes;
        assert_eq!(cqes + report.recovered_chunks, chunks, "{transport:?}: every message is announced or fetched");
    }
}

#[test]
fn a_message_may_be_a_whole_block() {
    for transport in UC {
        let mut params = params(transport, Operation::Broadcast, 4, 1 << 20);
        params.config = params.config.with_subgroups(1).chunk_bytes(1 << 20);
        let report = simulate(&params, 0);
        assert_eq!(report.workers.expect("workers").cqes, 3, "{transport:?}");
    }
}

/// Without a copy for each chunk one receive thread keeps up with a link, with one completion per 16 KiB (185.8 of 200
/// Gbit/s, *emulated*, with 8 MiB each; 191.8 by 16 threads at 4 KiB).
#[test]
fn one_thread_fills_a_link_with_long_messages() {
    let mut params = params(Transport::UcMulticast, Operation::Allgather, 8, 4 << 20);
    params.config = params
        .config
        .with_subgroups(16)
        .chunk_bytes(16 << 10)
        .send_threads(2)
        .slots(128)
        .receive_batch(64)
        .send_batch(32)
        .send_depth(256)
        .chains(8);
    params.config.receive_threads = 1;
    let report = simulate(&params, 0);
    assert_eq!((report.recovered_chunks, report.traffic.rnr_drops), (0, 0));
    let receiving_us = report.phases.expect("multicast has phases").receiving.most_us;
    let gbit_s = (7u64 << 22) as f64 * 8.0 / (receiving_us * 1e3);
    assert!(gbit_s >= 170.0, "{gbit_s} Gbit/s of 200");
}

/// Without multicast a root sends its block to every other rank.
#[test]
fn unicast_sends_a_copy_to_each_rank_and_multicast_one_to_all() {
    let posts = |transport| {
        let report = simulate(&params(transport, Operation::Broadcast, 6, 40 * 4096), 0);
        report.workers.expect("workers").posted
    };
    assert_eq!(ALL.map(posts), [40, 40, 5 * 40]);
}

fn config(transport: Transport) -> Config {
    communicators::config()
        .transport(transport)
        .retry_exponent(8)
        .packet_lifetime(Duration::from_micros(20_000))
        .overheads(Overheads { cutoff_slack: Duration::from_micros(100), ..Config::default().overheads })
}

/// Runs `body` with so many cards at a switch, under the race detector.
fn with_cards(count: usize, uc_multicast: bool, faults: FaultScript, body: impl FnOnce(&Provider, &[Endpoint])) {
    let topology = Topology::named(&format!("switch-{count}")).expect("a switch");
    let network = NetworkConfig { topology, faults, hosts: Vec::new() };
    let wiring = Wiring::Network(Box::new(network));
    let machine = MachineConfig { cards: count, uc_multicast, detect_races: true, wiring, ..MachineConfig::default() };
    with_machine(machine, body);
}

/// An Allgather in place of all ranks in these buffers, which come back.
fn gather(
    provider: &Provider,
    communicators: &[Communicator],
    mut buffers: Vec<Buffer>,
    (seed, bytes): (u64, usize),
) -> (Vec<Buffer>, u64) {
    let ranks = communicators.len();
    for (rank, buffer) in buffers.iter_mut().enumerate() {
        buffer.fill(seed as u8 ^ 0x5A);
        buffer.write(rank * bytes, &contribution(seed, rank, bytes)).expect("written");
    }
    let all = communicators.iter().zip(buffers).map(|(communicator, buffer)| {
        let request = communicator.post(Allgather::new().in_place(buffer)).expect("accepted");
        (communicator, request)
    });
    let all: Vec<_> = all.collect();
    let mut recovered = 0;
    let buffers = ended(provider, all).into_iter().map(|done| {
        let done = done.expect("success");
        recovered += done.report.recovered_chunks;
        let buffer = done.receive;
        assert!(buffer.to_vec().expect("read") == gathered(seed, ranks, bytes), "operation {seed}");
        buffer
    });
    (buffers.collect(), recovered)
}

/// Lets virtual time pass.
fn wait_until(provider: &Provider, at_ps: u64) {
    while provider.relax().now_ps() < at_ps {
        provider.relax().relax();
    }
}

/// Packets of an operation are held back until long after it has been released. Not one of them changes what the owner
/// of the buffer has put there since, and later operations in the same buffer come out right.
#[test]
fn no_packet_of_an_operation_changes_the_buffer_once_it_is_released() {
    const BYTES: usize = 60_000;
    const HELD_FROM_PS: u64 = 20_000 * PS_PER_US;
    for transport in ALL {
        let (mut late, mut between, mut discarded) = (0, 0, 0);
        // Multiples of a packet's time on the wire, 0.17 us or so: from the next operations to long after all of them.
        for behind in [2_000, 2_500, 3_000, 5_000, 60_000] {
            let hold = Fault::Reorder { ppm: 200_000, behind };
            let topology = Topology::named("switch-3").expect("a switch");
            let faults = FaultEvent::towards_hosts(&topology, hold).into_iter();
            let faults = faults.map(|event| event.during(HELD_FROM_PS, HELD_FROM_PS + 60 * PS_PER_US)).collect();
            with_cards(3, true, FaultScript { seed: 7, faults }, |provider, cards| {
                let communicators = connect(cards.iter(), &config(transport));
                let buffers = cards.iter().map(|card| card.buffer(3 * BYTES).expect("a buffer")).collect();
                let (buffers, _) = gather(provider, &communicators, buffers, (1, BYTES));
                assert!(provider.relax().now_ps() < HELD_FROM_PS, "the fault comes too early");
                wait_until(provider, HELD_FROM_PS);
                let before = refused();
                let (mut buffers, recovered) = gather(provider, &communicators, buffers, (2, BYTES));
                assert!(recovered > 0, "{transport:?}: packets were held back until after the cutoff");
                let released_ps = provider.relax().now_ps();
                assert!(released_ps < HELD_FROM_PS + 5_000 * PS_PER_US);
                if behind == 60_000 {
                    // The owner uses it otherwise.
                    buffers.iter_mut().for_each(|buffer| buffer.fill(0xC3));
                    wait_until(provider, HELD_FROM_PS + 15_000 * PS_PER_US);
                    for buffer in &buffers {
                        assert!(buffer.to_vec().expect("read") == [0xC3; 3 * BYTES], "{transport:?}: written late");
                    }
                    late += refused() - before;
                }
                // Some arrive in the middle of these.
                for seed in 3..8 {
                    let refused_before = refused();
                    (buffers, _) = gather(provider, &communicators, buffers, (seed, BYTES));
                    between += refused() - refused_before;
                }
                wait_until(provider, HELD_FROM_PS + 20_000 * PS_PER_US);
                // Receive contexts report when an operation ends.
                gather(provider, &communicators, buffers, (8, BYTES));
                discarded +=
                    communicators.iter().map(|c| c.receive_statistics().expect("reported").wrong_id).sum::<u64>();
            });
            assert_eq!(with_world(World::take_races).expect("the machine"), [], "{transport:?}");
        }
        if transport.is_zero_copy() {
            // The cards drop what comes late. What comes while a receive context is being closed has its key still, and
            // is discarded there: it is of the operation that has the buffer.
            assert!(late > 0 && between > 0, "{transport:?}: {late} Writes refused after the end, {between} between");
        } else {
            // The receive contexts see it, and copy nothing that is not their operation's.
            assert!(discarded > 0 && (late, between) == (0, 0), "{discarded} datagrams discarded, {late}, {between}");
        }
    }
}

/// Two ranks on each card: what one multicasts comes back for the other, and must not be written to where it is read
/// from.
#[test]
fn ranks_of_one_card_send_from_memory_that_no_write_reaches() {
    const BYTES: usize = 60_000;
    with_cards(2, true, FaultScript::default(), |provider, cards| {
        let sites = [0, 0, 1, 1].map(|card| &cards[card]);
        let communicators = connect(sites.into_iter(), &config(Transport::UcMulticast));
        let room = |bytes: usize| sites.map(|card| card.buffer(bytes).expect("a buffer"));
        let (buffers, recovered) = gather(provider, &communicators, room(4 * BYTES).into(), (1, BYTES));
        assert_eq!((buffers.len(), recovered), (4, 0), "in place");
        for root in 0..4 {
            let mut buffers = room(BYTES);
            buffers[root].write(0, &contribution(7, root, BYTES)).expect("written");
            let all = communicators.iter().zip(buffers).map(|(communicator, buffer)| {
                let request = communicator.broadcast(buffer, root as u32).expect("accepted");
                (communicator, request)
            });
            for done in ended(provider, all.collect::<Vec<_>>()) {
                let got = done.expect("success").receive.to_vec().expect("read");
                assert!(got == contribution(7, root, BYTES), "root {root}");
            }
        }
    });
    assert_eq!(with_world(World::take_races).expect("the machine"), []);
}

/// Writes that cards have dropped because their key allows nothing any more.
fn refused() -> u64 {
    let of = |world: &mut World| {
        (0..world.card_count()).map(|card| world.card(card).expect("a card").nic.counters().access_drops).sum()
    };
    with_world(of).expect("the machine")
}

#[test]
fn cards_that_lack_the_multicast_of_uc_are_refused_with_what_to_take_instead() {
    with_cards(2, false, FaultScript::default(), |provider, cards| {
        let error = Pending::new(&cards[0], 0, 2, config(Transport::UcMulticast)).expect_err("as real cards");
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert_mentions(
            &error,
            &["no multicast of UC queue pairs", "group keys", "Transport::UcUnicast", "Transport::Ud"],
        );
        // The others do not need it.
        for transport in [Transport::Ud, Transport::UcUnicast] {
            let communicators = connect(cards.iter(), &config(transport));
            let buffers = cards.iter().map(|card| card.buffer(20_000).expect("a buffer")).collect();
            gather(provider, &communicators, buffers, (1, 10_000));
        }
    });
}

#[test]
fn ranks_with_different_transports_are_refused() {
    with_cards(2, true, FaultScript::default(), |_, cards| {
        let made = |(rank, transport)| Pending::new(&cards[rank as usize], rank, 2, config(transport)).expect("made");
        let pending: Vec<Pending> = (0..).zip([Transport::Ud, Transport::UcMulticast]).map(made).collect();
        let infos: Vec<Vec<u8>> = pending.iter().map(Pending::connect_info).collect();
        for (own, pending) in pending.into_iter().enumerate() {
            let error = pending.connect(&infos).expect_err("they do not fit");
            assert_mentions(&error, &[&format!("rank {} has transport", 1 - own), "one configuration"]);
        }
    });
}

/// Communicators of all transports on the same cards, of all ranks and of halves of them, each with an operation under
/// way.
#[test]
fn communicators_of_all_transports_share_cards() {
    const BYTES: usize = 30_001;
    with_cards(4, true, FaultScript::default(), |provider, cards| {
        let parts = [cards, &cards[..2], &cards[2..]];
        let groups: Vec<Vec<Communicator>> =
            ALL.iter().flat_map(|transport| parts.map(|cards| connect(cards.iter(), &config(*transport)))).collect();
        let mut all = Vec::new();
        for (seed, group) in (0..).zip(&groups) {
            let ranks = group.len();
            for (rank, communicator) in group.iter().enumerate() {
                let mut send = communicator.endpoint().buffer(BYTES).expect("a buffer");
                send.write(0, &contribution(seed, rank, BYTES)).expect("written");
                let receive = communicator.endpoint().buffer(ranks * BYTES).expect("a buffer");
                let request = communicator.allgather(send, receive).expect("accepted");
                all.push((communicator, request));
            }
        }
        let mut done = ended(provider, all).into_iter();
        for (seed, ranks) in (0..).zip([4, 2, 2].repeat(3)) {
            for _ in 0..ranks {
                let done = done.next().expect("one for each rank");
                let got = done.expect("success").receive.to_vec().expect("read");
                assert!(got == gathered(seed, ranks, BYTES), "communicator {seed}");
            }
        }
    });
    assert_eq!(with_world(World::take_races).expect("the machine"), []);
}
