//! The recorder: what happened, when and to whom, for a timeline. Off unless asked for; it changes no time and no
//! result.

use std::collections::BTreeMap;

use emu_nic::{AsyncEvent, Note};

use super::diagnosis::Diagnosis;
use crate::dpa::layout::call;
use crate::dpa::thread::ThreadKind;

/// Records kept unless another limit is asked for: about 100 MB of memory.
pub const DEFAULT_RECORDS: usize = 1_000_000;

/// How an activation or a call of a thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The handler rescheduled: it waits for its next trigger.
    Reschedule,
    /// The handler asked to be started again.
    Retrigger,
    /// The handler finished for good.
    Finish,
    /// A call returned.
    Return,
    /// The thread died.
    Crash,
    /// Its process ended, or the host destroyed the thread.
    Stopped,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Inside the card.
    Card(Note),
    /// The thread of the record begins to execute.
    Begin {
        /// Symbol of what it executes where that is not the thread's entry function: calls.
        entry: Option<String>,
    },
    /// It has stopped executing.
    End {
        /// Why.
        how: Ending,
        /// Instructions retired since it began.
        instructions: u64,
        /// Cycles since it began.
        cycles: u64,
    },
    /// The thread of the record was triggered; it starts now, or when it can.
    Trigger,
    /// An RTOS call: its number as in [`layout::call`](crate::dpa::layout::call).
    Call(u64),
    /// A message of the firmware to a stream.
    Log {
        /// Stream id; 255 addresses all.
        stream: u64,
        /// The bytes.
        text: Vec<u8>,
    },
    /// The thread died.
    Crash(String),
    /// A program on the card is stuck, or is about to be.
    Diagnosis(Diagnosis),
    /// A queue failed.
    Failure(AsyncEvent),
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Virtual time in picoseconds. Records are in the order in which the machine went through them: those of one
    /// thread, or of one queue, are in order of time, all together are not quite, since threads run in slices.
    pub at_ps: u64,
    /// Index of the card.
    pub card: usize,
    /// The DPA thread that did it, or that it happened to; `None` for the card itself and for the host.
    pub thread: Option<u32>,
    /// What.
    pub what: What,
}

/// Who a thread of a recording is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadIdentity {
    /// Process id.
    pub process: u32,
    /// What starts it.
    pub kind: ThreadKind,
    /// Execution unit.
    pub eu: u32,
    /// Symbol of its entry function, empty where the image has none; that of a call's is not here.
    pub entry: String,
}

/// Everything recorded.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// What happened first, up to the limit.
    pub records: Vec<Record>,
    /// Records that the limit left out, all of them later than the last kept.
    pub left_out: u64,
    /// Every thread that ran: (card, thread id).
    pub threads: BTreeMap<(usize, u32), ThreadIdentity>,
    /// Virtual time at the end, in picoseconds.
    pub end_ps: u64,
    /// Name of the model behind the times.
    pub model: String,
}

/// A thread that is executing.
#[derive(Clone, Copy, Debug)]
struct Open {
    cycles: u64,
    instructions: u64,
    how: Option<Ending>,
}

#[derive(Debug)]
pub(crate) struct Recorder {
    recording: Recording,
    limit: usize,
    open: BTreeMap<(usize, u32), Open>,
}

impl Recorder {
    pub(crate) fn new(limit: usize) -> Self {
        Recorder { recording: Recording::default(), limit, open: BTreeMap::new() }
    }

    pub(crate) fn push(&mut self, at_ps: u64, card: usize, thread: Option<u32>, what: What) {
        if self.recording.records.len() < self.limit {
            self.recording.records.push(Record { at_ps, card, thread, what });
        } else {
            self.recording.left_out += 1;
        }
    }

    pub(crate) fn begin(&mut self, at_ps: u64, whose: (usize, u32), counters: (u64, u64), entry: Option<String>) {
        let (cycles, instructions) = counters;
        self.open.insert(whose, Open { cycles, instructions, how: None });
        self.push(at_ps, whose.0, Some(whose.1), What::Begin { entry });
    }

    pub(crate) fn knows(&self, whose: (usize, u32)) -> bool {
        self.recording.threads.contains_key(&whose)
    }

    pub(crate) fn introduce(&mut self, whose: (usize, u32), identity: ThreadIdentity) {
        self.recording.threads.insert(whose, identity);
    }

    pub(crate) fn end(&mut self, at_ps: u64, whose: (usize, u32), counters: (u64, u64), otherwise: Ending) {
        let Some(open) = self.open.remove(&whose) else { return };
        let (cycles, instructions) = (counters.0 - open.cycles, counters.1 - open.instructions);
        let how = open.how.unwrap_or(otherwise);
        self.push(at_ps, whose.0, Some(whose.1), What::End { how, instructions, cycles });
    }

    fn ends_by(&mut self, whose: (usize, u32), how: Ending) {
        if let Some(open) = self.open.get_mut(&whose) {
            open.how = Some(how);
        }
    }

    pub(crate) fn call(&mut self, at_ps: u64, whose: (usize, u32), number: u64) {
        self.push(at_ps, whose.0, Some(whose.1), What::Call(number));
        match number {
            call::RESCHEDULE => self.ends_by(whose, Ending::Reschedule),
            call::RETRIGGER => self.ends_by(whose, Ending::Retrigger),
            call::FINISH | call::PROCESS_FINISH => self.ends_by(whose, Ending::Finish),
            _ => {}
        }
    }

    pub(crate) fn crash(&mut self, at_ps: u64, whose: (usize, u32), cause: &str) {
        self.ends_by(whose, Ending::Crash);
        self.push(at_ps, whose.0, Some(whose.1), What::Crash(cause.to_owned()));
    }

    pub(crate) fn so_far(&self, end_ps: u64, model: &str) -> Recording {
        Recording { end_ps, model: model.to_owned(), ..self.recording.clone() }
    }

    pub(crate) fn finish(mut self, end_ps: u64, model: &str) -> Recording {
        (self.recording.end_ps, self.recording.model) = (end_ps, model.to_owned());
        self.recording
    }
}
