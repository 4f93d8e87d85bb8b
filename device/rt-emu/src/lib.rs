//! The symbols of `libflexio_dev` for the emulated DPA: what the vendor's library does on a card, done here by `ecall`.
//!
//! Names and parameters follow the FlexIO device headers 24.10 and later. On a card this crate is not linked. It needs
//! unsafe code because it *is* the boundary: exported symbols, raw pointers from C, `ecall`.
//!
//! `flexio_dev_msg` is variadic in C, which stable Rust cannot define: a few instructions put the arguments in memory,
//! and [`format`](mod@format) does the rest.
#![cfg_attr(not(test), no_std)]
#![allow(unsafe_code)]

#[cfg(any(target_arch = "riscv64", test))]
mod format;
#[cfg(all(target_arch = "riscv64", feature = "archive"))]
mod panic;
#[cfg(target_arch = "riscv64")]
mod rtos;
#[cfg(target_arch = "riscv64")]
pub mod symbols;
#[cfg(target_arch = "riscv64")]
pub mod symbols_more;
