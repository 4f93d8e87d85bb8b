//! Collectives by messages between pairs of ranks: every element checked against one core's loop over the
//! contributions.

use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{
    Algorithm, Allgather, Allreduce, Alltoall, Blocks, Buffer, Cause, Communicator, Config, Error, Gather, Reduce,
    ReduceScatter, Scatter, Selection,
};

use crate::group::{Group, block, check};
use crate::options;

const RANKS: [u32; 5] = [1, 2, 3, 5, 8];

fn filled(communicator: &Communicator, bytes: &[u8]) -> Buffer {
    let mut buffer = communicator.endpoint().buffer(bytes.len()).unwrap();
    buffer.write(0, bytes).unwrap();
    buffer
}

fn empty(communicator: &Communicator, bytes: usize) -> Buffer {
    let mut buffer = communicator.endpoint().buffer(bytes).unwrap();
    buffer.fill(0xA5);
    buffer
}

/// Elements of a contribution: for floating point numbers of different sizes, whose sum depends on the order.
fn elements(rank: u32, count: usize, reduction: Reduction) -> Vec<u8> {
    if reduction.data_type() != DataType::F32 {
        return block(rank, count * reduction.element_bytes() as usize);
    }
    let each = block(rank, 2 * count);
    let value = |pair: &[u8]| f32::from(pair[0]) * 2f32.powi(i32::from(pair[1] % 40) - 20);
    each.chunks(2).flat_map(|pair| value(pair).to_ne_bytes()).collect()
}

/// One core's loop over all contributions.
fn reduced(ranks: u32, count: usize, reduction: Reduction) -> Vec<u8> {
    let mut all = elements(0, count, reduction);
    (1..ranks).for_each(|rank| reduction.combine(&mut all, &elements(rank, count, reduction)));
    all
}

fn reductions() -> Vec<Reduction> {
    [
        (Operator::Sum, DataType::I32),
        (Operator::Max, DataType::U8),
        (Operator::BitXor, DataType::U64),
        (Operator::Sum, DataType::F32),
    ]
    .map(|(operator, data_type)| Reduction::new(operator, data_type).unwrap())
    .to_vec()
}

fn reductions_are_right(configure: impl Fn(Config) -> Config + Sync + Copy + 'static, is_ordered: bool) {
    for ranks in RANKS {
        Group::new(ranks, options(), configure).run(|communicator, rank| {
            for reduction in reductions().into_iter().filter(|with| is_ordered || with.data_type() != DataType::F32) {
                let element = reduction.element_bytes() as usize;
                for count in [0, 1, 7, 1000, 50_003] {
                    let (own, all) = (elements(rank, count, reduction), reduced(ranks, count, reduction));
                    let send = filled(communicator, &own);
                    let receive = empty(communicator, own.len());
                    let done = communicator.allreduce(send, receive, reduction).unwrap().wait().unwrap();
                    check(&done.receive, 0, &all);
                    check(&done.send.unwrap(), 0, &own);
                    let buffer = filled(communicator, &own);
                    let done = communicator.post(Allreduce::new(reduction).in_place(buffer)).unwrap().wait().unwrap();
                    check(&done.receive, 0, &all);
                    for root in [0, ranks - 1] {
                        let send = filled(communicator, &own);
                        let receive = empty(communicator, if rank == root { own.len() } else { 0 });
                        let request = communicator.post(Reduce::to(root, reduction).buffers(send, receive)).unwrap();
                        let done = request.wait().unwrap();
                        if rank == root {
                            check(&done.receive, 0, &all);
                        }
                        let request = communicator
                            .post(Reduce::to(root, reduction).in_place(filled(communicator, &own)))
                            .unwrap();
                        let done = request.wait().unwrap();
                        check(&done.receive, 0, if rank == root { &all } else { &own });
                    }
                    // Shares of different lengths, and one of none.
                    let share = |other: u32| (count / (other as usize + 1) * element) as u64;
                    let counts: Vec<u64> = (0..ranks).map(|other| if other == 1 { 0 } else { share(other) }).collect();
                    let total: u64 = counts.iter().sum();
                    let (own, all) = (
                        elements(rank, total as usize / element, reduction),
                        reduced(ranks, total as usize / element, reduction),
                    );
                    let start: u64 = counts[..rank as usize].iter().sum();
                    let mine = &all[start as usize..][..counts[rank as usize] as usize];
                    let (send, receive) = (filled(communicator, &own), empty(communicator, mine.len()));
                    let request = communicator
                        .post(ReduceScatter::new(reduction).counts(&counts).buffers(send, receive))
                        .unwrap();
                    check(&request.wait().unwrap().receive, 0, mine);
                    let buffer = filled(communicator, &own);
                    let request =
                        communicator.post(ReduceScatter::new(reduction).counts(&counts).in_place(buffer)).unwrap();
                    check(&request.wait().unwrap().receive, 0, mine);
                }
                let all = reduced(ranks, 100 * ranks as usize, reduction);
                let send = filled(communicator, &elements(rank, 100 * ranks as usize, reduction));
                let receive = empty(communicator, 100 * element);
                let request = communicator.post(ReduceScatter::new(reduction).buffers(send, receive)).unwrap();
                let mine = &all[rank as usize * 100 * element..][..100 * element];
                check(&request.wait().unwrap().receive, 0, mine);
            }
        });
    }
}

#[test]
fn reductions_of_all_lengths_are_right() {
    reductions_are_right(|config| config, false);
}

#[test]
fn reductions_around_the_ring_are_right() {
    reductions_are_right(|config| config.algorithm(Selection::Ring), false);
}

#[test]
fn reproducible_reductions_are_those_of_one_core() {
    reductions_are_right(|config| config.reproducible(true), true);
}

#[test]
fn blocks_from_each_to_each_are_right() {
    for ranks in RANKS {
        Group::new(ranks, options(), |config| config).run(|communicator, rank| {
            let part = |from: u32, to: u32, bytes: usize| block(from * 100 + to, bytes);
            let everyone = || 0..ranks;
            for bytes in [0, 1, 1000, 40_001] {
                let from_here: Vec<u8> = everyone().flat_map(|to| part(rank, to, bytes)).collect();
                let to_here: Vec<u8> = everyone().flat_map(|from| part(from, rank, bytes)).collect();
                let send = filled(communicator, &from_here);
                let receive = empty(communicator, to_here.len());
                let request = communicator.alltoall(send, receive).unwrap();
                check(&request.wait().unwrap().receive, 0, &to_here);
                let request = communicator.post(Alltoall::new().in_place(filled(communicator, &from_here))).unwrap();
                check(&request.wait().unwrap().receive, 0, &to_here);
                let root = ranks / 2;
                let own = part(rank, rank, bytes);
                let all: Vec<u8> = everyone().flat_map(|from| part(from, from, bytes)).collect();
                let receive = empty(communicator, if rank == root { all.len() } else { 3 });
                let request = communicator.post(Gather::to(root).buffers(filled(communicator, &own), receive)).unwrap();
                let done = request.wait().unwrap();
                check(&done.receive, 0, if rank == root { &all } else { &[0xA5; 3] });
                let send = if rank == root { filled(communicator, &all) } else { empty(communicator, 0) };
                let request = communicator.post(Scatter::from(root).buffers(send, empty(communicator, bytes))).unwrap();
                check(&request.wait().unwrap().receive, 0, &own);
                let request = if rank == root {
                    let mut receive = empty(communicator, all.len());
                    receive.write(rank as usize * bytes, &own).unwrap();
                    communicator.post(Gather::to(root).in_place(receive)).unwrap()
                } else {
                    communicator
                        .post(Gather::to(root).buffers(filled(communicator, &own), empty(communicator, 0)))
                        .unwrap()
                };
                let done = request.wait().unwrap();
                if rank == root {
                    check(&done.receive, 0, &all);
                }
            }
            let request = communicator.barrier().unwrap();
            let done = request.wait().unwrap();
            assert_eq!(done.report.decision.algorithm(), Algorithm::Dissemination);
        });
    }
}

#[test]
fn blocks_of_all_lengths_at_any_places_are_right() {
    const GAP: u64 = 3;
    for ranks in [1, 2, 5] {
        Group::new(ranks, options(), |config| config).run(|communicator, rank| {
            let bytes =
                |from: u32, to: u32| if from == 1 { 0 } else { 3001 * u64::from(from) + 70_000 * u64::from(to) };
            // In the opposite order of ranks, with gaps.
            let backwards = |lens: &[u64]| -> (Vec<u64>, u64) {
                let mut end = 0;
                let mut places: Vec<u64> = lens.iter().rev().map(|len| (end + GAP, end += len + GAP).0).collect();
                places.reverse();
                (places, end)
            };
            let sent: Vec<u64> = (0..ranks).map(|to| bytes(rank, to)).collect();
            let received: Vec<u64> = (0..ranks).map(|from| bytes(from, rank)).collect();
            let ((from, sends), (to, receives)) = (backwards(&sent), backwards(&received));
            let mut send = empty(communicator, sends as usize);
            for other in 0..ranks {
                let part = block(rank * 100 + other, sent[other as usize] as usize);
                send.write(from[other as usize] as usize, &part).unwrap();
            }
            let receive = empty(communicator, receives as usize);
            let (of, into) = (Blocks { counts: &sent, displs: &from }, Blocks { counts: &received, displs: &to });
            let request = communicator.post(Alltoall::blocks(of, into).buffers(send, receive)).unwrap();
            let done = request.wait().unwrap();
            for other in 0..ranks {
                let (at, len) = (to[other as usize], received[other as usize]);
                check(&done.receive, at as usize, &block(other * 100 + rank, len as usize));
                check(&done.receive, (at - GAP) as usize, &[0xA5; GAP as usize]);
            }
            let root = ranks - 1;
            let own = block(rank, sent[0] as usize);
            let counts: Vec<u64> = (0..ranks).map(|from| bytes(from, 0)).collect();
            let (places, end) = backwards(&counts);
            let blocks = Blocks { counts: &counts, displs: &places };
            let nothing = Blocks { counts: &[], displs: &[] };
            let is_root = rank == root;
            let receive = empty(communicator, if is_root { end as usize } else { 0 });
            let of = if is_root { blocks } else { nothing };
            let request =
                communicator.post(Gather::to(root).blocks(of).buffers(filled(communicator, &own), receive)).unwrap();
            let gathered = request.wait().unwrap().receive;
            if is_root {
                for other in 0..ranks {
                    let (at, len) = (places[other as usize], counts[other as usize]);
                    check(&gathered, at as usize, &block(other, len as usize));
                }
            }
            let request = communicator
                .post(Scatter::from(root).blocks(of).buffers(gathered, empty(communicator, own.len())))
                .unwrap();
            check(&request.wait().unwrap().receive, 0, &own);
        });
    }
}

/// Ranks without a barrier between them are several operations ahead of one another, and then all have to wait for the
/// slowest.
#[test]
fn operations_with_and_without_a_barrier_follow_one_another() {
    let group = Group::new(5, options(), |config| config.progress_thread(Some(flexcast::ThreadOptions::default())));
    group.run(|communicator, rank| {
        let sum = Reduction::new(Operator::Sum, DataType::I32).unwrap();
        let mut requests = Vec::new();
        if rank == 3 {
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        for turn in 0..12u32 {
            let bytes = [5_000, 300_000][turn as usize % 2];
            let data = block(turn, bytes);
            let buffer = if rank == 0 { filled(communicator, &data) } else { empty(communicator, bytes) };
            requests.push((communicator.broadcast(buffer, 0).unwrap(), data));
            let own = elements(rank, 100, sum);
            let request = communicator
                .post(Reduce::to(0, sum).buffers(filled(communicator, &own), empty(communicator, 400)))
                .unwrap();
            let untouched = vec![0xA5; 400];
            requests.push((request, if rank == 0 { reduced(5, 100, sum) } else { untouched }));
            if turn % 3 == 0 {
                let send = filled(communicator, &block(rank, 70_000));
                let request = communicator.allgather(send, empty(communicator, 5 * 70_000)).unwrap();
                requests.push((request, (0..5).flat_map(|other| block(other, 70_000)).collect()));
            }
        }
        for (request, expected) in requests {
            check(&request.wait().unwrap().receive, 0, &expected);
        }
    });
}

/// Runs two ranks that call different things; both must learn of it: their errors.
fn disagreement(call: impl Fn(&Communicator, u32) -> flexcast::Request + Sync) -> Vec<String> {
    let texts = std::sync::Mutex::new(Vec::new());
    Group::new(2, options(), |config| config).run(|communicator, rank| {
        let failed = call(communicator, rank).wait().unwrap_err();
        assert!(
            matches!(&failed.error, Error::Failed { failure, .. } if failure.cause == Cause::Disagrees),
            "{:?}",
            failed.error
        );
        assert!(communicator.disagreement().is_some(), "{:?}", failed.error);
        texts.lock().unwrap().push(failed.error.to_string());
    });
    texts.into_inner().unwrap()
}

#[test]
fn ranks_that_call_different_things_learn_of_it() {
    let of = |operator, data_type| Reduction::new(operator, data_type).unwrap();
    let sum = of(Operator::Sum, DataType::I32);
    let texts = disagreement(|communicator, rank| {
        let reduction = if rank == 0 { sum } else { of(Operator::Max, DataType::I32) };
        communicator.post(Allreduce::new(reduction).in_place(empty(communicator, 64))).unwrap()
    });
    let both = "rank 0 called allreduce of 64 bytes by sum on i32; rank 1 called allreduce of 64 bytes by max on i32";
    assert!(texts.len() == 4 && texts.iter().all(|text| text.contains(both)), "{texts:?}");
    let texts = disagreement(|communicator, rank| {
        communicator.post(Allreduce::new(sum).in_place(empty(communicator, 64 + 64 * rank as usize))).unwrap()
    });
    let both = "rank 0 called allreduce of 64 bytes by sum on i32; rank 1 called allreduce of 128 bytes by sum on i32";
    assert!(texts.iter().all(|text| text.contains(both)), "{texts:?}");
    // One with a barrier, and one without.
    let texts = disagreement(|communicator, rank| match rank {
        0 => communicator.post(Allgather::new().in_place(empty(communicator, 2 << 20))).unwrap(),
        _ => communicator.post(Alltoall::new().in_place(empty(communicator, 64))).unwrap(),
    });
    let both = ["rank 0 called allgather of 1048576 bytes", "rank 1 called alltoall of 32 bytes"];
    assert!(texts.iter().all(|text| both.iter().all(|call| text.contains(call))), "{texts:?}");
    // The two ranks of a block must agree on its length.
    let texts = disagreement(|communicator, rank| {
        let counts = [8 + u64::from(rank), 8];
        let blocks = Blocks { counts: &counts, displs: &[0, 16] };
        let (send, receive) = (empty(communicator, 32), empty(communicator, 32));
        communicator.post(Alltoall::blocks(blocks, blocks).buffers(send, receive)).unwrap()
    });
    let both = [
        "rank 0 called alltoallv with a block of 8 bytes between these two",
        "rank 1 called alltoallv with a block of 9 bytes between these two",
    ];
    assert!(texts.iter().all(|text| both.iter().all(|call| text.contains(call))), "{texts:?}");
}

#[test]
fn a_rank_that_does_not_call_is_named_within_the_bound() {
    let short = |config: Config| config.barrier_timeout(std::time::Duration::from_millis(300));
    Group::new(4, options(), short).run(|communicator, rank| {
        let begun = std::time::Instant::now();
        if rank == 2 {
            // It is there, and does nothing.
            std::thread::sleep(std::time::Duration::from_secs(2));
            return;
        }
        let sum = Reduction::new(Operator::Sum, DataType::I32).unwrap();
        let request = communicator.post(Allreduce::new(sum).in_place(empty(communicator, 100_000))).unwrap();
        let failed = request.wait().unwrap_err();
        assert!(failed.to_string().contains("rank 2"), "{failed}");
        assert_eq!(failed.receive.map(|buffer| buffer.len()), Some(100_000));
        assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
    });
}

#[test]
fn arguments_that_cannot_be_are_refused_with_the_buffers() {
    Group::new(2, options(), |config| config).run(|communicator, rank| {
        let sum = Reduction::new(Operator::Sum, DataType::F64).unwrap();
        let buffer = |bytes| empty(communicator, bytes);
        let text = |result: Result<flexcast::Request, Box<flexcast::Failed>>| {
            let failed = result.unwrap_err();
            assert!(failed.receive.is_some(), "the buffer comes back");
            failed.error.to_string()
        };
        assert!(text(communicator.post(Allreduce::new(sum).in_place(buffer(12)))).contains("12 bytes are no multiple"));
        assert!(text(communicator.allreduce(buffer(8), buffer(16), sum)).contains("8 bytes, but 16 are needed"));
        assert!(
            text(communicator.post(Reduce::to(2, sum).buffers(buffer(8), buffer(8)))).contains("root 2 of 2 ranks")
        );
        assert!(text(communicator.alltoall(buffer(9), buffer(9))).contains("9 bytes are no multiple of the 2 ranks"));
        assert!(
            text(communicator.post(ReduceScatter::new(sum).counts(&[8]).buffers(buffer(8), buffer(8))))
                .contains("1 counts for 2")
        );
        let blocks = Blocks { counts: &[8, 8], displs: &[0, 4] };
        let sent = Blocks { counts: &[4, 4], displs: &[0, 4] };
        let refused = communicator.post(Alltoall::blocks(sent, blocks).buffers(buffer(8), buffer(16)));
        assert!(text(refused).contains("overlap"));
        if rank == 1 {
            assert!(text(communicator.post(Gather::to(0).in_place(buffer(8)))).contains("only root 0"));
        }
        // Nothing of it has reached the other rank.
        communicator.barrier().unwrap().wait().unwrap();
    });
}
