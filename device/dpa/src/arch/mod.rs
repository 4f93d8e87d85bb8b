//! The instructions that Rust has no words for. Everything architecture-specific of the firmware is in here.

#[cfg(target_arch = "riscv64")]
mod riscv;
#[cfg(target_arch = "riscv64")]
pub(crate) use riscv::*;

#[cfg(not(target_arch = "riscv64"))]
mod host;
#[cfg(not(target_arch = "riscv64"))]
pub(crate) use host::*;
