//! Ends of operations, until somebody asks for them.

use flexcast_proto::Failure;

use super::Posted;
use crate::api::outcome::{Failed, Outcome};
use crate::api::report::Report;
use crate::error::Error;

/// The requests of a communicator.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    posted: u64,
    /// Finished operations that nobody has asked for yet, by request.
    done: Vec<(u64, Outcome)>,
    /// Operations that nobody will ask for.
    abandoned: Vec<u64>,
    /// An operation has ended, or a library call failed, since this was last taken.
    ended: bool,
    /// A library call has failed.
    useless: bool,
}

impl Requests {
    /// The number of a request.
    pub(crate) fn open(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }

    /// The last request was refused.
    pub(crate) fn withdraw(&mut self) {
        self.posted -= 1;
    }

    pub(crate) fn is_done(&self, request: u64) -> bool {
        self.done.iter().any(|(number, _)| *number == request)
    }

    /// The end of an operation, which is given once.
    pub(crate) fn take_done(&mut self, request: u64) -> Option<Outcome> {
        let at = self.done.iter().position(|(number, _)| *number == request)?;
        Some(self.done.swap_remove(at).1)
    }

    /// Nobody will ask for the end of an operation: its buffers are dropped then.
    pub(crate) fn abandon(&mut self, request: u64) {
        if self.take_done(request).is_none() {
            self.abandoned.push(request);
        }
    }

    pub(crate) fn finish(&mut self, request: u64, outcome: Outcome) {
        self.ended = true;
        match self.abandoned.iter().position(|abandoned| *abandoned == request) {
            Some(at) => _ = self.abandoned.swap_remove(at),
            None => self.done.push((request, outcome)),
        }
    }

    /// Refuses operations that wait for their turn.
    pub(crate) fn refuse<P>(&mut self, waiting: impl IntoIterator<Item = Posted<P>>, failure: Failure) {
        for Posted { request, send, receive, .. } in waiting {
            let report = Report { failure: Some(failure), ..Report::default() };
            let error = Error::Broken { failure };
            self.finish(request, Err(Box::new(Failed { error, send, receive: Some(receive), report })));
        }
    }

    /// A library call has failed: whoever waits is to poll by itself, since nothing may end any more.
    pub(crate) const fn give_up(&mut self) {
        (self.useless, self.ended) = (true, true);
    }

    /// Whether operations have ended since this was last asked.
    pub(crate) fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.ended)
    }

    /// Whether whoever waits for a request is to be woken.
    pub(crate) fn is_over(&self, request: u64) -> bool {
        self.useless || self.is_done(request)
    }
}
