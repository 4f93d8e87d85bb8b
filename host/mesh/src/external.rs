//! Aggregators that are no ranks, as workers see them: where they are, what they have said, and why an operation fails
//! because of one.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use nix::libc;

use crate::aggregator::MOST_AGGREGATORS;
use crate::error::{Error, Result};
use crate::peer::NONSENSE;

/// Where aggregators are: each by the first of its addresses.
///
/// # Errors
/// [`Error::TooManyAggregators`]; [`Error::AggregatorAddress`] names one that has no address, or none to connect to.
pub fn resolve(names: &[String]) -> Result<Vec<SocketAddr>> {
    if names.len() as u64 > u64::from(MOST_AGGREGATORS) {
        return Err(Error::TooManyAggregators { given: names.len() as u64 });
    }
    let refused = |name: &str, reason: String| Error::AggregatorAddress { name: name.to_owned(), reason };
    let one = |name: &String| {
        let mut addresses =
            name.to_socket_addrs().map_err(|error| refused(name, format!("has no address ({error})")))?;
        let address = addresses.next().ok_or_else(|| refused(name, "has no address".to_owned()))?;
        if address.port() == 0 || address.ip().is_unspecified() {
            return Err(refused(name, "is nowhere to connect to".to_owned()));
        }
        Ok(address)
    };
    names.iter().map(one).collect()
}

/// An aggregator.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// When something has last come from it, or the operation has begun.
    pub received_ps: u64,
    /// Whom it waits for, as it says.
    pub waits_for: Option<u32>,
    /// Why it has failed.
    reason: Option<String>,
}

/// The aggregators of a communicator.
#[derive(Debug, Default)]
pub struct KnownAggregators(Vec<Known>);

impl KnownAggregators {
    /// So many, of which nothing is known.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self(vec![Known::default(); count])
    }

    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// An operation begins.
    pub fn begin(&mut self, now_ps: u64) {
        self.0.fill(Known { received_ps: now_ps, ..Known::default() });
    }

    /// What is known of an aggregator; none if there is no such one.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&Known> {
        self.0.get(number as usize)
    }

    /// The same to be changed.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Known> {
        self.0.get_mut(number as usize)
    }

    /// Something has come from an aggregator.
    pub fn received(&mut self, number: u32, now_ps: u64) {
        if let Some(known) = self.get_mut(number) {
            known.received_ps = now_ps;
        }
    }

    /// Whom an aggregator waits for, if it has said so.
    pub fn waits_for(&self, number: u32) -> Option<u32> {
        self.get(number)?.waits_for
    }

    /// An aggregator has failed. The first reason counts.
    pub fn blame(&mut self, number: u32, reason: String) {
        if let Some(known) = self.get_mut(number) {
            known.reason.get_or_insert(reason);
        }
    }

    /// Whether this rank has found why an aggregator has failed.
    pub fn has_reason(&self, number: u32) -> bool {
        self.get(number).is_some_and(|known| known.reason.is_some())
    }

    /// Why an aggregator has failed, if this rank has found it.
    pub fn take_reason(&mut self, number: u32) -> Option<String> {
        self.get_mut(number)?.reason.take()
    }
}

/// What the system says.
fn text(code: u16) -> String {
    match code {
        0 => "closed".to_owned(),
        NONSENSE => "it does not keep to the protocol".to_owned(),
        code => std::io::Error::from_raw_os_error(code.into()).to_string(),
    }
}

/// What has happened to the connection to an aggregator, by the system's code.
pub fn broken(code: u16) -> String {
    let is_there =
        ![libc::ECONNREFUSED, libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH].contains(&i32::from(code));
    if is_there {
        format!("has gone in the midst of the operation ({}): see whether it runs, and its log", text(code))
    } else {
        format!(
            "is not reached ({}): see whether flexcast-aggregator runs there, and whether a firewall closes its port",
            text(code)
        )
    }
}

/// That an aggregator does not answer.
pub(crate) fn unanswered(what: &str, tries: u32) -> String {
    format!(
        "is not reached ({what}, in {tries} tries): see whether flexcast-aggregator runs there, and whether it has \
         room for one more that connects"
    )
}

/// Of a bound (`barrier_timeout`), how long an aggregator may be silent: it counts as failed before the rank that waits
/// for it would be held to be the failed rank.
pub const fn patience_ps(bound_ps: u64) -> u64 {
    bound_ps / 4 * 3
}

/// What an aggregator has not done within that time.
pub fn silent(bound: Duration) -> String {
    format!(
        "has said nothing for {:?}: see whether it runs, and whether a firewall closes its port, or allow more time \
         (barrier_timeout)",
        bound / 4 * 3
    )
}

/// That an aggregator says that it has lost this rank.
pub fn lost() -> String {
    "does not reach this rank any more: see the link between the two, and the aggregator's log".to_owned()
}

/// Why it serves this job no longer.
pub fn refusal(reason: &str) -> String {
    format!("refuses this job: {reason}")
}
