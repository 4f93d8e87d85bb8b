//! The timing model that a command's emulated times are made of.

use emu_config::Timing;

/// A timing model, and what is different in it.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// What emulated times are made of: m2, uncalibrated-1, or a file of a timing model's numbers.
    #[arg(long, value_name = "NAME|FILE", default_value = "m2")]
    pub(crate) model: String,
    /// A number of the timing model that is to be different, such as loads.l3_cycles=115.
    #[arg(long, value_name = "GROUP.NAME=VALUE")]
    pub(crate) set: Vec<String>,
}

impl ModelArgs {
    /// The model that a machine's description takes.
    pub(crate) fn timing(&self) -> Timing {
        Timing { model: Some(self.model.clone()), set: self.set.clone() }
    }
}
