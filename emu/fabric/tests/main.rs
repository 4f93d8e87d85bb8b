//! All tests of this folder, as one program: each file a module of it.

mod common;
mod faults;
mod priorities;
mod properties;
mod rooms;
mod sums;
mod topology;
mod traffic;
