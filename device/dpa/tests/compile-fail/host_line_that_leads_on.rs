//! Memory named by what the host rewrites, of which a copy may be torn.
use dpa::HostLine;
use dpa::abi::{self, SendContext};

pub fn snapshot(line: &abi::HostLine<SendContext>) -> SendContext {
    HostLine::attach(line).snapshot() //~ E0277
}
