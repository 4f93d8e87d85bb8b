//! Communicators made from an exchange, of all ranks or part of them.
//!
//! A rank that fails takes part in the exchanges all the same and sends the reason, so that the others need not wait
//! for it.

use crate::api::communicator::{Communicator, Pending};
use crate::bootstrap::{self, Exchange, Subgroup, accompany};
use crate::carrier::endpoint::Endpoint;
#[cfg(feature = "service")]
use crate::carrier::service;
use crate::error::{Error, Result};
use crate::op::chain_mapping::ChainMapping;
use crate::op::config::{Config, Control};
use crate::op::service_options::ControlReport;

/// First bytes of what a rank sends that has failed; no connection information begins with them.
const FAILED: &[u8] = b"failed: ";
/// Longest reason that is sent.
const REASON_BYTES: usize = 512;

fn refusal(error: &Error) -> Vec<u8> {
    let text = error.to_string();
    [FAILED, &text.as_bytes()[..text.len().min(REASON_BYTES)]].concat()
}

/// The first rank that has failed.
fn failed(all: &[Vec<u8>]) -> Result<()> {
    match (0..).zip(all).find_map(|(rank, sent)| Some((rank, sent.strip_prefix(FAILED)?))) {
        None => Ok(()),
        Some((rank, reason)) => {
            let reason = format!("could not make its part of the communicator: {}", String::from_utf8_lossy(reason));
            Err(Error::Peer { rank, reason })
        }
    }
}

/// Makes the own part and connects it to those of all ranks of the exchange.
pub(crate) fn found(endpoint: &Endpoint, exchange: &mut dyn Exchange, config: Config) -> Result<Communicator> {
    let control = config.control;
    let pending = Pending::new(endpoint, exchange.rank(), exchange.size(), config);
    let own = pending.as_ref().map_or_else(refusal, Pending::connect_info);
    let all = exchange.exchange("flexcast communicator", &own)?;
    let connected = pending.and_then(|pending| {
        failed(&all)?;
        pending.parts(&all)
    });
    // Nobody may send before all are connected.
    let own = connected.as_ref().map_or_else(refusal, |_| Vec::new());
    let all = exchange.exchange("flexcast connected", &own)?;
    let parts = connected?;
    failed(&all)?;
    let (parts, report) = match control {
        #[cfg(feature = "service")]
        Control::Service => service::set_up(parts, exchange)?,
        // Without the feature `ServiceOptions::check` has refused it.
        #[cfg(not(feature = "service"))]
        Control::Service => (parts, ControlReport::of(Control::Host)),
        Control::Host | Control::Device => (parts, ControlReport::of(control)),
    };
    Communicator::of(parts, report)
}

/// Exchanges that a communicator with this control is made with.
const fn exchanges(control: Control) -> u32 {
    match control {
        Control::Host | Control::Device => 2,
        #[cfg(feature = "service")]
        Control::Service => 2 + service::EXCHANGES,
        #[cfg(not(feature = "service"))]
        Control::Service => 2,
    }
}

impl Communicator {
    /// Parts the ranks: those of one colour become a communicator, by ascending key and then by rank. `None` for a rank
    /// without colour. Collective: all ranks call it, with the exchange of this communicator, which need not be idle.
    /// Both live side by side.
    ///
    /// # Errors
    /// [`Error::Argument`] for an exchange of other ranks, and as [`Communicator::create`].
    pub fn split(&self, exchange: &mut dyn Exchange, colour: Option<u32>, key: i64) -> Result<Option<Self>> {
        let (own, theirs) = ((self.rank(), self.size()), (exchange.rank(), exchange.size()));
        if own != theirs {
            let reason = format!(
                "the exchange is that of rank {} of {}, the communicator that of rank {} of {}: give the one it was \
                 made with",
                theirs.0, theirs.1, own.0, own.1
            );
            return Err(Error::Argument { operation: "split", reason });
        }
        let mut exchange = exchange;
        let Some(members) = bootstrap::split(&mut exchange, colour, key)? else {
            // As often as the others exchange.
            for _ in 0..exchanges(self.config().control) {
                accompany(&mut exchange)?;
            }
            return Ok(None);
        };
        let config = self.config().clone();
        // A table of chains may lose chains.
        let chains = if config.chain_mapping == ChainMapping::Contiguous { config.chains } else { 0 };
        let config = Config { chain_mapping: config.chain_mapping.of(&members), chains, ..config };
        let mut subgroup = Subgroup::new(exchange, members)
            .map_err(|error| Error::Argument { operation: "split", reason: error.to_string() })?;
        found(self.endpoint(), &mut subgroup, config).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_failed_is_named_with_its_reason() {
        failed(&[vec![], b"flexcast...".to_vec()]).unwrap();
        let error = Error::Config { what: "slots", value: 3, limit: "a power of two".to_owned() };
        let text = failed(&[vec![], refusal(&error)]).unwrap_err().to_string();
        assert!(text.contains("rank 1 could not") && text.contains("slots is 3"), "{text}");
    }
}
