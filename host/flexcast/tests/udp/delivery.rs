//! Multicast that ceases to arrive: operations leave it and try it again, on all ranks at once; and networks without
//! it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use flexcast::{Algorithm, Choice, Communicator, Decision, Kind, MakeTap, Tap, Tuning};

use crate::group::{Group, block, check};
use crate::spread;

const RANKS: u32 = 3;
/// Each is a host of its own.
const OF_COMPUTER: u32 = 1;
/// Bytes of a block; several datagrams, and no eager operation.
const BYTES: usize = 40_000;

/// Nothing that is multicast arrives at a rank while the network is dead.
fn dead_at(victim: u32, is_dead: &Arc<AtomicBool>) -> MakeTap {
    struct Dead(Arc<AtomicBool>, bool);
    impl Tap for Dead {
        fn take(&mut self, datagram: &[u8], deliver: &mut dyn FnMut(&[u8])) {
            // The kind of a datagram is its second byte: acknowledgements are not multicast.
            let is_multicast = datagram.get(1).is_some_and(|kind| *kind <= 2);
            if !(is_multicast && self.1 && self.0.load(Ordering::SeqCst)) {
                deliver(datagram);
            }
        }
    }
    let is_dead = Arc::clone(is_dead);
    Arc::new(move |rank, _| Box::new(Dead(Arc::clone(&is_dead), rank == victim)))
}

/// Multicast for all Allgathers, as a file says it that `flexcast tune` writes.
fn tuned() -> Tuning {
    let choice = Choice { operation: Kind::Allgather, ranks: RANKS, bytes: u64::MAX, algorithm: Algorithm::Multicast };
    Tuning::new(vec![choice]).unwrap()
}

fn gather(communicator: &Communicator, rank: u32, turn: u32) -> Decision {
    let endpoint = communicator.endpoint().clone();
    let mut send = endpoint.buffer(BYTES).unwrap();
    send.write(0, &block(rank + turn, BYTES)).unwrap();
    let request = communicator.allgather(send, endpoint.buffer(RANKS as usize * BYTES).unwrap()).unwrap();
    let done = request.wait().unwrap();
    (0..RANKS).for_each(|other| check(&done.receive, other as usize * BYTES, &block(other + turn, BYTES)));
    done.report.decision
}

#[test]
fn operations_leave_multicast_that_does_not_arrive_and_try_it_again_on_all_ranks_at_once() {
    const OPERATIONS: usize = 100;
    let is_dead = Arc::new(AtomicBool::new(true));
    let decisions: Mutex<Vec<Vec<Decision>>> = Mutex::new(Vec::new());
    let together = Barrier::new(RANKS as usize);
    let options = spread(OF_COMPUTER).tap(dead_at(1, &is_dead));
    // Eager messages would carry blocks as short as these.
    let group = Group::new(RANKS, options, |config| config.eager_bytes(1024)).tuned(tuned());
    group.run_once(true, |communicator, rank| {
        let mut own = Vec::new();
        for turn in 0..OPERATIONS as u32 {
            own.push(gather(communicator, rank, turn));
            if own.last().unwrap().lost_multicast().is_some() && is_dead.load(Ordering::SeqCst) {
                together.wait();
                is_dead.store(false, Ordering::SeqCst);
            }
        }
        decisions.lock().unwrap().push(own);
    });
    let decisions = decisions.into_inner().unwrap();
    assert!(decisions.iter().all(|of_rank| *of_rank == decisions[0]), "ranks have decided differently: {decisions:#?}");
    let algorithms: Vec<Algorithm> = decisions[0].iter().map(Decision::algorithm).collect();
    let left = decisions[0].iter().position(|decision| decision.lost_multicast().is_some());
    let left = left.unwrap_or_else(|| panic!("multicast was not left: {algorithms:?}"));
    // Three lossy operations are known at the end of the next one.
    assert!((4..12).contains(&left), "left at {left}");
    assert!(algorithms[..left].iter().all(|algorithm| *algorithm == Algorithm::Multicast));
    let loss = decisions[0][left].lost_multicast().unwrap();
    assert_eq!((loss.root, loss.rank), (0, 1), "what rank 0 sends does not come to rank 1");
    assert!(decisions[0][left..left + 64].iter().all(|decision| decision.lost_multicast() == Some(loss)));
    assert!(algorithms[left..left + 64].iter().all(|algorithm| *algorithm == Algorithm::Bruck), "{algorithms:?}");
    assert_eq!(algorithms[left + 64], Algorithm::Multicast, "tried again");
}

#[test]
fn multicast_that_the_user_names_is_taken_although_it_does_not_arrive() {
    let is_dead = Arc::new(AtomicBool::new(true));
    let always = Tuning::always(Kind::Allgather, Algorithm::Multicast);
    let options = spread(OF_COMPUTER).tap(dead_at(1, &is_dead));
    let group = Group::new(RANKS, options, |config| config.eager_bytes(1024)).tuned(always);
    group.run_once(true, |communicator, rank| {
        for turn in 0..8 {
            let decision = gather(communicator, rank, turn);
            assert_eq!((decision.algorithm(), decision.lost_multicast()), (Algorithm::Multicast, None));
        }
    });
}

#[test]
fn without_gso_and_gro_every_byte_is_right() {
    Group::new(RANKS, spread(OF_COMPUTER).segmentation_offload(false), |config| config.eager_bytes(1024))
        .tuned(tuned())
        .run(|communicator, rank| (0..4).for_each(|turn| _ = gather(communicator, rank, turn)));
}
