//! Ranks in one thread: their cards and communicators.

use flexcast::{Card, Communicator, Config, Pending};
use flexio::{Application, Provider};

use super::SimError;

fn at(rank: u32) -> impl Fn(flexcast::Error) -> SimError {
    move |source| SimError::Rank { rank, source }
}

/// Opens the first `count` cards of a provider with loaded firmware.
///
/// # Errors
/// [`SimError::Rank`] with the number of the card as rank.
pub fn open_cards(provider: &Provider, count: usize, application: &Application) -> Result<Vec<Card>, SimError> {
    let devices = provider.devices().map_err(|error| at(0)(error.into()))?;
    if devices.len() < count {
        let reason = format!("{count} cards are needed, the machine has {}", devices.len());
        return Err(SimError::Parameter { what: "--ranks", reason });
    }
    let open = |(number, device): (u32, &flexio::DeviceInfo)| {
        Card::open_with(provider, &device.name, application).map_err(at(number))
    };
    (0..).zip(&devices[..count]).map(open).collect()
}

/// Makes a communicator of `ranks` ranks, `ranks_per_card` on each card, rank 0's card first.
///
/// # Errors
/// [`SimError::Rank`].
pub fn communicators(
    cards: &[Card],
    ranks: u32,
    ranks_per_card: u32,
    config: &Config,
) -> Result<Vec<Communicator>, SimError> {
    let pending = (0..ranks)
        .map(|rank| {
            let card = &cards[(rank / ranks_per_card) as usize];
            Pending::new(card, rank, ranks, config.clone()).map_err(at(rank))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let endpoints: Vec<Vec<u8>> = pending.iter().map(Pending::endpoint).collect();
    (0..).zip(pending).map(|(rank, pending)| pending.connect(&endpoints).map_err(at(rank))).collect()
}
