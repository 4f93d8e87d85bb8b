//! Options of the commands that measure between two cards.

use clap::Args;
use emu_machine::Config;
use emu_provider::Emulated;
use flexcast_lab::machine_args::MachineArgs;
use flexio::Provider;

use crate::provider_name::ProviderName;

/// The two cards, who drives them, and the form of the result.
#[derive(Debug, Args)]
pub(crate) struct PairArgs {
    /// Who implements the vendor's libraries.
    #[arg(long, value_enum, default_value = "emu")]
    pub(crate) provider: ProviderName,
    /// Name of the receiving card [default: the first].
    #[arg(long, value_name = "NAME")]
    pub(crate) receiver: Option<String>,
    /// Name of the sending card [default: the second, or the first where there is one].
    #[arg(long, value_name = "NAME")]
    pub(crate) sender: Option<String>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl PairArgs {
    /// The provider, and the emulated machine behind it if there is one, which is to be as `config` says.
    ///
    /// # Errors
    /// A machine that cannot be, options of the emulated machine together with `--provider system`, or no DOCA.
    pub(crate) fn open(&self, machine: &MachineArgs, config: Config) -> anyhow::Result<(Provider, Option<Emulated>)> {
        match self.provider {
            ProviderName::Emu => {
                let emulated = Emulated::new(config)?;
                Ok((emulated.provider.clone(), Some(emulated)))
            }
            ProviderName::System => {
                if let Some(option) = machine.given() {
                    anyhow::bail!("{option} is for the emulated machine: leave it out with --provider system");
                }
                Ok((Provider::system()?, None))
            }
        }
    }
}
