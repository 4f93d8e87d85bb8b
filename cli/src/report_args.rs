//! Arguments of `flexcast report`.

use std::path::PathBuf;

use clap::Args;
use flexcast_lab::options::whole;
use flexcast_lab::shard::Shard;

use crate::images_args::ImagesArgs;
use crate::model_args::ModelArgs;

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Experiments by their ids, with commas between them, or the option several times [default: all].
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Only every N-th of these experiments, from the I-th on: for N jobs side by side, each with another I from 1 to
    /// N, and a folder of its own.
    #[arg(long, value_name = "I/N")]
    pub(crate) shard: Option<Shard>,
    /// The small sweeps: seconds, to see that nothing has drifted.
    #[arg(long)]
    pub(crate) reduced: bool,
    /// Folder for the page and the files of each experiment.
    #[arg(long, value_name = "DIR", default_value = "target/evaluation")]
    pub(crate) out: PathBuf,
    /// Write the verdicts to this Markdown file, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,
    /// Commit that the figures are made from, for the head of this file.
    #[arg(long, value_name = "HASH", requires = "summary")]
    pub(crate) commit: Option<String>,
    /// What `flexcast calibrate --json` has written.
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// List the experiments, each with its id and its title, and run none.
    #[arg(long)]
    pub(crate) list: bool,
    /// Folder of the experiments' files [default: lab/experiments of this folder, and if it is not there, the
    /// experiments that this program holds].
    #[arg(long, value_name = "DIR")]
    pub(crate) experiments: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) images: ImagesArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Runs at a time, each with a machine of its own [default: one per core].
    #[arg(long, value_parser = whole::<usize>(1, usize::MAX), value_name = "N")]
    pub(crate) jobs: Option<usize>,
}
