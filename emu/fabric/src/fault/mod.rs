//! Faults of links: by script, at random by seed, never part of the model of a switch.

mod chance;
mod line;
mod script;

pub(crate) use line::{DropCause, Line};
pub use script::{Direction, Fault, FaultEvent, FaultScript};

use crate::topology::Topology;

/// A bit error rate of 10⁻¹²: about 3.3·10⁻⁸ of frames of 4 KiB are lost on each link.
pub const BIT_ERRORS_1E_12: f64 = 1e-12;
/// A bit error rate of 10⁻¹⁵: about 3.3·10⁻¹¹ of frames of 4 KiB are lost on each link.
pub const BIT_ERRORS_1E_15: f64 = 1e-15;
/// Longest extra delay in picoseconds: 1000 s.
pub const MAX_DELAY_PS: u64 = 1_000_000_000_000_000;
/// Last point in time of a fault that ends, in picoseconds.
pub const MAX_TIME_PS: u64 = 1 << 62;

/// A fault that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// More than certain.
    #[error("a loss of {ppm} parts per million is more than everything: give at most 1000000")]
    Probability {
        /// What was asked for.
        ppm: u32,
    },
    /// Not TOML, or keys and values that are not known.
    #[error("the fault script cannot be read: {message}")]
    Syntax {
        /// Where and why.
        message: String,
    },
    /// No link or no node of the name.
    #[error(
        "fault {index} names {name:?}, which the topology {topology:?} does not have: take one of its links or nodes, \
         such as {example:?}, or \"*\""
    )]
    Unknown {
        /// Position of the fault in the script, from 0.
        index: usize,
        /// The name.
        name: String,
        /// Name of the topology.
        topology: String,
        /// A name it has.
        example: String,
    },
    /// Neither or both of link and node.
    #[error("fault {index} must name either a link or a node")]
    Place {
        /// Position of the fault in the script, from 0.
        index: usize,
    },
    /// An end that is not after the beginning.
    #[error("fault {index} lasts from {at_ps} ps to {until_ps} ps: let it end after it begins")]
    Empty {
        /// Position of the fault in the script, from 0.
        index: usize,
        /// Its beginning.
        at_ps: u64,
        /// Its end.
        until_ps: u64,
    },
    /// A pause without an end.
    #[error(
        "fault {index} pauses a link for ever, so that nothing would ever be sent or dropped: give until_ps, or \
         use \"down\""
    )]
    EndlessPause {
        /// Position of the fault in the script, from 0.
        index: usize,
    },
    /// A number beyond its range.
    #[error("fault {index}: {what} is {value}: give {least} to {most}")]
    OutOfRange {
        /// Position of the fault in the script, from 0.
        index: usize,
        /// What it is.
        what: &'static str,
        /// What was asked for.
        value: String,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A link that comes up but was not down.
    #[error("fault {index} brings {name:?} up at {at_ps} ps, but none of it is down then: take it down before")]
    NotDown {
        /// Position of the fault in the script, from 0.
        index: usize,
        /// Link or node.
        name: String,
        /// When.
        at_ps: u64,
    },
}

/// The faults of each direction of each cable: `[from a to b, from b to a]`.
pub(crate) fn lines(topology: &Topology, script: &FaultScript) -> Result<Vec<[Option<Box<Line>>; 2]>, FaultError> {
    let windows = script.windows(topology)?;
    let cables = topology.cables().len();
    let mut lines: Vec<[Option<Box<Line>>; 2]> = (0..cables).map(|_| [None, None]).collect();
    for (at, window) in windows.into_iter().enumerate() {
        if !window.is_empty() {
            lines[at / 2][at % 2] = Some(Box::new(Line::new(script.seed, at as u64, window)));
        }
    }
    Ok(lines)
}
