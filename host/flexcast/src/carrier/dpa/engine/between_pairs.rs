//! The engine as what carries collectives between pairs of ranks: the hosts do, and no worker of the card has a part in
//! them.

use flexcast_proto::OperationDescriptor;

use super::Engine;
use crate::carrier::pairs::{PairEngine, Pairs, SetupOperation};
use crate::engine::Posted;
use crate::engine::notice::Notice;
use crate::error::Result;
use crate::op::outcome::Failed;
use crate::plan::tuner::Conditions;

impl PairEngine for Engine {
    fn pairs(&self) -> &Pairs {
        &self.parts.pairs
    }

    fn pairs_mut(&mut self) -> &mut Pairs {
        &mut self.parts.pairs
    }

    fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    fn operation(&self) -> u32 {
        self.parts.driver.operation()
    }

    fn start_direct(&mut self, descriptor: OperationDescriptor, now_ps: u64) {
        self.parts.driver.start_direct(descriptor, now_ps);
        self.notified = true;
    }

    fn notify(&mut self, now_ps: u64, notice: Notice) {
        self.parts.driver.notify(now_ps, notice);
    }

    fn carry_out(&mut self, now_ps: u64) -> Result<()> {
        self.do_steps(now_ps)
    }

    fn begin_setup(&mut self, posted: Posted, setup: Box<SetupOperation>, now_ps: u64) -> Result<bool, Box<Failed>> {
        self.launch_blocks(posted, Some(setup), now_ps).map(|()| true)
    }

    fn has_room(&self, _: u64) -> bool {
        // It is deferred until there is.
        true
    }

    fn has_more_to_say(&self) -> bool {
        self.core.broken.is_none() && self.parts.driver.is_waiting()
    }

    fn is_heard(&self) -> bool {
        self.parts.driver.is_quiet()
    }
}
