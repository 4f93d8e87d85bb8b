//! Communicators used wrongly, dropped, cancelled and side by side: on emulated cards, all ranks in one thread, with
//! the real firmware.

use std::time::Duration;

use flexcast::{Allgather, Buffer, Communicator, Config, Control, Done, Error, Pending, Request, Test};
use flexcast_tests::assert_mentions;
use flexcast_tests::communicators::{
    Under, check, config, connect, contribution, drive, ended, gather, gathered, gathers, with_cards, with_machine,
};

#[test]
fn arguments_that_do_not_fit_are_named_and_the_buffers_come_back() {
    with_cards(2, |provider, cards| {
        let mut communicators = connect(cards.iter(), &config());
        let communicator = &mut communicators[0];
        let buffer = |len| cards[0].buffer(len).expect("a buffer");
        let refused = communicator.allgather(buffer(100), buffer(201)).expect_err("one byte too long");
        assert_mentions(&refused.error, &["allgather", "receive", "201 bytes", "200 are needed", "2 ranks"]);
        assert_eq!(refused.send.as_ref().map(Buffer::len), Some(100));
        assert_eq!(refused.receive.as_ref().map(Buffer::len), Some(201));
        let refused = communicator.post(Allgather::new().in_place(buffer(7))).expect_err("no multiple of 2");
        assert_mentions(&refused.error, &["7 bytes are no multiple of the 2 ranks"]);
        let refused = communicator.broadcast(buffer(8), 2).expect_err("no such root");
        assert_mentions(&refused.error, &["broadcast", "root 2 of 2 ranks", "0 to 1"]);
        let refused =
            communicator.post(Allgather::counts(&[3, 2, 1]).buffers(buffer(3), buffer(5))).expect_err("three counts");
        assert_mentions(&refused.error, &["allgatherv", "3 counts for 2 ranks"]);
        let refused = communicator.post(Allgather::counts(&[3, 2]).buffers(buffer(3), buffer(6))).expect_err("5 bytes");
        assert_mentions(&refused.error, &["receive", "6 bytes", "5 are needed"]);
        let refused =
            communicator.post(Allgather::counts(&[3, 2]).buffers(buffer(2), buffer(5))).expect_err("rank 0 has 3");
        assert_mentions(&refused.error, &["send", "2 bytes", "3 are needed", "rank 0 contributes"]);
        let refused = communicator.post(Allgather::counts(&[u64::MAX, 6]).in_place(buffer(5))).expect_err("overflow");
        assert_mentions(&refused.error, &["exceed 2^64"]);
        // Nothing of this has been seen by the other rank.
        gathers(provider, &communicators, 1, 5000);
    });
}

#[test]
fn more_chunks_than_sequence_numbers_are_refused_with_the_limit() {
    with_cards(2, |provider, cards| {
        let config = config().psn_bits(Some(4)).max_receive_bytes(64 << 10);
        let communicators = connect(cards.iter(), &config);
        // 2 ranks x 20 chunks in two subgroups: 20 each, of which 4 bits distinguish 16.
        let buffer = |len| cards[0].buffer(len).expect("a buffer");
        let refused = communicators[0].allgather(buffer(20 * 4096), buffer(40 * 4096)).expect_err("too long");
        assert_mentions(&refused.error, &["20 chunks", "room for 16", "psn_bits"]);
        let refused = communicators[0].broadcast(buffer(33 * 4096), 0).expect_err("one chunk too many");
        assert_mentions(&refused.error, &["17 chunks", "room for 16"]);
        // Exactly all numbers: 16 in each subgroup.
        gathers(provider, &communicators, 2, 16 * 4096);
        let config = config.psn_bits(Some(32));
        let error = Pending::new(&cards[0], 0, 2, config).expect_err("no such immediate");
        assert_mentions(&error, &["psn_bits is 32", "1 to 31"]);
    });
}

#[test]
fn budgets_that_are_exceeded_are_named_and_nothing_is_taken() {
    with_cards(2, |provider, cards| {
        let refused = |config: Config, words: &[&str]| {
            let error = Pending::new(&cards[0], 0, 2, config).expect_err("refused");
            assert!(matches!(error, Error::Budget { .. }), "{error}");
            assert_mentions(&error, words);
        };
        assert_eq!(cards[0].hot_bytes(), 0);
        let deep = config().with_subgroups(16).slots(8192);
        refused(deep.clone(), &["last-level cache", "1500000", "lower slots"]);
        let accepted = deep.with_subgroups(64).cache_bytes(u64::MAX).slots(8192);
        refused(accepted, &["DPA memory for staging", "lower slots"]);
        // 62 threads each: three fit in 189.
        let wide = config().with_subgroups(60).slots(16).send_depth(8).cache_bytes(u64::MAX);
        let parts: Vec<Pending> =
            (0..3).map(|_| Pending::new(&cards[0], 0, 2, wide.clone()).expect("it fits")).collect();
        refused(wide.clone(), &["62 DPA threads needed", "3 are there", "free another communicator"]);
        let footprint = wide.footprint(2, 4096).expect("it fits");
        assert_eq!(cards[0].hot_bytes(), 3 * footprint.hot_bytes(), "of all communicators of the card");
        drop(parts);
        assert_eq!(cards[0].hot_bytes(), 0);
        drop(Pending::new(&cards[0], 0, 2, wide).expect("the threads are free again"));
        gathers(provider, &connect(cards.iter(), &config()), 3, 5000);
    });
}

#[test]
fn several_communicators_share_cards_and_work_side_by_side() {
    with_cards(3, |provider, cards| {
        const SIZES: [usize; 4] = [0, 1, 30_000, 70_001];
        let mut groups: Vec<Vec<Communicator>> = SIZES.map(|_| connect(cards.iter(), &config())).into();
        let mut all = Vec::new();
        for (number, group) in groups.iter_mut().enumerate() {
            for communicator in group.iter_mut() {
                let request = gather(communicator, number as u64, SIZES[number]);
                all.push(Under::new(communicator, request));
            }
        }
        drive(provider, &mut all, |_, _| {});
        for (at, one) in all.iter().enumerate() {
            let done = one.done.as_ref().expect("driven to its end").as_ref().expect("success");
            check(done, (at / 3) as u64, 3, SIZES[at / 3]);
        }
    });
}

#[test]
fn halves_of_the_cards_work_side_by_side() {
    with_cards(4, |provider, cards| {
        let (left, right) = cards.split_at(2);
        let mut halves = [left, right].map(|half| connect(half.iter(), &config()));
        let mut all = Vec::new();
        for (number, half) in halves.iter_mut().enumerate() {
            for communicator in half.iter_mut() {
                let request = gather(communicator, number as u64, 40_000 + number);
                all.push(Under::new(communicator, request));
            }
        }
        drive(provider, &mut all, |_, _| {});
        for (at, one) in all.iter().enumerate() {
            let done = one.done.as_ref().expect("driven to its end").as_ref().expect("success");
            check(done, (at / 2) as u64, 2, 40_000 + at / 2);
        }
    });
}

/// More communicators than the DPA has threads for, each dropped at another moment of its operation.
#[test]
fn communicators_dropped_with_an_operation_under_way_leave_nothing_behind() {
    with_cards(2, |provider, cards| {
        let config = config().with_subgroups(8).slots(16).receive_batch(4);
        for round in 0..50 {
            let mut communicators = connect(cards.iter(), &config);
            let requests: Vec<Request> =
                communicators.iter().map(|communicator| gather(communicator, round, 20_000)).collect();
            for _ in 0..round * 4 {
                for communicator in &mut communicators {
                    communicator.progress().expect("progress");
                }
                provider.relax().relax();
            }
            drop(requests);
            if round % 2 == 0 {
                // The other rank goes on for a while with nobody there.
                communicators.pop();
                for _ in 0..50 {
                    communicators[0].progress().expect("progress");
                    provider.relax().relax();
                }
            }
        }
        gathers(provider, &connect(cards.iter(), &config), 7, 20_000);
    });
}

#[test]
fn an_operation_cancelled_at_any_moment_ends_on_all_ranks() {
    const BYTES: usize = 30_000;
    /// Moments, the last fifth of them after the end.
    const STEPS: u64 = 100;
    let (mut right, mut failed) = (0, 0);
    with_cards(3, |provider, cards| {
        let start_ps = provider.relax().now_ps();
        let communicators = connect(cards.iter(), &config());
        let made_ps = provider.relax().now_ps();
        gathers(provider, &communicators, 0, BYTES);
        let step_ps = (provider.relax().now_ps() - made_ps) * 5 / 4 / STEPS;
        assert!(start_ps < made_ps && step_ps > 0, "virtual time passes");
        drop(communicators);
        for step in 0..STEPS {
            let communicators = connect(cards.iter(), &config());
            let (seed, failed_rank) = (step, step as usize % 3);
            let mut all: Vec<Under<'_>> = communicators
                .iter()
                .map(|communicator| {
                    let request = gather(communicator, seed, BYTES);
                    Under::new(communicator, request)
                })
                .collect();
            let mut cancelled = false;
            drive(provider, &mut all, |since_ps, all| {
                if !cancelled && since_ps >= step * step_ps {
                    cancelled = true;
                    all[failed_rank].communicator.cancel();
                }
            });
            for one in &all {
                match one.done.as_ref().expect("driven to its end") {
                    Ok(done) => {
                        right += 1;
                        check(done, seed, 3, BYTES);
                    }
                    Err(end) => {
                        assert!(end.receive.is_some(), "the card lets go of the buffer");
                        failed += 1;
                        let error = &end.error;
                        assert!(matches!(error, Error::Failed { .. } | Error::Broken { .. }), "{error}");
                        assert_mentions(error, &[&format!("rank {failed_rank} cancelled")]);
                    }
                }
            }
        }
    });
    assert!(failed >= 100 && right >= 30, "{failed} failed, {right} came out right: moments of all phases are tried");
}

#[test]
fn buffers_are_slices_while_no_operation_has_them() {
    const BYTES: usize = 3000;
    with_cards(2, |provider, cards| {
        let communicators = connect(cards.iter(), &config());
        let mut used: Vec<Option<(Buffer, Buffer)>> = cards
            .iter()
            .map(|card| Some((card.buffer(BYTES).expect("a buffer"), card.buffer(2 * BYTES).expect("a buffer"))))
            .collect();
        // The second time the receive buffers have new keys.
        for seed in 0..3 {
            let posted: Vec<_> = communicators
                .iter()
                .zip(&mut used)
                .map(|(communicator, slot)| {
                    let (mut send, receive) = slot.take().expect("it came back");
                    let own = contribution(seed, communicator.rank() as usize, BYTES);
                    send.as_mut_slice().expect("its own").copy_from_slice(&own);
                    (communicator, communicator.allgather(send, receive).expect("accepted"))
                })
                .collect();
            for (slot, done) in used.iter_mut().zip(ended(provider, posted)) {
                let Done { send, mut receive, .. } = done.expect("success");
                assert!(receive.as_slice().expect("nobody else's") == gathered(seed, 2, BYTES), "{seed}");
                receive.as_mut_slice().expect("nobody else's").fill(0xEE);
                *slot = Some((send.expect("it comes back"), receive));
            }
        }
        let mut empty = cards[0].buffer(0).expect("a buffer");
        assert!(empty.as_slice().expect("no bytes").is_empty());
    });
}

#[test]
fn settings_suit_the_card() {
    with_cards(1, |provider, cards| {
        assert_eq!(provider.kind(), flexio::CardKind::Emulated);
        let config = Config::for_endpoint(&cards[0]);
        assert_eq!(config.overheads.cutoff_slack.as_millis(), 100);
        assert_eq!(config.recovery_timeout.as_secs(), 1);
        assert_eq!(Config::default().overheads.cutoff_slack.as_micros(), 500, "those of a card");
        // All else is alike.
        let (overheads, recovery) = (Config::default().overheads, Config::default().recovery_timeout);
        assert_eq!(config.overheads(overheads).recovery_timeout(recovery), Config::default());
    });
}

/// Also where one poll finds the last byte and the last message, and so releases the operation at once: ranks other
/// than the first poll seldom.
#[test]
fn every_operation_that_ends_well_says_when_it_was_complete() {
    const SELDOM_PS: u64 = 100_000_000;
    for control in [Control::Host, Control::Device] {
        for ranks in [1, 2, 3] {
            with_cards(ranks, |provider, cards| {
                let communicators = connect(cards.iter(), &config().control(control));
                for (bytes, root) in [(0, 0), (1, 0), (4096, ranks as u32 - 1), (50_000, 0)] {
                    let broadcast = |communicator: &Communicator| {
                        let buffer = communicator.endpoint().buffer(bytes).expect("a buffer");
                        communicator.broadcast(buffer, root).expect("accepted")
                    };
                    let mut posted: Vec<_> = communicators.iter().map(|one| Some(broadcast(one))).collect();
                    posted.extend(communicators.iter().map(|one| Some(gather(one, 3, bytes))));
                    let (mut next_ps, mut left) = (0, posted.len());
                    while left > 0 {
                        let now_ps = provider.relax().now_ps();
                        let polls_all = now_ps >= next_ps;
                        for (at, slot) in posted.iter_mut().enumerate().filter(|(at, _)| polls_all || at % ranks == 0) {
                            let communicator = &communicators[at % ranks];
                            let Some(request) = slot.take() else {
                                communicator.progress().expect("progress");
                                continue;
                            };
                            match request.test().expect("success") {
                                Test::Pending(request) => *slot = Some(request),
                                Test::Done(done) => {
                                    left -= 1;
                                    let phases = done.report.phases;
                                    assert!(phases.complete().is_some(), "{control:?} of {ranks}: {phases:?}");
                                    assert!(
                                        phases.complete() <= phases.released(),
                                        "{control:?} of {ranks}: {phases:?}"
                                    );
                                }
                            }
                        }
                        if polls_all {
                            next_ps = now_ps + SELDOM_PS;
                        }
                        provider.relax().relax();
                    }
                }
            });
        }
    }
}

/// Whether the protocol runs on the host or on the card: between the post and the first call of `progress` the card
/// arms the operation.
#[test]
fn a_post_starts_the_operation_wherever_the_protocol_runs() {
    for control in [Control::Host, Control::Device] {
        with_cards(2, |provider, cards| {
            let communicators = connect(cards.iter(), &config().control(control));
            // What has just been connected is at rest.
            gathers(provider, &communicators, 1, 100);
            let activations = || communicators[0].receive_statistics().expect("statistics").activations;
            let before = activations();
            let posted: Vec<_> = communicators.iter().map(|one| (one, gather(one, 2, 20_000))).collect();
            let now_ps = provider.relax().now_ps();
            while provider.relax().now_ps() < now_ps + 50_000_000 {
                provider.relax().relax();
            }
            communicators.iter().for_each(|one| _ = one.progress().expect("progress"));
            let outcomes = ended(provider, posted);
            assert!(activations() > before);
            for outcome in outcomes {
                let done = outcome.expect("success");
                check(&done, 2, 2, 20_000);
                let phases = done.report.phases;
                let armed = phases.armed().expect("armed") - phases.posted();
                // The first call of `progress`, 50 us after the post, finds it armed; arming takes more than 10 us.
                assert!(armed <= Duration::from_micros(60), "{control:?}: {phases:?}");
            }
        });
    }
}

/// Names of the event handlers of a card, with their execution units.
fn handlers(card: usize) -> Vec<(String, u32)> {
    let snapshot = emu_machine::with_world(|world| world.snapshot()).expect("a machine");
    let threads = snapshot.cards[card].processes.iter().flat_map(|process| &process.threads);
    let handlers = threads.filter(|thread| thread.kind == emu_machine::ThreadKind::EventHandler && !thread.destroyed);
    handlers.map(|thread| (thread.entry.clone(), thread.eu)).collect()
}

#[test]
fn units_are_those_that_the_card_gives() {
    // A partition that does not begin where units do, half of it another process's.
    let machine = emu_machine::Config { units: 200..=207, ..emu_machine::Config::default() };
    with_machine(machine, |provider, cards| {
        let taken: Vec<u32> = emu_machine::with_world(|world| {
            let process = world.create_process(0, &flexcast_tests::image_bytes("pingpong")).expect("a process");
            let mut take = |unit| world.create_thread(0, process, 0, 0, 0, Some(unit)).map(|_| unit);
            (200..204).map(|unit| take(unit).expect("a unit of the partition")).collect()
        })
        .expect("a machine");
        let config = config().receive_threads(2).send_threads(1);
        let communicators = connect(cards.iter(), &config);
        gathers(provider, &communicators, 1, 50_000);
        for (card, first) in [(0, 204), (1, 200)] {
            let units: Vec<u32> = handlers(card).into_iter().map(|(_, unit)| unit).collect();
            assert!(units.iter().filter(|unit| !taken.contains(unit)).all(|unit| (first..=207).contains(unit)));
            assert!(units.contains(&first) && units.contains(&(first + 2)), "card {card}: {units:?}");
        }
        // A second communicator finds one unit of four, and needs three.
        let error = Pending::new(&cards[0], 0, 2, config).expect_err("no unit is left");
        assert_mentions(
            &error,
            &["no execution unit takes a thread", "tried: 1 to", "of other partitions", "dpaeumgmt"],
        );
        gathers(provider, &communicators, 2, 50_000);
    });
}
