//! Image `reference`: the published receive kernels, to measure a timing model and the datapath against.
#![cfg_attr(target_arch = "riscv64", no_std, no_main)]
#![forbid(unsafe_code)]

#[cfg(target_arch = "riscv64")]
mod kernel;
#[cfg(target_arch = "riscv64")]
mod prepare;

#[cfg(target_arch = "riscv64")]
mod entries {
    #[cfg(feature = "emu")]
    use rt_emu as _;

    use dpa::Next;
    use dpa::abi::Transport;
    use dpa::abi::reference::ReferenceContext;
    use dpa::log::defmt;

    /// Proves that the image runs and speaks the host's ABI.
    #[dpa::rpc]
    fn bring_up(argument: u64) -> u64 {
        defmt::info!("reference: bring-up, ABI {=u64:#x}", dpa::abi::ABI_HASH);
        dpa::abi::bring_up_answer(argument)
    }

    /// Checks a context, writes its receives and posts them; 0 or a `ContextFault` code.
    #[dpa::rpc]
    fn prepare(context: &mut ReferenceContext) -> u64 {
        match crate::prepare::prepare(context) {
            Ok(()) => 0,
            Err(fault) => {
                defmt::error!("context refused, fault {=u32}", fault as u32);
                fault as u64
            }
        }
    }

    /// Receives RDMA Writes with immediate.
    #[dpa::event_handler]
    fn uc_receive(context: &mut ReferenceContext) -> Next {
        crate::kernel::run(context, Transport::Uc)
    }

    /// Receives datagrams into staging slots and copies them to the user buffer.
    #[dpa::event_handler]
    fn ud_receive(context: &mut ReferenceContext) -> Next {
        crate::kernel::run(context, Transport::Ud)
    }
}

#[cfg(not(target_arch = "riscv64"))]
fn main() {
    println!("an image for the DPA: build it with `cargo xtask build`");
}
