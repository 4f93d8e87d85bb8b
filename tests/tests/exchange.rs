//! Alltoall, Reduce-Scatter and AllReduce without multicast, on emulated cards: every byte of every rank, and what each rank sent.

use emu_config::Machine;
use emu_machine::{Config, with_world};
use flexcast::p2p::algorithm::{Allreduce, Alltoall, Operation};
use flexcast::p2p::{self, Buffer, Error, reference};
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast_tests::ranks::{Ranks, bytes_of, with_ranks};
use flexcast_tests::told;

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
        ranks.groups[rank as usize].alltoallv(algorithm, &send_ends, &receive_ends, send, receive)?;
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

#[test]
fn blocks_of_an_alltoall_that_do_not_fit_are_refused() {
    let linear = Alltoall::Linear;
    with_ranks(machine(2, 0), &[Operation::Alltoall(linear)], p2p::Config::default(), |ranks| {
        let (first, second) = (ranks.memory(0, 200, &[])?, ranks.memory(1, 200, &[])?);
        let [a, b] = [0, 100].map(|offset| Buffer { region: &first, offset });
        let mut refused = |send: &[u64], receive: &[u64], words: &[&str]| {
            let error = ranks.groups[0].alltoallv(linear, send, receive, a, b).expect_err("it does not fit");
            told(&error, words);
        };
        refused(&[10], &[10, 20], &["number of blocks", "1", "2, one for each rank"]);
        refused(&[10, 5], &[10, 20], &["block 1 ends at 5"]);
        refused(&[10, 20], &[9, 20], &["length of the own block", "10", "9"]);
        refused(&[10, 20], &[10, 120], &["120"]);
        // The other rank has 30 bytes for this one, which expects 20.
        let [c, d] = [0, 100].map(|offset| Buffer { region: &second, offset });
        ranks.groups[0].alltoallv(linear, &[10, 30], &[10, 30], a, b)?;
        ranks.groups[1].alltoallv(linear, &[30, 40], &[20, 30], c, d)?;
        let outcomes = ranks.outcomes();
        let errors: Vec<&Error> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        let mismatch = errors.iter().find(|error| matches!(error, Error::Mismatch { .. })).expect("one is told");
        told(*mismatch, &["Alltoall (linear)", "30 bytes", "20 bytes"]);
        Ok(())
    })
    .expect("it works up to there");
}

/// What is reduced here: every algorithm gives the same bytes, whatever the order of its sums, as those of [`numbers`] are exact.
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

/// Runs a reduction on all ranks: a Reduce-Scatter without an algorithm.
fn reduce(
    ranks: &mut Ranks<'_>,
    reduction: Reduction,
    elements: u64,
    algorithm: Option<Allreduce>,
) -> Result<Reduced, Error> {
    let count = ranks.groups.len() as u32;
    let contributions: Vec<Vec<u8>> = (0..count).map(|rank| numbers(reduction, rank, elements)).collect();
    let before: Vec<u64> = ranks.groups.iter().map(|group| group.statistics().data_bytes).collect();
    for (rank, bytes) in contributions.iter().enumerate() {
        let region = ranks.memory(rank, bytes.len(), bytes)?;
        let contribution = Buffer { region: &region, offset: 0 };
        match algorithm {
            None => ranks.groups[rank].reduce_scatter(reduction, elements, contribution)?,
            Some(algorithm) => ranks.groups[rank].allreduce(algorithm, reduction, elements, contribution)?,
        }
    }
    ranks.finish()?;
    let results = ranks.groups.iter().map(p2p::Group::result).collect::<Result<_, _>>()?;
    let sent = ranks.groups.iter().zip(before).map(|(group, before)| group.statistics().data_bytes - before).collect();
    Ok(Reduced { results, sum: reference(reduction, &contributions), sent })
}

#[test]
fn a_reduce_scatter_gives_every_rank_its_share_of_the_sum() {
    for count in [1, 2, 3, 8] {
        for loss_ppm in [0, 20_000] {
            with_ranks(machine(count, loss_ppm), &[Operation::ReduceScatter], p2p::Config::default(), |ranks| {
                for elements in [0, 1, 24 * 1000, 10_007] {
                    for reduction in [SUM_F32, SUM_I32, MAX_U16, MIN_LOC] {
                        let Reduced { results, sum, sent } = reduce(ranks, reduction, elements, None)?;
                        assert!(results.concat() == sum, "{reduction} of {elements} among {count}");
                        if elements.is_multiple_of(u64::from(count)) {
                            let share = elements / u64::from(count) * u64::from(reduction.element_bytes());
                            let each = share * u64::from(count - 1);
                            assert!(sent.iter().all(|sent| *sent == each), "N(P - 1): {sent:?}");
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
fn allreduces_give_every_rank_the_sum() {
    let all = [Allreduce::Ring, Allreduce::Tree { segments: 1 }, Allreduce::Tree { segments: 5 }];
    for count in [1, 2, 3, 7, 8] {
        for algorithm in all {
            let operations = [Operation::Allreduce(algorithm)];
            with_ranks(machine(count, 5_000), &operations, p2p::Config::default(), |ranks| {
                for elements in [0, 1, 10_007, 64, 30_000] {
                    let Reduced { results, sum, sent } = reduce(ranks, SUM_F32, elements, Some(algorithm))?;
                    assert!(results.iter().all(|result| *result == sum), "{algorithm:?} of {elements} among {count}");
                    assert_eq!(sent.iter().sum::<u64>(), 8 * elements * u64::from(count - 1), "2N(P - 1) over all");
                }
                Ok(())
            })
            .expect("it works");
        }
    }
}

/// A send whose message has come and whose acknowledgement has not still reads its memory: neither peers nor the host write there.
#[test]
fn reductions_write_nowhere_where_a_posted_send_reads() {
    let all =
        [None, Some(Allreduce::Ring), Some(Allreduce::Tree { segments: 1 }), Some(Allreduce::Tree { segments: 3 })];
    for algorithm in all {
        let operation = algorithm.map_or(Operation::ReduceScatter, Operation::Allreduce);
        for (count, loss_ppm) in [(2, 20_000), (3, 20_000), (3, 100_000), (5, 50_000)] {
            let machine = Config { detect_races: true, ..machine(count, loss_ppm) };
            with_ranks(machine, &[operation], p2p::Config::default(), |ranks| {
                for elements in [64, 10_007, 64, 3_000, 64, 64] {
                    reduce(ranks, SUM_I32, elements, algorithm)?;
                    let races = with_world(|world| world.take_races()).expect("the machine is there");
                    assert!(races.is_empty(), "{operation:?} of {elements} among {count}: {}", races[0]);
                }
                Ok(())
            })
            .expect("it works");
        }
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
        let mismatch = errors.iter().find(|error| matches!(error, Error::Mismatch { .. })).expect("one is told");
        told(*mismatch, &["AllReduce (ring)", "sum of f32", "sum of i32"]);
        assert!(ranks.groups[0].result()?.is_empty(), "no result of an operation that failed");
        Ok(())
    })
    .expect("it works up to there");
}
