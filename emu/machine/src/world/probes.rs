//! Probes of a running machine: recorder, observer, debugger. All off by default; none changes a result.

use std::collections::BTreeSet;

use super::debug::Debug;
use crate::observe::diagnosis::Diagnosis;
use crate::observe::observer::{FaultSink, Observer};
use crate::observe::record::{Recorder, What};

/// The probes that are on.
pub(crate) struct Probes {
    pub(crate) recorder: Option<Box<Recorder>>,
    /// The thread whose doorbell the card is being notified of.
    pub(crate) agent: Option<u32>,
    pub(crate) debug: Option<Box<Debug>>,
    pub(crate) fault_sink: Option<Box<dyn FaultSink>>,
    pub(super) observer: Option<Box<dyn Observer>>,
    pub(super) period_ps: u64,
    /// When the observer wants the next state; never without one.
    pub(crate) state_due_ps: u64,
    /// When queues are to be checked.
    pub(crate) check_due_ps: u64,
    /// The earlier of the two.
    pub(crate) due_ps: u64,
    /// When a host polled last while nothing was due, and how often then.
    pub(super) idle: (u64, u32),
    /// What has been found: the first, and the card, kind and number of all.
    pub(super) diagnoses: Vec<Diagnosis>,
    pub(super) diagnosed: BTreeSet<(usize, u8, u32)>,
}

impl Default for Probes {
    fn default() -> Self {
        Probes {
            recorder: None,
            agent: None,
            debug: None,
            fault_sink: None,
            observer: None,
            period_ps: u64::MAX,
            state_due_ps: u64::MAX,
            check_due_ps: 0,
            due_ps: 0,
            idle: (0, 0),
            diagnoses: Vec::new(),
            diagnosed: BTreeSet::new(),
        }
    }
}

impl std::fmt::Debug for Probes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probes")
            .field("recorder", &self.recorder.is_some())
            .field("fault_sink", &self.fault_sink.is_some())
            .field("observer", &self.observer.is_some())
            .field("debugger", &self.debug.is_some())
            .finish_non_exhaustive()
    }
}

impl Probes {
    /// One of the times has changed.
    pub(super) fn update_due(&mut self) {
        self.due_ps = self.state_due_ps.min(self.check_due_ps);
    }

    pub(crate) fn note_call(&mut self, at_ps: u64, card: usize, thread: u32, number: u64) {
        if let Some(recorder) = &mut self.recorder {
            recorder.call(at_ps, (card, thread), number);
        }
    }

    pub(crate) fn note_log(&mut self, at_ps: u64, card: usize, thread: u32, stream: u64, text: &[u8]) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push(at_ps, card, Some(thread), What::Log { stream, text: text.to_vec() });
        }
    }
}
