//! Inputs of commands: the provider, the image, the bytes to send.

use std::path::Path;

use flexcast_lab::images::ImageError;
use flexcast_lab::memory;
use flexcast_lab::tput::run::ImageFile;
use flexio::Provider;

use crate::images_args;
use crate::provider_name::ProviderName;

/// Copies of what is sent: the file, the buffers of both ranks, and a copy to compare.
const SOURCE_COPIES: u64 = 4;

/// A provider; the emulator with these losses on its link.
pub(crate) fn open_provider(name: ProviderName, loss_ppm: u32, seed: u64) -> anyhow::Result<Provider> {
    match name {
        ProviderName::Emu => Ok(emu_provider::emulated(emu_provider::lossy(loss_ppm, seed))?),
        ProviderName::System => {
            anyhow::ensure!(
                loss_ppm == 0,
                "--loss is a property of the emulated link: leave it out with --provider system"
            );
            Ok(Provider::system()?)
        }
    }
}

/// The image that an option names, by its file or by its name.
pub(crate) fn read_image(asked: &Path) -> Result<ImageFile, ImageError> {
    images_args::usual().read_named(asked)
}

pub(crate) fn read_source(path: &Path) -> anyhow::Result<Vec<u8>> {
    Ok(memory::read_file("file to send", path, SOURCE_COPIES)?)
}
