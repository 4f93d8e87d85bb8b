//! Sparse AllReduce on emulated cards.

mod campaign;
mod external;
mod image;
mod on_dpa;
mod pairs;
mod rates;
mod workers;
