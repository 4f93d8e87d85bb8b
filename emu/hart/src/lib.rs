//! A RISC-V hardware thread (RV64I with as many of M, A, C, Zicsr, Zifencei, Zba, Zbb, Zbs and the drafts Zbp and Zbr
//! as its [`Isa`] names) for the emulated data-path accelerator. It knows nothing of a network card: memory, time and
//! custom opcodes come from a [`Bus`].
//!
//! - [`Hart`] holds the registers and runs; [`Limits`] says until when, [`Stop`] says why it came back.
//! - [`Text`] is the pre-decoded code, shared by all harts that run it, with the instruction set that it is decoded
//!   for.
//! - [`Bus`] is memory with its latencies, statically dispatched.
//! - [`bare`] runs a whole bare-metal program, such as the official conformance tests.

// The interpreter follows a raw pointer through the decoded text. With an index and its bounds checks the speed
// benchmark gives about two thirds of the figure. The one unsafe block is in `exec.rs`; debug builds assert what it
// relies on.
#![allow(unsafe_code)]

mod alu;
mod atomic;
pub mod bare;
mod bus;
mod csr;
mod decode;
mod draft;
mod exec;
mod hart;
mod op;
mod text;

pub use flexcast_isa::Isa;

pub use bus::{Atomic, Before, Bus, Cause, Fault, Width};
pub use hart::{Class, Hart, Limits, RunAhead, Step, Stop};
pub use text::Text;
