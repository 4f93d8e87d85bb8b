//! API: endpoints, communicators, buffers, requests.

pub(crate) mod call;
pub(crate) mod communicator;
#[doc(hidden)]
pub mod hostile;
pub(crate) mod post;
pub(crate) mod request;
mod split;
pub(crate) mod user_memory;
