//! Ranks that call different things, fall silent or go on after a failure: every live rank ends in a typed error that
//! names a rank, within the bound, and gets its buffers back.

use std::time::Duration;

use emu_machine::with_world;
use flexcast::{Allgather, Buffer, Cause, Communicator, Control, Endpoint, Error, Request, Test};
use flexcast_tests::assert_mentions;
use flexcast_tests::communicators::{Under, check, config, connect, drive, gather, with_cards};

const PS_PER_US: u64 = 1_000_000;

type Call = fn(&mut Communicator) -> Request;

/// Zeroed memory, as both of the card and of the communicator's lifetime.
fn buffer(communicator: &Communicator, len: usize) -> Buffer {
    let card: &Endpoint = communicator.endpoint();
    card.buffer(len).expect("a buffer")
}

fn broadcast(communicator: &Communicator, root: u32, len: usize) -> Request {
    let memory = buffer(communicator, len);
    communicator.broadcast(memory, root).expect("accepted")
}

fn allgatherv(communicator: &Communicator, counts: [u64; 3]) -> Request {
    let own = counts[communicator.rank() as usize];
    let memory = [own, counts.iter().sum()].map(|len| buffer(communicator, len as usize));
    let [send, receive] = memory;
    communicator.post(Allgather::counts(&counts).buffers(send, receive)).expect("accepted")
}

#[test]
fn ranks_that_call_different_things_are_reported_both_calls() {
    let calls: [(Call, Call, [&str; 2]); 4] = [
        (
            |one| broadcast(one, 0, 5000),
            |one| broadcast(one, 1, 5000),
            ["broadcast of 5000 bytes from root 0", "broadcast of 5000 bytes from root 1"],
        ),
        (
            |one| gather(one, 1, 5000),
            |one| broadcast(one, 2, 5000),
            ["allgather of 5000 bytes", "broadcast of 5000 bytes from root 2"],
        ),
        (
            |one| gather(one, 1, 5000),
            |one| gather(one, 1, 5001),
            ["allgather of 5000 bytes", "allgather of 5001 bytes"],
        ),
        (
            |one| allgatherv(one, [10, 20, 30]),
            |one| allgatherv(one, [10, 30, 20]),
            ["allgatherv of lengths with digest", "allgatherv of lengths with digest"],
        ),
    ];
    for ((most, other, words), failed_rank) in
        calls.into_iter().flat_map(|call| (0..3).map(move |failed_rank| (call, failed_rank)))
    {
        for control in [Control::Host, Control::Device] {
            with_cards(3, |provider, cards| {
                let mut communicators = connect(cards.iter(), &config().control(control));
                let mut all: Vec<Under<'_>> = communicators
                    .iter_mut()
                    .enumerate()
                    .map(|(rank, communicator)| {
                        let request = if rank == failed_rank { other(communicator) } else { most(communicator) };
                        Under::new(communicator, request)
                    })
                    .collect();
                drive(provider, &mut all, |_, _| {});
                for one in &all {
                    let failed = one.done.as_ref().expect("driven to its end").as_ref().expect_err("no rank succeeds");
                    let error = &failed.error;
                    let failure = failed.report.failure.expect("why");
                    let ranks =
                        [failure.failed_rank, failure.detecting_rank].map(|rank| format!("rank {rank} called "));
                    assert_mentions(error, &[words[0], words[1], &ranks[0], &ranks[1], "compare their calls"]);
                    assert!(ranks.contains(&format!("rank {failed_rank} called ")), "{error}");
                    assert!(failed.receive.is_some(), "the buffer comes back");
                }
            });
        }
    }
}

/// A rank that goes when all that another has said to it is acknowledged leaves nothing behind that would fail: who
/// waits for it asks its card now and then, wherever the protocol runs, and in vain as long as it is there and silent.
#[test]
fn a_rank_that_goes_while_another_waits_in_the_barrier_is_named_long_before_the_bound() {
    for control in [Control::Host, Control::Device] {
        for goes in [true, false] {
            with_cards(2, |provider, cards| {
                let config = config().control(control).retry_exponent(3).barrier_timeout(Duration::from_secs(1));
                let mut communicators = connect(cards.iter(), &config);
                let start_ps = provider.relax().now_ps();
                let mut request = Some(gather(&communicators[0], 3, 5000));
                let failed = loop {
                    let since_us = (provider.relax().now_ps() - start_ps) / PS_PER_US;
                    if since_us > 200 && communicators.len() == 2 && goes {
                        drop(communicators.pop());
                    }
                    match request.take().expect("under way").test() {
                        Ok(Test::Pending(pending)) => request = Some(pending),
                        Ok(Test::Done(_)) => panic!("it has a result after {since_us} us"),
                        Err(failed) => break failed,
                    }
                    provider.relax().relax();
                };
                let took_us = (provider.relax().now_ps() - start_ps) / PS_PER_US;
                if goes {
                    assert_mentions(&failed.error, &["the connection from rank 0 to rank 1 broke: retries exceeded"]);
                    assert!((500_000..700_000).contains(&took_us), "{control:?}: {took_us} us");
                } else {
                    assert_mentions(&failed.error, &["rank 1 was silent", "its barrier signal"]);
                    assert!(took_us >= 1_000_000, "{control:?}: {took_us} us");
                }
            });
        }
    }
}

/// The bound after the barrier: three times the cutoff, and the time for recovery; before it the timeout. For a quarter
/// of the bound more ranks that are accused may say who it is that they wait for themselves.
#[test]
fn a_silent_rank_is_named_by_all_within_the_bound() {
    const BYTES: usize = 30_000;
    let config = config().barrier_timeout(Duration::from_micros(5_000)).recovery_timeout(Duration::from_micros(10_000));
    // The cutoff is below 1.5 ms here: the data, all overheads, and two turns.
    let bound_ps = (3 * 1_500 * PS_PER_US + config.recovery_timeout.as_nanos() as u64 * 1000) / 4 * 5;
    let barrier_ps = config.barrier_timeout.as_nanos() as u64 * 1000;
    let (mut failed, mut right) = (0, 0);
    for (ranks, silent) in (0..3).map(|silent| (3, silent)).chain((0..5).map(|silent| (5, silent))) {
        for after_us in [0, 25, 38, 46, 52, 60, 100] {
            with_cards(ranks, |provider, cards| {
                let mut communicators = connect(cards.iter(), &config);
                let start_ps = provider.relax().now_ps();
                let mut requests: Vec<Option<Request>> = communicators
                    .iter_mut()
                    .enumerate()
                    .map(|(rank, one)| (rank != silent || after_us > 0).then(|| gather(one, 9, BYTES)))
                    .collect();
                let mut ends = vec![None; ranks];
                while (0..ranks).any(|rank| rank != silent && ends[rank].is_none()) {
                    let since_ps = provider.relax().now_ps() - start_ps;
                    assert!(since_ps <= barrier_ps + bound_ps, "no end within the bound");
                    for (rank, one) in communicators.iter_mut().enumerate() {
                        if rank == silent && since_ps >= after_us * PS_PER_US {
                            continue;
                        }
                        let Some(request) = requests[rank].take() else {
                            one.progress().expect("progress");
                            continue;
                        };
                        match request.test() {
                            Ok(flexcast::Test::Pending(request)) => {
                                requests[rank] = Some(request);
                                continue;
                            }
                            Ok(flexcast::Test::Done(done)) => {
                                right += 1;
                                check(&done, 9, ranks, BYTES);
                            }
                            Err(end) => {
                                let failure = end.report.failure.expect("why");
                                assert!(matches!(failure.cause, Cause::Silent(_)), "{end}");
                                assert_mentions(&end.error, &[&format!("rank {silent} was silent")]);
                                assert!(end.receive.is_some(), "the buffer comes back");
                                failed += 1;
                            }
                        }
                        ends[rank] = Some(since_ps);
                    }
                    provider.relax().relax();
                }
            });
        }
    }
    assert!(failed >= 80, "{failed} named the silent rank, {right} had ended before");
}

#[test]
fn a_communicator_is_of_no_use_after_a_failure_and_says_so() {
    with_cards(2, |provider, cards| {
        let mut communicators = connect(cards.iter(), &config());
        let mut all: Vec<Under<'_>> = communicators
            .iter_mut()
            .map(|communicator| {
                let request = gather(communicator, 1, 100);
                Under::new(communicator, request)
            })
            .collect();
        all[1].communicator.cancel();
        drive(provider, &mut all, |_, _| {});
        for one in &mut all {
            let memory = buffer(one.communicator, 8);
            let refused = one.communicator.broadcast(memory, 0).expect_err("broken");
            assert!(matches!(refused.error, Error::Broken { .. }), "{}", refused.error);
            assert_mentions(&refused.error, &["of no use", "rank 1 cancelled", "create another"]);
            assert_eq!(refused.receive.as_ref().map(Buffer::len), Some(8));
        }
    });
}

/// The DPA process of a rank dies while the host waits for a flag in its memory: the rank learns why at once, the
/// others who it was.
#[test]
fn a_process_that_dies_ends_the_wait_with_its_record() {
    const DIES_AFTER_US: u64 = 5;
    for (protocol, bytes) in [(Control::Host, 200_000), (Control::Device, 200_000)] {
        with_cards(3, |provider, cards| {
            let config = config().control(protocol);
            let mut communicators = connect(cards.iter(), &config);
            let mut all: Vec<Under<'_>> = communicators
                .iter_mut()
                .map(|communicator| {
                    let request = gather(communicator, 1, bytes);
                    Under::new(communicator, request)
                })
                .collect();
            let mut ended_us = None;
            drive(provider, &mut all, |since_ps, all| {
                if since_ps >= DIES_AFTER_US * PS_PER_US {
                    // Its threads fault when they next write to the host. Fails if it is gone already.
                    let _ = with_world(|world| world.destroy_window(1, 1, 0));
                }
                if all[1].done.is_some() {
                    ended_us.get_or_insert(since_ps / PS_PER_US);
                }
            });
            let done = all[1].done.as_ref().expect("driven to its end").as_ref().expect_err("a dead process");
            let Error::Flexio(crash @ flexio::Error::DeviceFault { .. }) = &done.error else {
                panic!("{protocol:?}: {:?}", done.error)
            };
            assert_mentions(crash, &["window 0 has been destroyed", "thread", "pc"]);
            let failure = done.report.failure.expect("why");
            assert!(failure.failed_rank == 1 && matches!(failure.cause, Cause::Device(_)), "{protocol:?}: {failure}");
            // All is sent in far less; nobody's timeout (20 ms) or wait for an answer (1 s) is over.
            assert!(ended_us.is_some_and(|us| us < 1_000), "{protocol:?}: after {ended_us:?} us");
            for rank in [0, 2] {
                let error = &all[rank].done.as_ref().expect("an end").as_ref().expect_err("rank 1 is dead").error;
                assert_mentions(error, &["rank 1"]);
            }
            // It stays so.
            let memory = buffer(all[1].communicator, 8);
            assert!(matches!(
                all[1].communicator.broadcast(memory, 0).expect_err("broken").error,
                Error::Broken { .. }
            ));
        });
    }
}
