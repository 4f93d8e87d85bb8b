//! Image `sparse`: the entries of the aggregators of sparse AllReduce. What they do is in the library
//! `device/datapath`.
#![cfg_attr(target_arch = "riscv64", no_std, no_main)]
#![forbid(unsafe_code)]

#[cfg(target_arch = "riscv64")]
mod entries {
    #[cfg(feature = "emu")]
    use rt_emu as _;

    use dpa::Next;
    use dpa::abi::SparseThread;
    use dpa::log::defmt;

    /// Proves that the image runs and speaks the host's ABI.
    #[dpa::rpc]
    fn bring_up(argument: u64) -> u64 {
        defmt::info!("sparse: bring-up, ABI {=u64:#x}", dpa::abi::ABI_HASH);
        dpa::abi::bring_up_answer(argument)
    }

    /// Checks a thread's context, its instances and workers, and posts receives; 0, or a `ContextFault` code in bits
    /// 31:0 and the number of the instance or worker at fault in bits 63:32.
    #[dpa::rpc]
    fn prepare(thread: &mut SparseThread) -> u64 {
        let number = thread.thread;
        match datapath::prepare_sparse(thread) {
            Ok(()) => 0,
            Err((fault, context)) => {
                let code = fault as u32;
                defmt::error!("sparse thread {=u32}: context {=u32} refused, fault {=u32}", number, context, code);
                u64::from(context) << 32 | u64::from(code)
            }
        }
    }

    /// Wakes the event handler with this activation id; 0.
    #[dpa::rpc]
    fn activate(activation_id: u64) -> u64 {
        dpa::entry::activate(activation_id as u32);
        0
    }

    /// Aggregates.
    #[dpa::event_handler]
    fn sparse(thread: &mut SparseThread) -> Next {
        datapath::aggregate(thread)
    }
}

#[cfg(not(target_arch = "riscv64"))]
fn main() {
    println!("an image for the DPA: build it with `cargo xtask build`");
}
