//! Cards of the ranks of one thread.

use flexcast::Endpoint;
use flexio::{Application, Provider};

use super::SimError;

/// An error of a rank.
pub(super) fn at(rank: u32) -> impl Fn(flexcast::Error) -> SimError {
    move |source| SimError::Rank { rank, source }
}

/// What runs on a card.
#[derive(Clone, Copy, Debug)]
pub enum Opening<'o> {
    /// Loaded firmware on its DPA.
    Firmware(&'o Application),
    /// Nothing: the host receives and sends.
    Verbs,
}

/// Opens the first `count` cards of a provider.
///
/// # Errors
/// [`SimError::Rank`] with the number of the card as rank.
pub fn open_cards(provider: &Provider, count: usize, opening: Opening<'_>) -> Result<Vec<Endpoint>, SimError> {
    let devices = provider.devices().map_err(|error| at(0)(error.into()))?;
    if devices.len() < count {
        let reason = format!("{count} cards are needed, the machine has {}", devices.len());
        return Err(SimError::Parameter { what: "--ranks", reason });
    }
    let open = |(number, device): (u32, &flexio::DeviceInfo)| {
        let card = match opening {
            Opening::Firmware(application) => Endpoint::open_with(provider, &device.name, application),
            Opening::Verbs => Endpoint::verbs(provider, &device.name),
        };
        card.map_err(at(number))
    };
    (0..).zip(&devices[..count]).map(open).collect()
}
