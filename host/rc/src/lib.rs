//! Reliable connections over RDMA cards: requests that restart ([`requester`]), the proof of who is at the other end
//! ([`greeting`]), completions of many connections ([`collect`]), and ends that answer after they are given up
//! ([`linger`]).
#![forbid(unsafe_code)]

pub mod collect;
pub mod greeting;
pub mod linger;
pub mod requester;
