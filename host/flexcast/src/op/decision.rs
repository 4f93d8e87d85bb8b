//! Decision of an operation: the algorithm that carries it, and why.

use std::time::Duration;

use flexcast_proto::Algorithm;
use flexcast_proto::sparse::FixedPoint;

use crate::op::aggregation::Aggregation;

/// What was chosen for an operation, and why: the times that the cost model expects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub(crate) algorithm: Algorithm,
    /// By the algorithm's code.
    pub(crate) predicted_ps: [Option<u64>; Algorithm::ALL.len()],
    pub(crate) density_ppm: Option<u32>,
    pub(crate) aggregation: Option<Aggregation>,
    pub(crate) fixed_point: Option<FixedPoint>,
    pub(crate) lost_multicast: Option<LostMulticast>,
    pub(crate) by_service: bool,
}

impl Decision {
    /// What carries the data; of an operation by service processes ([`Decision::is_by_service`]) it says nothing.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// What adds up the blocks of a sparse AllReduce over RDMA cards
    /// ([`Config::sparse_aggregation`](crate::Config::sparse_aggregation)); none of another operation.
    #[must_use]
    pub const fn aggregation(&self) -> Option<Aggregation> {
        self.aggregation
    }

    pub(crate) const fn with_aggregation(self, aggregation: Option<Aggregation>) -> Self {
        Self { aggregation, ..self }
    }

    /// The fixed-point numbers of a sum of `f32` that DPAs have added
    /// ([`Config::sparse_fixed_point`](crate::Config::sparse_fixed_point)), with the largest error of a sum
    /// ([`FixedPoint::error`]); none of another operation.
    #[must_use]
    pub const fn fixed_point(&self) -> Option<FixedPoint> {
        self.fixed_point
    }

    pub(crate) const fn with_fixed_point(self, fixed_point: Option<FixedPoint>) -> Self {
        Self { fixed_point, ..self }
    }

    /// Why the operation did not go by multicast, which would have been chosen otherwise: multicast that did not arrive
    /// in operations before, over an Ethernet interface. None if that did not decide.
    #[must_use]
    pub const fn lost_multicast(&self) -> Option<LostMulticast> {
        self.lost_multicast
    }

    /// Whether service processes have carried the operation out ([`Control::Service`](crate::Control::Service)), by
    /// algorithms of their own.
    #[must_use]
    pub const fn is_by_service(&self) -> bool {
        self.by_service
    }

    /// What carries the data, in a word: the algorithm's name, or `service`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        if self.by_service { "service" } else { self.algorithm.name() }
    }

    /// How long the operation was expected to take by an algorithm; none for one that could not be taken.
    #[must_use]
    pub fn predicted(&self, algorithm: Algorithm) -> Option<Duration> {
        self.predicted_ps[algorithm as usize].map(|ps| Duration::from_nanos(ps / 1000))
    }

    /// Of a sparse AllReduce: how many of a million blocks were expected to have a bit that is set on some rank. It is
    /// what the last sparse one of such an array found. None if none was before, and for one in 16, which
    /// searches for zeros whatever was found.
    #[must_use]
    pub const fn density_ppm(&self) -> Option<u32> {
        self.density_ppm
    }
}

impl Decision {
    /// Of an operation that service processes carry out.
    #[cfg(feature = "service")]
    pub(crate) fn by_service() -> Self {
        Self { by_service: true, ..Self::default() }
    }

    /// What a table, or the user, has chosen.
    pub(crate) fn of(algorithm: Algorithm) -> Self {
        Self { algorithm, ..Self::default() }
    }
}

/// Multicast that does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LostMulticast {
    /// The rank whose multicast is lost; the lowest of several.
    pub root: u32,
    /// The rank that has not received it; the lowest of several.
    pub rank: u32,
}
