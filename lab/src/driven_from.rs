//! Place of the process that drives the cards, as the command line and reports have it.

use serde::Serialize;

/// Where the process runs that drives the cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DrivenFrom {
    /// On the server that the card is plugged into: windows reach host memory.
    #[default]
    Host,
    /// On the card's own Arm cores (DPU mode): windows reach their memory.
    Arm,
}

impl From<DrivenFrom> for emu_machine::DrivenFrom {
    fn from(driven_from: DrivenFrom) -> Self {
        match driven_from {
            DrivenFrom::Host => Self::Host,
            DrivenFrom::Arm => Self::Arm,
        }
    }
}

impl From<emu_machine::DrivenFrom> for DrivenFrom {
    fn from(driven_from: emu_machine::DrivenFrom) -> Self {
        match driven_from {
            emu_machine::DrivenFrom::Host => Self::Host,
            emu_machine::DrivenFrom::Arm => Self::Arm,
        }
    }
}
