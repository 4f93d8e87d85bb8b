//! Tests of the protocol through its public interface: examples and properties.

mod agreement;
mod chains;
mod direct;
mod eager;
mod exchange;
mod published_rule;
mod service;
mod service_bound_keys;
mod service_connections;
mod service_wire;
mod session;
mod sparse;
mod sparse_wire;
#[expect(dead_code, reason = "the package of the models has the rest")]
#[path = "../models/support/mod.rs"]
mod support;
mod wire;
