//! How a collective is carried out: by multicast, or by one of the algorithms that it is compared with.

use flexcast::baseline::algorithm::{Allgather, Broadcast, Operation as Schedule};
use serde::Serialize;

use super::SimError;
use super::params::Operation;

/// Algorithms by their names on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AlgorithmName {
    /// Hardware multicast, received and sent by the DPA, and a ring for what is lost.
    #[default]
    Multicast,
    /// Allgather: around the ring, a block at a time.
    Ring,
    /// Allgather: around the ring, blocks in --segments.
    PipelinedRing,
    /// Allgather: directly to every other rank.
    Linear,
    /// Allgather: exchanges between ever larger halves.
    RecursiveDoubling,
    /// Allgather: log2 rounds for any number of ranks.
    Bruck,
    /// Broadcast: the k-nomial tree of --radix.
    KNomial,
    /// Broadcast: the binomial tree.
    Binomial,
    /// Broadcast: the binary tree in the shape of a heap.
    Heap,
    /// Broadcast: the binary tree of contiguous ranks.
    InOrder,
    /// Broadcast: from rank to rank.
    Chain,
    /// Broadcast: a share to each rank, then around the ring.
    ScatterAllgather,
}

/// Segments of a contribution where nothing else is said.
pub const DEFAULT_SEGMENTS: u32 = 4;
/// Radix likewise.
pub const DEFAULT_RADIX: u32 = 4;
/// Bytes that a tree passes on at a time, likewise.
pub const DEFAULT_SEGMENT_BYTES: u64 = 16 << 10;

/// An algorithm with its parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Hardware multicast.
    #[default]
    Multicast,
    /// An Allgather over reliable connections.
    Allgather(Allgather),
    /// A Broadcast over reliable connections.
    Broadcast {
        /// Its tree.
        algorithm: Broadcast,
        /// Bytes passed on at a time, at least 1; a scatter-Allgather divides by ranks instead.
        segment_bytes: u64,
    },
}

/// Parameters of an algorithm, as a report names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parameters {
    /// Segments of each contribution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<u32>,
    /// Radix of the tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub radix: Option<u32>,
    /// Bytes passed on at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment_bytes: Option<u64>,
}

impl Algorithm {
    /// The algorithm of a name; parameters that are not given have their defaults.
    ///
    /// # Errors
    /// [`SimError::Parameter`] for a parameter that this algorithm does not have.
    pub fn new(name: AlgorithmName, given: Parameters) -> Result<Self, SimError> {
        use AlgorithmName as Name;
        let segment_bytes = given.segment_bytes.unwrap_or(DEFAULT_SEGMENT_BYTES);
        let tree = |algorithm| Self::Broadcast { algorithm, segment_bytes };
        let algorithm = match name {
            Name::Multicast => Self::Multicast,
            Name::Ring => Self::Allgather(Allgather::Ring),
            Name::PipelinedRing => {
                Self::Allgather(Allgather::PipelinedRing { segments: given.segments.unwrap_or(DEFAULT_SEGMENTS) })
            }
            Name::Linear => Self::Allgather(Allgather::Linear),
            Name::RecursiveDoubling => Self::Allgather(Allgather::RecursiveDoubling),
            Name::Bruck => Self::Allgather(Allgather::Bruck),
            Name::KNomial => tree(Broadcast::Knomial { radix: given.radix.unwrap_or(DEFAULT_RADIX) }),
            Name::Binomial => tree(Broadcast::BINOMIAL),
            Name::Heap => tree(Broadcast::Heap),
            Name::InOrder => tree(Broadcast::InOrder),
            Name::Chain => tree(Broadcast::Chain),
            Name::ScatterAllgather => tree(Broadcast::ScatterAllgather),
        };
        let has_segment =
            matches!(algorithm, Self::Broadcast { algorithm, .. } if algorithm != Broadcast::ScatterAllgather);
        for (given, fits, what, whose) in [
            (given.segments.is_some(), name == Name::PipelinedRing, "--segments", "pipelined-ring"),
            (given.radix.is_some(), name == Name::KNomial, "--radix", "k-nomial"),
            (given.segment_bytes.is_some(), has_segment, "--segment", "k-nomial, binomial, heap, in-order and chain"),
        ] {
            if given && !fits {
                let reason = format!("{} has none: it is for --algorithm {whose}", algorithm.name());
                return Err(SimError::Parameter { what, reason });
            }
        }
        Ok(algorithm)
    }

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Multicast => "multicast",
            Self::Allgather(Allgather::Ring) => "ring",
            Self::Allgather(Allgather::PipelinedRing { .. }) => "pipelined-ring",
            Self::Allgather(Allgather::Linear) => "linear",
            Self::Allgather(Allgather::RecursiveDoubling) => "recursive-doubling",
            Self::Allgather(Allgather::Bruck) => "bruck",
            Self::Broadcast { algorithm, .. } => match algorithm {
                Broadcast::Knomial { radix: 2 } => "binomial",
                Broadcast::Knomial { .. } => "k-nomial",
                Broadcast::Heap => "heap",
                Broadcast::InOrder => "in-order",
                Broadcast::Chain => "chain",
                Broadcast::ScatterAllgather => "scatter-allgather",
            },
        }
    }

    /// Its parameters.
    #[must_use]
    pub const fn parameters(self) -> Parameters {
        let none = Parameters { segments: None, radix: None, segment_bytes: None };
        match self {
            Self::Allgather(Allgather::PipelinedRing { segments }) => Parameters { segments: Some(segments), ..none },
            Self::Multicast | Self::Allgather(_) | Self::Broadcast { algorithm: Broadcast::ScatterAllgather, .. } => {
                none
            }
            Self::Broadcast { algorithm: Broadcast::Knomial { radix }, segment_bytes } if radix != 2 => {
                Parameters { radix: Some(radix), segment_bytes: Some(segment_bytes), ..none }
            }
            Self::Broadcast { segment_bytes, .. } => Parameters { segment_bytes: Some(segment_bytes), ..none },
        }
    }

    /// Checks that it does this operation.
    ///
    /// # Errors
    /// [`SimError::Algorithm`] with those that do.
    pub const fn check(self, operation: Operation) -> Result<(), SimError> {
        match (self, operation) {
            (Self::Multicast, _)
            | (Self::Allgather(_), Operation::Allgather | Operation::Allgatherv)
            | (Self::Broadcast { .. }, Operation::Broadcast) => Ok(()),
            (Self::Allgather(_) | Self::Broadcast { .. }, _) => {
                let fits = match operation {
                    Operation::Broadcast => "k-nomial, binomial, heap, in-order, chain and scatter-allgather",
                    Operation::Allgather | Operation::Allgatherv => {
                        "ring, pipelined-ring, linear, recursive-doubling and bruck"
                    }
                };
                Err(SimError::Algorithm { algorithm: self.name(), operation: operation.name(), fits })
            }
        }
    }

    /// The schedule without multicast, from these bytes at this root; `None` for multicast.
    ///
    /// # Errors
    /// [`SimError::Parameter`] for segments of no length, or too many of them.
    pub fn schedule(self, root: u32, bytes: u64, ranks: u32) -> Result<Option<Schedule>, SimError> {
        match self {
            Self::Multicast => Ok(None),
            Self::Allgather(algorithm) => Ok(Some(Schedule::Allgather(algorithm))),
            Self::Broadcast { algorithm, segment_bytes } => {
                let blocks = algorithm
                    .blocks(bytes, segment_bytes, ranks)
                    .map_err(|error| SimError::Parameter { what: "--segment", reason: error.to_string() })?;
                Ok(Some(Schedule::Broadcast { algorithm, root, blocks: blocks.count() }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_name_is_an_algorithm_of_that_name_and_fits_something() {
        for name in AlgorithmName::value_variants() {
            let algorithm = Algorithm::new(*name, Parameters::default()).unwrap();
            assert_eq!(name.to_possible_value().unwrap().get_name(), algorithm.name());
            let fits = [Operation::Broadcast, Operation::Allgather].map(|operation| match algorithm.check(operation) {
                Ok(()) => true,
                Err(SimError::Algorithm { fits, .. }) => {
                    assert!(!fits.contains(algorithm.name()) || algorithm.name() == "ring", "{fits}");
                    false
                }
                Err(other) => panic!("{other}"),
            });
            assert!(fits[0] || fits[1], "{name:?}");
            assert_eq!(fits[0] && fits[1], *name == AlgorithmName::Multicast);
        }
    }

    #[test]
    fn parameters_are_for_those_that_have_them() {
        let radix = Parameters { radix: Some(3), ..Parameters::default() };
        assert_eq!(
            Algorithm::new(AlgorithmName::KNomial, radix).unwrap().parameters(),
            Parameters { radix: Some(3), segment_bytes: Some(DEFAULT_SEGMENT_BYTES), segments: None }
        );
        let refused = |name, given| Algorithm::new(name, given).unwrap_err().to_string();
        let text = refused(AlgorithmName::Ring, radix);
        assert!(text.contains("--radix") && text.contains("ring has none") && text.contains("k-nomial"), "{text}");
        let segments = Parameters { segments: Some(3), ..Parameters::default() };
        assert!(refused(AlgorithmName::Multicast, segments).contains("--algorithm pipelined-ring"));
        let segment = Parameters { segment_bytes: Some(3), ..Parameters::default() };
        assert!(refused(AlgorithmName::ScatterAllgather, segment).contains("chain"));
    }
}
