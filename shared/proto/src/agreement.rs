//! Agreement of all ranks on what they have called. Every barrier signal carries the [`Summary`] of its sender's
//! operation, and each rank compares those that it gets with its own.
//!
//! A signal of the barrier is sent only after all signals of earlier rounds have come and agreed. So whoever passes the
//! barrier knows, directly or through others, that *every* rank agrees: where two ranks differ nobody multicasts
//! anything.

#[cfg(not(target_os = "none"))]
mod names;
#[cfg(not(target_os = "none"))]
pub use names::{OPERATORS, TYPES};

/// Which collective operation. Those from [`Kind::Barrier`] on go by messages between pairs of ranks, and firmware has
/// nothing to do with them: it does not know them, so that its code is as short as it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// One rank's block goes to all.
    Broadcast = 1,
    /// Every rank's block goes to all; blocks are equally long.
    Allgather = 2,
    /// The same with blocks of different lengths.
    Allgatherv = 3,
    /// Nobody goes on before all have come.
    #[cfg(not(target_os = "none"))]
    Barrier = 4,
    /// The reduction of all ranks' contributions goes to one rank.
    #[cfg(not(target_os = "none"))]
    Reduce = 5,
    /// The reduction of all ranks' contributions goes to all.
    #[cfg(not(target_os = "none"))]
    Allreduce = 6,
    /// A share of the reduction goes to each rank; shares are equally long.
    #[cfg(not(target_os = "none"))]
    ReduceScatter = 7,
    /// The same with shares of different lengths.
    #[cfg(not(target_os = "none"))]
    ReduceScatterv = 8,
    /// A block of each rank goes to each rank; blocks are equally long.
    #[cfg(not(target_os = "none"))]
    Alltoall = 9,
    /// The same with blocks of different lengths, which only the two ranks of each know.
    #[cfg(not(target_os = "none"))]
    Alltoallv = 10,
    /// A block of each rank goes to one rank; blocks are equally long.
    #[cfg(not(target_os = "none"))]
    Gather = 11,
    /// The same with blocks of different lengths, which only the two ranks of each know.
    #[cfg(not(target_os = "none"))]
    Gatherv = 12,
    /// One rank's blocks go to all, one to each; blocks are equally long.
    #[cfg(not(target_os = "none"))]
    Scatter = 13,
    /// The same with blocks of different lengths, which only the two ranks of each know.
    #[cfg(not(target_os = "none"))]
    Scatterv = 14,
}

impl Kind {
    /// The kind of a code in a signal of the barrier; the code itself when it names none, or one without a barrier.
    ///
    /// # Errors
    /// The code.
    pub const fn from_raw(raw: u8) -> Result<Self, u8> {
        match raw {
            1 => Ok(Self::Broadcast),
            2 => Ok(Self::Allgather),
            3 => Ok(Self::Allgatherv),
            other => Err(other),
        }
    }
}

/// What carries the data of an operation. Ranks choose it each by itself, by a function of what is alike on all of
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// Hardware multicast, and reads from a neighbour for what is lost.
    #[default]
    Multicast = 0,
    /// The signals of the barrier ([`eager`](crate::eager)).
    Eager = 1,
    /// Messages over reliable connections, in segments around the ring.
    Ring = 2,
    /// The same from each rank to each other one directly.
    Linear = 3,
    /// The same between ever larger halves.
    RecursiveDoubling = 4,
    /// The same by the algorithm of Bruck et al.
    Bruck = 5,
    /// Messages over reliable connections along the edges of a binomial tree.
    Binomial = 6,
    /// The same from rank to rank, in segments.
    Chain = 7,
    /// The same in rounds, each to a rank twice as far away.
    #[cfg(not(target_os = "none"))]
    Dissemination = 8,
    /// The same between pairs of ranks, one pair after another.
    #[cfg(not(target_os = "none"))]
    Pairwise = 9,
    /// Through aggregators, without the blocks that are zero ([`sparse`](crate::sparse)).
    #[cfg(not(target_os = "none"))]
    Sparse = 10,
}

impl Algorithm {
    /// The algorithm of a code in a signal of the barrier; the code itself when it names none, or one that has no
    /// barrier anywhere.
    ///
    /// # Errors
    /// The code.
    pub const fn from_raw(raw: u8) -> Result<Self, u8> {
        match raw {
            0 => Ok(Self::Multicast),
            1 => Ok(Self::Eager),
            2 => Ok(Self::Ring),
            3 => Ok(Self::Linear),
            4 => Ok(Self::RecursiveDoubling),
            5 => Ok(Self::Bruck),
            6 => Ok(Self::Binomial),
            7 => Ok(Self::Chain),
            other => Err(other),
        }
    }

    /// Whether ranks write to one another, over connections of their own.
    #[must_use]
    pub const fn is_direct(self) -> bool {
        !matches!(self, Self::Multicast | Self::Eager)
    }
}

/// An operation's arguments, as far as they must be alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Summary {
    /// Which operation.
    pub kind: Kind,
    /// The root; 0 where all ranks are alike.
    pub root: u32,
    /// Bytes that a root contributes; where they differ, [`digest`] of them all; 0 where no rank knows all.
    pub amount: u64,
    /// Bytes of a chunk. Of a reduction, which has no chunks: the code of its operator in the upper 16 bits, that of
    /// its elements' type in the lower.
    pub chunk_bytes: u32,
    /// Chains that multicast side by side.
    pub chains: u32,
    /// What carries the data.
    pub algorithm: Algorithm,
}

impl Summary {
    /// A Broadcast of `bytes` from `root`.
    #[must_use]
    pub const fn broadcast(root: u32, bytes: u64, chunk_bytes: u32) -> Self {
        Self { kind: Kind::Broadcast, root, amount: bytes, chunk_bytes, chains: 1, algorithm: Algorithm::Multicast }
    }

    /// An Allgather to which each rank contributes `bytes`.
    #[must_use]
    pub const fn allgather(bytes: u64, chunk_bytes: u32, chains: u32) -> Self {
        Self { kind: Kind::Allgather, root: 0, amount: bytes, chunk_bytes, chains, algorithm: Algorithm::Multicast }
    }

    /// An Allgather to which the ranks contribute these numbers of bytes, in the order of ranks; behind them their
    /// displacements in the receive buffer, unless they lie there one behind the other.
    #[must_use]
    pub fn allgatherv(bytes: impl IntoIterator<Item = u64>, chunk_bytes: u32, chains: u32) -> Self {
        let algorithm = Algorithm::Multicast;
        Self { kind: Kind::Allgatherv, root: 0, amount: digest(bytes), chunk_bytes, chains, algorithm }
    }

    /// A collective by messages between pairs of ranks. `reduction`: the code of operator and elements, 0 where nothing
    /// is reduced.
    #[must_use]
    pub const fn between_pairs(kind: Kind, root: u32, amount: u64, reduction: u32, algorithm: Algorithm) -> Self {
        Self { kind, root, amount, chunk_bytes: reduction, chains: 1, algorithm }
    }

    /// The same by another algorithm than multicast.
    #[must_use]
    pub const fn by(self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self }
    }
}

/// 64 bits that stand for a sequence of lengths (FNV-1a, 64 bits, over their little-endian bytes). Different sequences
/// have the same digest by accident only, about once in 2^64; it is no protection against intent.
#[must_use]
pub fn digest(lengths: impl IntoIterator<Item = u64>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in lengths.into_iter().flat_map(u64::to_le_bytes) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

/// Two ranks that called different things: alike on all ranks of the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Disagreement {
    /// The rank that was found to have called something else, and the one that found it.
    pub ranks: [u32; 2],
    /// What they called, in that order.
    pub calls: [Summary; 2],
}

/// Another rank that called something else than this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Difference {
    /// The other rank.
    pub rank: u32,
    /// What it called.
    pub theirs: Summary,
    /// What this rank called.
    pub own: Summary,
}

/// One rank's comparing, one operation after another.
///
/// Signals may come before the own operation is posted. The first summary among them is kept, and the first that
/// differs from it: whatever this rank calls then, a rank that called something else is among those two, if there is
/// one at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Agreement {
    own: Option<Summary>,
    early: [Option<(u32, Summary)>; 2],
    found: Option<Difference>,
}

impl Agreement {
    /// Before the first operation.
    #[must_use]
    pub const fn new() -> Self {
        Self { own: None, early: [None; 2], found: None }
    }

    /// The own operation is posted: compared from now on, and with what came early.
    pub fn post(&mut self, own: Summary) {
        self.own = Some(own);
        for (rank, theirs) in core::mem::take(&mut self.early).into_iter().flatten() {
            self.compare(rank, theirs);
        }
    }

    /// A signal of the operation that is posted has come, or one of the next: of the only one that it can be while none
    /// is.
    pub fn handle(&mut self, from: u32, theirs: Summary, next: bool) {
        if self.own.is_some() && !next {
            self.compare(from, theirs);
            return;
        }
        match &mut self.early {
            [first @ None, _] => *first = Some((from, theirs)),
            [Some((_, first)), other @ None] if *first != theirs => *other = Some((from, theirs)),
            _ => {}
        }
    }

    /// A rank has signalled the barrier of an operation that has none on this rank, which runs over connections of its
    /// own: they have chosen different algorithms, or called different things.
    pub fn refuse(&mut self, rank: u32, theirs: Summary, own: Summary) {
        self.found.get_or_insert(Difference { rank, theirs, own });
    }

    /// The barrier is passed: all have agreed, and signals are of the next operation.
    pub fn advance(&mut self) {
        self.own = None;
    }

    /// The first rank that was found to have called something else.
    #[must_use]
    pub const fn found(&self) -> Option<Difference> {
        self.found
    }

    fn compare(&mut self, rank: u32, theirs: Summary) {
        if let Some(own) = self.own.filter(|own| *own != theirs && self.found.is_none()) {
            self.found = Some(Difference { rank, theirs, own });
        }
    }
}

impl Default for Agreement {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString as _;

    #[test]
    fn codes_are_what_they_are() {
        for (raw, kind) in [(1, Kind::Broadcast), (2, Kind::Allgather), (3, Kind::Allgatherv)] {
            assert_eq!((kind as u8, Kind::from_raw(raw)), (raw, Ok(kind)));
        }
        assert!((4..=255).chain([0]).all(|raw| Kind::from_raw(raw) == Err(raw)));
        for (code, kind) in (1..).zip(Kind::ALL) {
            assert_eq!((kind as u8, Kind::of_code(code)), (code, Some(kind)));
        }
        assert!((15..=255).chain([0]).all(|code| Kind::of_code(code).is_none()));
        for (raw, algorithm) in (0..).zip(Algorithm::ALL) {
            assert_eq!((algorithm as u8, Algorithm::of_code(raw)), (raw, Some(algorithm)));
        }
        assert!((0..8).all(|raw| Algorithm::from_raw(raw).ok() == Algorithm::of_code(raw)));
        assert!((8..=255).all(|raw| Algorithm::from_raw(raw) == Err(raw)));
        assert!((11..=255).all(|code| Algorithm::of_code(code).is_none()));
    }

    #[test]
    fn both_calls_are_reported_with_what_differs() {
        let text = |ranks, calls| Disagreement { ranks, calls }.to_string();
        let calls = [Summary::broadcast(0, 4096, 4096), Summary::allgather(512, 4096, 1)];
        let both = "rank 0 called allgather of 512 bytes; rank 3 called broadcast of 4096 bytes from root 0";
        assert_eq!(text([3, 0], calls), both);
        assert_eq!(text([0, 3], [calls[1], calls[0]]), both, "whoever has found it");
        let calls = [Summary::allgather(512, 4096, 4), Summary::allgather(512, 2048, 8)];
        assert_eq!(
            text([1, 2], calls),
            "rank 1 called allgather of 512 bytes in chunks of 4096 bytes in 4 chains; rank 2 called allgather of 512 \
             bytes in chunks of 2048 bytes in 8 chains"
        );
        let calls = [Summary::allgather(512, 4096, 4).by(Algorithm::Linear), Summary::allgather(512, 4096, 4)];
        assert_eq!(
            text([1, 2], calls),
            "rank 1 called allgather of 512 bytes by linear; rank 2 called allgather of 512 bytes by multicast"
        );
        let reduces = |root, reduction| Summary::between_pairs(Kind::Reduce, root, 8, reduction, Algorithm::Linear);
        assert_eq!(
            text([0, 1], [reduces(0, 1 << 16 | 5), reduces(2, 3 << 16 | 11)]),
            "rank 0 called reduce of 8 bytes to root 0 by sum on i32; rank 1 called reduce of 8 bytes to root 2 by min \
             on f32"
        );
        let blocks = |bytes| Summary::between_pairs(Kind::Alltoallv, 0, bytes, 0, Algorithm::Linear);
        assert_eq!(
            text([0, 1], [blocks(0), blocks(9)]),
            "rank 0 called alltoallv with a block of 0 bytes between these two; rank 1 called alltoallv with a block \
             of 9 bytes between \
             these two"
        );
    }

    #[test]
    fn digests_distinguish_order_and_length() {
        let digests =
            [digest([1, 2]), digest([2, 1]), digest([1, 2, 0]), digest([]), digest([0]), digest([1 << 40, 2])];
        for (index, one) in digests.iter().enumerate() {
            assert!(digests[..index].iter().all(|other| other != one));
        }
        // Of eight zero bytes, from the published parameters of FNV-1a.
        assert_eq!(digest([0]), (0..8).fold(0xcbf2_9ce4_8422_2325, |hash: u64, _| hash.wrapping_mul(0x100_0000_01b3)));
    }

    proptest! {
        /// Two kept summaries carry as much information as all of them would.
        #[test]
        fn what_came_early_is_compared_all_the_same(
            early in proptest::collection::vec((0u32..20, 0u64..4), 0..12), own in 0u64..4,
            after in proptest::collection::vec((0u32..20, 0u64..4), 0..4),
            next in proptest::collection::vec((0u32..20, 0u64..4), 0..4), then in 0u64..4,
        ) {
            let summary = |amount| Summary::allgather(amount, 4096, 1);
            let mut agreement = Agreement::new();
            early.iter().for_each(|&(from, amount)| agreement.handle(from, summary(amount), false));
            agreement.post(summary(own));
            after.iter().for_each(|&(from, amount)| agreement.handle(from, summary(amount), false));
            let differs = early.iter().chain(&after).any(|&(_, amount)| amount != own);
            prop_assert_eq!(agreement.found().is_some(), differs);
            if let Some(found) = agreement.found() {
                prop_assert!(found.theirs != found.own && found.own == summary(own));
                prop_assert!(early.iter().chain(&after).any(|&(from, amount)| (from, summary(amount)) == (found.rank, found.theirs)));
                return Ok(());
            }
            next.iter().for_each(|&(from, amount)| agreement.handle(from, summary(amount), true));
            prop_assert_eq!(agreement.found(), None, "the next operation is not compared with this one");
            agreement.advance();
            agreement.post(summary(then));
            prop_assert_eq!(agreement.found().is_some(), next.iter().any(|&(_, amount)| amount != then));
        }
    }
}
