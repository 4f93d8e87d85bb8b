//! The C ABI of DOCA DPA and of the libraries that it is used with, over the emulated cards.
//!
//! A DPA context is a process on the DPA. Its kernels are functions of the image that `dpacc` makes, and the device
//! library (`device/rt-emu/doca`) has what they call. A call (`doca_dpa_rpc`) is one of FlexIO's, a launched kernel and
//! a DPA thread are event handlers, a completion context is a completion queue, an RDMA context has a queue pair per
//! connection, and a memory map is a memory key. A sync event is a 64-bit number in the memory of the DPA.
//!
//! Handles are checked against the set of live ones, as in `emu-libibverbs`, and a panic becomes
//! `DOCA_ERROR_UNEXPECTED`. What is not emulated is `DOCA_ERROR_NOT_SUPPORTED`, and a line on stderr names it.
// A C ABI passes raw pointers.
#![allow(unsafe_code)]

mod call;
mod completion;
mod context;
mod event;
mod launch;
mod layout;
mod mmap;
mod process;
mod rdma;
mod thread;
mod unsupported;

// Their exported functions belong to the shared library.
pub use emu_libdoca;
pub use emu_libflexio;
