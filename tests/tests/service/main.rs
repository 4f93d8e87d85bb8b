//! Collectives by service processes on the Arm cores of emulated cards.

mod blocks;
mod campaign;
mod control;
mod keys;
mod multicast;
mod sessions;
mod staged;
