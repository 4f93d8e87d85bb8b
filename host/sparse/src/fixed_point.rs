//! Arrays of `f32` whose contributions and sums travel as fixed-point numbers, two in a 64-bit word, for aggregators
//! that add integers alone.

use std::ops::Range;

use flexcast_proto::sparse::{FixedPoint, FixedPointError};
use flexio::MemoryRegion;
use zerocopy::IntoBytes as _;

use super::Result;
use super::arrays::Array;

/// Bytes of a word, and of a number.
const WORD: usize = size_of::<u64>();
const NUMBER: usize = size_of::<f32>();
/// Words that are turned at a time.
const WORDS: usize = 16;

/// An array of `f32` as an array of 64-bit words: the worker's operation is a sum of
/// [`I64`](flexcast_reduce::DataType::I64), of [`FixedPointArray::bytes`] bytes.
///
/// A block has the same place in either. A block whose numbers are all less than half of a unit is one of zeros, and
/// -0.0 becomes 0.0. A number beyond the bound, infinite or not a number is
/// [`Error::FixedPoint`](super::Error::FixedPoint) of [`Worker::progress`](super::Worker::progress), before its block
/// is sent.
#[derive(Debug)]
pub struct FixedPointArray<'a, A> {
    array: &'a mut A,
    format: FixedPoint,
}

impl<'a, A: Array> FixedPointArray<'a, A> {
    /// All workers give the same format.
    pub const fn new(array: &'a mut A, format: FixedPoint) -> Self {
        Self { array, format }
    }

    /// Bytes of words of the array that are numbers.
    fn numbers(&self, words: &Range<usize>) -> Result<Range<usize>> {
        if let Some(odd) = [words.start, words.end].into_iter().find(|at| !at.is_multiple_of(WORD)) {
            let limit = format!("a multiple of {WORD}, as words have so many bytes");
            return Err(flexio::Error::OutOfRange { what: "an end of a block", value: odd as u64, limit }.into());
        }
        let end = self.array.bytes() as usize / NUMBER * NUMBER;
        Ok(words.start.min(end)..words.end.min(end))
    }

    /// Turns numbers in registered memory into words. `first`: the number of the first one. Whether any bit is set.
    fn encode(&self, memory: &MemoryRegion, offset: usize, bytes: usize, first: usize) -> Result<bool> {
        let mut any = 0;
        for at in (0..bytes).step_by(WORDS * WORD) {
            let count = (bytes - at).min(WORDS * WORD) / WORD;
            let (mut numbers, mut words) = ([0.0f32; 2 * WORDS], [0u64; WORDS]);
            let (numbers, words) = (&mut numbers[..2 * count], &mut words[..count]);
            memory.read(offset + at, numbers.as_mut_bytes())?;
            let encoded = self.format.encode(numbers, words);
            encoded.map_err(|error| in_the_array(error, first + at / NUMBER))?;
            any = words.iter().fold(any, |any, word| any | word);
            memory.write(offset + at, words.as_bytes())?;
        }
        Ok(any != 0)
    }

    /// Turns words in registered memory into numbers.
    fn decode(&self, memory: &MemoryRegion, offset: usize, bytes: usize) -> Result<()> {
        for at in (0..bytes).step_by(WORDS * WORD) {
            let count = (bytes - at).min(WORDS * WORD) / WORD;
            let (mut numbers, mut words) = ([0.0f32; 2 * WORDS], [0u64; WORDS]);
            let (numbers, words) = (&mut numbers[..2 * count], &mut words[..count]);
            memory.read(offset + at, words.as_mut_bytes())?;
            self.format.decode(words, numbers)?;
            memory.write(offset + at, numbers.as_bytes())?;
        }
        Ok(())
    }
}

/// The error of a number, with its place in the array.
const fn in_the_array(error: FixedPointError, first: usize) -> FixedPointError {
    match error {
        FixedPointError::Beyond { value, place, bound } => {
            FixedPointError::Beyond { value, place: first + place, bound }
        }
        other => other,
    }
}

impl<A: Array> Array for FixedPointArray<'_, A> {
    /// Those of whole words: 4 more than the array has if its number of elements is odd.
    fn bytes(&self) -> u64 {
        (self.array.bytes() / NUMBER as u64 * NUMBER as u64).next_multiple_of(WORD as u64)
    }

    fn load(&mut self, range: Range<usize>, to: &MemoryRegion, offset: usize) -> Result<bool> {
        let numbers = self.numbers(&range)?;
        let (start, len) = (numbers.start, numbers.len());
        let any = self.array.load(numbers.clone(), to, offset)?;
        // The last of an odd number has a zero next to it.
        to.clear(offset + len, range.len() - len)?;
        if !any {
            return Ok(false);
        }
        let any = self.encode(to, offset, range.len(), start / NUMBER)?;
        if !any {
            // Nothing of it is sent. In place nobody else would make it the zeros that other ranks get.
            self.array.store(numbers, to, offset)?;
        }
        Ok(any)
    }

    fn store(&mut self, range: Range<usize>, from: &MemoryRegion, offset: usize) -> Result<()> {
        let numbers = self.numbers(&range)?;
        // The sums of a block are stored once, and nobody reads them behind that.
        self.decode(from, offset, range.len())?;
        self.array.store(numbers, from, offset)
    }

    fn clear(&mut self, range: Range<usize>) -> Result<()> {
        let numbers = self.numbers(&range)?;
        self.array.clear(numbers)
    }
}
