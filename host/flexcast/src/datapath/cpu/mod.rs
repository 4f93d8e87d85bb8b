//! Parts that the datapaths of CPU workers share: the receiving side of an operation, the send window, the state of an
//! operation, and the watch over it.

pub(crate) mod incoming;
pub(crate) mod operation;
pub(crate) mod watch;
pub(crate) mod window;
