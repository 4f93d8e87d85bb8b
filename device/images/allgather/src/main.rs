//! Image `allgather`: the entries of the receive contexts, the send workers and the progress thread. The datapath is
//! the library `device/datapath`.
#![cfg_attr(target_arch = "riscv64", no_std, no_main)]
#![forbid(unsafe_code)]

#[cfg(target_arch = "riscv64")]
mod progress;

#[cfg(target_arch = "riscv64")]
mod entries {
    #[cfg(feature = "emu")]
    use rt_emu as _;

    use dpa::Next;
    use dpa::abi::{ContextFault, ProgressThread, ReceiveThread, SendThread, Transport};
    use dpa::log::defmt;

    /// Proves that the image runs and speaks the host's ABI.
    #[dpa::rpc]
    fn bring_up(argument: u64) -> u64 {
        defmt::info!("allgather: bring-up, ABI {=u64:#x}", dpa::abi::ABI_HASH);
        dpa::abi::bring_up_answer(argument)
    }

    /// Checks a receive thread's context and its receive contexts, builds ring entries and posts receives; 0, or a
    /// `ContextFault` code in bits 31:0 and the number of the receive context at fault in bits 63:32.
    #[dpa::rpc]
    fn prepare_receive(thread: &mut ReceiveThread) -> u64 {
        let number = thread.thread;
        answer("contexts", number, datapath::prepare_receive(thread))
    }

    /// Checks a send worker's context and those of its receive contexts and posts its control receives; answers as
    /// `prepare_receive` does.
    #[dpa::rpc]
    fn prepare_send(thread: &mut SendThread) -> u64 {
        let number = thread.thread;
        answer("send", number, datapath::prepare_send(thread))
    }

    /// Checks a progress thread's context and those of its peers and posts its receives; answers as `prepare_receive`
    /// does.
    #[dpa::rpc]
    fn prepare_progress(thread: &mut ProgressThread) -> u64 {
        let rank = thread.set_up.rank;
        answer("progress", rank, crate::progress::prepare(thread))
    }

    fn answer(kind: &str, thread: u32, verdict: Result<(), (ContextFault, u32)>) -> u64 {
        match verdict {
            Ok(()) => 0,
            Err((fault, context)) => {
                let code = fault as u32;
                defmt::error!(
                    "{=str} thread {=u32}: context {=u32} refused, fault {=u32}",
                    kind,
                    thread,
                    context,
                    code
                );
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

    /// Serves receive contexts that receive RDMA Writes with immediate.
    #[dpa::event_handler]
    fn uc_receive(thread: &mut ReceiveThread) -> Next {
        datapath::receive(thread, Transport::Uc)
    }

    /// Serves receive contexts that receive datagrams into staging slots and copy them to the user buffer.
    #[dpa::event_handler]
    fn ud_receive(thread: &mut ReceiveThread) -> Next {
        datapath::receive(thread, Transport::Ud)
    }

    /// Sends the own block.
    #[dpa::event_handler]
    fn send_blocks(thread: &mut SendThread) -> Next {
        datapath::send_blocks(thread)
    }

    /// Runs the protocol of a communicator.
    #[dpa::event_handler]
    fn progress(thread: &mut ProgressThread) -> Next {
        crate::progress::progress(thread)
    }
}

#[cfg(not(target_arch = "riscv64"))]
fn main() {
    println!("an image for the DPA: build it with `cargo xtask build`");
}
