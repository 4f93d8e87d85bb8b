//! Core of every engine: the rank and its settings, operations that wait for their turn, and how operations end.

use std::collections::VecDeque;

use flexcast_proto::{Disagreement, Failure, RankInfo};

use super::{Posted, Requests, Task};
use crate::error::{Error, Result};
use crate::op::config::Config;

/// What a communicator has, whatever carries its operations.
pub(crate) struct Core {
    /// The rank and the number of ranks.
    pub(crate) place: RankInfo,
    /// Number of the communicator, alike on all ranks.
    pub(crate) id: u64,
    pub(crate) config: Config,
    /// Operations that wait for their turn.
    pub(crate) waiting: VecDeque<Posted<Task>>,
    /// How operations have ended.
    pub(crate) requests: Requests,
    /// Why the communicator has failed.
    pub(crate) broken: Option<Failure>,
    /// The next call of `progress` returns it.
    fault: Option<Error>,
}

impl Core {
    pub(crate) fn new(place: RankInfo, id: u64, config: Config) -> Self {
        let requests = Requests::of(&config.aggregators);
        Self { place, id, config, waiting: VecDeque::new(), requests, broken: None, fault: None }
    }

    /// That of an engine around another one, with operations of its own.
    #[cfg(feature = "service")]
    pub(crate) fn around(inner: &Self, config: Config) -> Self {
        let Self { place, id, requests, .. } = inner;
        Self { requests: requests.clone(), ..Self::new(*place, *id, config) }
    }

    /// The next call of `progress` returns this.
    pub(crate) fn set_fault(&mut self, error: Error) {
        self.fault = Some(error);
    }

    /// # Errors
    /// What [`Core::set_fault`] has kept, once.
    pub(crate) fn check_fault(&mut self) -> Result<()> {
        self.fault.take().map_or(Ok(()), Err)
    }

    /// The operation whose turn it is, if none is under way (`is_free`) and nothing has failed.
    pub(crate) fn next(&mut self, is_free: bool) -> Option<Posted<Task>> {
        if is_free && self.broken.is_none() { self.waiting.pop_front() } else { None }
    }

    /// Whether `progress` has something to do at once.
    pub(crate) fn is_due(&self, is_free: bool) -> bool {
        self.fault.is_some() || (is_free && !self.waiting.is_empty())
    }

    /// The communicator fails; `calls`: what this rank and another have called, if that differs.
    pub(crate) fn fail(&mut self, failure: Failure, calls: Option<Disagreement>) {
        self.broken = Some(failure);
        self.requests.break_by(failure, calls.map(|calls| calls.to_string()));
    }

    /// Ends all operations that wait, because of this failure.
    pub(crate) fn refuse_waiting(&mut self, failure: Failure) {
        self.requests.refuse(self.waiting.drain(..), failure);
    }
}

#[cfg(test)]
mod tests {
    use flexcast_proto::{Cause, FailureCode};

    use super::*;
    use crate::op::buffer::Buffer;
    use crate::op::collective::Collective;

    fn posted(request: u64) -> Posted<Task> {
        let receive = Buffer::of_host(0).unwrap();
        Posted { request, plan: Task::Collective(Collective::Barrier), send: None, receive, posted_ps: 0 }
    }

    #[test]
    fn operations_begin_in_their_order_once_none_is_under_way_and_none_after_a_failure() {
        let mut core = Core::new(RankInfo::new(0, 2).unwrap(), 1, Config::default());
        core.waiting.extend([posted(1), posted(2)]);
        assert!(core.next(false).is_none() && !core.is_due(false) && core.is_due(true));
        assert_eq!(core.next(true).map(|posted| posted.request), Some(1));
        let cause = Cause::Connection(FailureCode::ConnectionReset);
        let failure = Failure { failed_rank: 1, detecting_rank: 0, cause };
        core.fail(failure, None);
        assert!(core.next(true).is_none());
        core.refuse_waiting(failure);
        assert!(core.waiting.is_empty());
        let failed = core.requests.take_done(2).expect("it has ended").expect_err("with the failure");
        assert!(failed.to_string().contains("rank 1"), "{failed}");
    }

    #[test]
    fn a_fault_is_returned_once_and_makes_progress_due() {
        let mut core = Core::new(RankInfo::new(0, 1).unwrap(), 1, Config::default());
        assert!(core.check_fault().is_ok() && !core.is_due(true));
        core.set_fault(Error::Argument { operation: "test", reason: "wrong".to_owned() });
        assert!(core.is_due(false));
        assert!(core.check_fault().is_err_and(|error| error.to_string().contains("wrong")));
        assert!(core.check_fault().is_ok());
    }
}
