//! Reliable connections over RDMA cards: requests that restart ([`requester`]), and the proof of who is at the other
//! end ([`greeting`]).
#![forbid(unsafe_code)]

pub mod greeting;
pub mod requester;
