//! A context anywhere.
use dpa::abi::WorkerContext;

fn write(context: &mut WorkerContext) -> u64 {
    context.budget = 0x4141;
    0
}

pub fn forge() -> u64 {
    dpa::entry::rpc_with_mut::<WorkerContext>(0x4141_0000, write) //~ E0133
}
