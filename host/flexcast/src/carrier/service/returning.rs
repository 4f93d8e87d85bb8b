//! Operations that are over, and whose memory the service process gives back before its owner gets it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flexcast_service::{Client, MemoryId};

use crate::error::Error;
use crate::op::buffer::Buffer;
use crate::op::lease::DeferredFree;
use crate::op::outcome::{Done, Failed, Outcome};
use crate::op::report::Report;

/// Longest that a service process takes to let go of a key. Then it counts as gone.
const BOUND: Duration = Duration::from_secs(5);

/// An operation that waits for its memory.
#[derive(Debug)]
pub(super) struct Returning {
    pub(super) request: u64,
    send: Option<Buffer>,
    receive: Buffer,
    report: Report,
    error: Option<Error>,
    memory: Vec<MemoryId>,
    until: Instant,
}

impl Returning {
    /// Takes the memory back that is not to stay with the service process: all of it, or that of users alone.
    pub(super) fn begin(
        client: &mut Client,
        deferred_free: &Arc<DeferredFree>,
        request: u64,
        (mut send, mut receive): (Option<Buffer>, Buffer),
        (report, error, all): (Report, Option<Error>, bool),
    ) -> Self {
        let mut memory = Vec::new();
        for buffer in send.iter_mut().chain([&mut receive]) {
            if (all || buffer.is_of_user())
                && let Some(id) = buffer.end_lease(deferred_free)
            {
                if let Err(error) = client.take_back(id) {
                    tracing::warn!(%error, "memory of an operation is not taken back: its service process counts as \
                        gone");
                    client.lose();
                }
                memory.push(id);
            }
        }
        Self { request, send, receive, report, error, memory, until: Instant::now() + BOUND }
    }

    /// Takes what has come back; returns whether that is all, and how many have. A service process that does not give
    /// it counts as gone.
    pub(super) fn poll(&mut self, client: &mut Client) -> (bool, usize) {
        let before = self.memory.len();
        self.memory.retain(|id| client.taken_back(*id).is_none());
        if !self.memory.is_empty() && Instant::now() >= self.until {
            client.lose();
            self.memory.retain(|id| client.taken_back(*id).is_none());
            return (true, before - self.memory.len());
        }
        (self.memory.is_empty(), before - self.memory.len())
    }

    /// How the operation has ended, and buffers that the card does not let go of.
    pub(super) fn end(self) -> (u64, Outcome, Vec<Buffer>) {
        let Self { request, send, receive, report, error, memory, .. } = self;
        if memory.is_empty() {
            let outcome = match error {
                None => Ok(Done { send, receive, report }),
                Some(error) => Err(Box::new(Failed { error, send, receive: Some(receive), report })),
            };
            return (request, outcome, Vec::new());
        }
        let reason = "the card does not let go of the keys of its buffers: they stay with the communicator".to_owned();
        let error = error.unwrap_or(Error::Argument { operation: "service", reason });
        let outcome = Err(Box::new(Failed { error, send: None, receive: None, report }));
        (request, outcome, send.into_iter().chain([receive]).collect())
    }
}
