//! Aggregators that are no ranks, as a worker sees them. They have numbers behind those of the ranks.

use std::net::{SocketAddr, ToSocketAddrs as _};

use flexcast_proto::{Cause, Failure};
use nix::libc;

use super::Engine;
use crate::aggregator::wire::{MOST_AGGREGATORS, Report};
use crate::api::config::{Config, ps};
use crate::error::{Error, Result};
use crate::protocol::driver::Notice;

/// Where aggregators are: each by the first of its addresses.
///
/// # Errors
/// There are too many, or one has no address.
pub(in crate::datapath::udp) fn resolve(names: &[String]) -> Result<Vec<SocketAddr>> {
    if names.len() as u64 > u64::from(MOST_AGGREGATORS) {
        let limit = format!("at most {MOST_AGGREGATORS}");
        return Err(Error::Config { what: "number of aggregators", value: names.len() as u64, limit });
    }
    let refused = |name: &str, reason: String| Error::Argument {
        operation: "aggregators",
        reason: format!("{name:?} {reason}: give host:port of a flexcast-aggregator"),
    };
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
#[derive(Clone, Debug)]
struct Known {
    name: String,
    /// When something has last come from it, or the operation has begun.
    heard_ps: u64,
    /// Whom it waits for, as it says.
    waits_for: Option<u32>,
    /// Why it has failed.
    reason: Option<String>,
}

/// The aggregators of a communicator.
#[derive(Debug, Default)]
pub(super) struct Apart(Vec<Known>);

impl Apart {
    pub(super) fn new(config: &Config) -> Self {
        let known = |name: &String| Known { name: name.clone(), heard_ps: 0, waits_for: None, reason: None };
        Self(config.aggregators.iter().map(known).collect())
    }

    pub(super) const fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// An operation begins.
    pub(super) fn begin(&mut self, now_ps: u64) {
        for known in &mut self.0 {
            (known.heard_ps, known.waits_for, known.reason) = (now_ps, None, None);
        }
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut Known> {
        self.0.get_mut(number as usize)
    }

    /// Something has come from an aggregator.
    pub(super) fn hear(&mut self, number: u32, now_ps: u64) {
        if let Some(known) = self.get_mut(number) {
            known.heard_ps = now_ps;
        }
    }

    /// Whom an aggregator waits for, if it has said so.
    pub(super) fn waits_for(&self, number: u32) -> Option<u32> {
        self.0.get(number as usize)?.waits_for
    }

    /// The error of an operation that has failed because of an aggregator.
    pub(super) fn error(&self, operation: &'static str, number: u16, failure: Failure, own: u32) -> Error {
        let known = self.0.get(usize::from(number));
        let address = known.map_or_else(|| format!("number {number}"), |known| known.name.clone());
        let reason = known.and_then(|known| known.reason.clone());
        let reason = reason.unwrap_or_else(|| match failure.witness == own {
            true => "failed: see its log".to_owned(),
            false => format!("failed, as rank {} says: see whether it runs, and its log", failure.witness),
        });
        Error::Aggregator { operation, address, reason, failure }
    }
}

/// What the system says.
fn text(code: u16) -> String {
    match code {
        0 => "closed".to_owned(),
        crate::datapath::udp::mesh::NONSENSE => "it does not keep to the protocol".to_owned(),
        code => std::io::Error::from_raw_os_error(code.into()).to_string(),
    }
}

impl Engine {
    /// The number of an aggregator among those of the communicator; none of a rank.
    pub(super) const fn aggregator(&self, peer: u32) -> Option<u32> {
        peer.checked_sub(self.place.ranks())
    }

    /// The rank that is waited for, where that is known, of a peer that is.
    pub(super) fn awaited_rank(&self, peer: u32) -> u32 {
        match self.aggregator(peer) {
            None => peer,
            Some(number) => self.apart.waits_for(number).unwrap_or(self.place.rank()),
        }
    }

    /// Whether the operation under way needs aggregators.
    fn uses_apart(&self) -> bool {
        self.exchanging.as_ref().is_some_and(|exchanging| exchanging.state.is_active() && exchanging.is_sparse())
            && self.apart.count() > 0
    }

    /// An operation with aggregators begins: one whose connection has ended meanwhile is connected anew.
    pub(super) fn begin_apart(&mut self) {
        for number in self.mesh.aggregators() {
            self.receive_frames(number);
        }
        self.mesh.renew();
        let now_ps = self.interface.now_ps();
        self.apart.begin(now_ps);
    }

    /// Takes note of what an aggregator says.
    pub(super) fn heed(&mut self, peer: u32, report: Report) {
        let Some(number) = self.aggregator(peer).filter(|_| self.uses_apart()) else { return };
        let (now_ps, witness) = (self.interface.now_ps(), self.place.rank());
        let failed = |culprit, cause| Notice::Failed(Failure { culprit, witness, cause });
        let notice = match report {
            Report::Waiting { rank } => {
                if let Some(known) = self.apart.get_mut(number) {
                    known.waits_for = Some(rank);
                }
                let Some(exchanging) = &self.exchanging else { return };
                // Nothing has moved: it is no progress.
                let since_ps = exchanging.moved_ps;
                let Some(peer) = exchanging.awaited() else { return };
                let awaited = self.awaited_rank(peer);
                return self.conversation.notify(since_ps, Notice::Transferred { awaited });
            }
            Report::Lost { rank } => failed(rank, Cause::Connection(libc::ECONNRESET as u16)),
            Report::Silent { rank } => failed(rank, Cause::Silent(flexcast_proto::WaitedFor::Block)),
            Report::Differs { rank, theirs } => Notice::Disagrees { rank, theirs },
            Report::Refused { reason } => return self.fail_apart(number, format!("refuses this job: {reason}")),
        };
        self.conversation.notify(now_ps, notice);
    }

    /// The connection to a peer has broken.
    pub(super) fn break_connection(&mut self, peer: u32, code: u16) {
        let Some(number) = self.aggregator(peer) else { return self.conversation.broken(peer, code) };
        if !self.uses_apart() {
            return;
        }
        let is_there =
            ![libc::ECONNREFUSED, libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH].contains(&i32::from(code));
        let reason = if is_there {
            format!("has gone in the midst of the operation ({}): see whether it runs, and its log", text(code))
        } else {
            format!(
                "is not reached ({}): see whether flexcast-aggregator runs there, and whether a firewall closes its port",
                text(code)
            )
        };
        self.fail_apart(number, reason);
    }

    fn fail_apart(&mut self, number: u32, reason: String) {
        let Some(known) = self.apart.get_mut(number) else { return };
        known.reason.get_or_insert(reason);
        let (now_ps, own) = (self.interface.now_ps(), self.place.rank());
        let failure = Failure { culprit: own, witness: own, cause: Cause::Aggregator(number as u16) };
        self.conversation.notify(now_ps, Notice::Failed(failure));
    }

    /// When an aggregator that is waited for counts as silent: before this rank would be held to be the culprit.
    pub(super) fn apart_deadline_ps(&self) -> Option<(u64, u32)> {
        let exchanging = self.exchanging.as_ref().filter(|_| self.uses_apart())?;
        let bound_ps = ps(self.config.barrier_timeout) / 4 * 3;
        let owes = |number: &u32| exchanging.waits_for(self.place.ranks() + number);
        let since_ps = |number: u32| self.apart.0[number as usize].heard_ps.max(exchanging.moved_ps);
        let deadlines = (0..self.apart.count()).filter(owes).map(|at| (since_ps(at).saturating_add(bound_ps), at));
        deadlines.min()
    }

    /// Fails the operation if an aggregator has been silent for too long. Returns whether it was.
    pub(super) fn look_at_apart(&mut self, now_ps: u64) -> bool {
        let Some((_, number)) = self.apart_deadline_ps().filter(|(deadline_ps, _)| *deadline_ps <= now_ps) else {
            return false;
        };
        let bound = self.config.barrier_timeout / 4 * 3;
        let reason = format!(
            "has said nothing for {bound:?}: see whether it runs, and whether a firewall closes its port, or allow more time (barrier_timeout)"
        );
        self.fail_apart(number, reason);
        true
    }
}
