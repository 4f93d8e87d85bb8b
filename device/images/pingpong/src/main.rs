//! Image `pingpong`: answers every message on an RC or UC queue pair with a send of the same bytes.
#![cfg_attr(target_arch = "riscv64", no_std, no_main)]
#![forbid(unsafe_code)]

#[cfg(target_arch = "riscv64")]
mod pong;

#[cfg(target_arch = "riscv64")]
mod entries {
    #[cfg(feature = "emu")]
    use rt_emu as _;

    use dpa::Next;
    use dpa::abi::PingPongContext;
    use dpa::log::defmt;

    /// Proves that the image runs and speaks the host's ABI.
    #[dpa::rpc]
    fn bring_up(argument: u64) -> u64 {
        defmt::info!("pingpong: bring-up, ABI {=u64:#x}", dpa::abi::ABI_HASH);
        dpa::abi::bring_up_answer(argument)
    }

    /// Returns its argument.
    #[dpa::rpc]
    fn echo(argument: u64) -> u64 {
        argument
    }

    /// Builds the ring entries of a context and posts its receives; 0 or a `ContextFault` code.
    #[dpa::rpc]
    fn prepare(context: &mut PingPongContext) -> u64 {
        match crate::pong::prepare(context) {
            Ok(()) => 0,
            Err(fault) => fault as u64,
        }
    }

    /// Answers.
    #[dpa::event_handler]
    fn pong(context: &mut PingPongContext) -> Next {
        crate::pong::pong::<true>(context)
    }

    /// The same, but the doorbell record does not say what was sent: doorbells alone do.
    #[dpa::event_handler]
    fn pong_without_record(context: &mut PingPongContext) -> Next {
        crate::pong::pong::<false>(context)
    }

    /// Stores to so many bytes below the stack pointer, and returns the number if that was possible.
    #[dpa::rpc]
    fn probe_stack(bytes: u64) -> u64 {
        dpa::probe::store_below_stack(bytes);
        bytes
    }

    /// Cycles of 1024 loads of a word that begins so many bytes behind the begin of a line.
    #[dpa::rpc]
    fn probe_load(offset: u64) -> u64 {
        dpa::probe::load_cycles(offset, 1024)
    }

    /// Runs for so many nanoseconds; returns how many it has run.
    #[dpa::rpc]
    fn probe_spin(ns: u64) -> u64 {
        dpa::probe::spin(ns)
    }
}

#[cfg(not(target_arch = "riscv64"))]
fn main() {
    println!("an image for the DPA: build it with `cargo xtask build`");
}
