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
        if !kind.reduces() {
            return Ok(());
        }
        let code = self.chunk_bytes;
        let known =
            |names: &'static [&'static str], code: u32| code.checked_sub(1).and_then(|at| names.get(at as usize));
        match (known(&OPERATORS, code >> 16), known(&TYPES, code & 0xffff)) {
            (Some(operator), Some(data_type)) => write!(f, " by {operator} on {data_type}"),
            _ => write!(f, " by operator {} on type {}", code >> 16, code & 0xffff),
        }
    }
}

/// Names of the operators of reductions, by their codes from 1 on.
pub const OPERATORS: [&str; 12] = [
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

/// Names of the types of elements, by their codes from 1 on.
pub const TYPES: [&str; 21] = [
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

impl core::fmt::Display for Disagreement {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { ranks: [failed_rank, detecting_rank], calls: [theirs, own] } = self;
        // By number, so that it reads alike whoever has found it.
        let swapped = failed_rank > detecting_rank;
        let ((first, one), (second, other)) = if swapped {
            ((detecting_rank, own), (failed_rank, theirs))
        } else {
            ((failed_rank, theirs), (detecting_rank, own))
        };
        write!(f, "rank {first} called {one}")?;
        one.write_difference(f, other)?;
        write!(f, "; rank {second} called {other}")?;
        other.write_difference(f, one)
    }
}

impl Summary {
    /// What else differs from another call.
    fn write_difference(&self, f: &mut core::fmt::Formatter<'_>, other: &Self) -> core::fmt::Result {
        let has_chunks = |summary: &Self| matches!(summary.algorithm, Algorithm::Multicast | Algorithm::Eager);
        let Self { kind, amount, chunk_bytes, chains, algorithm, .. } = self;
        if matches!(kind, Kind::Alltoallv | Kind::Gatherv | Kind::Scatterv) && amount != &other.amount {
            write!(f, " with a block of {amount} bytes between these two")?;
        }
        let both = has_chunks(self) && has_chunks(other);
        if both && chunk_bytes != &other.chunk_bytes {
            write!(f, " in chunks of {chunk_bytes} bytes")?;
        }
        if both && chains != &other.chains {
            write!(f, " in {chains} chains")?;
        }
        if algorithm == &other.algorithm { Ok(()) } else { write!(f, " by {algorithm}") }
    }
}
