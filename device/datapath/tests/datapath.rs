//! A receive context's logic with one run of chunks, against a NIC that checks every promise. Placement, closing and
//! several receive contexts are in `receivers.rs`; memory ordering, doorbells and instruction counts are tested on the
//! ELF in the emulator.

mod fixture;
mod rng;

use std::ops::{Deref, DerefMut};

use dpa::Next;
use dpa::hw::CqeOpcode;
use fixture::receive::{Ask, ReceiveFixture};
use fixture::{CHUNK, Fixture, Message, PSN_BITS};
use flexcast_abi::{Operation, Placement, ReceiveStatus, Transport};
use rng::Rng;

/// A thread with one receive context.
struct Alone(ReceiveFixture);

impl Alone {
    /// The thread is prepared and asleep; `chunks`: those of the largest operation.
    fn ready(transport: Transport, batch: u32, chunks: u32) -> Self {
        Self(ReceiveFixture::ready(transport, batch, 1, (chunks, 1, (chunks * CHUNK) as usize + 64)))
    }

    /// Writes an operation of one run, wakes the thread and sees that it is taken over.
    fn arm(&mut self, sequence: u64, collective_id: u32, chunks: u32, last_chunk_bytes: u32) {
        let placement = Placement { run_chunks: chunks, roots: 1, ..Default::default() };
        self.0.start(Ask { sequence, collective_id, chunks, last_chunk_bytes }, placement);
    }

    fn bring(&mut self, collective_id: u32, psn: u32, bytes: u32) {
        let message = self.message(collective_id, psn, bytes);
        self.deliver(message);
    }

    fn activate(&mut self) -> Next {
        self.0.activate()
    }

    fn settle(&mut self) {
        self.0.settle();
    }
}

impl Deref for Alone {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.0.receivers[0]
    }
}

impl DerefMut for Alone {
    fn deref_mut(&mut self) -> &mut Fixture {
        &mut self.0.receivers[0]
    }
}

const BOTH: [Transport; 2] = [Transport::Uc, Transport::Ud];
const BATCHES: &[u32] = if cfg!(miri) { &[4] } else { &[2, 4, 8] };

#[test]
#[cfg_attr(miri, ignore = "a hundred chunks and more, which takes minutes")]
fn chunks_in_order_over_three_ring_lengths_and_more() {
    for transport in BOTH {
        for &batch in BATCHES {
            let mut fixture = Alone::ready(transport, batch, 100);
            fixture.arm(1, 5, 100, 77);
            for psn in 0..100 {
                let bytes = if psn == 99 { 77 } else { CHUNK };
                fixture.bring(5, psn, bytes);
                if psn % 5 == 4 {
                    fixture.activate();
                    fixture.copy_and_complete_all();
                    fixture.activate();
                }
            }
            fixture.settle();
            assert_eq!(fixture.flag(), 1, "{transport:?} batch {batch}");
            assert_eq!(fixture.status(), ReceiveStatus::Complete);
            assert!((0..99).all(|psn| fixture.holds(psn, CHUNK)) && fixture.holds(99, 77));
            let progress = fixture.report().progress;
            assert_eq!((progress.remaining, progress.consumed, progress.outstanding), (0, 100, 0));
            assert_eq!(progress.receives_posted, 116, "all receives are back");
            assert_eq!(fixture.armed_at(), (100 << 32) | 0x11, "armed with the exact consumer index");
            assert_eq!(fixture.report().statistics.accepted, 100);
        }
    }
}

#[test]
fn a_saturated_ring_is_taken_in_one_activation() {
    for transport in BOTH {
        for &batch in BATCHES {
            let mut fixture = Alone::ready(transport, batch, 16);
            fixture.arm(1, 1, 16, CHUNK);
            for psn in (0..16).rev() {
                fixture.bring(1, psn, CHUNK);
            }
            assert_eq!(fixture.activate(), Next::Reschedule);
            assert_eq!(fixture.context.state.consumed, 16);
            fixture.settle();
            assert_eq!(fixture.flag(), 1);
            assert!((0..16).all(|psn| fixture.holds(psn, CHUNK)));
        }
    }
}

#[test]
fn bad_chunks_are_counted_change_nothing_and_free_their_slot() {
    /// More than two and a half times the ring.
    const ROUNDS: u64 = if cfg!(miri) { 6 } else { 10 };
    for transport in BOTH {
        for &batch in BATCHES {
            let mut fixture = Alone::ready(transport, batch, 64);
            fixture.arm(1, 3, 40, 50);
            for _ in 0..ROUNDS {
                for message in [
                    fixture.message(3, 7, CHUNK),  // good once, then duplicate
                    fixture.message(4, 7, CHUNK),  // another id
                    fixture.message(3, 40, CHUNK), // beyond the operation
                    fixture.message(3, (1 << PSN_BITS) - 1, CHUNK),
                    fixture.message(3, 8, CHUNK - 1), // short, but not the last
                    fixture.message(3, 39, CHUNK),    // the last, but not short
                    fixture.message(2, (1 << PSN_BITS) - 1, 50),
                ] {
                    fixture.deliver(message);
                    fixture.activate();
                    fixture.copy_and_complete_all();
                    fixture.activate();
                }
            }
            fixture.write_line(Operation { report_request: 1, ..fixture.line() });
            fixture.0.control.message(CqeOpcode::WriteImmediate);
            fixture.settle();
            let report = fixture.report();
            let statistics = report.statistics;
            assert_eq!(report.progress.reported, 1);
            assert_eq!((statistics.cqes, statistics.accepted, statistics.duplicates), (7 * ROUNDS, 1, ROUNDS - 1));
            assert_eq!(
                (statistics.wrong_id, statistics.out_of_range, statistics.wrong_length),
                (2 * ROUNDS, 2 * ROUNDS, 2 * ROUNDS)
            );
            assert_eq!(report.progress.remaining, 39);
            assert_eq!(report.progress.receives_posted, 7 * ROUNDS + 16, "no slot is lost");
            assert_eq!(fixture.flag(), 0);
            assert!((0..39).all(|psn| fixture.bit(psn) == (psn == 7)));
            if transport == Transport::Ud {
                let mut all = vec![0; 40 * CHUNK as usize];
                fixture.user.read(0, &mut all);
                let written = all.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(at, _)| at as u32 / CHUNK);
                assert!(written.clone().count() == CHUNK as usize && written.clone().all(|chunk| chunk == 7));
            }
        }
    }
}

#[test]
fn complete_means_copied() {
    for &batch in BATCHES {
        let mut fixture = Alone::ready(Transport::Ud, batch, 10);
        fixture.arm(1, 1, 10, CHUNK);
        for psn in 0..10 {
            fixture.bring(1, psn, CHUNK);
        }
        fixture.activate();
        assert_eq!(fixture.context.state.remaining, 0, "all bits are set");
        assert_eq!(fixture.flag(), 0, "but no copy is complete");
        assert_eq!(fixture.armed_at() as u32, 0x33, "the copies' completion wakes the worker");
        fixture.copy();
        fixture.activate();
        assert_eq!(fixture.flag(), 0, "copied, but not completed");
        while fixture.complete_copy(CqeOpcode::Requester) {}
        fixture.activate();
        assert_eq!(fixture.flag(), 1);
        assert!((0..10).all(|psn| fixture.holds(psn, CHUNK)));
    }
}

#[test]
fn receives_come_back_only_with_completed_copies() {
    for &batch in BATCHES {
        let mut fixture = Alone::ready(Transport::Ud, batch, 64);
        fixture.arm(1, 1, 64, CHUNK);
        for psn in 0..16 {
            fixture.bring(1, psn, CHUNK);
        }
        fixture.activate();
        assert!(!fixture.can_deliver(), "every slot waits for its copy");
        fixture.copy();
        fixture.activate();
        assert!(!fixture.can_deliver());
        assert!(fixture.complete_copy(CqeOpcode::Requester));
        fixture.activate();
        assert!(fixture.can_deliver());
        fixture.copy_and_complete_all();
        fixture.activate();
        assert_eq!(fixture.receives_posted(), 32);
    }
}

#[test]
fn a_receive_error_is_reported_and_the_worker_stays_armed() {
    for transport in BOTH {
        let mut fixture = Alone::ready(transport, 4, 8);
        fixture.arm(1, 1, 8, CHUNK);
        let message = fixture.message(1, 0, 0);
        fixture.deliver(Message { opcode: CqeOpcode::ResponderError, ..message });
        assert_eq!(fixture.activate(), Next::Reschedule);
        assert_eq!(fixture.status(), ReceiveStatus::ReceiveError);
        assert_eq!(fixture.context.state.statistics.error_cqes, 1);
        fixture.copy_and_complete_all();
        let message = fixture.message(1, 0, CHUNK);
        fixture.deliver(Message { opcode: CqeOpcode::Send, ..message });
        fixture.activate();
        assert_eq!(fixture.status(), ReceiveStatus::ReceiveError, "the first failure stays");
        assert_eq!(fixture.context.state.statistics.unexpected_opcode, 1);
        fixture.copy_and_complete_all();
        fixture.activate();
        assert_eq!(fixture.armed_at(), 2 << 32 | 0x11);
        for psn in 0..8 {
            fixture.bring(1, psn, CHUNK);
        }
        fixture.settle();
        assert_eq!(fixture.flag(), 1, "the error took no chunk away");
        assert_eq!(fixture.status(), ReceiveStatus::ReceiveError, "but is not forgotten");
        fixture.arm(2, 2, 8, CHUNK);
        assert_eq!(fixture.status(), ReceiveStatus::Armed, "the next operation starts clean");
    }
}

#[test]
fn the_budget_ends_an_activation_at_a_batch() {
    for transport in BOTH {
        let mut fixture = Alone::ready(transport, 4, 16);
        fixture.0.thread.budget = 5;
        fixture.arm(1, 1, 16, CHUNK);
        for psn in 0..16 {
            fixture.bring(1, psn, CHUNK);
        }
        assert_eq!(fixture.activate(), Next::Retrigger);
        assert_eq!(fixture.context.state.consumed, 8);
        assert_eq!(fixture.activate(), Next::Retrigger);
        fixture.settle();
        assert_eq!(fixture.flag(), 1);
    }
}

#[test]
#[cfg_attr(miri, ignore = "a hundred chunks and more, which takes minutes")]
fn operations_follow_one_another_and_stragglers_are_distinguished() {
    for transport in BOTH {
        for &batch in BATCHES {
            let mut fixture = Alone::ready(transport, batch, 33);
            for sequence in 1..=9u64 {
                let (id, chunks) = (sequence as u32 % 4, 33 - sequence as u32);
                fixture.arm(sequence, id, chunks, 1 + sequence as u32);
                assert_eq!(fixture.report().progress.remaining, u64::from(chunks));
                for psn in 0..chunks {
                    let bytes = if psn + 1 == chunks { 1 + sequence as u32 } else { CHUNK };
                    fixture.bring(id, psn, bytes);
                    fixture.activate();
                    fixture.copy_and_complete_all();
                    if psn % 3 == 0 {
                        // A straggler of the operation before.
                        fixture.bring(id ^ 2, psn, CHUNK);
                        fixture.activate();
                        fixture.copy_and_complete_all();
                    }
                }
                fixture.settle();
                assert_eq!(fixture.flag(), sequence);
                assert_eq!(fixture.group_count(), sequence << 32 | 1);
            }
        }
    }
}

/// Heap's algorithm: calls `visit` with every order of `items`.
fn orders(items: &mut Vec<u32>, count: usize, visit: &mut impl FnMut(&[u32])) {
    if count <= 1 {
        visit(items);
        return;
    }
    for index in 0..count {
        orders(items, count - 1, visit);
        items.swap(if count.is_multiple_of(2) { index } else { 0 }, count - 1);
    }
}

/// Some chunks arrive in an order, each twice; then those that were lost. Complete after those and not before.
fn lose(transport: Transport, order: &[u32], lost: u32) {
    let chunks = order.len() as u32;
    let mut fixture = Alone::ready(transport, 4, chunks);
    fixture.arm(1, 3, chunks, CHUNK);
    let is_lost = |psn: u32| lost >> psn & 1 == 1;
    let bring = |fixture: &mut Alone, some: &dyn Fn(u32) -> bool| {
        for &psn in order.iter().filter(|psn| some(**psn)) {
            for _ in 0..2 {
                if !fixture.can_deliver() {
                    fixture.settle();
                }
                fixture.bring(3, psn, CHUNK);
            }
        }
        fixture.settle();
    };
    bring(&mut fixture, &|psn| !is_lost(psn));
    assert_eq!(fixture.flag(), u64::from(lost == 0), "{transport:?} {order:?} lost {lost:#b}");
    for psn in 0..chunks {
        assert_eq!(fixture.holds(psn, CHUNK), !is_lost(psn), "{transport:?} {order:?} lost {lost:#b}");
    }
    bring(&mut fixture, &is_lost);
    assert_eq!(fixture.flag(), 1, "{transport:?} {order:?} lost {lost:#b}");
    assert!((0..chunks).all(|psn| fixture.holds(psn, CHUNK)));
}

#[test]
#[cfg_attr(miri, ignore = "a thousand operations")]
fn every_order_and_every_loss_of_few_chunks() {
    for transport in BOTH {
        orders(&mut vec![0, 1, 2, 3], 4, &mut |order| (0..1 << 4).for_each(|lost| lose(transport, order, lost)));
        for lost in 0..1 << 8 {
            lose(transport, &[0, 1, 2, 3, 4, 5, 6, 7], lost);
            lose(transport, &[7, 2, 5, 0, 3, 6, 1, 4], lost);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "a hundred chunks and more, which takes minutes")]
fn random_order_duplicates_losses_and_copy_delays() {
    for transport in BOTH {
        for &batch in BATCHES {
            for seed in 1..40u64 {
                let mut rng = Rng(seed * 0x9E37_79B9);
                let chunks = 1 + rng.below(200) as u32;
                let last = 1 + rng.below(u64::from(CHUNK)) as u32;
                let mut fixture = Alone::ready(transport, batch, chunks);
                fixture.0.thread.budget = 1 + rng.below(40) as u32;
                let id = rng.below(16) as u32;
                fixture.arm(1, id, chunks, last);
                let mut missing = vec![true; chunks as usize];
                let mut steps = 0;
                while missing.contains(&true) {
                    steps += 1;
                    assert!(steps < 200_000, "no progress");
                    match rng.below(6) {
                        0..=2 if fixture.can_deliver() => {
                            let psn = rng.below(u64::from(chunks)) as u32;
                            let bytes = if psn + 1 == chunks { last } else { CHUNK };
                            let (psn, bytes, id) = match rng.below(12) {
                                0 => (psn, bytes, id ^ 1),
                                // Shorter, where that is possible: on UC a longer one would overwrite its neighbour, as
                                // on a card.
                                1 => (psn, if bytes > 1 { bytes - 1 } else { 2 }, id),
                                2 => (psn + chunks, bytes, id),
                                _ => {
                                    missing[psn as usize] = false;
                                    (psn, bytes, id)
                                }
                            };
                            fixture.bring(id, psn, bytes);
                        }
                        3 => fixture.copy(),
                        4 => {
                            fixture.complete_copy(CqeOpcode::Requester);
                        }
                        _ => {
                            fixture.activate();
                        }
                    }
                    if missing.contains(&true) {
                        assert_eq!(fixture.flag(), 0);
                    }
                }
                fixture.settle();
                assert_eq!(fixture.flag(), 1, "{transport:?} batch {batch} seed {seed}");
                for psn in 0..chunks {
                    let bytes = if psn + 1 == chunks { last } else { CHUNK };
                    assert!(fixture.holds(psn, bytes), "{transport:?} batch {batch} seed {seed} chunk {psn}");
                }
                assert_eq!(fixture.receives_posted(), fixture.delivered + 16);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "a quarter of a million messages")]
fn counters_pass_their_16_bits() {
    for transport in BOTH {
        for batch in [2, 8] {
            let mut fixture = Alone::ready(transport, batch, 16);
            fixture.arm(1, 1, 16, CHUNK);
            for round in 0..4_200u32 {
                for psn in 0..16 {
                    fixture.bring(1, (psn + round) % 16, CHUNK);
                }
                fixture.activate();
                fixture.copy_and_complete_all();
                fixture.activate();
            }
            assert!(fixture.context.state.consumed > 0x10000);
            assert_eq!(fixture.receives_posted(), fixture.delivered + 16);
            assert_eq!(fixture.context.state.remaining, 0);
        }
    }
}
