//! Choice of a provider.

use clap::ValueEnum;

/// Who implements the vendor's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProviderName {
    /// The emulator: two cards in this process.
    Emu,
    /// The libraries of an installed DOCA, loaded at run time.
    System,
}
