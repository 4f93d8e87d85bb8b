//! One activation of a worker.

use dpa::abi::{ProgressLine, Transport, WorkerContext, WorkerReport, WorkerStatus};
use dpa::hw::CqeOpcode;
use dpa::{
    BitmapView, CompletionQueue, Counters, Entity, Next, OnlyIf, Outbox, ReceiveQueue, SendQueue, Thread, Window,
    WindowCell, error, fatal, fence,
};

use crate::hot::place;
use crate::prepare::segment_len;

/// The worker of the running activation. `UD`: transport; `EACH`: doorbells with every completion; `LANE`: one of several of a thread, with
/// all that [`crate::lane`] adds.
pub(crate) struct Worker<'c, const UD: bool, const EACH: bool, const LANE: bool> {
    pub(crate) context: &'c mut WorkerContext,
    pub(crate) outbox: Outbox,
    pub(crate) window: Window,
    pub(crate) report: WindowCell<WorkerReport>,
    pub(crate) receive_cq: CompletionQueue,
    pub(crate) receive_queue: ReceiveQueue,
    pub(crate) send_cq: OnlyIf<UD, CompletionQueue>,
    pub(crate) send_queue: OnlyIf<UD, SendQueue>,
    /// All chunks of the operation.
    pub(crate) bitmap: BitmapView,
    /// The chunks that the hot loop may take: all of full length (lanes: whose bit is clear).
    pub(crate) regular: BitmapView,
    /// Completions per segment, a power of two.
    pub(crate) segment: u64,
}

/// Body of the event handlers.
pub fn receive(context: &mut WorkerContext, transport: Transport) -> Next {
    if context.state.prepared == 0 || context.transport != transport as u32 {
        fatal(error::NOT_PREPARED);
    }
    match (transport, context.batch == 1) {
        (Transport::Uc, false) => uc_batched(context),
        (Transport::Uc, true) => uc_each(context),
        (Transport::Ud, false) => ud_batched(context),
        (Transport::Ud, true) => ud_each(context),
    }
}

// One symbol per loop, so that listings and crash records tell them apart.

#[inline(never)]
fn uc_batched(context: &mut WorkerContext) -> Next {
    activation::<false, false>(context)
}

#[inline(never)]
fn uc_each(context: &mut WorkerContext) -> Next {
    activation::<false, true>(context)
}

#[inline(never)]
fn ud_batched(context: &mut WorkerContext) -> Next {
    activation::<true, false>(context)
}

#[inline(never)]
fn ud_each(context: &mut WorkerContext) -> Next {
    activation::<true, true>(context)
}

#[inline(always)]
fn activation<const UD: bool, const EACH: bool>(context: &mut WorkerContext) -> Next {
    let entered = Counters::read();
    let mut worker = Worker::<UD, EACH, false>::wake(context);
    let next = worker.serve();
    worker.account_activation(entered);
    next
}

/// The bitmap of the armed operation, and the part of it that the hot loop may touch: a short last chunk is not ordinary.
pub(crate) fn bitmaps(context: &WorkerContext) -> (BitmapView, BitmapView) {
    let armed = &context.state.armed;
    let short = u32::from(armed.last_chunk_bytes != armed.chunk_bytes);
    let attach = |bits| BitmapView::attach(&context.bitmap, bits);
    (attach(armed.chunks), attach(armed.chunks.saturating_sub(short)))
}

impl<'c, const UD: bool, const EACH: bool, const LANE: bool> Worker<'c, UD, EACH, LANE> {
    /// Opcode of an ordinary completion.
    pub(crate) const OPCODE: CqeOpcode = if UD { CqeOpcode::SendImmediate } else { CqeOpcode::WriteImmediate };

    // Apart, so that the loops are the same instructions whatever runtime library is compiled into the way to them.
    #[inline(never)]
    pub(crate) fn wake(context: &'c mut WorkerContext) -> Self {
        let thread = Thread::current();
        let window = if context.state.configured == 0 {
            if !Outbox::configure(&thread, context.outbox_id) {
                fatal(error::NO_RESOURCE);
            }
            let window = Window::configure(Entity::Zero, context.window_id, context.window_mkey);
            context.state.configured = 1;
            window.unwrap_or_else(|_| fatal(error::NO_RESOURCE))
        } else {
            Window::configured(Entity::Zero)
        };
        context.state.statistics.activations += 1;
        let views = bitmaps(context);
        Self::attach(context, Outbox::of(&thread), window, views)
    }

    /// The worker of `context` in a thread with this outbox and window.
    #[inline(always)]
    pub(crate) fn attach(
        context: &'c mut WorkerContext,
        outbox: Outbox,
        window: Window,
        (bitmap, regular): (BitmapView, BitmapView),
    ) -> Self {
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
            segment: segment_len(context),
            context,
        }
    }

    /// Drains, arms, looks again; until there is nothing to do or the budget is used up.
    fn serve(&mut self) -> Next {
        self.serve_with(Self::drain::<{ place::LINEAR }>)
    }

    /// [`Worker::serve`] with another loop.
    #[inline(always)]
    pub(crate) fn serve_with(&mut self, drain: impl Fn(&mut Self, u64) -> bool) -> Next {
        let mut budget = u64::from(self.context.budget);
        self.take_operation();
        loop {
            let before = self.context.state.consumed;
            let drained = drain(self, budget);
            budget = budget.saturating_sub(self.context.state.consumed - before);
            if !drained {
                self.publish();
                return Next::Retrigger;
            }
            self.settle();
            self.arm();
            if !self.has_work() {
                return Next::Reschedule;
            }
            // A completion arrived between the last poll and arming. Its event will come too and find nothing; a round costs budget
            // even if it was a copy's completion, so that the activation stays bounded.
            budget = budget.saturating_sub(1);
            if budget == 0 {
                return Next::Retrigger;
            }
        }
    }

    /// Consumes completions until none is left (true) or `budget` is reached at a segment's end (false).
    pub(crate) fn drain<const PLACE: u8>(&mut self, budget: u64) -> bool {
        let start = Counters::read();
        let first = self.context.state.consumed;
        let drained = loop {
            let consumed = self.context.state.consumed;
            let room = self.segment - (consumed & (self.segment - 1));
            let accepted =
                if UD && EACH { self.accept_apart(consumed, room) } else { self.accept::<PLACE>(consumed, room) };
            self.advance(accepted);
            if accepted < room {
                if !self.irregular() {
                    break true;
                }
                if self.context.state.consumed & (self.segment - 1) != 0 {
                    continue;
                }
            }
            self.flush();
            if self.context.state.consumed - first >= budget {
                break false;
            }
        };
        let spent = Counters::read().since(start);
        let statistics = &mut self.context.state.statistics;
        statistics.loop_cqes += self.context.state.consumed - first;
        statistics.loop_instructions += spent.instructions;
        statistics.loop_cycles += spent.cycles;
        drained
    }

    /// Notes `accepted` chunks that the hot loop took.
    #[inline(always)]
    fn advance(&mut self, accepted: u64) {
        let state = &mut self.context.state;
        state.consumed += accepted;
        state.remaining = state.remaining.wrapping_sub(accepted);
    }

    /// Gives back what was consumed, hands copies to the hardware, tells the senders their credit.
    #[inline(always)]
    fn flush(&mut self) {
        let consumed = self.context.state.consumed;
        self.context.state.posted = consumed;
        // Entries are read, and copies written, before anything tells so.
        fence::memory();
        let posted = if UD {
            self.send_queue.set_producer(consumed);
            self.receive_cq.set_consumer(consumed);
            fence::outbox();
            self.outbox.ring_sq(self.send_queue.number(), consumed);
            self.reap();
            self.context.state.completed + self.receive_queue.depth()
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
        self.report.store_at::<{ core::mem::offset_of!(WorkerReport, progress.receives_posted) }>(posted);
    }

    /// Consumes completions of copies and posts the receives whose slots they free. Returns whether there were any.
    #[inline(always)]
    pub(crate) fn reap(&mut self) -> bool {
        let first = self.context.state.send_consumed;
        while self.send_cq.is_ready(self.context.state.send_consumed) {
            fence::memory_read();
            let entry = self.send_cq.entry(self.context.state.send_consumed);
            self.context.state.send_consumed += 1;
            if entry.op_own() >> 4 != CqeOpcode::Requester as u64 {
                self.copy_failed(entry.op_own(), entry.syndrome());
                continue;
            }
            let completed = self.context.state.completed;
            let newly = u64::from(entry.wqe_counter().wrapping_add(1).wrapping_sub(completed as u16));
            let completed = completed + newly;
            self.context.state.completed = completed;
            if LANE && self.context.state.shortened != 0 {
                self.restore_lengths(completed - newly, completed);
            }
            if completed & (self.segment - 1) != 0 || self.context.state.shortened != 0 {
                self.restore_slots(completed);
            }
        }
        let reaped = self.context.state.send_consumed - first;
        if reaped != 0 {
            self.context.state.statistics.copy_cqes += reaped;
            // No fence: branches up to here depended on all that was read of the entries given back.
            self.send_cq.set_consumer(self.context.state.send_consumed);
            self.receive_queue.set_producer(self.context.state.completed + self.receive_queue.depth());
            fence::outbox();
        }
        reaped != 0
    }

    /// What is to do once the ring is empty: hand over a partial segment, take a new operation, finish, answer the host, tell progress.
    #[inline(never)]
    fn settle(&mut self) {
        self.hand_over();
        self.take_operation();
        self.answer_report();
        if !self.finish_if_complete() {
            self.publish();
        }
    }

    /// Hands over a partial segment, or looks at what became of the last.
    #[inline(always)]
    pub(crate) fn hand_over(&mut self) {
        if self.context.state.posted != self.context.state.consumed {
            if UD && self.context.state.consumed & (self.segment - 1) != 0 {
                // The last copy before going to sleep must be signalled, or nobody would learn of the copies since the last segment.
                self.send_queue.slot(self.context.state.consumed - 1).set_signalled(true);
            }
            self.flush();
        } else if UD {
            self.reap();
        }
    }

    /// Copies that the hardware has not completed.
    pub(crate) fn outstanding(&self) -> u64 {
        if UD { self.context.state.consumed - self.context.state.completed } else { 0 }
    }

    /// Asks to be woken by the next receive, and by the next copy if one is under way. The fence that [`Worker::settle`] ends with
    /// has made the doorbell records visible. None follows: a queue armed at an index that the card has passed fires at once, so
    /// that a completion overlooked in `has_work` costs an activation and no wake-up.
    fn arm(&self) {
        let state = &self.context.state;
        self.outbox.arm_cq(self.receive_cq.number(), state.consumed);
        if UD && self.outstanding() != 0 {
            self.outbox.arm_cq(self.send_cq.number(), state.send_consumed);
        }
    }

    fn has_work(&self) -> bool {
        let state = &self.context.state;
        self.receive_cq.is_ready(state.consumed)
            || (UD && self.outstanding() != 0 && self.send_cq.is_ready(state.send_consumed))
    }

    /// Writes the whole progress line.
    #[inline(never)]
    pub(crate) fn publish(&mut self) {
        let outstanding = self.outstanding();
        let state = &self.context.state;
        let returned = if UD { state.completed } else { state.posted };
        self.report.store_part::<{ core::mem::offset_of!(WorkerReport, progress) }, ProgressLine>(&ProgressLine {
            sequence: state.armed.sequence,
            receives_posted: returned + self.receive_queue.depth(),
            consumed: state.consumed,
            remaining: state.remaining,
            reported: state.reported,
            status: state.status,
            detail: state.detail,
            outstanding,
            activations: state.statistics.activations,
        });
        fence::window_writeback();
    }

    /// Notes a failure; the first one of an operation stays.
    pub(crate) fn fail(&mut self, status: WorkerStatus, detail: u32) {
        let state = &mut self.context.state;
        if !WorkerStatus::from_raw(state.status).is_ok_and(WorkerStatus::is_error) {
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
