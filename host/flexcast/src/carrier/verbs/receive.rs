//! The receiving side: chunks to their places.

use std::collections::VecDeque;

use flexio::Completion;

use super::carrier::{VerbsCarrier, VerbsOperations};
use crate::carrier::cpu::incoming::{Taken, count};
use crate::engine::Operation;
use crate::error::Result;
use crate::op::config::GRH_BYTES;

/// How long nothing comes before a chunk that others have overtaken counts as lost, wherever that is in the block.
pub(super) const QUIET_PS: u64 = 20_000_000;
/// Polls of the queue, 32 completions each, before others have their turn.
const MOST_POLLS: u32 = 4;

/// Datagrams that have been taken from the queue, in the order of their coming.
#[derive(Debug)]
pub(super) struct Arrivals {
    waiting: VecDeque<Completion>,
    /// Slots whose receives are to be posted again; kept for their room.
    free: Vec<u32>,
    /// What one takes the processor ([`Device::work_ps`](flexio::Device::work_ps)).
    chunk_ps: u64,
    /// When the processor is done with the first that waits.
    done_ps: Option<u64>,
}

impl Arrivals {
    pub(super) const fn new(chunk_ps: u64) -> Self {
        Self { waiting: VecDeque::new(), free: Vec::new(), chunk_ps, done_ps: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the next one is dealt with; none if there is none.
    pub(super) const fn done_ps(&self) -> Option<u64> {
        self.done_ps
    }

    /// The next one, if the processor has had the time for it.
    fn next(&mut self, now_ps: u64) -> Option<Completion> {
        if self.chunk_ps > 0 && !self.waiting.is_empty() {
            let done_ps = *self.done_ps.get_or_insert(now_ps.saturating_add(self.chunk_ps));
            if now_ps < done_ps {
                return None;
            }
            self.done_ps = (self.waiting.len() > 1).then(|| done_ps.saturating_add(self.chunk_ps));
        }
        self.waiting.pop_front()
    }
}

impl VerbsCarrier {
    /// Takes what has been multicast. Returns whether there was anything.
    pub(super) fn receive_data(&mut self, ops: &mut VerbsOperations, now_ps: u64) -> Result<bool> {
        let mut any = false;
        for _ in 0..MOST_POLLS {
            let waiting = &mut self.arrivals.waiting;
            let count = self.queues.poll_group(|completion| waiting.push_back(completion))?;
            let mut taken = false;
            while let Some(completion) = self.arrivals.next(now_ps) {
                self.take(ops, now_ps, &completion)?;
                self.arrivals.free.push(completion.id as u32);
                taken = true;
            }
            self.queues.post_again(&mut self.arrivals.free)?;
            any |= taken;
            if count == 0 {
                break;
            }
        }
        if !any {
            return Ok(false);
        }
        self.statistics.activations += 1;
        self.acknowledge(ops)?;
        if let Some(operation) = ops.current.as_mut()
            && let Some(watch) = operation.stream.watch.as_mut()
        {
            watch.poll(self.incoming.came(), now_ps);
        }
        Ok(true)
    }

    /// Takes a datagram to its place, and counts it.
    fn take(&mut self, ops: &mut VerbsOperations, now_ps: u64, completion: &Completion) -> Result<()> {
        self.statistics.cqes += 1;
        if completion.status != 0 {
            self.statistics.error_cqes += 1;
            Self::fail_datagrams(ops, now_ps, completion.status);
            return Ok(());
        }
        let Some(immediate) = completion.immediate.map(|immediate| self.derived.layout.decode(immediate)) else {
            self.statistics.unexpected_opcode += 1;
            return Ok(());
        };
        let current = ops.current.as_mut().filter(|_| Some(immediate.collective_id) == self.collective_id);
        let Some(Operation { pieces, receive, .. }) = current else {
            self.statistics.wrong_id += 1;
            return self.acknowledge_past(ops, immediate);
        };
        // The card gives what it sends to its own members of the group, too.
        if self.incoming.is_own(immediate.psn) {
            return Ok(());
        }
        let len = completion.byte_len.saturating_sub(GRH_BYTES) as usize;
        if len == 0 {
            let taken = match self.incoming.end_of(immediate.psn) {
                Some((root, chunks)) => self.incoming.ended(pieces, root, (0, chunks)),
                None => Taken::OutOfRange,
            };
            count(&mut self.statistics, false, taken);
            return Ok(());
        }
        let taken = match self.incoming.place(immediate.psn, len) {
            Ok(offset) => {
                self.queues.copy(completion.id as u32, len, receive.region()?, offset)?;
                self.incoming.placed(pieces, immediate.psn, len)
            }
            Err(taken) => taken,
        };
        count(&mut self.statistics, true, taken);
        Ok(())
    }
}
