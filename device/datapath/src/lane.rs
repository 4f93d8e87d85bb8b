//! Lanes: one thread serves several receive contexts, driven by a control queue.
//!
//! An activation takes the host's messages first, and again between turns: only they make it look at operations. The lanes take turns, each
//! with at most its own budget, until none has anything left or the thread's budget is used up; then all that were busy are settled, every queue is armed, and
//! everything is looked at once more.

use dpa::abi::{
    ABI_HASH, ContextFault, LaneThread, LaneThreadState, OPERATION_CLOSED, Operation, Transport, WorkerContext,
    WorkerStatus,
};
use dpa::{
    BitmapView, CompletionQueue, ContextArray, Counters, Entity, HostLine, Next, Outbox, Signals, Thread, Window,
    error, fatal, fence,
};

use crate::control::{Control, ControlEvents};
use crate::hot::{key_base, place};
use crate::placement::{check_lane_operation, set_out};
use crate::prepare::{check, prepare_receives};
use crate::worker::Worker;

/// A worker that is a lane: batched, placed.
type Lane<'c, const UD: bool> = Worker<'c, UD, false, true>;

/// RPC `prepare_lanes`: checks thread and lanes, writes all receive entries and posts them. The fault, and the lane at fault (0 if it is
/// the thread's).
pub fn prepare_lanes(thread: &mut LaneThread) -> Result<(), (ContextFault, u32)> {
    let whole = |fault| (fault, 0);
    if thread.abi_hash != ABI_HASH {
        return Err(whole(ContextFault::AbiHash));
    }
    let transport = Transport::from_raw(thread.transport).map_err(|_| whole(ContextFault::Transport))?;
    if thread.budget == 0 {
        return Err(whole(ContextFault::Budget));
    }
    Control::check(&thread.control_cq, &thread.control_queue).map_err(whole)?;
    let mut lanes = ContextArray::attach(&mut thread.contexts);
    if lanes.is_empty() {
        return Err(whole(ContextFault::Lanes));
    }
    // All are checked before the first receive is posted.
    for (number, lane) in (0..).zip(lanes.iter_mut()) {
        let fault = match check(lane) {
            Err(fault) => fault,
            Ok(other) if other != transport => ContextFault::Transport,
            Ok(_) if lane.batch < 2 => ContextFault::Batch,
            Ok(_) => continue,
        };
        return Err((fault, number));
    }
    for lane in lanes.iter_mut() {
        prepare_receives(lane, transport);
    }
    Control::attach(&thread.control_cq, &thread.control_queue).post_all();
    thread.state.prepared = 1;
    fence::memory();
    Ok(())
}

/// Body of the event handlers.
pub fn lanes(thread: &mut LaneThread, transport: Transport) -> Next {
    if thread.state.prepared == 0 || thread.transport != transport as u32 {
        fatal(error::NOT_PREPARED);
    }
    match transport {
        Transport::Uc => uc_lanes(thread),
        Transport::Ud => ud_lanes(thread),
    }
}

#[inline(never)]
fn uc_lanes(thread: &mut LaneThread) -> Next {
    activation::<false>(thread)
}

#[inline(never)]
fn ud_lanes(thread: &mut LaneThread) -> Next {
    activation::<true>(thread)
}

/// Outbox and window of the running thread, configured at its first activation.
#[inline(always)]
pub fn resources(configured: &mut u32, outbox_id: u32, window_id: u32, window_mkey: u32) -> (Thread, Window) {
    let thread = Thread::current();
    if *configured != 0 {
        return (thread, Window::configured(Entity::Zero));
    }
    if !Outbox::configure(&thread, outbox_id) {
        fatal(error::NO_RESOURCE);
    }
    let window = Window::configure(Entity::Zero, window_id, window_mkey);
    *configured = 1;
    (thread, window.unwrap_or_else(|_| fatal(error::NO_RESOURCE)))
}

#[inline(always)]
fn activation<const UD: bool>(context: &mut LaneThread) -> Next {
    let entered = Counters::read();
    let state = &mut context.state;
    let (thread, window) = resources(&mut state.configured, context.outbox_id, context.window_id, context.window_mkey);
    state.activations += 1;
    let mut served = Served {
        lanes: ContextArray::attach(&mut context.contexts),
        control: Control::attach(&context.control_cq, &context.control_queue),
        thread,
        window,
        state,
    };
    let next = served.serve::<UD>(u64::from(context.budget));
    served.state.instructions += Counters::read().since(entered).instructions;
    next
}

/// The thread of the running activation and its lanes.
struct Served<'c> {
    lanes: ContextArray<'c, WorkerContext>,
    control: Control,
    thread: Thread,
    window: Window,
    state: &'c mut LaneThreadState,
}

impl Served<'_> {
    fn serve<const UD: bool>(&mut self, mut budget: u64) -> Next {
        loop {
            self.poll_control::<UD>();
            if !self.rounds::<UD>(&mut budget) {
                return Next::Retrigger;
            }
            self.settle::<UD>();
            // The fence that a lane's settling ends with has made the doorbell records visible, the control queue's included: a message
            // has every lane settled.
            self.control.arm(&Outbox::of(&self.thread), self.state.control_consumed);
            let outbox = Outbox::of(&self.thread);
            let mut more = self.control.is_ready(self.state.control_consumed);
            for lane in self.lanes.iter_mut() {
                arm::<UD>(lane, &outbox);
                more |= has_work::<UD>(lane);
            }
            if !more {
                return Next::Reschedule;
            }
            // Something arrived between the last look and arming. Its event will come too and find nothing.
            budget = budget.saturating_sub(1);
            if budget == 0 {
                return Next::Retrigger;
            }
        }
    }

    /// Serves the lanes in turn until none has work (true) or the budget is used up (false).
    #[inline(always)]
    fn rounds<const UD: bool>(&mut self, budget: &mut u64) -> bool {
        let count = self.lanes.len();
        let mut idle = 0;
        let mut index = self.state.next_lane as usize;
        while idle < count {
            if index >= count {
                index = 0;
            }
            let Some(lane) = self.lanes.get(index) else { break };
            index += 1;
            if !has_work::<UD>(lane) {
                idle += 1;
                continue;
            }
            idle = 0;
            let limit = u64::from(lane.budget).min(*budget);
            let consumed = turn::<UD>(lane, &self.thread, self.window, limit);
            *budget = budget.saturating_sub(consumed);
            if *budget == 0 {
                self.state.next_lane = index as u32;
                return false;
            }
            // A cutoff does not wait until all lanes are idle.
            self.poll_control::<UD>();
        }
        self.state.next_lane = index as u32;
        true
    }

    /// Takes the host's messages.
    #[inline(always)]
    fn poll_control<const UD: bool>(&mut self) {
        if self.control.is_ready(self.state.control_consumed) {
            let events = self.control.take(&mut self.state.control_consumed);
            self.apply_control::<UD>(events);
        }
    }

    /// Has all lanes look at what the host wrote; notes a control connection that is broken.
    #[cold]
    #[inline(never)]
    fn apply_control<const UD: bool>(&mut self, events: ControlEvents) {
        for context in self.lanes.iter_mut() {
            touch(context);
            context.lane.pending |= u32::from(events.message);
            let mut lane = attach::<UD>(context, &self.thread, self.window);
            if let Some(syndrome) = events.error {
                lane.fail(WorkerStatus::ControlError, u32::from(syndrome));
            }
            lane.process_commands();
        }
    }

    fn settle<const UD: bool>(&mut self) {
        for context in self.lanes.iter_mut() {
            if context.lane.unsettled != 0 {
                attach::<UD>(context, &self.thread, self.window).settle_lane();
            }
        }
    }
}

/// Notes that a lane has something to do and must be settled before its thread sleeps.
#[inline(always)]
fn touch(context: &mut WorkerContext) {
    if context.lane.unsettled == 0 {
        context.lane.unsettled = 1;
        context.state.statistics.activations += 1;
    }
}

/// Whether a completion of a lane waits. This is what a lane without work costs.
#[inline(always)]
fn has_work<const UD: bool>(context: &WorkerContext) -> bool {
    let state = &context.state;
    CompletionQueue::waits(&context.receive_cq, state.consumed)
        || (UD && state.consumed != state.completed && CompletionQueue::waits(&context.send_cq, state.send_consumed))
}

/// Asks to be woken by a lane's next receive, and by the next copy if one is under way. As in [`Worker`], a queue armed at an index that the
/// card has passed fires at once.
#[inline(always)]
fn arm<const UD: bool>(context: &WorkerContext, outbox: &Outbox) {
    let state = &context.state;
    outbox.arm_cq(context.receive_cq.number(), state.consumed);
    if UD && state.consumed != state.completed {
        outbox.arm_cq(context.send_cq.number(), state.send_consumed);
    }
}

#[inline(always)]
fn attach<'c, const UD: bool>(context: &'c mut WorkerContext, thread: &Thread, window: Window) -> Lane<'c, UD> {
    let chunks = context.state.armed.chunks;
    let stopped = (context.lane.closed | context.lane.dead) != 0;
    let bits = |bits| BitmapView::attach(&context.bitmap, bits);
    let views = (bits(chunks), bits(if stopped { 0 } else { chunks }));
    Worker::attach(context, Outbox::of(thread), window, views)
}

/// A lane's turn: at most `budget` completions, rounded up to whole batches. What it costs of the thread's budget, at least 1.
#[inline(never)]
fn turn<const UD: bool>(context: &mut WorkerContext, thread: &Thread, window: Window, budget: u64) -> u64 {
    let entered = Counters::read();
    touch(context);
    let mode = context.lane.mode as u8;
    let before = context.state.consumed;
    let mut lane = attach::<UD>(context, thread, window);
    if UD {
        lane.reap();
    }
    let drained = match mode {
        place::RUNS if UD => lane.drain_runs(budget),
        place::ROWS if UD => lane.drain_rows(budget),
        _ => lane.drain_linear(budget),
    };
    // What the host waits for is not put off until the other lanes are idle, too.
    let state = &lane.context.state;
    if drained && (lane.context.lane.pending != 0 || (state.remaining == 0 && state.counted == 0)) {
        lane.settle_lane();
    }
    let consumed = lane.context.state.consumed - before;
    lane.account_activation(entered);
    consumed.max(1)
}

impl<const UD: bool> Lane<'_, UD> {
    // One symbol per loop, so that listings and crash records tell them apart.

    #[inline(never)]
    fn drain_linear(&mut self, budget: u64) -> bool {
        self.drain::<{ place::LINEAR }>(budget)
    }

    #[inline(never)]
    fn drain_runs(&mut self, budget: u64) -> bool {
        self.drain::<{ place::RUNS }>(budget)
    }

    #[inline(never)]
    fn drain_rows(&mut self, budget: u64) -> bool {
        self.drain::<{ place::ROWS }>(budget)
    }

    /// Hands over what is left of a segment, acts on the host's line if that had to wait, answers, finishes, tells progress.
    #[inline(never)]
    fn settle_lane(&mut self) {
        self.context.lane.unsettled = 0;
        self.hand_over();
        if self.context.lane.pending != 0 {
            self.process_commands();
        }
        self.answer_lane_report();
        if !self.finish_if_complete() {
            self.publish();
        }
    }

    /// Acts on the host's line: takes over a new operation unless copies of the last are under way (their completion leads here again),
    /// or closes the armed one.
    #[inline(never)]
    fn process_commands(&mut self) {
        let line = HostLine::attach(&self.context.operation);
        let announced = line.snapshot();
        // The host may be writing the next line: no field may be older than the numbers that announce it.
        fence::memory_read();
        let operation = line.snapshot();
        if announced.sequence != announced.sequence_check
            || operation.sequence != announced.sequence
            || operation.sequence_check != announced.sequence
            || announced.sequence == 0
        {
            // Half written: its own message is still to come.
            self.context.lane.pending = 0;
            return;
        }
        if operation.sequence != self.context.state.armed.sequence {
            if self.outstanding() != 0 && self.context.lane.dead == 0 {
                return;
            }
            self.take_over(operation);
        }
        if operation.flags & OPERATION_CLOSED != 0 {
            self.context.lane.closed = 1;
            self.regular = BitmapView::none();
        }
        self.context.lane.request = announced.report_request;
        self.context.lane.pending = u32::from(!self.may_answer());
    }

    /// Whether nothing stands between the host's request and its answer: a closed lane answers when no copy is under way any more.
    fn may_answer(&self) -> bool {
        self.context.lane.closed == 0 || self.context.lane.dead != 0 || self.outstanding() == 0
    }

    fn take_over(&mut self, operation: Operation) {
        let transport = if UD { Transport::Ud } else { Transport::Uc };
        let placement = HostLine::attach(&self.context.placement).snapshot();
        let verdict = match check_lane_operation(self.context, &operation, &placement, transport) {
            Ok(()) if self.context.lane.dead != 0 => Err(ContextFault::DeadQueue),
            verdict => verdict,
        };
        let state = &mut self.context.state;
        state.armed = operation;
        state.detail = 0;
        self.context.lane.placed = placement;
        self.context.lane.closed = 0;
        match verdict {
            Ok(()) => {
                state.status = WorkerStatus::Armed as u32;
                state.remaining = u64::from(operation.chunks - placement.own_chunks);
                state.counted = 0;
            }
            Err(fault) => {
                self.context.lane.placed.roots = 0;
                self.context.lane.placed.own_chunks = 0;
                self.refuse(fault);
            }
        }
        let context = &mut *self.context;
        let bits = |bits| BitmapView::attach(&context.bitmap, bits);
        (self.bitmap, self.regular) = (bits(context.state.armed.chunks), bits(context.state.armed.chunks));
        context.state.key = key_base(context);
        set_out(context, &self.bitmap);
        self.build_stale_copies(&operation);
        if verdict.is_ok()
            && let Some(progress) = Signals::attach(&self.context.signals)
        {
            progress.armed(operation.sequence);
        }
    }

    /// Copies bitmap, tail bitmap and statistics to host memory if the host asked for it and the answer is final.
    fn answer_lane_report(&mut self) {
        let request = self.context.lane.request;
        if request != self.context.state.reported && self.may_answer() {
            self.context.lane.pending = 0;
            self.write_lane_report(request);
        }
    }
}
