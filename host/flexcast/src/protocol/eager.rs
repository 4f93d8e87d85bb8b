//! Eager data of an operation: blocks that ride on the signals of its barrier.

use std::ops::Range;

use flexcast_proto::{RankInfo, eager};

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

/// What an eager operation gathers.
#[derive(Debug)]
struct Gathering {
    operation: u32,
    /// Where each rank's block lies.
    blocks: Vec<Range<usize>>,
    bytes: Vec<u8>,
}

/// The eager data of a communicator: of the operation under way, and what has come for the next one.
#[derive(Debug)]
pub(super) struct Eager {
    place: RankInfo,
    /// Most bytes of all blocks together.
    limit: u64,
    current: Option<Gathering>,
    early: Vec<Early>,
}

impl Eager {
    pub(super) const fn new(place: RankInfo, limit: u64) -> Self {
        Self { place, limit, current: None, early: Vec::new() }
    }

    pub(super) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Begins to gather. False if data that has come for the operation does not fit its blocks.
    pub(super) fn start(&mut self, operation: u32, blocks: Vec<Range<usize>>, bytes: Vec<u8>) -> bool {
        self.current = Some(Gathering { operation, blocks, bytes });
        let early = std::mem::take(&mut self.early);
        // In the order of their coming: each round after those before it.
        early
            .into_iter()
            .filter(|early| early.operation == operation)
            .all(|early| self.place(early.from, early.round, &early.data))
    }

    /// The operation that begins has no eager data.
    pub(super) fn forget(&mut self) {
        (self.current, self.early) = (None, Vec::new());
    }

    /// The operation is over: what it has gathered.
    pub(super) fn finish(&mut self) -> Option<(Vec<Range<usize>>, Vec<u8>)> {
        self.current.take().map(|gathering| (gathering.blocks, gathering.bytes))
    }

    /// The data of the own signal of a round.
    pub(super) fn data(&self, operation: u32, round: u8) -> Vec<u8> {
        let Some(gathering) = self.current.as_ref().filter(|gathering| gathering.operation == operation) else {
            return Vec::new();
        };
        let mut data = Vec::new();
        for rank in eager::carried(self.place, self.place.rank(), round) {
            data.extend_from_slice(&gathering.bytes[gathering.blocks[rank as usize].clone()]);
        }
        data
    }

    /// Takes the data of a signal. False if it cannot be that of the operation under way.
    pub(super) fn take(&mut self, operation: u32, from: u32, round: u8, data: &[u8]) -> bool {
        match &self.current {
            Some(gathering) if gathering.operation == operation => self.place(from, round, data),
            // A peer is one operation ahead at most, and has one signal of each round: the barrier has checked that.
            _ if self.early.len() == MAX_EARLY => false,
            _ => {
                self.early.push(Early { operation, from, round, data: data.to_vec() });
                true
            }
        }
    }

    fn place(&mut self, from: u32, round: u8, data: &[u8]) -> bool {
        let Some(gathering) = &mut self.current else { return false };
        let mut rest = data;
        for rank in eager::carried(self.place, from, round) {
            let Some(block) = gathering.bytes.get_mut(gathering.blocks[rank as usize].clone()) else { return false };
            let Some((own, behind)) = rest.split_at_checked(block.len()) else { return false };
            block.copy_from_slice(own);
            rest = behind;
        }
        rest.is_empty()
    }
}
