//! Memory and arithmetic around the machines of sparse AllReduce: arrays, rings and transmit slots of blocks of any
//! kind.

use std::fmt::Debug;
use std::hash::Hash;

use flexcast_proto::sparse::{
    Additions, Aggregator, AggregatorError, AggregatorLimits, Answer, Answered, Incoming, Order, Parameters,
    PartialSums, Received, Step, Votes, Worker, WorkerError,
};

/// Limits of tests without a clock.
pub(crate) const NO_LIMITS: AggregatorLimits = AggregatorLimits { iteration_ps: u64::MAX, linger_ps: u64::MAX };

/// What a block holds.
pub(crate) trait Block: Copy + Debug + Eq + Hash {
    const ZERO: Self;

    fn add(&mut self, other: &Self);
}

impl Block for i32 {
    const ZERO: Self = 0;

    fn add(&mut self, other: &Self) {
        *self += other;
    }
}

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Message<B> {
    pub(crate) iteration: u32,
    pub(crate) displacement: u32,
    pub(crate) blocks: Vec<B>,
    pub(crate) votes: Vec<u32>,
}

impl<B> Message<B> {
    fn incoming(&self, parameters: Parameters) -> Incoming {
        let votes = Votes::read(parameters, self.votes.iter().copied()).unwrap();
        Incoming { displacement: self.displacement, blocks: self.blocks.len() as u32, votes }
    }
}

/// A worker with its memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Party<B> {
    parameters: Parameters,
    pub(crate) machine: Worker,
    pub(crate) array: Vec<B>,
    ring: Vec<B>,
    /// Blocks that were read: all below this one, in order.
    read: usize,
    /// By block: whether its sum is there.
    written: Vec<bool>,
}

impl<B: Block> Party<B> {
    pub(crate) fn new(parameters: Parameters, array: Vec<B>) -> Self {
        Self {
            parameters,
            machine: Worker::new(parameters, array.len() as u32).unwrap(),
            ring: vec![B::ZERO; 2 * parameters.blocks_per_message() as usize],
            read: 0,
            written: vec![false; array.len()],
            array,
        }
    }

    /// Does what is to be done until the worker waits. Returns whether a message is to be sent.
    pub(crate) fn drive(&mut self) -> bool {
        let mut send = false;
        loop {
            match self.machine.poll() {
                Step::Store { block, slot, .. } => {
                    assert!((block as usize) < self.read, "written before it was read");
                    assert!(!std::mem::replace(&mut self.written[block as usize], true), "written twice");
                    self.array[block as usize] = self.ring[slot as usize];
                }
                Step::Scan { from, slot } => {
                    // Each block is read once, in order.
                    assert_eq!(from as usize, self.read, "a worker never goes back");
                    let mut found = None;
                    while found.is_none() && self.read < self.array.len() {
                        let block = self.array[self.read];
                        self.ring[slot as usize] = block;
                        found = (block != B::ZERO).then_some(self.read as u32);
                        self.read += 1;
                    }
                    self.machine.found(found).unwrap();
                }
                Step::Send => send = true,
                Step::Wait | Step::Complete => return send,
            }
        }
    }

    /// The message under way, as its memory is now.
    pub(crate) fn message(&self) -> Option<Message<B>> {
        let message = self.machine.message()?;
        let entries = message.send.ranges();
        assert!(entries.iter().filter(|entry| !entry.is_empty()).count() <= 2);
        let blocks = entries.into_iter().flatten().map(|slot| self.ring[slot as usize]).collect();
        Some(Message {
            iteration: message.iteration,
            displacement: message.displacement.bits(),
            blocks,
            votes: message.votes.places().to_vec(),
        })
    }

    /// An answer has come. Its sums go into the ring only if it is the one that is awaited.
    pub(crate) fn answer(&mut self, iteration: u32, sums: &[B], next: &[u32]) -> Result<Answered, WorkerError> {
        let next = Votes::read(self.parameters, next.iter().copied())?;
        let before = self.machine.message();
        let answered = self.machine.answer(iteration, sums.len() as u32, &next)?;
        if answered == Answered::New {
            let receive = before.expect("an answer to a message").receive;
            assert_eq!(receive.len() as usize, sums.len());
            for (slot, sum) in receive.iter().zip(sums) {
                self.ring[slot as usize] = *sum;
            }
        }
        Ok(answered)
    }
}

/// The two transmit slots: blocks, and behind them the indices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TransmitSlots<B> {
    blocks: [Vec<B>; 2],
    indices: [Vec<u32>; 2],
    /// Both are the same one, to see that a test notices.
    pub(crate) one: bool,
}

struct Adding<'a, B> {
    slot: &'a mut [B],
    message: &'a [B],
}

impl<B: Block> PartialSums for Adding<'_, B> {
    fn copy(&mut self, _: u32, place: u32, packed: u32) {
        self.slot[place as usize] = self.message[packed as usize];
    }

    fn add(&mut self, _: u32, place: u32, packed: u32) {
        self.slot[place as usize].add(&self.message[packed as usize]);
    }

    fn clear(&mut self, _: u32, place: u32) {
        self.slot[place as usize] = B::ZERO;
    }
}

impl<B: Block> TransmitSlots<B> {
    /// Slots with what an operation before has left in them.
    fn new(parameters: Parameters, left: B) -> Self {
        let places = parameters.blocks_per_message() as usize;
        let (blocks, indices) = (std::array::from_fn(|_| vec![left; places]), std::array::from_fn(|_| vec![0; places]));
        Self { blocks, indices, one: false }
    }

    fn slot(&self, slot: u32) -> usize {
        if self.one { 0 } else { slot as usize }
    }

    fn apply(&mut self, additions: &Additions, message: &[B]) {
        assert_eq!(additions.blocks() as usize, message.len(), "the message has the blocks that it says");
        let slot = self.slot(additions.slot);
        additions.apply(&mut Adding { slot: &mut self.blocks[slot], message });
    }

    /// What an answer's memory holds now: sums and indices.
    pub(crate) fn content(&self, answer: &Answer) -> (Vec<B>, Vec<u32>) {
        let slot = self.slot(answer.slot);
        (self.blocks[slot][..answer.sums as usize].to_vec(), self.indices[slot].clone())
    }
}

/// An aggregator with its memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node<B> {
    pub(crate) parameters: Parameters,
    pub(crate) machine: Aggregator,
    pub(crate) slots: TransmitSlots<B>,
    /// Receive slots of messages that wait for their turn.
    held: Vec<Option<Message<B>>>,
    /// The most messages that were added at once.
    pub(crate) most_at_once: u32,
}

impl<B: Block> Node<B> {
    pub(crate) fn new(parameters: Parameters, blocks: u32, order: Order, limits: AggregatorLimits, left: B) -> Self {
        Self {
            parameters,
            machine: Aggregator::new(parameters, blocks, order, limits, 0).unwrap(),
            slots: TransmitSlots::new(parameters, left),
            held: vec![None; parameters.workers() as usize],
            most_at_once: 0,
        }
    }

    /// A message has come. Gives what became of it, and the answer to all if it was the last one.
    pub(crate) fn handle(
        &mut self,
        rank: u32,
        message: &Message<B>,
        reliable: bool,
        now_ps: u64,
    ) -> Result<(Received, Option<Answer>), AggregatorError> {
        let incoming = message.incoming(self.parameters);
        let received = if reliable {
            self.machine.handle_reliable(rank, &incoming, now_ps)?
        } else {
            self.machine.handle(rank, message.iteration, &incoming, now_ps)?
        };
        let mut answer = None;
        match received {
            Received::Added(added) => {
                self.slots.apply(&added.additions, &message.blocks);
                answer = added.answer;
                self.most_at_once = self.most_at_once.max(1);
            }
            Received::Held => {
                assert_eq!(self.held[rank as usize].replace(message.clone()), None, "one receive slot each");
                let mut at_once = 0;
                while let Some(next) = self.machine.next_rank() {
                    let message = self.held[next as usize].take().expect("it has come");
                    let added = self.machine.add_held(next, &message.incoming(self.parameters), now_ps)?;
                    self.slots.apply(&added.additions, &message.blocks);
                    answer = added.answer;
                    at_once += 1;
                }
                self.most_at_once = self.most_at_once.max(at_once);
            }
            Received::Waiting { .. } | Received::Again(_) | Received::Old => {}
        }
        if let Some(answer) = answer {
            let slot = self.slots.slot(answer.slot);
            self.slots.indices[slot] = answer.next.places().to_vec();
        }
        Ok((received, answer))
    }
}

/// The blocks that some array has, in order.
pub(crate) fn union<B: Block>(arrays: &[Vec<B>]) -> Vec<u32> {
    let blocks = arrays.first().map_or(0, Vec::len);
    (0..blocks).filter(|at| arrays.iter().any(|array| array[*at] != B::ZERO)).map(|at| at as u32).collect()
}

/// The sums of all arrays in the order of ranks; blocks that no array has are zero.
pub(crate) fn sums<B: Block>(arrays: &[Vec<B>]) -> Vec<B> {
    let blocks = arrays.first().map_or(0, Vec::len);
    let sum = |at: usize| {
        let mut own = arrays.iter().map(|array| array[at]).filter(|block| *block != B::ZERO);
        let first = own.next().unwrap_or(B::ZERO);
        own.fold(first, |mut sum, block| {
            sum.add(&block);
            sum
        })
    };
    (0..blocks).map(sum).collect()
}
