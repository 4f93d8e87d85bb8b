//! The rendezvous message: where a rank wants its data, and what for.

use flexcast_proto::p2p::{
    Allgather, Allreduce, Alltoall, Blocks, Broadcast, Memory, Operation, Reduce, ReduceScatter, Span,
};
use flexcast_proto::{self as proto, Summary, digest};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bound::Bound;
use flexcast_reduce::Reduction;

/// Bytes of an announcement.
pub const ANNOUNCEMENT_BYTES: u32 = size_of::<Announcement>() as u32;

/// What all ranks must agree on in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct OperationDescriptor {
    /// The group's operations are numbered from 0, modulo 2^32.
    pub(super) operation: U32,
    algorithm: U32,
    /// Radix of a k-nomial tree; [`Reduction::code`] of a reduction's operator and type; 0 for others.
    parameter: U32,
    root: U32,
    blocks: U32,
    /// Where it ends, all blocks together, and a hash of where each does.
    total_bytes: U64,
    division: U64,
}

/// Descriptor, and where the sender's receive buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Announcement {
    pub(super) descriptor: OperationDescriptor,
    pub(super) rkey: U32,
    pub(super) addr: U64,
}

/// Names of the algorithms by their codes.
const NAMES: [&str; 23] = [
    "Allgather (ring)",
    "Allgather (linear)",
    "Allgather (recursive doubling)",
    "Allgather (Bruck)",
    "Broadcast (k-nomial)",
    "Broadcast (heap)",
    "Broadcast (in-order)",
    "Broadcast (chain)",
    "Broadcast (scatter-Allgather)",
    "Alltoall (pairwise)",
    "Alltoall (ring)",
    "Alltoall (linear)",
    "Reduce-Scatter (ring)",
    "AllReduce (ring)",
    "AllReduce (tree)",
    "AllReduce (recursive doubling)",
    "AllReduce (exchange)",
    "Reduce-Scatter (exchange)",
    "Reduce (tree)",
    "Reduce (exchange)",
    "Gather",
    "Scatter",
    "Barrier",
];
/// Blocks of another rank's call that are counted out at most: more are no call of this library, and would take long.
const MOST_BLOCKS: u32 = 1 << 20;
/// Codes of Allgathers, of Broadcasts, of reductions, and, except Broadcasts, of what has a root.
const ALLGATHERS: std::ops::RangeInclusive<u32> = 0..=3;
const BROADCASTS: std::ops::RangeInclusive<u32> = 4..=8;
const REDUCTIONS: std::ops::RangeInclusive<u32> = 12..=19;
const ROOTED: std::ops::RangeInclusive<u32> = 18..=21;
/// Set in the code of a communicator's call, which says what the caller's arguments are: the kind of operation in the
/// lowest eight bits, what carries it in the next.
const CALL: u32 = 1 << 31;

impl OperationDescriptor {
    /// `reduction`: that of a Reduce-Scatter or an AllReduce; none for others.
    fn new(number: u32, operation: Operation, reduction: Option<Reduction>, blocks: &Blocks<'_>) -> Self {
        let reduction = reduction.map_or(0, Reduction::code);
        let (algorithm, parameter, root) = match operation {
            // Segments show in the number of blocks.
            Operation::Allgather(Allgather::Ring | Allgather::PipelinedRing { .. }) => (0, 0, 0),
            Operation::Allgather(Allgather::Linear) => (1, 0, 0),
            Operation::Allgather(Allgather::RecursiveDoubling) => (2, 0, 0),
            Operation::Allgather(Allgather::Bruck) => (3, 0, 0),
            Operation::Broadcast { algorithm, root, .. } => match algorithm {
                Broadcast::Knomial { radix } => (4, radix, root),
                Broadcast::Heap => (5, 0, root),
                Broadcast::InOrder => (6, 0, root),
                Broadcast::Chain => (7, 0, root),
                Broadcast::ScatterAllgather => (8, 0, root),
            },
            Operation::Alltoall(Alltoall::Pairwise) => (9, 0, 0),
            Operation::Alltoall(Alltoall::Ring) => (10, 0, 0),
            Operation::Alltoall(Alltoall::Linear) => (11, 0, 0),
            Operation::ReduceScatter(ReduceScatter::Ring) => (12, reduction, 0),
            Operation::Allreduce(Allreduce::Ring) => (13, reduction, 0),
            Operation::Allreduce(Allreduce::Tree { .. }) => (14, reduction, 0),
            Operation::Allreduce(Allreduce::RecursiveDoubling) => (15, reduction, 0),
            Operation::Allreduce(Allreduce::Exchange) => (16, reduction, 0),
            Operation::ReduceScatter(ReduceScatter::Exchange) => (17, reduction, 0),
            Operation::Reduce { algorithm: Reduce::Tree { .. }, root } => (18, reduction, root),
            Operation::Reduce { algorithm: Reduce::Exchange, root } => (19, reduction, root),
            Operation::Gather { root } => (20, 0, root),
            Operation::Scatter { root } => (21, 0, root),
            Operation::Barrier => (22, 0, 0),
        };
        Self {
            operation: U32::new(number),
            algorithm: U32::new(algorithm),
            parameter: U32::new(parameter),
            root: U32::new(root),
            blocks: U32::new(blocks.count()),
            total_bytes: U64::new(blocks.total_bytes()),
            division: U64::new(division(blocks)),
        }
    }

    /// That of an operation which is not a communicator's call.
    pub(super) fn of_bound(number: u32, bound: &Bound) -> Self {
        let Bound { operation, shape, places } = bound;
        let blocks = match operation {
            Operation::Allgather(_) | Operation::Broadcast { .. } => places[Memory::Receive as usize].cut(),
            // Each rank has others.
            Operation::Gather { .. } | Operation::Scatter { .. } | Operation::Barrier => None,
            _ => places[Memory::Send as usize].cut(),
        };
        let reduction = shape.as_ref().map(|shape| shape.reduction);
        Self::new(number, *operation, reduction, &blocks.unwrap_or(Blocks::EMPTY))
    }

    /// A call of a communicator, whose ranks may be at operations of many kinds: what is compared says which.
    pub(super) fn of_call(number: u32, summary: &Summary) -> Self {
        let Summary { kind, root, amount, chunk_bytes: reduction, algorithm, .. } = *summary;
        Self {
            operation: U32::new(number),
            algorithm: U32::new(CALL | kind as u32 | (algorithm as u32) << 8),
            parameter: U32::new(reduction),
            root: U32::new(root),
            blocks: U32::ZERO,
            total_bytes: U64::ZERO,
            division: U64::new(amount),
        }
    }

    /// What a communicator's call was; none of something else.
    pub(super) fn call(&self) -> Option<Summary> {
        let code = self.algorithm.get();
        let (kind, algorithm) = (proto::Kind::of_code(code as u8)?, proto::Algorithm::of_code((code >> 8) as u8)?);
        let (amount, reduction) = (self.division.get(), self.parameter.get());
        let summary = Summary::between_pairs(kind, self.root.get(), amount, reduction, algorithm);
        self.is_call().then_some(summary)
    }

    /// Bytes of all blocks together, or between a pair of ranks.
    pub(super) const fn bytes(&self) -> u64 {
        self.total_bytes.get()
    }

    /// Whether it is a communicator's call. Then all that write to one another announce it, either way.
    pub(super) fn is_call(&self) -> bool {
        self.algorithm.get() & CALL != 0
    }

    /// Kind, root and bytes of a Broadcast or an Allgather among so many ranks; none of something else, or if that
    /// cannot be derived.
    pub(super) fn blocks(&self, ranks: u32) -> Option<Summary> {
        if BROADCASTS.contains(&self.algorithm.get()) {
            return Some(Summary::broadcast(self.root.get(), self.total_bytes.get(), 0));
        }
        if let Some(bytes) = self.allgather_block_bytes(ranks) {
            return Some(Summary::allgather(bytes, 0, 1));
        }
        let unequal = ALLGATHERS.contains(&self.algorithm.get()) && self.blocks.get() == ranks;
        unequal.then(|| Summary {
            kind: proto::Kind::Allgatherv,
            amount: self.division.get(),
            ..Summary::allgather(0, 0, 1)
        })
    }

    /// Bytes that each of so many ranks contributes to an Allgather; none of something else, or if they differ.
    fn allgather_block_bytes(&self, ranks: u32) -> Option<u64> {
        if !ALLGATHERS.contains(&self.algorithm.get()) || self.blocks.get() > MOST_BLOCKS {
            return None;
        }
        let (total_bytes, ranks) = (self.total_bytes.get(), ranks.max(1));
        let block_bytes = total_bytes / u64::from(ranks);
        let equal =
            Blocks::equal(block_bytes, ranks).and_then(|blocks| blocks.split(self.blocks.get() / ranks)).ok()?;
        (equal.total_bytes() == total_bytes && division(&equal) == self.division.get()).then_some(block_bytes)
    }

    /// The same for what one rank has for another: the others' blocks are nothing to these two.
    pub(super) fn of_pair(self, bytes: u64) -> Self {
        let division = if self.is_call() { self.division } else { U64::ZERO };
        Self { total_bytes: U64::new(bytes), division, ..self }
    }
}

/// Digest of the lengths of blocks.
fn division(blocks: &Blocks<'_>) -> u64 {
    digest((0..blocks.count()).map(|block| blocks.bytes(Span::of(block))))
}

impl std::fmt::Display for OperationDescriptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(call) = self.call() {
            return write!(
                f,
                "operation {}, {call} by {}, {} bytes for the other",
                self.operation, call.algorithm, self.total_bytes
            );
        }
        let name = NAMES.get(self.algorithm.get() as usize).unwrap_or(&"an unknown algorithm");
        write!(f, "operation {}, {name} of {} bytes in {} blocks", self.operation, self.total_bytes, self.blocks)?;
        if BROADCASTS.contains(&self.algorithm.get()) || ROOTED.contains(&self.algorithm.get()) {
            write!(f, " of root {}", self.root)?;
        }
        match self.parameter.get() {
            0 => {}
            code if REDUCTIONS.contains(&self.algorithm.get()) => match Reduction::from_code(code) {
                Ok(reduction) => write!(f, ", {reduction}")?,
                Err(code) => write!(f, ", an unknown reduction {code:#x}")?,
            },
            radix => write!(f, ", radix {radix}")?,
        }
        write!(f, ", lengths {:#018x}", self.division)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexcast_reduce::{DataType, Operator};

    #[test]
    fn descriptors_differ_where_arguments_do() {
        let descriptor = |number, operation, ends: &[u64]| {
            OperationDescriptor::new(number, operation, None, &Blocks::unequal(ends).unwrap())
        };
        let ring = Operation::Allgather(Allgather::Ring);
        let tree = |radix, root| Operation::Broadcast { algorithm: Broadcast::Knomial { radix }, root, blocks: 2 };
        let reduce_scatter = Operation::ReduceScatter(ReduceScatter::Ring);
        let reduction = |operator, data_type| {
            let reduction = Reduction::new(operator, data_type).unwrap();
            OperationDescriptor::new(0, reduce_scatter, Some(reduction), &Blocks::unequal(&[5, 8]).unwrap())
        };
        let reduce = |algorithm, root| Operation::Reduce { algorithm, root };
        let all = [
            descriptor(0, ring, &[5, 8]),
            descriptor(1, ring, &[5, 8]),
            descriptor(0, ring, &[4, 8]),
            descriptor(0, Operation::Allgather(Allgather::Bruck), &[5, 8]),
            descriptor(0, tree(2, 0), &[5, 8]),
            descriptor(0, tree(2, 1), &[5, 8]),
            descriptor(0, tree(3, 1), &[5, 8]),
            descriptor(0, Operation::Alltoall(Alltoall::Ring), &[5, 8]),
            descriptor(0, Operation::Alltoall(Alltoall::Pairwise), &[5, 8]),
            descriptor(0, Operation::Alltoall(Alltoall::Pairwise), &[5, 8]).of_pair(5),
            descriptor(0, reduce_scatter, &[5, 8]),
            descriptor(0, Operation::ReduceScatter(ReduceScatter::Exchange), &[5, 8]),
            reduction(Operator::Sum, DataType::I32),
            reduction(Operator::Sum, DataType::U32),
            reduction(Operator::Max, DataType::I32),
            OperationDescriptor { parameter: U32::new(0xd_0005), ..reduction(Operator::Max, DataType::I32) },
            descriptor(0, Operation::Allreduce(Allreduce::Ring), &[5, 8]),
            descriptor(0, Operation::Allreduce(Allreduce::Tree { segments: 2 }), &[5, 8]),
            descriptor(0, Operation::Allreduce(Allreduce::RecursiveDoubling), &[5, 8]),
            descriptor(0, Operation::Allreduce(Allreduce::Exchange), &[5, 8]),
            descriptor(0, reduce(Reduce::Tree { segments: 2 }, 0), &[5, 8]),
            descriptor(0, reduce(Reduce::Tree { segments: 2 }, 1), &[5, 8]),
            descriptor(0, reduce(Reduce::Exchange, 1), &[5, 8]),
            descriptor(0, Operation::Gather { root: 1 }, &[5, 8]),
            descriptor(0, Operation::Scatter { root: 1 }, &[5, 8]),
            descriptor(0, Operation::Barrier, &[5, 8]),
        ];
        assert!(descriptor(0, reduce(Reduce::Exchange, 7), &[5, 8]).to_string().contains("of root 7"));
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other != one && other.to_string() != one.to_string()), "{one}");
        }
        assert!(reduction(Operator::Max, DataType::I32).to_string().contains(", max of i32,"));
        assert_eq!(ANNOUNCEMENT_BYTES, 48);
    }

    #[test]
    fn a_call_says_what_the_caller_gave() {
        let sum = Reduction::new(Operator::Sum, DataType::F64).unwrap().code();
        let mut all = Vec::new();
        for kind in proto::Kind::ALL {
            for algorithm in proto::Algorithm::ALL {
                let reduction = if kind.reduces() { sum } else { 0 };
                let summary = Summary::between_pairs(kind, 3, u64::MAX - 7, reduction, algorithm);
                let call = OperationDescriptor::of_call(9, &summary);
                assert_eq!((call.call(), call.of_pair(77).call()), (Some(summary), Some(summary)));
                assert!(call.is_call() && call != call.of_pair(1) && call.allgather_block_bytes(4).is_none());
                assert!(all.iter().all(|other| *other != call));
                all.push(call);
            }
        }
        let plain = OperationDescriptor::new(0, Operation::Barrier, None, &Blocks::EMPTY);
        assert_eq!((plain.call(), plain.is_call()), (None, false));
        let unknown = OperationDescriptor { algorithm: U32::new(CALL | 0xff), ..plain };
        assert_eq!((unknown.call(), unknown.is_call()), (None, true));
        assert!(all[0].of_pair(5).to_string().contains("broadcast of"), "{}", all[0]);
    }

    #[test]
    fn the_block_length_of_an_equal_allgather_is_derived() {
        let block_bytes = |algorithm, blocks: Blocks<'_>, ranks| {
            let operation = Operation::Allgather(algorithm);
            OperationDescriptor::new(0, operation, None, &blocks).allgather_block_bytes(ranks)
        };
        let equal = Blocks::equal(1000, 4).unwrap();
        for algorithm in [Allgather::Ring, Allgather::Linear, Allgather::RecursiveDoubling, Allgather::Bruck] {
            assert_eq!(block_bytes(algorithm, equal, 4), Some(1000));
        }
        let segments = equal.split(3).unwrap();
        assert_eq!(block_bytes(Allgather::PipelinedRing { segments: 3 }, segments, 4), Some(1000));
        assert_eq!(block_bytes(Allgather::Linear, Blocks::unequal(&[1, 2000, 3000, 4000]).unwrap(), 4), None);
        assert_eq!(block_bytes(Allgather::Linear, Blocks::equal(0, 4).unwrap(), 4), Some(0));
        let other = OperationDescriptor::new(0, Operation::ReduceScatter(ReduceScatter::Ring), None, &equal);
        assert_eq!(other.allgather_block_bytes(4), None);
        // Not counted out.
        let linear = OperationDescriptor::new(0, Operation::Allgather(Allgather::Linear), None, &equal);
        let endless = OperationDescriptor { blocks: U32::new(u32::MAX), ..linear };
        assert_eq!(endless.allgather_block_bytes(1), None);
    }
}
