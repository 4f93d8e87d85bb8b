//! A worker's side of a shard.

use std::convert::Infallible;
use std::ops::Range;

use flexcast_proto::sparse::{Answered, Parameters, Shard, Votes};

use super::{MESSAGE, Result, Spare, refused};
use crate::scan::{Places, Scan, Turn};
use flexio::zeroes;

/// One shard, as its worker sees it.
#[derive(Debug)]
pub(super) struct Portion {
    scan: Scan,
    parameters: Parameters,
    /// The rank that sums it up.
    pub(super) aggregator: u32,
    /// The message under way. It stays until it is answered.
    pub(super) message: Vec<u8>,
    /// The blocks whose sums come next.
    global: Votes,
    /// Candidates that are not zero, in the order of their blocks; those of the message are packed by it.
    found: Vec<u32>,
    /// Indices behind the sums of the answer.
    trailer: Vec<u8>,
    /// Where an answer's bytes behind the end of the array go, if the last block is short.
    padding: Vec<u8>,
    /// Bytes of the answer that have come.
    come: u64,
    /// Blocks whose sums have come.
    summed: u64,
}

/// Whether every bit is zero.
fn is_zero(block: &[u8]) -> bool {
    let (words, rest) = block.as_chunks::<64>();
    // A chunk at a time without a branch within, which the compiler makes vector instructions of. Wider ones than every
    // processor has gain nothing, even from the first-level cache.
    words.iter().all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0) && rest.iter().all(|byte| *byte == 0)
}

fn bytes(range: Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

/// The arrays of a rank. A block is sent from where it lies, and its sum is received where it belongs, so that there
/// are no slots.
struct Arrays<'a> {
    /// None: the contribution is in the receive buffer.
    send: Option<&'a [u8]>,
    receive: &'a mut [u8],
    found: &'a mut Vec<u32>,
}

impl Places for Arrays<'_> {
    type Error = Infallible;

    fn store(&mut self, _: Range<u64>, _: u32) -> std::result::Result<(), Infallible> {
        Ok(())
    }

    fn load(&mut self, block: Range<u64>, _: u32) -> std::result::Result<bool, Infallible> {
        Ok(!is_zero(&self.send.unwrap_or(self.receive)[bytes(block)]))
    }

    fn skip(&mut self, zeros: Range<u64>) -> std::result::Result<(), Infallible> {
        if self.send.is_some() {
            self.receive[bytes(zeros)].fill(0);
        }
        Ok(())
    }

    fn found(&mut self, block: u32) {
        self.found.push(block);
    }
}

impl Portion {
    pub(super) fn new(parameters: Parameters, shard: Shard, aggregator: u32, spare: &mut Spare) -> Result<Self> {
        let last = shard.blocks().checked_sub(1).map(|last| bytes(shard.block(last)).len());
        let padding = zeroes(MESSAGE, last.map_or(0, |last| parameters.block_bytes() as usize - last))?;
        Ok(Self {
            scan: Scan::new(parameters, shard).map_err(refused)?,
            parameters,
            aggregator,
            message: spare.take(parameters)?,
            global: Votes::empty(parameters),
            found: Vec::new(),
            trailer: vec![0; parameters.index_bytes() as usize],
            padding,
            come: 0,
            summed: 0,
        })
    }

    /// Goes on until a message is ready, an answer is needed, or `left` bytes have been scanned.
    pub(super) fn turn(&mut self, send: Option<&[u8]>, receive: &mut [u8], left: &mut usize) -> Turn {
        let mut arrays = Arrays { send, receive, found: &mut self.found };
        let Ok(turn) = self.scan.turn(&mut arrays, left);
        if turn == Turn::Send {
            self.pack(send.unwrap_or(receive));
        }
        turn
    }

    /// Makes the message that the worker sends.
    fn pack(&mut self, array: &[u8]) {
        let Some(contribution) = self.scan.worker.message() else { return };
        let block_bytes = self.parameters.block_bytes() as usize;
        self.message.clear();
        let sent = contribution.send.len() as usize;
        for block in self.found.drain(..sent) {
            let range = bytes(self.scan.shard.block(block));
            let missing = block_bytes - range.len();
            self.message.extend_from_slice(&array[range]);
            // The array's last block may be short.
            self.message.resize(self.message.len() + missing, 0);
        }
        let votes = contribution.votes.to_bytes();
        self.message.extend_from_slice(&votes[..self.parameters.index_bytes() as usize]);
        self.message.extend_from_slice(&contribution.displacement.bits().to_le_bytes());
    }

    /// How much of an answer of so many bytes from a rank has come; none if there cannot be one.
    pub(super) fn expects(&self, from: u32, total: u64, parameters: Parameters) -> Option<u64> {
        let expected = u64::from(parameters.message_bytes(self.global.len()));
        (from == self.aggregator && self.scan.worker.message().is_some() && total == expected).then_some(self.come)
    }

    pub(super) fn note(&mut self, end: u64) {
        self.come = end;
    }

    /// Where the answer's bytes from number `at` on belong.
    pub(super) fn place<'s>(&'s mut self, receive: &'s mut [u8], at: usize) -> &'s mut [u8] {
        let block_bytes = self.parameters.block_bytes() as usize;
        let (position, offset) = (at / block_bytes, at % block_bytes);
        let rest = self.global.indices().get(position..).unwrap_or_default();
        let Some(&block) = rest.first() else {
            return self.trailer.get_mut(at - self.global.len() as usize * block_bytes..).unwrap_or_default();
        };
        // Blocks that follow one another in the array are one piece.
        let last = rest.iter().zip(block..).take_while(|(next, expected)| **next == *expected).last();
        let end = last.map_or(block, |(last, _)| *last);
        let range = bytes(self.scan.shard.block(block).start..self.scan.shard.block(end).end);
        if offset < range.len() {
            &mut receive[range.start + offset..range.end]
        } else {
            // Behind the end of the array. Not nowhere: what has no place is not wanted, up to the end of the message.
            self.padding.get_mut(offset - range.len()..).unwrap_or_default()
        }
    }

    /// Puts an answer that was not sent where it belongs.
    pub(super) fn put(&mut self, answer: &[u8], receive: &mut [u8]) {
        let block_bytes = self.parameters.block_bytes() as usize;
        for (position, &block) in self.global.indices().iter().enumerate() {
            let range = bytes(self.scan.shard.block(block));
            let len = range.len();
            receive[range].copy_from_slice(&answer[position * block_bytes..][..len]);
        }
        self.trailer.copy_from_slice(&answer[self.global.len() as usize * block_bytes..]);
    }

    /// An answer has come. False: it cannot be.
    pub(super) fn took(&mut self) -> bool {
        self.come = 0;
        let Ok(next) = Votes::from_bytes(self.parameters, &self.trailer) else { return false };
        let (iteration, sums) = (self.scan.worker.iteration(), self.global.len());
        let taken = self.scan.worker.answer(iteration, sums, &next);
        self.global = next;
        self.summed += u64::from(sums);
        matches!(taken, Ok(Answered::New))
    }

    /// Blocks whose sums have come, those that are not zero on some rank, and all blocks.
    pub(super) fn found(&self) -> [u64; 2] {
        [self.summed, self.scan.shard.blocks().into()]
    }

    /// Messages that have been answered.
    pub(super) const fn messages(&self) -> u64 {
        self.scan.worker.iteration() as u64
    }

    pub(super) fn give_back(self, spare: &mut Spare) {
        spare.give(self.message);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.scan.worker.is_complete()
    }
}
