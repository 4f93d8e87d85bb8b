//! Options of `flexcast reference`.

use std::path::PathBuf;

use clap::Args;
use flexcast_lab::machine_args::MachineArgs;
use flexcast_lab::reference::spec::ReferenceSpec;

use crate::pair_args::PairArgs;

#[derive(Debug, Args)]
pub(crate) struct ReferenceArgs {
    #[command(flatten)]
    pub(crate) spec: ReferenceSpec,
    /// Device image: a file, or the name of an image, which is searched for in target/device/emu of this folder, where
    /// `cargo xtask build` leaves images, and then among those that this program holds.
    #[arg(long, value_name = "ELF|NAME", default_value = "reference")]
    pub(crate) image: PathBuf,
    #[command(flatten)]
    pub(crate) pair: PairArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}
