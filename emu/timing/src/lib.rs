//! Timing model of BlueField-3's DPA: what instructions and accesses cost, as far as published figures show.
//!
//! Pure arithmetic on integers: no clock, no randomness, no floating point. [`Parameters`] are the numbers with their
//! origins (one of them fitted, in `models/m2.toml`), [`Model`] the same for use; [`Core`] decides which thread issues
//! when, [`Memory`] what accesses cost, from tags of real caches ([`cache`]) and from shared paths with a rate
//! ([`server`]).
#![forbid(unsafe_code)]

pub mod cache;
pub mod core;
mod labels;
pub mod memory;
pub mod model;
pub mod parameters;
pub mod server;
mod snoop_filter;
pub mod unit;

pub use crate::core::{Core, Issue};
pub use memory::{Counts, Memory, Space};
pub use model::Model;
pub use parameters::{Origin, Parameter, Parameters, ParametersError};
