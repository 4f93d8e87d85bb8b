//! FlexIO of the emulated card through its C functions.

mod faults;
mod life_cycle;
mod messages;
mod refused;
mod support;
