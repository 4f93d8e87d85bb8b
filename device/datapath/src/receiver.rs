//! Work on one receive context: drains its completion queue, hands batches over, consumes the completions of copies,
//! reports progress.
//!
//! A receive is posted again only after the copy from its slot has completed. If it were posted earlier, the card could
//! overwrite the slot before the copy has read it.

use dpa::abi::{PROGRESS_EVERY, ProgressLine, ReceiveContext, ReceiveReport, ReceiveStatus};
use dpa::hw::CqeOpcode;
use dpa::{
    BitmapView, CompletionQueue, Counters, CqeRef, Outbox, Poll, ReceiveQueue, SendQueue, Window, WindowCell, fence,
};

use crate::hot::place;

/// A receive context whose turn it is. `UD`: its transport.
///
/// Queues and bitmaps are attached where they are used: the context names them, and an attached view that had to wait
/// in memory would cost a store and a load for every word of it.
pub(crate) struct Receiver<'c, const UD: bool> {
    pub(crate) context: &'c mut ReceiveContext,
    pub(crate) outbox: Outbox,
    pub(crate) window: Window,
    pub(crate) report: WindowCell<ReceiveReport>,
}

impl<const UD: bool> Receiver<'_, UD> {
    /// Opcode of an ordinary completion.
    pub(crate) const OPCODE: CqeOpcode = if UD { CqeOpcode::SendImmediate } else { CqeOpcode::WriteImmediate };

    #[inline(always)]
    pub(crate) fn receive_cq(&self) -> CompletionQueue {
        CompletionQueue::attach(&self.context.receive_cq)
    }

    #[inline(always)]
    pub(crate) fn receive_queue(&self) -> ReceiveQueue {
        ReceiveQueue::attach(&self.context.receive_queue)
    }

    /// CQ of the copies (UD).
    #[inline(always)]
    pub(crate) fn send_cq(&self) -> CompletionQueue {
        CompletionQueue::attach(&self.context.send_cq)
    }

    /// The queue of the copies (UD).
    #[inline(always)]
    pub(crate) fn send_queue(&self) -> SendQueue {
        SendQueue::attach(&self.context.send_queue)
    }

    /// All chunks of the operation.
    #[inline(always)]
    pub(crate) fn bitmap(&self) -> BitmapView {
        BitmapView::attach(&self.context.bitmap, self.context.state.armed.chunks)
    }

    /// The chunks that the hot loop may take: those whose bit is clear; none of a receive context that is closed or
    /// dead.
    #[inline(always)]
    pub(crate) fn regular(&self) -> BitmapView {
        let stopped = (self.context.op.closed | self.context.op.dead) != 0;
        if stopped { BitmapView::none() } else { self.bitmap() }
    }

    /// Completions per segment, a power of two.
    #[inline(always)]
    pub(crate) fn segment(&self) -> u64 {
        u64::from(self.context.batch)
    }

    /// Completions that are accepted at a time, a power of two: a segment, or the part of one after which progress is
    /// published.
    #[inline(always)]
    pub(crate) fn stretch(&self) -> u64 {
        self.segment().min(u64::from(PROGRESS_EVERY))
    }

    /// Completions from the begin of its segment to number `index`.
    #[inline(always)]
    pub(crate) fn offset_in_segment(&self, index: u64) -> u64 {
        index & (self.segment() - 1)
    }

    /// Consumes completions until none is left or all expected are there (true), or `budget` is reached at a segment's
    /// end (false).
    pub(crate) fn drain<const PLACE: u8>(&mut self, budget: u64) -> bool {
        let start = Counters::read();
        let first = self.context.state.consumed;
        let limit = first.saturating_add(budget);
        let (mut consumed, mut remaining) = (first, self.context.state.remaining);
        let mut regular = self.regular();
        let stretch = self.stretch();
        loop {
            let before = remaining;
            let in_stretch = stretch - (consumed & (stretch - 1));
            // Behind the last chunk nothing is expected.
            let room = if before == 0 { in_stretch } else { in_stretch.min(before) };
            let accepted = self.accept::<PLACE>(&regular, consumed, room);
            consumed += accepted;
            remaining = remaining.wrapping_sub(accepted);
            if accepted < room {
                if !CompletionQueue::waits(&self.context.receive_cq, consumed) {
                    break;
                }
                // It may have arrived since the hot loop ended: only what that refuses at once is irregular. With a
                // table it is one of another row.
                if accepted != 0 && PLACE != place::ROWS {
                    continue;
                }
                self.context.state.consumed = consumed;
                self.context.state.remaining = remaining;
                if !self.irregular() {
                    break;
                }
                consumed += 1;
                remaining = self.context.state.remaining;
            }
            if self.offset_in_segment(consumed) == 0 {
                self.flush(consumed);
                if UD && self.context.op.dead != 0 {
                    // A copy has failed.
                    regular = BitmapView::none();
                }
            } else if remaining == 0 && before != 0 {
                break;
            } else if consumed & (stretch - 1) == 0 {
                self.publish_within_batch(consumed, remaining);
            }
            if consumed >= limit {
                break;
            }
        }
        let state = &mut self.context.state;
        state.consumed = consumed;
        state.remaining = remaining;
        let spent = Counters::read().since(start);
        let statistics = &mut state.statistics;
        statistics.loop_cqes += consumed - first;
        statistics.loop_instructions += spent.instructions;
        statistics.loop_cycles += spent.cycles;
        consumed < limit
    }

    /// Gives back the completions before number `consumed`, hands their copies to the hardware, announces to the
    /// senders their credit.
    #[inline(always)]
    fn flush(&mut self, consumed: u64) {
        self.context.state.posted = consumed;
        // Entries are read, and copies written, before anything announces it.
        fence::memory();
        let posted = if UD {
            let copies = self.send_queue();
            copies.set_producer(consumed);
            self.receive_cq().set_consumer(consumed);
            fence::outbox();
            self.outbox.ring_sq(copies.number(), consumed);
            self.reap()
        } else {
            self.receive_cq().set_consumer(consumed);
            let queue = self.receive_queue();
            let posted = consumed + queue.depth();
            queue.set_producer(posted);
            // The credit must not overtake the receives it stands for.
            fence::outbox();
            posted
        };
        // Written back by the fences of the next segment, or of `publish` when there is none: a sender with less than
        // two segments of credit is slow anyway.
        self.report.store_at::<{ core::mem::offset_of!(ReceiveReport, progress.receives_posted) }>(posted);
    }

    /// Consumes completions of copies and posts the receives whose slots they free. Returns how many receives are
    /// posted in all. Takes only what is entirely ordinary, a batch whose entries stay as they are; the first
    /// completion that is not goes to [`Receiver::reap_irregular`].
    #[inline(always)]
    pub(crate) fn reap(&mut self) -> u64 {
        let state = &self.context.state;
        let (first, mut completed, shortened) = (state.send_consumed, state.completed, state.shortened);
        let cq = self.send_cq();
        let mut index = first;
        let is_ordinary = loop {
            match cq.poll(index, CqeOpcode::Requester) {
                Poll::Empty => break true,
                Poll::Other(_) => break false,
                Poll::Plain(entry) => {
                    fence::memory_read();
                    let after = completed + newly_completed(entry, completed);
                    if self.offset_in_segment(after) | shortened != 0 {
                        break false;
                    }
                    (completed, index) = (after, index + 1);
                }
            }
        };
        let posted = completed + self.receive_queue().depth();
        if index != first {
            self.post_receives(index, completed, posted);
        }
        if is_ordinary { posted } else { self.reap_irregular() }
    }

    /// [`Receiver::reap`] of completions of any kind.
    #[cold]
    #[inline(never)]
    fn reap_irregular(&mut self) -> u64 {
        let (cq, depth) = (self.send_cq(), self.receive_queue().depth());
        while cq.is_ready(self.context.state.send_consumed) {
            fence::memory_read();
            let index = self.context.state.send_consumed;
            let entry = cq.entry(index);
            let (op_own, before) = (entry.op_own(), self.context.state.completed);
            if op_own >> 4 == CqeOpcode::Requester as u64 {
                let completed = before + newly_completed(entry, before);
                self.restore_slots(before, completed);
                self.post_receives(index + 1, completed, completed + depth);
            } else {
                let syndrome = entry.syndrome();
                self.copy_failed(op_own, syndrome);
                self.post_receives(index + 1, before, before + depth);
            }
        }
        self.context.state.completed + depth
    }

    /// Gives back the completions of copies before number `consumed`, and posts the receives before number `posted`,
    /// whose slots the first `completed` copies have freed.
    #[inline(always)]
    fn post_receives(&mut self, consumed: u64, completed: u64, posted: u64) {
        self.context.state.send_consumed = consumed;
        self.context.state.completed = completed;
        // No fence: branches up to here depended on all that was read of the entries given back.
        self.send_cq().set_consumer(consumed);
        self.receive_queue().set_producer(posted);
        fence::outbox();
    }

    /// Hands over what is left of a segment, acts on the host's line if that had to wait, answers, finishes, reports
    /// progress. `sleeps`: before the thread goes to sleep.
    #[inline(never)]
    pub(crate) fn settle(&mut self, sleeps: bool) {
        self.context.op.unsettled = 0;
        self.hand_over();
        if self.context.op.pending != 0 {
            self.process_commands();
        }
        self.answer_report(sleeps);
        let finishes = self.is_to_finish();
        if finishes {
            self.finish();
        }
        self.publish();
        if finishes {
            self.count_in();
        }
    }

    /// Whether no more than the last two segments of the operation are to come.
    #[inline(always)]
    pub(crate) fn is_near_end(&self) -> bool {
        self.context.state.remaining <= 2 * self.segment()
    }

    /// Hands over a partial segment, or checks what became of the last.
    #[inline(always)]
    fn hand_over(&mut self) {
        if self.context.state.posted != self.context.state.consumed {
            if UD && self.offset_in_segment(self.context.state.consumed) != 0 {
                // The last copy before going to sleep must be signalled, or nobody would learn of the copies since the
                // last segment.
                self.send_queue().slot(self.context.state.consumed - 1).set_signalled(true);
            }
            self.flush(self.context.state.consumed);
        } else if UD {
            self.reap();
        }
    }

    /// Copies that the hardware has not completed.
    pub(crate) fn outstanding(&self) -> u64 {
        if UD { self.context.state.consumed - self.context.state.completed } else { 0 }
    }

    /// Writes the whole progress line, behind what has been stored for the host before.
    #[inline(always)]
    fn publish(&mut self) {
        let outstanding = self.outstanding();
        let state = &self.context.state;
        let returned = if UD { state.completed } else { state.posted };
        self.report.store_part::<{ core::mem::offset_of!(ReceiveReport, progress) }, ProgressLine>(&ProgressLine {
            sequence: state.armed.sequence,
            receives_posted: returned + self.receive_queue().depth(),
            consumed: state.consumed,
            remaining: state.remaining,
            reported: state.reported,
            status: state.status,
            detail: state.detail,
            outstanding,
            reports: state.reports,
        });
        fence::window_writeback();
    }

    /// [`Receiver::publish`] before the context is settled: what is not handed over yet counts as consumed, and its
    /// copies as under way.
    #[cold]
    #[inline(never)]
    fn publish_within_batch(&mut self, consumed: u64, remaining: u64) {
        self.context.state.consumed = consumed;
        self.context.state.remaining = remaining;
        self.publish();
    }

    /// Notes a failure; the first one of an operation stays.
    pub(crate) fn fail(&mut self, status: ReceiveStatus, detail: u32) {
        let state = &mut self.context.state;
        if !ReceiveStatus::from_raw(state.status).is_ok_and(ReceiveStatus::is_error) {
            state.status = status as u32;
            state.detail = detail;
        }
    }

    pub(crate) fn account_activation(&mut self, entered: Counters) {
        let spent = Counters::read().since(entered);
        let statistics = &mut self.context.state.statistics;
        statistics.instructions += spent.instructions;
        statistics.cycles += spent.cycles;
        statistics.longest_activation_cycles = statistics.longest_activation_cycles.max(spent.cycles);
    }
}

/// Copies that a completion covers, of which `completed` are known to be complete: it names the last, with 16 bits.
#[inline(always)]
fn newly_completed(entry: CqeRef<'_>, completed: u64) -> u64 {
    u64::from(entry.wqe_counter().wrapping_add(1).wrapping_sub(completed as u16))
}
