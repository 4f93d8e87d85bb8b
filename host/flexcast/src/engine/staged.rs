//! A datapath for tests of what posts and waits: it carries nothing.

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::{Cause, Disagreement};

use super::{Admission, Core, Datapath, Posted, Task};
use crate::error::Result;
use crate::op::outcome::{Done, Failed};
use crate::op::report::{MessageCounts, Report};
use crate::op::stream::Stream;

/// What the clock of [`Staged`] shows, always.
pub(crate) const NOW_PS: u64 = 7;

/// A datapath whose calls end as many of the operations taken on before as the test says.
pub(crate) struct Staged {
    core: Core,
    taken: Vec<Posted<Task>>,
    step: Box<dyn FnMut() -> Result<usize> + Send>,
}

impl Staged {
    /// `step`: called each time that the datapath is moved on; how many operations end, the oldest first.
    pub(crate) fn new(core: Core, step: impl FnMut() -> Result<usize> + Send + 'static) -> Self {
        Self { core, taken: Vec::new(), step: Box::new(step) }
    }
}

impl Datapath for Staged {
    fn core(&self) -> &Core {
        &self.core
    }

    fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    fn now_ps(&self) -> u64 {
        NOW_PS
    }

    fn admission(&self) -> Admission {
        let stream = Stream { subgroup: 0, peer: None };
        Admission { registered: false, collectives: Ok(()), streams: vec![stream], psn_bits: 31, most_chunks: 1 << 20 }
    }

    fn is_free(&self) -> bool {
        self.taken.is_empty()
    }

    fn take_on(&mut self, posted: Posted<Task>) -> Result<(), Box<Failed>> {
        assert_eq!(posted.posted_ps, NOW_PS);
        self.taken.push(posted);
        Ok(())
    }

    fn advance(&mut self) -> Result<bool> {
        let ends = (self.step)()?.min(self.taken.len());
        for Posted { request, send, receive, .. } in self.taken.drain(..ends) {
            self.core.requests.finish(request, Ok(Done { send, receive, report: Report::default() }));
        }
        Ok(ends > 0)
    }

    fn deadline_ps(&self) -> Option<u64> {
        None
    }

    fn fail_here(&mut self, _: Cause) {}

    fn disagreement(&self) -> Option<Disagreement> {
        None
    }

    fn messages(&self) -> MessageCounts {
        MessageCounts::default()
    }

    fn receive_statistics(&self) -> Result<Statistics> {
        Ok(Statistics::default())
    }

    fn send_statistics(&self) -> Result<SendReport> {
        Ok(SendReport::default())
    }
}
