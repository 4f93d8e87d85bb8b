//! The C ABI of librdmacm (rdma-core 44), over the emulated cards.
pub mod protocol;
