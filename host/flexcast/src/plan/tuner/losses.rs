//! Memory of losses: a network that has lost something may lose more in the next operations.

/// Operations after a loss in which more is expected.
const OPERATIONS: u32 = 64;

/// Whether losses are to be expected, as one rank sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    left: u32,
}

impl Losses {
    /// Takes note of whether something has been lost.
    pub(crate) const fn note(&mut self, lost: bool) {
        if lost {
            self.left = OPERATIONS;
        }
    }

    /// An operation begins.
    pub(crate) const fn begin(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Whether something has been lost in the last operations.
    pub(crate) const fn are_expected(&self) -> bool {
        self.left > 0
    }
}
