use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Result, bail};

use crate::{process, status, workspace};

/// Measure the collectives of Open MPI, MPICH, gloo and Flexcast among network namespaces, and what bare multicast
/// takes; needs root.
#[derive(clap::Args)]
#[command(after_help = OPTIONS)]
pub(crate) struct Compare {
    /// Options of `flexcast compare`, in any order.
    #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

const OPTIONS: &str = "\
--ops allgather,bcast,allreduce,alltoall    --systems flexcast,openmpi,mpich,gloo,bound
--ranks 2,4,8                               --sizes 64,64KiB,1MiB
--repetitions N   --warm-up N               --limit SECONDS
--loss PERCENT    --gso on|off              --out DIR   --json
`flexcast compare --help` says what each is, and docs/compare.md what the figures are.";

impl Compare {
    pub(crate) fn run(&self) -> Result<()> {
        let mut command = self.command(&workspace::cli()?);
        status::say("Comparing", "collectives among network namespaces (measured: wall time of this machine)");
        // In the place of this program, so that a signal reaches the one that removes the namespaces.
        let error = command.exec();
        bail!("{error}: {}", process::line(&command))
    }

    fn command(&self, cli: &std::path::Path) -> Command {
        let mut command = Command::new(cli);
        command.current_dir(workspace::root()).arg("compare").args(&self.options);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        compare: Compare,
    }

    #[test]
    fn options_need_no_separator() {
        use clap::Parser as _;

        let read = |words: &[&str]| Line::try_parse_from(["compare"].iter().chain(words));
        let options = read(&["--ranks", "2", "--json", "--gso", "off"]).map(|line| line.compare.options);
        assert_eq!(options.ok(), Some(["--ranks", "2", "--json", "--gso", "off"].map(str::to_owned).to_vec()));
        let help = read(&["--help"]).map(drop).expect_err("help is shown without a build").to_string();
        assert!(help.contains("--loss PERCENT"), "{help}");
    }

    #[test]
    fn options_are_those_of_the_command_line_tool() {
        let compare = Compare { options: ["--ranks", "2,4", "--json"].map(str::to_owned).to_vec() };
        let line = process::line(&compare.command(std::path::Path::new("flexcast")));
        assert!(line.ends_with("flexcast compare --ranks 2,4 --json"), "{line}");
    }
}
