//! Operations of a communicator while they are under way: the queue, the conversation with the protocol's state machine
//! ([`conversation`]), and how operations end ([`Requests`]). What moves the bytes is in [`carrier`](crate::carrier).

mod admission;
mod calls;
pub(crate) mod conversation;
mod core;
pub(crate) mod descriptor;
pub(crate) mod eager;
pub(crate) mod notice;
mod requests;

use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::outcome::Failed;
use crate::op::report::Report;
use crate::plan::Plan;
pub(crate) use admission::Admission;
pub(crate) use core::Core;
pub(crate) use requests::Requests;

/// An operation that waits for its turn: `P` is what it does.
#[derive(Debug)]
pub(crate) struct Posted<P = Plan> {
    pub(crate) request: u64,
    pub(crate) plan: P,
    pub(crate) send: Option<Buffer>,
    pub(crate) receive: Buffer,
    pub(crate) posted_ps: u64,
}

/// What an operation does.
#[derive(Debug)]
pub(crate) enum Task {
    /// Every root's block to all ranks.
    Blocks(Plan),
    /// Anything else.
    Collective(Collective),
}

impl Task {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Blocks(plan) => plan.kind.name(),
            Self::Collective(collective) => collective.kind().name(),
        }
    }
}

impl<P> Posted<P> {
    /// The same, of which another thing is known.
    pub(crate) fn map<Q>(self, map: impl FnOnce(P) -> Q) -> Posted<Q> {
        let Self { request, plan, send, receive, posted_ps } = self;
        Posted { request, plan: map(plan), send, receive, posted_ps }
    }

    /// Gives the buffers back of an operation of which nothing has begun.
    pub(crate) fn refuse(self, error: Error) -> Box<Failed> {
        let Self { send, receive, .. } = self;
        Box::new(Failed { error, send, receive: Some(receive), report: Report::default() })
    }
}

impl Posted {
    /// Copies the own block to its place in the receive buffer, unless it is there.
    pub(crate) fn place_own_block(&mut self) -> Result<()> {
        let Self { plan, send, receive, .. } = self;
        let Some(send) = send.as_ref().filter(|send| !send.is_empty()) else { return Ok(()) };
        receive.copy_from(plan.block(plan.own()).offset as usize, send, 0, send.len())
    }
}
