//! Memory named by what the host rewrites, of which a copy may be torn.
use dpa::HostLine;
use dpa::abi::{self, SendLane};

pub fn snapshot(line: &abi::HostLine<SendLane>) -> SendLane {
    HostLine::attach(line).snapshot() //~ E0277
}
