//! Image `{{name}}`.
#![cfg_attr(target_arch = "riscv64", no_std, no_main)]
#![forbid(unsafe_code)]

#[cfg(target_arch = "riscv64")]
mod entries {
    #[cfg(feature = "emu")]
    use rt_emu as _;

    use dpa::log::defmt;

    /// Proves that the image runs and speaks the host's ABI. Every image has this entry.
    #[dpa::rpc]
    fn bring_up(argument: u64) -> u64 {
        defmt::info!("{{name}}: hello from thread {=u32}", dpa::Thread::current().id());
        dpa::abi::bring_up_answer(argument)
    }

    /// Returns the instructions that adding up the numbers below `count` takes.
    #[dpa::rpc]
    fn measure(count: u64) -> u64 {
        let start = dpa::Counters::read();
        let sum = (0..count).fold(0u64, |sum, number| sum.wrapping_add(dpa::shared::in_register(number)));
        let spent = dpa::Counters::read().since(start);
        defmt::info!("{{name}}: sum {=u64}, {=u64} instructions", sum, spent.instructions);
        spent.instructions
    }
}

#[cfg(not(target_arch = "riscv64"))]
fn main() {
    println!("an image for the DPA: build it with `cargo xtask build {{name}}`");
}
