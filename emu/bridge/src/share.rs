//! One card for several processes of a computer: who has it serves the others over a Unix socket.
//!
//! Here are the sockets: who may connect, the greeting, messages of bounded length, and bounds of all waits. What the
//! messages say is the business of the library that is behind both ends ([`Session`] and [`Remote`]).
//!
//! | Bytes of the greeting | Content, little-endian |
//! |---|---|
//! | 0..8 | `FXCARD` and two zeros |
//! | 8..12 | version of the messages |
//! | 12..16 | 0; in the answer whether the process is let in, or why not |
//!
//! A message is its length, 4 bytes little-endian, and as many bytes.

mod client;
mod clock;
mod message;
mod server;
mod socket_file;

pub(crate) use client::AGAIN;
pub use client::{Lost, Remote};
pub use clock::{RemoteClock, Seldom};
pub use server::{Client, Reply, Session, ShareCounters, serve_with, share_counters};
pub(crate) use server::{Server, withdraw};
pub use socket_file::take_away;

/// Version of greeting and messages: those of another one are refused.
pub const VERSION: u32 = 1;
/// Longest message in bytes.
pub const MAX_MESSAGE_BYTES: usize = 128 << 10;
