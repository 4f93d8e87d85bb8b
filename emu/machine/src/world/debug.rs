//! Stopping the machine for a debugger. Virtual time stands still while it is stopped, and a run in which nothing is
//! changed goes on exactly as it would have without a debugger.
//!
//! The machine knows no protocol and no socket: a [`Debugger`] is notified of each stop and says how to go on.

use std::collections::BTreeSet;

use emu_hart::{Hart, Limits, Stop, Text};

use crate::bus::ThreadBus;
use crate::bus::costs::Costs;
use crate::dpa::process::Process;
use crate::dpa::thread::{ThreadKind, ThreadState};
use crate::error::MachineError;
use crate::world::World;

/// Instructions, and steps of the machine, between two questions whether to interrupt.
const POLL_EVERY: u32 = 1024;

/// Why the machine stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DebugStop {
    /// The first activation of an event handler is about to begin. This process is the one that is debugged from now
    /// on.
    Begin,
    /// The thread is about to execute an instruction at a breakpoint.
    Breakpoint,
    /// The thread has done its step.
    Step,
    /// [`Debugger::interrupted`] asked for it.
    Interrupt,
    /// The thread has died; going on ends its process.
    Crash(String),
}

/// A stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Index of the card.
    pub card: usize,
    /// The process.
    pub process: u32,
    /// The thread, or for an interrupt any of the process's that runs.
    pub thread: u32,
    /// Why.
    pub why: DebugStop,
}

/// How to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Until a breakpoint.
    Continue,
    /// One thread executes one instruction, or more while its program counter is within `[start, end)`. A step of one
    /// instruction has ended before another thread runs; during longer ones the others go on.
    Step {
        /// Thread id.
        thread: u32,
        /// Start and end of the range; empty for one instruction.
        range: (u64, u64),
    },
    /// Without this debugger.
    Detach,
}

/// An answer to a stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// How to go on.
    pub action: Action,
    /// Where to stop: addresses of instructions.
    pub breakpoints: BTreeSet<u64>,
}

/// What controls a stopped machine.
pub trait Debugger: Send {
    /// The machine has stopped; it goes on when this returns.
    fn stopped(&mut self, world: &mut World, stop: &Stopped) -> Resume;

    /// Whether to stop now; asked while the machine runs.
    fn interrupted(&mut self) -> bool;

    /// The process goes; nothing of it can be inspected any more. `crashed` if that is because a thread died.
    fn ended(&mut self, crashed: bool);
}

/// A slice of instructions in the middle of which the machine stopped.
#[derive(Clone, Copy, Debug)]
struct Slice {
    card: usize,
    thread: u32,
    end_cycles: u64,
}

/// An attached debugger.
pub(crate) struct Debug {
    hook: Box<dyn Debugger>,
    /// The process that is debugged; decided by the first activation.
    focus: Option<(usize, u32)>,
    resume: Resume,
    /// Where the step in progress began: instructions retired.
    step_from: u64,
    /// The thread that was resumed at a breakpoint, which must not stop there at once again.
    passes: Option<(u32, u64)>,
    slice: Option<Slice>,
    polls: u32,
    /// Why the slice ended early.
    why: Option<DebugStop>,
}

impl Debug {
    fn is_for(&self, whose: (usize, u32), kind: ThreadKind) -> bool {
        self.focus.map_or(kind == ThreadKind::EventHandler, |focus| focus == whose)
    }

    fn poll(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.resume.action != Action::Detach && self.polls.is_multiple_of(POLL_EVERY) && self.hook.interrupted()
    }

    fn has_stepped(&self, thread: u32, hart: &Hart) -> bool {
        matches!(self.resume.action, Action::Step { thread: stepped, range: (start, end) }
            if stepped == thread && hart.instret > self.step_from && !(start..end).contains(&hart.pc))
    }

    /// Whether a thread is to stop before its next instruction.
    fn before(&mut self, thread: u32, hart: &Hart) -> Option<DebugStop> {
        if self.focus.is_none() {
            return Some(DebugStop::Begin);
        }
        let place = (thread, hart.instret);
        if self.has_stepped(thread, hart) {
            return Some(DebugStop::Step);
        }
        if self.resume.breakpoints.contains(&hart.pc) && self.passes != Some(place) {
            return Some(DebugStop::Breakpoint);
        }
        self.poll().then_some(DebugStop::Interrupt)
    }
}

/// Runs a thread instruction by instruction for a debugger. A stop that the debugger asked for is [`Stop::Requested`]
/// without a store to the outbox.
#[cold]
#[inline(never)]
pub(crate) fn run_debugged<C: Costs, const WATCHED: bool>(
    debug: &mut Debug,
    hart: &mut Hart,
    text: &mut Text,
    bus: &mut ThreadBus<'_, C, WATCHED>,
    limits: &Limits,
) -> Stop {
    loop {
        debug.why = debug.before(bus.thread, hart);
        if debug.why.is_some() {
            return Stop::Requested;
        }
        // Only now: a step that ends with the slice has ended before another thread runs.
        if hart.cycles >= limits.cycles {
            return Stop::Cycles;
        }
        bus.pc = hart.pc;
        match hart.run(text, bus, &Limits { instructions: 1, ..*limits }) {
            Stop::Instructions => {}
            stop => return stop,
        }
    }
}

impl World {
    /// Attaches a debugger: the machine stops when the first event handler begins, and from then on as the debugger
    /// says. Instructions of the debugged process are executed one by one, which takes wall time, but no virtual time.
    ///
    /// # Errors
    /// The machine has a timing model.
    pub fn attach_debugger(&mut self, hook: Box<dyn Debugger>) -> Result<(), MachineError> {
        if self.config.timing.is_some() {
            return Err(MachineError::TimingDebugged { model: self.config.model_name().to_owned() });
        }
        let resume = Resume { action: Action::Continue, breakpoints: BTreeSet::new() };
        let debug = Debug { hook, focus: None, resume, step_from: 0, passes: None, slice: None, polls: 0, why: None };
        self.probes.debug = Some(Box::new(debug));
        Ok(())
    }

    /// Takes the debugger off, if there still is one.
    pub fn detach_debugger(&mut self) -> Option<Box<dyn Debugger>> {
        self.probes.debug.take().map(|debug| debug.hook)
    }

    /// A process, to inspect.
    #[must_use]
    pub fn process(&self, card: usize, process: u32) -> Option<&Process> {
        self.cards.get(card)?.processes.get(&process)
    }

    /// Changes the registers of a thread in the middle of an activation.
    ///
    /// # Errors
    /// There is no such thread, or it is not executing: then it has no registers.
    pub fn write_registers(&mut self, card: usize, thread: u32, pc: u64, x: &[u64; 32]) -> Result<(), MachineError> {
        let thread = self.card(card)?.thread_mut(thread)?;
        if thread.state != ThreadState::Running {
            return Err(MachineError::NoThread(thread.id));
        }
        thread.hart.pc = pc;
        thread.hart.x = *x;
        thread.hart.x[0] = 0;
        Ok(())
    }

    /// Ends a process from outside: its threads execute no more, as if the firmware had finished it.
    ///
    /// # Errors
    /// There is no such process.
    pub fn end_process(&mut self, card: usize, process: u32) -> Result<(), MachineError> {
        self.card(card)?.process(process)?;
        self.stop_process(card, process, crate::dpa::process::ProcessStatus::Finished);
        Ok(())
    }

    /// Asks the debugger now and then whether to stop.
    pub(crate) fn poll_debugger(&mut self) {
        if let Some(debug) = self.probes.debug.as_deref_mut()
            && debug.focus.is_some()
            && debug.poll()
        {
            self.interrupt();
        }
    }

    /// Goes on with the slice in which the machine stopped, to its end: nothing else may come in between.
    pub(crate) fn finish_debugged_slice(&mut self) {
        while let Some(Slice { card, thread, .. }) = self.probes.debug.as_ref().and_then(|debug| debug.slice) {
            let cycles = self.cards[card].thread(thread).map_or(u64::MAX, |thread| thread.hart.cycles);
            if self.ready.contains((cycles, card, thread)) {
                self.run_slice(cycles, card, thread);
                self.ready.close();
            } else if let Some(debug) = self.probes.debug.as_deref_mut() {
                debug.slice = None;
            }
        }
        let Some(debug) = self.probes.debug.as_deref() else { return };
        match (debug.resume.action, debug.focus) {
            (Action::Detach, _) => self.probes.debug = None,
            // An RTOS call or a doorbell has ended the slice, and the step with it.
            (Action::Step { thread: id, .. }, Some((card, _)))
                if self.cards[card].thread(id).is_ok_and(|thread| debug.has_stepped(id, &thread.hart)) =>
            {
                self.report_stop(card, id, DebugStop::Step);
            }
            _ => {}
        }
    }

    fn interrupt(&mut self) {
        let Some((card, process)) = self.probes.debug.as_ref().and_then(|debug| debug.focus) else { return };
        let Some(process) = self.process(card, process) else { return };
        let running = |thread: &&crate::dpa::thread::Thread| thread.state == ThreadState::Running;
        let thread = process.threads.values().find(running).or(process.threads.values().next());
        let Some(thread) = thread.map(|thread| thread.id) else { return };
        self.report_stop(card, thread, DebugStop::Interrupt);
    }

    /// The end of the slice that goes on, if this is it.
    pub(crate) fn take_debugged_slice(&mut self, card: usize, id: u32) -> Option<u64> {
        let slice = self.probes.debug.as_deref_mut()?.slice.take()?;
        ((slice.card, slice.thread) == (card, id)).then_some(slice.end_cycles)
    }

    /// The debugger, if this thread is one that it observes.
    pub(crate) fn debugger_of(
        debug: &mut Option<Box<Debug>>,
        whose: (usize, u32),
        kind: ThreadKind,
    ) -> Option<&mut Debug> {
        debug.as_deref_mut().filter(|debug| debug.is_for(whose, kind))
    }

    /// A thread has stopped for the debugger within a slice.
    pub(crate) fn debug_stop(&mut self, card: usize, id: u32, end_cycles: u64) {
        let Some(debug) = self.probes.debug.as_deref_mut() else { return };
        debug.slice = Some(Slice { card, thread: id, end_cycles });
        if let Some(why) = debug.why.take() {
            self.report_stop(card, id, why);
        }
    }

    fn report_stop(&mut self, card: usize, id: u32, why: DebugStop) {
        let Some(&process) = self.cards[card].owners.get(&id) else { return };
        let Some(mut debug) = self.probes.debug.take() else { return };
        debug.focus = Some((card, process));
        let stop = Stopped { card, process, thread: id, why };
        debug.resume = debug.hook.stopped(self, &stop);
        let retired = |id: u32| self.cards[card].thread(id).map_or(0, |thread| thread.hart.instret);
        // A thread leaves the place where it stopped, breakpoint or not.
        debug.passes = Some((id, retired(id)));
        match debug.resume.action {
            Action::Step { thread, .. } => debug.step_from = retired(thread),
            Action::Continue => {}
            // It stays for the rest of the slice, which must not be cut short.
            Action::Detach => debug.resume.breakpoints.clear(),
        }
        self.probes.debug = Some(debug);
    }

    /// A thread has died.
    pub(crate) fn debug_crash(&mut self, card: usize, id: u32, process: u32, cause: &str) {
        if self.probes.debug.as_ref().is_some_and(|debug| debug.focus == Some((card, process))) {
            self.report_stop(card, id, DebugStop::Crash(cause.to_owned()));
        }
    }

    /// A process goes.
    pub(crate) fn debug_end(&mut self, card: usize, process: u32) {
        if self.probes.debug.as_ref().is_some_and(|debug| debug.focus == Some((card, process))) {
            let crashed = self.process(card, process).is_some_and(|process| process.crash().is_some());
            if let Some(mut debug) = self.probes.debug.take() {
                debug.hook.ended(crashed);
            }
        }
    }
}
