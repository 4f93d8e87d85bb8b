//! The C ABI of librdmacm (rdma-core 44), over the emulated cards.
//!
//! On a real host the kernel speaks the protocol of connection management, and the library asks it. Here a state
//! machine without input and output does ([`protocol`]), and its datagrams go through queue pair 1 of the emulated
//! card: over the cable, and so over the bridge to another process. One thread per process takes what comes and lets
//! time pass; the program's calls do the rest.
//!
//! Handles are checked against the set of live ones, as in `emu-libibverbs`, whose objects this library uses as the
//! real one does. A call that fails gives -1 and `errno`, and says why on stderr.
// A C ABI passes raw pointers.
#![allow(unsafe_code)]

mod abi;
mod address;
mod addrinfo;
mod channel;
mod connect;
mod device;
mod endpoint;
mod events;
mod gsi;
mod id;
mod identifiers;
mod manager;
mod multicast;
mod option;
pub mod protocol;
mod queue_pair;
mod refused;
mod resolve;
mod states;
