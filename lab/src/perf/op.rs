//! The collectives that are measured: lengths of their buffers, and what their bandwidths are of.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A collective that is measured. Those with a root: ranks take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Every rank's bytes to all.
    #[default]
    Allgather,
    /// One rank's bytes to all.
    Broadcast,
    /// The sum of all ranks' numbers to one.
    Reduce,
    /// The sum of all ranks' numbers to all.
    Allreduce,
    /// The same without blocks that are zero, which nobody has to name.
    SparseAllreduce,
    /// The sum of all ranks' numbers, a share of it to each.
    ReduceScatter,
    /// A block of every rank to every rank.
    Alltoall,
    /// Every rank's bytes to one.
    Gather,
    /// A block of one rank to every rank.
    Scatter,
    /// All ranks meet; no bytes.
    Barrier,
}

/// Bytes of a number: single precision.
pub const ELEMENT_BYTES: u64 = 4;

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allgather => "allgather",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Allreduce => "allreduce",
            Self::SparseAllreduce => "sparse-allreduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::Alltoall => "alltoall",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Barrier => "barrier",
        })
    }
}

impl Op {
    /// Whether it sums numbers.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::Reduce | Self::Allreduce | Self::SparseAllreduce | Self::ReduceScatter)
    }

    /// Whether ranks take turns as its root.
    #[must_use]
    pub const fn is_rooted(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Whether it can be measured with the contribution in the receive buffer.
    #[must_use]
    pub const fn has_in_place(self) -> bool {
        matches!(self, Self::Allgather | Self::Reduce | Self::Allreduce | Self::SparseAllreduce | Self::Alltoall)
    }

    /// The longest length up to this one that can be: whole numbers, and equal shares for all ranks. A Barrier has
    /// none.
    #[must_use]
    pub const fn fitting(self, bytes: u64, ranks: u32) -> u64 {
        let unit = match self {
            Self::Allgather | Self::Broadcast | Self::Gather | Self::Scatter => 1,
            Self::Reduce | Self::Allreduce | Self::SparseAllreduce => ELEMENT_BYTES,
            Self::ReduceScatter => ELEMENT_BYTES * ranks as u64,
            Self::Alltoall => ranks as u64,
            Self::Barrier => return 0,
        };
        bytes - bytes % unit
    }

    /// Bytes of the send buffer of a rank: of one that is the root, where only that has one. None of a Broadcast, whose
    /// only buffer is the receive buffer, and of a Barrier. `bytes`: a length that fits ([`Op::fitting`]).
    #[must_use]
    pub const fn send_bytes(self, bytes: u64, ranks: u32) -> Option<u64> {
        match self {
            Self::Broadcast | Self::Barrier => None,
            Self::Scatter => Some(bytes.saturating_mul(ranks as u64)),
            Self::Allgather
            | Self::Reduce
            | Self::Allreduce
            | Self::SparseAllreduce
            | Self::ReduceScatter
            | Self::Alltoall
            | Self::Gather => Some(bytes),
        }
    }

    /// The same of the receive buffer; 0 of a Barrier.
    #[must_use]
    pub const fn receive_bytes(self, bytes: u64, ranks: u32) -> u64 {
        match self {
            Self::Allgather | Self::Gather => bytes.saturating_mul(ranks as u64),
            Self::ReduceScatter => bytes / ranks as u64,
            Self::Broadcast
            | Self::Reduce
            | Self::Allreduce
            | Self::SparseAllreduce
            | Self::Alltoall
            | Self::Scatter => bytes,
            Self::Barrier => 0,
        }
    }

    /// Whether a rank gets anything.
    #[must_use]
    pub const fn receives(self, is_root: bool) -> bool {
        match self {
            Self::Gather | Self::Reduce => is_root,
            Self::Barrier => false,
            _ => true,
        }
    }

    /// Bytes that the algorithm bandwidth is of, as nccl-tests counts them: of the largest buffer of any rank.
    #[must_use]
    pub const fn counted_bytes(self, bytes: u64, ranks: u32) -> u64 {
        match self {
            Self::Allgather | Self::Gather | Self::Scatter => bytes.saturating_mul(ranks as u64),
            Self::Broadcast
            | Self::Reduce
            | Self::Allreduce
            | Self::SparseAllreduce
            | Self::ReduceScatter
            | Self::Alltoall => bytes,
            Self::Barrier => 0,
        }
    }

    /// The factor from algorithm to bus bandwidth, as nccl-tests defines it: the bytes that a rank's link has to carry
    /// one way, at least, over the bytes counted. So bus bandwidth is to be compared with the link's rate, whatever the
    /// number of ranks.
    #[must_use]
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let others = f64::from(ranks - 1) / f64::from(ranks);
        match self {
            Self::Allreduce | Self::SparseAllreduce => 2.0 * others,
            Self::Allgather | Self::ReduceScatter | Self::Alltoall | Self::Gather | Self::Scatter => others,
            Self::Broadcast | Self::Reduce | Self::Barrier => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line_and_of_reports() {
        for op in Op::value_variants() {
            let name = op.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!((op.to_string(), serde_json::json!(op)), (name.clone(), serde_json::Value::String(name)));
        }
    }

    #[test]
    fn lengths_fit_numbers_and_ranks() {
        let fitting = |op: Op| op.fitting(103, 3);
        assert_eq!([Op::Allgather, Op::Broadcast, Op::Gather, Op::Scatter].map(fitting), [103; 4]);
        assert_eq!(
            [Op::Reduce, Op::Allreduce, Op::SparseAllreduce, Op::ReduceScatter, Op::Alltoall].map(fitting),
            [100, 100, 100, 96, 102]
        );
        assert_eq!((Op::Barrier.fitting(103, 3), Op::ReduceScatter.fitting(64, 188)), (0, 0));
    }

    #[test]
    fn buffers_are_as_long_as_the_operations_want_them() {
        let lens = |op: Op| (op.send_bytes(400, 4), op.receive_bytes(400, 4));
        assert_eq!([Op::Allgather, Op::Gather].map(lens), [(Some(400), 1600); 2]);
        assert_eq!([Op::Reduce, Op::Allreduce, Op::SparseAllreduce, Op::Alltoall].map(lens), [(Some(400), 400); 4]);
        assert_eq!(lens(Op::ReduceScatter), (Some(400), 100));
        assert_eq!((lens(Op::Scatter), lens(Op::Broadcast)), ((Some(1600), 400), (None, 400)));
        assert_eq!(Op::Barrier.receive_bytes(0, 4), 0);
        let at_root = |op: &Op| op.receives(true) && !op.receives(false);
        let only: Vec<Op> = Op::value_variants().iter().copied().filter(at_root).collect();
        assert_eq!(only, [Op::Reduce, Op::Gather]);
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        let factors = |ranks| Op::value_variants().iter().map(|op| op.bus_factor(ranks)).collect::<Vec<_>>();
        assert_eq!(factors(4), [0.75, 1.0, 1.0, 1.5, 1.5, 0.75, 0.75, 0.75, 0.75, 1.0]);
        assert_eq!(factors(1), [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(Op::Gather.counted_bytes(10, 4), 40);
        assert_eq!(Op::Allreduce.counted_bytes(10, 4), 10);
    }
}
