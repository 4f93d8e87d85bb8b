//! Agreement of all ranks on what they have called. Every barrier signal carries the [`Summary`] of its sender's
//! operation, and each rank compares those that it gets with its own.
//!
//! A signal of the barrier is sent only after all signals of earlier rounds have come and agreed. So whoever passes the
//! barrier has heard, directly or through others, that *every* rank agrees: where two ranks differ nobody multicasts
//! anything.

#[cfg(not(target_os = "none"))]
mod names;
#[cfg(not(target_os = "none"))]
pub use names::{DATA_TYPE_NAMES, OPERATOR_NAMES};

/// Which collective operation. Those from [`Kind::Barrier`] on go by messages between pairs of ranks, and firmware has nothing to do with them: it does not know
/// them, so that its code is as short as it can be.
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

/// What carries the data of an operation. Ranks choose it each by itself, by a function of what is alike on all of them.
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
    /// The algorithm of a code in a signal of the barrier; the code itself when it names none, or one that has no barrier anywhere.
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
    /// Bytes of a chunk. Of a reduction, which has no chunks: the code of its operator in the upper 16 bits, that of its elements' type in the lower.
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

    /// An Allgather to which the ranks contribute these numbers of bytes, in the order of ranks; behind them their displacements in the
    /// receive buffer, unless they lie there one behind the other.
    #[must_use]
    pub fn allgatherv(bytes: impl IntoIterator<Item = u64>, chunk_bytes: u32, chains: u32) -> Self {
        let algorithm = Algorithm::Multicast;
        Self { kind: Kind::Allgatherv, root: 0, amount: digest(bytes), chunk_bytes, chains, algorithm }
    }

    /// A collective by messages between pairs of ranks. `reduction`: the code of operator and elements, 0 where nothing is reduced.
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

/// Two ranks that called different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Disagreement {
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
    found: Option<Disagreement>,
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

    /// A rank has signalled the barrier of an operation that has none on this rank, which runs over connections of its own: they have
    /// chosen different algorithms, or called different things.
    pub fn refuse(&mut self, rank: u32, theirs: Summary, own: Summary) {
        self.found.get_or_insert(Disagreement { rank, theirs, own });
    }

    /// The barrier is passed: all have agreed, and signals are of the next operation.
    pub fn advance(&mut self) {
        self.own = None;
    }

    /// The first rank that was found to have called something else.
    #[must_use]
    pub const fn found(&self) -> Option<Disagreement> {
        self.found
    }

    fn compare(&mut self, rank: u32, theirs: Summary) {
        if let Some(own) = self.own.filter(|own| *own != theirs && self.found.is_none()) {
            self.found = Some(Disagreement { rank, theirs, own });
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
        let (theirs, own) = (Summary::broadcast(0, 4096, 4096), Summary::allgather(512, 4096, 1));
        let text = Disagreement { rank: 3, theirs, own }.to_string();
        assert_eq!(text, "rank 3 called broadcast of 4096 bytes from root 0, this rank allgather of 512 bytes");
        let (theirs, own) = (Summary::allgather(512, 4096, 4), Summary::allgather(512, 2048, 8));
        let text = Disagreement { rank: 1, theirs, own }.to_string();
        assert_eq!(
            text,
            "rank 1 called allgather of 512 bytes in chunks of 4096 bytes in 4 chains, this rank allgather of 512 bytes in chunks of \
             2048 bytes in 8 chains"
        );
        let (theirs, own) = (Summary::allgather(512, 4096, 4).by(Algorithm::Linear), Summary::allgather(512, 4096, 4));
        let text = Disagreement { rank: 1, theirs, own }.to_string();
        assert_eq!(
            text,
            "rank 1 called allgather of 512 bytes by linear, this rank allgather of 512 bytes by multicast"
        );
    }

    #[test]
    fn operators_types_and_lengths_are_reported_by_name_and_number() {
        let allreduce = |amount, code| Summary::between_pairs(Kind::Allreduce, 0, amount, code, Algorithm::Ring);
        let (theirs, own) = (allreduce(64, 4 << 16 | 5), allreduce(64, 1 << 16 | 11));
        let text = Disagreement { rank: 1, theirs, own }.to_string();
        assert_eq!(
            text,
            "rank 1 called allreduce of 64 bytes by operator max on type i32, this rank allreduce of 64 bytes by operator \
             sum on type f32"
        );
        let theirs = allreduce(64, 99 << 16);
        assert!(Disagreement { rank: 1, theirs, own }.to_string().contains("by operator 99 on type 0,"));
        let exchange = |amount| Summary::between_pairs(Kind::Alltoallv, 0, amount, 0, Algorithm::Pairwise);
        let text = Disagreement { rank: 1, theirs: exchange(16), own: exchange(0) }.to_string();
        assert_eq!(text, "alltoallv: rank 1 sends 16 bytes to this rank, which expects 0 bytes of it");
    }

    #[test]
    fn digests_tell_order_and_length_apart() {
        let digests =
            [digest([1, 2]), digest([2, 1]), digest([1, 2, 0]), digest([]), digest([0]), digest([1 << 40, 2])];
        for (index, one) in digests.iter().enumerate() {
            assert!(digests[..index].iter().all(|other| other != one));
        }
        // Of eight zero bytes, from the published parameters of FNV-1a.
        assert_eq!(digest([0]), (0..8).fold(0xcbf2_9ce4_8422_2325, |hash: u64, _| hash.wrapping_mul(0x100_0000_01b3)));
    }

    proptest! {
        /// Two kept summaries tell as much as all of them would.
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
