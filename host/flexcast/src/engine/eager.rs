//! Eager data of an operation: blocks that ride on the signals of its barrier.

use std::ops::Range;

use flexcast_proto::{RankInfo, eager};

use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::plan::Plan;

/// Signals that may come before their operation begins: one of each round, for 1024 ranks.
const MAX_EARLY: usize = 10;

/// A signal's data that came before the operation it is of.
#[derive(Debug)]
struct Early {
    operation: u32,
    from: u32,
    round: u8,
    data: Vec<u8>,
}

/// Blocks of an eager operation. What one operation has gathered is room for the next.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// Where each rank's block lies.
    pub(crate) blocks: Vec<Range<usize>>,
    pub(crate) bytes: Vec<u8>,
}

impl Gathered {
    /// Makes room for the blocks of an operation, and takes the own one from its place in the receive buffer.
    pub(crate) fn begin(&mut self, plan: &Plan, receive: &Buffer) -> Result<()> {
        let Self { blocks, bytes } = self;
        blocks.clear();
        blocks.resize(plan.ranks() as usize, 0..0);
        let mut end = 0;
        for root in plan.root_ranks() {
            let start = end;
            end += plan.block(root).bytes as usize;
            blocks[root as usize] = start..end;
        }
        bytes.clear();
        bytes.resize(end, 0);
        let own = plan.own();
        let block = blocks[own as usize].clone();
        // A block of no bytes may lie anywhere.
        if block.is_empty() { Ok(()) } else { receive.read(plan.block(own).offset as usize, &mut bytes[block]) }
    }

    /// Takes the other ranks' blocks to their places.
    pub(crate) fn place(&self, plan: &Plan, receive: &mut Buffer) -> Result<()> {
        for root in plan.root_ranks().filter(|root| *root != plan.own()) {
            let block = &self.bytes[self.blocks[root as usize].clone()];
            if !block.is_empty() {
                receive.write(plan.block(root).offset as usize, block)?;
            }
        }
        Ok(())
    }
}

/// What an eager operation gathers.
#[derive(Debug)]
struct Gathering {
    operation: u32,
    gathered: Gathered,
}

/// The eager data of a communicator: of the operation under way, and what has come for the next one.
#[derive(Debug)]
pub(crate) struct Eager {
    place: RankInfo,
    /// Most bytes of all blocks together.
    limit: u64,
    current: Option<Gathering>,
    early: Vec<Early>,
    /// Memory of data that has gone, for data to come.
    spares: Vec<Vec<u8>>,
}

impl Eager {
    pub(crate) const fn new(place: RankInfo, limit: u64) -> Self {
        Self { place, limit, current: None, early: Vec::new(), spares: Vec::new() }
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Begins to gather. False if data that has come for the operation does not fit its blocks.
    pub(crate) fn start(&mut self, operation: u32, gathered: Gathered) -> bool {
        self.current = Some(Gathering { operation, gathered });
        let mut early = std::mem::take(&mut self.early);
        // In the order of their coming: each round after those before it.
        let fits = early
            .iter()
            .filter(|early| early.operation == operation)
            .all(|early| self.place(early.from, early.round, &early.data));
        early.drain(..).for_each(|early| self.give_back(early.data));
        self.early = early;
        fits
    }

    /// Memory of data that has been sent.
    pub(crate) fn give_back(&mut self, mut data: Vec<u8>) {
        if data.capacity() > 0 && self.spares.len() < MAX_EARLY {
            data.clear();
            self.spares.push(data);
        }
    }

    /// Data that has come for an operation, with its senders.
    pub(crate) fn early(&self, operation: u32) -> impl Iterator<Item = (u32, &[u8])> {
        let early = self.early.iter().filter(move |early| early.operation == operation);
        early.map(|early| (early.from, &*early.data))
    }

    /// The operation that begins has no eager data.
    pub(crate) fn forget(&mut self) {
        self.current = None;
        self.early.clear();
    }

    /// The operation is over: what it has gathered.
    pub(crate) fn finish(&mut self) -> Option<Gathered> {
        self.current.take().map(|gathering| gathering.gathered)
    }

    /// The data of the own signal of a round.
    pub(crate) fn data(&mut self, operation: u32, round: u8) -> Vec<u8> {
        let Some(gathering) = self.current.as_ref().filter(|gathering| gathering.operation == operation) else {
            return Vec::new();
        };
        let Gathered { blocks, bytes } = &gathering.gathered;
        let mut data = self.spares.pop().unwrap_or_default();
        for rank in eager::carried(self.place, self.place.rank(), round) {
            data.extend_from_slice(&bytes[blocks[rank as usize].clone()]);
        }
        data
    }

    /// Takes the data of a signal. False if it cannot be that of the operation under way.
    pub(crate) fn take(&mut self, operation: u32, from: u32, round: u8, data: &[u8]) -> bool {
        match &self.current {
            Some(gathering) if gathering.operation == operation => self.place(from, round, data),
            // A peer is one operation ahead at most, and has one signal of each round: the barrier has checked that.
            _ if self.early.len() == MAX_EARLY => false,
            _ => {
                let mut kept = self.spares.pop().unwrap_or_default();
                kept.extend_from_slice(data);
                self.early.push(Early { operation, from, round, data: kept });
                true
            }
        }
    }

    fn place(&mut self, from: u32, round: u8, data: &[u8]) -> bool {
        let Some(Gathering { gathered: Gathered { blocks, bytes }, .. }) = &mut self.current else { return false };
        let mut rest = data;
        for rank in eager::carried(self.place, from, round) {
            let Some(block) = bytes.get_mut(blocks[rank as usize].clone()) else { return false };
            let Some((own, behind)) = rest.split_at_checked(block.len()) else { return false };
            block.copy_from_slice(own);
            rest = behind;
        }
        rest.is_empty()
    }
}
