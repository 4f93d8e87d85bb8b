//! Names and codes of operations and algorithms, on the host.

use super::{Algorithm, Disagreement, Kind, Summary};

/// Names of the operators of reductions, by their codes from 1 on.
pub const OPERATOR_NAMES: [&str; 12] = [
    "sum",
    "product",
    "min",
    "max",
    "logical-and",
    "logical-or",
    "logical-xor",
    "bit-and",
    "bit-or",
    "bit-xor",
    "minloc",
    "maxloc",
];

/// Names of the element types of reductions, by their codes from 1 on.
pub const DATA_TYPE_NAMES: [&str; 21] = [
    "i8",
    "u8",
    "i16",
    "u16",
    "i32",
    "u32",
    "i64",
    "u64",
    "f16",
    "bf16",
    "f32",
    "f64",
    "c64",
    "c128",
    "bool",
    "byte",
    "float-int",
    "double-int",
    "long-int",
    "two-int",
    "short-int",
];

/// The name of a code, or the code where a peer has sent one that stands for nothing.
struct Named(&'static [&'static str], u32);

impl core::fmt::Display for Named {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self(names, code) = *self;
        match code.checked_sub(1).and_then(|at| names.get(at as usize)) {
            Some(name) => f.write_str(name),
            None => write!(f, "{code}"),
        }
    }
}

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

    /// Whether only the two ranks of a block know its length: the amount of a [`Summary`] says nothing of it.
    #[must_use]
    pub const fn has_private_lengths(self) -> bool {
        matches!(self, Self::Alltoallv | Self::Gatherv | Self::Scatterv)
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
        if !kind.reduces() {
            return Ok(());
        }
        let (operator, data_type) = (Named(&OPERATOR_NAMES, code >> 16), Named(&DATA_TYPE_NAMES, code & 0xffff));
        write!(f, " by operator {operator} on type {data_type}")
    }
}

impl core::fmt::Display for Disagreement {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { rank, theirs, own } = self;
        if theirs.kind == own.kind && own.kind.has_private_lengths() && theirs.amount != own.amount {
            let (name, sent, expected) = (own.kind.name(), theirs.amount, own.amount);
            return write!(
                f,
                "{name}: rank {rank} sends {sent} bytes to this rank, which expects {expected} bytes of it"
            );
        }
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
