//! Image `faulty`: what no image for a card may have.
#![cfg_attr(target_arch = "riscv64", no_std, no_main)]
#![allow(unsafe_code)]

#[cfg(target_arch = "riscv64")]
mod entries {
    use core::hint::black_box;

    use dpa::abi::ReceiveContext;

    /// Would be loaded, and nobody has said that it may be.
    #[used]
    #[unsafe(link_section = ".flexcast.extra")]
    static EXTRA: [u8; 16] = [1; 16];

    #[dpa::rpc]
    fn bring_up(argument: u64) -> u64 {
        dpa::abi::bring_up_answer(argument)
    }

    /// Executes an instruction that only the vendor's code may.
    #[dpa::rpc]
    fn custom(mut value: u64) -> u64 {
        // SAFETY: never executed; changes the one register.
        unsafe { core::arch::asm!(".insn r 0x0b, 0, 0, {0}, {0}, {0}", inout(reg) value) };
        value
    }

    /// Takes stack whose size is not known from the instructions.
    #[dpa::rpc]
    fn recurses(depth: u64) -> u64 {
        deeper(depth)
    }

    #[inline(never)]
    fn deeper(depth: u64) -> u64 {
        if depth == 0 { 0 } else { deeper(black_box(depth - 1)) + black_box(depth) }
    }

    /// Panics for an index beyond the array.
    #[dpa::event_handler]
    fn panics(context: &mut ReceiveContext) -> dpa::Next {
        let table = black_box([1_u32, 2, 3]);
        context.workers = table[context.batch as usize];
        dpa::Next::Finish
    }
}

#[cfg(not(target_arch = "riscv64"))]
fn main() {}
