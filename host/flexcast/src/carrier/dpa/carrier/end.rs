//! End of an operation: what is learned of one that has gone well, and what is waited for after a failure.

use flexcast_proto::Algorithm;

use super::operation::{Operation, Receiving};
use super::{DpaCarrier, DpaOperations};
use crate::engine::carrier::LetGo;
use crate::engine::descriptor::activations_ps;
use crate::error::Result;

impl DpaCarrier {
    /// Whether chunks came after the cutoff of the operation before shows once the workers report again.
    fn notice_late_chunks(&mut self, ops: &mut DpaOperations, cut_off: bool) -> Result<()> {
        let late = self.receive.late_chunks()?;
        if self.late_chunks.is_some_and(|before| late > before) {
            ops.alpha.came_late();
            ops.stall.came_late();
        }
        self.late_chunks = cut_off.then_some(late);
        Ok(())
    }

    /// Whether the card is done with the own sends and the receive contexts of an operation that all ranks are done
    /// with, and all that this rank has sent is with the card.
    pub(super) fn is_done(&self, ops: &DpaOperations) -> Result<bool> {
        let Some(operation) = ops.current.as_ref() else { return Ok(false) };
        // What a scan has shown to be lost may have been read before the receive contexts have closed.
        let Some(sides) = operation.stream.sides.as_ref() else { return Ok(false) };
        if sides.sending.is_under_way() || !sides.receiving.is_over() {
            return Ok(false);
        }
        // What others send of where they want their bytes must not find this rank gone; once the communicator has
        // failed it may never come.
        if operation.algorithm == Algorithm::Multicast
            && ops.core.broken.is_none()
            && !self.receive.are_targets_known(operation.number)?
        {
            return Ok(false);
        }
        // The caller may stay away for long once its operation is over.
        Ok(!self.is_waiting())
    }

    /// What is learned of an operation that has ended well.
    pub(super) fn learn(&mut self, ops: &mut DpaOperations, operation: &mut Operation, now_ps: u64) -> Result<()> {
        match operation.algorithm {
            Algorithm::Multicast => {}
            Algorithm::Eager => return Ok(()),
            _ => {
                self.note_silence(operation, now_ps);
                return Ok(());
            }
        }
        ops.observe(operation, activations_ps(&operation.plan, &ops.core.config), operation.stream.watch);
        let closed = operation.stream.sides.as_ref().is_some_and(|sides| matches!(sides.receiving, Receiving::Closed));
        self.notice_late_chunks(ops, closed)?;
        ops.losses.note(operation.report.recovered_chunks > 0 || operation.report.fetches_served > 0);
        self.ids.release(operation.stream.collective_id, now_ps);
        self.receive.disarm(&mut operation.receive);
        Ok(())
    }

    /// After a failure: whether nothing of the card reaches the buffers any more.
    pub(super) fn let_go(&mut self, ops: &mut DpaOperations) -> Result<LetGo> {
        let Some(operation) = ops.current.as_mut() else { return Ok(LetGo::Yes) };
        if let Some(control) = &mut self.control {
            control.cancel_reads();
        }
        let receives = operation.stream.sides.as_ref().is_some_and(|sides| !sides.receiving.is_over());
        let (sends, crashed) = (operation.stream.is_sending(), operation.stream.crash.is_some());
        if !crashed && sends && self.send.is_free()? && !self.send.is_closing() {
            self.send.close()?;
        }
        // Others must know why this rank goes before they see that it has gone.
        let over = !receives && !sends && !self.copier.is_busy() && self.is_quiet(ops);
        Ok(match (over, crashed) {
            (true, _) => LetGo::Yes,
            // A dead process will not answer. What it has posted may still be sent, and what it has armed be written
            // to: the buffers stay here.
            (false, true) => LetGo::Never,
            (false, false) => LetGo::NotYet,
        })
    }
}
