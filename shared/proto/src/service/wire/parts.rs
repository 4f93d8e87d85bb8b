//! Lists in parts: what is longer than a message is cut, and put together again within bounds.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Debug;

use thiserror::Error;
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::fields::within;
use crate::ranks::MAX_RANKS;
use crate::service::message::ContextId;

/// Parts of the longest list: a bit each in an [`Assembler`].
const MOST_PARTS: usize = u64::BITS as usize;

/// An entry of a list, as it lies in a message.
pub trait Entry: Copy + Debug + Eq + FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {}

/// The beginning that all parts of a list have alike.
pub trait Head: Copy + Debug + Eq {
    /// An entry of the list.
    type Entry: Entry;
    /// Entries of each part but the last, at least 1.
    const PART_ENTRIES: usize;

    /// Whose list it is.
    fn rank(&self) -> u32;
    /// Ranks of the group, as the sender announces them.
    fn ranks(&self) -> u32;
    /// Entries of the whole list, at least 1 where [`Head::ranks`] is.
    fn entries(&self) -> usize;
}

/// Parts that a list is cut into.
fn parts<H: Head>(head: &H) -> usize {
    head.entries().div_ceil(H::PART_ENTRIES)
}

/// One part of a list. Its number says which entries it has: no two parts overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a, H: Head> {
    head: H,
    index: u16,
    entries: &'a [H::Entry],
}

impl<'a, H: Head> Part<'a, H> {
    /// A part of those entries of which none is missing.
    pub(super) fn new(head: H, index: u16, entries: &'a [H::Entry]) -> Result<Self, FormatError> {
        within("ranks", head.ranks().into(), 1, MAX_RANKS.into())?;
        within("rank", head.rank().into(), 0, u64::from(head.ranks()) - 1)?;
        within("part", index.into(), 0, parts(&head) as u64 - 1)?;
        let begin = usize::from(index) * H::PART_ENTRIES;
        let (found, expected) = (entries.len(), H::PART_ENTRIES.min(head.entries() - begin));
        if found != expected {
            return Err(FormatError::Entries { index, found, expected });
        }
        Ok(Self { head, index, entries })
    }

    /// What all parts of the list have alike.
    #[must_use]
    pub const fn head(&self) -> &H {
        &self.head
    }

    /// Number of this part, from 0.
    #[must_use]
    pub const fn index(&self) -> u16 {
        self.index
    }

    /// Its entries.
    #[must_use]
    pub const fn entries(&self) -> &'a [H::Entry] {
        self.entries
    }
}

/// A list with all its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole<H: Head> {
    pub(super) context: ContextId,
    pub(super) head: H,
    pub(super) entries: Vec<H::Entry>,
}

impl<H: Head> Whole<H> {
    /// What it is about.
    #[must_use]
    pub const fn context(&self) -> ContextId {
        self.context
    }

    /// What all its parts have alike.
    #[must_use]
    pub const fn head(&self) -> &H {
        &self.head
    }

    /// Its entries.
    #[must_use]
    pub fn entries(&self) -> &[H::Entry] {
        &self.entries
    }

    /// Its parts, each of which fits into a message.
    ///
    /// # Errors
    /// A group without ranks, with more than [`MAX_RANKS`], or without this one.
    pub fn parts(&self) -> impl Iterator<Item = Result<Part<'_, H>, FormatError>> {
        let parts = self.entries.chunks(H::PART_ENTRIES);
        parts.enumerate().map(|(index, entries)| Part::new(self.head, index as u16, entries))
    }
}

/// A part that does not go on with what is under assembly, or asks for too much. The assembler is as before. Whoever
/// sends such a part breaks the order of calls, or its connection brings messages twice: end the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AssemblyError {
    /// More ranks than there can be.
    #[error("a list of {found} ranks, but there are at most {limit}: send the list of the group")]
    Ranks {
        /// Ranks that the list announces.
        found: u32,
        /// The most that were expected.
        limit: u32,
    },
    /// Another list has begun and is not whole.
    #[error(
        "a list of rank {rank} for collective {collective} of group {group} begins before that of rank {other_rank} \
         for collective {other_collective} of group {other_group} is whole: send one after the other"
    )]
    Busy {
        /// Whose list comes.
        rank: u32,
        /// Its group.
        group: u32,
        /// Its collective.
        collective: u32,
        /// Whose list is under assembly.
        other_rank: u32,
        /// Its group.
        other_group: u32,
        /// Its collective.
        other_collective: u32,
    },
    /// The same list with another beginning.
    #[error("part {index} says something else of its list than the parts before it: cut one list into parts")]
    Differs {
        /// Number of the part.
        index: u16,
    },
    /// A part that is there already.
    #[error("part {index} of a list has come twice: send each part once")]
    Twice {
        /// Number of the part.
        index: u16,
    },
    /// A part of the list that was whole last.
    #[error("part {index} of a list comes although the list is whole: send each part once")]
    Complete {
        /// Number of the part.
        index: u16,
    },
}

/// Puts the parts of lists together, one list at a time: a connection of a rank has one for calls and one for groups.
/// Parts of a list may come in any order.
///
/// Memory: none but while a list is under assembly, and then that of its entries. It is taken when the first part has
/// come, which is as long as a part must be, so that no message can ask for more than [`Assembler::held_bytes`] says of
/// the largest list.
#[derive(Clone, Debug)]
pub struct Assembler<H: Head> {
    most_ranks: u32,
    partial: Option<Partial<H>>,
    /// The list that was whole last.
    last: Option<(ContextId, u32)>,
}

#[derive(Clone, Debug)]
struct Partial<H: Head> {
    whole: Whole<H>,
    /// A bit per part that has come.
    arrived: u64,
}

impl<H: Head> Assembler<H> {
    /// An assembler of lists for groups of up to `most_ranks` ranks; never more than [`MAX_RANKS`].
    #[must_use]
    pub fn new(most_ranks: u32) -> Self {
        Self { most_ranks: most_ranks.min(MAX_RANKS), partial: None, last: None }
    }

    /// Takes a part; the list, if it is whole now.
    ///
    /// # Errors
    /// It is of another list than the one under assembly, has come before, differs in what parts have alike, or
    /// announces too many ranks.
    pub fn add(&mut self, context: ContextId, part: Part<'_, H>) -> Result<Option<Whole<H>>, AssemblyError> {
        let Part { head, index, entries } = part;
        let (found, limit) = (head.ranks(), self.most_ranks);
        if found > limit {
            return Err(AssemblyError::Ranks { found, limit });
        }
        if let Some(Partial { whole, arrived }) = &self.partial {
            if (whole.context, whole.head.rank()) != (context, head.rank()) {
                return Err(AssemblyError::Busy {
                    rank: head.rank(),
                    group: context.group,
                    collective: context.collective,
                    other_rank: whole.head.rank(),
                    other_group: whole.context.group,
                    other_collective: whole.context.collective,
                });
            }
            if whole.head != head {
                return Err(AssemblyError::Differs { index });
            }
            if arrived >> index & 1 != 0 {
                return Err(AssemblyError::Twice { index });
            }
        } else if self.last == Some((context, head.rank())) {
            return Err(AssemblyError::Complete { index });
        }
        let partial = self.partial.get_or_insert_with(|| {
            let entries = vec![H::Entry::new_zeroed(); head.entries()];
            Partial { whole: Whole { context, head, entries }, arrived: 0 }
        });
        let begin = usize::from(index) * H::PART_ENTRIES;
        let places = partial.whole.entries.iter_mut().skip(begin);
        places.zip(entries).for_each(|(place, entry)| *place = *entry);
        partial.arrived |= 1 << index;
        if self.missing() > 0 {
            return Ok(None);
        }
        self.last = Some((context, head.rank()));
        Ok(self.partial.take().map(|partial| partial.whole))
    }

    /// Parts that the list under assembly lacks; 0 where there is none.
    #[must_use]
    pub fn missing(&self) -> u32 {
        let lacks = |partial: &Partial<H>| parts(&partial.whole.head) as u32 - partial.arrived.count_ones();
        self.partial.as_ref().map_or(0, lacks)
    }

    /// Memory of the list under assembly, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let held = |partial: &Partial<H>| partial.whole.entries.capacity() * size_of::<H::Entry>();
        self.partial.as_ref().map_or(0, held)
    }

    /// Forgets the list under assembly: its rank is gone.
    pub fn clear(&mut self) {
        self.partial = None;
    }
}

/// Whether lists of so many entries fit into the bits of an [`Assembler`].
pub(super) const fn fits(most_entries: usize, part_entries: usize) -> bool {
    part_entries > 0 && most_entries.div_ceil(part_entries) <= MOST_PARTS
}
