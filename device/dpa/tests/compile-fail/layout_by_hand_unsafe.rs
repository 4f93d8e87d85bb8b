//! The same, as the compiler then proposes.
#![forbid(unsafe_code)]

use dpa::abi::{Layout, SendContext};

pub struct Mine {
    pub number: u64,
}

unsafe impl Layout for Mine { //~ unsafe
    const HASH: u64 = <SendContext as Layout>::HASH;
}
