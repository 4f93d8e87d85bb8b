//! Sparse AllReduce over sockets: when arrays are scanned for zeros, and when the whole array is sent.

use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{Algorithm, Allreduce, Communicator, Decision, SparseCost, SparseOptions, Tuning};

use crate::group::{Group, check};
use crate::options;

const RANKS: u32 = 3;
const SUM: Reduction = Reduction::of(Operator::Sum, DataType::I32).unwrap();
const BLOCK_BYTES: usize = 1024;

/// Sums up arrays of so many blocks whose first ones are not zero, and says by what.
fn sum(communicator: &Communicator, rank: u32, blocks: usize, full: usize) -> Decision {
    let endpoint = communicator.endpoint();
    let mut send = endpoint.buffer(blocks * BLOCK_BYTES).unwrap();
    let elements = full * BLOCK_BYTES / size_of::<u32>();
    let contribution = |rank: u32| (1..=elements as u32).map(move |at| at * (rank + 1));
    send.write(0, &contribution(rank).flat_map(u32::to_ne_bytes).collect::<Vec<_>>()).unwrap();
    let receive = endpoint.buffer(send.len()).unwrap();
    let request =
        communicator.post(Allreduce::new(SUM).sparse(SparseOptions::default()).buffers(send, receive)).unwrap();
    let done = request.wait().unwrap();
    let sums = contribution((0..RANKS).map(|rank| rank + 1).sum::<u32>() - 1).flat_map(u32::to_ne_bytes);
    let zeros = std::iter::repeat_n(0, (blocks - full) * BLOCK_BYTES);
    check(&done.receive, 0, &sums.chain(zeros).collect::<Vec<_>>());
    done.report.decision
}

/// The table of rank 0 counts for all: 16 blocks take 77 us if 4 of them are not zero, 115 us if 8 are, and 100 us by
/// an AllReduce.
#[test]
fn an_array_that_was_found_too_full_is_summed_up_whole_for_a_while() {
    let cost = SparseCost { ranks: 8, bytes: 16 << 10, dense_us: 100, full_us: 190, tenth_us: 55 };
    let tuning = Tuning::default().with_sparse_costs(vec![cost]).unwrap();
    Group::new(RANKS, options(), |config| config).tuned(tuning).run(|communicator, rank| {
        let sum = |blocks, full| {
            let decision = sum(communicator, rank, blocks, full);
            (decision.algorithm() == Algorithm::Sparse, decision.density_ppm())
        };
        assert_eq!(sum(16, 4), (true, None), "nothing has been scanned");
        assert_eq!(sum(16, 8), (true, Some(250_000)));
        for _ in 0..15 {
            assert_eq!(sum(16, 1), (false, Some(500_000)));
        }
        assert_eq!(sum(16, 1), (true, None), "it is time to scan again");
        assert_eq!(sum(16, 16), (true, Some(62_500)));
        assert_eq!(sum(16, 16), (false, Some(1_000_000)));
        assert_eq!(sum(17, 16), (true, None), "another array");
    });
}

#[test]
fn the_length_from_which_on_arrays_are_scanned_for_zeros_is_that_of_the_first_rank() {
    let tuning = Tuning::default().with_sparse_from_bytes(8 << 10);
    Group::new(RANKS, options(), |config| config).tuned(tuning).run(|communicator, rank| {
        for (blocks, is_sparse) in [(7, false), (8, true), (8, true), (7, false)] {
            let decision = sum(communicator, rank, blocks, 1);
            assert_eq!(decision.algorithm() == Algorithm::Sparse, is_sparse, "{blocks} blocks");
        }
    });
}
