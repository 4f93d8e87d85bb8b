//! Work on one receive context: drains its completion queue, hands batches over, consumes the completions of copies, reports progress.

use dpa::abi::{ProgressLine, ReceiveContext, ReceiveReport, ReceiveStatus};
use dpa::hw::{ControlSegment, CqeOpcode, WqeOpcode, WriteWqe};
use dpa::{
    BitmapView, CompletionQueue, Counters, CqeRef, OnlyIf, Outbox, Poll, ReceiveQueue, SendQueue, Window, WindowCell,
    error, fatal, fence,
};

/// A receive context whose turn it is. `UD`: its transport.
pub(crate) struct Receiver<'c, const UD: bool> {
    pub(crate) context: &'c mut ReceiveContext,
    pub(crate) outbox: Outbox,
    pub(crate) window: Window,
    pub(crate) report: WindowCell<ReceiveReport>,
    pub(crate) receive_cq: CompletionQueue,
    pub(crate) receive_queue: ReceiveQueue,
    pub(crate) send_cq: OnlyIf<UD, CompletionQueue>,
    pub(crate) send_queue: OnlyIf<UD, SendQueue>,
    /// All chunks of the operation.
    pub(crate) bitmap: BitmapView,
    /// The chunks that the hot loop may take: those whose bit is clear; none of a receive context that is closed or dead.
    pub(crate) regular: BitmapView,
    /// Completions per segment, a power of two.
    pub(crate) segment: u64,
    /// First eight bytes of the copy entry with index 0 (UD).
    pub(crate) head: u64,
}

impl<'c, const UD: bool> Receiver<'c, UD> {
    /// Opcode of an ordinary completion.
    pub(crate) const OPCODE: CqeOpcode = if UD { CqeOpcode::SendImmediate } else { CqeOpcode::WriteImmediate };

    /// Work on `context` by a thread with this outbox and window.
    #[inline(always)]
    pub(crate) fn attach(context: &'c mut ReceiveContext, outbox: Outbox, window: Window) -> Self {
        let chunks = context.state.armed.chunks;
        let stopped = (context.op.closed | context.op.dead) != 0;
        let bits = |bits| BitmapView::attach(&context.bitmap, bits);
        let (bitmap, regular) = (bits(chunks), bits(if stopped { 0 } else { chunks }));
        let report = window.cell(context.report_host).unwrap_or_else(|_| fatal(error::NO_RESOURCE));
        Self {
            outbox,
            window,
            report,
            receive_cq: CompletionQueue::attach(&context.receive_cq),
            receive_queue: ReceiveQueue::attach(&context.receive_queue),
            send_cq: OnlyIf::new(|| CompletionQueue::attach(&context.send_cq)),
            send_queue: OnlyIf::new(|| SendQueue::attach(&context.send_queue)),
            bitmap,
            regular,
            segment: u64::from(context.batch),
            head: ControlSegment::head(0, WqeOpcode::Write, context.send_queue.number(), WriteWqe::SEGMENTS),
            context,
        }
    }

    /// Consumes completions until none is left (true) or `budget` is reached at a segment's end (false).
    pub(crate) fn drain<const PLACE: u8>(&mut self, budget: u64) -> bool {
        let start = Counters::read();
        let first = self.context.state.consumed;
        let limit = first.saturating_add(budget);
        let (mut consumed, mut irregular) = (first, 0);
        let drained = loop {
            let room = self.segment - (consumed & (self.segment - 1));
            let accepted = self.accept::<PLACE>(consumed, room);
            consumed += accepted;
            if accepted < room {
                self.context.state.consumed = consumed;
                if !self.receive_cq.is_ready(consumed) || !self.irregular() {
                    break true;
                }
                (consumed, irregular) = (consumed + 1, irregular + 1);
                if consumed & (self.segment - 1) != 0 {
                    continue;
                }
            }
            self.flush(consumed);
            if consumed >= limit {
                break false;
            }
        };
        let state = &mut self.context.state;
        state.consumed = consumed;
        // What the hot loop took; `irregular` has counted its own.
        state.remaining = state.remaining.wrapping_sub(consumed - first - irregular);
        let spent = Counters::read().since(start);
        let statistics = &mut state.statistics;
        statistics.loop_cqes += consumed - first;
        statistics.loop_instructions += spent.instructions;
        statistics.loop_cycles += spent.cycles;
        drained
    }

    /// Gives back the completions before number `consumed`, hands their copies to the hardware, tells the senders their credit.
    #[inline(always)]
    fn flush(&mut self, consumed: u64) {
        self.context.state.posted = consumed;
        // Entries are read, and copies written, before anything tells so.
        fence::memory();
        let posted = if UD {
            self.send_queue.set_producer(consumed);
            self.receive_cq.set_consumer(consumed);
            fence::outbox();
            self.outbox.ring_sq(self.send_queue.number(), consumed);
            self.reap()
        } else {
            self.receive_cq.set_consumer(consumed);
            let posted = consumed + self.receive_queue.depth();
            self.receive_queue.set_producer(posted);
            // The credit must not overtake the receives it stands for.
            fence::outbox();
            posted
        };
        // Written back by the fences of the next segment, or of `publish` when there is none: a sender with less than two
        // segments of credit is slow anyway.
        self.report.store_at::<{ core::mem::offset_of!(ReceiveReport, progress.receives_posted) }>(posted);
    }

    /// Consumes completions of copies and posts the receives whose slots they free. Returns how many receives are posted in all. Takes
    /// only what is entirely ordinary, a batch whose entries stay as they are; the first completion that is not goes to
    /// [`Receiver::reap_irregular`].
    #[inline(always)]
    pub(crate) fn reap(&mut self) -> u64 {
        let state = &self.context.state;
        let (first, mut completed, shortened) = (state.send_consumed, state.completed, state.shortened);
        let mut index = first;
        let is_ordinary = loop {
            match self.send_cq.poll(index, CqeOpcode::Requester) {
                Poll::Empty => break true,
                Poll::Other(_) => break false,
                Poll::Plain(entry) => {
                    fence::memory_read();
                    let after = completed + newly_completed(entry, completed);
                    if after & (self.segment - 1) | shortened != 0 {
                        break false;
                    }
                    (completed, index) = (after, index + 1);
                }
            }
        };
        let posted = completed + self.receive_queue.depth();
        if index != first {
            self.post_receives(index, completed, posted);
        }
        if is_ordinary { posted } else { self.reap_irregular() }
    }

    /// [`Receiver::reap`] of completions of any kind.
    #[cold]
    #[inline(never)]
    fn reap_irregular(&mut self) -> u64 {
        while self.send_cq.is_ready(self.context.state.send_consumed) {
            fence::memory_read();
            let index = self.context.state.send_consumed;
            let entry = self.send_cq.entry(index);
            let (op_own, before) = (entry.op_own(), self.context.state.completed);
            if op_own >> 4 == CqeOpcode::Requester as u64 {
                let completed = before + newly_completed(entry, before);
                self.restore_slots(before, completed);
                self.post_receives(index + 1, completed, completed + self.receive_queue.depth());
            } else {
                let syndrome = entry.syndrome();
                self.copy_failed(op_own, syndrome);
                self.post_receives(index + 1, before, before + self.receive_queue.depth());
            }
        }
        self.context.state.completed + self.receive_queue.depth()
    }

    /// Gives back the completions of copies before number `consumed`, and posts the receives before number `posted`, whose slots the first
    /// `completed` copies have freed.
    #[inline(always)]
    fn post_receives(&mut self, consumed: u64, completed: u64, posted: u64) {
        self.context.state.send_consumed = consumed;
        self.context.state.completed = completed;
        // No fence: branches up to here depended on all that was read of the entries given back.
        self.send_cq.set_consumer(consumed);
        self.receive_queue.set_producer(posted);
        fence::outbox();
    }

    /// Hands over what is left of a segment, acts on the host's line if that had to wait, answers, finishes, tells progress.
    /// `sleeps`: before the thread goes to sleep.
    #[inline(never)]
    pub(crate) fn settle(&mut self, sleeps: bool) {
        self.context.op.unsettled = 0;
        self.hand_over();
        if self.context.op.pending != 0 {
            self.process_commands();
        }
        self.answer_report(sleeps);
        if !self.finish_if_complete() {
            self.publish();
        }
    }

    /// Hands over a partial segment, or looks at what became of the last.
    #[inline(always)]
    fn hand_over(&mut self) {
        if self.context.state.posted != self.context.state.consumed {
            if UD && self.context.state.consumed & (self.segment - 1) != 0 {
                // The last copy before going to sleep must be signalled, or nobody would learn of the copies since the last segment.
                self.send_queue.slot(self.context.state.consumed - 1).set_signalled(true);
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

    /// Writes the whole progress line.
    #[inline(never)]
    pub(crate) fn publish(&mut self) {
        let outstanding = self.outstanding();
        let state = &self.context.state;
        let returned = if UD { state.completed } else { state.posted };
        self.report.store_part::<{ core::mem::offset_of!(ReceiveReport, progress) }, ProgressLine>(&ProgressLine {
            sequence: state.armed.sequence,
            receives_posted: returned + self.receive_queue.depth(),
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

/// Copies that a completion tells of, of which `completed` are known to be complete: it names the last, with 16 bits.
#[inline(always)]
fn newly_completed(entry: CqeRef<'_>, completed: u64) -> u64 {
    u64::from(entry.wqe_counter().wrapping_add(1).wrapping_sub(completed as u16))
}
