//! The progress thread: the thread that runs a communicator's protocol on the card.
//!
//! An activation takes the host's command if there is one, then messages, then polls what receive contexts and send
//! workers have signalled, and then does what the machine of the protocol ([`Participant`]) asks for, each within the
//! budget; at last it notifies the host, arms its queues and polls once more. It never waits: what it cannot do yet,
//! the next activation does.
//!
//! It has no timer. Deadlines are the host's to watch, which sees them in the report and commands a check of the clock
//! when one has passed.

mod act;
mod commands;
mod messages;
mod prepare;
mod repair;
mod report;

use datapath::{Control, resources};
use dpa::abi::{
    ContextMemory, ProgressCommand, ProgressPeer, ProgressSetUp, ProgressThread, ProgressThreadState, ReceiveView,
};
use dpa::proto::{Codec, Participant};
use dpa::{
    CompletionQueue, ContextArray, Counters, HostLine, Messages, Next, Outbox, Signals, State, Window, error, fatal,
};

pub(crate) use prepare::prepare;

const PS_PER_NS: u64 = 1000;

/// The progress thread of the running activation. What it is set up with is read where it is needed: an activation
/// needs little of it, and a level 1 cache of sixteen lines keeps no copies.
struct ProgressEngine<'c> {
    set_up: &'c ProgressSetUp,
    state: &'c mut ProgressThreadState,
    participant: &'c mut Participant,
    peers: ContextArray<'c, ProgressPeer>,
    /// Read only where something is lost.
    views: &'c mut ContextMemory<ReceiveView>,
    messages: Messages<'c>,
    outbox: Outbox,
    window: Window,
}

/// Body of the event handler.
pub(crate) fn progress(context: &mut ProgressThread) -> Next {
    let ProgressThread { set_up, contexts, messages, machine, views, state } = context;
    if state.prepared == 0 {
        fatal(error::NOT_PREPARED);
    }
    let entered = Counters::read();
    let ids = (set_up.outbox_id, set_up.window_id, set_up.window_mkey);
    let (thread, window) = resources(&mut state.configured, ids.0, ids.1, ids.2);
    state.report.activations = state.report.activations.wrapping_add(1);
    let budget = u64::from(set_up.budget);
    let mut progress = ProgressEngine {
        set_up,
        state,
        participant: State::attach(machine).and_then(State::get).unwrap_or_else(|| fatal(error::NOT_PREPARED)),
        peers: ContextArray::attach(contexts),
        views,
        messages: Messages::attach(messages),
        outbox: Outbox::of(&thread),
        window,
    };
    let next = progress.serve(budget);
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
            let drained = !self.has_messages() || self.take_messages(&mut messages);
            let done = self.signal() || {
                self.poll_events();
                self.act(&mut actions)
            };
            if done && messages > 0 && self.has_messages() {
                // Others wait for what follows from these, the host for nothing but to know.
                continue;
            }
            self.notify_host();
            if self.state.follows != 0 {
                self.follow();
            }
            if !drained || !done {
                return Next::Retrigger;
            }
            self.arm();
            if !self.has_control() && !self.has_messages() {
                return Next::Reschedule;
            }
            messages = messages.saturating_sub(1);
            if messages == 0 {
                return Next::Retrigger;
            }
        }
    }

    /// Asks to be woken by what comes next, also where nothing has been consumed: a thread may be woken for an entry
    /// that it does not see yet.
    ///
    /// Doorbell records follow in their own time: the doorbells name their indices themselves, and a queue armed at an
    /// index that the card has passed fires at once. Signals that come from here on wake the thread again.
    fn arm(&mut self) {
        let control = CompletionQueue::attach(&self.set_up.control_cq);
        self.outbox.arm_cq(control.number(), self.state.control_consumed);
        let messages = CompletionQueue::attach(&self.set_up.message_cq);
        self.outbox.arm_cq(messages.number(), self.state.consumed);
    }

    /// Whether the host has something to say.
    fn has_control(&self) -> bool {
        CompletionQueue::waits(&self.set_up.control_cq, self.state.control_consumed)
    }

    /// Whether there are completions of messages.
    fn has_messages(&self) -> bool {
        CompletionQueue::waits(&self.set_up.message_cq, self.state.consumed)
    }

    fn control(&self) -> Control {
        Control::attach(&self.set_up.control_cq, &self.set_up.control_queue)
    }

    fn command(&self) -> HostLine<ProgressCommand> {
        HostLine::attach(&self.set_up.command)
    }

    fn signals(&self) -> Signals {
        Signals::attach(&self.set_up.signals).unwrap_or_else(|| fatal(error::NOT_PREPARED))
    }

    const fn codec(&self) -> Codec {
        Codec::new(self.set_up.communicator, self.set_up.ranks)
    }

    /// The host's clock.
    fn now_ps(&self) -> u64 {
        dpa::thread::time().wrapping_mul(PS_PER_NS).wrapping_add(self.state.clock_ps)
    }
}
