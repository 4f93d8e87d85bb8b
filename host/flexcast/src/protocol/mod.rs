//! Drivers of the protocol: they carry out what its state machine in `flexcast_proto` decides, on the host or on the
//! card.

mod calls;
pub(crate) mod control;
pub(crate) mod conversation;
pub(crate) mod device;
pub(crate) mod driver;
pub(crate) mod eager;
pub(crate) mod engine;
pub(crate) mod host;
