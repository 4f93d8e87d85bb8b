//! The engine as what carries collectives between pairs of ranks.

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
        &self.pairs
    }

    fn pairs_mut(&mut self) -> &mut Pairs {
        &mut self.pairs
    }

    fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    fn operation(&self) -> u32 {
        self.conversation.participant().operation()
    }

    fn start_direct(&mut self, descriptor: OperationDescriptor, now_ps: u64) {
        self.conversation.start_direct(descriptor, now_ps);
    }

    fn notify(&mut self, now_ps: u64, notice: Notice) {
        self.conversation.notify(now_ps, notice);
    }

    fn carry_out(&mut self, now_ps: u64) -> Result<()> {
        self.do_steps(now_ps)
    }

    fn begin_setup(&mut self, posted: Posted, setup: Box<SetupOperation>, now_ps: u64) -> Result<bool, Box<Failed>> {
        self.begin_blocks(posted, Some(setup), now_ps)
    }

    fn has_room(&self, now_ps: u64) -> bool {
        self.ids.check(now_ps).is_ok()
    }

    fn has_more_to_say(&self) -> bool {
        self.core.broken.is_none() && self.control.is_waiting()
    }

    fn is_heard(&self) -> bool {
        self.control.is_drained()
    }
}
