//! Comparison with other collective libraries: the same operations among the same hosts, in one run.
//!
//! Hosts are network namespaces at one bridge ([`network`]). Each system runs as one process per host ([`child`] bounds
//! them): Open MPI and MPICH by one program in C ([`mpi`]), gloo by one in Python ([`gloo`]), both also with Flexcast
//! beneath them, Flexcast by `flexcast perf` ([`flexcast`]), and IP multicast without any reliability for comparison
//! ([`bound`]). [`run`] starts them in turn and makes [`Row`]s of what they print ([`sample`]); [`output`] and [`page`]
//! show them. All figures are *measured*: wall time of real programs.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;

pub mod bound;
pub mod child;
pub mod counters;
pub mod flexcast;
pub mod gloo;
pub mod mpi;
pub mod network;
pub mod output;
pub mod page;
pub mod run;
pub mod sample;
pub mod spec;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum System {
    /// This library, on its `udp` datapath.
    Flexcast,
    /// Open MPI over TCP.
    OpenMpi,
    /// MPICH over TCP.
    Mpich,
    /// PyTorch's gloo, over TCP.
    Gloo,
    /// An MPI program on Open MPI whose collectives this library carries, by the preloaded object of `adapters/mpi`.
    #[serde(rename = "openmpi-flexcast")]
    #[value(name = "openmpi-flexcast")]
    MpiFlexcast,
    /// The same program, whose collectives call this library's C interface themselves.
    #[serde(rename = "openmpi-direct")]
    #[value(name = "openmpi-direct")]
    MpiDirect,
    /// PyTorch with this library's backend, of `adapters/torch`.
    #[serde(rename = "torch-flexcast")]
    #[value(name = "torch-flexcast")]
    TorchFlexcast,
    /// IP multicast without reliability: what delivering every byte by multicast comes near to at best.
    Bound,
}

impl System {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flexcast => "flexcast",
            Self::OpenMpi => "openmpi",
            Self::Mpich => "mpich",
            Self::Gloo => "gloo",
            Self::MpiFlexcast => "openmpi-flexcast",
            Self::MpiDirect => "openmpi-direct",
            Self::TorchFlexcast => "torch-flexcast",
            Self::Bound => "bound",
        }
    }

    /// Whether it has the operation.
    #[must_use]
    pub const fn has(self, op: Op) -> bool {
        match op {
            Op::Allgather | Op::Bcast => true,
            Op::Allreduce | Op::Alltoall => !matches!(self, Self::Bound),
            Op::SparseAllreduce => matches!(self, Self::Flexcast),
        }
    }
}

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum Op {
    /// Sizes are what each rank contributes.
    Allgather,
    /// Sizes are the whole buffer; ranks take turns as root.
    Bcast,
    /// Sizes are the buffer of each rank; sums of single-precision numbers.
    Allreduce,
    /// The same where most blocks are zero (--zeros), which this library's sparse AllReduce does not send.
    #[serde(rename = "sparse-allreduce")]
    #[value(name = "sparse-allreduce")]
    SparseAllreduce,
    /// Sizes are what each rank sends in all, its own part included.
    Alltoall,
}

impl Op {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allgather => "allgather",
            Self::Bcast => "bcast",
            Self::Allreduce => "allreduce",
            Self::SparseAllreduce => "sparse-allreduce",
            Self::Alltoall => "alltoall",
        }
    }

    /// What a size is of.
    #[must_use]
    pub const fn size_of(self) -> &'static str {
        match self {
            Self::Allgather => "bytes that each rank contributes",
            Self::Bcast => "bytes that the root sends",
            Self::Allreduce | Self::SparseAllreduce => "bytes of each rank's buffer",
            Self::Alltoall => "bytes that each rank sends in all",
        }
    }
}

/// What was measured of one operation of one system.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Whose.
    pub system: System,
    /// Which operation.
    pub op: Op,
    /// Among how many.
    pub ranks: u32,
    /// Its size: [`Op::size_of`].
    pub bytes: u64,
    /// Median over the repetitions of the largest time over the ranks.
    pub median_us: f64,
    /// Their 95th percentile.
    pub p95_us: f64,
    /// Bytes that the hosts sent into the switch, per operation; none where they are not known.
    pub switch_bytes: Option<f64>,
    /// Bytes that crossed ports of the switch, both ways, per operation.
    pub port_bytes: Option<f64>,
    /// Processor time of all ranks' processes, per operation.
    pub cpu_s: Option<f64>,
}

/// A comparison that cannot be made, or not continued.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// An option cannot be what was given.
    #[error("--{option} {given}: {reason}")]
    Option {
        /// Which option.
        option: &'static str,
        /// What was given.
        given: String,
        /// The limit, and what would do.
        reason: String,
    },
    /// A program is not installed.
    #[error("`{program}` is not installed, which {purpose}; {hint}")]
    Missing {
        /// Which.
        program: &'static str,
        /// What it is for.
        purpose: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// Network namespaces may not be made here: the comparison is skipped.
    #[error("network namespaces are not permitted here ({0}); run it as root, in a container with `--privileged`")]
    NotPermitted(String),
    /// A program that sets up the network has failed.
    #[error("{what}: {reason}")]
    Network {
        /// What was to be done.
        what: String,
        /// What the program said.
        reason: String,
    },
    /// A file or folder.
    #[error("`{}` cannot be written: {source}; see whether there is room, or give another --out", path.display())]
    File {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A signal.
    #[error("interrupted; processes and network namespaces are removed")]
    Interrupted,
}
