//! The C ABI of the collective library: `libflexcast.a`, of which `cargo xtask install` links `libflexcast.so`, and
//! `include/flexcast.h`, which cbindgen makes of these files (`cargo xtask header`).
//!
//! Whatever a program does wrong with a handle is an error code: handles are numbers with a generation, which a table
//! of the process resolves ([`handle`]), and never addresses. No panic leaves a function, and none does anything in a
//! forked child ([`fault`]). Memory of the program is reached only where a function's documentation says so.
//!
//! Functions are `unsafe` in Rust's sense: each pointer argument is null, which is refused, or points at what the
//! header says.
#![allow(non_camel_case_types)] // The names are those of the header.
#![allow(unsafe_code)] // The boundary itself: exported symbols, pointers of the caller.
#![allow(clippy::missing_safety_doc)] // Said once, above and at the top of the header.

mod asked;
mod bootstrap;
mod call;
mod claims;
mod collective;
mod communicator;
mod config;
mod creation;
mod endpoint;
mod event;
mod failure_code;
mod fault;
mod gather;
mod handle;
mod init;
mod log;
mod memory;
mod operations;
mod reduction;
mod request;
mod settings;
mod stats;
mod status;
mod version;
mod wait;

pub use bootstrap::*;
pub use collective::*;
pub use communicator::*;
pub use config::*;
pub use endpoint::*;
pub use failure_code::*;
pub use fault::flexcast_last_error;
pub use init::*;
pub use log::*;
pub use reduction::*;
pub use request::*;
pub use settings::*;
pub use stats::*;
pub use status::*;
pub use version::*;
pub use wait::*;
