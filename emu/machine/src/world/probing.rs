//! The machine under its probes: who is notified of what.

use emu_nic::Effects;

use super::World;
use crate::card::Card;
use crate::dpa::crash::CrashRecord;
use crate::dpa::process::DeathHook;
use crate::dpa::thread::{ThreadKind, ThreadState};
use crate::observe::observer::{FaultSink, Observer};
use crate::observe::record::{Ending, Recorder, Recording, ThreadIdentity, What};
use crate::time::cycles_to_ps;

impl World {
    /// Records what happens from now on, at most `limit` records; what was recorded before is forgotten.
    pub fn start_recording(&mut self, limit: usize) {
        self.probes.recorder = Some(Box::new(Recorder::new(limit)));
        for card in &mut self.cards {
            card.nic.observe(true);
        }
    }

    /// Whether [`World::start_recording`] has been called and [`World::take_recording`] has not.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.probes.recorder.is_some()
    }

    /// A copy of what has been recorded so far; `None` without a recording.
    #[must_use]
    pub fn recording(&self) -> Option<Recording> {
        self.probes.recorder.as_ref().map(|recorder| recorder.so_far(self.now_ps, self.config.model_name()))
    }

    /// Ends the recording and gives it; `None` if there was none.
    pub fn take_recording(&mut self) -> Option<Recording> {
        let recorder = self.probes.recorder.take()?;
        for card in &mut self.cards {
            card.nic.observe(false);
        }
        Some(recorder.finish(self.now_ps, self.config.model_name()))
    }

    /// Reports crashes to an observer, and the state in each `period_ps` of virtual time. Replaces the one before.
    pub fn observe(&mut self, period_ps: u64, observer: Box<dyn Observer>) {
        self.probes.period_ps = period_ps.max(1);
        self.probes.state_due_ps = self.now_ps;
        self.probes.update_due();
        self.probes.observer = Some(observer);
    }

    /// Whether there is an observer.
    #[must_use]
    pub fn is_observed(&self) -> bool {
        self.probes.observer.is_some()
    }

    /// Takes the observer back.
    pub fn take_observer(&mut self) -> Option<Box<dyn Observer>> {
        self.probes.state_due_ps = u64::MAX;
        self.probes.update_due();
        self.probes.observer.take()
    }

    /// Gives the observer the state.
    #[cold]
    pub fn publish_state(&mut self) {
        let Some(mut observer) = self.probes.observer.take() else { return };
        observer.state(&self.snapshot());
        self.probes.state_due_ps = self.now_ps.saturating_add(self.probes.period_ps);
        self.probes.update_due();
        self.probes.observer = Some(observer);
    }

    /// Has deaths, races and diagnoses reported as they happen. Replaces the one before.
    pub fn report_faults_to(&mut self, fault_sink: Box<dyn FaultSink>) {
        self.probes.fault_sink = Some(fault_sink);
    }

    /// A process has died and been stopped: everybody is notified, now, as the host may never ask.
    pub(crate) fn announce_death(&mut self, card: usize, id: u32) {
        let mut fault_sink = self.probes.fault_sink.take();
        if let Ok(process) = self.cards[card].process_mut(id) {
            if let (Some(fault_sink), Some(record)) = (&mut fault_sink, process.crash()) {
                fault_sink.died(card, process, record);
            }
            if let Some(DeathHook(hook)) = process.on_death.take() {
                hook();
            }
        }
        self.probes.fault_sink = fault_sink;
        self.publish_state();
    }

    /// A thread died; nothing has been stopped yet.
    pub(crate) fn publish_crash(&mut self, card: usize, record: &CrashRecord) {
        if let Some(recorder) = &mut self.probes.recorder {
            recorder.crash(record.at_ps, (card, record.thread), &record.cause);
        }
        self.debug_crash(card, record.thread, record.process, &record.cause);
        let Some(mut observer) = self.probes.observer.take() else { return };
        if let Ok(process) = self.cards[card].process(record.process) {
            observer.crashed(card, process, record);
        }
        self.probes.observer = Some(observer);
    }

    /// A thread begins to execute.
    pub(crate) fn note_begin(&mut self, card: usize, process: u32, id: u32) {
        let Some(recorder) = self.probes.recorder.as_deref_mut() else { return };
        let Some(process) = self.cards[card].processes.get(&process) else { return };
        let Some(thread) = process.threads.get(&id) else { return };
        let (kind, eu) = (thread.kind, thread.port.eu);
        let call = (kind != ThreadKind::EventHandler).then(|| process.entry_symbol(thread));
        if !recorder.knows((card, id)) {
            let entry = if call.is_some() { String::new() } else { process.entry_symbol(thread) };
            recorder.introduce((card, id), ThreadIdentity { process: process.id, kind, eu, entry });
        }
        let hart = &thread.hart;
        recorder.begin(cycles_to_ps(hart.cycles), (card, id), (hart.cycles, hart.instret), call);
    }

    /// A thread executes no more, if it did.
    pub(crate) fn note_end(&mut self, card: usize, id: u32) {
        let Some(recorder) = self.probes.recorder.as_deref_mut() else { return };
        let Ok(thread) = self.cards[card].thread(id) else { return };
        let hart = &thread.hart;
        let returned = thread.kind != ThreadKind::EventHandler && thread.state == ThreadState::Waiting;
        let otherwise = if returned { Ending::Return } else { Ending::Stopped };
        recorder.end(cycles_to_ps(hart.cycles), (card, id), (hart.cycles, hart.instret), otherwise);
    }

    pub(crate) fn note_trigger(&mut self, at_ps: u64, card: usize, id: u32) {
        if let Some(recorder) = &mut self.probes.recorder {
            recorder.push(at_ps, card, Some(id), What::Trigger);
        }
    }

    /// What a call of the network card led to.
    pub(crate) fn note_effects(&mut self, card: usize, effects: &Effects) {
        let agent = self.probes.agent.take();
        let Some(recorder) = self.probes.recorder.as_deref_mut() else { return };
        let Some(Card { nic, .. }) = self.cards.get_mut(card) else { return };
        for (at_ps, note) in nic.take_notes() {
            let thread = match note {
                emu_nic::Note::Doorbell { .. } | emu_nic::Note::Arm { .. } => agent,
                _ => None,
            };
            recorder.push(at_ps, card, thread, What::Card(note));
        }
        for &event in &effects.async_events {
            recorder.push(self.now_ps, card, None, What::Failure(event));
        }
    }
}
