//! Image `synthetic`: the scenarios of the library in this folder, on a DPA.
#![cfg_attr(target_arch = "riscv64", no_std, no_main)]
#![forbid(unsafe_code)]

#[cfg(target_arch = "riscv64")]
mod entries {
    #[cfg(feature = "emu")]
    use rt_emu as _;

    use dpa::abi::ReceiveThread;
    use dpa::log::defmt;

    /// Proves that the image runs and speaks the host's ABI.
    #[dpa::rpc]
    fn bring_up(argument: u64) -> u64 {
        dpa::abi::bring_up_answer(argument)
    }

    /// Runs all scenarios with the outbox, window and key of `thread` and the host addresses of its receive context,
    /// and logs a line for each; 0.
    #[dpa::rpc]
    fn run(thread: &mut ReceiveThread) -> u64 {
        scenario::run(thread, |line| defmt::info!("{=str}", line));
        0
    }
}

#[cfg(not(target_arch = "riscv64"))]
fn main() {
    println!("an image for the DPA: build it with `cargo xtask build`");
}
