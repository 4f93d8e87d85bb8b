//! Bootstrap, by which ranks find one another: [`TcpStore`] where nothing else is there, [`CallbackExchange`] over what
//! an application has already (`MPI_Allgather`, a key-value store), and [`Subgroup`] for part of the ranks of either.
//!
//! ```
//! use flexcast_bootstrap::{Exchange, StoreConfig, TcpStore};
//!
//! // `TcpStore::from_env()` takes the same from FLEXCAST_RANK, FLEXCAST_SIZE, FLEXCAST_STORE, FLEXCAST_JOB and
//! // FLEXCAST_SECRET_FILE.
//! let mut store = TcpStore::join(StoreConfig::new(0, 1, "head-node:4711"))?;
//! let all = store.exchange("addresses", b"mine")?;
//! assert_eq!(all, [b"mine"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod callback;
mod descriptors;
pub mod store;
mod subgroup;

pub use callback::CallbackExchange;
pub use descriptors::DescriptorsUsedUp;
pub use store::{Secret, SecretError, StoreConfig, StoreError, TcpStore};
pub use subgroup::{Subgroup, SubgroupError, accompany, split};

/// Longest contribution of a rank to one exchange, in bytes.
pub const MAX_CONTRIBUTION_BYTES: usize = 1 << 20;
/// Longest name of an exchange, in bytes.
pub const MAX_TAG_BYTES: usize = 255;

/// Lets all ranks of a group send one another something, before they are connected.
///
/// Implemented by whoever starts the ranks: over MPI, a key-value store, or TCP.
pub trait Exchange {
    /// The own rank, below [`Exchange::size`].
    fn rank(&self) -> u32;

    /// Number of ranks, at least 1.
    fn size(&self) -> u32;

    /// Gives every rank what every rank contributed, in the order of ranks. All ranks must call it, the same number of
    /// times, with the same `tag`; contributions may differ in length. Blocks, but not for ever.
    ///
    /// # Errors
    /// [`ExchangeError`] when a rank is missing or does not agree.
    fn exchange(&mut self, tag: &str, contribution: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError>;

    /// Lets the other ranks know that this one cannot go on, and why, where the exchange can: then they need not wait
    /// for it. Nothing can be exchanged afterwards.
    fn refuse(&mut self, reason: &str) {
        let _ = reason;
    }
}

impl<E: Exchange + ?Sized> Exchange for &mut E {
    fn rank(&self) -> u32 {
        (**self).rank()
    }

    fn size(&self) -> u32 {
        (**self).size()
    }

    fn exchange(&mut self, tag: &str, contribution: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        (**self).exchange(tag, contribution)
    }

    fn refuse(&mut self, reason: &str) {
        (**self).refuse(reason);
    }
}

/// Ranks that did not come together.
#[derive(thiserror::Error)]
#[error("exchange {tag:?}: {reason}")]
pub struct ExchangeError {
    /// The exchange.
    pub tag: String,
    /// What went wrong, with the ranks concerned.
    pub reason: String,
}

flexcast_error::debug_as_display!(ExchangeError);

impl ExchangeError {
    fn new(tag: &str, reason: impl std::fmt::Display) -> Self {
        Self { tag: tag.to_owned(), reason: reason.to_string() }
    }
}
