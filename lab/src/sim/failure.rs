//! Failures by kind, for tallies: the full messages, which are reported as well, name ranks and numbers.

use flexcast::{Cause, Error, p2p};

/// Kind of a failed operation of the collective library.
#[must_use]
pub const fn kind(error: &Error) -> &'static str {
    match error {
        Error::Failed { failure, .. }
        | Error::Connection { failure, .. }
        | Error::Aggregator { failure, .. }
        | Error::Contribution { failure, .. }
        | Error::Broken { failure, .. } => match failure.cause {
            Cause::Silent(_) => "silent rank",
            Cause::Cancelled => "cancelled",
            Cause::Disagrees => "calls that differ",
            Cause::Device(_) => "worker failed",
            Cause::Connection(_) => "broken connection",
            Cause::Aggregator(_) => "aggregator failed",
            Cause::Contribution => "number beyond the bound",
        },
        Error::Flexio(_) => "refused by the card",
        _ => "refused by the library",
    }
}

/// Kind of a failed collective without multicast.
#[must_use]
pub const fn baseline_kind(error: &p2p::Error) -> &'static str {
    match error {
        p2p::Error::Timeout { .. } => "silent rank",
        p2p::Error::Mismatch { .. } => "calls that differ",
        p2p::Error::Connection { .. } => "broken connection",
        p2p::Error::Flexio(_) => "refused by the card",
        _ => "refused by the library",
    }
}
