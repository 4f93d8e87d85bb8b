//! Expected contents of every rank's buffer.

use std::borrow::Cow;

use flexcast::p2p::reference;

use super::params::{Operation, REDUCTION, SimParams};

/// The right result of every rank, from the contributions of all.
pub(super) struct Expected<'s> {
    operation: Operation,
    block_bytes: usize,
    ranks: usize,
    /// The same for all ranks, or cut into what each has.
    bytes: Cow<'s, [u8]>,
}

impl<'s> Expected<'s> {
    pub(super) fn new(params: &SimParams, source: &'s [u8]) -> Self {
        let (operation, ranks) = (params.operation, params.ranks as usize);
        let block_bytes = match operation {
            Operation::ReduceScatter => params.receive_bytes() as usize,
            _ => params.bytes as usize,
        };
        let bytes = if operation.reduces() {
            let own = params.bytes as usize;
            let contributions: Vec<Vec<u8>> =
                (0..ranks).map(|rank| source[rank * own..(rank + 1) * own].to_vec()).collect();
            Cow::Owned(reference(REDUCTION, &contributions))
        } else {
            Cow::Borrowed(source)
        };
        Self { operation, block_bytes, ranks, bytes }
    }

    /// What a rank must have.
    pub(super) fn of(&self, rank: u32) -> Cow<'_, [u8]> {
        let at = |block: usize| (block * self.block_bytes).min(self.bytes.len());
        let rank = rank as usize;
        match self.operation {
            Operation::Broadcast
            | Operation::Allgather
            | Operation::Allgatherv
            | Operation::Allreduce
            | Operation::SparseAllreduce => Cow::Borrowed(&self.bytes),
            Operation::ReduceScatter => Cow::Borrowed(&self.bytes[at(rank)..at(rank + 1)]),
            Operation::Alltoall => {
                let block = |from: usize| &self.bytes[at(from * self.ranks + rank)..at(from * self.ranks + rank + 1)];
                Cow::Owned((0..self.ranks).flat_map(block).copied().collect())
            }
        }
    }
}
