//! The aggregator's logic, against workers of `flexcast_proto` and a card that checks every entry.

mod fixture;
mod rng;

use dpa::Next;
use dpa::hw::CqeOpcode;
use dpa::proto::sparse::{Parameters, Step, Worker, split};
use fixture::sparse::SparseFixture;
use flexcast_abi::{ContextFault, SPARSE_LOOK_UNANSWERED, SparseElement, SparseStatus};
use rng::Rng;

const NONE: u32 = u32::MAX;

/// A worker and its array.
struct Rank {
    worker: Worker,
    array: Vec<u8>,
    ring: Vec<u8>,
}

impl Rank {
    /// Its next message, if one is due.
    fn message(&mut self, parameters: Parameters, sums: &[u8]) -> Option<(Vec<u8>, u32)> {
        let block = parameters.block_bytes() as usize;
        let range = |at: u32| at as usize * block..(at as usize + 1) * block;
        loop {
            match self.worker.poll() {
                Step::Store { block, position, .. } => {
                    self.array[range(block)].copy_from_slice(&sums[range(position)]);
                }
                Step::Scan { from, slot } => {
                    let blocks = (self.array.len() / block) as u32;
                    let found = (from..blocks).find(|at| self.array[range(*at)].iter().any(|byte| *byte != 0));
                    if let Some(found) = found {
                        self.ring[range(slot)].copy_from_slice(&self.array[range(found)]);
                    }
                    self.worker.found(found).unwrap();
                }
                Step::Send => {
                    let message = self.worker.message().unwrap();
                    let mut bytes: Vec<u8> =
                        message.send.iter().flat_map(|slot| self.ring[range(slot)].to_vec()).collect();
                    bytes.extend_from_slice(&message.votes.to_bytes()[..parameters.index_bytes() as usize]);
                    return Some((bytes, message.displacement.bits()));
                }
                Step::Wait | Step::Complete => return None,
            }
        }
    }
}

fn add(sum: &mut [u8], more: &[u8], element: SparseElement) {
    match element {
        SparseElement::I32 => {
            for (sum, more) in sum.as_chunks_mut().0.iter_mut().zip(more.as_chunks().0) {
                *sum = i32::from_le_bytes(*sum).wrapping_add(i32::from_le_bytes(*more)).to_le_bytes();
            }
        }
        SparseElement::I64 => {
            for (sum, more) in sum.as_chunks_mut().0.iter_mut().zip(more.as_chunks().0) {
                *sum = i64::from_le_bytes(*sum).wrapping_add(i64::from_le_bytes(*more)).to_le_bytes();
            }
        }
    }
}

/// An operation of instance 0 with random arrays; messages and completions of sends come in any order, the latter late.
fn operate(fixture: &mut SparseFixture, parameters: Parameters, element: SparseElement, rng: &mut Rng) {
    let block = parameters.block_bytes() as usize;
    let blocks = rng.below(30) as usize;
    let zeros = [0, 5, 9, 10][rng.below(4) as usize];
    let mut ranks: Vec<Rank> = (0..parameters.workers())
        .map(|_| {
            let mut array = vec![0; blocks * block];
            for block in array.chunks_mut(block) {
                if rng.below(10) >= zeros {
                    block
                        .iter_mut()
                        .for_each(|byte| *byte = [0, 0xFF, 0x80, rng.below(256) as u8][rng.below(4) as usize]);
                }
            }
            let ring = vec![0; parameters.ring_bytes() as usize];
            Rank { worker: Worker::new(parameters, blocks as u32).unwrap(), array, ring }
        })
        .collect();
    let mut expected = ranks[0].array.clone();
    for rank in &ranks[1..] {
        add(&mut expected, &rank.array, element);
    }
    fixture.write_operation(element as u64);
    let mut due: Vec<(usize, (Vec<u8>, u32))> = (0..)
        .zip(&mut ranks)
        .map(|(number, rank)| (number, rank.message(parameters, &[]).expect("the first message")))
        .collect();
    while ranks.iter().any(|rank| !rank.worker.is_complete()) {
        if !due.is_empty() {
            let (number, (bytes, displacement)) = due.swap_remove(rng.below(due.len() as u64) as usize);
            assert!(fixture.deliver(number, &bytes, displacement), "a receive is posted");
        } else {
            // Only now: the answers had no room.
            (0..ranks.len()).for_each(|peer| _ = fixture.complete_send(peer));
        }
        assert_eq!(fixture.activate(), Next::Reschedule);
        for sent in fixture.carry() {
            assert_eq!(sent.immediate, 0);
            let sums = (sent.bytes.len() as u32 - parameters.index_bytes()) / parameters.block_bytes();
            let (blocks, next) = split(parameters, &sent.bytes, sums).unwrap();
            let rank = &mut ranks[sent.peer];
            let iteration = rank.worker.iteration();
            rank.worker.answer(iteration, sums, &next).unwrap();
            due.extend(rank.message(parameters, blocks).map(|message| (sent.peer, message)));
        }
    }
    assert!(ranks.iter().all(|rank| rank.array == expected), "{blocks} blocks of {} workers", ranks.len());
}

#[test]
#[cfg_attr(miri, ignore = "thousands of messages, which take minutes")]
fn sums_are_those_of_the_arrays_in_any_order_of_messages() {
    let mut rng = Rng(0x5EED);
    for (workers, block, width) in [(1, 256, 1), (2, 384, 2), (3, 256, 3), (4, 512, 5), (5, 256, 32), (9, 256, 4)] {
        let parameters = Parameters::new(workers, block, width, 8).unwrap();
        let mut fixture = SparseFixture::ready(2, workers, parameters.block_bytes(), width);
        for operation in 1..=40 {
            let element = [SparseElement::I32, SparseElement::I64][rng.below(2) as usize];
            operate(&mut fixture, parameters, element, &mut rng);
            assert_eq!(fixture.instances[0].state.operations, operation);
        }
        assert_eq!(fixture.instances[1].state.operations, 0);
    }
}

fn message(blocks: usize, indices: [u32; 4]) -> Vec<u8> {
    let mut bytes = vec![7; blocks * 256];
    bytes.extend(indices.iter().flat_map(|index| index.to_le_bytes()));
    bytes
}

/// Both workers of instance 1 have voted for blocks 0 and 3.
fn voted() -> SparseFixture {
    let mut fixture = SparseFixture::ready(2, 2, 256, 4);
    for peer in [2, 3] {
        assert!(fixture.deliver(peer, &message(0, [0, 3, NONE, NONE]), 0));
    }
    assert_eq!(fixture.activate(), Next::Reschedule);
    let sent = fixture.carry();
    assert!(sent.iter().all(|sent| sent.bytes == message(0, [0, 3, NONE, NONE])) && sent.len() == 2);
    fixture
}

#[test]
fn what_cannot_be_ends_the_instance_and_workers_learn_whose_fault_it_is() {
    let order = |indices| (2, indices, 0);
    for ((blocks, indices, displacement), status, found, limit) in [
        ((1, [NONE; 4], 0), SparseStatus::Length, 272, 528),
        ((2, [NONE; 4], 1), SparseStatus::Length, 528, 272),
        ((2, [NONE; 4], 4), SparseStatus::Displacement, 4, 2),
        (order([9, 4, NONE, NONE]), SparseStatus::Order, 4, 9),
        (order([4, NONE, 5, NONE]), SparseStatus::Order, 5, NONE),
        (order([3, 4, NONE, NONE]), SparseStatus::Behind, 3, 3),
        (order([4, NONE, NONE, NONE]), SparseStatus::AfterEnd, 4, 2),
    ] {
        let mut fixture = voted();
        // The other worker waits already.
        assert!(fixture.deliver(2, &message(2, [NONE; 4]), 0));
        fixture.activate();
        let before = fixture.memory();
        let bytes = message(blocks, indices);
        assert!(fixture.deliver(3, &bytes, displacement));
        let with = fixture.memory();
        fixture.activate();
        assert_eq!(fixture.memory(), with, "{status:?}: nothing is written");
        assert_eq!(before.len(), with.len());
        let report = fixture.report(1);
        assert_eq!((report.status, report.worker, report.iteration), (status as u64, 1, 1));
        assert_eq!((report.found, report.limit), (found, limit.into()), "{status:?}");
        let sent: Vec<_> = fixture.carry().iter().map(|sent| (sent.peer, sent.immediate, sent.bytes.len())).collect();
        assert_eq!(sent, [(2, 2, 0), (3, 2, 0)], "{status:?}");
        // Instance 0 goes on.
        for peer in [0, 1] {
            assert!(fixture.deliver(peer, &message(0, [NONE; 4]), 0));
        }
        fixture.activate();
        assert_eq!((fixture.carry().len(), fixture.report(0).status), (2, 0));
        assert_eq!(fixture.thread.state.strange, 0);
    }
}

#[test]
fn who_comes_after_the_end_learns_of_it_and_broken_connections_carry_nothing() {
    let mut fixture = voted();
    fixture.strange(3, CqeOpcode::RequesterError);
    fixture.activate();
    assert_eq!((fixture.report(1).status, fixture.report(1).worker), (SparseStatus::Connection as u64, 1));
    assert!(fixture.carry().is_empty());
    assert!(fixture.deliver(2, &message(2, [NONE; 4]), 0));
    fixture.activate();
    let sent: Vec<_> = fixture.carry().iter().map(|sent| (sent.peer, sent.immediate, sent.bytes.len())).collect();
    assert_eq!(sent, [(2, 2, 0)]);
}

#[test]
fn a_host_that_asks_learns_who_is_waited_for_and_whether_all_have_their_answers() {
    const UNANSWERED: u64 = SPARSE_LOOK_UNANSWERED;
    let mut fixture = SparseFixture::ready(2, 2, 256, 4);
    assert_eq!(fixture.ask(1), 1 << 32, "nobody has begun");
    let mut fixture = voted();
    assert_eq!(fixture.ask(7), 7 << 32 | UNANSWERED | 1);
    assert!(fixture.deliver(2, &message(2, [NONE; 4]), 0));
    fixture.activate();
    assert_eq!(fixture.ask(7), 7 << 32 | UNANSWERED | 1, "the same question is answered once");
    assert_eq!(fixture.ask(8), 8 << 32 | UNANSWERED | 2);
    assert!(fixture.deliver(3, &message(2, [NONE; 4]), 0));
    fixture.activate();
    assert_eq!(fixture.carry().len(), 2);
    assert_eq!(fixture.ask(9), 9 << 32 | UNANSWERED);
    assert!(fixture.complete_send(2));
    fixture.activate();
    assert_eq!(fixture.ask(10), 10 << 32 | UNANSWERED);
    assert!(fixture.complete_send(3), "the last answer of an operation is completed visibly");
    fixture.activate();
    assert_eq!(fixture.ask(11), 11 << 32);
}

#[test]
fn completions_of_no_worker_are_counted_and_others_end_their_instance() {
    let mut fixture = voted();
    fixture.strange(9, CqeOpcode::SendImmediate);
    fixture.strange(0xFF_FFFF, CqeOpcode::RequesterError);
    fixture.activate();
    assert_eq!((fixture.thread.state.strange, fixture.report(0).status, fixture.report(1).status), (2, 0, 0));
    fixture.strange(0, CqeOpcode::Send);
    fixture.activate();
    assert_eq!((fixture.report(0).status, fixture.report(1).status), (SparseStatus::Opcode as u64, 0));
}

#[test]
fn an_element_that_is_none_ends_the_instance_when_its_turn_comes() {
    let mut fixture = SparseFixture::ready(1, 1, 256, 4);
    fixture.write_operation(3);
    assert!(fixture.deliver(0, &message(0, [1, NONE, NONE, NONE]), 0));
    fixture.activate();
    let report = fixture.report(0);
    assert_eq!((report.status, report.found, report.limit), (SparseStatus::Element as u64, 3, 2));
}

#[test]
fn contexts_that_cannot_be_are_refused() {
    let refused = |change: &dyn Fn(&mut SparseFixture)| {
        let mut fixture = SparseFixture::new(2, 2, 256, 4);
        change(&mut fixture);
        fixture.prepare().unwrap_err()
    };
    assert_eq!(refused(&|f| f.thread.layout_hash += 1), (ContextFault::AbiHash, 0));
    assert_eq!(refused(&|f| f.thread.budget = 0), (ContextFault::Budget, 0));
    assert_eq!(refused(&|f| f.thread.report_host += 8), (ContextFault::HostAddress, 0));
    assert_eq!(refused(&|f| f.thread.spots = Default::default()), (ContextFault::Staging, 0));
    assert_eq!(refused(&|f| f.thread.cq = Default::default()), (ContextFault::QueueAddress, 0));
    assert_eq!(refused(&|f| f.thread.instances = Default::default()), (ContextFault::Contexts, 0));
    assert_eq!(refused(&|f| f.thread.cq = fixture::of_depth(f.thread.cq, 5)), (ContextFault::QueueDepth, 0));
    assert_eq!(refused(&|f| f.instances[1].block_bytes = 320), (ContextFault::ChunkBytes, 1));
    assert_eq!(refused(&|f| f.instances[1].blocks_per_message = 33), (ContextFault::ChunkBytes, 1));
    assert_eq!(refused(&|f| f.instances[1].spot_bytes -= 64), (ContextFault::Staging, 1));
    assert_eq!(refused(&|f| f.instances[1].first_spot -= 64), (ContextFault::Staging, 1));
    assert_eq!(refused(&|f| f.instances[0].blocks_per_message = 32), (ContextFault::Staging, 0));
    assert_eq!(refused(&|f| f.instances[1].first_peer = 0), (ContextFault::Worker, 1));
    assert_eq!(refused(&|f| f.instances[1].workers = 1), (ContextFault::Worker, 0));
    assert_eq!(refused(&|f| f.instances[1].workers = 3), (ContextFault::Staging, 1));
    assert_eq!(refused(&|f| f.instances[1].operation = Default::default()), (ContextFault::DeviceMemory, 1));
    assert_eq!(refused(&|f| f.contexts[3].instance = 0), (ContextFault::Worker, 3));
    assert_eq!(
        refused(&|f| f.contexts[2].send_queue = fixture::of_depth(f.contexts[2].send_queue, 2)),
        (ContextFault::QueueDepth, 2)
    );
    assert_eq!(refused(&|f| f.contexts[1].receive_queue = Default::default()), (ContextFault::QueueAddress, 1));
}
