//! The progress thread: the thread that runs a communicator's protocol on the card.
//!
//! An activation takes the host's command if there is one, then messages, then looks at what receive contexts and send workers have signalled, and then
//! does what the machine of the protocol ([`Participant`]) asks for, each within the budget; at last it tells the host, arms its
//! queues and looks once more. It never waits: what it cannot do yet, the next activation does.
//!
//! It has no timer. Deadlines are the host's to watch, which sees them in the report and commands a look at the clock when one has passed.

mod act;
mod commands;
mod messages;
mod prepare;
mod report;

use datapath::{Control, resources};
use dpa::abi::{ProgressCommand, ProgressPeer, ProgressThread, ProgressThreadState};
use dpa::proto::{Codec, Participant};
use dpa::{
    CompletionQueue, ContextArray, Counters, HostLine, Kept, Messages, Next, Outbox, Signals, Table, Window, error, fatal,
};

pub(crate) use prepare::prepare;

const PS_PER_NS: u64 = 1000;

/// Rows for eager data ([`dpa::abi::ProgressThread::rows_host`]).
#[derive(Clone, Copy)]
struct Rows {
    host: u64,
    bytes: u64,
    lkey: u32,
}

impl Rows {
    /// Where the row of an operation begins in rows that begin at `base`.
    const fn of(self, base: u64, operation: u32) -> u64 {
        base.wrapping_add(if operation & 1 == 0 { 0 } else { self.bytes })
    }
}

/// The progress thread of the running activation.
struct ProgressEngine<'c> {
    peers: ContextArray<'c, ProgressPeer>,
    participant: &'c mut Participant,
    messages: Messages<'c>,
    /// Where the message slots are, as the card is told.
    messages_at: u64,
    message_lkey: u32,
    codec: Codec,
    rank: u32,
    ranks: u32,
    cq: CompletionQueue,
    control: Control,
    outbox: Outbox,
    window: Window,
    report_host: u64,
    flag_host: u64,
    rows: Rows,
    signals: Signals,
    senders: Table<u64>,
    command: HostLine<ProgressCommand>,
    state: &'c mut ProgressThreadState,
}

/// Body of the event handler.
pub(crate) fn progress(context: &mut ProgressThread) -> Next {
    if context.state.prepared == 0 {
        fatal(error::NOT_PREPARED);
    }
    let entered = Counters::read();
    let (outbox_id, window_id, window_mkey) = (context.outbox_id, context.window_id, context.window_mkey);
    let (thread, window) = resources(&mut context.state.configured, outbox_id, window_id, window_mkey);
    let codec = Codec::new(context.communicator, context.ranks);
    let signals = Signals::attach(&context.signals).unwrap_or_else(|| fatal(error::NOT_PREPARED));
    let machine = Kept::<Participant>::attach(&mut context.machine);
    let activations = &mut context.state.report.activations;
    *activations = activations.wrapping_add(1);
    let mut progress = ProgressEngine {
        peers: ContextArray::attach(&mut context.contexts),
        participant: machine.and_then(Kept::get).unwrap_or_else(|| fatal(error::NOT_PREPARED)),
        messages_at: context.messages.address(),
        messages: Messages::attach(&mut context.messages),
        message_lkey: context.message_lkey,
        codec,
        rank: context.rank,
        ranks: context.ranks,
        cq: CompletionQueue::attach(&context.message_cq),
        control: Control::attach(&context.control_cq, &context.control_queue),
        outbox: Outbox::of(&thread),
        window,
        report_host: context.report_host,
        flag_host: context.flag_host,
        rows: Rows { host: context.rows_host, bytes: context.rows_bytes, lkey: context.rows_lkey },
        signals,
        senders: Table::attach(&context.senders),
        command: HostLine::attach(&context.command),
        state: &mut context.state,
    };
    let next = progress.serve(u64::from(context.budget));
    let retired = Counters::read().since(entered).instructions as u32;
    let instructions = &mut progress.state.report.instructions;
    *instructions = instructions.wrapping_add(retired);
    next
}

impl ProgressEngine<'_> {
    fn serve(&mut self, budget: u64) -> Next {
        let (mut messages, mut actions) = (budget, budget);
        loop {
            self.poll_control();
            let drained = self.take_messages(&mut messages);
            self.look();
            let done = self.act(&mut actions);
            self.tell();
            if !drained || !done {
                return Next::Retrigger;
            }
            self.arm();
            if !self.control.is_ready(self.state.control_consumed) && !self.cq.is_ready(self.state.consumed) {
                return Next::Reschedule;
            }
            messages = messages.saturating_sub(1);
            if messages == 0 {
                return Next::Retrigger;
            }
        }
    }

    /// Asks to be woken by what comes next. A queue of which nothing has been consumed since it was armed still is.
    ///
    /// Doorbell records follow in their own time: the doorbells name their indices themselves, and a queue armed at an index that the card has
    /// passed fires at once. Signals that come from here on wake the thread again.
    fn arm(&mut self) {
        let state = &mut *self.state;
        if state.control_armed != state.control_consumed + 1 {
            state.control_armed = state.control_consumed + 1;
            self.control.arm(&self.outbox, state.control_consumed);
        }
        if state.armed != state.consumed + 1 {
            state.armed = state.consumed + 1;
            self.outbox.arm_cq(self.cq.number(), state.consumed);
        }
    }

    /// The host's clock.
    fn now_ps(&self) -> u64 {
        dpa::thread::time().wrapping_mul(PS_PER_NS).wrapping_add(self.state.clock_ps)
    }
}
