//! Agreement of ranks on the options of a command, before anything is measured.

use flexcast::bootstrap::Exchange;

/// Why processes do not go on together.
#[derive(Debug, thiserror::Error)]
pub enum AgreementError {
    /// They did not come together.
    #[error(transparent)]
    Exchange(#[from] flexcast::bootstrap::ExchangeError),
    /// An option differs that must be alike.
    #[error("rank {rank} has {option} {value}, rank 0 {of_first}: give all ranks the same options")]
    Differs {
        /// The rank.
        rank: u32,
        /// The option.
        option: String,
        /// Its value there.
        value: String,
        /// Its value on rank 0.
        of_first: String,
    },
    /// What a rank sent are no options, or those of something else.
    #[error("rank {rank} has sent no options of this command: run one command of one build on all ranks")]
    OptionsOf {
        /// The rank.
        rank: u32,
    },
}

/// Options that must be alike on all ranks, each with its value as text.
pub type Options = Vec<(String, String)>;

/// Compares options among all ranks, and names the first that differs from rank 0's; alike on all ranks.
///
/// # Errors
/// [`AgreementError::Exchange`]: ranks do not come together. [`AgreementError::Differs`] or
/// [`AgreementError::OptionsOf`]: a rank has other options, or sends none.
pub fn agree(exchange: &mut dyn Exchange, options: &Options) -> Result<(), AgreementError> {
    let own = serde_json::to_vec(options).unwrap_or_default();
    let received = exchange.exchange("flexcast options", &own)?;
    let read = |(rank, bytes): (u32, &Vec<u8>)| {
        serde_json::from_slice::<Options>(bytes).map_err(|_| AgreementError::OptionsOf { rank })
    };
    let all = (0..).zip(&received).map(read).collect::<Result<Vec<_>, _>>()?;
    let Some((first, others)) = all.split_first() else { return Ok(()) };
    for (rank, theirs) in (1..).zip(others) {
        if theirs.iter().map(|(name, _)| name).ne(first.iter().map(|(name, _)| name)) {
            return Err(AgreementError::OptionsOf { rank });
        }
        let mut pairs = theirs.iter().zip(first);
        if let Some(((option, value), (_, of_first))) = pairs.find(|(one, other)| one != other) {
            let [option, value, of_first] = [option, value, of_first].map(Clone::clone);
            return Err(AgreementError::Differs { rank, option, value, of_first });
        }
    }
    Ok(())
}
