//! Options of `flexcast calibrate`.

use std::path::PathBuf;

use flexcast_lab::options::whole;

use crate::images_args::ImagesArgs;
use crate::model_args::ModelArgs;

/// What to calibrate.
#[derive(Debug, clap::Args)]
pub(crate) struct CalibrateArgs {
    #[command(flatten)]
    pub(crate) images: ImagesArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Leave out the sweep over assumptions.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Machines to emulate at a time.
    #[arg(long, value_parser = whole::<usize>(1, usize::MAX), value_name = "N", default_value_t = 2)]
    pub(crate) jobs: usize,
    /// Write the tables to a Markdown file, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}
