//! Choice of who adds in a sparse AllReduce over RDMA cards.

use std::fmt;

/// What adds up the blocks that a sparse AllReduce sends over RDMA cards. Each rank's part of the array is its own to
/// add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Aggregation {
    /// The ranks' processors.
    #[default]
    Host,
    /// The DPAs of the ranks' cards, which run image `sparse` in addition to what else they run
    /// ([`Endpoint::start_aggregators`](crate::Endpoint::start_aggregators)). They add integers of 32 and 64 bits, with
    /// wraparound, in blocks of a multiple of 128 bytes, and sums of `f32` if
    /// [`Config::sparse_fixed_point`](crate::Config::sparse_fixed_point) says so, as far as the slots of all ranks fit
    /// [`Config::cache_bytes`](crate::Config::cache_bytes). Other operators, elements and blocks are for the processors
    /// all the same: the report of each operation says who has added
    /// ([`Decision::aggregation`](crate::Decision::aggregation)).
    Dpa,
}

impl Aggregation {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Host, Self::Dpa];

    /// Its name in variables and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Dpa => "dpa",
        }
    }
}

impl fmt::Display for Aggregation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
