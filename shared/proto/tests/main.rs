//! Tests of the protocol through its public interface: properties, models, every interleaving.

mod agreement;
mod chains;
mod direct;
mod eager;
mod exchange;
mod following;
mod killed;
mod model;
mod p2p;
mod published_rule;
mod reductions;
mod reuse;
mod service;
mod service_bound_keys;
mod service_connections;
mod service_model;
mod service_staged;
mod service_wire;
mod session;
mod silent;
mod sparse;
mod sparse_model;
mod sparse_wire;
mod support;
mod wire;
