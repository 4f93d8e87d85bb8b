//! State of the operation under way.

use std::collections::VecDeque;
use std::ops::Range;

use flexcast_proto::p2p::Part;
use flexcast_proto::{Algorithm, Failure, Pieces, ProgressWatch, StallWindow};

use super::Read;
use crate::api::buffer::Buffer;
use crate::api::report::Report;
use crate::datapath::udp::mesh::Source;
use crate::plan::Plan;

/// Where an operation is between its post and its end.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Active,
    /// All ranks have what they need from this one.
    Released,
    /// It has failed, on this rank or on another.
    Failed(Failure),
}

impl State {
    pub(super) const fn is_active(&self) -> bool {
        matches!(self, Self::Active)
    }

    pub(super) fn release(&mut self) {
        if self.is_active() {
            *self = Self::Released;
        }
    }

    /// The first failure counts; one that comes behind the end does not.
    pub(super) fn fail(&mut self, failure: Failure) {
        if self.is_active() {
            *self = Self::Failed(failure);
        }
    }
}

/// The own block on its way to the group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) first_psn: u32,
    pub(super) chunks: u32,
    /// Chunks that the system has.
    pub(super) sent: u32,
    /// When it last took any.
    pub(super) moved_ps: u64,
    /// When the system would take no more.
    pub(super) full_ps: Option<u64>,
}

/// How far the reads of a group of pieces are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Under,
    /// That of the group whose first piece this is, is over.
    Over {
        first: u32,
    },
}

/// The operation under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) request: u64,
    pub(super) plan: Plan,
    /// The cut of its blocks for recovery.
    pub(super) pieces: Pieces,
    /// Chunks of each root that may be under way.
    pub(super) window_chunks: u32,
    pub(super) send: Option<Buffer>,
    pub(super) receive: Buffer,
    pub(super) algorithm: Algorithm,
    /// Its number, alike on all ranks.
    pub(super) operation: u32,
    pub(super) state: State,
    /// It is this rank's turn.
    pub(super) sending: Option<Sending>,
    /// How data comes, from the barrier on.
    pub(super) watch: Option<ProgressWatch>,
    /// Multicast has stalled, and all that is missing has been asked for.
    pub(super) given_up: bool,
    /// Pieces have been given up.
    pub(super) repairs: bool,
    /// What has been asked of a peer, in this order; whether it is the last of its group.
    pub(super) reads: VecDeque<(u32, Read, bool)>,
    /// When the protocol's state machine wants to be notified of the time.
    pub(super) deadline_ps: u64,
    pub(super) report: Report,
}

impl Running {
    /// When its multicast counts as stalled; none before the barrier, and once that has been found.
    pub(super) fn stalled_ps(&self, window: StallWindow) -> Option<u64> {
        let watch = self.watch.filter(|_| !self.given_up && self.algorithm == Algorithm::Multicast)?;
        Some(watch.stalled_ps(window, 0))
    }

    /// Whether its buffers are the user's again.
    pub(super) const fn is_over(&self) -> bool {
        match self.state {
            State::Active => false,
            State::Released => self.sending.is_none(),
            State::Failed(_) => true,
        }
    }

    /// Takes bytes that were read of a peer; none if they were not asked for.
    pub(super) fn take_read(&mut self, from: u32, tag: u32, offset: u64, bytes: &[u8]) -> Option<Reading> {
        let (peer, read, last) = self.reads.front_mut()?;
        let len = bytes.len() as u64;
        if (*peer, read.tag, read.offset) != (from, tag, offset) || len == 0 || len > read.bytes {
            return None;
        }
        let start = offset as usize;
        self.receive.bytes_mut().get_mut(start..start + bytes.len())?.copy_from_slice(bytes);
        read.offset += len;
        read.bytes -= len;
        if read.bytes > 0 {
            return Some(Reading::Under);
        }
        let over = *last;
        self.reads.pop_front();
        Some(if over { Reading::Over { first: tag } } else { Reading::Under })
    }

    /// Blocks that ride on the barrier: where each rank's lies among all, and the bytes, which have the own one.
    pub(super) fn eager(&self, own: u32) -> (Vec<Range<usize>>, Vec<u8>) {
        let mut blocks = vec![0..0; self.plan.ranks() as usize];
        let mut end = 0;
        for root in self.plan.root_ranks() {
            let start = end;
            end += self.plan.block(root).bytes as usize;
            blocks[root as usize] = start..end;
        }
        let mut bytes = vec![0; end];
        let block = blocks[own as usize].clone();
        let at = if block.is_empty() { 0 } else { self.plan.block(own).offset as usize };
        bytes[block.clone()].copy_from_slice(&self.receive.bytes()[at..at + block.len()]);
        (blocks, bytes)
    }

    /// Takes the other ranks' blocks, which have come with the barrier, to their places.
    pub(super) fn place_eager(&mut self, own: u32, blocks: &[Range<usize>], bytes: &[u8]) {
        for root in self.plan.root_ranks().filter(|root| *root != own) {
            let block = &bytes[blocks[root as usize].clone()];
            if !block.is_empty() {
                let at = self.plan.block(root).offset as usize;
                self.receive.bytes_mut()[at..at + block.len()].copy_from_slice(block);
            }
        }
    }
}

impl Source for Running {
    fn buffer(&self) -> &[u8] {
        self.receive.bytes()
    }

    fn part(&self, _: Part, _: u64) -> &[u8] {
        &[]
    }
}
