//! Reads the RISC-V ELF of a device image: what a loader must map, the entries that host code may call, the ABI note,
//! symbols for crash records, the place of a panic; and verifies that the image can run on a given DPA.
//!
//! ```no_run
//! let bytes = std::fs::read("target/device/emu/allgather.elf")?;
//! let image = flexcast_image::Image::parse(&bytes)?;
//! let handler = image.entry_named("uc_receive")?;
//! println!("{} at {:#x}", handler.name, handler.addr);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Parsing copies what it needs: an [`Image`] does not borrow the file. Any input, however broken, ends in a typed
//! [`ImageError`].

pub mod callgraph;
pub mod disasm;
mod elf;
#[cfg(test)]
mod elf_tests;
mod entry;
mod error;
pub mod illegal;
pub mod loops;
mod panic;
mod symbol;
mod target;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod unserved;
#[cfg(test)]
mod unserved_tests;
pub mod verify;
#[cfg(test)]
mod verify_link_tests;
#[cfg(test)]
mod verify_tests;

pub use elf::{Image, Section, Segment};
pub use entry::{AbiNote, Entry, EntryKind};
pub use error::{ImageError, OtherCard};
pub use panic::{PANIC_RECORD, PanicPlace};
pub use symbol::{Symbol, SymbolKind};
pub use unserved::{Phase, Unserved};
