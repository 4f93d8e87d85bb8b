//! Image `calibration`: the kernels behind published measurements of the DPA, written from their descriptions, to hold
//! a timing model against. Nothing of Flexcast's own datapath is in here.
#![cfg_attr(target_arch = "riscv64", no_std, no_main)]
#![deny(unsafe_code)]

#[cfg(target_arch = "riscv64")]
mod echo;
#[cfg(target_arch = "riscv64")]
mod measure;
#[cfg(target_arch = "riscv64")]
mod packets;
#[cfg(target_arch = "riscv64")]
mod slot;

#[cfg(target_arch = "riscv64")]
mod entries {
    #[cfg(feature = "emu")]
    use rt_emu as _;

    use dpa::Next;
    use dpa::abi::calibration::KernelContext;
    use dpa::log::defmt;

    /// Proves that the image runs and speaks the host's ABI.
    #[dpa::rpc]
    fn bring_up(argument: u64) -> u64 {
        defmt::info!("calibration: bring-up, ABI {=u64:#x}", dpa::abi::ABI_HASH);
        dpa::abi::bring_up_answer(argument)
    }

    /// Builds the entries of a context's receive queue and posts them; 0 or a `ContextFault` code.
    #[dpa::rpc]
    fn prepare(context: &mut KernelContext) -> u64 {
        match crate::slot::prepare(context) {
            Ok(()) => 0,
            Err(fault) => fault as u64,
        }
    }

    /// Wakes the event handlers whose activation ids the context lists; 0.
    #[dpa::rpc]
    fn start(context: &mut KernelContext) -> u64 {
        let ids = dpa::Table::<u64>::attach(&context.activation_ids);
        (0..ids.len()).filter_map(|index| ids.get(index)).for_each(|id| dpa::entry::activate(id as u32));
        0
    }

    /// Loads and stores.
    #[dpa::event_handler]
    fn measure(context: &mut KernelContext) -> Next {
        crate::measure::run(context)
    }

    /// Receives writes with immediate and keeps a bitmap of them.
    #[dpa::event_handler]
    fn packets(context: &mut KernelContext) -> Next {
        crate::packets::run(context)
    }

    /// Answers datagrams.
    #[dpa::event_handler]
    fn echo(context: &mut KernelContext) -> Next {
        crate::echo::run(context)
    }
}

#[cfg(not(target_arch = "riscv64"))]
fn main() {
    println!("an image for the DPA: build it with `cargo xtask build`");
}
