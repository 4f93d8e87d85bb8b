//! Reliable connections: requests that restart, and the proof of who is at the other end.

pub(crate) mod greeting;
pub(crate) mod requester;
