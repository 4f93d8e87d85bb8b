//! Names and codes of operations and algorithms, on the host.

use super::{Algorithm, Disagreement, Kind, Summary};

impl Kind {
    /// All of them, by their codes.
    pub const ALL: [Self; 14] = [
        Self::Broadcast,
        Self::Allgather,
        Self::Allgatherv,
        Self::Barrier,
        Self::Reduce,
        Self::Allreduce,
        Self::ReduceScatter,
        Self::ReduceScatterv,
        Self::Alltoall,
        Self::Alltoallv,
        Self::Gather,
        Self::Gatherv,
        Self::Scatter,
        Self::Scatterv,
    ];

    /// The kind of a code; none if it names none.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::Allgather => "allgather",
            Self::Allgatherv => "allgatherv",
            Self::Barrier => "barrier",
            Self::Reduce => "reduce",
            Self::Allreduce => "allreduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::ReduceScatterv => "reduce-scatterv",
            Self::Alltoall => "alltoall",
            Self::Alltoallv => "alltoallv",
            Self::Gather => "gather",
            Self::Gatherv => "gatherv",
            Self::Scatter => "scatter",
            Self::Scatterv => "scatterv",
        }
    }

    /// Whether contributions are reduced.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::Reduce | Self::Allreduce | Self::ReduceScatter | Self::ReduceScatterv)
    }

    /// Whether one rank differs from the others.
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Gatherv | Self::Scatter | Self::Scatterv)
    }
}

impl Algorithm {
    /// All of them, by their codes.
    pub const ALL: [Self; 11] = [
        Self::Multicast,
        Self::Eager,
        Self::Ring,
        Self::Linear,
        Self::RecursiveDoubling,
        Self::Bruck,
        Self::Binomial,
        Self::Chain,
        Self::Dissemination,
        Self::Pairwise,
        Self::Sparse,
    ];

    /// The algorithm of a code; none if it names none.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| *algorithm as u8 == code)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Multicast => "multicast",
            Self::Eager => "eager",
            Self::Ring => "pipelined-ring",
            Self::Linear => "linear",
            Self::RecursiveDoubling => "recursive-doubling",
            Self::Bruck => "bruck",
            Self::Binomial => "binomial",
            Self::Chain => "chain",
            Self::Dissemination => "dissemination",
            Self::Pairwise => "pairwise",
            Self::Sparse => "sparse",
        }
    }
}

impl core::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

impl core::fmt::Display for Summary {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { kind, root, amount, .. } = self;
        write!(f, "{}", kind.name())?;
        match kind {
            Kind::Barrier | Kind::Alltoallv | Kind::Gatherv | Kind::Scatterv => {}
            Kind::Allgatherv | Kind::ReduceScatterv => write!(f, " of lengths with digest {amount:#018x}")?,
            _ => write!(f, " of {amount} bytes")?,
        }
        match kind {
            Kind::Broadcast | Kind::Scatter | Kind::Scatterv => write!(f, " from root {root}")?,
            Kind::Reduce | Kind::Gather | Kind::Gatherv => write!(f, " to root {root}")?,
            _ => {}
        }
        let code = self.chunk_bytes;
        if kind.reduces() { write!(f, " by operator {} on type {}", code >> 16, code & 0xffff) } else { Ok(()) }
    }
}

impl core::fmt::Display for Disagreement {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { rank, theirs, own } = self;
        write!(f, "rank {rank} called {theirs}")?;
        let more = [
            ("in chunks of", "bytes", theirs.chunk_bytes, own.chunk_bytes),
            ("in", "chains", theirs.chains, own.chains),
        ];
        let has_chunks = |summary: &Summary| matches!(summary.algorithm, Algorithm::Multicast | Algorithm::Eager);
        let both = has_chunks(theirs) && has_chunks(own);
        let differing = || more.iter().filter(move |(_, _, theirs, own)| both && theirs != own);
        let by = |f: &mut core::fmt::Formatter<'_>, algorithm: Algorithm| {
            if theirs.algorithm == own.algorithm { Ok(()) } else { write!(f, " by {algorithm}") }
        };
        for (before, after, theirs, _) in differing() {
            write!(f, " {before} {theirs} {after}")?;
        }
        by(f, theirs.algorithm)?;
        write!(f, ", this rank {own}")?;
        for (before, after, _, own) in differing() {
            write!(f, " {before} {own} {after}")?;
        }
        by(f, own.algorithm)
    }
}
