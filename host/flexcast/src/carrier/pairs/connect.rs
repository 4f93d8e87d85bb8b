//! Making the connections between all pairs of ranks.

use std::sync::Arc;

use flexcast_proto::{Algorithm, RankInfo};
use flexio::{CompletionQueue, ProtectionDomain, Retry};

use super::Pairs;
use super::sparse::{Adders, Fault, Need, PendingSession, RankCard};
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::Config;
use crate::op::selection::Selection;
use crate::p2p::{self, Connections, connect_info_bytes};
use crate::plan::tuner;
use flexcast_rc::linger::Lingering;
use flexcast_sparse as sparse;

/// What connections are made of.
#[derive(Clone, Debug)]
pub(crate) struct Maker {
    pd: ProtectionDomain,
    /// What the card keeps of connections that are given up.
    lingering: Arc<Lingering>,
    pub(super) place: RankInfo,
    config: p2p::Config,
    /// What may be chosen for operations that have connections from the beginning: the new ones carry these, too.
    selection: Selection,
    /// The slowest of all ranks' links.
    link_gbit_per_s: u64,
    /// Who adds what sparse AllReduces send.
    adders: Adders,
}

/// Limits and patience of a communicator's connections.
pub(crate) fn config_of(config: &Config) -> p2p::Config {
    let retry = Retry { timeout_exponent: config.retry_exponent, count: 7 };
    let Config { data_class, control_class, restarts, .. } = *config;
    p2p::Config { retry, restarts, data_class, control_class, ..p2p::Config::default() }
}

/// What a connection that cannot be made is to the user.
pub(crate) fn unconnected(own: u32, error: p2p::Error) -> Error {
    match error {
        p2p::Error::Flexio(error) => Error::Flexio(error),
        p2p::Error::ConnectInfo { rank, reason } => Error::Peer { rank, reason },
        other => Error::Peer { rank: own, reason: format!("cannot connect: {other}") },
    }
}

/// The same of connections for sparse AllReduces.
fn unconnected_session(own: u32, fault: Fault) -> Error {
    match fault {
        Fault::Link(sparse::Error::Flexio(error)) => Error::Flexio(error),
        Fault::Here(error) => error,
        other => {
            let rank = other.failed_rank().unwrap_or(own);
            Error::Peer { rank, reason: format!("cannot connect for a sparse AllReduce: {other}") }
        }
    }
}

impl Maker {
    /// `selection`: what else the connections are to carry.
    pub(crate) fn new(
        (pd, lingering): (&ProtectionDomain, &Arc<Lingering>),
        place: RankInfo,
        config: &Config,
        selection: Selection,
    ) -> Self {
        let (pd, lingering, link_gbit_per_s) = (pd.clone(), Arc::clone(lingering), config.link_gbit_per_s);
        Self { pd, lingering, place, config: config_of(config), selection, link_gbit_per_s, adders: Adders::Ranks }
    }

    pub(super) fn lingering(&self) -> &Lingering {
        &self.lingering
    }

    /// The same with these aggregators of sparse AllReduces.
    pub(crate) fn with_adders(self, adders: Adders) -> Self {
        Self { adders, ..self }
    }

    pub(super) const fn adders(&self) -> &Adders {
        &self.adders
    }

    /// What connections for sparse AllReduces are made of.
    fn rank_card(&self) -> RankCard {
        let p2p::Config { retry, data_class: class, .. } = self.config;
        RankCard {
            pd: self.pd.clone(),
            place: self.place,
            config: sparse::Config { retry, class, ..sparse::Config::default() },
            lingering: Arc::clone(&self.lingering),
        }
    }

    /// Makes queue pairs for a sparse AllReduce, and what others must know of them.
    fn prepare_session(&self, need: Need) -> std::result::Result<(PendingSession, Vec<u8>), Fault> {
        PendingSession::prepare(&self.rank_card(), &self.adders, need)
    }

    pub(super) const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Makes queue pairs for these operations, and what others must know of them.
    pub(crate) fn prepare(
        &self,
        operations: &[p2p::algorithm::Operation],
    ) -> std::result::Result<(p2p::Pending, Vec<u8>), p2p::Error> {
        let connections = Connections::new(self.place, operations, self.config)?;
        let completions = CompletionQueue::new(self.pd.device(), connections.completions())?;
        connections.prepare(&self.pd, &completions)
    }

    /// The same for everything.
    fn prepare_all(&self) -> std::result::Result<(p2p::Pending, Vec<u8>), p2p::Error> {
        let ranks = self.place.ranks();
        let mut operations = tuner::operations(self.selection, ranks);
        operations.extend(tuner::collectives(ranks));
        self.prepare(&operations)
    }

    /// Bytes that a rank sends the others.
    pub(super) fn connect_info_bytes(&self) -> u64 {
        connect_info_bytes(self.place.ranks() - 1)
    }
}

/// Queue pairs that a rank has made, and that wait for the others.
#[derive(Debug)]
pub(crate) enum Pending {
    Group(Box<p2p::Pending>),
    Sparse(PendingSession),
}

/// What was asked for.
fn room(need: Option<&Need>, ranks: u32) -> String {
    let others = ranks - 1;
    need.map_or_else(
        || {
            format!(
                "{} queue pairs, four to each of {others} other ranks: free other communicators of that card, or split \
                 this one",
                4 * others
            )
        },
        |need| need.room(ranks),
    )
}

/// The first rank that has sent nothing, if there is one.
fn without_room(infos: &[&[u8]], need: Option<&Need>) -> Option<Error> {
    let rank = infos.iter().position(|info| info.iter().all(|byte| *byte == 0))?;
    let reason = format!("its card has no room for {}", room(need, infos.len() as u32));
    Some(Error::Peer { rank: rank as u32, reason })
}

impl Pairs {
    /// Whether a collective needs connections that have not been made. A rank alone has all there are.
    pub(super) fn needs_connections(&self, need: Option<&Need>) -> bool {
        let has_them = need.map_or(self.is_complete, |need| self.has_session(need));
        !has_them && self.maker.place.ranks() > 1
    }

    fn has_session(&self, need: &Need) -> bool {
        self.sessions[need.aggregation() as usize].as_ref().is_some_and(|session| session.carries(need))
    }

    /// What connections a collective needs, other than those between all pairs.
    pub(super) fn need(&self, collective: &Collective, algorithm: Algorithm, config: &Config) -> Option<Need> {
        let need = Need::of(collective, self.maker.place.ranks(), config.reproducible, self.maker.adders());
        need.filter(|_| algorithm == Algorithm::Sparse)
    }

    /// Bytes that a rank sends the others of its queue pairs.
    pub(super) fn connect_info_bytes(&self, need: Option<&Need>) -> u64 {
        need.map_or_else(|| self.maker.connect_info_bytes(), |need| need.connect_info_bytes(self.maker.place.ranks()))
    }

    /// Makes queue pairs for all other ranks.
    fn prepare(&self, need: Option<&Need>) -> std::result::Result<(Pending, Vec<u8>), String> {
        match need {
            None => {
                let (pending, info) = self.maker.prepare_all().map_err(|error| error.to_string())?;
                Ok((Pending::Group(Box::new(pending)), info))
            }
            Some(need) => {
                let prepared = self.maker.prepare_session(*need).map_err(|error| error.to_string())?;
                Ok((Pending::Sparse(prepared.0), prepared.1))
            }
        }
    }

    /// Makes queue pairs for all other ranks; a buffer with what they must know of them in its place among what all
    /// send. A rank whose card has no room for them sends nothing: then no rank is connected.
    pub(super) fn offer(&self, need: Option<&Need>) -> Result<(Option<Pending>, Buffer)> {
        let Maker { place, pd, .. } = &self.maker;
        let bytes = self.connect_info_bytes(need);
        let mut buffer = Buffer::registered_with(pd, (bytes * u64::from(place.ranks())) as usize)?;
        match self.prepare(need) {
            Ok((pending, info)) => {
                buffer.write((bytes * u64::from(place.rank())) as usize, &info)?;
                Ok((Some(pending), buffer))
            }
            Err(error) => {
                tracing::warn!(%error, "no connections to all other ranks");
                Ok((None, buffer))
            }
        }
    }

    /// Connects with all ranks, whose queue pairs are in a buffer. The connections that there were before have nothing
    /// under way on any rank.
    ///
    /// # Errors
    /// [`Error::Peer`] names a rank that has no room for them: alike on all ranks. What is wrong with this rank alone
    /// is the second.
    pub(super) fn connect(
        &mut self,
        pending: Option<Pending>,
        infos: &Buffer,
        need: Option<&Need>,
    ) -> std::result::Result<(), Refusal> {
        let Maker { place, link_gbit_per_s, .. } = self.maker;
        let bytes = self.connect_info_bytes(need) as usize;
        let all = infos.to_vec().map_err(Refusal::Here)?;
        let infos: Vec<&[u8]> = all.chunks_exact(bytes.max(1)).collect();
        if let Some(error) = without_room(&infos, need) {
            return Err(Refusal::Everywhere(error));
        }
        match pending {
            None => {}
            Some(Pending::Group(pending)) => {
                let group = pending.with_link_rate(link_gbit_per_s).connect(&infos);
                self.group = Some(group.map_err(|error| Refusal::Here(unconnected(place.rank(), error)))?);
                self.is_complete = true;
            }
            Some(Pending::Sparse(pending)) => {
                let at = pending.aggregation() as usize;
                let session = pending.connect(&infos, self.sessions[at].take());
                let session = session.map_err(|fault| Refusal::Here(unconnected_session(place.rank(), fault)))?;
                self.sessions[at] = Some(session);
            }
        }
        Ok(())
    }

    /// Makes the connections of a rank alone with itself for a sparse AllReduce, unless there are some.
    pub(super) fn connect_session_alone(&mut self, need: &Need) -> Result<()> {
        if self.has_session(need) {
            return Ok(());
        }
        let refused = |fault| unconnected_session(self.maker.place.rank(), fault);
        let (pending, info) = self.maker.prepare_session(*need).map_err(refused)?;
        let before = self.sessions[need.aggregation() as usize].take();
        self.sessions[need.aggregation() as usize] = Some(pending.connect(&[&info], before).map_err(refused)?);
        Ok(())
    }

    /// Makes the group of a rank alone, unless there is one for everything.
    pub(super) fn connect_alone(&mut self) -> Result<()> {
        if self.is_complete {
            return Ok(());
        }
        let own = self.maker.place.rank();
        let (pending, info) = self.maker.prepare_all().map_err(|error| unconnected(own, error))?;
        self.group = Some(pending.connect(&[info]).map_err(|error| unconnected(own, error))?);
        self.is_complete = true;
        Ok(())
    }
}

/// Why there are no connections.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// No rank has them.
    Everywhere(Error),
    /// Others may have.
    Here(Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_without_room_is_named_by_all() {
        let infos: [&[u8]; 4] = [&[0, 1], &[7, 0], &[0, 0], &[0, 0]];
        assert!(without_room(&infos[..2], None).is_none());
        let text = without_room(&infos, None).unwrap().to_string();
        assert!(text.contains("rank 2") && text.contains("12 queue pairs, four to each of 3 other ranks"), "{text}");
    }
}
