//! Probes of a running machine: recorder, observer, debugger. All off by default; none changes a result.

use super::debug::Debug;
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
