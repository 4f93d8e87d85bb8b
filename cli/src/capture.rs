//! Packet capture of the emulated cards, to a file that an option names.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use emu_provider::Emulated;
use flexcast_cli::note;

/// A capture under way: the packets of emulated cards, and the file that they go to.
pub(crate) struct Capture<'a> {
    cards: &'a Emulated,
    path: &'a Path,
}

impl<'a> Capture<'a> {
    /// Begins to write the packets of these cards.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn start(cards: &'a Emulated, path: &'a Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("capture `{}` cannot be written", path.display()))?;
        cards.start_capture(file)?;
        Ok(Self { cards, path })
    }

    /// Ends it, and says how many packets there are.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        note!("{} packets in {}", self.cards.finish_capture()?, self.path.display());
        Ok(())
    }
}
