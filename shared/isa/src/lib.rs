//! The RISC-V decoder: RV64 instructions of two and four bytes, the extensions that have them, and their text.
//!
//! - [`Instruction`] is a decoded instruction: mnemonic, operands, control flow. Its `Display` is the text that LLVM's
//!   disassembler writes.
//! - [`Isa`] is a set of extensions, read from an ISA string such as `rv64imac_zbb_zbs`.
//!
//! All of it comes from one table (`table.rs`): a row for each instruction, with its encoding and its extension. What
//! an instruction computes is not here: `emu/hart` executes, `image` verifies.
//!
//! ```
//! use flexcast_isa::{Instruction, Isa, Mnemonic};
//!
//! let instruction = Instruction::new(0x1000, 0x48b5_1533);
//! assert_eq!(instruction.mnemonic(), Mnemonic::Bclr);
//! assert_eq!(instruction.to_string(), "bclr a0, a0, a1");
//! assert!(Isa::parse("rv64imac_zbs")?.includes(&instruction));
//! assert!(!Isa::parse("rv64imac_zbb")?.includes(&instruction));
//! # Ok::<(), flexcast_isa::IsaError<'static>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod compressed;
mod extension;
mod instruction;
mod string;
mod table;
mod text;

pub use compressed::expand;
pub use extension::{Extension, Isa};
pub use instruction::{Flow, Instruction, decode_all};
pub use string::{IsaError, Names, names};
pub use table::Mnemonic;
pub use text::Hex;
