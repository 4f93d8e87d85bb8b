//! Parts that the datapaths of CPU workers share: the receiving side of an operation, the division of blocks among
//! subgroups, the send window, the state of an operation, and the watch over it.

pub(crate) mod incoming;
pub(crate) mod operation;
pub(crate) mod stripes;
pub(crate) mod watch;
pub(crate) mod window;
