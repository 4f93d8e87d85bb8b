//! Plan of an operation: the bytes that it moves, and their places.

pub(crate) mod chains;
pub(crate) mod footprint;
pub(crate) mod peers;
pub(crate) mod tuner;

use flexcast_proto::{
    Block, Chunking, PieceSet, Pieces, Placement, RankSet, ReceiveSpace, RootRow, SpaceError, Subgroup,
};

use crate::op::config::Config;
use crate::op::lists::List;
use crate::op::stream::Stream;
use crate::plan::chains::order;
use crate::plan::tuner::Shape;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One rank's bytes to all.
    Broadcast { root: u32, bytes: u64 },
    /// Every rank's bytes to all, alike in length.
    Allgather { bytes: u64 },
    /// Every rank's bytes to all, with a length for each.
    Allgatherv { bytes: List },
}

impl Kind {
    /// Its code among ranks.
    pub(crate) const fn of_protocol(&self) -> flexcast_proto::Kind {
        match self {
            Kind::Broadcast { .. } => flexcast_proto::Kind::Broadcast,
            Kind::Allgather { .. } => flexcast_proto::Kind::Allgather,
            Kind::Allgatherv { .. } => flexcast_proto::Kind::Allgatherv,
        }
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.of_protocol().name()
    }
}

/// Longest read of a peer's memory: half of what a message can carry (InfiniBand specification, volume 1, 9.2: 2^31
/// bytes).
const MAX_READ_BYTES: u64 = 1 << 30;

/// Longest read of several pieces: eight of them, as many as are under way, are in flight for longer than a round trip
/// on any link there is.
const MERGED_READ_BYTES: u64 = 256 << 10;

/// A run of bytes of the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// An operation, cut into blocks, subgroups and chunks.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    ranks: u32,
    own: u32,
    chunk_bytes: u32,
    subgroups: u32,
    /// Where the blocks of an Allgatherv begin, if not one behind the other.
    displacements: Option<List>,
}

impl Plan {
    pub(crate) fn new(kind: Kind, own: u32, ranks: u32, chunk_bytes: u32, subgroups: u32) -> Self {
        Self { kind, ranks, own, chunk_bytes, subgroups, displacements: None }
    }

    /// The same with the blocks of an Allgatherv where [`displs::check`](crate::op::displs::check) says.
    pub(crate) fn displaced(self, displacements: Option<List>) -> Self {
        Self { displacements, ..self }
    }

    /// Where the blocks begin, if not one behind the other.
    pub(crate) fn displacements(&self) -> &[u64] {
        self.displacements.as_deref().unwrap_or_default()
    }

    /// The rank whose plan it is.
    pub(crate) const fn own(&self) -> u32 {
        self.own
    }

    /// Ranks that take part.
    pub(crate) const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Ranks that contribute a block.
    pub(crate) fn roots(&self) -> RankSet {
        match self.kind {
            Kind::Broadcast { root, .. } => RankSet::of(root),
            Kind::Allgather { .. } | Kind::Allgatherv { .. } => RankSet::below(self.ranks),
        }
    }

    /// Where a rank is among the roots.
    fn position(&self, rank: u32) -> Option<u32> {
        match self.kind {
            Kind::Broadcast { root, .. } => (rank == root).then_some(0),
            Kind::Allgather { .. } | Kind::Allgatherv { .. } => (rank < self.ranks).then_some(rank),
        }
    }

    /// Where a rank is among the roots of which a subgroup has chunks.
    fn position_in(&self, rank: u32, subgroup: u32) -> Option<u32> {
        let positions = self.positions(subgroup);
        self.position(rank).filter(|position| positions.contains(position)).map(|position| position - positions.start)
    }

    /// The rank at a position among the roots.
    fn rank_at(&self, position: u32) -> u32 {
        match self.kind {
            Kind::Broadcast { root, .. } => root,
            Kind::Allgather { .. } | Kind::Allgatherv { .. } => position,
        }
    }

    /// The part of the receive buffer that a root's block takes.
    pub(crate) fn block(&self, root: u32) -> Range {
        match &self.kind {
            Kind::Broadcast { bytes, .. } => Range { offset: 0, bytes: *bytes },
            Kind::Allgather { bytes } => Range { offset: bytes * u64::from(root), bytes: *bytes },
            Kind::Allgatherv { bytes } => {
                let offset = match &self.displacements {
                    Some(displacements) => displacements[root as usize],
                    None => bytes[..root as usize].iter().sum(),
                };
                Range { offset, bytes: bytes[root as usize] }
            }
        }
    }

    /// Bytes of all blocks.
    pub(crate) fn receive_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Broadcast { bytes, .. } => *bytes,
            Kind::Allgather { bytes } => bytes * u64::from(self.ranks),
            Kind::Allgatherv { bytes } => bytes.iter().sum(),
        }
    }

    /// The most bytes that ride on one message of the barrier, if all of them do. A message carries the blocks of up to
    /// half of the ranks.
    pub(crate) fn eager_message_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Allgather { bytes } => bytes * u64::from(self.ranks / 2),
            Kind::Broadcast { .. } | Kind::Allgatherv { .. } => self.receive_bytes(),
        }
    }

    /// What the choice of an algorithm follows from; alike on all ranks.
    pub(crate) fn shape(&self) -> Shape {
        Shape {
            gathers: !matches!(self.kind, Kind::Broadcast { .. }),
            contiguous: self.displacements.is_none(),
            largest_bytes: match &self.kind {
                Kind::Broadcast { bytes, .. } | Kind::Allgather { bytes } => *bytes,
                Kind::Allgatherv { bytes } => bytes.iter().copied().max().unwrap_or(0),
            },
            total_bytes: self.receive_bytes(),
            eager_message_bytes: self.eager_message_bytes(),
        }
    }

    /// Bytes that this rank gets from others.
    pub(crate) fn foreign_bytes(&self) -> u64 {
        self.receive_bytes() - self.position(self.own).map_or(0, |_| self.block(self.own).bytes)
    }

    /// Whether all blocks have one length, so that a chunk's place follows from its number without a table.
    pub(crate) const fn is_equal(&self) -> bool {
        !matches!(self.kind, Kind::Allgatherv { .. })
    }

    fn subgroup(&self, index: u32) -> Subgroup {
        if self.is_whole() { Subgroup { index: 0, count: 1 } } else { Subgroup { index, count: self.subgroups } }
    }

    /// Whether blocks go to subgroups as they are, because they have too few chunks to be cut for all subgroups: else
    /// the first subgroups would take everything, and one worker would have to hold the rate of the link. Never where
    /// that has more sequence numbers than cutting.
    fn is_whole(&self) -> bool {
        let Kind::Allgather { bytes } = self.kind else { return false };
        let (chunks, ranks, subgroups) =
            (bytes.div_ceil(u64::from(self.chunk_bytes.max(1))), u64::from(self.ranks), u64::from(self.subgroups));
        (1..subgroups).contains(&chunks) && ranks >= subgroups && ranks.div_ceil(subgroups) * chunks <= ranks
    }

    /// Positions of the roots of which a subgroup has chunks, for all peers alike.
    fn positions(&self, subgroup: u32) -> core::ops::Range<u32> {
        let edge = |index: u32| (u64::from(index) * u64::from(self.ranks) / u64::from(self.subgroups.max(1))) as u32;
        match self.kind {
            Kind::Broadcast { .. } => 0..1,
            _ if self.is_whole() => edge(subgroup)..edge(subgroup + 1),
            Kind::Allgather { .. } | Kind::Allgatherv { .. } => 0..self.ranks,
        }
    }

    /// The first root of a stream that is received.
    pub(crate) fn first_root(&self, stream: Stream) -> u32 {
        stream.peer.unwrap_or_else(|| self.rank_at(self.positions(stream.subgroup).start))
    }

    /// Position among the roots of the first root of a stream that is received.
    pub(crate) fn first_position(&self, stream: Stream) -> u32 {
        stream.peer.map_or_else(|| self.positions(stream.subgroup).start, |peer| self.position(peer).unwrap_or(0))
    }

    /// The sequence numbers of a stream that is received: those of all roots in a subgroup, or of one; `table` is
    /// scratch.
    pub(crate) fn space<'t>(
        &self,
        stream: Stream,
        table: &'t mut Vec<RootRow>,
    ) -> Result<ReceiveSpace<'t>, SpaceError> {
        let group = self.subgroup(stream.subgroup);
        if let Some(root) = stream.peer {
            let sends = root != self.own && self.position_in(root, stream.subgroup).is_some();
            let bytes = if sends { self.block(root).bytes } else { 0 };
            return ReceiveSpace::equal(1, bytes, self.chunk_bytes, group);
        }
        match &self.kind {
            Kind::Broadcast { bytes, .. } => ReceiveSpace::equal(1, *bytes, self.chunk_bytes, group),
            Kind::Allgather { bytes } => {
                ReceiveSpace::equal(self.positions(stream.subgroup).len() as u32, *bytes, self.chunk_bytes, group)
            }
            Kind::Allgatherv { bytes } => {
                table.clear();
                table.resize(bytes.len(), RootRow::default());
                match &self.displacements {
                    None => ReceiveSpace::each(bytes.iter().copied(), self.chunk_bytes, group, table),
                    Some(displacements) => {
                        let contributions = displacements.iter().copied().zip(bytes.iter().copied());
                        ReceiveSpace::placed(contributions, self.chunk_bytes, group, table)
                    }
                }
            }
        }
    }

    /// How many sequence numbers a stream has that is received. It needs no table, even of blocks of different lengths.
    pub(crate) fn chunks_of(&self, stream: Stream) -> Result<u64, SpaceError> {
        match &self.kind {
            Kind::Allgatherv { bytes } if stream.peer.is_none() => {
                let group = self.subgroup(stream.subgroup);
                let chunks = |bytes: &u64| Ok(Chunking::new(*bytes, self.chunk_bytes)?.block(group)?.chunks);
                bytes.iter().map(chunks).sum()
            }
            _ => Ok(self.space(stream, &mut Vec::new())?.chunks()),
        }
    }

    /// A root's share in a subgroup, relative to its block.
    pub(crate) fn share(&self, root: u32, subgroup: u32) -> Block {
        const NOTHING: Block = Block { first_chunk: 0, chunks: 0, offset: 0, bytes: 0, last_chunk_bytes: 0 };
        if self.position_in(root, subgroup).is_none() {
            return NOTHING;
        }
        let cut = Chunking::new(self.block(root).bytes, self.chunk_bytes);
        cut.and_then(|cut| cut.block(self.subgroup(subgroup))).unwrap_or(NOTHING)
    }

    /// The sequence numbers of a root in a stream: the first and how many; none if the rank sends nothing there.
    pub(crate) fn psns(&self, root: u32, stream: Stream, space: &ReceiveSpace<'_>) -> (u64, u64) {
        let position = match stream.peer {
            Some(peer) => (root == peer).then_some(0),
            None => self.position_in(root, stream.subgroup),
        };
        position.and_then(|position| space.psns(position)).unwrap_or((0, 0))
    }

    /// The sequence numbers of the own block in a stream that is sent, likewise.
    pub(crate) fn sent_psns(&self, stream: Stream, table: &mut Vec<RootRow>) -> Result<(u64, u64), SpaceError> {
        match stream.peer {
            Some(peer) if peer == self.own || self.position(self.own).is_none() => Ok((0, 0)),
            Some(_) => Ok((0, self.share(self.own, stream.subgroup).chunks)),
            None => Ok(self.psns(self.own, stream, &self.space(stream, table)?)),
        }
    }

    /// Chunks of a root's block.
    fn chunks(&self, root: u32) -> u64 {
        self.block(root).bytes.div_ceil(u64::from(self.chunk_bytes.max(1)))
    }

    /// The cut of the blocks for recovery.
    pub(crate) fn pieces(&self) -> Pieces {
        Pieces::of_chunks(self.roots(), self.root_ranks().map(|root| self.chunks(root)).max().unwrap_or(0))
    }

    /// The pieces of the other ranks' blocks.
    pub(crate) fn foreign_pieces(&self) -> PieceSet {
        let pieces = self.pieces();
        pieces.all().without(&pieces.of(self.own))
    }

    /// Chunks of each piece of a root's block.
    pub(crate) fn piece_chunks(&self, pieces: &Pieces, root: u32) -> u64 {
        pieces.chunks(self.chunks(root))
    }

    /// The part of the receive buffer that a piece takes, and whose it is; none if its block ends before it.
    fn piece(&self, pieces: &Pieces, piece: u32) -> Option<(u32, Range)> {
        let (root, number) = pieces.place(piece)?;
        let block = self.block(root);
        let bytes = self.piece_chunks(pieces, root) * u64::from(self.chunk_bytes);
        let start = u64::from(number) * bytes;
        let bytes = bytes.min(block.bytes.checked_sub(start).filter(|left| *left > 0)?);
        Some((root, Range { offset: block.offset + start, bytes }))
    }

    /// The piece of a root's block to which the chunk at an offset of the receive buffer belongs.
    pub(crate) fn piece_at(&self, pieces: &Pieces, root: u32, offset: u64) -> Option<u32> {
        let chunk = (offset - self.block(root).offset) / u64::from(self.chunk_bytes);
        pieces.of_chunk(root, self.chunks(root), chunk)
    }

    /// The roots, in the order of their positions.
    pub(crate) fn root_ranks(&self) -> impl Iterator<Item = u32> {
        let count = match self.kind {
            Kind::Broadcast { .. } => 1,
            Kind::Allgather { .. } | Kind::Allgatherv { .. } => self.ranks,
        };
        (0..count).map(|position| self.rank_at(position))
    }

    /// Rank and bytes that a sequence number of a stream stands for.
    pub(crate) fn place(&self, psn: u64, stream: Stream, space: &ReceiveSpace<'_>) -> Option<(u32, Placement)> {
        let place = space.place(psn)?;
        match stream.peer {
            Some(root) => Some((root, Placement { offset: self.block(root).offset + place.offset, ..place })),
            None => {
                let first = self.positions(stream.subgroup).start;
                let before = if first == 0 { 0 } else { self.block(first).offset };
                Some((self.rank_at(first + place.root), Placement { offset: before + place.offset, ..place }))
            }
        }
    }

    /// Bytes that the busiest link carries while the operation lasts: what a rank receives; where a root sends its
    /// block to each rank by itself, what the roots of a chain send one after another, if that is more.
    pub(crate) fn link_bytes(&self, config: &Config) -> u64 {
        let foreign = self.foreign_bytes();
        let Some(peers) = config.transport.peers(self.ranks).filter(|_| self.ranks > 1) else { return foreign };
        let roots = u64::from(self.roots().len().max(1));
        let turns = u64::from(order(self, config, self.own).steps);
        foreign.max((self.receive_bytes().div_ceil(roots)).saturating_mul(u64::from(peers)).saturating_mul(turns))
    }
}

/// What a scan of the bitmaps has shown while multicast goes on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Chunks behind which a later one of the same root has come: they do not come any more.
    pub(crate) lost: Missing,
    /// How many chunks may still come.
    pub(crate) ahead: u64,
    /// Pieces of which some may.
    pub(crate) ahead_in: PieceSet,
    /// Some root of which chunks may still come has not begun, as far as they show.
    pub(crate) awaits_root: bool,
}

impl Seen {
    /// Whether multicast brings nothing more, and something is missing.
    pub(crate) fn is_final(&self) -> bool {
        self.lost.len() > 0 && self.ahead == 0
    }
}

/// Chunks that are missing, by root.
#[derive(Clone, Debug, Default)]
pub(crate) struct Missing {
    /// Root, offset in the receive buffer, bytes; sorted.
    chunks: Vec<(u32, Range)>,
}

impl Missing {
    /// Nothing is missing.
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new() }
    }

    pub(crate) fn add(&mut self, root: u32, place: &Placement) {
        self.chunks.push((root, Range { offset: place.offset, bytes: u64::from(place.bytes) }));
    }

    /// To be called once after the last [`Missing::add`].
    pub(crate) fn sort(&mut self) {
        self.chunks.sort_unstable_by_key(|(root, range)| (*root, range.offset));
    }

    pub(crate) fn len(&self) -> usize {
        self.chunks.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|(_, range)| range.bytes).sum()
    }

    fn of(&self, root: u32) -> &[(u32, Range)] {
        let start = self.chunks.partition_point(|(of, _)| *of < root);
        let end = self.chunks.partition_point(|(of, _)| *of <= root);
        &self.chunks[start..end]
    }

    /// The pieces that are not whole.
    pub(crate) fn pieces(&self, plan: &Plan, pieces: &Pieces) -> PieceSet {
        self.chunks.iter().filter_map(|(root, range)| plan.piece_at(pieces, *root, range.offset)).collect()
    }

    /// Whether all that is missing here is missing there.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        let there = |(root, range): &(u32, Range)| {
            other.chunks.binary_search_by_key(&(*root, range.offset), |(root, range)| (*root, range.offset)).is_ok()
        };
        self.chunks.iter().all(there)
    }

    /// What is missing of these pieces, in groups that are read as one: runs that go on in the next piece are read
    /// together, up to so many bytes that a few reads fill a link, and no more, so that what is there can be passed on.
    pub(crate) fn groups(&self, plan: &Plan, pieces: &Pieces, wanted: &PieceSet) -> Vec<(PieceSet, Vec<Range>)> {
        let mut groups: Vec<(PieceSet, Vec<Range>)> = Vec::new();
        for piece in wanted.iter() {
            let runs = self.runs(plan, pieces, piece);
            if let (Some((group, before)), Some(first)) = (groups.last_mut(), runs.first())
                && let Some(last) = before.last_mut()
                && last.offset + last.bytes == first.offset
                && last.bytes + first.bytes <= MERGED_READ_BYTES
            {
                last.bytes += first.bytes;
                before.extend(&runs[1..]);
                group.insert(piece);
            } else {
                groups.push((PieceSet::of(piece), runs));
            }
        }
        groups
    }

    /// The missing runs of a piece: neighbouring chunks are one, as far as one read reaches.
    fn runs(&self, plan: &Plan, pieces: &Pieces, piece: u32) -> Vec<Range> {
        let mut runs: Vec<Range> = Vec::new();
        let Some((root, part)) = plan.piece(pieces, piece) else { return runs };
        let of_root = self.of(root);
        let first = of_root.partition_point(|(_, range)| range.offset < part.offset);
        let within = of_root[first..].iter().take_while(|(_, range)| range.offset < part.offset + part.bytes);
        for (_, range) in within {
            match runs.last_mut() {
                Some(last)
                    if last.offset + last.bytes == range.offset && last.bytes + range.bytes <= MAX_READ_BYTES =>
                {
                    last.bytes += range.bytes;
                }
                _ => runs.push(*range),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_follow_one_another() {
        let plan = Plan::new(Kind::Allgatherv { bytes: vec![3, 0, 5].into() }, 1, 3, 64, 2);
        assert_eq!(plan.block(0), Range { offset: 0, bytes: 3 });
        assert_eq!(plan.block(2), Range { offset: 3, bytes: 5 });
        assert_eq!((plan.receive_bytes(), plan.foreign_bytes()), (8, 8));
        let plan = plan.displaced(Some(vec![100, 0, 7].into()));
        assert_eq!((plan.block(0), plan.block(2)), (Range { offset: 100, bytes: 3 }, Range { offset: 7, bytes: 5 }));
        assert_eq!((plan.receive_bytes(), plan.foreign_bytes()), (8, 8));
        let mut table = Vec::new();
        let places: Vec<_> = (0..2)
            .flat_map(|subgroup| {
                let stream = Stream { subgroup, peer: None };
                let space = plan.space(stream, &mut table).unwrap();
                assert_eq!(plan.chunks_of(stream), Ok(space.chunks()));
                (0..space.chunks()).map(|psn| plan.place(psn, stream, &space).unwrap().1.offset).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(places, [100, 7], "each of one chunk, in the first subgroup");
        let plan = Plan::new(Kind::Allgather { bytes: 100 }, 1, 3, 64, 2);
        assert_eq!((plan.block(2), plan.foreign_bytes()), (Range { offset: 200, bytes: 100 }, 200));
        let plan = Plan::new(Kind::Broadcast { root: 2, bytes: 100 }, 1, 3, 64, 2);
        assert_eq!((plan.block(2), plan.foreign_bytes()), (Range { offset: 0, bytes: 100 }, 100));
        assert_eq!(plan.root_ranks().collect::<Vec<_>>(), [2]);
        assert_eq!(plan.roots(), RankSet::of(2));
    }

    #[test]
    fn streams_of_single_ranks_cover_what_others_send() {
        let mut table = Vec::new();
        for kind in [
            Kind::Allgather { bytes: 1000 },
            Kind::Allgatherv { bytes: vec![0, 999, 130].into() },
            Kind::Broadcast { root: 1, bytes: 777 },
        ] {
            for own in 0..3 {
                let plan = Plan::new(kind.clone(), own, 3, 64, 2);
                let mut bytes = vec![0; plan.receive_bytes() as usize];
                let streams = (0..2).flat_map(|subgroup| (0..3).map(move |peer| Stream { subgroup, peer: Some(peer) }));
                for stream in streams.filter(|stream| stream.peer != Some(own)) {
                    let space = plan.space(stream, &mut table).unwrap();
                    assert_eq!(plan.chunks_of(stream), Ok(space.chunks()));
                    let sender = Plan::new(kind.clone(), stream.peer.unwrap(), 3, 64, 2);
                    let sent = sender.sent_psns(Stream { peer: Some(own), ..stream }, &mut Vec::new()).unwrap();
                    assert_eq!(sent, (0, space.chunks()));
                    for psn in 0..space.chunks() {
                        let (root, place) = plan.place(psn, stream, &space).unwrap();
                        assert_eq!(Some(root), stream.peer);
                        bytes[place.offset as usize..][..place.bytes as usize].iter_mut().for_each(|byte| *byte += 1);
                    }
                }
                assert_eq!(bytes.iter().sum::<u64>(), plan.foreign_bytes());
                assert!(bytes.iter().all(|times| *times < 2));
            }
        }
    }

    #[test]
    fn blocks_of_few_chunks_load_all_subgroups_and_every_byte_has_one_place() {
        let mut table = Vec::new();
        for (ranks, subgroups, bytes) in
            (1..20).flat_map(|ranks| [1, 2, 3, 4, 7].map(|subgroups| (ranks, subgroups))).flat_map(
                |(ranks, subgroups)| [0, 1, 64, 65, 128, 180, 256, 400, 1000].map(|bytes| (ranks, subgroups, bytes)),
            )
        {
            let plan = |own| Plan::new(Kind::Allgather { bytes }, own, ranks, 64, subgroups);
            let mut times = vec![0; plan(0).receive_bytes() as usize];
            let mut loads = Vec::new();
            for subgroup in 0..subgroups {
                let stream = Stream { subgroup, peer: None };
                let space = plan(0).space(stream, &mut table).unwrap();
                assert_eq!(plan(0).chunks_of(stream), Ok(space.chunks()));
                loads.push(space.chunks());
                assert!(space.chunks() <= u64::from(ranks) * bytes.div_ceil(64).div_ceil(subgroups.into()));
                let mut of_roots = vec![0; ranks as usize];
                for psn in 0..space.chunks() {
                    let (root, place) = plan(0).place(psn, stream, &space).unwrap();
                    of_roots[root as usize] += 1;
                    let (first, count) = plan(root).sent_psns(stream, &mut Vec::new()).unwrap();
                    assert!((first..first + count).contains(&psn));
                    // What the sender takes the chunk from, and what the receiver's first chunk is.
                    let share = plan(root).share(root, subgroup);
                    let within = share.offset + (psn - first) * 64;
                    assert_eq!(place.offset, plan(root).block(root).offset + within);
                    times[place.offset as usize..][..place.bytes as usize].iter_mut().for_each(|times| *times += 1);
                }
                for root in 0..ranks {
                    assert_eq!(plan(root).sent_psns(stream, &mut Vec::new()).unwrap().1, of_roots[root as usize]);
                    assert_eq!(plan(0).share(root, subgroup).chunks, of_roots[root as usize]);
                }
            }
            assert!(times.iter().all(|times| *times == 1), "{ranks} ranks, {subgroups} subgroups, {bytes} bytes");
            if bytes > 0 && ranks >= 2 * subgroups {
                assert!(
                    loads.iter().all(|chunks| *chunks > 0),
                    "{ranks} ranks, {subgroups} subgroups, {bytes} bytes: {loads:?}"
                );
            }
        }
    }

    #[test]
    fn unicast_takes_the_time_of_all_copies() {
        let multicast = Config { chains: 1, ..Config::default() };
        let unicast = Config { transport: crate::op::stream::Transport::UcUnicast, ..multicast.clone() };
        let plan = Plan::new(Kind::Allgather { bytes: 1000 }, 0, 4, 64, 2);
        assert_eq!(plan.link_bytes(&multicast), 3000);
        assert_eq!(plan.link_bytes(&unicast), 4 * 3 * 1000);
        // All at once, unless configured otherwise.
        assert_eq!(plan.link_bytes(&Config { chains: 0, ..unicast.clone() }), 3000);
        let plan = Plan::new(Kind::Broadcast { root: 0, bytes: 1000 }, 1, 4, 64, 2);
        assert_eq!((plan.link_bytes(&multicast), plan.link_bytes(&unicast)), (1000, 3000));
        let alone = Plan::new(Kind::Broadcast { root: 0, bytes: 1000 }, 0, 1, 64, 2);
        assert_eq!(alone.link_bytes(&unicast), 0);
    }

    #[test]
    fn no_run_is_longer_than_a_read() {
        let mut missing = Missing::default();
        let bytes = 768 << 20;
        for chunk in 0..6 {
            missing.add(0, &Placement { root: 0, chunk, offset: chunk * u64::from(bytes), bytes });
        }
        missing.sort();
        let plan = Plan::new(Kind::Broadcast { root: 0, bytes: 6 * u64::from(bytes) }, 1, 2, bytes, 1);
        let runs = missing.runs(&plan, &Pieces::new(plan.roots(), 1), 0);
        assert!(runs.iter().all(|run| run.bytes <= MAX_READ_BYTES), "{runs:?}");
        assert_eq!(runs.iter().map(|run| run.bytes).sum::<u64>(), missing.bytes());
    }

    #[test]
    fn neighbouring_chunks_are_fetched_together() {
        let plan = Plan::new(Kind::Allgather { bytes: 640 }, 0, 2, 64, 2);
        let mut table = Vec::new();
        let mut missing = Missing::default();
        // Chunks 4 (last of subgroup 0), 5 and 6 (first of subgroup 1) and 8 of rank 1.
        for (subgroup, psns) in [(0, vec![9]), (1, vec![5, 6, 8])] {
            let stream = Stream { subgroup, peer: None };
            let space = plan.space(stream, &mut table).unwrap();
            for psn in psns {
                let (root, place) = plan.place(psn, stream, &space).unwrap();
                // In a stream of one root its chunks are counted from 0.
                let single = Stream { subgroup, peer: Some(1) };
                let alone = plan.space(single, &mut Vec::new()).unwrap().chunks();
                assert_eq!(
                    plan.place(psn - alone, single, &plan.space(single, &mut Vec::new()).unwrap()).unwrap().1.offset,
                    place.offset
                );
                missing.add(root, &place);
            }
        }
        missing.sort();
        assert_eq!((missing.len(), missing.bytes()), (4, 256));
        let runs = [Range { offset: 640 + 4 * 64, bytes: 192 }, Range { offset: 640 + 8 * 64, bytes: 64 }];
        let whole = Pieces::new(plan.roots(), 1);
        assert_eq!(missing.runs(&plan, &whole, 1), runs);
        assert!(missing.runs(&plan, &whole, 0).is_empty());
        assert_eq!(missing.pieces(&plan, &whole), RankSet::of(1));
        // 10 chunks in 4 pieces: 3, 3, 3 and 1. Chunks 4 and 5 are of the second, 6 and 8 of the third.
        let pieces = Pieces::new(plan.roots(), 4);
        assert_eq!(missing.pieces(&plan, &pieces).iter().collect::<Vec<_>>(), [5, 6]);
        assert_eq!(missing.runs(&plan, &pieces, 5), [Range { offset: 640 + 4 * 64, bytes: 128 }]);
        let runs = [Range { offset: 640 + 6 * 64, bytes: 64 }, Range { offset: 640 + 8 * 64, bytes: 64 }];
        assert_eq!(missing.runs(&plan, &pieces, 6), runs);
        assert!(missing.runs(&plan, &pieces, 7).is_empty());
        // Chunks 4 to 6 are one run, over two pieces.
        let joined = vec![Range { offset: 640 + 4 * 64, bytes: 192 }, Range { offset: 640 + 8 * 64, bytes: 64 }];
        let both = [5, 6].into_iter().collect();
        let groups = missing.groups(&plan, &pieces, &PieceSet::below(8));
        assert_eq!(groups.last(), Some(&(PieceSet::of(7), vec![])));
        assert!(groups.contains(&(both, joined)), "{groups:?}");
    }
}
