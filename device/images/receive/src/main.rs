//! Image `receive`: the entries. The datapath is the library beside this file.
#![cfg_attr(target_arch = "riscv64", no_std, no_main)]
#![forbid(unsafe_code)]

#[cfg(target_arch = "riscv64")]
mod entries {
    #[cfg(feature = "emu")]
    use rt_emu as _;

    use dpa::Next;
    use dpa::abi::{Transport, WorkerContext};
    use dpa::log::defmt;

    /// Proves that the image runs and speaks the host's ABI.
    #[dpa::rpc]
    fn bring_up(argument: u64) -> u64 {
        defmt::info!("receive: bring-up, ABI {=u64:#x}", dpa::abi::ABI_HASH);
        dpa::abi::bring_up_answer(argument)
    }

    /// Checks a context, builds its ring entries and posts its receives; 0 or a `ContextFault` code.
    #[dpa::rpc]
    fn prepare(context: &mut WorkerContext) -> u64 {
        match datapath::prepare(context) {
            Ok(()) => 0,
            Err(fault) => {
                defmt::error!("worker {=u32}: context refused, fault {=u32}", context.worker, fault as u32);
                fault as u64
            }
        }
    }

    /// Wakes the event handler with this activation id; 0, or 1 if the runtime refuses.
    #[dpa::rpc]
    fn kick(activation_id: u64) -> u64 {
        u64::from(!dpa::entry::activate(activation_id as u32))
    }

    /// Receives RDMA Writes with immediate.
    #[dpa::event_handler]
    fn uc_receive(context: &mut WorkerContext) -> Next {
        datapath::receive(context, Transport::Uc)
    }

    /// Receives datagrams into staging slots and copies them to the user buffer.
    #[dpa::event_handler]
    fn ud_receive(context: &mut WorkerContext) -> Next {
        datapath::receive(context, Transport::Ud)
    }
}

#[cfg(not(target_arch = "riscv64"))]
fn main() {
    println!("an image for the DPA: build it with `cargo xtask build`");
}
