//! Reports of the receive contexts: progress, missing chunks, counters.

use std::mem::{offset_of, size_of};

use flexcast_abi::{FLAG_MAGIC, ProgressLine, ReceiveReport, ReceiveStatus, Statistics};
use flexcast_proto::{Pieces, missing};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::Receive;
use crate::error::Result;
use crate::op::config::Derived;
use crate::plan::{Missing, Plan, Seen};

/// Most reads of a report that the next ones overtake: each takes a thread longer than a read takes here.
const REPORT_READS: u32 = 16;

impl Receive {
    fn progress(&self, context: usize, field: usize) -> Result<u64> {
        Ok(self.host.read_u64(self.shared.report(context) + offset_of!(ReceiveReport, progress) + field)?)
    }

    /// A number that grows while chunks come: of completions consumed and receives posted again, as far as the receive
    /// contexts have reported.
    pub(crate) fn progress_count(&self) -> Result<u64> {
        let mut count = 0u64;
        for context in 0..self.contexts.len() {
            let consumed = self.progress(context, offset_of!(ProgressLine, consumed))?;
            let posted = self.progress(context, offset_of!(ProgressLine, receives_posted))?;
            count = count.wrapping_add(consumed).wrapping_add(posted);
        }
        Ok(count)
    }

    /// A receive context that has failed, with its status and detail; `None` while all is well.
    pub(crate) fn failure(&self) -> Result<Option<(u32, ReceiveStatus, u32)>> {
        for context in 0..self.contexts.len() {
            let word = self.progress(context, offset_of!(ProgressLine, status))?;
            let (status, detail) = (word as u32, (word >> 32) as u32);
            if let Ok(status) = ReceiveStatus::from_raw(status)
                && status.is_error()
            {
                return Ok(Some((context as u32, status, detail)));
            }
        }
        Ok(None)
    }

    fn all(&self, field: usize, value: u64) -> Result<bool> {
        for context in 0..self.contexts.len() {
            if self.progress(context, field)? != value {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether all receive contexts have taken the operation over: bitmaps are clear and receives posted.
    pub(crate) fn is_armed(&mut self) -> Result<bool> {
        let is_armed = self.all(offset_of!(ProgressLine, sequence), self.sequence)?;
        if is_armed && self.reporting {
            let of = |context| self.progress(context, offset_of!(ProgressLine, reports));
            self.reported_before = (0..self.contexts.len()).map(of).collect::<Result<_>>()?;
        }
        Ok(is_armed)
    }

    /// Whether all chunks are in the user's buffer.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        Ok(self.host.read_u64(self.shared.flag())? == FLAG_MAGIC + self.sequence)
    }

    /// Whether all receive contexts have answered the last [`Receive::read_flags`] or [`Receive::close`].
    pub(crate) fn has_answered(&self) -> Result<bool> {
        self.all(offset_of!(ProgressLine, reported), self.reports)
    }

    /// Reads bitmap and, behind it, tail bitmap of a receive context, as it has reported them last.
    fn read_bitmap(&self, context: usize, words: &mut Vec<u64>, derived: &Derived) -> Result<()> {
        words.resize((derived.bitmap_words + derived.tail_words) as usize, 0);
        let mut whole = false;
        let before = self.reported_before.get(context).copied().unwrap_or(u64::MAX);
        for _ in 0..REPORT_READS {
            let number = self.progress(context, offset_of!(ProgressLine, reports))?;
            if self.reporting && number <= before {
                break;
            }
            self.host.read(self.shared.bitmap(context, self.reporting && number % 2 == 1), words.as_mut_bytes())?;
            // Only the report after the next one is written over this.
            whole = !self.reporting || self.progress(context, offset_of!(ProgressLine, reports))? == number;
            if whole {
                break;
            }
        }
        for word in words {
            // Where it is not whole, nothing is known to have come.
            *word = if whole { u64::from_le(*word) } else { 0 };
        }
        Ok(())
    }

    /// What the last reports show. `over`: what may still come counts as lost.
    pub(crate) fn seen(&mut self, plan: &Plan, pieces: &Pieces, derived: &Derived, over: bool) -> Result<Seen> {
        let mut seen = Seen::default();
        let mut words = std::mem::take(&mut self.words);
        for index in 0..self.contexts.len() {
            self.read_bitmap(index, &mut words, derived)?;
            let (bits, tails) = words.split_at(derived.bitmap_words as usize);
            let stream = self.contexts[index].stream;
            let space = plan.space(stream, &mut self.table)?;
            for (root, run) in missing::missing(&space, bits, tails) {
                let psns = run.first..run.first + run.count;
                if over || missing::is_overtaken(&space, root, run) {
                    for (root, place) in psns.filter_map(|psn| plan.place(psn, stream, &space)) {
                        seen.lost.add(root, &place);
                    }
                    continue;
                }
                seen.ahead += run.count;
                seen.awaits_root |= space.psns(root).is_none_or(|(first, _)| first == run.first);
                let piece = |psn: u64| {
                    let (root, place) = plan.place(psn, stream, &space)?;
                    plan.piece_at(pieces, root, place.offset)
                };
                if let (Some(first), Some(last)) = (piece(psns.start), piece(psns.end - 1)) {
                    (first..=last).for_each(|piece| _ = seen.ahead_in.insert(piece));
                }
            }
        }
        self.words = words;
        seen.lost.sort();
        Ok(seen)
    }

    /// Whether the receive contexts report on the operation by themselves.
    pub(crate) const fn is_reporting(&self) -> bool {
        self.reporting
    }

    /// A number that grows with each report of the receive contexts.
    pub(crate) fn reports(&self) -> Result<u64> {
        let of = |context| self.progress(context, offset_of!(ProgressLine, reports));
        (0..self.contexts.len()).try_fold(0, |sum, context| Ok(sum + of(context)?))
    }

    /// Chunks that have not come, as far as the receive contexts have reported.
    pub(crate) fn remaining(&self) -> Result<u64> {
        let of = |context| self.progress(context, offset_of!(ProgressLine, remaining));
        (0..self.contexts.len()).try_fold(0, |sum, context| Ok(sum + of(context)?))
    }

    /// Completions that each receive context has consumed since set-up, as far as they have reported.
    pub(crate) fn consumed(&self) -> Result<Vec<u64>> {
        let of = |context| self.progress(context, offset_of!(ProgressLine, consumed));
        (0..self.contexts.len()).map(of).collect()
    }

    /// Whether the chunks of so many completions of each receive context are in the user's buffer: none of their copies
    /// is under way any more.
    pub(crate) fn are_placed(&self, consumed: &[u64]) -> Result<bool> {
        for (context, before) in consumed.iter().enumerate() {
            // In this order: what has been consumed meanwhile may count as under way, never the other way round.
            let now = self.progress(context, offset_of!(ProgressLine, consumed))?;
            let outstanding = self.progress(context, offset_of!(ProgressLine, outstanding))?;
            if now.saturating_sub(outstanding) < *before {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Chunks that are missing, once a close [`Receive::has_answered`]. The own rank's positions count as there.
    pub(crate) fn missing(&mut self, plan: &Plan, derived: &Derived) -> Result<Missing> {
        let mut missing = Missing::default();
        let mut words = std::mem::take(&mut self.words);
        for index in 0..self.contexts.len() {
            self.read_bitmap(index, &mut words, derived)?;
            let (bits, tails) = words.split_at(derived.bitmap_words as usize);
            let context = &self.contexts[index];
            let space = plan.space(context.stream, &mut self.table)?;
            for (_, run) in missing::missing(&space, bits, tails) {
                for psn in run.first..run.first + run.count {
                    if let Some((root, place)) = plan.place(psn, context.stream, &space) {
                        missing.add(root, &place);
                    }
                }
            }
        }
        self.words = words;
        missing.sort();
        Ok(missing)
    }

    /// Chunks of closed or foreign operations that were discarded, as of the receive contexts' last report.
    pub(crate) fn late_chunks(&self) -> Result<u64> {
        Ok(self.statistics()?.wrong_id)
    }

    /// Counters of all receive contexts together, as of their last report.
    pub(crate) fn statistics(&self) -> Result<Statistics> {
        let mut sum = Statistics::default();
        for context in 0..self.contexts.len() {
            let mut bytes = [0; size_of::<Statistics>()];
            self.host.read(self.shared.report(context) + offset_of!(ReceiveReport, statistics), &mut bytes)?;
            let one = Statistics::read_from_bytes(&bytes).unwrap_or_default();
            sum.cqes += one.cqes;
            sum.accepted += one.accepted;
            sum.duplicates += one.duplicates;
            sum.out_of_range += one.out_of_range;
            sum.wrong_id += one.wrong_id;
            sum.wrong_length += one.wrong_length;
            sum.unexpected_opcode += one.unexpected_opcode;
            sum.error_cqes += one.error_cqes;
            sum.activations += one.activations;
            sum.copy_cqes += one.copy_cqes;
            sum.instructions += one.instructions;
            sum.cycles += one.cycles;
            sum.loop_cqes += one.loop_cqes;
            sum.loop_instructions += one.loop_instructions;
            sum.loop_cycles += one.loop_cycles;
            sum.longest_activation_cycles = sum.longest_activation_cycles.max(one.longest_activation_cycles);
        }
        Ok(sum)
    }
}
