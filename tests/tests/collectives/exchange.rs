//! Alltoall, Gather, Scatter, Barrier and reductions without multicast, on emulated cards: every byte of every rank,
//! and what each rank sent.

use emu_config::Machine;
use emu_machine::{Config, with_world};
use flexcast::p2p::algorithm::{Allreduce, Alltoall, Blocks, Operation, Reduce, ReduceScatter};
use flexcast::p2p::{self, Buffer, Error, reference};
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast_tests::assert_mentions;
use flexcast_tests::ranks::{Ranks, bytes_of, with_ranks};
use flexio::Bound;

fn machine(ranks: u32, loss_ppm: u32) -> Config {
    Machine { loss_ppm: Some(loss_ppm), ..Machine::default() }.config_of(ranks as usize).expect("a switch")
}

/// What rank `from` has for rank `to`.
fn block(from: u32, to: u32, len: u64) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + u64::from(from) * 29 + u64::from(to) * 101 + 1) as u8).collect()
}

fn ends(lengths: impl Iterator<Item = u64>) -> Vec<u64> {
    lengths
        .scan(0, |end, len| {
            *end += len;
            Some(*end)
        })
        .collect()
}

/// Runs an Alltoall in which rank `from` has `len(from, to)` bytes for rank `to`, and compares every byte.
fn alltoallv(ranks: &mut Ranks<'_>, algorithm: Alltoall, len: impl Fn(u32, u32) -> u64) -> Result<(), Error> {
    let count = ranks.groups.len() as u32;
    let mut receives = Vec::new();
    let sent_before: Vec<u64> = ranks.groups.iter().map(|group| group.statistics().data_bytes).collect();
    let mut sends = Vec::new();
    for rank in 0..count {
        let bytes: Vec<u8> = (0..count).flat_map(|to| block(rank, to, len(rank, to))).collect();
        sends.push(ranks.memory(rank as usize, bytes.len(), &bytes)?);
        let total: u64 = (0..count).map(|from| len(from, rank)).sum();
        receives.push(ranks.memory(rank as usize, total as usize, &[])?);
    }
    for rank in 0..count {
        let send_ends = ends((0..count).map(|to| len(rank, to)));
        let receive_ends = ends((0..count).map(|from| len(from, rank)));
        let [send, receive] =
            [&sends[rank as usize], &receives[rank as usize]].map(|region| Buffer { region, offset: 0 });
        let (sent, received) = (Blocks::unequal(&send_ends)?, Blocks::unequal(&receive_ends)?);
        ranks.groups[rank as usize].alltoall(algorithm, (send, sent), (receive, received))?;
    }
    ranks.finish()?;
    for rank in 0..count {
        let expected: Vec<u8> = (0..count).flat_map(|from| block(from, rank, len(from, rank))).collect();
        let got = bytes_of(&receives[rank as usize], expected.len());
        assert!(got == expected, "{algorithm:?}: rank {rank} of {count}");
        let sent = ranks.groups[rank as usize].statistics().data_bytes - sent_before[rank as usize];
        let others: u64 = (0..count).filter(|to| *to != rank).map(|to| len(rank, to)).sum();
        assert_eq!(sent, others, "{algorithm:?}: each block once, and none through others");
    }
    Ok(())
}

#[test]
fn every_alltoall_gives_every_rank_its_block_of_every_other() {
    for count in [1, 2, 3, 5, 8] {
        for algorithm in Alltoall::ALL {
            let config = p2p::Config { write_bytes: 4096, ..p2p::Config::default() };
            with_ranks(machine(count, 0), &[Operation::Alltoall(algorithm)], config, |ranks| {
                alltoallv(ranks, algorithm, |_, _| 10_007)?;
                alltoallv(ranks, algorithm, |_, _| 0)?;
                // Of different lengths, some of them empty.
                alltoallv(ranks, algorithm, |from, to| u64::from((from * 5 + to * 3) % 4 * 3001))
            })
            .expect("it works");
        }
    }
}

#[test]
fn losses_cost_an_alltoall_time_and_no_bytes() {
    for algorithm in Alltoall::ALL {
        with_ranks(machine(4, 20_000), &[Operation::Alltoall(algorithm)], p2p::Config::default(), |ranks| {
            alltoallv(ranks, algorithm, |from, to| u64::from(20_000 + 100 * from + to))
        })
        .expect("it works");
    }
}

/// The rank whose peer refuses waits no longer than this for what does not come.
fn impatient() -> p2p::Config {
    p2p::Config { bound: Bound::millis(50), ..p2p::Config::default() }
}

#[test]
fn blocks_of_an_alltoall_that_do_not_fit_are_refused() {
    let linear = Alltoall::Linear;
    with_ranks(machine(2, 0), &[Operation::Alltoall(linear)], impatient(), |ranks| {
        let (first, second) = (ranks.memory(0, 200, &[])?, ranks.memory(1, 200, &[])?);
        let [a, b] = [0, 100].map(|offset| Buffer { region: &first, offset });
        let mut refused = |send: &[u64], receive: &[u64], words: &[&str]| {
            let [send, receive] = [send, receive].map(|ends| Blocks::unequal(ends).expect("ends that go up"));
            let error = ranks.groups[0].alltoall(linear, (a, send), (b, receive)).expect_err("it does not fit");
            assert_mentions(&error, words);
        };
        refused(&[10], &[10, 20], &["number of blocks", "1", "2, one for each rank"]);
        refused(&[10, 20], &[9, 20], &["length of the own block", "10", "9"]);
        refused(&[10, 20], &[10, 120], &["120"]);
        // The other rank has 30 bytes for this one, which expects 20.
        let [c, d] = [0, 100].map(|offset| Buffer { region: &second, offset });
        let [tens, thirties, twenties] = [&[10, 30], &[30, 40], &[20, 30]].map(|ends| Blocks::unequal(ends));
        ranks.groups[0].alltoall(linear, (a, tens?), (b, tens?))?;
        ranks.groups[1].alltoall(linear, (c, thirties?), (d, twenties?))?;
        let outcomes = ranks.outcomes();
        let errors: Vec<&Error> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        let mismatch = errors.iter().find(|error| matches!(error, Error::Mismatch { .. })).expect("one is reported");
        assert_mentions(*mismatch, &["Alltoall (linear)", "30 bytes", "20 bytes"]);
        Ok(())
    })
    .expect("it works up to there");
}

/// What is reduced here: every algorithm gives the same bytes, whatever the order of its sums, as those of [`numbers`]
/// are exact.
const SUM_F32: Reduction = Reduction::of(Operator::Sum, DataType::F32).expect("sums of numbers");
const SUM_I32: Reduction = Reduction::of(Operator::Sum, DataType::I32).expect("sums of numbers");
const MAX_U16: Reduction = Reduction::of(Operator::Max, DataType::U16).expect("an order of integers");
const MIN_LOC: Reduction = Reduction::of(Operator::MinLoc, DataType::DoubleInt).expect("an order of pairs");

/// Small whole numbers, whose sums are exact in any order; bytes of them where they are no elements.
fn numbers(reduction: Reduction, rank: u32, elements: u64) -> Vec<u8> {
    let value = |at: u64| ((at * 13 + u64::from(rank) * 7) % 1000) as i32 - 500;
    match reduction.data_type() {
        DataType::F32 => (0..elements).flat_map(|at| (value(at) as f32).to_ne_bytes()).collect(),
        DataType::I32 => (0..elements).flat_map(|at| value(at).wrapping_mul(1 << 22).to_ne_bytes()).collect(),
        _ => (0..elements * u64::from(reduction.element_bytes())).map(|at| value(at) as u8).collect(),
    }
}

/// What came of a reduction.
struct Reduced {
    /// Of each rank.
    results: Vec<Vec<u8>>,
    /// What one core makes of it.
    sum: Vec<u8>,
    /// Bytes that each rank sent.
    sent: Vec<u64>,
}

/// Starts a reduction of `elements` elements on one rank.
fn start(
    group: &mut p2p::Group,
    operation: Operation,
    reduction: Reduction,
    elements: u64,
    contribution: Buffer<'_>,
) -> Result<(), Error> {
    match operation {
        Operation::ReduceScatter(algorithm) => {
            let shares = Blocks::shares(elements, group.place().ranks())?;
            group.reduce_scatter(algorithm, reduction, shares, contribution)
        }
        Operation::Allreduce(algorithm) => group.allreduce(algorithm, reduction, elements, contribution),
        Operation::Reduce { algorithm, root } => group.reduce(algorithm, root, reduction, elements, contribution),
        other => panic!("{other:?} is no reduction"),
    }
}

/// Runs a reduction on all ranks.
fn reduce(ranks: &mut Ranks<'_>, reduction: Reduction, elements: u64, operation: Operation) -> Result<Reduced, Error> {
    reduce_of(ranks, reduction, elements, operation, numbers)
}

/// The same of what `contribution` makes.
fn reduce_of(
    ranks: &mut Ranks<'_>,
    reduction: Reduction,
    elements: u64,
    operation: Operation,
    contribution: impl Fn(Reduction, u32, u64) -> Vec<u8>,
) -> Result<Reduced, Error> {
    let count = ranks.groups.len() as u32;
    let contributions: Vec<Vec<u8>> = (0..count).map(|rank| contribution(reduction, rank, elements)).collect();
    let before: Vec<u64> = ranks.groups.iter().map(|group| group.statistics().data_bytes).collect();
    for (rank, bytes) in contributions.iter().enumerate() {
        let region = ranks.memory(rank, bytes.len(), bytes)?;
        start(&mut ranks.groups[rank], operation, reduction, elements, Buffer { region: &region, offset: 0 })?;
    }
    ranks.finish()?;
    let results = ranks.groups.iter().map(p2p::Group::result).collect::<Result<_, _>>()?;
    let sent = ranks.groups.iter().zip(before).map(|(group, before)| group.statistics().data_bytes - before).collect();
    Ok(Reduced { results, sum: reference(reduction, &contributions), sent })
}

#[test]
fn a_reduce_scatter_gives_every_rank_its_share_of_the_sum() {
    for count in [1, 2, 3, 5, 8] {
        for (loss_ppm, algorithm) in [0, 20_000].into_iter().flat_map(|ppm| ReduceScatter::ALL.map(|all| (ppm, all))) {
            let operation = Operation::ReduceScatter(algorithm);
            with_ranks(machine(count, loss_ppm), &[operation], p2p::Config::default(), |ranks| {
                for elements in [0, 1, 120 * 200, 10_007] {
                    for reduction in [SUM_F32, SUM_I32, MAX_U16, MIN_LOC] {
                        let Reduced { results, sum, sent } = reduce(ranks, reduction, elements, operation)?;
                        assert!(results.concat() == sum, "{algorithm:?}, {reduction} of {elements} among {count}");
                        if elements.is_multiple_of(u64::from(count)) {
                            let share = elements / u64::from(count) * u64::from(reduction.element_bytes());
                            let each = share * u64::from(count - 1);
                            assert!(sent.iter().all(|sent| *sent == each), "N(P - 1)/P: {sent:?}");
                        }
                    }
                }
                Ok(())
            })
            .expect("it works");
        }
    }
}

#[test]
fn shares_of_a_reduce_scatter_may_differ_in_length() {
    let lengths = [700, 0, 1, 3000, 0, 299];
    let (count, ends) = (lengths.len(), ends(lengths.into_iter()));
    for algorithm in ReduceScatter::ALL {
        let machine = machine(count as u32, 5_000);
        with_ranks(machine, &[Operation::ReduceScatter(algorithm)], p2p::Config::default(), |ranks| {
            let contributions: Vec<Vec<u8>> = (0..count as u32).map(|rank| numbers(SUM_I32, rank, 4000)).collect();
            for (rank, bytes) in contributions.iter().enumerate() {
                let region = ranks.memory(rank, bytes.len(), bytes)?;
                let contribution = Buffer { region: &region, offset: 0 };
                ranks.groups[rank].reduce_scatter(algorithm, SUM_I32, Blocks::unequal(&ends)?, contribution)?;
            }
            ranks.finish()?;
            let results = ranks.groups.iter().map(p2p::Group::result).collect::<Result<Vec<_>, _>>()?;
            assert!(results.iter().zip(lengths).all(|(result, len)| result.len() as u64 == 4 * len));
            assert!(results.concat() == reference(SUM_I32, &contributions), "{algorithm:?}");
            let region = ranks.memory(0, 16_000, &[])?;
            let own = Buffer { region: &region, offset: 0 };
            let refused = ranks.groups[0].reduce_scatter(algorithm, SUM_I32, Blocks::unequal(&[1, 2])?, own);
            assert_mentions(&refused.expect_err("two shares"), &["2 shares among 6 ranks"]);
            Ok(())
        })
        .expect("it works");
    }
}

const ALLREDUCES: [Allreduce; 5] = [
    Allreduce::Ring,
    Allreduce::Tree { segments: 1 },
    Allreduce::Tree { segments: 5 },
    Allreduce::RecursiveDoubling,
    Allreduce::Exchange,
];
const REDUCES: [Reduce; 3] = [Reduce::Tree { segments: 1 }, Reduce::Tree { segments: 3 }, Reduce::Exchange];

#[test]
fn allreduces_give_every_rank_the_sum() {
    for count in [1, 2, 3, 5, 7, 8] {
        for algorithm in ALLREDUCES {
            let operation = Operation::Allreduce(algorithm);
            with_ranks(machine(count, 5_000), &[operation], p2p::Config::default(), |ranks| {
                for elements in [0, 1, 10_007, 64, 30_000] {
                    let Reduced { results, sum, sent } = reduce(ranks, SUM_F32, elements, operation)?;
                    assert!(results.iter().all(|result| *result == sum), "{algorithm:?} of {elements} among {count}");
                    if algorithm != Allreduce::RecursiveDoubling {
                        let all = 8 * elements * u64::from(count - 1);
                        assert_eq!(sent.iter().sum::<u64>(), all, "2N(P - 1) over all");
                    } else if count.is_power_of_two() {
                        let each = 4 * elements * u64::from(count.ilog2());
                        assert!(sent.iter().all(|sent| *sent == each), "N in each round: {sent:?}");
                    }
                }
                Ok(())
            })
            .expect("it works");
        }
    }
}

#[test]
fn a_reduce_gives_the_root_the_sum_and_the_others_nothing() {
    for (count, roots) in [(1, vec![0]), (2, vec![0, 1]), (3, vec![2]), (5, vec![0, 3]), (8, vec![0, 5])] {
        for operation in
            roots.into_iter().flat_map(|root| REDUCES.map(|algorithm| Operation::Reduce { algorithm, root }))
        {
            with_ranks(machine(count, 5_000), &[operation], p2p::Config::default(), |ranks| {
                for elements in [0, 1, 10_007, 64] {
                    let Reduced { results, sum, .. } = reduce(ranks, SUM_I32, elements, operation)?;
                    let Operation::Reduce { root, .. } = operation else { continue };
                    for (rank, result) in (0..).zip(&results) {
                        let expected = if rank == root { &sum[..] } else { &[] };
                        assert!(result == expected, "{operation:?} of {elements}: rank {rank} of {count}");
                    }
                }
                Ok(())
            })
            .expect("it works");
        }
    }
}

/// Numbers of very different sizes, so that each order of them has another sum.
fn rounded(_: Reduction, rank: u32, elements: u64) -> Vec<u8> {
    let number = |at: u64| (at as f32 + 1.3) * [1e-3, 7.7e4, -3.1e7, 0.11, 5.9e5][(at as usize + rank as usize) % 5];
    (0..elements).flat_map(|at| number(at).to_ne_bytes()).collect()
}

/// An exchange gives what one core makes in a loop over ranks, to the last bit, and every AllReduce the same bits on
/// every rank, in each run, whatever is lost on the way.
#[test]
fn sums_that_round_are_reproducible() {
    let count = 7;
    for algorithm in ALLREDUCES {
        let operation = Operation::Allreduce(algorithm);
        let mut before = None;
        for loss_ppm in [0, 30_000, 60_000] {
            with_ranks(machine(count, loss_ppm), &[operation], p2p::Config::default(), |ranks| {
                let Reduced { results, sum, .. } = reduce_of(ranks, SUM_F32, 1000, operation, rounded)?;
                assert!(results.iter().all(|result| *result == results[0]), "{algorithm:?}: other bits on other ranks");
                assert_eq!(results[0] == sum, algorithm == Allreduce::Exchange, "{algorithm:?}: in the order of ranks");
                let first = before.get_or_insert_with(|| results[0].clone());
                assert!(*first == results[0], "{algorithm:?}: other bits when messages come otherwise");
                Ok(())
            })
            .expect("it works");
        }
    }
    for operation in
        [Operation::ReduceScatter(ReduceScatter::Exchange), Operation::Reduce { algorithm: Reduce::Exchange, root: 3 }]
    {
        with_ranks(machine(count, 20_000), &[operation], p2p::Config::default(), |ranks| {
            let Reduced { results, sum, .. } = reduce_of(ranks, SUM_F32, 1000, operation, rounded)?;
            assert!(results.concat() == sum, "{operation:?}: in the order of ranks");
            Ok(())
        })
        .expect("it works");
    }
}

/// A send whose message has come and whose acknowledgement has not still reads its memory: neither peers nor the host
/// write there.
#[test]
fn reductions_write_nowhere_where_a_posted_send_reads() {
    let all = (ReduceScatter::ALL.into_iter().map(Operation::ReduceScatter))
        .chain(ALLREDUCES.into_iter().map(Operation::Allreduce))
        .chain(REDUCES.into_iter().map(|algorithm| Operation::Reduce { algorithm, root: 1 }));
    for operation in all {
        for (count, loss_ppm) in [(2, 20_000), (3, 20_000), (3, 100_000), (5, 50_000)] {
            let machine = Config { detect_races: true, ..machine(count, loss_ppm) };
            with_ranks(machine, &[operation], p2p::Config::default(), |ranks| {
                for elements in [64, 10_007, 64, 3_000, 64, 64] {
                    reduce(ranks, SUM_I32, elements, operation)?;
                    let races = with_world(|world| world.take_races()).expect("the machine is there");
                    assert!(races.is_empty(), "{operation:?} of {elements} among {count}: {}", races[0]);
                }
                Ok(())
            })
            .expect("it works");
        }
    }
}

/// Each rank contributes `len(rank)` bytes; gathers them at the root, and scatters them from there.
fn gather_and_scatter(ranks: &mut Ranks<'_>, root: u32, len: impl Fn(u32) -> u64) -> Result<(), Error> {
    let count = ranks.groups.len() as u32;
    let ends = ends((0..count).map(&len));
    let blocks = Blocks::unequal(&ends)?;
    let all: Vec<u8> = (0..count).flat_map(|rank| block(rank, root, len(rank))).collect();
    let gathered = ranks.memory(root as usize, all.len(), &[])?;
    let own = |ranks: &Ranks<'_>, bytes: &dyn Fn(u32) -> Vec<u8>| {
        (0..count)
            .map(|rank| ranks.memory(rank as usize, len(rank) as usize, &bytes(rank)))
            .collect::<Result<Vec<_>, _>>()
    };
    let contributions = own(ranks, &|rank| block(rank, root, len(rank)))?;
    let before: Vec<u64> = ranks.groups.iter().map(|group| group.statistics().data_bytes).collect();
    let sent = |ranks: &Ranks<'_>| -> Vec<u64> {
        ranks.groups.iter().zip(&before).map(|(group, before)| group.statistics().data_bytes - before).collect()
    };
    for rank in 0..count {
        let receive = Buffer { region: &gathered, offset: 0 };
        let contribution = Buffer { region: &contributions[rank as usize], offset: 0 };
        let receive = (rank == root).then_some((receive, blocks));
        ranks.groups[rank as usize].gather(root, len(rank), contribution, receive)?;
    }
    ranks.finish()?;
    assert!(bytes_of(&gathered, all.len()) == all, "to root {root} of {count}");
    let each: Vec<u64> = (0..count).map(|rank| if rank == root { 0 } else { len(rank) }).collect();
    assert_eq!(sent(ranks), each);

    let scattered = own(ranks, &|_| Vec::new())?;
    for rank in 0..count {
        let receive = Buffer { region: &scattered[rank as usize], offset: 0 };
        let send = (rank == root).then_some((Buffer { region: &gathered, offset: 0 }, blocks));
        ranks.groups[rank as usize].scatter(root, send, len(rank), receive)?;
    }
    ranks.finish()?;
    for (rank, region) in (0..).zip(&scattered) {
        assert!(bytes_of(region, len(rank) as usize) == block(rank, root, len(rank)), "rank {rank} of root {root}");
    }
    assert_eq!(sent(ranks)[root as usize], each.iter().sum::<u64>());
    Ok(())
}

#[test]
fn a_root_gathers_from_all_and_scatters_to_all() {
    for count in [1, 2, 3, 5, 8] {
        for root in [0, count / 2, count - 1] {
            let operations = [Operation::Gather { root }, Operation::Scatter { root }];
            let config = p2p::Config { write_bytes: 4096, ..p2p::Config::default() };
            with_ranks(machine(count, 5_000), &operations, config, |ranks| {
                gather_and_scatter(ranks, root, |_| 10_007)?;
                gather_and_scatter(ranks, root, |_| 0)?;
                gather_and_scatter(ranks, root, |rank| u64::from(rank * 5 % 4 * 3001))
            })
            .expect("it works");
        }
    }
}

#[test]
fn gathers_and_scatters_that_do_not_fit_are_refused() {
    let (gather, scatter) = (Operation::Gather { root: 0 }, Operation::Scatter { root: 0 });
    with_ranks(machine(2, 0), &[gather, scatter], impatient(), |ranks| {
        let (first, second) = (ranks.memory(0, 200, &[])?, ranks.memory(1, 200, &[])?);
        let [a, b] = [0, 100].map(|offset| Buffer { region: &first, offset });
        let group = &mut ranks.groups[0];
        let refused =
            |result: Result<(), Error>, words: &[&str]| assert_mentions(&result.expect_err("it does not fit"), words);
        refused(group.gather(0, 10, a, None), &["the root has a receive buffer"]);
        refused(group.scatter(0, None, 10, a), &["the root has a send buffer"]);
        let tens = Blocks::equal(10, 2)?;
        refused(group.gather(2, 10, a, Some((b, tens))), &["rank 2 of 2"]);
        refused(group.gather(0, 60, a, Some((b, Blocks::equal(60, 2)?))), &["120 bytes at offset 100"]);
        refused(group.gather(0, 10, a, Some((b, Blocks::EMPTY))), &["number of blocks", "2, one for each rank"]);
        refused(group.gather(0, 9, a, Some((b, tens))), &["length of the own block is 9", "10"]);
        refused(group.scatter(0, Some((a, tens)), 9, b), &["length of the own block is 10", "9"]);
        // The other rank has 30 bytes for the root, which expects 20.
        group.gather(0, 10, a, Some((b, Blocks::unequal(&[10, 30])?)))?;
        ranks.groups[1].gather(0, 30, Buffer { region: &second, offset: 0 }, None)?;
        let outcomes = ranks.outcomes();
        let errors: Vec<&Error> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        let mismatch = errors.iter().find(|error| matches!(error, Error::Mismatch { .. })).expect("one is reported");
        assert_mentions(*mismatch, &["Gather", "30 bytes", "20 bytes", "root 0"]);
        Ok(())
    })
    .expect("it works up to there");
}

/// Nobody is through before the last has come, whoever that is; then all are, and no byte has been sent.
#[test]
fn a_barrier_ends_when_everybody_has_begun() {
    for count in [1, 2, 3, 5, 8] {
        with_ranks(machine(count, 5_000), &[Operation::Barrier], p2p::Config::default(), |ranks| {
            for last in 0..count as usize {
                for (rank, group) in ranks.groups.iter_mut().enumerate() {
                    if rank != last {
                        group.barrier()?;
                    }
                }
                for _ in 0..200 {
                    for group in &mut ranks.groups {
                        group.progress()?;
                    }
                    ranks.provider.relax().relax();
                }
                for (rank, group) in ranks.groups.iter().enumerate() {
                    assert_eq!(group.is_complete(), rank == last, "rank {rank} of {count} without rank {last}");
                }
                ranks.groups[last].barrier()?;
                ranks.finish()?;
            }
            let rounds = u64::from(count.next_power_of_two().ilog2());
            for group in &ranks.groups {
                let done = group.statistics();
                assert_eq!((done.messages, done.data_bytes), (u64::from(count) * rounds, 0));
            }
            Ok(())
        })
        .expect("it works");
    }
}

#[test]
fn ranks_that_reduce_otherwise_are_reported() {
    let ring = Allreduce::Ring;
    with_ranks(machine(2, 0), &[Operation::Allreduce(ring)], p2p::Config::default(), |ranks| {
        for (rank, reduction) in [SUM_F32, SUM_I32].into_iter().enumerate() {
            let region = ranks.memory(rank, 400, &[])?;
            ranks.groups[rank].allreduce(ring, reduction, 100, Buffer { region: &region, offset: 0 })?;
        }
        let outcomes = ranks.outcomes();
        let errors: Vec<&Error> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        let mismatch = errors.iter().find(|error| matches!(error, Error::Mismatch { .. })).expect("one is reported");
        assert_mentions(*mismatch, &["AllReduce (ring)", "sum of f32", "sum of i32"]);
        assert!(ranks.groups[0].result()?.is_empty(), "no result of an operation that failed");
        Ok(())
    })
    .expect("it works up to there");
}
