//! Buffers of a rank in an operation, and their division into blocks.

use core::ops::Range;

use super::blocks::{Blocks, Span};

/// A buffer of a rank. Peers write to the last two, from the moment on that a rank has begun the operation; the three
/// do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Memory {
    /// The contribution: read, and never written, until the operation is complete.
    Send,
    /// What has come and is not the result: partial sums of reductions. Its contents before and after do not matter.
    Temporary,
    /// The result.
    Receive,
}

/// Blocks of one of a rank's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The buffer.
    pub memory: Memory,
    /// Blocks of its division ([`Layout::blocks`]).
    pub blocks: Span,
}

impl Part {
    /// Blocks of the contribution.
    #[must_use]
    pub const fn send(blocks: Span) -> Self {
        Self { memory: Memory::Send, blocks }
    }

    /// Blocks of temporary memory.
    #[must_use]
    pub const fn temporary(blocks: Span) -> Self {
        Self { memory: Memory::Temporary, blocks }
    }

    /// Blocks of the result.
    #[must_use]
    pub const fn receive(blocks: Span) -> Self {
        Self { memory: Memory::Receive, blocks }
    }
}

/// How the three buffers of one rank are divided. An executor takes the user's buffers for two of them, and has to
/// provide the temporary one.
///
/// Reductions have a function that makes it ([`Allreduce::layout`](super::Allreduce::layout) and the like). For the
/// other operations it is put together from the divisions that [`Operation`](super::Operation) names, without temporary
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout<'a> {
    /// The contribution.
    pub send: Blocks<'a>,
    /// Temporary memory; none if the algorithm needs none.
    pub temporary: Option<Blocks<'a>>,
    /// The result; [`Blocks::EMPTY`] on a rank that gets none.
    pub receive: Blocks<'a>,
}

impl<'a> Layout<'a> {
    /// The division of a buffer; none of temporary memory that is not needed.
    #[must_use]
    pub const fn blocks(&self, memory: Memory) -> Option<Blocks<'a>> {
        match memory {
            Memory::Send => Some(self.send),
            Memory::Temporary => self.temporary,
            Memory::Receive => Some(self.receive),
        }
    }

    /// Bytes of a part in its buffer: one range, or two where it goes on at the beginning, which parts of reductions
    /// never do.
    #[must_use]
    pub fn ranges(&self, part: Part) -> [Range<u64>; 2] {
        self.blocks(part.memory).map_or([0..0, 0..0], |blocks| blocks.ranges(part.blocks))
    }

    /// Number of bytes of a part.
    #[must_use]
    pub fn bytes(&self, part: Part) -> u64 {
        self.blocks(part.memory).map_or(0, |blocks| blocks.bytes(part.blocks))
    }

    /// Bytes of temporary memory that the executor has to provide.
    #[must_use]
    pub fn temporary_bytes(&self) -> u64 {
        self.temporary.map_or(0, |blocks| blocks.total_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_of_their_own_buffers() {
        let blocks = |bytes, count| Blocks::equal(bytes, count).unwrap();
        let layout = Layout { send: blocks(4, 3), temporary: Some(blocks(10, 2)), receive: blocks(7, 1) };
        let last = Span::of(1);
        assert_eq!(layout.ranges(Part::send(Span { first: 2, count: 2 })), [8..12, 0..4]);
        assert_eq!(layout.ranges(Part::temporary(last)), [10..20, 0..0]);
        assert_eq!((layout.bytes(Part::receive(Span::of(0))), layout.temporary_bytes()), (7, 20));
        let none = Layout { temporary: None, ..layout };
        assert_eq!((none.ranges(Part::temporary(last)), none.bytes(Part::temporary(last))), ([0..0, 0..0], 0));
        assert_eq!((none.blocks(Memory::Temporary), none.temporary_bytes()), (None, 0));
    }
}
