//! All tests of this folder, as one program: each file a module of it. Made one by one, each would hold the interpreter
//! once more.

mod arithmetic;
#[path = "common/mod.rs"]
mod asm;
mod bare;
#[path = "common/bus.rs"]
mod bus;
mod compressed;
mod draft;
#[path = "common/drafts.rs"]
mod drafts;
mod every;
mod extensions;
#[allow(dead_code, unreachable_pub)] // Tests of other packages have the rest.
#[path = "../../../tests/src/harness.rs"]
mod harness;
mod hart;
#[path = "common/machine.rs"]
mod machine;
#[path = "common/model.rs"]
mod model;
mod qemu;
#[path = "common/random.rs"]
mod random;
mod step;
