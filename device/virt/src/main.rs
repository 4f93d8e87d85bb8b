//! The receive datapath as a bare program for QEMU's RISC-V `virt` machine: the same crates as the images, the start-up
//! code of riscv-rt, and in place of the DPA's runtime library the few symbols of `runtime`. Prints the lines of the
//! scenarios on the serial port.
#![cfg_attr(target_arch = "riscv64", no_std, no_main)]
// Device registers and exported symbols: this crate is a runtime.
#![allow(unsafe_code)]

#[cfg(target_arch = "riscv64")]
mod board;
#[cfg(target_arch = "riscv64")]
mod runtime;

#[cfg(target_arch = "riscv64")]
use flexcast_abi::{ContextMemory, DeviceAddress, ReceiveThread};

#[cfg(target_arch = "riscv64")]
#[riscv_rt::entry]
fn main() -> ! {
    let mut context = flexcast_abi::ReceiveContext {
        flag_host: runtime::host_lines(),
        report_host: runtime::host_lines() + 64,
        ..Default::default()
    };
    let address = DeviceAddress::new((&raw mut context).expose_provenance() as u64);
    let mut thread = ReceiveThread { contexts: ContextMemory::new(address, 1), ..Default::default() };
    scenario::run(&mut thread, |line| {
        board::print(line);
        board::print("\n");
    });
    board::exit(0)
}

#[cfg(not(target_arch = "riscv64"))]
fn main() {
    println!("a bare program for RISC-V: build it with `cargo xtask virt --build`");
}
