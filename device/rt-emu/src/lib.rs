//! The symbols of `libflexio_dev` for the emulated DPA: what the vendor's library does on a card, done here by `ecall`.
//!
//! Names and parameters follow the FlexIO device headers 24.10 and later. On a card this crate is not linked. It needs unsafe code because
//! it *is* the boundary: exported symbols, raw pointers from C, `ecall`.
//!
//! `flexio_dev_msg` is variadic in C, which stable Rust cannot define. Here it is an assembly label for a function with four
//! integer parameters, which the RISC-V calling convention makes indistinguishable; it understands the format `"%s"` and texts without `%`.
#![no_std]
#![allow(unsafe_code)]

#[cfg(target_arch = "riscv64")]
mod rtos;
#[cfg(target_arch = "riscv64")]
pub mod symbols;
