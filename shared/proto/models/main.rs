//! Models of the protocol: every interleaving of small groups, and many cases of large ones.

mod following;
mod killed;
mod model;
mod p2p;
mod reductions;
mod reuse;
mod service_model;
mod service_staged;
mod silent;
mod sparse_model;
#[expect(dead_code, reason = "the package of the other tests has the rest")]
mod support;
