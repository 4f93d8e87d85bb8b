//! Operations of blocks that are run for something else: a Barrier, the Allgather by which ranks send one another their
//! queue pairs, and the wait until all are connected.

use flexcast_proto::Summary;

use super::Pairs;
use super::connect::Pending;
use super::sparse::Need;
use crate::engine::Posted;
use crate::engine::operation::Purpose;
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::Config;
use crate::op::decision::Decision;
use crate::op::outcome::Failed;
use crate::plan::{Kind, Plan};

/// What an operation of blocks is run for.
#[derive(Debug)]
pub(crate) struct SetupOperation {
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
    /// It gathers queue pairs for a collective.
    Connect(Box<Connecting>),
    /// It waits until all ranks are connected, for a collective that begins then: what was sent to a rank before would
    /// be lost.
    Synchronize(Box<Posted<Collective>>),
}

/// What is to be done when all ranks have sent their queue pairs.
#[derive(Debug)]
pub(crate) struct Connecting {
    /// The own ones; none if the card has no room for them.
    pub(super) pending: Option<Pending>,
    /// What they are for, other than collectives of all kinds.
    pub(super) need: Option<Need>,
    pub(crate) posted: Posted<Collective>,
}

impl SetupOperation {
    /// Whether it carries nothing.
    pub(crate) const fn is_barrier(&self) -> bool {
        matches!(self.way, Way::Barrier | Way::Synchronize(_))
    }
}

/// None: an operation that is run for itself.
impl Purpose for Option<Box<SetupOperation>> {
    fn name(&self) -> Option<&'static str> {
        self.as_ref().map(|setup| setup.name)
    }

    fn summary(&self) -> Option<Summary> {
        self.as_ref().map(|setup| setup.summary)
    }

    fn refuse(self, failed: Failed) -> Box<Failed> {
        let Posted { send, receive, .. } = match self.map(|setup| setup.way) {
            None | Some(Way::Barrier) => return Box::new(failed),
            Some(Way::Connect(connecting)) => connecting.posted,
            Some(Way::Synchronize(posted)) => *posted,
        };
        Box::new(Failed { send, receive: Some(receive), ..failed })
    }
}

impl Pairs {
    /// An Allgather of so many bytes of each rank.
    fn plan(&self, bytes: u64, config: &Config) -> Plan {
        let place = self.maker.place;
        Plan::new(Kind::Allgather { bytes }, place.rank(), place.ranks(), config.chunk_bytes, config.subgroups)
    }

    /// The operation by which ranks that are connected wait for the others, before a collective begins.
    ///
    /// # Errors
    /// No memory: with the buffers.
    pub(crate) fn synchronization(
        &self,
        posted: Posted<Collective>,
        (name, summary): (&'static str, Summary),
        config: &Config,
    ) -> Result<(Posted, Box<SetupOperation>), Box<Failed>> {
        let receive = match Buffer::registered_with(self.maker.pd(), 0) {
            Ok(receive) => receive,
            Err(error) => return Err(posted.refuse(error)),
        };
        let (request, posted_ps) = (posted.request, posted.posted_ps);
        let plan = self.plan(0, config);
        let setup = SetupOperation { name, summary, way: Way::Synchronize(Box::new(posted)) };
        Ok((Posted { request, plan, send: None, receive, posted_ps }, Box::new(setup)))
    }

    /// The operation of blocks that a collective begins with; the collective itself where it begins at once. Its data
    /// goes by the barrier or by multicast.
    ///
    /// # Errors
    /// No memory: with the buffers.
    pub(crate) fn setup(
        &self,
        posted: Posted<Collective>,
        decision: &Decision,
        config: &Config,
    ) -> Result<(Posted, Box<SetupOperation>), Box<Failed>> {
        let (name, summary) = (posted.plan.kind().name(), posted.plan.summary(decision.algorithm()));
        if posted.plan == Collective::Barrier {
            return Ok((
                posted.map(|_| self.plan(0, config)),
                Box::new(SetupOperation { name, summary, way: Way::Barrier }),
            ));
        }
        let need = self.need(&posted.plan, decision.algorithm(), config);
        let (pending, receive) = match self.offer(need.as_ref()) {
            Ok(offer) => offer,
            Err(error) => return Err(posted.refuse(error)),
        };
        let (request, posted_ps) = (posted.request, posted.posted_ps);
        let plan = self.plan(self.connect_info_bytes(need.as_ref()), config);
        let way = Way::Connect(Box::new(Connecting { pending, need, posted }));
        Ok((Posted { request, plan, send: None, receive, posted_ps }, Box::new(SetupOperation { name, summary, way })))
    }
}
