//! A context anywhere.
use dpa::abi::ReceiveContext;

fn write(context: &mut ReceiveContext) -> u64 {
    context.budget = 0x4141;
    0
}

pub fn forge() -> u64 {
    dpa::entry::rpc_with_mut::<ReceiveContext>(0x4141_0000, write) //~ E0133
}
