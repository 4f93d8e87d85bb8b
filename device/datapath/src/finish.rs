//! Completion and reports.

use dpa::abi::{CompletionFlag, FLAG_MAGIC, OPERATION_REPORTS, ReceiveReport, ReceiveStatus, Statistics};
use dpa::group::Group;
use dpa::{Signals, WindowCell, error, fatal, fence};

use crate::placement::tails;
use crate::receiver::Receiver;

impl<const UD: bool> Receiver<'_, UD> {
    /// Whether all chunks of the operation are there, none of their copies is under way and none failed, and that has
    /// not been reported.
    #[inline(always)]
    pub(crate) fn is_to_finish(&self) -> bool {
        let state = &self.context.state;
        state.remaining == 0 && state.counted == 0 && state.armed.sequence != 0 && self.outstanding() == 0
    }

    /// Finishes the operation. Progress must be published next: status and statistics are in host memory before the
    /// flag says that they are; then [`Receiver::count_in`].
    #[inline(always)]
    pub(crate) fn finish(&mut self) {
        let state = &mut self.context.state;
        state.counted = 1;
        if state.status == ReceiveStatus::Armed as u32 {
            state.status = ReceiveStatus::Complete as u32;
        }
        self.store_statistics();
    }

    /// Counts a worker that has finished in its group: the last one writes the completion flag.
    #[inline(always)]
    pub(crate) fn count_in(&mut self) {
        let sequence = self.context.state.armed.sequence;
        let group = Group::attach(&self.context.group);
        if group.count(sequence as u32, self.context.workers) {
            let flag: WindowCell<CompletionFlag> =
                self.window.cell(self.context.flag_host).unwrap_or_else(|_| fatal(error::NO_RESOURCE));
            // No fence: whether to store depends on the counter, and each worker has written back before it counted
            // itself.
            flag.store_at::<{ core::mem::offset_of!(CompletionFlag, value) }>(FLAG_MAGIC + sequence);
            fence::window_writeback();
            if let Some(progress) = Signals::attach(&self.context.signals) {
                progress.complete(sequence);
            }
        }
    }

    /// Copies to host memory what a report consists of: the words of the bitmap that hold bits of the operation, the
    /// tail bitmap and the statistics. Progress must follow ([`Receiver::publish`]).
    #[inline(never)]
    pub(crate) fn write_report(&mut self, request: u64) {
        if self.context.bitmap_host != 0 {
            let words = self.context.bitmap.count() as usize;
            let all = words + self.context.tails.count() as usize;
            let odd = self.context.state.armed.flags & OPERATION_REPORTS != 0 && self.context.state.reports & 1 == 0;
            let behind = if odd { (all as u64 * 8).next_multiple_of(64) } else { 0 };
            let address = self.context.bitmap_host + behind;
            let copy = self.window.words(address, all).unwrap_or_else(|_| fatal(error::NO_RESOURCE));
            let bitmap = self.bitmap();
            for index in 0..bitmap.bits().div_ceil(64) {
                copy.store(index as usize, bitmap.word(index));
            }
            let tails = tails(self.context);
            for index in 0..tails.bits().div_ceil(64) {
                copy.store(words + index as usize, tails.word(index));
            }
        }
        // Statistics where the host has asked.
        if request != self.context.state.reported {
            self.store_statistics();
        }
        // All is there before its number.
        fence::window_writeback();
        let state = &mut self.context.state;
        state.reported = request;
        state.reports += 1;
        state.reported_at = state.consumed;
        if state.report_at != 0 {
            state.report_at = state.remaining / 4;
        }
    }

    fn store_statistics(&mut self) {
        let report = self.report;
        let state = &mut self.context.state;
        let statistics = &mut state.statistics;
        statistics.cqes = state.consumed;
        statistics.copy_cqes = state.send_consumed;
        statistics.accepted = state.consumed
            - statistics.duplicates
            - statistics.out_of_range
            - statistics.wrong_id
            - statistics.wrong_length
            - statistics.unexpected_opcode
            - (statistics.error_cqes - state.failed_copies);
        report.store_part::<{ core::mem::offset_of!(ReceiveReport, statistics) }, Statistics>(&state.statistics);
    }
}
