//! Emulated card: layouts, queues, keys, packets, determinism, and the flow-level simulation.

mod alias_keys;
mod async_events;
mod bad_queues;
mod determinism;
mod device_queue_pairs;
mod flow;
mod isa;
mod layouts;
mod owned_handles;
mod topologies;
mod tshark;
