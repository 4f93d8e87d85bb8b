//! Receiving side of an operation: places of chunks, and losses.
//!
//! A root's chunks come in the order of their numbers, in each subgroup by itself, unless the network reorders. A chunk
//! that later ones of its subgroup have overtaken is lost once all subgroups have come a window further; so is one
//! before the end that its root has announced. The window grows when a chunk comes that was given up.

use std::ops::Range;

use flexcast_abi::Statistics;
use flexcast_proto::{PieceSet, Pieces, RootRow};

use super::stripes::Stripes;
use crate::error::Result;
use crate::op::stream::Stream;
use crate::plan::{Missing, Plan};

const ALL: Stream = Stream { subgroup: 0, peer: None };
/// Chunks by which others may overtake one that is not lost, at most.
const MOST_REORDER_CHUNKS: u32 = 4096;

/// A root's block.
#[derive(Clone, Copy, Debug)]
struct Root {
    rank: u32,
    first_psn: u32,
    chunks: u32,
    /// Where it lies in the receive buffer.
    offset: usize,
    bytes: usize,
    /// Chunks before which every subgroup is past: later ones of it have come, or the root says that it has sent them.
    seen: u32,
    /// The same as of the last acknowledgement.
    acknowledged: u32,
}

/// Where a chunk belongs.
struct Place {
    /// Index of its root.
    root: usize,
    /// Its number in the root's block.
    number: u32,
    range: Range<usize>,
}

/// What has become of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is in its place.
    New,
    /// It was there.
    Duplicate,
    /// It has no place.
    OutOfRange,
    /// It is too long or too short for its place.
    WrongLength,
}

/// The receiving side of an operation.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    own: u32,
    chunk_bytes: usize,
    roots: Vec<Root>,
    /// Where blocks of different lengths begin; kept for its room.
    table: Vec<RootRow>,
    stripes: Stripes,
    /// For each root and subgroup: its first chunk that has neither come nor been overtaken.
    marks: Vec<u32>,
    /// A bit for each chunk that is there.
    bits: Vec<u64>,
    /// Chunks of each piece that are not.
    lacking: Vec<u32>,
    /// Chunks that are not there.
    remaining: u64,
    /// Chunks that came, of this operation.
    came: u64,
    /// Pieces of others that are whole, since this was last asked.
    whole: PieceSet,
    /// Pieces that have been given up.
    lost: PieceSet,
    /// Chunks of them that came all the same.
    late: u64,
    /// Pieces with holes that have not been given up.
    suspect: PieceSet,
    reorder_chunks: u32,
    /// Nothing more comes of any root but one.
    others_ended: bool,
}

impl Incoming {
    /// No operation yet. `reorder_chunks`: by how many chunks others may overtake one that is not lost, at first; at
    /// least 1.
    pub(crate) fn new(reorder_chunks: u32) -> Self {
        Self { reorder_chunks: reorder_chunks.max(1), ..Self::default() }
    }

    /// The same for blocks that are divided among subgroups.
    pub(crate) fn divided(self, stripes: Stripes) -> Self {
        Self { stripes, ..self }
    }

    /// Begins an operation.
    pub(crate) fn restart(&mut self, plan: &Plan, pieces: &Pieces, chunk_bytes: u32) -> Result<()> {
        (self.own, self.chunk_bytes) = (plan.own(), chunk_bytes as usize);
        let space = plan.space(ALL, &mut self.table)?;
        self.bits.clear();
        self.bits.resize(space.chunks().div_ceil(64) as usize, 0);
        self.lacking.clear();
        self.lacking.resize(pieces.all().len() as usize, 0);
        self.roots.clear();
        self.marks.clear();
        self.remaining = 0;
        let Self { whole, lost, suspect, .. } = self;
        [whole, lost, suspect].into_iter().for_each(PieceSet::clear);
        for rank in plan.root_ranks() {
            let (first_psn, chunks) = plan.psns(rank, ALL, &space);
            let own = rank == plan.own();
            let (first_psn, chunks) = (first_psn as u32, chunks as u32);
            // The own block does not come.
            let seen = if own { chunks } else { 0 };
            let block = plan.block(rank);
            let (offset, bytes) = (block.offset as usize, block.bytes as usize);
            self.roots.push(Root { rank, first_psn, chunks, offset, bytes, seen, acknowledged: seen });
            self.marks.extend((0..self.stripes.subgroups()).map(|subgroup| self.stripes.first(rank, subgroup)));
            if own {
                continue;
            }
            self.remaining += u64::from(chunks);
            let each = pieces.chunks(chunks.into());
            let of_rank = pieces.range(rank);
            for (number, piece) in (0u64..).zip(of_rank) {
                let left = u64::from(chunks).saturating_sub(number * each).min(each);
                self.lacking[piece as usize] = left as u32;
                if left == 0 {
                    self.whole.insert(piece);
                }
            }
        }
        (self.came, self.late, self.others_ended) = (0, 0, false);
        Ok(())
    }

    /// The chunk that a sequence number stands for.
    fn locate(&self, psn: u32) -> Option<Place> {
        // Roots without chunks have the number of the next one.
        let at = self.roots.partition_point(|root| root.first_psn <= psn).checked_sub(1)?;
        let root = &self.roots[at];
        let number = psn - root.first_psn;
        (number < root.chunks && root.rank != self.own).then(|| Place {
            root: at,
            number,
            range: self.range(root, number..number + 1),
        })
    }

    /// Where chunks of a root lie in the receive buffer.
    fn range(&self, root: &Root, numbers: Range<u32>) -> Range<usize> {
        let end = (numbers.end as usize * self.chunk_bytes).min(root.bytes);
        root.offset + numbers.start as usize * self.chunk_bytes..root.offset + end
    }

    fn is_there(&self, psn: u32) -> bool {
        self.bits[psn as usize / 64] & 1 << (psn % 64) != 0
    }

    /// Where the chunks from a sequence number on may be received, up to `most` of one root: their part of the receive
    /// buffer. None of them is there, nor has been given up: what is read of the neighbour lies in its place, too, and
    /// what comes instead of a chunk may be anything.
    pub(crate) fn landing(&self, pieces: &Pieces, psn: u32, most: u32) -> Option<Range<usize>> {
        let place = self.locate(psn)?;
        let root = &self.roots[place.root];
        let (first, end) = (place.number, root.chunks.min(place.number + most));
        let piece = |number: u32| pieces.of_chunk(root.rank, root.chunks.into(), number.into());
        let is_free = |number: &u32| {
            let is_lost = !self.lost.is_empty() && piece(*number).is_none_or(|piece| self.lost.contains(piece));
            !is_lost && !self.is_there(root.first_psn + number)
        };
        let end = (first..end).find(|number| !is_free(number)).unwrap_or(end);
        (first < end).then(|| self.range(root, first..end))
    }

    /// Takes a chunk of `len` bytes, which `copy` copies, to its place.
    pub(crate) fn take_by(
        &mut self,
        pieces: &Pieces,
        (psn, len): (u32, usize),
        receive: &mut [u8],
        copy: impl FnOnce(&mut [u8]),
    ) -> Taken {
        let place = match self.expect(psn, len) {
            Ok(place) => place,
            Err(taken) => return taken,
        };
        let Some(to) = receive.get_mut(place.range.clone()) else { return Taken::OutOfRange };
        copy(to);
        self.mark(pieces, psn, &place);
        Taken::New
    }

    /// Takes note of a chunk of `len` bytes that is in its place, where [`Incoming::landing`] says.
    pub(crate) fn placed(&mut self, pieces: &Pieces, psn: u32, len: usize) -> Taken {
        match self.expect(psn, len) {
            Ok(place) => {
                self.mark(pieces, psn, &place);
                Taken::New
            }
            Err(taken) => taken,
        }
    }

    /// The place of a chunk of `len` bytes that is not there; otherwise what becomes of it.
    fn expect(&self, psn: u32, len: usize) -> Result<Place, Taken> {
        let Some(place) = self.locate(psn) else { return Err(Taken::OutOfRange) };
        if place.range.len() != len {
            return Err(Taken::WrongLength);
        }
        if self.is_there(psn) { Err(Taken::Duplicate) } else { Ok(place) }
    }

    /// Where a chunk of `len` bytes belongs in the receive buffer, if it is not there; otherwise what becomes of it.
    pub(crate) fn place(&self, psn: u32, len: usize) -> Result<usize, Taken> {
        self.expect(psn, len).map(|place| place.range.start)
    }

    /// Whether a sequence number is of the own block, which does not come.
    pub(crate) fn is_own(&self, psn: u32) -> bool {
        let own = self.roots.iter().find(|root| root.rank == self.own);
        own.is_some_and(|root| psn.checked_sub(root.first_psn).is_some_and(|number| number < root.chunks))
    }

    /// A chunk is there.
    fn mark(&mut self, pieces: &Pieces, psn: u32, place: &Place) {
        self.bits[psn as usize / 64] |= 1 << (psn % 64);
        self.remaining -= 1;
        self.came += 1;
        let Place { root, number, .. } = *place;
        let Root { rank, chunks, .. } = self.roots[root];
        let chunks = u64::from(chunks);
        let subgroup = self.stripes.subgroup(rank, number);
        self.pass(pieces, root, subgroup, (number, self.stripes.after(number)));
        let Some(piece) = pieces.of_chunk(rank, chunks, number.into()) else { return };
        let lacking = &mut self.lacking[piece as usize];
        *lacking -= 1;
        if self.lost.contains(piece) {
            // It was only late.
            self.late += 1;
            self.reorder_chunks = (2 * self.reorder_chunks).min(MOST_REORDER_CHUNKS);
        }
        if *lacking == 0 {
            self.whole.insert(piece);
            self.suspect.remove(piece);
        }
    }

    /// Chunks of a root and subgroup before `end` have come or been overtaken, and the next that may come is `next`.
    fn pass(&mut self, pieces: &Pieces, root: usize, subgroup: u32, (end, next): (u32, u32)) {
        let subgroups = self.stripes.subgroups() as usize;
        let marks = &mut self.marks[root * subgroups..][..subgroups];
        let mark = &mut marks[subgroup as usize];
        if *mark >= next {
            return;
        }
        let passed = std::mem::replace(mark, next);
        let root = &mut self.roots[root];
        for gap in self.stripes.ranges(passed, end) {
            note(&mut self.suspect, pieces, root.rank, root.chunks.into(), gap);
        }
        root.seen = marks.iter().copied().min().unwrap_or(root.chunks).min(root.chunks);
    }

    /// A root has sent its block to a subgroup.
    pub(crate) fn ended(&mut self, pieces: &Pieces, rank: u32, (subgroup, chunks): (u32, u32)) -> Taken {
        let Some(at) = self.roots.iter().position(|root| root.rank == rank) else { return Taken::OutOfRange };
        if subgroup >= self.stripes.subgroups() {
            return Taken::OutOfRange;
        }
        if self.roots[at].chunks != chunks {
            return Taken::WrongLength;
        }
        if rank != self.own {
            self.pass(pieces, at, subgroup, (chunks, u32::MAX));
        }
        Taken::New
    }

    /// The root whose last chunk a sequence number stands for, and its chunks.
    pub(crate) fn end_of(&self, psn: u32) -> Option<(u32, u32)> {
        let place = self.locate(psn)?;
        let root = &self.roots[place.root];
        (place.number + 1 == root.chunks).then_some((root.rank, root.chunks))
    }

    /// Nothing more comes of any root but one.
    pub(crate) fn end_others(&mut self, pieces: &Pieces, but: u32) {
        self.others_ended = true;
        for at in 0..self.roots.len() {
            let Root { rank, chunks, .. } = self.roots[at];
            if rank == but || rank == self.own {
                continue;
            }
            for subgroup in 0..self.stripes.subgroups() {
                self.pass(pieces, at, subgroup, (chunks, u32::MAX));
            }
        }
    }

    /// Whether that has been noted.
    pub(crate) const fn have_others_ended(&self) -> bool {
        self.others_ended
    }

    /// Chunks that have not come.
    pub(crate) const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// A number that grows while chunks come.
    pub(crate) const fn came(&self) -> u64 {
        self.came
    }

    /// Chunks that came after they had been given up.
    pub(crate) const fn late(&self) -> u64 {
        self.late
    }

    /// Roots of which less than half of the chunks have come by multicast, and how many are lacking to that.
    pub(crate) fn mostly_lost(&self) -> impl Iterator<Item = (u32, u32)> {
        let came =
            |root: &Root| (root.first_psn..root.first_psn + root.chunks).filter(|psn| self.is_there(*psn)).count();
        let lacking = move |root: &Root| (root.chunks.div_ceil(2)).saturating_sub(came(root) as u32);
        let others = self.roots.iter().filter(|root| root.rank != self.own);
        others.map(move |root| (root.rank, lacking(root))).filter(|(_, lacking)| *lacking > 0)
    }

    /// Roots of which `step` chunks or more have been seen since the last acknowledgement, and how many have been seen;
    /// of those that wait for the `end` of their block also when that has been seen.
    pub(crate) fn acknowledgements(
        &mut self,
        step: u32,
        end: impl Fn(u32) -> bool,
        mut acknowledge: impl FnMut(u32, u32),
    ) {
        let is_due = |root: &&mut Root| match root.seen < root.chunks {
            true => root.seen - root.acknowledged >= step,
            false => root.seen > root.acknowledged && end(root.rank),
        };
        for root in self.roots.iter_mut().filter(is_due) {
            root.acknowledged = root.seen;
            acknowledge(root.rank, root.seen);
        }
    }

    /// Roots of which chunks have been seen, how many, and whether those are all.
    pub(crate) fn seen(&self) -> impl Iterator<Item = (u32, u32, bool)> {
        let seen = |root: &Root| (root.seen > 0).then_some((root.rank, root.seen, root.seen == root.chunks));
        self.roots.iter().filter_map(seen)
    }

    /// Whether a chunk of a rank's block has been seen, or that has none.
    pub(crate) fn has_begun(&self, rank: u32) -> bool {
        self.roots.iter().find(|root| root.rank == rank).is_none_or(|root| root.seen > 0 || root.chunks == 0)
    }

    /// First sequence number and chunks of the own block; none of a rank that sends nothing.
    pub(crate) fn own_psns(&self) -> (u32, u32) {
        let own = self.roots.iter().find(|root| root.rank == self.own);
        own.map_or((0, 0), |own| (own.first_psn, own.chunks))
    }

    /// First sequence number, chunks and rank of the other roots, ascending.
    pub(crate) fn others(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        self.roots.iter().filter(|root| root.rank != self.own).map(|root| (root.first_psn, root.chunks, root.rank))
    }

    /// Whether every root has announced its end, and something is missing.
    pub(crate) fn is_over(&self) -> bool {
        self.remaining > 0 && self.roots.iter().all(|root| root.seen == root.chunks)
    }

    /// Whether chunks have been overtaken that have not been given up.
    pub(crate) const fn is_suspicious(&self) -> bool {
        !self.suspect.is_empty()
    }

    /// Pieces that are lost, each once: in every subgroup all of it has been overtaken by more than the window, or, if
    /// `quiet`, at all.
    pub(crate) fn take_lost(&mut self, pieces: &Pieces, quiet: bool) -> PieceSet {
        let mut lost = PieceSet::EMPTY;
        let window = if quiet { 0 } else { self.reorder_chunks };
        for piece in self.suspect.iter() {
            let Some((rank, number)) = pieces.place(piece) else { continue };
            let Some(root) = self.roots.iter().find(|root| root.rank == rank) else { continue };
            let each = pieces.chunks(root.chunks.into());
            let end = ((u64::from(number) + 1) * each).min(root.chunks.into());
            if end + u64::from(window) <= root.seen.into() {
                lost.insert(piece);
            }
        }
        self.suspect = self.suspect.without(&lost);
        self.lost = self.lost.or(&lost);
        lost
    }

    /// Gives up all that has not come; the pieces that are not whole.
    pub(crate) fn give_up(&mut self, pieces: &Pieces) -> PieceSet {
        let incomplete: PieceSet = pieces.all().iter().filter(|piece| self.lacking[*piece as usize] > 0).collect();
        self.suspect = PieceSet::EMPTY;
        self.lost = self.lost.or(&incomplete);
        incomplete
    }

    /// Pieces of others that have become whole since this was last asked.
    pub(crate) fn take_whole(&mut self) -> PieceSet {
        std::mem::replace(&mut self.whole, PieceSet::EMPTY)
    }

    /// The chunks that are missing of some pieces.
    pub(crate) fn missing(&self, plan: &Plan, pieces: &Pieces, of: &PieceSet) -> Result<Missing> {
        let mut missing = Missing::new();
        let mut table = Vec::new();
        let space = plan.space(ALL, &mut table)?;
        for piece in of.iter() {
            let Some((rank, number)) = pieces.place(piece) else { continue };
            let Some(root) = self.roots.iter().find(|root| root.rank == rank) else { continue };
            let each = pieces.chunks(root.chunks.into());
            let first = u64::from(number) * each;
            for chunk in first..(first + each).min(root.chunks.into()) {
                let psn = u64::from(root.first_psn) + chunk;
                if self.bits[psn as usize / 64] & 1 << (psn % 64) != 0 {
                    continue;
                }
                if let Some((rank, place)) = plan.place(psn, ALL, &space) {
                    missing.add(rank, &place);
                }
            }
        }
        missing.sort();
        Ok(missing)
    }
}

/// Counts what has become of a datagram: of a chunk, or of what announces the end of a block.
pub(crate) fn count(statistics: &mut Statistics, is_data: bool, taken: Taken) {
    match taken {
        Taken::New => statistics.accepted += u64::from(is_data),
        Taken::Duplicate => statistics.duplicates += 1,
        Taken::OutOfRange => statistics.out_of_range += 1,
        Taken::WrongLength => statistics.wrong_length += 1,
    }
}

/// Notes the pieces to which the chunks of a gap belong.
fn note(suspect: &mut PieceSet, pieces: &Pieces, rank: u32, chunks: u64, gap: std::ops::Range<u32>) {
    let piece = |chunk: u32| pieces.of_chunk(rank, chunks, chunk.into());
    if let (Some(first), Some(last)) = (gap.clone().next().and_then(piece), gap.clone().last().and_then(piece)) {
        suspect.insert_range(first..last + 1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::Kind;

    const CHUNK_BYTES: u32 = 64;
    const FIRST_REORDER_CHUNKS: u32 = 16;

    fn plan(kind: Kind, own: u32, ranks: u32) -> Plan {
        Plan::new(kind, own, ranks, CHUNK_BYTES, 1)
    }

    fn begun(plan: &Plan) -> Incoming {
        let mut incoming = Incoming::new(FIRST_REORDER_CHUNKS);
        incoming.restart(plan, &plan.pieces(), CHUNK_BYTES).unwrap();
        incoming
    }

    impl Incoming {
        fn take(&mut self, pieces: &Pieces, (psn, chunk): (u32, &[u8]), receive: &mut [u8]) -> Taken {
            self.take_by(pieces, (psn, chunk.len()), receive, |to| to.copy_from_slice(chunk))
        }
    }

    /// The chunk with a sequence number, as its root sends it: every byte is its place.
    fn chunk(incoming: &Incoming, psn: u32) -> Vec<u8> {
        incoming.locate(psn).map_or_else(Vec::new, |place| place.range.map(|at| at as u8).collect())
    }

    #[test]
    fn a_gap_is_lost_once_others_are_a_window_ahead_or_nothing_more_comes() {
        let plan = plan(Kind::Broadcast { root: 0, bytes: 100 * 64 }, 1, 2);
        let pieces = plan.pieces();
        let mut incoming = begun(&plan);
        assert_eq!(incoming.own_psns(), (0, 0), "it is no root");
        let mut receive = vec![0; 100 * 64];
        for psn in (0..10).chain(12..10 + FIRST_REORDER_CHUNKS) {
            let bytes = chunk(&incoming, psn);
            assert_eq!(incoming.take(&pieces, (psn, &bytes), &mut receive), Taken::New);
        }
        assert!(incoming.is_suspicious());
        assert!(incoming.take_lost(&pieces, false).is_empty(), "it may still come");
        let bytes = chunk(&incoming, 27);
        incoming.take(&pieces, (27, &bytes), &mut receive);
        assert_eq!(incoming.take_lost(&pieces, false).iter().collect::<Vec<_>>(), [10, 11]);
        assert!(incoming.take_lost(&pieces, false).is_empty(), "each is reported once");
        let lost = [10, 11].into_iter().collect();
        assert_eq!(incoming.missing(&plan, &pieces, &lost).unwrap().bytes(), 128);
        // One that was given up comes after all: the network reorders, and the window grows.
        let bytes = chunk(&incoming, 10);
        assert_eq!(incoming.take(&pieces, (10, &bytes), &mut receive), Taken::New);
        assert_eq!((incoming.reorder_chunks, incoming.late()), (2 * FIRST_REORDER_CHUNKS, 1));
        // Behind the end nothing comes.
        assert_eq!(incoming.ended(&pieces, 0, (0, 99)), Taken::WrongLength);
        assert_eq!(incoming.ended(&pieces, 0, (0, 100)), Taken::New);
        assert!(incoming.is_over());
        assert_eq!(incoming.take_lost(&pieces, true).len(), 73);
    }

    #[test]
    fn chunks_are_acknowledged_in_steps_and_land_where_nothing_is() {
        let plan = plan(Kind::Allgather { bytes: 10 * 64 - 5 }, 1, 3);
        let pieces = plan.pieces();
        let mut incoming = begun(&plan);
        let mut receive = vec![0; 3 * (10 * 64 - 5)];
        assert_eq!(incoming.landing(&pieces, 0, 4), Some(0..256));
        for psn in 20..24 {
            let bytes = chunk(&incoming, psn);
            incoming.take(&pieces, (psn, &bytes), &mut receive);
        }
        let at = 2 * (10 * 64 - 5);
        assert_eq!(incoming.landing(&pieces, 24, 64), Some(at + 4 * 64..at + 10 * 64 - 5));
        // Not over what is there, nor over the own block, nor behind the end.
        assert_eq!([10, 20, 23, 30].map(|psn| incoming.landing(&pieces, psn, 64)), [const { None }; 4]);
        let bytes = chunk(&incoming, 4);
        incoming.take(&pieces, (4, &bytes), &mut receive);
        assert_eq!(incoming.landing(&pieces, 1, 64), Some(64..256));
        let mut acknowledged = Vec::new();
        incoming.acknowledgements(4, |_| false, |rank, chunks| acknowledged.push((rank, chunks)));
        incoming.acknowledgements(4, |_| false, |rank, chunks| acknowledged.push((rank, chunks)));
        assert_eq!(acknowledged, [(0, 5), (2, 4)]);
        // The own block does not come.
        assert_eq!(incoming.take(&pieces, (10, &[0; 64]), &mut receive), Taken::OutOfRange);
        assert_eq!(incoming.take(&pieces, (30, &[0; 64]), &mut receive), Taken::OutOfRange);
        assert_eq!(incoming.take(&pieces, (29, &[0; 64]), &mut receive), Taken::WrongLength);
        assert_eq!(incoming.placed(&pieces, 24, 64), Taken::New);
        assert_eq!(incoming.placed(&pieces, 24, 64), Taken::Duplicate);
        assert_eq!(incoming.placed(&pieces, 29, 64), Taken::WrongLength);
        // What is read of the neighbour is not overwritten.
        assert!(incoming.landing(&pieces, 26, 64).is_some());
        assert!(!incoming.give_up(&pieces).is_empty());
        assert_eq!(incoming.landing(&pieces, 26, 64), None);
    }

    proptest! {
        #[test]
        fn what_came_is_in_its_place_and_the_rest_is_lost(
            counts in proptest::collection::vec(0u64..700, 1..6), own in 0u32..6, dropped in 0u32..60, seed: u64,
            (subgroups, stripe) in (1u32..4, 1u32..5),
        ) {
            let ranks = counts.len() as u32;
            let plan = plan(Kind::Allgatherv { bytes: counts.clone().into() }, own % ranks, ranks);
            let pieces = plan.pieces();
            let mut incoming = Incoming::new(FIRST_REORDER_CHUNKS).divided(Stripes::new(subgroups, stripe));
            incoming.restart(&plan, &pieces, CHUNK_BYTES).unwrap();
            let (first_psn, chunks) = incoming.own_psns();
            let sent = plan.sent_psns(ALL, &mut Vec::new()).unwrap();
            prop_assert_eq!((u64::from(first_psn), u64::from(chunks)), sent);
            let total: u64 = counts.iter().sum();
            let mut receive = vec![0xEE; total as usize];
            let mut state = seed | 1;
            let mut draw = |below: u64| {
                state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                (state >> 33) % below.max(1)
            };
            let psns: Vec<u32> = (0..total as u32 + 8).filter(|psn| incoming.locate(*psn).is_some()).collect();
            let mut came = std::collections::BTreeSet::new();
            let mut order: Vec<u32> = psns.iter().copied().filter(|_| draw(100) >= u64::from(dropped)).collect();
            // Neighbours change places now and then, and some come twice.
            for at in 1..order.len() {
                if draw(4) == 0 {
                    order.swap(at - 1, at);
                }
            }
            for psn in order {
                let bytes = chunk(&incoming, psn);
                prop_assert_eq!(incoming.take(&pieces, (psn, &bytes), &mut receive), Taken::New);
                came.insert(psn);
                if draw(5) == 0 {
                    prop_assert_eq!(incoming.take(&pieces, (psn, &bytes), &mut receive), Taken::Duplicate);
                }
            }
            prop_assert_eq!(incoming.remaining(), (psns.len() - came.len()) as u64);
            for rank in plan.root_ranks() {
                let chunks = plan.block(rank).bytes.div_ceil(u64::from(CHUNK_BYTES)) as u32;
                for subgroup in 0..subgroups {
                    prop_assert_eq!(incoming.ended(&pieces, rank, (subgroup, chunks)), Taken::New);
                }
                prop_assert_eq!(incoming.ended(&pieces, rank, (subgroups, chunks)), Taken::OutOfRange);
            }
            let (lost, whole) = (incoming.take_lost(&pieces, true), incoming.take_whole());
            let missing = incoming.missing(&plan, &pieces, &lost).unwrap();
            prop_assert_eq!(missing.len() as u64, incoming.remaining());
            prop_assert!(lost.and(&whole).is_empty());
            prop_assert_eq!(incoming.give_up(&pieces), lost);
            for psn in psns {
                let place = incoming.locate(psn).unwrap().range;
                let expected = |at: usize| if came.contains(&psn) { at as u8 } else { 0xEE };
                prop_assert!(place.into_iter().all(|at| receive[at] == expected(at)));
            }
        }

        #[test]
        fn subgroups_that_come_in_any_order_lose_nothing_and_what_is_past_is_acknowledged(
            counts in proptest::collection::vec(0u64..400, 1..4), subgroups in 1u32..5, stripe in 1u32..9, seed: u64,
        ) {
            let ranks = counts.len() as u32 + 1;
            let blocks: Vec<u64> = counts.iter().map(|chunks| chunks * u64::from(CHUNK_BYTES)).chain([0]).collect();
            let plan = plan(Kind::Allgatherv { bytes: blocks.into() }, ranks - 1, ranks);
            let pieces = plan.pieces();
            let stripes = Stripes::new(subgroups, stripe);
            let mut incoming = Incoming::new(1).divided(stripes);
            incoming.restart(&plan, &pieces, CHUNK_BYTES).unwrap();
            let mut receive = vec![0; plan.receive_bytes() as usize];
            // What each root and subgroup has still to bring, in this order.
            let mut left: Vec<(u32, std::collections::VecDeque<u32>)> = (0..ranks - 1)
                .flat_map(|rank| (0..subgroups).map(move |subgroup| (rank, subgroup)))
                .map(|(rank, subgroup)| {
                    let chunks = counts[rank as usize] as u32;
                    (rank, stripes.ranges(stripes.first(rank, subgroup), chunks).flatten().collect())
                })
                .collect();
            let firsts: Vec<u32> = incoming.roots.iter().map(|root| root.first_psn).collect();
            let mut state = seed | 1;
            while !left.is_empty() {
                state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                let at = (state >> 33) as usize % left.len();
                let (rank, queue) = &mut left[at];
                let Some(number) = queue.pop_front() else {
                    left.swap_remove(at);
                    continue;
                };
                let psn = firsts[*rank as usize] + number;
                let bytes = chunk(&incoming, psn);
                prop_assert_eq!(incoming.take(&pieces, (psn, &bytes), &mut receive), Taken::New);
                prop_assert!(incoming.take_lost(&pieces, false).is_empty());
                for root in &incoming.roots[..ranks as usize - 1] {
                    let missing = (0..root.chunks).find(|number| !incoming.is_there(root.first_psn + number));
                    prop_assert_eq!(root.seen, missing.unwrap_or(root.chunks));
                }
            }
            prop_assert_eq!(incoming.remaining(), 0);
        }
    }
}
