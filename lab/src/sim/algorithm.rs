//! Algorithms of a collective: multicast, and those that it is compared with.

use clap::ValueEnum as _;
use flexcast::p2p::algorithm::{Allgather, Allreduce, Alltoall, Broadcast, Operation as Schedule, ReduceScatter};
use serde::{Deserialize, Serialize};

use super::SimError;
use super::params::Operation;

/// Algorithms by their names on the command line. Some names stand for an algorithm of several operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum AlgorithmName {
    /// Broadcast, Allgather: hardware multicast, received and sent by the DPA, and a ring for what is lost.
    Multicast,
    /// Broadcast, Allgather: what the library chooses for the operation.
    Auto,
    /// Allgather, Alltoall, Reduce-Scatter, AllReduce: around the ring, a block at a time.
    Ring,
    /// Allgather: around the ring, blocks in --segments.
    PipelinedRing,
    /// Allgather, Alltoall: directly to every other rank.
    Linear,
    /// Allgather, AllReduce: exchanges between ever larger halves.
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
    /// Alltoall: pairs exchange, with another partner in each round.
    Pairwise,
    /// AllReduce: up a binomial tree and down again, in --segments.
    Tree,
    /// Reduce-Scatter, AllReduce: shares directly to the ranks that sum them, in the order of ranks.
    Exchange,
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
    /// What the library chooses.
    Automatic,
    /// An Allgather over reliable connections.
    Allgather(Allgather),
    /// A Broadcast over reliable connections.
    Broadcast {
        /// Its tree.
        algorithm: Broadcast,
        /// Bytes passed on at a time, at least 1; a scatter-Allgather divides by ranks instead.
        segment_bytes: u64,
    },
    /// An Alltoall over reliable connections.
    Alltoall(Alltoall),
    /// A Reduce-Scatter over reliable connections.
    ReduceScatter(ReduceScatter),
    /// An AllReduce over reliable connections.
    Allreduce(Allreduce),
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

/// The algorithms of an operation.
const fn algorithms(operation: Operation) -> &'static str {
    match operation {
        Operation::Broadcast => "multicast, auto, k-nomial, binomial, heap, in-order, chain or scatter-allgather",
        Operation::Allgather | Operation::Allgatherv => {
            "multicast, auto, ring, pipelined-ring, linear, recursive-doubling or bruck"
        }
        Operation::Alltoall => "pairwise, ring or linear",
        Operation::ReduceScatter => "ring or exchange",
        Operation::Allreduce => "ring, tree, recursive-doubling or exchange",
        Operation::SparseAllreduce => "none: it has aggregators",
    }
}

fn does_not(algorithm: String, operation: Operation) -> SimError {
    SimError::Algorithm { algorithm, operation: operation.name(), fits: algorithms(operation) }
}

impl Algorithm {
    /// The algorithm of a name for an operation; by multicast without a name, where that can be, else the first there
    /// is. Parameters that are not given have their defaults.
    ///
    /// # Errors
    /// [`SimError::Algorithm`] for one that does not do this operation, [`SimError::Parameter`] for a parameter that it
    /// does not have.
    pub fn new(operation: Operation, name: Option<AlgorithmName>, given: Parameters) -> Result<Self, SimError> {
        use AlgorithmName as Name;
        let name = name.unwrap_or(match operation {
            Operation::Broadcast | Operation::Allgather | Operation::Allgatherv => Name::Multicast,
            Operation::Alltoall => Name::Pairwise,
            Operation::ReduceScatter | Operation::Allreduce | Operation::SparseAllreduce => Name::Ring,
        });
        let segments = given.segments.unwrap_or(DEFAULT_SEGMENTS);
        let segment_bytes = given.segment_bytes.unwrap_or(DEFAULT_SEGMENT_BYTES);
        let algorithm = match operation {
            Operation::Broadcast => Self::broadcast(name, given.radix.unwrap_or(DEFAULT_RADIX), segment_bytes),
            Operation::Allgather | Operation::Allgatherv => Self::allgather(name, segments),
            Operation::Alltoall => Self::alltoall(name),
            Operation::ReduceScatter => Self::reduce_scatter(name),
            Operation::Allreduce => Self::allreduce(name, segments),
            Operation::SparseAllreduce => None,
        };
        let Some(algorithm) = algorithm else {
            let name = name.to_possible_value().map(|value| value.get_name().to_owned());
            return Err(does_not(name.unwrap_or_default(), operation));
        };
        let has = algorithm.parameters();
        // The radix of a binomial tree is in its name.
        let has_radix = name == Name::KNomial;
        for (given, fits, what, whose) in [
            (given.segments.is_some(), has.segments.is_some(), "--segments", "pipelined-ring and tree"),
            (given.radix.is_some(), has_radix, "--radix", "k-nomial"),
            (
                given.segment_bytes.is_some(),
                has.segment_bytes.is_some(),
                "--segment",
                "k-nomial, binomial, heap, in-order and chain",
            ),
        ] {
            if given && !fits {
                let reason = format!("{} has none: it is for --algorithm {whose}", algorithm.name());
                return Err(SimError::Parameter { what, reason });
            }
        }
        Ok(algorithm)
    }

    fn broadcast(name: AlgorithmName, radix: u32, segment_bytes: u64) -> Option<Self> {
        use AlgorithmName as Name;
        let algorithm = match name {
            Name::Multicast => return Some(Self::Multicast),
            Name::Auto => return Some(Self::Automatic),
            Name::KNomial => Broadcast::Knomial { radix },
            Name::Binomial => Broadcast::BINOMIAL,
            Name::Heap => Broadcast::Heap,
            Name::InOrder => Broadcast::InOrder,
            Name::Chain => Broadcast::Chain,
            Name::ScatterAllgather => Broadcast::ScatterAllgather,
            _ => return None,
        };
        Some(Self::Broadcast { algorithm, segment_bytes })
    }

    const fn allgather(name: AlgorithmName, segments: u32) -> Option<Self> {
        use AlgorithmName as Name;
        let algorithm = match name {
            Name::Multicast => return Some(Self::Multicast),
            Name::Auto => return Some(Self::Automatic),
            Name::Ring => Allgather::Ring,
            Name::PipelinedRing => Allgather::PipelinedRing { segments },
            Name::Linear => Allgather::Linear,
            Name::RecursiveDoubling => Allgather::RecursiveDoubling,
            Name::Bruck => Allgather::Bruck,
            _ => return None,
        };
        Some(Self::Allgather(algorithm))
    }

    const fn alltoall(name: AlgorithmName) -> Option<Self> {
        match name {
            AlgorithmName::Pairwise => Some(Self::Alltoall(Alltoall::Pairwise)),
            AlgorithmName::Ring => Some(Self::Alltoall(Alltoall::Ring)),
            AlgorithmName::Linear => Some(Self::Alltoall(Alltoall::Linear)),
            _ => None,
        }
    }

    const fn reduce_scatter(name: AlgorithmName) -> Option<Self> {
        match name {
            AlgorithmName::Ring => Some(Self::ReduceScatter(ReduceScatter::Ring)),
            AlgorithmName::Exchange => Some(Self::ReduceScatter(ReduceScatter::Exchange)),
            _ => None,
        }
    }

    const fn allreduce(name: AlgorithmName, segments: u32) -> Option<Self> {
        match name {
            AlgorithmName::Ring => Some(Self::Allreduce(Allreduce::Ring)),
            AlgorithmName::Tree => Some(Self::Allreduce(Allreduce::Tree { segments })),
            AlgorithmName::RecursiveDoubling => Some(Self::Allreduce(Allreduce::RecursiveDoubling)),
            AlgorithmName::Exchange => Some(Self::Allreduce(Allreduce::Exchange)),
            _ => None,
        }
    }

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Multicast => "multicast",
            Self::Automatic => "auto",
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
            Self::Alltoall(Alltoall::Pairwise) => "pairwise",
            Self::Alltoall(Alltoall::Ring)
            | Self::ReduceScatter(ReduceScatter::Ring)
            | Self::Allreduce(Allreduce::Ring) => "ring",
            Self::Alltoall(Alltoall::Linear) => "linear",
            Self::Allreduce(Allreduce::Tree { .. }) => "tree",
            Self::Allreduce(Allreduce::RecursiveDoubling) => "recursive-doubling",
            Self::ReduceScatter(ReduceScatter::Exchange) | Self::Allreduce(Allreduce::Exchange) => "exchange",
        }
    }

    /// Its parameters.
    #[must_use]
    pub const fn parameters(self) -> Parameters {
        let none = Parameters { segments: None, radix: None, segment_bytes: None };
        match self {
            Self::Allgather(Allgather::PipelinedRing { segments }) | Self::Allreduce(Allreduce::Tree { segments }) => {
                Parameters { segments: Some(segments), ..none }
            }
            Self::Multicast
            | Self::Automatic
            | Self::Allgather(_)
            | Self::Broadcast { algorithm: Broadcast::ScatterAllgather, .. }
            | Self::Alltoall(_)
            | Self::ReduceScatter(_)
            | Self::Allreduce(Allreduce::Ring | Allreduce::RecursiveDoubling | Allreduce::Exchange) => none,
            Self::Broadcast { algorithm: Broadcast::Knomial { radix }, segment_bytes } if radix != 2 => {
                Parameters { radix: Some(radix), segment_bytes: Some(segment_bytes), ..none }
            }
            Self::Broadcast { segment_bytes, .. } => Parameters { segment_bytes: Some(segment_bytes), ..none },
        }
    }

    /// Whether a communicator of the library carries it out, with the image on the cards.
    #[must_use]
    pub const fn is_communicator(self) -> bool {
        matches!(self, Self::Multicast | Self::Automatic)
    }

    /// Checks that it does this operation.
    ///
    /// # Errors
    /// [`SimError::Algorithm`] with those that do.
    pub fn check(self, operation: Operation) -> Result<(), SimError> {
        match (self, operation) {
            (Self::Multicast | Self::Automatic | Self::Broadcast { .. }, Operation::Broadcast)
            | (Self::Multicast | Self::Automatic | Self::Allgather(_), Operation::Allgather | Operation::Allgatherv)
            | (Self::Alltoall(_), Operation::Alltoall)
            | (Self::ReduceScatter(_), Operation::ReduceScatter)
            | (Self::Allreduce(_), Operation::Allreduce) => Ok(()),
            _ => Err(does_not(self.name().to_owned(), operation)),
        }
    }

    /// The schedule without multicast, from these bytes at this root; `None` for a communicator's.
    ///
    /// # Errors
    /// [`SimError::Parameter`] for segments of no length, or too many of them.
    pub fn schedule(self, root: u32, bytes: u64, ranks: u32) -> Result<Option<Schedule>, SimError> {
        match self {
            Self::Multicast | Self::Automatic => Ok(None),
            Self::Allgather(algorithm) => Ok(Some(Schedule::Allgather(algorithm))),
            Self::Alltoall(algorithm) => Ok(Some(Schedule::Alltoall(algorithm))),
            Self::ReduceScatter(algorithm) => Ok(Some(Schedule::ReduceScatter(algorithm))),
            Self::Allreduce(algorithm) => Ok(Some(Schedule::Allreduce(algorithm))),
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
    use super::*;

    #[test]
    fn every_name_is_an_algorithm_of_that_name_of_the_operations_that_say_so() {
        for name in AlgorithmName::value_variants() {
            let text = name.to_possible_value().unwrap().get_name().to_owned();
            let mut does = 0;
            for operation in Operation::value_variants() {
                let listed = algorithms(*operation).split([',', ' ']).any(|word| word == text);
                match Algorithm::new(*operation, Some(*name), Parameters::default()) {
                    Ok(algorithm) => {
                        assert!(listed, "{text} does {operation:?}");
                        assert_eq!(algorithm.name(), text);
                        algorithm.check(*operation).unwrap();
                        does += 1;
                    }
                    Err(SimError::Algorithm { algorithm, operation: what, .. }) => {
                        assert!(!listed, "{text} does no {operation:?}");
                        assert_eq!((algorithm, what), (text.clone(), operation.name()));
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            assert!(does > 0, "{text}");
        }
    }

    #[test]
    fn every_operation_has_an_algorithm_without_a_name_and_takes_no_other_operations() {
        let without = Algorithm::new(Operation::SparseAllreduce, None, Parameters::default()).unwrap_err();
        assert!(without.to_string().contains("it has aggregators"), "{without}");
        for operation in Operation::value_variants().iter().filter(|one| **one != Operation::SparseAllreduce) {
            let algorithm = Algorithm::new(*operation, None, Parameters::default()).unwrap();
            let gathers = |operation| matches!(operation, Operation::Allgather | Operation::Allgatherv);
            for other in Operation::value_variants() {
                let same = operation == other || (gathers(*operation) && gathers(*other));
                let fits =
                    same || (algorithm == Algorithm::Multicast && !algorithms(*other).starts_with(['n', 'p', 'r']));
                assert_eq!(algorithm.check(*other).is_ok(), fits, "{algorithm:?} {other:?}");
            }
        }
    }

    #[test]
    fn parameters_are_for_those_that_have_them() {
        use AlgorithmName as Name;
        let new = |operation, name, given| Algorithm::new(operation, Some(name), given);
        let radix = Parameters { radix: Some(3), ..Parameters::default() };
        assert_eq!(
            new(Operation::Broadcast, Name::KNomial, radix).unwrap().parameters(),
            Parameters { radix: Some(3), segment_bytes: Some(DEFAULT_SEGMENT_BYTES), segments: None }
        );
        let segments = Parameters { segments: Some(3), ..Parameters::default() };
        assert_eq!(new(Operation::Allreduce, Name::Tree, segments).unwrap().parameters(), segments);
        let refused = |operation, name, given| new(operation, name, given).unwrap_err().to_string();
        let text = refused(Operation::Allgather, Name::Ring, radix);
        assert!(text.contains("--radix") && text.contains("ring has none") && text.contains("k-nomial"), "{text}");
        let text = refused(Operation::Broadcast, Name::Binomial, radix);
        assert!(text.contains("--radix") && text.contains("binomial has none"), "{text}");
        for (operation, name) in [
            (Operation::Allgather, Name::Multicast),
            (Operation::Allreduce, Name::Ring),
            (Operation::Alltoall, Name::Pairwise),
        ] {
            let text = refused(operation, name, segments);
            assert!(text.contains("--algorithm pipelined-ring and tree"), "{text}");
        }
        let segment = Parameters { segment_bytes: Some(3), ..Parameters::default() };
        assert!(refused(Operation::Broadcast, Name::ScatterAllgather, segment).contains("chain"));
    }
}
