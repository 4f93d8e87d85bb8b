//! The send worker: posts the own block in batches, send context by send context in turn.
//!
//! Entries are built once; per chunk only what changes is stored: index, immediate, extent and addresses. Every batch
//! is one doorbell and one signalled completion. A worker that waits for completions arms their CQs and sleeps.

use core::mem::offset_of;

use dpa::abi::{
    ABI_HASH, ContextFault, OPERATION_CLOSED, OPERATION_DEFERRED, SendContext, SendOperation, SendReport, SendStatus,
    SendThread, Transport,
};
use dpa::hw::{DatagramWqe, WriteWqe};
use dpa::{
    CompletionQueue, ContextArray, Counters, HostLine, Next, Outbox, PostedEntry, Signals, Window, WindowCell, error,
    fatal, fence,
};

use crate::control::Control;
use crate::posting::{Chunk, build, reap, room};
use crate::prepare::check_queue;
use crate::receive::resources;

/// RPC `prepare_send`: checks thread and send contexts, and posts the control receives. The fault, and the send context
/// at fault (0 if it is the thread's).
pub fn prepare_send(thread: &mut SendThread) -> Result<(), (ContextFault, u32)> {
    let whole = |fault| (fault, 0);
    if thread.abi_hash != ABI_HASH {
        return Err(whole(ContextFault::AbiHash));
    }
    let transport = Transport::from_raw(thread.transport).map_err(|_| whole(ContextFault::Transport))?;
    let log_blocks = match transport {
        Transport::Ud => DatagramWqe::BLOCKS,
        Transport::Uc => WriteWqe::BLOCKS,
    }
    .ilog2();
    if thread.budget == 0 {
        return Err(whole(ContextFault::Budget));
    }
    if thread.batch == 0 {
        return Err(whole(ContextFault::Batch));
    }
    if !(1..=31).contains(&thread.psn_bits) {
        return Err(whole(ContextFault::PsnBits));
    }
    if thread.report_host == 0 || !thread.report_host.is_multiple_of(64) {
        return Err(whole(ContextFault::HostAddress));
    }
    if !thread.operation.is_there() {
        return Err(whole(ContextFault::DeviceMemory));
    }
    Control::check(&thread.control_cq, &thread.control_queue).map_err(whole)?;
    let mut contexts = ContextArray::attach(&mut thread.contexts);
    if contexts.is_empty() {
        return Err(whole(ContextFault::Contexts));
    }
    for (number, context) in (0..).zip(contexts.iter_mut()) {
        check_queue(&context.send_queue)
            .and_then(|()| check_queue(&context.send_cq))
            .map_err(|fault| (fault, number))?;
        if !context.run.is_there() {
            return Err((ContextFault::DeviceMemory, number));
        }
        let log_entries = context.send_queue.log_depth() - log_blocks;
        if log_entries == 0 || context.send_cq.log_depth() < log_entries {
            return Err((ContextFault::QueueDepth, number));
        }
        if thread.batch > 1 << (log_entries - 1) {
            return Err((ContextFault::Batch, number));
        }
    }
    for context in contexts.iter_mut() {
        match transport {
            Transport::Ud => build::<DatagramWqe>(context),
            Transport::Uc => build::<WriteWqe>(context),
        }
    }
    Control::attach(&thread.control_cq, &thread.control_queue).post_all();
    thread.state.prepared = 1;
    fence::memory();
    Ok(())
}

/// Body of the event handler.
pub fn send_blocks(thread: &mut SendThread) -> Next {
    if thread.state.prepared == 0 {
        fatal(error::NOT_PREPARED);
    }
    if thread.transport == Transport::Ud as u32 { send_ud(thread) } else { send_uc(thread) }
}

#[inline(never)]
fn send_ud(thread: &mut SendThread) -> Next {
    activation::<DatagramWqe>(thread)
}

#[inline(never)]
fn send_uc(thread: &mut SendThread) -> Next {
    activation::<WriteWqe>(thread)
}

#[inline(always)]
fn activation<W: Chunk>(context: &mut SendThread) -> Next {
    let entered = Counters::read();
    let state = &mut context.state;
    let (thread, window) = resources(&mut state.configured, context.outbox_id, context.window_id, context.window_mkey);
    state.activations += 1;
    let next = Sender { context, outbox: Outbox::of(&thread), window }.serve::<W>();
    context.state.instructions += Counters::read().since(entered).instructions;
    next
}

/// The worker of the running activation. What its context names is attached where it is used, as in
/// [`crate::receiver::Receiver`].
struct Sender<'c> {
    context: &'c mut SendThread,
    outbox: Outbox,
    window: Window,
}

impl Sender<'_> {
    /// Who says when to send, and learns of the end; the host, if nobody.
    #[inline(always)]
    fn progress(&self) -> Option<Signals> {
        Signals::attach(&self.context.signals)
    }

    #[inline(always)]
    fn serve<W: Chunk>(&mut self) -> Next {
        let mut budget = u64::from(self.context.budget);
        loop {
            if CompletionQueue::waits(&self.context.control_cq, self.context.state.control_consumed) {
                self.take_messages::<W>();
            } else if self.context.state.pending != 0 {
                self.process_commands::<W>();
            }
            let deferred = self.is_deferred();
            let mut reported = (self.context.state.announced, self.context.state.finished);
            let drained =
                deferred || self.context.state.left == 0 || self.post_in_turn::<W>(&mut budget, &mut reported);
            let waits = self.reap_all::<W>();
            if !deferred {
                self.announce_if_due::<W>();
            }
            if !drained {
                self.notify_progress_thread(&mut reported);
                self.publish();
                return Next::Retrigger;
            }
            if !deferred {
                self.finish_if_over(waits);
            }
            self.notify_progress_thread(&mut reported);
            // Ends with a fence, which has made the doorbell records visible.
            self.publish();
            let consumed = self.context.state.control_consumed;
            self.outbox.arm_cq(self.context.control_cq.number(), consumed);
            let mut more = CompletionQueue::waits(&self.context.control_cq, consumed)
                || (!deferred && self.can_post::<W>())
                || (self.context.state.pending != 0 && !waits);
            let mut contexts = ContextArray::attach(&mut self.context.contexts);
            for context in contexts.iter_mut().filter(|context| context.state.completed != context.state.produced) {
                self.outbox.arm_cq(context.send_cq.number(), context.state.consumed);
                more |= CompletionQueue::waits(&context.send_cq, context.state.consumed);
            }
            if !more {
                return Next::Reschedule;
            }
            budget = budget.saturating_sub(1);
            if budget == 0 {
                return Next::Retrigger;
            }
        }
    }

    /// Takes the host's messages, and acts on them.
    #[inline(never)]
    fn take_messages<W: Chunk>(&mut self) {
        let control = Control::attach(&self.context.control_cq, &self.context.control_queue);
        let events = control.take(&mut self.context.state.control_consumed);
        self.context.state.pending |= u32::from(events.message);
        if let Some(syndrome) = events.error {
            self.fail(SendStatus::ControlError, u32::from(syndrome));
        }
        if self.context.state.pending != 0 {
            self.process_commands::<W>();
        }
    }

    /// Whether the operation waits for who says when to send: the progress thread, which wakes the thread when it may
    /// go, or the host, which then takes the flag away.
    fn is_deferred(&self) -> bool {
        let armed = &self.context.state.armed;
        armed.flags & (OPERATION_DEFERRED | OPERATION_CLOSED) == OPERATION_DEFERRED
            && self.progress().is_none_or(|progress| !progress.may_go(armed.sequence))
    }

    /// Notifies the progress thread of what is new since `reported`: announcement, end. Not of an operation that has
    /// failed: that is for the host to find.
    fn notify_progress_thread(&self, reported: &mut (u64, u64)) {
        let state = &self.context.state;
        let reported = core::mem::replace(reported, (state.announced, state.finished));
        if (state.announced, state.finished) == reported
            || SendStatus::from_raw(state.status).is_ok_and(SendStatus::is_error)
        {
            return;
        }
        if let Some(progress) = self.progress() {
            if state.announced != reported.0 {
                progress.announced(state.announced);
            }
            if state.finished != reported.1 {
                progress.sent(state.finished);
            }
        }
    }

    /// Posts batches, one per send context in turn, until all is posted or the send context whose turn it is has no
    /// room (true), or the budget is used up (false). No send context gets ahead of another by more than a batch.
    fn post_in_turn<W: Chunk>(&mut self, budget: &mut u64, reported: &mut (u64, u64)) -> bool {
        let count = self.context.contexts.count() as usize;
        let lookahead = u64::from(self.context.state.armed.lookahead_chunks);
        let mut index = self.context.state.next_context as usize;
        while self.context.state.left != 0 {
            if *budget == 0 {
                return false;
            }
            if index >= count {
                index = 0;
            }
            self.context.state.next_context = index as u32;
            let mut contexts = ContextArray::attach(&mut self.context.contexts);
            let Some(context) = contexts.get(index) else { return true };
            index += 1;
            // A batch completes as a whole: one ends where the lookahead begins, so that its completion shows that the
            // lookahead is reached.
            let before_lookahead = u32::try_from(self.context.state.left.saturating_sub(lookahead)).unwrap_or(u32::MAX);
            let most =
                if before_lookahead == 0 { self.context.batch } else { self.context.batch.min(before_lookahead) };
            let chunks = context.state.left.min(most);
            if chunks == 0 {
                continue;
            }
            if room::<W>(context) < u64::from(chunks) {
                let failed = reap::<W>(context);
                let enough = room::<W>(context) >= u64::from(chunks);
                if let Some((status, detail)) = failed {
                    self.context_failed(status, detail);
                    return true;
                }
                if !enough {
                    return true;
                }
            }
            let mut contexts = ContextArray::attach(&mut self.context.contexts);
            let Some(context) = contexts.get(index - 1) else { return true };
            let start = Counters::read();
            W::post_batch(context, &self.outbox, &self.context.state.armed, self.context.psn_bits, chunks);
            self.context.state.loop_instructions += Counters::read().since(start).instructions;
            self.context.state.next_context = index as u32;
            self.context.state.left -= u64::from(chunks);
            self.context.state.posted += u64::from(chunks);
            self.context.state.doorbells += 1;
            *budget = budget.saturating_sub(u64::from(chunks));
            let state = &self.context.state;
            if state.left <= lookahead && state.announced != state.armed.sequence {
                self.announce_early::<W>(reported);
            }
        }
        true
    }

    /// The next root may begin while this one is still posting: that is announced at once.
    #[inline(never)]
    fn announce_early<W: Chunk>(&mut self, reported: &mut (u64, u64)) {
        self.reap_all::<W>();
        self.announce_if_due::<W>();
        if self.context.state.announced == self.context.state.armed.sequence {
            self.notify_progress_thread(reported);
            self.publish();
        }
    }

    /// Whether there is something to post, and room on the send context whose turn it is or has been.
    fn can_post<W: Chunk>(&mut self) -> bool {
        let (left, batch) = (self.context.state.left, u64::from(self.context.batch));
        let next = self.context.state.next_context as usize;
        left != 0
            && ContextArray::attach(&mut self.context.contexts)
                .get(next)
                .is_none_or(|context| room::<W>(context) >= batch)
    }

    /// Notes that little is left to send.
    fn announce_if_due<W: Chunk>(&mut self) {
        let lookahead = u64::from(self.context.state.armed.lookahead_chunks);
        if self.context.state.left <= lookahead {
            let on_the_way = |context: &mut SendContext| (context.state.produced - context.state.completed) / W::BLOCKS;
            if self.context.state.left
                + ContextArray::attach(&mut self.context.contexts).iter_mut().map(on_the_way).sum::<u64>()
                <= lookahead
            {
                self.context.state.announced = self.context.state.armed.sequence;
            }
        }
    }

    /// Consumes the send completions of all send contexts. True if some are still to come.
    fn reap_all<W: Chunk>(&mut self) -> bool {
        let mut waits = false;
        let mut first_failure = None;
        for context in ContextArray::attach(&mut self.context.contexts).iter_mut() {
            if context.state.completed != context.state.produced || context.state.dead != 0 {
                let failed = reap::<W>(context);
                first_failure = first_failure.or(failed);
                waits |= context.state.completed != context.state.produced;
            }
        }
        if let Some((status, detail)) = first_failure {
            self.context_failed(status, detail);
        }
        waits
    }

    /// A send failed: nothing more is posted, on no send context.
    #[cold]
    fn context_failed(&mut self, status: SendStatus, detail: u32) {
        self.fail(status, detail);
        self.stop();
    }

    fn stop(&mut self) {
        self.context.state.left = 0;
        for context in ContextArray::attach(&mut self.context.contexts).iter_mut() {
            context.state.left = 0;
        }
    }

    /// Notes a failure; the first one of an operation stays.
    fn fail(&mut self, status: SendStatus, detail: u32) {
        if !SendStatus::from_raw(self.context.state.status).is_ok_and(SendStatus::is_error) {
            self.context.state.status = status as u32;
            self.context.state.detail = detail;
        }
    }

    /// Ends the operation once nothing is left to post and the card is done with what was posted.
    fn finish_if_over(&mut self, waits: bool) {
        let state = &mut self.context.state;
        if waits || state.left != 0 || state.finished == state.armed.sequence {
            return;
        }
        state.announced = state.armed.sequence;
        state.finished = state.armed.sequence;
        if state.status == SendStatus::Sending as u32 {
            state.status = SendStatus::Finished as u32;
        }
    }

    /// Acts on the host's line: closes the operation under way, or takes over a new one if there is none.
    #[inline(never)]
    fn process_commands<W: Chunk>(&mut self) {
        let line = HostLine::attach(&self.context.operation);
        let sequence = line.load_at::<{ offset_of!(SendOperation, sequence) }>();
        let check = line.load_at::<{ offset_of!(SendOperation, sequence_check) }>();
        // The host may be writing the next line: no field may be older than the number that announces it.
        fence::memory_read();
        let operation = line.snapshot();
        if [check, operation.sequence, operation.sequence_check].iter().any(|number| *number != sequence) {
            // Half written: its own message is still to come.
            self.context.state.pending = 0;
            return;
        }
        if sequence == self.context.state.armed.sequence {
            self.context.state.pending = 0;
            self.context.state.armed.flags = operation.flags;
            if operation.flags & OPERATION_CLOSED != 0 && self.context.state.left != 0 {
                self.context.state.status = SendStatus::Closed as u32;
                self.stop();
            }
            return;
        }
        // What the host has deferred, and has not let go, may be called off.
        let is_called_off = self.context.state.armed.flags & OPERATION_DEFERRED != 0 && self.progress().is_none();
        if self.context.state.finished != self.context.state.armed.sequence && !is_called_off {
            return;
        }
        self.context.state.pending = 0;
        self.context.state.armed = operation;
        self.context.state.status = SendStatus::Sending as u32;
        self.context.state.detail = 0;
        self.context.state.next_context = 0;
        match self.take_over::<W>(&operation) {
            Ok(()) if operation.flags & OPERATION_CLOSED != 0 => {
                if self.context.state.left != 0 {
                    self.context.state.status = SendStatus::Closed as u32;
                }
                self.stop();
            }
            Ok(()) => {}
            Err((status, detail)) => {
                self.fail(status, detail);
                self.stop();
            }
        }
    }

    /// Checks all send contexts' runs, then prepares their queues.
    fn take_over<W: Chunk>(&mut self, operation: &SendOperation) -> Result<(), (SendStatus, u32)> {
        let invalid = |fault: ContextFault| (SendStatus::InvalidOperation, fault as u32);
        if operation.flags & !(OPERATION_CLOSED | OPERATION_DEFERRED) != 0 {
            return Err(invalid(ContextFault::Flags));
        }
        if u64::from(operation.collective_id) >> (32 - self.context.psn_bits) != 0 {
            return Err(invalid(ContextFault::CollectiveId));
        }
        let (mut left, psn_bits) = (0, self.context.psn_bits);
        for context in ContextArray::attach(&mut self.context.contexts).iter_mut() {
            if context.state.dead != 0 {
                return Err(invalid(ContextFault::DeadQueue));
            }
            let run = HostLine::attach(&context.run).snapshot();
            if u64::from(run.first_psn) + u64::from(run.chunks) > 1 << psn_bits {
                return Err(invalid(ContextFault::Chunks));
            }
            let lengths_fit = (1..=i32::MAX as u32).contains(&operation.chunk_bytes)
                && (1..=operation.chunk_bytes).contains(&run.last_chunk_bytes);
            if run.chunks != 0 && !lengths_fit {
                return Err(invalid(ContextFault::ChunkBytes));
            }
            let state = &mut context.state;
            (state.source, state.remote_address, state.rkey) = (run.source, run.remote_address, run.rkey);
            (state.psn, state.left, state.last_chunk_bytes) = (run.first_psn, run.chunks, run.last_chunk_bytes);
            left += u64::from(run.chunks);
        }
        self.context.state.left = left;
        Ok(())
    }

    /// Writes the whole report.
    #[inline(never)]
    fn publish(&mut self) {
        let state = &self.context.state;
        let report: WindowCell<SendReport> =
            self.window.cell(self.context.report_host).unwrap_or_else(|_| fatal(error::NO_RESOURCE));
        report.store_part::<0, SendReport>(&SendReport {
            announced: state.announced,
            finished: state.finished,
            status: state.status,
            detail: state.detail,
            posted: state.posted,
            doorbells: state.doorbells,
            activations: state.activations,
            instructions: state.instructions,
            loop_instructions: state.loop_instructions,
        });
        fence::window_writeback();
    }
}
