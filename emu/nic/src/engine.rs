//! Engines of the card: types with state of their own. What a step of one works with is a [`Cx`](crate::cx::Cx).

pub(crate) mod completions;
pub(crate) mod datapath;
mod failure;
pub(crate) mod ingress;
pub(crate) mod pcie;
pub(crate) mod port;
mod receives;
pub(crate) mod requester;
pub(crate) mod responder;
