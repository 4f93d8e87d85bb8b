use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::remote::Address;
use crate::toolchain::Toolchain;
use crate::workspace::RELEASE;
use crate::{build, process, verify, workspace};

mod there;

/// Build and verify one image, load it and call its bring-up RPC: on this computer, or with --to on another one.
#[derive(clap::Args)]
pub(crate) struct Deploy {
    /// Name of the image: a folder of device/images.
    image: String,
    /// What to build for: a file of toolchains/. With `emu` the card is an emulated one, with the others one of the
    /// computer that loads it, which needs DOCA.
    #[arg(long, alias = "target", default_value = "emu")]
    toolchain: String,
    /// Name of the card [default: the first].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Cargo profile of the command-line tool that loads it, and of the library that is copied.
    #[arg(long, default_value = RELEASE)]
    profile: String,
    /// Print the commands that build the image, and those that copy and start it, and run none.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    there: There,
}

/// Options of a deployment to another computer.
#[derive(clap::Args)]
struct There {
    /// Copy command, library and image to this computer by OpenSSH, and load the image there. No password is asked for.
    #[arg(long, value_name = "ssh://[USER@]HOST[:PORT]")]
    to: Option<Address>,
    /// Folder there; a relative one is below the home directory. `current` in it is the deployment that counts.
    #[arg(long, value_name = "DIR", default_value = "flexcast", requires = "to")]
    folder: String,
    /// Configuration file of OpenSSH, in place of the user's.
    #[arg(long, value_name = "FILE", requires = "to")]
    ssh_config: Option<PathBuf>,
    /// Sign the image before it is copied: this shell command is given the path of a copy as its last argument, and
    /// signs it in place or writes the same path with `.sig` behind it.
    #[arg(long, value_name = "COMMAND", requires = "to")]
    sign: Option<String>,
    /// Wait so many seconds, up to a day, for processes there that run programs of the folder, or its library, to end:
    /// firmware of a communicator is gone with its process. Those that do not are named, and nothing is put in place.
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = seconds_or_none(), requires = "to")]
    drain: u64,
    /// Put the deployment in place although processes there still run programs of the folder.
    #[arg(long, requires = "to")]
    replace_running: bool,
    /// Longest copy, in seconds.
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = seconds(), requires = "to")]
    copy_bound: u64,
    /// Longest bring-up there, in seconds.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = seconds(), requires = "to")]
    start_bound: u64,
}

/// Up to a day.
fn seconds() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=86_400)
}

/// The same or none.
fn seconds_or_none() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(..=86_400)
}

impl Deploy {
    pub(crate) fn run(&self) -> Result<()> {
        let toolchain = Toolchain::load(&self.toolchain)?;
        let provider = if toolchain.vendor.is_some() { "system" } else { "emu" };
        let image = std::slice::from_ref(&self.image);
        let deployment = self.there.to.as_ref().map(|to| self.deployment(to, provider));
        if self.dry_run {
            build::dry_run(&toolchain, &workspace::select_images(image)?)?;
            return deployment.map_or(Ok(()), |deployment| deployment.dry_run());
        }
        // What is missing there is said before anything takes time here.
        let prepared = deployment.map(|deployment| deployment.prepare().map(|host| (deployment, host))).transpose()?;
        let files = verify::build_and_verify(&toolchain, image)?;
        if let Some((deployment, host)) = prepared {
            return deployment.run(&host, &files[0], &self.profile);
        }
        let mut command = Command::new(workspace::cli_of(&self.profile)?);
        command.arg("deploy").args(files).args(["--provider", provider]);
        if let Some(device) = &self.device {
            command.args(["--device", device]);
        }
        process::run(&mut command)
    }

    fn deployment(&self, to: &Address, provider: &'static str) -> there::Deployment {
        there::Deployment {
            remote: crate::remote::Remote {
                address: to.clone(),
                config: self.there.ssh_config.clone(),
                copy_bound: Duration::from_secs(self.there.copy_bound),
            },
            folder: self.there.folder.clone(),
            image: self.image.clone(),
            provider,
            device: self.device.clone(),
            sign: self.there.sign.clone(),
            drain_s: self.there.drain,
            replace_running: self.there.replace_running,
            start_bound_s: self.there.start_bound,
            brought: Path::new(&workspace::root().join("target/deployments")).to_owned(),
        }
    }
}
