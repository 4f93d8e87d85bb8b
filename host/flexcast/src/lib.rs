//! Non-blocking Broadcast and Allgather over hardware multicast, with the datapath on the card's DPA and a reliable ring for what was
//! lost.
#![deny(unsafe_code)]

pub mod bootstrap;
