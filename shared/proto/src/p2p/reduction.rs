//! Reduction of contributions, the own one and those that come, on one rank.

use super::blocks::Span;
use super::layout::Part;

/// Combines two operands, element by element: `to` = `left` ∘ `right`. All three are of the same length; `to` is one of
/// the operands or distinct from both, and never part of the contribution.
///
/// Which operand is which, and in which order reductions are made, depends on the algorithm and the number of ranks
/// alone, never on the order in which messages come: the same contributions give the same bits each time. Where the
/// order of ranks is kept ([`Operation::keeps_order`](super::Operation::keeps_order)), all contributions in `left` are
/// of lower ranks than all those in `right`, so that the operator must be associative, but need not be commutative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reduction {
    /// The left operand.
    pub left: Part,
    /// The right operand.
    pub right: Part,
    /// Where the outcome goes.
    pub to: Part,
}

/// The part of the own contribution that the own result begins with: its blocks `from` are copied to the blocks `to` of
/// the receive buffer, unless they lie there already, which the caller of an Allgather, a Gather or a Scatter may
/// choose (`MPI_IN_PLACE`). They are as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Start {
    /// Blocks of the send buffer.
    pub from: Span,
    /// Blocks of the receive buffer.
    pub to: Span,
}
