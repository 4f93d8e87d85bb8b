//! All tests of this folder, as one program: each file a module of it.

mod atomics;
mod common;
mod completions;
mod disorder;
mod failures;
mod fields;
mod flags;
mod fuzz;
mod headers;
mod keys;
mod loss;
mod multicast;
mod outside;
mod partitions;
mod port;
mod priorities;
mod protection;
mod reads;
mod refused;
mod reset;
mod responses;
mod timing;
mod transfers;
mod uc_multicast;
mod wire;
mod wire_common;
