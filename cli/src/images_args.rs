//! Device images of commands: those that the program holds, and the options that name others.

use std::path::PathBuf;

use clap::Args;
use flexcast_lab::images::{Held, Images};

/// The images that this program holds; none in a build for tests (`build.rs`).
const HELD: &[Held] = include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// Where images are searched for unless an option says otherwise.
pub(crate) const fn usual() -> Images {
    Images::Usual(HELD)
}

/// Folder of the images, of a command that loads several.
#[derive(Debug, Args)]
pub(crate) struct ImagesArgs {
    /// Folder of the device images [default: target/device/emu of this folder, where `cargo xtask build` leaves them,
    /// and for an image that is not there the one that this program holds].
    #[arg(long, value_name = "DIR")]
    pub(crate) images: Option<PathBuf>,
}

impl ImagesArgs {
    /// Where the images are searched for.
    pub(crate) fn source(&self) -> Images {
        Images::of(self.images.as_deref(), HELD)
    }
}
