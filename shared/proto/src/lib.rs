//! Everything of the protocol that can be decided without touching hardware. The same source runs in the firmware, in the host
//! engines and in the model checker: no IO, no clock, no allocation.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod bitmap;
pub mod chunk;
pub mod immediate;

pub use bitmap::{Bitmap, Mark, Run};
pub use chunk::{Block, Chunk, ChunkError, Chunking, Subgroup};
pub use immediate::{Immediate, ImmediateError, ImmediateLayout};
