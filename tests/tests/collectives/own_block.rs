//! The own block of an Allgather: long ones are copied by the card, while the host goes on.

use emu_machine::nic::{QpModify, QpState};
use emu_machine::{Config as MachineConfig, with_world};
use flexcast::{Cause, Communicator, Control, Transport};
use flexcast_tests::communicators::{check, config, connect, ended, gather, with_machine};

/// Packets that have gone round inside a card.
fn loopback_packets(card: usize) -> u64 {
    with_world(|world| world.card(card).map(|card| card.nic.counters().loopback_packets))
        .expect("a machine")
        .expect("a card")
}

/// Loopback packets of the first card while two ranks gather blocks of so many bytes straight into their buffers.
fn packets_for(bytes: usize, control: Control) -> u64 {
    let machine = MachineConfig { uc_multicast: true, detect_races: true, ..MachineConfig::default() };
    let mut packets = 0;
    with_machine(machine, |provider, cards| {
        let communicators = connect(cards.iter(), &config().transport(Transport::UcMulticast).control(control));
        for seed in 0..3 {
            let before = loopback_packets(0);
            let all: Vec<_> = communicators.iter().map(|one| (one, gather(one, seed, bytes))).collect();
            for outcome in ended(provider, all) {
                check(&outcome.expect("success"), seed, 2, bytes);
            }
            packets = loopback_packets(0) - before;
        }
    });
    packets
}

#[test]
fn long_own_blocks_are_copied_by_the_card_and_short_ones_by_the_host() {
    let short = packets_for(16 * 1024 - 1, Control::Host);
    assert_eq!(packets_for(16 * 1024, Control::Host), short + 5, "four packets of 4 KiB and an acknowledgement");
    assert_eq!(
        packets_for(256 * 1024 + 1, Control::Host),
        short + 67,
        "65 packets, and an acknowledgement of each of two Writes"
    );
}

/// The host would have to say when a copy is over, and has nothing to do there between post and flag.
#[test]
fn own_blocks_are_copied_by_the_host_where_the_protocol_runs_on_the_card() {
    let short = packets_for(1024, Control::Device);
    assert_eq!(packets_for(256 * 1024, Control::Device), short);
}

/// A communicator that goes while its card copies leaves buffers that nobody writes to any more.
#[test]
fn a_communicator_may_be_dropped_while_its_card_copies() {
    let machine = MachineConfig { uc_multicast: true, detect_races: true, ..MachineConfig::default() };
    with_machine(machine, |provider, cards| {
        let config = || config().transport(Transport::UcMulticast);
        for seed in 0..3 {
            let communicators = connect(cards.iter(), &config());
            let requests: Vec<_> = communicators.iter().map(|one| gather(one, seed, 300_000)).collect();
            for _ in 0..seed {
                communicators.iter().for_each(|one| _ = one.progress().expect("progress"));
                provider.relax().relax();
            }
            drop((requests, communicators));
            let communicators = connect(cards.iter(), &config());
            let all: Vec<_> = communicators.iter().map(|one| (one, gather(one, seed, 100_000))).collect();
            for outcome in ended(provider, all) {
                check(&outcome.expect("success"), seed, 2, 100_000);
            }
        }
        assert_eq!(with_world(emu_machine::World::take_races).expect("a machine"), []);
    });
}

/// Takes the queue pair that is connected to itself out of service, as an administrator or an error of the card does.
fn break_copier(card: usize) {
    with_world(|world| {
        world.nic_call(card, |nic, effects| {
            let is_own = |qpn: &u32| nic.query_qp(*qpn).is_ok_and(|qp| qp.path.dest_qpn == *qpn);
            let copiers: Vec<u32> = nic.queue_pairs(0).filter(is_own).collect();
            assert_eq!(copiers.len(), 1, "one queue pair copies");
            let error = QpModify { next_state: Some(QpState::Err), ..QpModify::default() };
            nic.modify_qp(0, copiers[0], &error, effects).expect("any state leads there");
        })
    })
    .expect("a machine")
    .expect("a card");
}

/// A copy that the card gives up is a failure of this rank's card at all ranks. Every buffer comes back; the
/// communicator takes no other operation, and a new one works.
#[test]
fn a_copy_that_the_card_gives_up_fails_the_operation_at_all_ranks() {
    let machine = MachineConfig { uc_multicast: true, detect_races: true, ..MachineConfig::default() };
    with_machine(machine, |provider, cards| {
        let config = || config().transport(Transport::UcMulticast);
        let gather_all = |communicators: &[Communicator]| -> Vec<_> {
            communicators.iter().map(|one| gather(one, 1, 300_000)).collect()
        };
        let communicators = connect(cards.iter(), &config());
        let requests = gather_all(&communicators);
        break_copier(0);
        for outcome in ended(provider, communicators.iter().zip(requests)) {
            let failed = outcome.expect_err("the own block of rank 0 is not there");
            let failure = failed.report.failure.expect("why");
            assert!(failure.failed_rank == 0 && matches!(failure.cause, Cause::Device(_)), "{failure}");
            let (send, receive) = (failed.send.expect("it comes back"), failed.receive.expect("it comes back"));
            let refused = communicators[0].allgather(send, receive).expect_err("a rank is of no use");
            assert!(refused.error.to_string().contains("the worker of rank 0 failed"), "{refused}");
        }
        drop(communicators);
        let communicators = connect(cards.iter(), &config());
        let requests = gather_all(&communicators);
        for outcome in ended(provider, communicators.iter().zip(requests)) {
            check(&outcome.expect("success"), 1, 2, 300_000);
        }
        assert_eq!(with_world(emu_machine::World::take_races).expect("a machine"), []);
    });
}
