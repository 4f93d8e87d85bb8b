//! The hash of one layout for another one: the host would be led to take it that both are the same.
use dpa::abi::{Layout, SendContext, SendQueueMemory};

#[repr(C)]
pub struct Mine {
    number: u64,
    queue: SendQueueMemory,
}

impl Layout for Mine { //~ E0200
    const HASH: u64 = <SendContext as Layout>::HASH;
}
