//! Operations of blocks that are run for something else: a Barrier, and the Allgather by which ranks tell one another their queue pairs.

use flexcast_proto::Summary;

use super::Pairs;
use crate::api::config::Config;
use crate::api::outcome::Failed;
use crate::datapath::Posted;
use crate::p2p;
use crate::plan::direct::Collective;
use crate::plan::{Kind, Plan};
use crate::tuner::Decision;

/// What an operation of blocks is run for.
#[derive(Debug)]
pub(crate) struct Errand {
    /// Name of what the user has called.
    pub(crate) name: &'static str,
    /// What is compared with the other ranks.
    pub(crate) summary: Summary,
    pub(crate) way: Way,
}

#[derive(Debug)]
pub(crate) enum Way {
    /// It is a Barrier.
    Barrier,
    /// It gathers queue pairs for a collective that begins when all are connected.
    Connect(Box<Connecting>),
}

/// What is to be done when all ranks have told their queue pairs.
#[derive(Debug)]
pub(crate) struct Connecting {
    /// The own ones; none if the card has no room for them.
    pub(crate) pending: Option<p2p::Pending>,
    pub(crate) posted: Posted<Collective>,
}

impl Errand {
    /// Whether it is a Barrier.
    pub(crate) const fn is_barrier(&self) -> bool {
        matches!(self.way, Way::Barrier)
    }

    /// Gives the user's buffers back for those of the errand, if these are others.
    pub(crate) fn failed(errand: Option<Box<Self>>, failed: Failed) -> Box<Failed> {
        let Some(Way::Connect(connecting)) = errand.map(|errand| errand.way) else { return Box::new(failed) };
        let Posted { send, receive, .. } = connecting.posted;
        Box::new(Failed { send, receive: Some(receive), ..failed })
    }
}

impl Pairs {
    /// The operation of blocks that a collective begins with; the collective itself where it begins at once. Its data goes by the barrier or by multicast.
    ///
    /// # Errors
    /// No memory: with the buffers.
    pub(crate) fn errand(
        &self,
        posted: Posted<Collective>,
        decision: &Decision,
        config: &Config,
    ) -> Result<(Posted, Box<Errand>), Box<Failed>> {
        let place = self.maker.place;
        let (name, summary) = (posted.plan.kind().name(), posted.plan.summary(decision.algorithm()));
        let plan = |bytes| {
            Plan::new(Kind::Allgather { bytes }, place.rank(), place.ranks(), config.chunk_bytes, config.subgroups)
        };
        if posted.plan == Collective::Barrier {
            return Ok((posted.map(|_| plan(0)), Box::new(Errand { name, summary, way: Way::Barrier })));
        }
        let (pending, receive) = match self.offer() {
            Ok(offer) => offer,
            Err(error) => return Err(posted.refuse(error)),
        };
        let (request, posted_ps) = (posted.request, posted.posted_ps);
        let plan = plan(self.maker.endpoint_bytes());
        let way = Way::Connect(Box::new(Connecting { pending, posted }));
        Ok((Posted { request, plan, send: None, receive, posted_ps }, Box::new(Errand { name, summary, way })))
    }
}
