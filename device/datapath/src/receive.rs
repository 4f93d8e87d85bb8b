//! Receive thread: serves several receive contexts, driven by a control queue.
//!
//! An activation takes the host's messages first, and again between turns: only they make it poll operations. The
//! receive contexts take turns, each with at most its own budget, until none has anything left or the thread's budget
//! is used up. Then all that were busy are settled, every queue is armed, and everything is polled once more.

use dpa::abi::{ABI_HASH, ContextFault, ReceiveContext, ReceiveStatus, ReceiveThread, Transport};
use dpa::{CompletionQueue, ContextArray, Counters, Entity, Next, Outbox, Thread, Window, error, fatal, fence};

use crate::control::Control;
use crate::hot::place;
use crate::prepare::{check, prepare_receives};
use crate::receiver::Receiver;

/// RPC `prepare_receive`: checks thread and receive contexts, writes all receive entries and posts them. The fault, and
/// the receive context at fault (0 if it is the thread's).
pub fn prepare_receive(thread: &mut ReceiveThread) -> Result<(), (ContextFault, u32)> {
    let whole = |fault| (fault, 0);
    if thread.abi_hash != ABI_HASH {
        return Err(whole(ContextFault::AbiHash));
    }
    let transport = Transport::from_raw(thread.transport).map_err(|_| whole(ContextFault::Transport))?;
    if thread.budget == 0 {
        return Err(whole(ContextFault::Budget));
    }
    Control::check(&thread.control_cq, &thread.control_queue).map_err(whole)?;
    let mut contexts = ContextArray::attach(&mut thread.contexts);
    if contexts.is_empty() {
        return Err(whole(ContextFault::Contexts));
    }
    // All are checked before the first receive is posted.
    for (number, context) in (0..).zip(contexts.iter_mut()) {
        let fault = match check(context) {
            Err(fault) => fault,
            Ok(other) if other != transport => ContextFault::Transport,
            Ok(_) => continue,
        };
        return Err((fault, number));
    }
    for context in contexts.iter_mut() {
        prepare_receives(context, transport);
    }
    Control::attach(&thread.control_cq, &thread.control_queue).post_all();
    thread.state.prepared = 1;
    fence::memory();
    Ok(())
}

/// Body of the event handlers.
pub fn receive(thread: &mut ReceiveThread, transport: Transport) -> Next {
    if thread.state.prepared == 0 || thread.transport != transport as u32 {
        fatal(error::NOT_PREPARED);
    }
    match transport {
        Transport::Uc => uc_receive(thread),
        Transport::Ud => ud_receive(thread),
    }
}

#[inline(never)]
fn uc_receive(thread: &mut ReceiveThread) -> Next {
    activation::<false>(thread)
}

#[inline(never)]
fn ud_receive(thread: &mut ReceiveThread) -> Next {
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
fn activation<const UD: bool>(served: &mut ReceiveThread) -> Next {
    let entered = Counters::read();
    let state = &mut served.state;
    let (thread, window) = resources(&mut state.configured, served.outbox_id, served.window_id, served.window_mkey);
    state.activations += 1;
    let next = serve::<UD>(served, &thread, window);
    served.state.instructions += Counters::read().since(entered).instructions;
    next
}

#[inline(always)]
fn serve<const UD: bool>(served: &mut ReceiveThread, thread: &Thread, window: Window) -> Next {
    let mut budget = u64::from(served.budget);
    loop {
        poll_control::<UD>(served, thread, window);
        if !rounds::<UD>(served, thread, window, &mut budget) {
            return Next::Retrigger;
        }
        settle::<UD>(served, thread, window);
        // The fence that a receive context's settling ends with has made the doorbell records visible, the control
        // queue's included: a message has every receive context settled.
        let outbox = Outbox::of(thread);
        let consumed = served.state.control_consumed;
        outbox.arm_cq(served.control_cq.number(), consumed);
        let mut more = CompletionQueue::waits(&served.control_cq, consumed);
        for context in ContextArray::attach(&mut served.contexts).iter_mut() {
            arm::<UD>(context, &outbox);
            more |= has_work::<UD>(context);
        }
        if !more {
            return Next::Reschedule;
        }
        // Something arrived between the last poll and arming. Its event will come too and find nothing.
        budget = budget.saturating_sub(1);
        if budget == 0 {
            return Next::Retrigger;
        }
    }
}

/// Serves the receive contexts in turn until none has work (true) or the budget is used up (false).
#[inline(always)]
fn rounds<const UD: bool>(served: &mut ReceiveThread, thread: &Thread, window: Window, budget: &mut u64) -> bool {
    let count = served.contexts.count() as usize;
    let mut idle = 0;
    let mut index = served.state.next_context as usize;
    while idle < count {
        if index >= count {
            index = 0;
        }
        let mut contexts = ContextArray::attach(&mut served.contexts);
        let Some(context) = contexts.get(index) else { break };
        index += 1;
        if !has_work::<UD>(context) {
            idle += 1;
            continue;
        }
        idle = 0;
        let limit = u64::from(context.budget).min(*budget);
        let until_report = match context.state.report_at {
            0 => limit,
            at => context.state.remaining.saturating_sub(at).max(1),
        };
        let limit = limit.min(until_report);
        let consumed = turn::<UD>(context, thread, window, limit);
        *budget = budget.saturating_sub(consumed);
        if *budget == 0 {
            served.state.next_context = index as u32;
            return false;
        }
        // A cutoff does not wait until all receive contexts are idle.
        poll_control::<UD>(served, thread, window);
    }
    served.state.next_context = index as u32;
    true
}

/// Takes the host's messages.
#[inline(always)]
fn poll_control<const UD: bool>(served: &mut ReceiveThread, thread: &Thread, window: Window) {
    if CompletionQueue::waits(&served.control_cq, served.state.control_consumed) {
        apply_control::<UD>(served, thread, window);
    }
}

/// Has all receive contexts read what the host wrote; notes a control connection that is broken.
#[cold]
#[inline(never)]
fn apply_control<const UD: bool>(served: &mut ReceiveThread, thread: &Thread, window: Window) {
    let control = Control::attach(&served.control_cq, &served.control_queue);
    let events = control.take(&mut served.state.control_consumed);
    for context in ContextArray::attach(&mut served.contexts).iter_mut() {
        touch(context);
        context.op.pending |= u32::from(events.message);
        let mut receiver = attach::<UD>(context, thread, window);
        if let Some(syndrome) = events.error {
            receiver.fail(ReceiveStatus::ControlError, u32::from(syndrome));
        }
        receiver.process_commands();
    }
}

#[inline(always)]
fn settle<const UD: bool>(served: &mut ReceiveThread, thread: &Thread, window: Window) {
    for context in ContextArray::attach(&mut served.contexts).iter_mut() {
        if context.op.unsettled != 0 {
            attach::<UD>(context, thread, window).settle(true);
        }
    }
}

/// Notes that a receive context has something to do and must be settled before its thread sleeps.
#[inline(always)]
fn touch(context: &mut ReceiveContext) {
    if context.op.unsettled == 0 {
        context.op.unsettled = 1;
        context.state.statistics.activations += 1;
    }
}

/// Whether a completion of a receive context waits. This is what a receive context without work costs.
#[inline(always)]
fn has_work<const UD: bool>(context: &ReceiveContext) -> bool {
    let state = &context.state;
    CompletionQueue::waits(&context.receive_cq, state.consumed)
        || (UD && state.consumed != state.completed && CompletionQueue::waits(&context.send_cq, state.send_consumed))
}

/// Asks to be woken by a receive context's next receive, and by the next copy if one is under way. A queue armed at an
/// index that the card has passed fires at once, so that a completion overlooked in [`has_work`] costs an activation
/// and no wake-up.
#[inline(always)]
fn arm<const UD: bool>(context: &ReceiveContext, outbox: &Outbox) {
    let state = &context.state;
    outbox.arm_cq(context.receive_cq.number(), state.consumed);
    if UD && state.consumed != state.completed {
        outbox.arm_cq(context.send_cq.number(), state.send_consumed);
    }
}

#[inline(always)]
fn attach<'c, const UD: bool>(context: &'c mut ReceiveContext, thread: &Thread, window: Window) -> Receiver<'c, UD> {
    let report = window.cell(context.report_host).unwrap_or_else(|_| fatal(error::NO_RESOURCE));
    Receiver { context, outbox: Outbox::of(thread), window, report }
}

/// A receive context's turn: at most `budget` completions, rounded up to whole stretches. What it costs of the thread's
/// budget, at least 1.
#[inline(always)]
fn turn<const UD: bool>(context: &mut ReceiveContext, thread: &Thread, window: Window, budget: u64) -> u64 {
    let entered = Counters::read();
    touch(context);
    let mode = context.op.mode as u8;
    let before = context.state.consumed;
    let mut receiver = attach::<UD>(context, thread, window);
    if UD && receiver.outstanding() != 0 {
        receiver.reap();
    }
    let drained = match mode {
        // Woken by the completion of a copy alone.
        _ if UD && !CompletionQueue::waits(&receiver.context.receive_cq, before) => true,
        place::RUNS if UD => receiver.drain_runs(budget),
        place::ROWS if UD => receiver.drain_rows(budget),
        _ if UD => receiver.drain_linear(budget),
        _ => receiver.drain_in_place(budget),
    };
    // What the host waits for is not put off until the other receive contexts are idle, too. Nor is progress where the
    // budget has ended the turn: nobody knows when the thread will be idle, and the host must not take the stream for
    // one that has stalled.
    let state = &receiver.context.state;
    if !drained || receiver.context.op.pending != 0 || (state.remaining <= state.report_at && state.counted == 0) {
        receiver.settle(false);
    }
    let consumed = receiver.context.state.consumed - before;
    receiver.account_activation(entered);
    consumed.max(1)
}

impl<const UD: bool> Receiver<'_, UD> {
    // One symbol per loop, so that listings and crash records distinguish them.

    #[inline(never)]
    fn drain_in_place(&mut self, budget: u64) -> bool {
        self.drain::<{ place::LINEAR }>(budget)
    }

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
}
