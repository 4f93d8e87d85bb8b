//! Collectives between pairs of ranks on emulated RDMA cards, by the DPA's datapath with the real firmware and by that
//! of the hosts' processors: every byte checked against one core's loop over the contributions.

use std::time::Duration;

use emu_config::Machine;
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{
    Algorithm, Allgather, Allreduce, Alltoall, Blocks, Buffer, Cause, Communicator, Config, Control, DatapathKind,
    Error, Failed, Gather, Reduce, ReduceScatter, Request, Scatter, Selection, Test,
};
use flexcast_tests::assert_mentions;
use flexcast_tests::card_ranks::{CardRanks, config, empty, filled};
use flexcast_tests::communicators::{self, Under, contribution, drive, ended, gathers};

const PS_PER_US: u64 = 1_000_000;
const DATAPATHS: [DatapathKind; 2] = [DatapathKind::Dpa, DatapathKind::Verbs];

fn world(datapath: DatapathKind, machine: Machine, ranks: u32, config: &Config, body: impl FnOnce(&mut CardRanks)) {
    body(&mut CardRanks::new(datapath, &machine, ranks, config));
}

/// The same on both datapaths, and without losses.
fn worlds(ranks: u32, config: &Config, body: impl Fn(&CardRanks)) {
    for datapath in DATAPATHS {
        world(datapath, Machine::default(), ranks, config, |world| body(world));
    }
}

/// Elements of a contribution. No byte makes a number of any type that is none, or endless.
fn elements(rank: u32, count: usize, reduction: Reduction) -> Vec<u8> {
    let bytes = contribution(7, rank as usize, count * reduction.element_bytes() as usize);
    bytes.into_iter().map(|byte| byte % 0x3c).collect()
}

/// One core's loop over all contributions.
fn reduced(ranks: u32, count: usize, reduction: Reduction) -> Vec<u8> {
    let mut all = elements(0, count, reduction);
    (1..ranks).for_each(|rank| reduction.combine(&mut all, &elements(rank, count, reduction)));
    all
}

const SUM: (Operator, DataType) = (Operator::Sum, DataType::I32);

fn of((operator, data_type): (Operator, DataType)) -> Reduction {
    Reduction::new(operator, data_type).expect("the type has it")
}

/// Every reduction of so many elements, in place and not, with every root of two.
fn reductions_are_right(world: &CardRanks, reduction: Reduction, count: usize) {
    let (ranks, element) = (world.ranks(), reduction.element_bytes() as usize);
    let own = |rank: u32| elements(rank, count, reduction);
    let all = reduced(ranks, count, reduction);
    world.gets(|_| all.clone(), |one, rank| one.allreduce(filled(one, &own(rank)), empty(one, all.len()), reduction));
    world.gets(|_| all.clone(), |one, rank| one.post(Allreduce::new(reduction).in_place(filled(one, &own(rank)))));
    for root in [0, ranks - 1] {
        let at_root = |rank, bytes: usize| if rank == root { bytes } else { 0 };
        world.gets(
            |rank| all[..at_root(rank, all.len())].to_vec(),
            |one, rank| {
                one.post(
                    Reduce::to(root, reduction).buffers(filled(one, &own(rank)), empty(one, at_root(rank, all.len()))),
                )
            },
        );
        let left = |rank| if rank == root { all.clone() } else { own(rank) };
        world.gets(left, |one, rank| one.post(Reduce::to(root, reduction).in_place(filled(one, &own(rank)))));
    }
    // Shares of different lengths, and one of none.
    let share = |other: u32| (count / (other as usize + 1) * element) as u64;
    let counts: Vec<u64> = (0..ranks).map(|other| if other == 1 { 0 } else { share(other) }).collect();
    let total = counts.iter().sum::<u64>() as usize / element;
    let all = reduced(ranks, total, reduction);
    let mine = |rank: u32| {
        let start: u64 = counts[..rank as usize].iter().sum();
        all[start as usize..][..counts[rank as usize] as usize].to_vec()
    };
    world.gets(mine, |one, rank| {
        let (send, receive) = (elements(rank, total, reduction), empty(one, counts[rank as usize] as usize));
        one.post(ReduceScatter::new(reduction).counts(&counts).buffers(filled(one, &send), receive))
    });
    let in_place = world.call(|one, rank| {
        one.post(ReduceScatter::new(reduction).counts(&counts).in_place(filled(one, &elements(rank, total, reduction))))
    });
    for (rank, done) in (0..).zip(in_place) {
        let mine = mine(rank);
        assert_eq!(done.receive.to_vec().expect("read")[..mine.len()], mine, "rank {rank} of {ranks}");
    }
    let equal = reduced(ranks, 10 * ranks as usize, reduction);
    world.gets(
        |rank| equal[rank as usize * 10 * element..][..10 * element].to_vec(),
        |one, rank| {
            let send = elements(rank, 10 * ranks as usize, reduction);
            one.post(ReduceScatter::new(reduction).buffers(filled(one, &send), empty(one, 10 * element)))
        },
    );
}

#[test]
fn reductions_of_all_lengths_among_one_to_nine_are_right() {
    for ranks in 1..=9 {
        worlds(ranks, &config(), |world| {
            for count in [0, 1, 1000, 40_000 / ranks as usize] {
                reductions_are_right(world, of(SUM), count);
            }
        });
    }
}

/// By every algorithm that the user can name; recursive doubling of other numbers than powers of two, too.
#[test]
fn reductions_by_named_algorithms_are_right() {
    for selection in [Selection::Ring, Selection::Linear, Selection::RecursiveDoubling] {
        for ranks in [2, 5] {
            let config = config().algorithm(selection);
            world(DatapathKind::Dpa, Machine::default(), ranks, &config, |world| {
                for count in [1, 3000] {
                    reductions_are_right(world, of(SUM), count);
                }
            });
        }
    }
}

/// The result is that of a loop over the ranks, bit for bit, for every type of element and every operator that it has.
#[test]
fn reproducible_reductions_of_every_type_are_those_of_one_core() {
    worlds(3, &config().reproducible(true), |world| {
        for data_type in DataType::ALL {
            let pairs = Operator::ALL.iter().filter_map(|operator| Reduction::new(*operator, *data_type).ok());
            for (number, reduction) in pairs.enumerate() {
                let all = reduced(3, 400, reduction);
                world.gets(
                    |_| all.clone(),
                    |one, rank| {
                        one.post(Allreduce::new(reduction).in_place(filled(one, &elements(rank, 400, reduction))))
                    },
                );
                if number == 0 {
                    reductions_are_right(world, reduction, 33);
                }
            }
        }
    });
}

/// The order shows: the sum of such numbers depends on it.
#[test]
fn a_loop_in_another_order_has_other_bits() {
    let sum = of((Operator::Sum, DataType::F32));
    let value = |rank: u32| [1.0f32, 1e30, -1e30, 3.0, 1e8, 5.0, -1e8][rank as usize];
    let own = |rank: u32| value(rank).to_ne_bytes().repeat(500);
    let in_order = (1..7).fold(value(0), |all, rank| all + value(rank));
    let backwards = (0..6).rev().fold(value(6), |all, rank| all + value(rank));
    assert!(in_order.to_bits() != backwards.to_bits());
    worlds(7, &config().reproducible(true), |world| {
        let all = in_order.to_ne_bytes().repeat(500);
        for root in [0, 3] {
            world.gets(
                |rank| if rank == root { all.clone() } else { own(rank) },
                |one, rank| one.post(Reduce::to(root, sum).in_place(filled(one, &own(rank)))),
            );
        }
        world.gets(|_| all.clone(), |one, rank| one.post(Allreduce::new(sum).in_place(filled(one, &own(rank)))));
    });
}

/// What rank `from` has for rank `to`.
fn part(from: u32, to: u32, bytes: usize) -> Vec<u8> {
    contribution(u64::from(from), to as usize, bytes)
}

fn blocks_are_right(world: &CardRanks, bytes: usize) {
    let ranks = world.ranks();
    let from_here = |rank| (0..ranks).flat_map(|to| part(rank, to, bytes)).collect::<Vec<u8>>();
    let to_here = |rank| (0..ranks).flat_map(|from| part(from, rank, bytes)).collect::<Vec<u8>>();
    let len = bytes * ranks as usize;
    world.gets(to_here, |one, rank| one.alltoall(filled(one, &from_here(rank)), empty(one, len)));
    world.gets(to_here, |one, rank| one.post(Alltoall::new().in_place(filled(one, &from_here(rank)))));
    let root = ranks / 2;
    let own = |rank| part(rank, rank, bytes);
    let all: Vec<u8> = (0..ranks).flat_map(own).collect();
    let at_root = |rank| if rank == root { all.clone() } else { vec![0xA5; 3] };
    world.gets(at_root, |one, rank| {
        let receive = empty(one, if rank == root { all.len() } else { 3 });
        one.post(Gather::to(root).buffers(filled(one, &own(rank)), receive))
    });
    world.gets(own, |one, rank| {
        let send = if rank == root { filled(one, &all) } else { empty(one, 0) };
        one.post(Scatter::from(root).buffers(send, empty(one, bytes)))
    });
    let at_root = |rank| if rank == root { all.clone() } else { Vec::new() };
    world.gets(at_root, |one, rank| {
        if rank != root {
            return one.post(Gather::to(root).buffers(filled(one, &own(rank)), empty(one, 0)));
        }
        let mut receive = empty(one, all.len());
        receive.write(rank as usize * bytes, &own(rank)).expect("written");
        one.post(Gather::to(root).in_place(receive))
    });
    let not_root = |rank| if rank == root { Vec::new() } else { own(rank) };
    world.gets(not_root, |one, rank| match rank == root {
        true => one.post(Scatter::from(root).in_place(filled(one, &all))),
        false => one.post(Scatter::from(root).buffers(empty(one, 0), empty(one, bytes))),
    });
    for done in world.call(|one, _| one.barrier()) {
        assert_eq!(done.report.decision.algorithm(), Algorithm::Dissemination);
    }
}

#[test]
fn blocks_from_each_to_each_among_one_to_nine_are_right() {
    for ranks in 1..=9 {
        worlds(ranks, &config(), |world| {
            for bytes in [0, 1, 1000, 30_001] {
                blocks_are_right(world, bytes);
            }
        });
    }
}

/// Where the barrier carries nothing, queue pairs are announced by multicast.
#[test]
fn connections_are_made_by_multicast_too() {
    for ranks in [2, 5] {
        worlds(ranks, &config().eager_bytes(0).algorithm(Selection::Multicast), |world| {
            blocks_are_right(world, 500);
            reductions_are_right(world, of(SUM), 20);
        });
    }
}

#[test]
fn blocks_of_all_lengths_at_any_places_are_right() {
    const GAP: u64 = 3;
    let bytes = |from: u32, to: u32| if from == 1 { 0 } else { 301 * u64::from(from) + 7_000 * u64::from(to) };
    // In the opposite order of ranks, with gaps.
    let backwards = |lens: &[u64]| -> (Vec<u64>, u64) {
        let mut end = 0;
        let mut places: Vec<u64> = lens.iter().rev().map(|len| (end + GAP, end += len + GAP).0).collect();
        places.reverse();
        (places, end)
    };
    for ranks in [1, 2, 5] {
        worlds(ranks, &config(), |world| {
            let sent = |rank| (0..ranks).map(|to| bytes(rank, to)).collect::<Vec<u64>>();
            let received = |rank| (0..ranks).map(|from| bytes(from, rank)).collect::<Vec<u64>>();
            let expected = |rank: u32| {
                let (counts, (places, end)) = (received(rank), backwards(&received(rank)));
                let mut all = vec![0xA5; end as usize];
                for from in 0..ranks as usize {
                    let block = part(from as u32, rank, counts[from] as usize);
                    all[places[from] as usize..][..block.len()].copy_from_slice(&block);
                }
                all
            };
            world.gets(expected, |one, rank| {
                let (sent, received) = (sent(rank), received(rank));
                let ((from, sends), (to, receives)) = (backwards(&sent), backwards(&received));
                let mut send = empty(one, sends as usize);
                for other in 0..ranks as usize {
                    let block = part(rank, other as u32, sent[other] as usize);
                    send.write(from[other] as usize, &block).expect("written");
                }
                let receive = empty(one, receives as usize);
                let of = Blocks { counts: &sent, displs: &from };
                one.post(Alltoall::blocks(of, Blocks { counts: &received, displs: &to }).buffers(send, receive))
            });
            // In place blocks are alike on both ranks.
            let same: Vec<u64> = (0..u64::from(ranks)).map(|rank| 900 * (rank + 1)).collect();
            let alike = |rank: usize, other: usize| same[rank].min(same[other]);
            let filled_with = |rank: usize, block: &dyn Fn(usize) -> Vec<u8>| {
                let (places, end) = backwards(&same);
                let mut all = vec![0xA5; end as usize];
                for other in 0..ranks as usize {
                    let bytes = block(other);
                    assert_eq!(bytes.len() as u64, alike(rank, other));
                    all[places[other] as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                all
            };
            let before = |rank: usize| filled_with(rank, &|to| part(rank as u32, to as u32, alike(rank, to) as usize));
            let after =
                |rank: usize| filled_with(rank, &|from| part(from as u32, rank as u32, alike(rank, from) as usize));
            world.gets(
                |rank| after(rank as usize),
                |one, rank| {
                    let counts: Vec<u64> = (0..ranks as usize).map(|other| alike(rank as usize, other)).collect();
                    let (places, _) = backwards(&same);
                    let blocks = Blocks { counts: &counts, displs: &places };
                    one.post(Alltoall::blocks(blocks, blocks).in_place(filled(one, &before(rank as usize))))
                },
            );
            let root = ranks - 1;
            let counts: Vec<u64> = (0..ranks).map(|from| bytes(from, 0)).collect();
            let own = |rank: u32| part(rank, 0, counts[rank as usize] as usize);
            let (places, end) = backwards(&counts);
            let blocks = Blocks { counts: &counts, displs: &places };
            let nothing = Blocks { counts: &[], displs: &[] };
            let of_root = |rank| if rank == root { blocks } else { nothing };
            let mut all = vec![0xA5; end as usize];
            for rank in 0..ranks {
                all[places[rank as usize] as usize..][..own(rank).len()].copy_from_slice(&own(rank));
            }
            let at_root = |rank| if rank == root { all.clone() } else { Vec::new() };
            world.gets(at_root, |one, rank| {
                let receive = empty(one, if rank == root { end as usize } else { 0 });
                one.post(Gather::to(root).blocks(of_root(rank)).buffers(filled(one, &own(rank)), receive))
            });
            world.gets(own, |one, rank| {
                let send = filled(one, &at_root(rank));
                one.post(Scatter::from(root).blocks(of_root(rank)).buffers(send, empty(one, own(rank).len())))
            });
            world.gets(
                |rank| if rank == root { Vec::new() } else { own(rank) },
                |one, rank| match rank == root {
                    true => one.post(Scatter::from(root).blocks(blocks).in_place(filled(one, &all))),
                    false => one
                        .post(Scatter::from(root).blocks(nothing).buffers(empty(one, 0), empty(one, own(rank).len()))),
                },
            );
            world.gets(at_root, |one, rank| match rank == root {
                true => {
                    let mut receive = empty(one, end as usize);
                    receive.write(places[rank as usize] as usize, &own(rank)).expect("written");
                    one.post(Gather::to(root).blocks(blocks).in_place(receive))
                }
                false => one.post(Gather::to(root).blocks(nothing).buffers(filled(one, &own(rank)), empty(one, 0))),
            });
        });
    }
}

/// Frames that are lost are sent again by the cards.
#[test]
fn losses_cost_time_and_no_bytes() {
    for datapath in DATAPATHS {
        for seed in 1..=3 {
            let machine = Machine { loss_ppm: Some(10_000), seed: Some(seed), ..Machine::default() };
            let config = config().retry_exponent(6).barrier_timeout(Duration::from_secs(1));
            world(datapath, machine, 4, &config, |world| {
                blocks_are_right(world, 20_000);
                reductions_are_right(world, of(SUM), 10_000);
            });
        }
    }
}

/// Ranks without a barrier between them are several operations ahead of one another, and then all have to wait for the
/// slowest.
#[test]
fn operations_of_all_kinds_follow_one_another() {
    let ranks = 5;
    worlds(ranks, &config().max_receive_bytes(4 << 20), |world| {
        let (mut posted, mut expected) = (Vec::new(), Vec::new());
        for one in &world.all {
            let rank = one.rank();
            for turn in 0..12u32 {
                let bytes = [5_000, 100_000][turn as usize % 2];
                let data = contribution(u64::from(turn), 0, bytes);
                let buffer = if rank == 0 { filled(one, &data) } else { empty(one, bytes) };
                posted.push((one, one.broadcast(buffer, 0).expect("accepted")));
                expected.push(data);
                let own = filled(one, &elements(rank, 100, of(SUM)));
                let receive = empty(one, if rank == 0 { 400 } else { 0 });
                posted.push((one, one.post(Reduce::to(0, of(SUM)).buffers(own, receive)).expect("accepted")));
                expected.push(if rank == 0 { reduced(ranks, 100, of(SUM)) } else { Vec::new() });
                if turn % 3 == 0 {
                    let send = filled(one, &contribution(3, rank as usize, 20_000));
                    let receive = empty(one, 20_000 * ranks as usize);
                    posted.push((one, one.allgather(send, receive).expect("accepted")));
                    expected.push(communicators::gathered(3, ranks as usize, 20_000));
                    posted.push((one, one.barrier().expect("accepted")));
                    expected.push(Vec::new());
                }
            }
        }
        // One after another on each rank: rank 3 is late with all of them.
        let mut all: Vec<Under<'_>> = posted.into_iter().map(|(one, request)| Under::new(one, request)).collect();
        let each = all.len() / ranks as usize;
        let start_ps = world.provider.relax().now_ps();
        while all.iter().any(|one| one.done.is_none()) {
            let now_ps = world.provider.relax().now_ps() - start_ps;
            assert!(now_ps < communicators::BOUND_PS, "hangs");
            for (number, one) in all.iter_mut().enumerate() {
                let is_late = number / each == 3 && now_ps < 2_000 * PS_PER_US;
                let Some(request) = one.request.take_if(|_| !is_late) else { continue };
                match request.test() {
                    Ok(flexcast::Test::Pending(request)) => one.request = Some(request),
                    Ok(flexcast::Test::Done(done)) => one.done = Some(Ok(done)),
                    Err(failed) => one.done = Some(Err(failed)),
                }
            }
            for one in &world.all {
                if one.rank() != 3 || now_ps >= 2_000 * PS_PER_US {
                    one.progress().expect("progress");
                }
            }
            world.provider.relax().relax();
        }
        for (one, expected) in all.into_iter().zip(expected) {
            let done = one.done.expect("driven").expect("success");
            assert!(done.receive.to_vec().expect("read") == expected, "{} bytes", expected.len());
        }
    });
}

/// Rank 3 is late, and each of the first three waits for it, one operation behind the other; rank 4 is done with all of
/// these, and signals a barrier to rank 0, which waits until that has come so far.
#[test]
fn a_late_rank_handles_operations_far_ahead_in_their_turn() {
    let ranks = 5;
    worlds(ranks, &config(), |world| {
        // All are connected before.
        world.call(|one, _| one.post(Allreduce::new(of(SUM)).in_place(empty(one, 4))));
        let gathers = |one: &Communicator, root| {
            let receive = empty(one, if one.rank() == root { 400 * ranks as usize } else { 0 });
            let own = filled(one, &contribution(8, one.rank() as usize, 400));
            one.post(Gather::to(root).buffers(own, receive)).expect("accepted")
        };
        for round in 0..3 {
            let mut all = Vec::new();
            for one in world.all.iter().filter(|one| one.rank() != 3) {
                all.extend((0..3).map(|root| Under::new(one, gathers(one, root))));
                all.push(Under::new(one, one.barrier().expect("accepted")));
                all.push(Under::new(one, communicators::gather(one, round, 30)));
            }
            let late = &world.all[3];
            let start_ps = world.provider.relax().now_ps();
            while world.provider.relax().now_ps() - start_ps < 500 * PS_PER_US {
                for one in &world.all {
                    one.progress().expect("progress");
                }
                world.provider.relax().relax();
            }
            all.extend((0..3).map(|root| Under::new(late, gathers(late, root))));
            all.push(Under::new(late, late.barrier().expect("accepted")));
            all.push(Under::new(late, communicators::gather(late, round, 30)));
            drive(&world.provider, &mut all, |_, _| {});
            for (number, one) in all.iter().enumerate() {
                let done = one.done.as_ref().expect("driven").as_ref().expect("success");
                let expected = match number % 5 {
                    4 => communicators::gathered(round, ranks as usize, 30),
                    root if root as u32 == one.communicator.rank() && root < 3 => {
                        communicators::gathered(8, ranks as usize, 400)
                    }
                    _ => Vec::new(),
                };
                assert!(done.receive.to_vec().expect("read") == expected, "operation {number}");
            }
        }
    });
}

/// A rank that stands still at any moment while all connect is waited for: nothing is sent to queue pairs that are not
/// connected.
#[test]
fn a_rank_that_stands_still_while_all_connect_is_waited_for() {
    for datapath in DATAPATHS {
        for after_us in [0, 4, 8, 12, 16, 24] {
            let config = config().retry_exponent(1);
            world(datapath, Machine::default(), 3, &config, |world| {
                let start = |one| {
                    Under::new(
                        one,
                        one.post(Allreduce::new(of(SUM)).in_place(filled(one, &[1; 64]))).expect("accepted"),
                    )
                };
                let mut all: Vec<_> = world.all.iter().map(start).collect();
                let start_ps = world.provider.relax().now_ps();
                while all.iter().any(|one| one.done.is_none()) {
                    let since_us = (world.provider.relax().now_ps() - start_ps) / PS_PER_US;
                    assert!(since_us < 100_000, "hangs");
                    for (rank, one) in all.iter_mut().enumerate() {
                        let is_still = rank == 2 && (after_us..after_us + 1_000).contains(&since_us);
                        let Some(request) = one.request.take_if(|_| !is_still) else { continue };
                        match request.test() {
                            Ok(flexcast::Test::Pending(request)) => one.request = Some(request),
                            Ok(flexcast::Test::Done(done)) => one.done = Some(Ok(done)),
                            Err(failed) => panic!("rank {rank}, still after {after_us} us: {failed}"),
                        }
                    }
                    world.provider.relax().relax();
                }
                for one in all {
                    let done = one.done.expect("over").expect("success");
                    assert_eq!(done.receive.to_vec().expect("read"), [3; 64]);
                }
            });
        }
    }
}

/// Whatever ranks call that differs, all of them learn of it, and one says what both have called.
#[test]
fn ranks_that_call_different_things_learn_of_it() {
    type Call<'c> = &'c dyn Fn(&Communicator, u32) -> Result<Request, Box<Failed>>;
    let max = of((Operator::Max, DataType::I32));
    let calls: [(Call<'_>, &[&str]); 8] = [
        (
            &|one, rank| one.post(Allreduce::new(if rank == 0 { of(SUM) } else { max }).in_place(empty(one, 64))),
            &["allreduce of 64 bytes by max on i32"],
        ),
        (
            &|one, rank| one.post(Allreduce::new(of(SUM)).in_place(empty(one, if rank == 1 { 128 } else { 64 }))),
            &["128 bytes", "64 bytes"],
        ),
        (
            &|one, rank| match rank {
                0 => one.post(Allgather::new().in_place(empty(one, 3 << 17))),
                _ => one.post(Alltoall::new().in_place(empty(one, 66))),
            },
            &["allgather of 131072 bytes", "alltoall of 22 bytes"],
        ),
        (
            &|one, rank| match rank {
                2 => one.broadcast(empty(one, 100), 0),
                _ => one.post(Gather::to(0).buffers(empty(one, 10), empty(one, if rank == 0 { 30 } else { 0 }))),
            },
            &["broadcast of 100 bytes", "gather of 10 bytes"],
        ),
        // Each of the two waits for the other to take its contribution.
        (
            &|one, rank| {
                let root = u32::from(rank == 0);
                one.post(Reduce::to(root, of(SUM)).buffers(empty(one, 8), empty(one, if rank == root { 8 } else { 0 })))
            },
            &["reduce of 8 bytes to root 0", "to root 1"],
        ),
        (
            &|one, rank| {
                if rank == 0 { one.barrier() } else { one.post(Allreduce::new(of(SUM)).in_place(empty(one, 8))) }
            },
            &["barrier", "allreduce of 8 bytes"],
        ),
        (
            &|one, rank| if rank == 0 { one.barrier() } else { one.broadcast(empty(one, 8), 0) },
            &["barrier", "broadcast"],
        ),
        // The two ranks of a block must agree on its length.
        (
            &|one, rank| {
                let counts = [8 + u64::from(rank == 1), 8, 8];
                let blocks = Blocks { counts: &counts, displs: &[0, 16, 32] };
                one.post(Alltoall::blocks(blocks, blocks).buffers(empty(one, 48), empty(one, 48)))
            },
            &["alltoallv with a block of 8 bytes between", "alltoallv with a block of 9 bytes between"],
        ),
    ];
    for (call, words) in calls {
        // Before the connections are made, and after.
        for is_connected in [false, true] {
            worlds(3, &config(), |world| {
                if is_connected {
                    world.call(|one, _| one.post(Allreduce::new(of(SUM)).in_place(empty(one, 4))));
                }
                for end in world.end(|one, rank| call(one, rank).expect("accepted")) {
                    let failed = end.expect_err("they differ");
                    let Error::Failed { failure, .. } = &failed.error else { panic!("{failed}") };
                    assert_eq!(failure.cause, Cause::Disagrees, "{words:?}, connected: {is_connected}: {failed}");
                    assert!(failed.receive.is_some(), "the buffer comes back");
                    let ranks =
                        [failure.failed_rank, failure.detecting_rank].map(|rank| format!("rank {rank} called "));
                    assert_mentions(&failed.error, &[&[&*ranks[0], &*ranks[1]][..], words].concat());
                }
                let again = world.all[0].barrier().expect_err("the communicator is broken");
                assert!(matches!(again.error, Error::Broken { .. }), "{again}");
                assert_mentions(&again.error, words);
            });
        }
    }
}

/// A rank that is there, and does nothing.
#[test]
fn a_rank_that_does_not_call_is_named_within_the_bound() {
    for is_connected in [false, true] {
        worlds(4, &config(), |world| {
            if is_connected {
                world.call(|one, _| one.post(Allreduce::new(of(SUM)).in_place(empty(one, 4))));
            }
            let start_ps = world.provider.relax().now_ps();
            let others = world.all.iter().filter(|one| one.rank() != 2);
            let posted: Vec<_> = others
                .map(|one| (one, one.post(Allreduce::new(of(SUM)).in_place(empty(one, 10_000))).expect("accepted")))
                .collect();
            for end in ended(&world.provider, posted) {
                let failed = end.expect_err("one is missing");
                assert_mentions(&failed.error, &["rank 2 was silent", "allreduce"]);
                assert_eq!(failed.receive.as_ref().map(Buffer::len), Some(10_000));
            }
            let took_us = (world.provider.relax().now_ps() - start_ps) / PS_PER_US;
            assert!((20_000..40_000).contains(&took_us), "{took_us} us, and the bound is 20 ms and a quarter of 10");
        });
    }
}

/// Of one that has gone the others say which it is, and none of them hangs.
#[test]
fn a_rank_that_has_gone_is_named() {
    for datapath in DATAPATHS {
        for ranks in [3, 6] {
            let config = config().retry_exponent(3).barrier_timeout(Duration::from_micros(100_000));
            world(datapath, Machine::default(), ranks, &config, |world| {
                world.call(|one, _| one.post(Alltoall::new().in_place(empty(one, 30 * ranks as usize))));
                // Its queue pairs go with it.
                drop(world.all.remove(2));
                let start_ps = world.provider.relax().now_ps();
                for end in world
                    .end(|one, _| one.post(Allreduce::new(of(SUM)).in_place(empty(one, 50_000))).expect("accepted"))
                {
                    let failed = end.expect_err("one is missing");
                    assert_mentions(&failed.error, &["rank 2", "allreduce"]);
                    let cause = failed.report.failure.expect("why").cause;
                    assert!(matches!(cause, Cause::Connection(_)), "{failed}");
                    assert!(failed.receive.is_some(), "the buffer comes back");
                }
                let took_us = (world.provider.relax().now_ps() - start_ps) / PS_PER_US;
                assert!(took_us < 50_000, "{took_us} us: before the bound for silence");
            });
        }
    }
}

/// A rank that goes when all that others have said to it is acknowledged leaves nothing behind that would fail: a rank
/// that waits for it asks its card now and then.
#[test]
fn a_rank_that_goes_while_others_only_wait_for_it_is_named_long_before_the_bound() {
    let calls: [&dyn Fn(&Communicator) -> Request; 3] = [
        &|one| one.barrier().expect("accepted"),
        &|one| one.post(Allreduce::new(of(SUM)).in_place(empty(one, 8))).expect("accepted"),
        &|one| one.post(Alltoall::new().in_place(empty(one, 20_000))).expect("accepted"),
    ];
    for datapath in DATAPATHS {
        for call in calls {
            let config = config().retry_exponent(3).barrier_timeout(Duration::from_secs(2));
            world(datapath, Machine::default(), 2, &config, |world| {
                world.call(|one, _| one.post(Alltoall::new().in_place(empty(one, 20))));
                let start_ps = world.provider.relax().now_ps();
                let mut request = Some(call(&world.all[0]));
                let failed = loop {
                    let since_ps = world.provider.relax().now_ps() - start_ps;
                    if since_ps > 200 * PS_PER_US && world.all.len() == 2 {
                        // What rank 0 has sent is acknowledged long since.
                        drop(world.all.pop());
                    }
                    match request.take().expect("under way").test() {
                        Ok(Test::Pending(pending)) => request = Some(pending),
                        Ok(Test::Done(_)) => panic!("it has a result after {since_ps} ps"),
                        Err(failed) => break failed,
                    }
                    world.provider.relax().relax();
                };
                assert_mentions(&failed.error, &["the connection from rank 0 to rank 1 broke: retries exceeded"]);
                let took_us = (world.provider.relax().now_ps() - start_ps) / PS_PER_US;
                assert!((500_000..700_000).contains(&took_us), "{datapath}: {took_us} us");
            });
        }
    }
}

#[test]
fn a_cancelled_operation_ends_on_all_ranks_and_buffers_come_back() {
    for is_connected in [false, true] {
        worlds(3, &config(), |world| {
            if is_connected {
                world.call(|one, _| one.post(Alltoall::new().in_place(empty(one, 30))));
            }
            let start = |one: &Communicator| one.alltoall(empty(one, 900_000), empty(one, 900_000)).expect("accepted");
            let mut all: Vec<_> = world.all.iter().map(|one| Under::new(one, start(one))).collect();
            let mut is_cancelled = false;
            drive(&world.provider, &mut all, |since_ps, all| {
                if since_ps > 8 * PS_PER_US && !std::mem::replace(&mut is_cancelled, true) {
                    all[1].communicator.cancel();
                }
            });
            for one in &all {
                let failed = one.done.as_ref().expect("driven to its end").as_ref().expect_err("cancelled");
                assert_mentions(&failed.error, &["rank 1 cancelled the operation", "alltoall"]);
                assert!(failed.send.is_some() && failed.receive.is_some());
            }
        });
    }
}

#[test]
fn arguments_that_cannot_be_are_refused_with_the_buffers() {
    worlds(2, &config(), |world| {
        let one = &world.all[1];
        let sum = of((Operator::Sum, DataType::F64));
        let text = |result: Result<Request, Box<Failed>>| {
            let failed = result.expect_err("refused");
            assert!(failed.receive.is_some(), "the buffer comes back");
            failed.error.to_string()
        };
        assert!(text(one.post(Allreduce::new(sum).in_place(empty(one, 12)))).contains("12 bytes are no multiple"));
        assert!(text(one.post(Reduce::to(2, sum).buffers(empty(one, 8), empty(one, 8)))).contains("root 2 of 2 ranks"));
        assert!(text(one.post(Gather::to(0).in_place(empty(one, 8)))).contains("only root 0"));
        // Nothing of it has reached the other rank.
        world.call(|one, _| one.barrier());
        gathers(&world.provider, &world.all, 3, 100);
    });
}

/// The hosts carry them: with the protocol on the card there is none that could.
#[test]
fn with_the_protocol_on_the_card_they_are_refused() {
    world(DatapathKind::Dpa, Machine::default(), 2, &config().control(Control::Device), |world| {
        let one = &world.all[0];
        let refused = one.post(Allreduce::new(of(SUM)).in_place(empty(one, 8))).expect_err("refused");
        assert_mentions(&refused.error, &["allreduce", "control = device", "set control to host"]);
        assert!(refused.receive.is_some());
        gathers(&world.provider, &world.all, 3, 100);
    });
}
