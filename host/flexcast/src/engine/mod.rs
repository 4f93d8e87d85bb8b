//! The operation engine: one for all carriers.
//!
//! It takes operations from the queue, drives the protocol, keeps deadlines, and ends operations ([`Engine`]). What
//! moves the bytes is a [`Carrier`]; operations may go to an [`Offload`](offload::Offload) instead. How operations end
//! is seen by those who post and wait in [`Requests`]; they reach the engine by [`Datapath`], one thread at a time.

mod admission;
mod calls;
pub(crate) mod carrier;
pub(crate) mod conversation;
mod core;
pub(crate) mod datapath;
pub(crate) mod descriptor;
pub(crate) mod eager;
pub(crate) mod end;
pub(crate) mod event;
#[cfg(all(test, feature = "interleavings"))]
mod interleavings;
mod messages;
pub(crate) mod offload;
pub(crate) mod operation;
mod progress;
pub(crate) mod protocol;
mod requests;
#[cfg(test)]
pub(crate) mod scripted;
#[cfg(test)]
pub(crate) mod staged;
#[cfg(test)]
mod tests;
mod turns;

use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::outcome::Failed;
use crate::op::report::Report;
use crate::plan::Plan;
pub(crate) use admission::Admission;
pub(crate) use carrier::Carrier;
pub(crate) use core::Core;
pub(crate) use datapath::Datapath;
pub(crate) use operation::{Exchange, Operation, State};
pub(crate) use progress::{Engine, Operations};
pub(crate) use protocol::Protocol;
pub(crate) use requests::Requests;
pub(crate) use turns::Turns;

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
