//! The verbs of the emulated card through their C functions.

mod bad_input;
mod channels;
mod device_commands;
mod events;
mod groups;
mod limits;
mod operations;
mod shared;
mod support;
mod transfers;
