//! All tests of this folder, as one program: each file a module of it.

#![allow(clippy::duplicate_mod, reason = "threads.rs and timing.rs run one suite, each with cards of its own")]

mod ahead;
mod cable;
mod debugger;
mod hand_overs;
mod images;
mod litmus;
mod messages;
mod network_faults;
mod networks;
mod outbox;
mod races;
mod support;
mod threads;
mod timing;
mod traffic_classes;
