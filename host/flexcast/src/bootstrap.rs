//! How ranks find one another.

/// Lets all ranks of a group tell one another something, before they are connected.
///
/// Implemented by whoever starts the ranks: over MPI, a key-value store, or TCP.
pub trait Exchange {
    /// The own rank, below [`Exchange::size`].
    fn rank(&self) -> u32;

    /// Number of ranks, at least 1.
    fn size(&self) -> u32;

    /// Gives every rank what every rank contributed, in the order of ranks. All ranks must call it, the same number of times, with the
    /// same `tag`; contributions may differ in length. Blocks, but not for ever.
    ///
    /// # Errors
    /// [`ExchangeError`] when a rank is missing or does not agree.
    fn exchange(&mut self, tag: &str, contribution: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError>;
}

/// Ranks that did not come together.
#[derive(Debug, thiserror::Error)]
#[error("exchange {tag:?}: {reason}")]
pub struct ExchangeError {
    /// The exchange.
    pub tag: String,
    /// What went wrong, with the ranks concerned.
    pub reason: String,
}
