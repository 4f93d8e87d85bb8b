//! Carrier over an RDMA card without its DPA: datagrams to a multicast group, and reads over reliable connections for
//! what is lost.
//!
//! Whoever moves the communicator on polls the card's queues ([`carrier`]). A root's chunks are UD datagrams that the
//! card gathers from the user's buffer ([`queues`]); sequence number and collective id are in the immediate, as with
//! the DPA. Receivers have a ring of staging slots posted and copy each chunk to its place; a root is ahead of its
//! receivers by no more than their rings hold ([`window`](super::cpu::window)). What is lost is seen from the sequence
//! numbers ([`incoming`](super::cpu::incoming)) and read from the left neighbour, over the connections that carry the
//! protocol's messages ([`control`](crate::carrier::control)).

mod acknowledge;
mod carrier;
mod endpoint;
mod flow;
mod part;
mod queues;
mod receive;
mod send;

pub(crate) use endpoint::VerbsEndpoint;
