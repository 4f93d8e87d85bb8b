//! Arguments of `flexcast compare`.

use std::path::PathBuf;

use clap::Args;
use flexcast_lab::compare::spec::CompareSpec;

#[derive(Debug, Args)]
#[command(after_help = COMPARE_HELP)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) spec: CompareSpec,
    /// Folder of the page index.html; MPICH is searched for in its mpich/, a Python with torch in its gloo/.
    #[arg(long, value_name = "DIR", default_value = "target/compare")]
    pub(crate) out: PathBuf,
    /// Fail where network namespaces are not permitted, instead of ending well with nothing measured.
    #[arg(long)]
    pub(crate) require: bool,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

const COMPARE_HELP: &str = "\
All figures are measured: wall time on network namespaces of this computer. It takes root, `ip`, and for --loss `nft`, \
    for --gso off
`ethtool`. Where namespaces are not permitted nothing is measured, and the command ends well unless --require is given.
A system that is not installed is left out, with a line that says how to get it.";
