//! Communicators side by side, and places of the bytes: options, parameters and report of a simulation.

use serde::Serialize;

use super::SimError;
use super::params::{Operation, SimParams};
use crate::options::{whole, whole_bytes};

/// Most communicators of all ranks side by side.
pub const MAX_COMMUNICATORS: u32 = 8;

/// What else there is on the cards, and where the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::Args)]
#[command(next_help_heading = "Communicators side by side, and buffers (multicast)")]
pub struct Side {
    /// Communicators of all ranks on the same cards: all do the same at the same time, each with bytes and root of its
    /// own. Sizes in the report are those of one, traffic and times those of all.
    #[arg(long, value_parser = whole::<u32>(1, MAX_COMMUNICATORS), default_value_t = Self::default().communicators, value_name = "N")]
    pub communicators: u32,
    /// Besides, the first communicator is split by rank modulo N, in the reverse order of ranks; the parts do the same
    /// at the same time.
    #[arg(long, value_parser = whole::<u32>(1, flexcast_proto::MAX_RANKS), value_name = "N")]
    pub split: Option<u32>,
    /// The own bytes are in the receive buffer already (allgather, allgatherv).
    #[arg(long)]
    pub in_place: bool,
    /// Blocks of an allgatherv at displacements: in the reverse order of ranks, with so many bytes before, between and
    /// behind them, which must stay as they are.
    #[arg(long, value_parser = whole_bytes::<u64>(0, MAX_GAP_BYTES), value_name = "BYTES")]
    pub gap: Option<u64>,
    /// Buffers are memory by its address, with registrations that are kept for the next operation.
    #[arg(long)]
    pub user_memory: bool,
}

/// Most bytes between two blocks.
pub const MAX_GAP_BYTES: u64 = 1 << 20;

impl Default for Side {
    fn default() -> Self {
        Self { communicators: 1, split: None, in_place: false, gap: None, user_memory: false }
    }
}

impl Side {
    /// Whether there is more than one communicator.
    #[must_use]
    pub const fn has_several(&self) -> bool {
        self.communicators > 1 || self.split.is_some()
    }

    /// Checks that they fit the operation.
    pub(super) fn check(&self, params: &SimParams) -> Result<(), SimError> {
        let refuse = |what, reason: String| Err(SimError::Parameter { what, reason });
        if self.communicators == 0 || self.communicators > MAX_COMMUNICATORS {
            return refuse("--communicators", format!("{}: give 1 to {MAX_COMMUNICATORS}", self.communicators));
        }
        if self.split.is_some_and(|colours| colours == 0 || colours > params.ranks) {
            let (colours, ranks) = (self.split.unwrap_or_default(), params.ranks);
            return refuse("--split", format!("{colours} parts of {ranks} ranks: give 1 to {ranks}"));
        }
        let operation = params.operation;
        if self.in_place && operation == Operation::Broadcast {
            return refuse("--in-place", "a broadcast always is: leave it out, or give --op allgather".to_owned());
        }
        if let Some(gap) = self.gap {
            if operation != Operation::Allgatherv {
                let reason = format!("{} has no displacements: give --op allgatherv", operation.name());
                return refuse("--gap", reason);
            }
            if gap > MAX_GAP_BYTES {
                return refuse("--gap", format!("{gap} bytes: give 0 to {MAX_GAP_BYTES}"));
            }
        }
        if !params.algorithm.is_communicator() && *self != Self::default() {
            let reason = "communicators side by side, --in-place, --gap and --user-memory are for communicators: give \
                multicast or auto"
                .to_owned();
            return refuse("--algorithm", reason);
        }
        Ok(())
    }
}

/// The places of all ranks' blocks in a receive buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes of each rank's block.
    pub(super) counts: Vec<u64>,
    /// Where each begins.
    pub(super) starts: Vec<u64>,
    /// Whether the caller says so.
    pub(super) is_displaced: bool,
    /// Bytes of the buffer.
    pub(super) bytes: usize,
    /// What is in it before the operation.
    pub(super) filler: u8,
}

impl Layout {
    pub(super) fn new(params: &SimParams, source: &[u8]) -> Self {
        let counts = params.counts();
        let mut starts = vec![0; counts.len()];
        let gap = params.side.gap;
        let mut end = gap.unwrap_or_default();
        let mut place = |rank: usize| {
            starts[rank] = end;
            end += counts[rank] + gap.unwrap_or_default();
        };
        match gap {
            None => (0..counts.len()).for_each(&mut place),
            Some(_) => (0..counts.len()).rev().for_each(&mut place),
        }
        let filler = !source.first().copied().unwrap_or_default();
        Self { counts, starts, is_displaced: gap.is_some(), bytes: end as usize, filler }
    }

    /// A rank's contribution, of those of all.
    pub(super) fn own<'s>(&self, source: &'s [u8], rank: usize) -> &'s [u8] {
        let before: u64 = self.counts[..rank].iter().sum();
        &source[before as usize..][..self.counts[rank] as usize]
    }

    /// The buffer after an operation.
    pub(super) fn expected(&self, source: &[u8]) -> Vec<u8> {
        let mut bytes = vec![self.filler; self.bytes];
        for (rank, start) in self.starts.iter().enumerate() {
            let own = self.own(source, rank);
            bytes[*start as usize..][..own.len()].copy_from_slice(own);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(side: Side) -> SimParams {
        SimParams { ranks: 3, operation: Operation::Allgatherv, total_bytes: Some(7), side, ..SimParams::default() }
    }

    #[test]
    fn blocks_lie_one_behind_the_other_or_in_reverse_with_gaps() {
        let source = [1, 2, 3, 4, 5, 6, 7];
        assert_eq!(Layout::new(&params(Side::default()), &source).expected(&source), source);
        let layout = Layout::new(&params(Side { gap: Some(1), ..Side::default() }), &source);
        assert_eq!((&*layout.counts, &*layout.starts), (&[3, 2, 2][..], &[7, 4, 1][..]));
        assert_eq!(layout.expected(&source), [254, 6, 7, 254, 4, 5, 254, 1, 2, 3, 254]);
    }

    #[test]
    fn what_does_not_fit_the_operation_is_refused_by_name() {
        let refused = |operation, side| {
            let params = SimParams { operation, total_bytes: None, bytes: 8, ..params(side) };
            params.check().unwrap_err().to_string()
        };
        let gap = Side { gap: Some(0), ..Side::default() };
        assert!(refused(Operation::Allgather, gap).contains("--op allgatherv"));
        assert!(refused(Operation::Broadcast, Side { in_place: true, ..Side::default() }).contains("--in-place"));
        assert!(refused(Operation::Allgather, Side { split: Some(4), ..Side::default() }).contains("1 to 3"));
        assert!(refused(Operation::Allgather, Side { communicators: 9, ..Side::default() }).contains("1 to 8"));
    }
}
