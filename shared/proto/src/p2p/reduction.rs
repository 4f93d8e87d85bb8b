//! Reduction operators and types.

use super::blocks::Span;

/// What has to be done with a message that has arrived, before anything that depends on it is sent. Blocks are those of the
/// work buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Add the own contribution's part to it where it lies: that at the same place.
    AddOwn,
    /// Add it to other blocks.
    AddTo(Span),
}

/// What of the own contribution is in the work buffer before anything is sent: its blocks `from`, in its own division,
/// at the blocks `to` of the work buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Start {
    /// Blocks of the contribution.
    pub from: Span,
    /// As many blocks of the work buffer.
    pub to: Span,
}
